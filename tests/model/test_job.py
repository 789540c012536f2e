from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from model.errors import JobStateError
from model.job import MOVES, JobState, created_at, is_job_id, new_job_id, validate_move


def test_ids_sort_as_one_process_made_them_also_within_a_millisecond():
    made = [new_job_id("bf") for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == 10_000


def test_an_id_tells_when_it_was_made():
    before = datetime.now(UTC)
    made_at = created_at(new_job_id("bf"))
    assert before - timedelta(milliseconds=1) < made_at <= datetime.now(UTC)


def test_ids_of_many_threads_do_not_repeat():
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_job_id("bf"), range(10_000)))
    assert len(set(made)) == 10_000


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
