"""The agent's snapshots and rollbacks in the simulation: the product's code, over records that are in memory."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final, cast

from jobs.disk_files import DiskFiles
from jobs.store import DELETION, RESTORE, SNAPSHOT, Job, JobStore, restore_of
from model.errors import JobChangedError, LeaseLostError
from model.fault import FaultRecord
from model.job import JobState
from model.stream_options import StreamKind
from model.stream_record import StreamRecord
from model.stream_snapshot import (
    RestoreRecord,
    SnapshotPlace,
    SnapshotReason,
    SnapshotRecord,
    SnapshotState,
)
from model.typed import field_readers, reader, to_plain
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
        self.jobs: dict[str, Job] = {}
        # The agent that holds the stream.
        self.holder: str | None = None
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
        return cast("StreamRecord", SimpleNamespace(**vars(self._stream), agent=self.holder))

    def note_stream(self, stream: str, *, actor: str, what: str, why: str | None, snapshot: str) -> None:
        self._world.say(f"   {what}" if why is None else f"   {what}: {why}")

    def list_active(self, _: str) -> list[Any]:
        return []

    def now(self) -> datetime:
        # The store's clock, whichever machine asks.
        return datetime.fromtimestamp(self._world.unix_seconds, UTC)

    def create_snapshot(self, *, with_source: bool) -> None:
        made = SnapshotRecord(
            f"sn_{len(self.snapshots):04d}",
            STREAM,
            StreamKind.PIPELINE,
            with_source,
            SnapshotReason.MANUAL,
            SnapshotState.PENDING,
            "operator",
            self.now(),
        )
        self.snapshots[made.id] = made
        self._begin_job("sj", SNAPSHOT, "make", snapshot_id=made.id, with_source=with_source)

    def get_snapshot(self, snapshot_id: str) -> SnapshotRecord:
        return self.snapshots[snapshot_id]

    def list_whole(self) -> list[SnapshotRecord]:
        return [found for found in self.snapshots.values() if found.state is SnapshotState.COMPLETED]

    def end_snapshot(self, job: Job) -> SnapshotRecord:
        found, place = (
            self.snapshots[job.request["snapshot_id"]],
            reader(SnapshotPlace | None)(job.memory.get("place")),
        )
        ended: dict[str, Any] = {"state": SnapshotState.FAILED, "error": job.error}
        if job.error is None:
            made = {name: field_readers(SnapshotRecord)[name](value) for name, value in job.memory["made"].items()}
            ended = {"state": SnapshotState.COMPLETED, **made}
        elif place is not None:
            self._begin_job("dl", DELETION, "delete", snapshot_id=found.id, place=job.memory["place"])
        made = self.snapshots[found.id] = replace(found, place=place, **ended)
        return made

    def end_deletion(self, job: Job) -> None:
        found = self.snapshots[job.request["snapshot_id"]]
        if job.error is None:
            self.snapshots[found.id] = replace(found, place=None)

    def create_restore(self, snapshot: SnapshotRecord, *, discard_staged: bool) -> None:
        about = {"generation": 1, "snapshot_id": snapshot.id, "discard_staged": discard_staged}
        self._begin_job("rs", RESTORE, "stop", **about)

    def list_running_restores(self) -> list[RestoreRecord]:
        return [restore_of(job) for job in self.list_step_jobs([]) if job.kind == RESTORE]

    def list_restores(self, _: str) -> list[RestoreRecord]:
        return [restore_of(job) for job in reversed(self.jobs.values()) if job.kind == RESTORE]

    def list_step_jobs(self, _: Collection[str]) -> list[Job]:
        return [job for job in self.jobs.values() if not job.state.is_final]

    def begin_step(self, seen: Job, step: str, *, owner: str, why: str | None, memory: Mapping[str, Any]) -> Job:
        job = self._get_seen(seen, owner)
        is_again = job.step == step and job.state is not JobState.PENDING
        self._world.say(f"   {job.id} begins {step}" if why is None else f"   {job.id} begins {step} again: {why}")
        began = {"step": step, "step_began_at": self.now(), "attempt": job.attempt + 1 if is_again else 1}
        return self._change_job(job, state=JobState.RUNNING, memory={**job.memory, **memory}, **began)

    def note_step(self, seen: Job, memory: Mapping[str, Any]) -> Job:
        job = self._get_seen(seen, None)
        # As a database keeps it.
        return self._change_job(job, memory=json.loads(json.dumps({**job.memory, **memory}, default=to_plain)))

    def end_step_job(
        self,
        seen: Job,
        state: JobState,
        *,
        owner: str,
        error: FaultRecord | None,
        ended: Callable[[Job], None],
        keep: int | None,
        memory: Mapping[str, Any],
    ) -> Job:
        job = self._get_seen(seen, owner)
        done = self._change_job(job, state=state, error=error, memory={**job.memory, **memory})
        ended(done)
        if done.kind == RESTORE:
            restore = restore_of(done)
            self.on_restored(restore, self.snapshots[restore.snapshot_id])
        return done

    def _get_seen(self, seen: Job, owner: str | None) -> Job:
        job = self.jobs[seen.id]
        if job.kind != DELETION and owner not in (None, self.holder):
            raise LeaseLostError
        if job.state.is_final or job.version != seen.version:
            raise JobChangedError
        return job

    def _change_job(self, job: Job, **changes: Any) -> Job:
        changed = self.jobs[job.id] = replace(job, **changes, version=job.version + 1)
        return changed

    def _begin_job(self, prefix: str, kind: str, step: str, **request: Any) -> None:
        made = Job(
            id=f"{prefix}_{len(self.jobs):04d}",
            kind=kind,
            state=JobState.PENDING,
            request={"stream": STREAM, **request},
            created_by="operator",
            created_at=self.now(),
            started_at=None,
            finished_at=None,
            progress={},
            error=None,
            epoch=0,
            driver=None,
            version=1,
            step=step,
        )
        self.jobs[made.id] = made


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
