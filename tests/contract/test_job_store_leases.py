"""Replicas that meet in a row of PostgreSQL: SQLite has one writer at a time."""

from contextlib import closing

import pytest

from jobs.store import JobStore, database, open_store
from jobs.store.job_rows import JOB_RECORDS
from model.errors import StoreUnavailableError
from model.job import new_job_id

KIND = "backfill"


def claim(store: JobStore, owner: str = "a") -> list[str]:
    return [job.id for job in store.claim(KIND, owner, limit=10, lease_seconds=600)]


def test_a_job_that_somebody_is_changing_holds_nobody_up(make_postgresql_store):
    url = make_postgresql_store()
    with closing(open_store(url)) as store, closing(open_store(url)) as other:
        first, second = (store.insert(new_job_id("bf"), KIND, {}, actor="ann").id for _ in range(2))
        with other._database.write() as connection:
            JOB_RECORDS.get(connection, first, for_update=True)
            assert claim(store) == [second]
        assert claim(store) == [first]


def test_who_waits_for_a_replica_that_stands_still_in_a_transaction_gets_its_turn(
    make_postgresql_store, monkeypatch
):
    """PostgreSQL ends the transaction before others give up waiting; all is three times as fast here."""
    monkeypatch.setattr("jobs.store.database._IDLE_SECONDS", database._IDLE_SECONDS / 3)
    monkeypatch.setattr("jobs.store.database._BUSY_SECONDS", database._BUSY_SECONDS / 3)
    url = make_postgresql_store()
    with closing(open_store(url)) as stopped, closing(open_store(url)) as other:
        job_id = other.insert(new_job_id("bf"), KIND, {}, actor="ann").id
        claimed = []

        def stand_still():
            with stopped._database.write(f"claim {KIND}") as connection:
                JOB_RECORDS.get(connection, job_id, for_update=True)
                claimed.extend(claim(other, "b"))
                JOB_RECORDS.get(connection, job_id)

        with pytest.raises(StoreUnavailableError):
            stand_still()
        assert claimed == [job_id]
        # What it had begun is forgotten, and it goes on with its next transaction.
        assert [job.lease_owner for job in stopped.held(KIND, "b")] == ["b"]
