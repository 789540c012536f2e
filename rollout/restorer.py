"""Restores a stream to a snapshot, step by step, while none of its processes runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from connectors.pubsub.client import PubSub
from jobs.files import Files, open_files
from jobs.steps import Done, Next, Stay, Step, StepKind, StepRun
from jobs.store import RESTORE, Job, JobStore, restore_of
from model import failpoint
from model.errors import (
    LeaseHeldError,
    PubSubUnavailableError,
    RefeedError,
    SnapshotExpiredError,
    SnapshotRefusedError,
    StoreUnavailableError,
    StreamSnapshotNotFoundError,
    WarehouseUnavailableError,
)
from model.failure import safe_message
from model.naming import counted
from model.stream_record import Wanted
from model.stream_snapshot import RestoreRecord, RestoreStep, SnapshotRecord
from pipeline.plan import PlanFacts
from pipeline.staged_ids import discard_staged
from reporting.kind import MERGE
from rollout.fence import StreamFence
from rollout.process import StreamProcess
from streams.ids import TABLE_IDS_SCHEMA
from streams.journal import Journal
from streams.snapshot import PLAN_FILE, forget_ids, holds_restore, read_manifest, restore_state
from warehouse.rows import RowTables

_log = structlog.get_logger(__name__)

# Transient errors: the next try continues where this one ended.
_PASSING: Final = (LeaseHeldError, PubSubUnavailableError, StoreUnavailableError, WarehouseUnavailableError)
# Longer than a drain takes, and than an outage of Pub/Sub or the warehouse usually lasts.
_STOP_SECONDS: Final = 3600.0
_PUT_BACK_SECONDS: Final = 3 * 3600.0
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class StreamSite:
    """The place where an agent restores a stream: the folder of its state, its newest process, and the agent."""

    state: Path | None
    process: StreamProcess | None
    agent: str | None = None

    @property
    def is_running(self) -> bool:
        """Whether a process of the stream runs here."""
        return self.process is not None and self.process.is_running


class StreamRestorer:
    """Restores streams: stop the stream, put the snapshot's state in place, then seek; the next start learns ids.

    This order keeps the promise. The restored journal is marked: before the stream pulls, it learns from its own
    tables every id that the seek can bring again. The mark is written before the seek. So nothing is archived or
    staged twice, however old the snapshot is, also in the minute in which Pub/Sub may still deliver messages that
    the seek has marked as acknowledged.

    A damaged, newer or expired snapshot changes nothing; a stream that was launched from such a snapshot and never
    started is cancelled.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        fence: StreamFence,
        open_pubsub: Callable[[], PubSub],
        host: str,
        min_free_bytes: int,
    ) -> None:
        self._store = store
        self._fence = fence
        self._open_pubsub = open_pubsub
        self._host = host
        self._min_free_bytes = min_free_bytes

    def kind(self) -> StepKind[StreamSite]:
        """Return the kind of job that restores a stream; the agent drains and starts the stream."""
        steps = (
            Step("stop", _await_stop, _STOP_SECONDS, attempts=_ATTEMPTS),
            Step(
                "put_back",
                self._put_back,
                _PUT_BACK_SECONDS,
                attempts=_ATTEMPTS,
                is_slow=True,
                passing=_PASSING,
            ),
        )
        return StepKind(RESTORE, steps, ended=self._end)

    def _put_back(self, run: StepRun[StreamSite]) -> Stay | Done:
        """Restore the stream to the snapshot; continue where an earlier try of the step ended."""
        state = run.place.state
        if state is None or not isinstance(_await_stop(run), Next):
            return Stay()
        restore = restore_of(run.job)
        snapshot = self._store.get_snapshot(restore.snapshot_id)
        options = self._store.get_stream(restore.stream).parsed_options()
        with self._fence.hold(state, options) as tables:
            self._restore_held(run, snapshot, state, group=options.to_json().get("group"))
            if restore.discard_staged and tables is not None:
                self._discard(run, snapshot, state, tables)
        return Done()

    def _end(self, job: Job) -> None:
        """Write the outcome into the stream's history."""
        restore = restore_of(job)
        if job.error is None:
            _log.info("stream_restored", stream=restore.stream, snapshot=restore.snapshot_id)
            self._note(
                restore, f"rolled back to {restore.snapshot_id}", why="; ".join(restore.not_reverted) or None
            )
            return
        self._cancel_unborn(restore, str(job.error))
        _log.error(
            "restore_failed",
            stream=restore.stream,
            snapshot=restore.snapshot_id,
            code=job.error.code,
            error=job.error.message,
        )
        self._note(restore, _HOW_FAR[restore.step].format(restore.snapshot_id), why=str(job.error))

    def _restore_held(
        self, run: StepRun[StreamSite], snapshot: SnapshotRecord, state: Path, *, group: str | None
    ) -> None:
        """Restore the state and the subscriptions, from where the last try ended.

        Another machine that takes over restores the state in its own home again.
        """
        restore = restore_of(run.job)
        if not holds_restore(state, restore.id):
            if restore.step is not RestoreStep.WAITING:
                # Subscriptions may be back already: even if this try fails, the stream must learn their ids.
                forget_ids(state, snapshot.oldest_publish_time or datetime.now(UTC))
            files = self._check(snapshot)
            self._check_discarded(restore, snapshot)
            facts = read_manifest(files).facts
            _check_group(facts, snapshot, group)
            # Noted first: after a crash the plan in place is already the snapshot's plan.
            plan = PlanFacts.read(state / PLAN_FILE)
            kept = list_kept(facts, snapshot, plan)
            if restore.discard_staged:
                kept += list_newer(facts, plan)
            kept = list(dict.fromkeys((*restore.not_reverted, *kept)))
            run.note({"not_reverted": kept})
            failpoint.hit("restore.before")
            restore_state(
                files,
                state,
                min_free_bytes=self._min_free_bytes,
                learn_since=snapshot.oldest_publish_time,
                restore=restore.id,
            )
            failpoint.hit("restore.restored")
        if restore.step is RestoreStep.WAITING:
            run.note({"done": RestoreStep.RESTORED})
        if restore.step is not RestoreStep.SOUGHT:
            self._seek(snapshot)
            failpoint.hit("restore.sought")
            run.note({"done": RestoreStep.SOUGHT})

    def _discard(self, run: StepRun[StreamSite], snapshot: SnapshotRecord, state: Path, tables: RowTables) -> None:
        """Delete the rows staged since the snapshot, except in tables that are being merged; note the rest.

        This runs after the seek, which brings every deleted message again, and before the stream learns the ids of
        the rows that stay. After a crash the next try deletes the rest.
        """
        assert snapshot.taken_at is not None, "it is COMPLETED"
        restore = restore_of(run.job)
        merges = {name: job.id for job in self._store.list_active(MERGE.name) for name in job.request["sources"]}
        journal = Journal(state / "journal", keep_seconds=0, schema=TABLE_IDS_SCHEMA)
        kept = []
        plan = PlanFacts.read(state / PLAN_FILE)
        for source, name in ((source, name) for source, names in plan.tables.items() for name in names):
            stays = f"{name} keeps the rows that were staged since the snapshot:"
            if source in merges:
                kept.append(f"{stays} {merges[source]} merges them.")
                continue
            try:
                rows = discard_staged(tables, name, journal, snapshot.taken_at)
            except _PASSING:
                raise
            except RefeedError as exc:
                # The stream is restored, and learns the ids of the rows that stay.
                _log.warning("staged_not_discarded", stream=restore.stream, table=name, error=exc.message)
                kept.append(f"{stays} {safe_message(exc.code, exc.message)}")
                continue
            _log.info("staged_discarded", stream=restore.stream, table=name, rows=rows)
            self._note(restore, f"discarded {counted(rows, 'row')} of {name}", why=None)
            # Noted for each table: after a failure the next try finds no rows in this table.
            before = restore_of(run.job).discarded_rows
            run.note({"discarded_rows": {**before, name: before.get(name, 0) + rows}})
        found = dict.fromkeys((*restore.not_reverted, *kept, *_KEPT_ALWAYS))
        run.note({"not_reverted": list(found)})

    def _cancel_unborn(self, restore: RestoreRecord, why: str) -> None:
        """Cancel a stream that was launched from the snapshot: without its state it would be another stream."""
        record = self._store.get_stream(restore.stream)
        if record.snapshot_id == restore.snapshot_id and record.instance_id is None and record.is_living:
            self._store.end_stream(restore.stream, Wanted.CANCELLED, actor="agent", why=why)

    def _check(self, snapshot: SnapshotRecord) -> Files:
        """Return the snapshot's folder after a check that it is complete."""
        place = snapshot.place
        if place is None or not (place.is_shared or place.host == self._host):
            raise SnapshotRefusedError(
                f"The files of {snapshot.id} are on the disk of another machine: {place}. If "
                "REFEED_JOBS_FOLDER is a bucket, every machine can restore later snapshots.",
                id=snapshot.id,
            )
        if snapshot.with_source:
            now = datetime.now(UTC)
            with self._open_pubsub() as pubsub:
                there = {found.id for found in pubsub.list_snapshots()}
                subscriptions = {found.id for found in pubsub.list_subscriptions() if not found.detached}
            gone = [source.snapshot for source in snapshot.sources if source.snapshot not in there]
            if gone or not snapshot.has_source(now):
                raise SnapshotExpiredError(
                    f"The Pub/Sub snapshots of {snapshot.id} expired at {snapshot.expire_time}, and "
                    f"Pub/Sub has deleted them. {len(gone)} of {len(snapshot.sources)} subscriptions "
                    "can't return to the snapshot.",
                    id=snapshot.id,
                    gone=gone,
                )
            lost = [source.subscription for source in snapshot.sources if source.subscription not in subscriptions]
            if lost:
                raise SnapshotRefusedError(
                    f"These subscriptions of {snapshot.id} do not exist any more: {', '.join(lost)}. "
                    "Attach their topics again, or add their sources again. Then repeat the rollback.",
                    id=snapshot.id,
                    gone=lost,
                )
        return open_files(place.location)

    def _check_discarded(self, restore: RestoreRecord, snapshot: SnapshotRecord) -> None:
        """Check that no rollback has discarded rows that count as staged in the snapshot: they would be lost.

        Raises:
            SnapshotRefusedError: a later rollback to an earlier snapshot has discarded such rows.
        """
        for other in (
            one for name in {restore.stream, snapshot.stream} for one in self._store.list_restores(name)
        ):
            has_discarded = other.discard_staged and other.step is RestoreStep.SOUGHT
            if has_discarded and other.created_at > snapshot.created_at and self._is_before(other, snapshot):
                raise SnapshotRefusedError(
                    f"The earlier rollback {other.id} to {other.snapshot_id} deleted rows. After a rollback to "
                    f"{snapshot.id}, Pub/Sub would not deliver the messages of these rows again. Choose "
                    f"{other.snapshot_id}, an earlier snapshot, or a snapshot that was made after that rollback.",
                    id=snapshot.id,
                    rollback=other.id,
                )

    def _is_before(self, restore: RestoreRecord, snapshot: SnapshotRecord) -> bool:
        """Whether a rollback's snapshot is older than this one; the order of their ids alone is no proof."""
        if restore.snapshot_id < snapshot.id:
            return True
        try:
            taken_at = self._store.get_snapshot(restore.snapshot_id).taken_at
        except StreamSnapshotNotFoundError:
            return False
        assert taken_at is not None, "it is COMPLETED"
        assert snapshot.taken_at is not None, "it is COMPLETED"
        return taken_at < snapshot.taken_at

    def _seek(self, snapshot: SnapshotRecord) -> None:
        if not snapshot.sources:
            return
        with self._open_pubsub() as pubsub:
            for source in snapshot.sources:
                pubsub.seek_to_snapshot(source.subscription, source.snapshot)

    def _note(self, restore: RestoreRecord, what: str, why: str | None) -> None:
        self._store.note_stream(restore.stream, actor="agent", what=what, why=why, snapshot=restore.snapshot_id)


