from types import SimpleNamespace

import pytest

from connectors.pubsub import ack_deadline
from connectors.pubsub.ack_deadline import AckDeadline


class Clocks(SimpleNamespace):
    """A machine's two clocks."""

    wall, steady = 1_000_000.0, 500.0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clocks(monkeypatch) -> Clocks:
    found = Clocks()
    monkeypatch.setattr(ack_deadline, "time", found)
    return found


def test_the_shortest_lease_counts_from_when_it_began_at_the_earliest(clocks):
    deadline = AckDeadline()
    deadline.begin(60, age_seconds=0)
    deadline.begin(10, age_seconds=4)
    deadline.begin(60, age_seconds=20)
    clocks.pass_by(5.9)
    assert not deadline.is_over
    clocks.pass_by(0.2)
    assert deadline.is_over


def test_an_extension_counts_from_its_sending_if_it_is_answered_in_time(clocks):
    deadline = AckDeadline()
    deadline.begin(10, age_seconds=0)
    deadline.extend(10, lambda: clocks.pass_by(9) is None)
    assert deadline.unix_seconds == clocks.wall + 1
    deadline.extend(600, lambda: clocks.pass_by(2) is None)
    assert deadline.is_over


def test_an_extension_that_fails_for_one_extends_nothing(clocks):
    deadline = AckDeadline()
    deadline.begin(10, age_seconds=0)
    deadline.extend(600, lambda: False)
    clocks.pass_by(10)
    assert deadline.is_over


@pytest.mark.parametrize(("wall", "steady"), [(3600, 0), (-3600, 11)])
def test_whichever_clock_says_later_counts(clocks, wall, steady):
    """A machine that slept, and one whose clock was set back while its process stood still."""
    deadline = AckDeadline()
    deadline.begin(10, age_seconds=0)
    clocks.wall += wall
    clocks.steady += steady
    assert deadline.is_over


def test_another_process_goes_on_with_it(clocks):
    deadline = AckDeadline()
    deadline.begin(10, age_seconds=0)
    told = AckDeadline.at(deadline.unix_seconds)
    clocks.pass_by(9)
    clocks.wall -= 3600
    assert not told.is_over
    clocks.pass_by(1)
    assert told.is_over


def test_without_a_lease_it_is_never_over(clocks):
    told = AckDeadline.at(AckDeadline().unix_seconds)
    clocks.pass_by(10**9)
    assert not told.is_over
