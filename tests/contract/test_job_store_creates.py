"""Idempotency keys, on every job store."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs.store import Idempotency, JobStore, open_store
from model.errors import IdempotencyInProgressError, IdempotencyKeyReusedError
from model.job import new_job_id

KIND = "backfill"
Insert = Callable[..., str]


def test_the_same_key_and_request_give_the_same_job(store: JobStore) -> None:
    first = store.insert(new_job_id("bf"), KIND, {}, actor="ann", idempotency=Idempotency("key", "digest"))
    second = store.insert(new_job_id("bf"), KIND, {}, actor="ann", idempotency=Idempotency("key", "digest"))

    assert first == second
    assert len(store.list_jobs(KIND, limit=10)) == 1


def test_the_same_key_with_another_request_or_kind_is_refused(store: JobStore, insert: Insert) -> None:
    insert(idempotency=Idempotency("key", "digest"))

    with pytest.raises(IdempotencyKeyReusedError):
        insert(idempotency=Idempotency("key", "other"))
    with pytest.raises(IdempotencyKeyReusedError):
        store.insert(new_job_id("mg"), "merge", {}, actor="ann", idempotency=Idempotency("key", "digest"))


def test_a_key_is_its_caller_s_own(insert: Insert) -> None:
    ann = insert(idempotency=Idempotency("key", "digest"))

    assert insert(actor="bob", idempotency=Idempotency("key", "other")) != ann
    assert insert(actor="a/b", idempotency=Idempotency("c", "x")) != insert(
        actor="a", idempotency=Idempotency("b/c", "y")
    )


def test_of_many_creates_with_one_key_one_goes_on(url: str, store: JobStore) -> None:
    start = threading.Barrier(8)

    def begin(_: int) -> bool:
        other = open_store(url)
        try:
            start.wait(20)
            return other.begin_create(KIND, Idempotency("key", "digest"), actor="ann") is None
        except IdempotencyInProgressError:
            return False
        finally:
            other.close()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(begin, range(8))) == 1


def test_a_key_whose_create_is_under_way_is_taken(store: JobStore, insert: Insert) -> None:
    first, second = Idempotency("key", "digest"), Idempotency("key", "digest")

    assert store.begin_create(KIND, first, actor="ann") is None
    with pytest.raises(IdempotencyInProgressError):
        store.begin_create(KIND, second, actor="ann")
    with pytest.raises(IdempotencyInProgressError):
        insert(idempotency=second)
    with pytest.raises(IdempotencyKeyReusedError):
        store.begin_create(KIND, Idempotency("key", "other"), actor="ann")
    assert store.begin_create(KIND, second, actor="bob") is None

    made = insert(idempotency=first)
    found = store.begin_create(KIND, second, actor="ann")
    assert found is not None
    assert found.id == made


def test_a_create_that_failed_or_died_lets_go_of_its_key(store: JobStore) -> None:
    first, second, third = (Idempotency("key", "digest") for _ in range(3))
    store.begin_create(KIND, first, actor="ann")
    # Not its own to give away.
    store.abandon_create(second, actor="ann")
    with pytest.raises(IdempotencyInProgressError):
        store.begin_create(KIND, second, actor="ann")

    store.abandon_create(first, actor="ann")
    assert store.begin_create(KIND, second, actor="ann", seconds=0) is None
    assert store.begin_create(KIND, third, actor="ann") is None
