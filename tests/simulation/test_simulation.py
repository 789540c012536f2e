import logging

import pytest
import structlog

from tests.simulation.run import run_once, run_seed


@pytest.fixture(autouse=True, scope="module")
def quiet():
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def test_nothing_is_lost_or_doubled_whatever_happens_to_a_stream_at_any_step():
    """The engine's journal, leases, commits and acknowledgements under kills, power cuts, hangs and two owners."""
    for number in range(6):
        run = run_once(run_seed(1, number), 5_000)
        assert run.broken is None, "\n".join(run.trace[-60:])
        assert run.published
        assert run.mishaps


def test_a_seed_gives_the_same_run_again():
    first, again = (run_once(3, 3_000) for _ in range(2))
    assert first.trace == again.trace
    assert first.mishaps


def test_a_run_without_its_mishaps_has_none():
    assert run_once(3, 3_000, only=()).mishaps == ()
