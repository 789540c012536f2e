"""The agent's snapshots and rollbacks in the simulation: the product's code, over records that are in memory."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final, cast

from jobs.disk_files import DiskFiles
from jobs.store import JobStore
from model.fault import FaultRecord
from model.stream_options import StreamKind
from model.stream_record import StreamRecord
from model.stream_snapshot import (
    RestoreRecord,
    RestoreState,
    RestoreStep,
    SnapshotPlace,
    SnapshotReason,
    SnapshotRecord,
    SnapshotState,
)
from rollout.fence import StreamFence
from rollout.restorer import StreamRestorer
from rollout.snapshot_taker import SnapshotTaker
from rollout.snapshot_work import SnapshotWork
from tests.simulation.disk import Disk
from tests.simulation.kernel import World
from tests.simulation.pubsub import Admin, PubSub
from tests.simulation.tables import Warehouse

STREAM: Final = "home"


class Records:
    """The job store's records of one stream: :class:`jobs.store.JobStore`, whose calls never fail here."""

    def __init__(self, world: World, options: Any) -> None:
        self.snapshots: dict[str, SnapshotRecord] = {}
        self.restores: dict[str, RestoreRecord] = {}
        # What is looked at when a rollback has ended, while nobody commits.
        self.on_restored: Callable[[RestoreRecord, SnapshotRecord], None] = lambda restore, snapshot: None
        self._world = world
        self._stream = SimpleNamespace(
            name=STREAM,
            kind=StreamKind.PIPELINE,
            options={"group": options.group},
            parsed_options=lambda: options,
            is_living=True,
            snapshot_id=None,
        )

    def get_stream(self, _: str) -> StreamRecord:
        return cast("StreamRecord", self._stream)

    def note_stream(self, stream: str, *, actor: str, what: str, why: str | None, snapshot: str) -> None:
        self._world.say(f"   {what}" if why is None else f"   {what}: {why}")

    def list_active(self, _: str) -> list[Any]:
        return []

    def create_snapshot(self, *, with_source: bool) -> None:
        made = SnapshotRecord(
            f"sn_{len(self.snapshots):04d}",
            STREAM,
            StreamKind.PIPELINE,
            with_source,
            SnapshotReason.MANUAL,
            SnapshotState.PENDING,
            "operator",
            self._now(),
        )
        self.snapshots[made.id] = made

    def get_snapshot(self, snapshot_id: str) -> SnapshotRecord:
        return self.snapshots[snapshot_id]

    def list_whole(self) -> list[SnapshotRecord]:
        return [found for found in self.snapshots.values() if found.state is SnapshotState.COMPLETED]

    def list_unfinished_snapshots(self) -> list[SnapshotRecord]:
        return [
            found
            for found in reversed(self.snapshots.values())
            if found.state is SnapshotState.PENDING
            or (found.state is SnapshotState.FAILED and found.place is not None)
        ]

    def begin_snapshot(self, snapshot: SnapshotRecord, place: SnapshotPlace) -> SnapshotRecord:
        return self._change_pending(snapshot.id, snapshot.place, place=place)

    def complete_snapshot(self, snapshot_id: str, place: SnapshotPlace | None, **found: Any) -> SnapshotRecord:
        return self._change_pending(snapshot_id, place, state=SnapshotState.COMPLETED, **found)

    def fail_snapshot(self, snapshot_id: str, place: SnapshotPlace | None, error: FaultRecord) -> SnapshotRecord:
        return self._change_pending(snapshot_id, place, state=SnapshotState.FAILED, error=error)

    def clear_snapshot(self, snapshot_id: str) -> SnapshotRecord:
        cleared = self.snapshots[snapshot_id] = replace(self.snapshots[snapshot_id], place=None)
        return cleared

    def create_restore(self, snapshot: SnapshotRecord, *, discard_staged: bool) -> None:
        made = RestoreRecord(
            f"rs_{len(self.restores):04d}",
            STREAM,
            1,
            snapshot.id,
            RestoreState.RUNNING,
            RestoreStep.WAITING,
            "operator",
            self._now(),
            discard_staged=discard_staged,
        )
        self.restores[made.id] = made

    def list_running_restores(self) -> list[RestoreRecord]:
        return [found for found in self.restores.values() if found.state is RestoreState.RUNNING]

    def list_restores(self, _: str) -> list[RestoreRecord]:
        return list(reversed(self.restores.values()))

    def advance_restore(
        self, restore_id: str, step: RestoreStep, *, not_reverted: list[str] | None = None
    ) -> RestoreRecord:
        changes = {} if not_reverted is None else {"not_reverted": tuple(not_reverted)}
        return self._change_restore(restore_id, step=step, **changes)

    def end_restore(self, restore_id: str, *, error: FaultRecord | None = None) -> RestoreRecord:
        state = RestoreState.SUCCEEDED if error is None else RestoreState.FAILED
        ended = self._change_restore(restore_id, state=state, error=error)
        self.on_restored(ended, self.snapshots[ended.snapshot_id])
        return ended

    def _now(self) -> datetime:
        # The store's clock, whichever machine asks.
        return datetime.fromtimestamp(self._world.unix_seconds, UTC)

    def _change_pending(self, snapshot_id: str, at: SnapshotPlace | None, **changes: Any) -> SnapshotRecord:
        found = self.snapshots[snapshot_id]
        if found.state is SnapshotState.PENDING and found.place == at:
            if "sources" in changes:
                changes["sources"] = tuple(changes["sources"])
            found = self.snapshots[snapshot_id] = replace(found, **changes)
        return found

    def _change_restore(self, restore_id: str, **changes: Any) -> RestoreRecord:
        changed = self.restores[restore_id] = replace(self.restores[restore_id], **changes)
        return changed


def open_snapshot_work(
    records: Records, disk: Disk, pubsub: PubSub, warehouse: Warehouse, project: str
) -> SnapshotWork:
    """Return the part of an agent that makes snapshots and puts streams back, with its files on ``disk``."""
    store = cast("JobStore", records)
    host = disk.machine.name
    open_pubsub = cast("Any", lambda: Admin(pubsub))
    files = DiskFiles(disk.root / "snapshots")
    work = SnapshotWork(
        store,
        taker=SnapshotTaker(store, open_pubsub=open_pubsub, files=files, host=host),
        restorer=StreamRestorer(
            store,
            fence=StreamFence(cast("Any", warehouse), project=project),
            open_pubsub=open_pubsub,
            host=host,
            min_free_bytes=0,
        ),
    )
    # A default argument has the real clock.
    work._threads._now = lambda: disk.world.now
    return work
