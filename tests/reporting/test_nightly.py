"""One merge a night by a clock that the test moves."""

from datetime import UTC, datetime, time, timedelta, timezone

import pytest

from model.errors import RegistryError
from reporting.nightly import Nightly, latest_night

AT = time(0, 15)


class Clock:
    """A time of day and a steady clock, which move together unless the time is set."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.seconds = 0.0

    def go_on(self, step: timedelta) -> None:
        self.now += step
        self.seconds += step.total_seconds()


class Yard:
    """What is created, by key, and what goes wrong with it."""

    def __init__(self, now: str, at: time | None = AT) -> None:
        self.clock = Clock(datetime.fromisoformat(now))
        self.keys: list[str] = []
        self.fails = False
        self.nightly = Nightly(self._create, at, now=lambda: self.clock.now, steady=lambda: self.clock.seconds)

    def _create(self, key: str) -> None:
        self.keys.append(key)
        if self.fails:
            raise RegistryError("The registry does not answer.")

    def tick_for(self, duration: timedelta, step: timedelta = timedelta(minutes=1)) -> list[str]:
        """Tick every so often and return the keys of this time."""
        self.keys.clear()
        until = self.clock.now + duration
        while self.clock.now < until:
            self.nightly.tick()
            self.clock.go_on(step)
        return list(self.keys)


def test_a_service_that_runs_makes_one_merge_a_night_at_its_time() -> None:
    yard = Yard("2026-03-01T12:00:00Z")
    assert yard.tick_for(timedelta(hours=12, minutes=15)) == ["merge-2026-03-01"], "the night before it started"
    assert yard.tick_for(timedelta(minutes=2)) == ["merge-2026-03-02"]
    assert yard.tick_for(timedelta(hours=23)) == []


def test_a_missed_night_is_made_up_for_at_the_start_and_of_several_only_the_last() -> None:
    assert Yard("2026-03-09T08:00:00Z").tick_for(timedelta(hours=1)) == ["merge-2026-03-09"]
    yard = Yard("2026-03-01T00:15:00Z")
    yard.nightly.tick()
    # Switched off for a week.
    yard.clock.go_on(timedelta(days=7))
    assert yard.tick_for(timedelta(hours=1)) == ["merge-2026-03-08"]


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_daylight_saving_neither_skips_nor_repeats_a_night(day: str) -> None:
    # What the machine's own clock does then, it does in another zone: nights are those of UTC.
    summer = timezone(timedelta(hours=2))
    local = datetime.fromisoformat(f"{day}T00:00:00Z").astimezone(summer)
    yard = Yard(local.isoformat())
    yard.tick_for(timedelta(minutes=10))
    assert yard.tick_for(timedelta(hours=24)) == [f"merge-{day}"]


def test_a_clock_that_is_set_back_makes_no_night_anew() -> None:
    created: set[str] = set()
    yard = Yard("2026-03-02T00:15:10Z")
    created.update(yard.tick_for(timedelta(minutes=1)))
    yard.clock.now -= timedelta(minutes=5)
    # It is the night before by this clock, whose merge the store has: creating it again gives back that one.
    assert yard.tick_for(timedelta(minutes=4)) == ["merge-2026-03-01"]
    assert yard.tick_for(timedelta(hours=1)) == ["merge-2026-03-02"]
    assert created == {"merge-2026-03-02"}


def test_what_fails_is_tried_again_a_minute_later_until_it_works() -> None:
    yard = Yard("2026-03-02T00:15:00Z")
    yard.fails = True
    assert yard.tick_for(timedelta(minutes=3), timedelta(seconds=1)) == ["merge-2026-03-02"] * 3
    yard.fails = False
    assert yard.tick_for(timedelta(minutes=3), timedelta(seconds=1)) == ["merge-2026-03-02"]


def test_without_a_time_there_is_no_nightly_merge() -> None:
    assert Yard("2026-03-02T00:15:00Z", at=None).tick_for(timedelta(days=2), timedelta(hours=1)) == []


def test_a_night_begins_at_its_very_moment() -> None:
    due = datetime(2026, 3, 2, 0, 15, tzinfo=UTC)
    assert latest_night(due, AT) == due
    assert latest_night(due - timedelta(microseconds=1), AT) == due - timedelta(days=1)
