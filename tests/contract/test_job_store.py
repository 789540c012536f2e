"""What every job store keeps to, on SQLite and on a real PostgreSQL."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs.progress import Progress
from jobs.store import Idempotency, JobError, JobStore, open_store
from model.errors import IdempotencyKeyReusedError, JobChangedError, JobNotFoundError, JobStateError
from model.job import JobState, new_job_id
from model.process import Process

KIND = "backfill"


@pytest.fixture
def store(url: str) -> Iterator[JobStore]:
    store = open_store(url)
    yield store
    store.close()


def insert(store: JobStore, **request: str) -> str:
    return store.insert(new_job_id("bf"), KIND, request, actor="ann").id


def test_a_new_job_is_pending_and_has_a_history(store: JobStore) -> None:
    job = store.get(insert(store, query="SELECT 1"))

    assert (job.state, job.request, job.created_by, job.epoch) == (
        JobState.PENDING,
        {"query": "SELECT 1"},
        "ann",
        0,
    )
    assert (job.started_at, job.finished_at, job.error, job.driver) == (None, None, None, None)
    assert [(e.actor, e.what) for e in store.list_events(job.id)] == [("ann", "created")]


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("bf_none"),
        lambda store: store.list_events("bf_none"),
        lambda store: store.begin_attempt("bf_none"),
        lambda store: store.move("bf_none", JobState.RUNNING, actor="x"),
    ],
)
def test_a_job_that_is_not_there_is_an_error(store: JobStore, call: object) -> None:
    assert callable(call)
    with pytest.raises(JobNotFoundError):
        call(store)


def test_a_job_runs_and_ends_and_its_history_says_so(store: JobStore) -> None:
    job_id = insert(store)
    driver = Process(1, 2, "boot")

    store.begin_attempt(job_id)
    running = store.move(job_id, JobState.RUNNING, actor="refeed", driver=driver)
    ended = store.move(job_id, JobState.FAILED, actor="refeed", why="died", error=JobError("driver_died", "Died."))

    assert (running.epoch, running.driver, running.finished_at) == (1, driver, None)
    assert running.started_at is not None
    assert ended.error == JobError("driver_died", "Died.")
    assert ended.finished_at is not None
    assert [(e.what, e.why) for e in store.list_events(job_id)] == [
        ("created", None),
        ("PENDING -> RUNNING", None),
        ("RUNNING -> FAILED", "died"),
    ]


def test_a_retried_job_has_no_error_and_a_new_epoch(store: JobStore) -> None:
    job_id = insert(store)
    store.begin_attempt(job_id)
    store.move(job_id, JobState.FAILED, actor="refeed", error=JobError("x", "X."))

    retried = store.move(job_id, JobState.PENDING, actor="ann")

    assert (retried.error, retried.finished_at) == (None, None)
    assert store.begin_attempt(job_id).epoch == 2


def test_a_move_that_its_state_does_not_allow_changes_nothing(store: JobStore) -> None:
    job_id = insert(store)
    store.move(job_id, JobState.CANCELLED, actor="ann")
    before = store.get(job_id)

    with pytest.raises(JobStateError):
        store.move(job_id, JobState.RUNNING, actor="refeed")
    with pytest.raises(JobStateError):
        store.begin_attempt(job_id)

    assert store.get(job_id) == before
    assert len(store.list_events(job_id)) == 2


def test_a_move_from_a_version_that_is_gone_is_refused(store: JobStore) -> None:
    job_id = insert(store)
    read = store.get(job_id)
    store.begin_attempt(job_id)

    with pytest.raises(JobChangedError):
        store.move(job_id, JobState.CANCELLED, actor="ann", expected_version=read.version)

    assert store.move(job_id, JobState.CANCELLED, actor="ann", expected_version=2).version == 3


def test_progress_is_kept_without_a_new_version(store: JobStore) -> None:
    job_id = insert(store)

    store.set_progress(job_id, Progress(selected=10, published=3))

    assert store.get(job_id).progress == Progress(selected=10, published=3)
    assert store.get(job_id).version == 1
    assert len(store.list_events(job_id)) == 1


def test_jobs_are_listed_newest_first_page_by_page(store: JobStore) -> None:
    made = sorted(insert(store) for _ in range(5))
    store.insert(new_job_id("mg"), "merge", {}, actor="ann")

    first = [job.id for job in store.list_jobs(KIND, limit=2)]
    rest = [job.id for job in store.list_jobs(KIND, limit=9, after=(first[-1],))]

    assert first + rest == made[::-1]


def test_only_jobs_that_are_not_at_their_end_are_active(store: JobStore) -> None:
    ended, waiting = insert(store), insert(store)
    store.move(ended, JobState.CANCELLED, actor="ann")

    assert [job.id for job in store.list_active(KIND)] == [waiting]


def test_the_same_key_and_request_give_the_same_job(store: JobStore) -> None:
    key = Idempotency("key", "digest")

    first = store.insert(new_job_id("bf"), KIND, {}, actor="ann", idempotency=key)
    second = store.insert(new_job_id("bf"), KIND, {}, actor="ann", idempotency=key)

    assert first == second
    assert len(store.list_jobs(KIND, limit=10)) == 1


def test_the_same_key_with_another_request_is_refused(store: JobStore) -> None:
    store.insert(new_job_id("bf"), KIND, {}, actor="ann", idempotency=Idempotency("key", "digest"))

    with pytest.raises(IdempotencyKeyReusedError):
        store.insert(new_job_id("bf"), KIND, {}, actor="ann", idempotency=Idempotency("key", "other"))


def test_jobs_survive_the_process_that_made_them(store: JobStore, url: str) -> None:
    job_id = insert(store, query="SELECT 1")
    store.close()

    again = open_store(url)
    try:
        assert again.get(job_id).request == {"query": "SELECT 1"}
    finally:
        again.close()


def test_of_many_that_make_the_same_move_one_wins(store: JobStore, url: str) -> None:
    job_id = insert(store)
    start = threading.Barrier(8)

    def cancel(_: int) -> bool:
        other = open_store(url)
        try:
            start.wait(20)
            other.move(job_id, JobState.CANCELLED, actor="x")
        except JobStateError:
            return False
        else:
            return True
        finally:
            other.close()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(cancel, range(8))) == 1


def test_many_that_write_at_once_lose_nothing(store: JobStore, url: str) -> None:
    def write(_: int) -> None:
        other = open_store(url)
        try:
            for _ in range(10):
                insert(other)
        finally:
            other.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))

    assert len(store.list_jobs(KIND, limit=1000)) == 40