def _await_stop(run: StepRun[StreamSite]) -> Stay | Next:
    return Stay() if run.place.is_running else Next("put_back")


def list_newer(facts: Mapping[str, Any], plan: PlanFacts) -> list[str]:
    """Return sentences about the tables of ``plan`` that the snapshot lacks: their rows are not discarded."""
    known = facts.get("columns", {}).keys() | facts.get("versions", {}).keys()
    newer = [table for table in (*plan.columns, *plan.versions) if table not in known]
    return [f"{table} is newer than the snapshot and keeps its rows." for table in newer]


# The text in the stream's history about a failed rollback, by the last step that it finished.
_HOW_FAR: Final = {
    RestoreStep.WAITING: "not rolled back to {}",
    RestoreStep.RESTORED: "rolled back to {} in part: its state, and perhaps its subscriptions",
    RestoreStep.SOUGHT: "rolled back to {} in part: its state and its subscriptions",
}

_KEPT_ALWAYS: Final = (
    "Reporting tables keep the rows that were merged since the snapshot.",
    "Dead letters since the snapshot stay. The stream does not try their messages again.",
)


def _check_group(facts: Mapping[str, Any], snapshot: SnapshotRecord, group: str | None) -> None:
    """Check that the snapshot is of the stream's group: the stream holds only its group's subscriptions.

    Raises:
        SnapshotRefusedError: the snapshot is of another group.
    """
    # Snapshots of earlier releases name no group.
    its = facts.get("group", group)
    if its != group:
        raise SnapshotRefusedError(
            f"{snapshot.id} is a snapshot of the group {its}, but this stream reads the group {group}.",
            id=snapshot.id,
        )


def list_kept(facts: Mapping[str, Any], snapshot: SnapshotRecord, plan: PlanFacts) -> list[str]:
    """Return sentences about the parts of the stream that ``snapshot``, with its ``facts``, does not restore."""
    kept = []
    for table, columns in plan.columns.items():
        known = facts.get("columns", {}).get(table)
        if known is not None and (new := [name for name in columns if name not in known]):
            kept.append(f"{table} keeps these columns, which are newer than the snapshot: {', '.join(new)}.")
    for table, version in plan.versions.items():
        known = facts.get("versions", {}).get(table)
        if known is not None and known < version:
            kept.append(f"The schema of {table} stays at version {version}. The snapshot has version {known}.")
    if not snapshot.with_source:
        kept.append("The subscriptions do not return to the snapshot, because it has no Pub/Sub snapshots.")
    return kept
