import time

import pytest

from model.errors import JobStateError
from model.job import MOVES, JobState, is_job_id, new_job_id, validate_move


def test_ids_sort_by_the_time_they_were_made():
    first = new_job_id("bf")
    later = time.time_ns() + 2_000_000
    while time.time_ns() < later:  # a ULID counts milliseconds
        continue
    assert first < new_job_id("bf")


def test_ids_do_not_repeat():
    assert len({new_job_id("bf") for _ in range(10_000)}) == 10_000


@pytest.mark.parametrize(
    "text", ["", "bf_", "bf_" + "I" * 26, "BF_" + "0" * 26, "bf_" + "0" * 27, "../etc/passwd"]
)
def test_what_is_no_id_is_told_apart(text):
    assert not is_job_id(text)


def test_a_job_that_succeeded_stays_so_unless_it_is_to_send_again_what_is_missing():
    validate_move("bf_1", JobState.SUCCEEDED, JobState.PENDING)
    for state in set(JobState) - {JobState.PENDING}:
        with pytest.raises(JobStateError, match="can't become"):
            validate_move("bf_1", JobState.SUCCEEDED, state)


def test_every_state_but_the_final_ones_can_end():
    for state in JobState:
        if not state.is_final:
            assert any(target.is_final for target in MOVES[state])
