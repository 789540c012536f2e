"""What a clock that was years ahead has written keeps nothing waiting once it is right, in every job store."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from jobs.store import JobStore
from model.job import JobState
from model.stream_options import StreamKind
from tests.years.clock import Clock

AHEAD = timedelta(days=3652)


@pytest.fixture
def clock(store: JobStore) -> Iterator[Clock]:
    clock = Clock(datetime(2026, 3, 2, tzinfo=UTC))
    store._database.now = lambda _: clock.now  # type: ignore[method-assign]
    with clock.is_everybody_s():
        yield clock


def test_a_lease_of_years_is_nobody_s(store: JobStore, clock: Clock, insert: Callable[..., str]) -> None:
    store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    waiting, running = insert(), insert()
    clock.jump(AHEAD)
    assert len(store.claim("backfill", "gone", limit=9, lease_seconds=20)) == 2
    store.begin_attempt(running)
    store.move(running, JobState.RUNNING, actor="gone")
    assert store.take_streams("gone", limit=9, lease_seconds=20) != []
    assert store.hold_source("folder", "gone", lease_seconds=30)
    clock.jump(-AHEAD)
    assert not store.get_stream("backup").is_held
    assert [job.id for job in store.claim("backfill", "b", limit=9, lease_seconds=20)] == [waiting]
    assert [job.id for job in store.take_over("backfill", "b", lease_seconds=20)] == [running]
    assert [each.name for each in store.take_streams("b", limit=9, lease_seconds=20)] == ["backup"]
    assert store.hold_source("folder", "b", lease_seconds=30)
    assert not store.hold_source("folder", "c", lease_seconds=30), "a lease of seconds is one"


def test_a_wait_of_years_is_over(store: JobStore, clock: Clock, insert: Callable[..., str]) -> None:
    job_id = insert()
    clock.jump(AHEAD)
    store.begin_attempt(job_id)
    store.move(job_id, JobState.RUNNING, actor="a")
    store.take_over("backfill", "a", lease_seconds=20)
    store.restart(job_id, "a", actor="a", why="It died.", epoch=1, wait_seconds=25, counts=True)
    assert store.claim("backfill", "b", limit=9, lease_seconds=20) == []
    clock.jump(-AHEAD)
    assert [job.id for job in store.claim("backfill", "b", limit=9, lease_seconds=20)] == [job_id]


def test_a_webhook_that_was_opened_in_the_future_is_told_from_now_on(store: JobStore, clock: Clock) -> None:
    clock.jump(AHEAD)
    store.open_webhook("digest")
    clock.jump(-AHEAD)
    assert store.open_webhook("digest") == clock.now
