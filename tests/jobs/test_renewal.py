"""Leases that are kept while a supervisor looks at its jobs, and let go of when it hangs."""

import threading

import pytest

from jobs.renewal import Renewal
from jobs.store import JobStore
from model.errors import StoreUnavailableError
from model.job import new_job_id
from tests.waiting import wait_until

KIND = "backfill"


@pytest.fixture
def held(store: JobStore) -> str:
    """A job that ``a`` has claimed, whose lease is as good as gone."""
    job_id = store.insert(new_job_id("bf"), KIND, {}, actor="ann").id
    store.claim(KIND, "a", limit=1, lease_seconds=-1)
    return job_id


def is_free(store: JobStore) -> bool:
    """Say whether another owner gets the job, and leave it as it was."""
    taken = store.claim(KIND, "b", limit=1, lease_seconds=-1)
    return bool(taken)


def test_a_lease_outlasts_a_look_that_takes_longer(store: JobStore, held: str) -> None:
    renewal = Renewal(store, "a", 60.0)
    renewal._every_seconds = 0.02
    renewed = threading.Semaphore(0)
    renew = store.renew

    def count(owner: str, lease_seconds: float) -> None:
        renew(owner, lease_seconds)
        renewed.release()

    store.renew = count  # type: ignore[method-assign]
    renewal.start()
    try:
        for _ in range(3):
            assert renewed.acquire(timeout=30), "it is renewed though nobody looks"
        assert not is_free(store)
    finally:
        renewal.stop()


def test_a_look_that_hangs_is_taken_for_dead(store: JobStore, held: str) -> None:
    renewal = Renewal(store, "a", 0.2)
    renewal.start()
    try:
        # Nobody looks any more; ten leases later others get the job.
        wait_until(lambda: is_free(store), "the lease has expired")
        assert store.held(KIND, "b")
    finally:
        renewal.stop()


def test_a_store_that_fails_for_once_is_asked_again(store: JobStore, held: str) -> None:
    renewal = Renewal(store, "a", 60.0)
    renewal._every_seconds = 0.02
    renew, failed, renewed = store.renew, threading.Event(), threading.Event()

    def fail_first(owner: str, lease_seconds: float) -> None:
        if not failed.is_set():
            failed.set()
            raise StoreUnavailableError
        renew(owner, lease_seconds)
        renewed.set()

    store.renew = fail_first  # type: ignore[method-assign]
    renewal.start()
    try:
        assert renewed.wait(30), "it was asked again"
        assert not is_free(store)
    finally:
        renewal.stop()
