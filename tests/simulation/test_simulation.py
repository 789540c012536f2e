import logging
import os
import socket

import pytest
import structlog

from tests.simulation.run import Run, chosen_seed, describe, run_once, run_seed
from tests.simulation.stream import Simulation


@pytest.fixture(autouse=True, scope="module")
def quiet():
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def test_nothing_is_lost_or_doubled_whatever_happens_to_a_stream_at_any_step():
    """The engine's journal, leases, commits and acknowledgements under kills, power cuts, hangs and two owners."""
    for number in range(6):
        run = run_once(seed := run_seed(4, number), 5_000)
        assert run.broken is None, describe(seed, run)
        assert run.published
        assert run.mishaps


def test_a_new_commit_has_runs_that_no_commit_had_before():
    """Its seed is CI's, which is made of the commit: SIMULATE_SEED, in hexadecimal."""
    for number in range(3):
        run = run_once(seed := run_seed(chosen_seed(), number), 5_000)
        assert run.broken is None, describe(seed, run)


def test_a_broken_promise_names_the_run_that_repeats_it():
    broken = "FaultFoundError: m1 is in t.a twice"
    run = Run(asked_steps=70, steps=81, broken=broken, mishaps=(), trace=("the end",), published=1)
    assert describe(8, run).splitlines() == [
        "the end",
        "FaultFoundError: m1 is in t.a twice",
        "Shrink it with: make simulate RUN=8 STEPS=70",
    ]


def test_a_seed_gives_the_same_run_again():
    first, again = (run_once(3, 3_000) for _ in range(2))
    assert first.trace == again.trace
    assert first.mishaps


def test_a_lease_names_the_same_holder_in_each_run(tmp_path):
    """An error that a trace quotes has the holder's process and host."""
    with Simulation(3, tmp_path)._is_everything():
        assert (os.getpid(), socket.gethostname()) == (1, "machine")


def test_a_run_without_its_mishaps_has_none():
    assert run_once(3, 3_000, only=()).mishaps == ()
