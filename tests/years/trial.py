"""What is asserted of a service that runs for long, or whose clock jumps."""

from datetime import timedelta
from typing import Final

from jobs.store.events import KEPT_LINES
from jobs.store.figures import KEEP_HOURS, KEEP_MINUTES
from jobs.store.manifests import KEEP_RUNS
from jobs.supervisor import _KEEP_RECORDS, _KEPT_RECORDS
from model.stream_record import StreamState
from model.stream_snapshot import SnapshotState
from rollout.snapshot_work import KEPT_JOBS
from tests.years.parts import SNAPSHOTS
from tests.years.service import Service

# A query's plan may have some steps more or less with more rows; one that walks through them has thousands.
_MORE_INSTRUCTIONS: Final = 3000
_TEN_YEARS: Final = timedelta(days=3652)


def check_years(service: Service, duration: timedelta, *, use_every: timedelta) -> str:
    """Let time pass with people at work, assert what must hold then, and return a line about it."""
    clock, began = service.clock, service.clock.now
    checked = began
    slots = uses = 0
    early = {}
    rows: dict[str, int] = {}
    while clock.now < began + duration:
        service.use()
        uses += 1
        service.go(use_every)
        # Also meanwhile: a violation shows as soon as it is there.
        slots += service.check_slots(checked, clock.now)
        checked = clock.now
        rows = service.count_rows()
        check_rows(service, rows, uses=uses)
        if uses == 2:
            early = service.measure()
    check_work(service, early)
    return (
        f"{duration.days} days: {len(service.applied_at)} schedules, {slots} slots, {service.looks} looks, "
        f"{sum(rows.values())} rows, {service.heard['calls']} webhooks"
    )


def check_rows(service: Service, rows: dict[str, int], *, uses: int) -> None:
    """Assert that each table has the rows that are kept on purpose, and no more."""
    made = {key: ids for key, ids in service.jobs.made.items() if key[0].startswith("schedule-")}
    forgotten = service.clock.now - _KEEP_RECORDS - timedelta(hours=2)
    jobs = _KEPT_RECORDS + sum(len(ids) for (_, slot), ids in made.items() if slot > forgotten)
    asked = sum(len(ids) for (name, _), ids in service.jobs.made.items() if name.startswith(SNAPSHOTS))
    streams = service.streams
    now = service.clock.now
    manifests = len(service.applied_at) + 1
    subjects = streams + 2
    points = KEEP_MINUTES / timedelta(minutes=1) + KEEP_HOURS / timedelta(hours=1)
    most = {
        # What ran for months; for good who did what, and what people asked for.
        "jobs": jobs + 2 * KEPT_JOBS + 2 * uses,
        "events": 4 * (jobs + 2 * KEPT_JOBS) + 14 * uses + streams * (KEPT_LINES + 1) + 2 * manifests,
        "audit": 2 * uses + 10,
        "keys": 1,
        "manifests": manifests,
        "uploads": 2,
        "managed_streams": streams,
        # For as long as somebody may ask for them.
        # Those of long ago go when the next slot is due. One that is exactly as old as that is kept.
        "schedule_runs": sum(
            len(service.slots(name, last - KEEP_RUNS - timedelta(microseconds=1), last)) + 1
            for name, last in service.last_slots().items()
        ),
        "stream_snapshots": streams * (3 + 1 + 20) + asked,
        "figures": subjects * points,
        # A plan, a used sign-in and two sessions with each use, until a day after their end.
        "short_lived": 4 * 2,
        # Two agents and a webhook; no stream has a process.
        "reports": 3,
    }
    assert rows.keys() == most.keys(), "each table has its bound"
    too_many = {name: (count, most[name]) for name, count in rows.items() if count > most[name]}
    assert not too_many, (too_many, service.last_slots())
    folders = {path.name for path in (service.home / "merges").iterdir()}
    kept = timedelta(days=31)
    young = [ids for (_, slot), ids in service.jobs.made.items() if slot > now - kept]
    assert folders <= set().union(*young) | {f"mg_orphan{uses}"}, "folders of jobs go a month after their end"


def check_work(service: Service, early: dict[str, object]) -> None:
    """Assert that a turn of each loop, when nothing is due, has as much work as it had in the first days."""
    late = service.measure()
    for name, work in late.items():
        before = early[name]
        assert work.statements <= before.statements, (name, before, work)  # type: ignore[attr-defined]
        assert work.rows <= before.rows + 5, (name, before, work)  # type: ignore[attr-defined]
        assert work.instructions <= before.instructions + _MORE_INSTRUCTIONS, (name, before, work)  # type: ignore[attr-defined]


def check_jumps(service: Service, duration: timedelta) -> None:
    """Set the clock ten years and an hour ahead and back, with agents and replicas that die meanwhile."""
    for jump in (timedelta(hours=1), timedelta(hours=-1), _TEN_YEARS):
        service.clock.jump(jump)
        service.use()
        service.go(timedelta(hours=9))
        if jump == _TEN_YEARS:
            service.lose_replicas()
            service.clock.jump(-jump)
        check_recovered(service, duration)


def check_recovered(service: Service, duration: timedelta) -> None:
    """Assert that everything goes on as if the clock had always been right."""
    store, clock = service.store, service.clock
    service.look()
    began, heard = clock.now, service.heard["204"]
    made = sum(each.state is not SnapshotState.FAILED for each in store.list_snapshots())
    assert made
    service.use()
    service.go(duration)
    service.look()
    assert service.check_slots(began, clock.now) > 0
    assert not store.list_active(), f"a job waits for the time that the clock showed: {store.list_active()}"
    assert service.heard["204"] > heard, "people are told"
    assert [each.state for each in store.list_streams()] == [StreamState.RUNNING] * service.streams
    for name in (each.name for each in store.list_streams()):
        young = [
            each
            for each in store.list_snapshots(stream=name, states=[SnapshotState.COMPLETED])
            if began <= each.created_at <= clock.now
        ]
        assert young, f"{name} has a snapshot of these days"
