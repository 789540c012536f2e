"""Which replica looks after which job, on every job store."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from jobs.store import Job, JobStore, database, open_store
from jobs.store.job_rows import JOB_RECORDS
from model.errors import JobChangedError, LeaseLostError, StoreUnavailableError
from model.job import JobState, new_job_id
from model.process import Process

KIND = "backfill"
LONG = 600.0
Insert = Callable[..., str]


def claim(store: JobStore, owner: str = "a", *, limit: int = 10, lease_seconds: float = LONG) -> list[str]:
    return [job.id for job in store.claim(KIND, owner, limit=limit, lease_seconds=lease_seconds)]


def run(store: JobStore, job_id: str, owner: str = "a") -> Job:
    store.begin_attempt(job_id, owner=owner)
    return store.move(job_id, JobState.RUNNING, actor="refeed", driver=Process(1, 2, "boot"), owner=owner)


def test_what_one_holds_nobody_else_gets(store: JobStore, insert: Insert) -> None:
    job_id = insert()

    assert claim(store) == [job_id]
    assert claim(store, "b") == []
    assert [job.lease_owner for job in store.held(KIND, "a")] == ["a"]
    assert store.held(KIND, "b") == []
    assert store.take_over(KIND, "b", lease_seconds=LONG) == []


def test_a_lease_that_expired_or_was_let_go_is_anybody_s(store: JobStore, insert: Insert) -> None:
    first = insert()
    claim(store, lease_seconds=-1)
    assert claim(store, "b") == [first]

    store.release(first, "a")
    assert claim(store, "c") == []
    store.release(first, "b")
    assert claim(store, "c") == [first]


def test_a_renewed_lease_is_held(store: JobStore, insert: Insert) -> None:
    insert()
    claim(store, lease_seconds=-1)

    store.renew("a", LONG)

    assert claim(store, "b") == []


def test_only_so_many_run_or_start_over_all_owners(store: JobStore, insert: Insert) -> None:
    made = [insert() for _ in range(5)]

    assert claim(store, limit=2) == made[:2]
    run(store, made[0])
    assert claim(store, "b", limit=2) == []
    assert claim(store, "b", limit=3) == made[2:3]
    # One that is paused publishes nothing.
    store.move(made[0], JobState.PAUSED, actor="ann")
    assert claim(store, "b", limit=3) == made[3:4]


def test_callers_take_turns_and_each_one_s_oldest_comes_first(store: JobStore, insert: Insert) -> None:
    ann = [insert(actor="ann") for _ in range(4)]
    bob = [insert(actor="bob") for _ in range(2)]
    eve = insert(actor="eve")

    assert claim(store, limit=1) == [ann[0]]
    run(store, ann[0])
    # Ann has one on its way.
    assert claim(store, limit=3) == [bob[0], eve]
    assert claim(store, limit=5) == [ann[1], bob[1]]
    assert claim(store, limit=9) == ann[2:]


def test_what_awaits_an_approval_is_not_claimed(store: JobStore, insert: Insert) -> None:
    approval = {"required": True, "rows": 5, "by": None, "at": None}
    job_id = insert(approval=approval)
    free = insert(approval={**approval, "required": False})
    assert claim(store) == [free]

    store.change(job_id, actor="bob", what="approved", approval={**approval, "by": "bob"})

    assert claim(store) == [job_id]


def test_what_starts_paused_is_nobody_s_to_launch(store: JobStore, insert: Insert) -> None:
    job_id = insert(state=JobState.PAUSED)
    assert claim(store) == []
    # Somebody looks after it, all the same.
    assert [job.id for job in store.take_over(KIND, "a", lease_seconds=LONG)] == [job_id]

    store.move(job_id, JobState.PENDING, actor="ann")

    assert claim(store, "b") == [job_id]


def test_a_running_job_whose_owner_is_gone_is_taken_over_once(store: JobStore, insert: Insert) -> None:
    job_id, waiting = insert(), insert()
    claim(store, limit=1, lease_seconds=-1)
    run(store, job_id)

    taken = store.take_over(KIND, "b", lease_seconds=LONG)

    assert [(job.id, job.state, job.lease_owner) for job in taken] == [(job_id, JobState.RUNNING, "b")]
    assert store.take_over(KIND, "c", lease_seconds=LONG) == []
    assert claim(store, "c") == [waiting]


def test_whoever_lost_a_job_can_neither_start_nor_end_it(store: JobStore, insert: Insert) -> None:
    job_id = insert()
    claim(store, lease_seconds=-1)
    run(store, job_id)
    store.take_over(KIND, "b", lease_seconds=LONG)

    with pytest.raises(LeaseLostError):
        store.move(job_id, JobState.FAILED, actor="refeed", owner="a")
    with pytest.raises(LeaseLostError):
        store.restart(job_id, "a", actor="refeed", why="died", epoch=1, wait_seconds=0, counts=True)
    store.move(job_id, JobState.FAILED, actor="refeed", owner="b")
    store.move(job_id, JobState.PENDING, actor="ann")
    claim(store, "b")
    with pytest.raises(LeaseLostError):
        store.begin_attempt(job_id, owner="a")


def test_a_restarted_job_waits_and_is_counted_and_anybody_s(store: JobStore, insert: Insert) -> None:
    job_id = insert()
    claim(store)
    run(store, job_id)
    with pytest.raises(JobChangedError):
        store.restart(job_id, "a", actor="refeed", why="died", epoch=2, wait_seconds=0, counts=True)

    job = store.restart(job_id, "a", actor="refeed", why="died", epoch=1, wait_seconds=LONG, counts=True)

    assert (job.state, job.restarts, job.driver, job.lease_owner) == (JobState.PENDING, 1, None, None)
    last = store.list_events(job_id)[-1]
    assert (last.what, last.why) == ("RUNNING -> PENDING", "died")
    assert claim(store, "b") == []
    store.move(job_id, JobState.CANCELLED, actor="ann")
    with pytest.raises(LeaseLostError):
        store.restart(job_id, "a", actor="refeed", why="died", epoch=1, wait_seconds=0, counts=True)


def test_a_person_s_retry_starts_the_count_anew_and_needs_no_waiting(store: JobStore, insert: Insert) -> None:
    job_id = insert()
    claim(store)
    run(store, job_id)
    assert store.restart(job_id, "a", actor="x", why="d", epoch=1, wait_seconds=0, counts=False).restarts == 0
    claim(store)
    run(store, job_id)
    assert store.restart(job_id, "a", actor="x", why="d", epoch=2, wait_seconds=LONG, counts=True).restarts == 1
    store.move(job_id, JobState.FAILED, actor="refeed")

    retried = store.move(job_id, JobState.PENDING, actor="ann")

    assert retried.restarts == 0
    assert claim(store) == [job_id]


def test_an_ended_job_is_held_by_nobody(store: JobStore, insert: Insert) -> None:
    job_id = insert()
    claim(store)
    store.move(job_id, JobState.CANCELLED, actor="ann")

    assert store.held(KIND, "a") == []
    assert store.get(job_id).lease_owner is None


def test_of_many_owners_that_claim_at_once_each_job_goes_to_one(url: str, insert: Insert) -> None:
    made = sorted(insert(actor=f"caller {number % 5}") for number in range(60))
    start = threading.Barrier(6)

    def take(owner: int) -> list[str]:
        other = open_store(url)
        got: list[str] = []
        try:
            start.wait(20)
            deadline = time.monotonic() + 60
            while (more := claim(other, str(owner), limit=len(got) + 3)) or len(got) == 0:
                got += more
                for job_id in more:
                    # Its place is free again at once.
                    run(other, job_id, str(owner))
                    other.move(job_id, JobState.SUCCEEDED, actor="refeed", owner=str(owner))
                if time.monotonic() > deadline or not other.list_active(KIND):
                    break
        finally:
            other.close()
        return got

    with ThreadPoolExecutor(6) as pool:
        taken = [job_id for got in pool.map(take, range(6)) for job_id in got]

    assert sorted(taken) == made


def test_a_job_that_somebody_is_changing_holds_nobody_up(make_postgresql_store: Callable[[], str]) -> None:
    """On PostgreSQL alone: SQLite has one writer at a time."""
    url = make_postgresql_store()
    with closing(open_store(url)) as store, closing(open_store(url)) as other:
        first, second = (store.insert(new_job_id("bf"), KIND, {}, actor="ann").id for _ in range(2))
        with other._database.write() as connection:
            JOB_RECORDS.get(connection, first, for_update=True)

            assert claim(store) == [second]

        assert claim(store) == [first]


def test_who_waits_for_a_replica_that_stands_still_in_a_transaction_gets_its_turn(
    make_postgresql_store: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends the transaction before others give up waiting; all is three times as fast here."""
    monkeypatch.setattr("jobs.store.database._IDLE_SECONDS", database._IDLE_SECONDS / 3)
    monkeypatch.setattr("jobs.store.database._BUSY_SECONDS", database._BUSY_SECONDS / 3)
    url = make_postgresql_store()
    with closing(open_store(url)) as stopped, closing(open_store(url)) as other:
        job_id = other.insert(new_job_id("bf"), KIND, {}, actor="ann").id
        claimed: list[str] = []

        def stand_still() -> None:
            with stopped._database.write(f"claim {KIND}") as connection:
                JOB_RECORDS.get(connection, job_id, for_update=True)
                claimed.extend(claim(other, "b"))
                JOB_RECORDS.get(connection, job_id)

        with pytest.raises(StoreUnavailableError):
            stand_still()
        assert claimed == [job_id]
        # What it had begun is forgotten, and it goes on with its next transaction.
        assert [job.lease_owner for job in stopped.held(KIND, "b")] == ["b"]
