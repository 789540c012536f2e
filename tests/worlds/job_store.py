"""Two replicas of a job store on one database, a model of it, and one clock for all three."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from jobs.store import JobFilter, JobStore, open_store
from jobs.store.tables import AUDIT, EVENTS, JOBS, KEYS, MANAGED_STREAMS, REPORTS, SHORT_LIVED
from model.errors import JobStateError, RefeedError
from model.event import HistoryEvent
from tests.worlds.job_store_model import JobStoreModel
from tests.years.clock import Clock

_TABLES: Final = (EVENTS, JOBS, SHORT_LIVED, REPORTS, MANAGED_STREAMS, AUDIT, KEYS)
NOON: Final = datetime(2026, 3, 2, 12, tzinfo=UTC)
KINDS: Final = ("backfill", "merge")
PEOPLE: Final = ("a", "b", "c")
Store = JobStore | JobStoreModel
Call = Callable[[Any], Any]


def outcome(call: Call, store: Store) -> Any:
    """Return what a call returns, or the class of what it raises."""
    try:
        return plain(call(store))
    except RefeedError as error:
        return type(error)


def plain(found: Any) -> Any:
    """Return the same without the numbers of lines, which each store gives as it likes."""
    if isinstance(found, list):
        return [plain(each) for each in found]
    return replace(found, number=0) if hasattr(found, "number") else found


@dataclass(frozen=True)
class World:
    """Two replicas on one database, the model, and the clock of all three."""

    replicas: Sequence[JobStore]
    clock: Clock
    admin: sa.Engine

    def empty(self) -> JobStoreModel:
        """Empty the database, and return a model of that."""
        with self.admin.begin() as connection:
            for table in _TABLES:
                connection.execute(table.delete())
        self.clock.now = NOON
        return JobStoreModel(self.clock)


def by_clock(store: JobStore, clock: Clock) -> JobStore:
    """Let the clock that leases go by be the test's, on PostgreSQL too."""
    store._database.now = lambda _: clock.now  # type: ignore[method-assign]
    return store


def empty(store: JobStore, *tables: sa.Table) -> None:
    """Remove every row of these tables, those that refer to others first."""
    with store._database.write() as connection:
        for table in tables:
            connection.execute(table.delete())


@contextmanager
def opened_world(url: str) -> Iterator[World]:
    clock, admin = Clock(NOON), sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with closing(open_store(url)) as one, closing(open_store(url)) as other, clock.is_everybody_s():
        yield World([by_clock(each, clock) for each in (one, other)], clock, admin)
    admin.dispose()


def state_of(store: Store) -> list[Any]:
    """Return everything that can be read of a store, history by history."""
    jobs = store.list_jobs(JobFilter(kinds=("backfill", "merge", "change")), limit=1998)
    streams = store.list_streams()
    counts = store.count_jobs(("published", "failed"), of_kind="backfill")
    return [
        jobs,
        [events_of(store.list_events, job.id) for job in jobs],
        [store.held(kind, owner) for kind in KINDS for owner in PEOPLE],
        [sorted(store.owners(kind)) for kind in KINDS],
        [store.has_place(kind, limit) for kind in KINDS for limit in (1, 2, 3)],
        [store.list_active(kind) for kind in (*KINDS, "change", None)],
        sorted(counts, key=lambda count: (count.kind, count.state)),
        store.find_last_failures(),
        store.find_ends([*(job.id for job in jobs), "bf_none"]),
        streams,
        [events_of(store.list_stream_events, each.name) for each in streams],
        store.list_agents(),
        plain(store.list_audit(99)),
        store.list_keys(),
    ]


def events_of(read: Callable[[str], Sequence[HistoryEvent]], name: str) -> list[Any]:
    found = read(name)
    numbers = [each.number for each in found]
    if any(numbers):
        assert numbers == sorted(set(numbers)), "numbers of one history only grow"
    return plain(list(found))


def at_most(limit: int) -> Callable[[Sequence[Any]], None]:
    """Return a guard that lets no more become active."""

    def guard(active: Sequence[Any]) -> None:
        if len(active) >= limit:
            raise JobStateError

    return guard
