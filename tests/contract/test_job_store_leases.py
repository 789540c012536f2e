"""Which replica looks after which job, on every job store."""

from collections.abc import Callable
from contextlib import closing

import pytest

from jobs.store import Job, JobStore, database, open_store
from jobs.store.job_rows import JOB_RECORDS
from model.errors import LeaseLostError, StoreUnavailableError
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
