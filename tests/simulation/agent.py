"""The agent's snapshots, rollbacks and updates: the product's code, over records that are in memory."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, Final, cast

from jobs.disk_files import DiskFiles
from jobs.store import (
    DELETION,
    RESTORE,
    SNAPSHOT,
    UPDATE,
    Idempotency,
    Job,
    JobStore,
    first_step_back,
    restore_of,
    update_of,
)
from model.errors import JobChangedError, LeaseLostError, StreamStateError
from model.fault import FaultRecord
from model.job import JobState
from model.stream_options import StreamKind
from model.stream_record import StreamRecord, StreamState, Wanted
from model.stream_snapshot import RestoreRecord, SnapshotPlace, SnapshotReason, SnapshotRecord, SnapshotState
from model.stream_update import UNWANTED, StreamUpdate, UpdateFault, UpdateRequest, UpdateState
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
        # Snapshots by the keys that made them.
        self._keys: dict[str, str] = {}
        self._made = 0
        # The agent that holds the stream.
        self.holder: str | None = None
        # What is looked at when a rollback has ended, while nobody commits.
        self.on_restored: Callable[[RestoreRecord, SnapshotRecord], None] = lambda restore, snapshot: None
        self._world = world
        now = self.now()
        self.stream = StreamRecord(
            name=STREAM,
            kind=StreamKind.PIPELINE,
            release="1",
            options={"group": options.group},
            wanted=Wanted.RUNNING,
            drain_timeout_seconds=60.0,
            state=StreamState.RUNNING,
            generation=1,
            version=1,
            instance_id=None,
            agent=None,
            is_held=True,
            home=None,
            snapshot_id=None,
            error=None,
            created_by="operator",
            created_at=now,
            launched_by="operator",
            launched_at=now,
            changed_at=now,
        )

    def get_stream(self, _: str) -> StreamRecord:
        return replace(self.stream, agent=self.holder)

    def note_start(self, instance_id: str) -> None:
        self.stream = replace(self.stream, instance_id=instance_id, state=StreamState.STARTING)

    def note_state(self, state: StreamState) -> None:
        self.stream = replace(self.stream, state=state)

    def list_streams(self) -> list[StreamRecord]:
        return [self.get_stream(STREAM)]

    def note_stream(self, stream: str, *, actor: str, what: str, why: str | None, snapshot: str) -> None:
        self._world.say(f"   {what}" if why is None else f"   {what}: {why}")

    def list_active(self, _: str) -> list[Any]:
        return []

    def now(self) -> datetime:
        # The store's clock, whichever machine asks.
        return datetime.fromtimestamp(self._world.unix_seconds, UTC)

    def create_snapshot(
        self,
        stream: str = STREAM,
        *,
        with_source: bool,
        actor: str = "operator",
        reason: SnapshotReason = SnapshotReason.MANUAL,
        idempotency: Idempotency | None = None,
    ) -> SnapshotRecord:
        if idempotency is not None and idempotency.key in self._keys:
            return self.snapshots[self._keys[idempotency.key]]
        made = SnapshotRecord(
            f"sn_{self._made:04d}",
            stream,
            StreamKind.PIPELINE,
            with_source,
            reason,
            SnapshotState.PENDING,
            actor,
            self.now(),
        )
        self._made += 1
        self.snapshots[made.id] = made
        if idempotency is not None:
            self._keys[idempotency.key] = made.id
        self._begin_job("sj", SNAPSHOT, "make", snapshot_id=made.id, with_source=with_source)
        return made

    def list_snapshots(self, *, stream: str, reason: SnapshotReason) -> list[SnapshotRecord]:
        return [found for found in self.snapshots.values() if (found.stream, found.reason) == (stream, reason)]

    def delete_snapshot(self, snapshot_id: str) -> None:
        found = self.snapshots[snapshot_id]
        for job in self.list_step_jobs([SNAPSHOT, RESTORE]):
            if job.request["snapshot_id"] == snapshot_id:
                raise StreamStateError(f"{job.id} needs it.")
        self.snapshots[snapshot_id] = replace(found, state=SnapshotState.DELETING)
        place = None if found.place is None else asdict(found.place)
        self._begin_job("dl", DELETION, "delete", snapshot_id=snapshot_id, place=place)

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
        if job.error is None and found.state is SnapshotState.DELETING:
            del self.snapshots[found.id]
        elif job.error is None:
            self.snapshots[found.id] = replace(found, place=None)

    def create_restore(self, snapshot: SnapshotRecord, *, discard_staged: bool) -> None:
        about = {"generation": 1, "snapshot_id": snapshot.id, "discard_staged": discard_staged}
        self._begin_job("rs", RESTORE, "stop", **about)

    def create_update(self, request: UpdateRequest) -> None:
        about = {"generation": 1, "update": request.to_json()}
        side = {"from_release": self.stream.release, "from_options": self.stream.options}
        self._begin_job("up", UPDATE, "check", **about, **side)

    def list_updates(self, stream: str = STREAM, *, living: bool = False) -> list[StreamUpdate]:
        jobs = [job for job in reversed(self.jobs.values()) if job.kind == UPDATE]
        return [
            update_of(job)
            for job in jobs
            if job.request["stream"] == stream and not (living and job.state.is_final)
        ]

    def take_update_back(self, update: StreamUpdate) -> None:
        """Have an update taken back, as :meth:`jobs.store.JobStore.take_update_back` does."""
        job = self.jobs[update.id]
        fault = UpdateFault(UNWANTED, "The operator does not want it.")
        memory = _as_kept({**job.memory, "error": fault})
        if update.state.is_before_hand_over:
            kept = {**memory, "outcome": UpdateState.ROLLED_BACK}
            self._change_job(job, state=JobState.CANCELLED, memory=kept, finished_at=self.now())
        elif update.state in {UpdateState.HANDING_OVER, UpdateState.STOPPING} and update.error is None:
            self._change_job(job, memory=memory)
        elif update.state in {UpdateState.WATCHING, UpdateState.RESTARTING} and update.has_way_back:
            began = {"step": first_step_back(update.request), "step_began_at": self.now(), "attempt": 1}
            self._change_job(job, memory=memory, **began)

    def enter_update_step(self, job: Job, why: str | None) -> None:
        update = update_of(job)
        if update.state is UpdateState.HANDING_OVER:
            self.stream = replace(self.stream, release=update.request.release, instance_id=update.instance_id)
        if update.state is UpdateState.HANDING_BACK:
            self.stream = replace(self.stream, release=update.from_release, instance_id=update.instance_id)
        if update.state.is_restarting:
            is_forward = update.state is UpdateState.RESTARTING
            release = update.request.release if is_forward else update.from_release
            self.stream = replace(self.stream, release=release, state=StreamState.STARTING)

    def end_update(self, job: Job) -> None:
        update = update_of(job)
        self._world.say(f"   {update.id} is {update.state}: {update.error or job.memory.get('why')}")
        ends = {UpdateState.STABLE: [update.request.release], UpdateState.FAILED: [update.request.release]}
        if update.state is UpdateState.STABLE and update.error and update.error.code != "update_inconclusive":
            self._world.fail(f"{update.id} is STABLE, though it was to go back: {update.error}")
        if self.stream.release not in {*ends.get(update.state, []), *_old_sides(update)}:
            self._world.fail(f"{update.id} is {update.state}, and the stream is of {self.stream.release}")

    def list_running_restores(self) -> list[RestoreRecord]:
        return [restore_of(job) for job in self.list_step_jobs([RESTORE])]

    def list_restores(self, _: str) -> list[RestoreRecord]:
        return [restore_of(job) for job in reversed(self.jobs.values()) if job.kind == RESTORE]

    def list_step_jobs(self, kinds: Collection[str]) -> list[Job]:
        return [job for job in self.jobs.values() if job.kind in kinds and not job.state.is_final]

    def begin_step(
        self,
        seen: Job,
        step: str,
        *,
        owner: str,
        why: str | None,
        memory: Mapping[str, Any],
        entered: Callable[[Job], None],
    ) -> Job:
        job = self._get_seen(seen, owner)
        is_again = job.step == step and job.state is not JobState.PENDING
        self._world.say(f"   {job.id} begins {step}" if why is None else f"   {job.id} begins {step} again: {why}")
        began = {"step": step, "step_began_at": self.now(), "attempt": job.attempt + 1 if is_again else 1}
        begun = self._change_job(job, state=JobState.RUNNING, memory=_as_kept({**job.memory, **memory}), **began)
        entered(begun)
        return begun

    def note_step(self, seen: Job, memory: Mapping[str, Any], *, owner: str | None) -> Job:
        job = self._get_seen(seen, owner)
        return self._change_job(job, memory=_as_kept({**job.memory, **memory}))

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
        kept = _as_kept({**job.memory, **memory})
        done = self._change_job(job, state=state, error=error, memory=kept, finished_at=self.now())
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


def _as_kept(memory: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's memory as a database keeps it."""
    return json.loads(json.dumps(memory, default=to_plain))


def _old_sides(update: StreamUpdate) -> list[str | None]:
    """Return what may run after an update that did not keep its release."""
    return [] if update.state is UpdateState.STABLE else [update.from_release]


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
