"""Snapshots of streams as records, and the records of streams that are put back to one."""

from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store.database import Database
from jobs.store.job_rows import JOB_RECORDS
from jobs.store.records import Idempotency, Job
from jobs.store.rows import Records, key_columns
from jobs.store.step_jobs import (
    DELETION,
    RESTORE,
    SNAPSHOT,
    begin_job,
    fail_job,
    find_active_jobs,
    find_jobs,
    of_kind,
    snapshot_subject,
    stream_subject,
)
from jobs.store.stream_rows import append_line, check_living, check_versions, get_record, update_stream
from jobs.store.stream_updates import check_not_going_back, check_not_updating
from jobs.store.tables import MANAGED_STREAMS, STREAM_SNAPSHOTS
from model.errors import SnapshotRefusedError, StreamSnapshotNotFoundError, StreamStateError
from model.fault import FaultRecord
from model.job import JobState, new_job_id
from model.stream_record import Wanted
from model.stream_snapshot import (
    RestoreRecord,
    RestoreState,
    RestoreStep,
    SnapshotReason,
    SnapshotRecord,
    SnapshotState,
)
from model.typed import to_plain

# One is tried every ten minutes for as long as a schedule's snapshots fail.
_KEPT_FAILED: Final = 20
_SNAPSHOTS: Final = Records(STREAM_SNAPSHOTS, SnapshotRecord, "snapshot", StreamSnapshotNotFoundError)
_RESTORE_STATES: Final = {JobState.SUCCEEDED: RestoreState.SUCCEEDED, JobState.FAILED: RestoreState.FAILED}


class StreamSnapshots:
    """Keeps a record of each snapshot until its files and its Pub/Sub snapshots are gone.

    Making a snapshot, deleting one and putting a stream back are jobs, which agents carry out in steps.
    """

    _database: Database

    def create_snapshot(
        self,
        stream: str,
        *,
        with_source: bool,
        actor: str,
        reason: SnapshotReason = SnapshotReason.MANUAL,
        idempotency: Idempotency | None = None,
    ) -> SnapshotRecord:
        """Keep a PENDING snapshot of a living stream; the same key with the same fingerprint gives back the first.

        Raises:
            StreamNotFoundError: there never was such a stream.
            StreamStateError: it has ended, or is to end: no agent pauses it between two commits.
            IdempotencyKeyReusedError: the key was used with another fingerprint.
        """
        with self._database.write("create snapshot") as connection:
            before = _SNAPSHOTS.find_made(connection, idempotency, actor=actor, detail="snapshot")
            if before is not None:
                return before
            now = self._database.now(connection)
            record = get_record(connection, stream, now, for_update=True)
            check_living(record, ": launch it first.")
            if record.wanted is not Wanted.RUNNING:
                message = f"{stream} is ending. To make a snapshot, first launch the stream again."
                raise StreamStateError(message, wanted=record.wanted)
            made = _SNAPSHOTS.insert(
                connection,
                id=new_job_id("sn"),
                stream=stream,
                kind=record.kind,
                with_source=with_source,
                reason=reason,
                state=SnapshotState.PENDING,
                release=record.release,
                sources=[],
                created_by=actor,
                created_at=now,
                **key_columns(idempotency, actor),
            )
            begin_job(
                connection,
                now,
                kind=SNAPSHOT,
                prefix="sj",
                subject=stream_subject(stream),
                step="make",
                request={"stream": stream, "snapshot_id": made.id, "with_source": with_source},
                actor=actor,
            )
            what, why = f"snapshot {made.id} asked for", None if reason is SnapshotReason.MANUAL else reason
            append_line(connection, record, now, actor=actor, what=what, why=why, snapshot=made.id)
            return made

    def get_snapshot(self, snapshot_id: str) -> SnapshotRecord:
        """Return the snapshot.

        Raises:
            StreamSnapshotNotFoundError: there is none; any call that names one may raise it.
        """
        with self._database.read() as connection:
            return _SNAPSHOTS.get(connection, snapshot_id)

    def list_snapshots(
        self,
        *,
        stream: str | None = None,
        states: Sequence[SnapshotState] = (),
        reason: SnapshotReason | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[SnapshotRecord]:
        """Return snapshots, newest first; ``before`` is the id that the page before ended with."""
        columns = STREAM_SNAPSHOTS.c
        query = sa.select(STREAM_SNAPSHOTS).order_by(columns.id.desc()).limit(limit)
        if stream is not None:
            query = query.where(columns.stream == stream)
        if states:
            query = query.where(columns.state.in_(states))
        if reason is not None:
            query = query.where(columns.reason == reason)
        if before is not None:
            query = query.where(columns.id < before)
        with self._database.read() as connection:
            return _SNAPSHOTS.find_all(connection, query)

    def find_overdue_streams(self, *, after: datetime, failed_after: datetime, until: datetime) -> set[str]:
        """Return the streams without a snapshot, with its source, created after ``after`` and not after ``until``.

        One that FAILED counts only when it is younger than ``failed_after``, and one that is to be deleted never.
        One that is PENDING, as its stream does not run, counts at any age: it is made of the stream as it is then.
        """
        columns = STREAM_SNAPSHOTS.c
        is_young = sa.and_(
            columns.created_at > after,
            columns.created_at <= until,
            columns.state != SnapshotState.DELETING,
            sa.or_(columns.state != SnapshotState.FAILED, columns.created_at > failed_after),
        )
        of_stream = sa.select(columns.id).where(columns.stream == MANAGED_STREAMS.c.name, columns.with_source)
        # Each by an index of its own: one condition for both reads every snapshot of the stream.
        counts = [sa.exists(of_stream.where(each)) for each in (columns.state == SnapshotState.PENDING, is_young)]
        with self._database.read() as connection:
            return set(connection.scalars(sa.select(MANAGED_STREAMS.c.name).where(~sa.or_(*counts))))

    def find_surplus_streams(self, *, keep: int) -> set[str]:
        """Return the streams that have more than ``keep`` scheduled COMPLETED snapshots."""
        columns = STREAM_SNAPSHOTS.c
        # For each stream by the index that has all three: SQLite would read the rows of all COMPLETED ones.
        is_whole = (columns.state == SnapshotState.COMPLETED, columns.reason == SnapshotReason.SCHEDULED)
        count = sa.select(sa.func.count()).where(columns.stream == MANAGED_STREAMS.c.name, *is_whole)
        with self._database.read() as connection:
            query = sa.select(MANAGED_STREAMS.c.name).where(count.scalar_subquery() > keep)
            return set(connection.scalars(query))

    def end_snapshot(self, job: Job) -> SnapshotRecord:
        """Make a PENDING snapshot COMPLETED or FAILED, as the job ended that makes it.

        What is left of a FAILED one gets a deletion job. The records of a stream's last twenty that failed are
        kept, and earlier ones forgotten of which nothing is left.
        """
        with self._database.write_now() as (connection, now):
            found = _SNAPSHOTS.get(connection, job.request["snapshot_id"], for_update=True)
            place = job.memory.get("place")
            _begin_deletions_of_runs(connection, job, now)
            if job.error is None:
                made = dict(job.memory["made"])
                made["taken_at"] = datetime.fromisoformat(made["taken_at"])
                ended = {"state": SnapshotState.COMPLETED, "place": place, "finished_at": now}
                return _SNAPSHOTS.update(connection, found.id, **made, **ended)
            ended = {"state": SnapshotState.FAILED, "error": job.error, "place": place, "finished_at": now}
            failed = _SNAPSHOTS.update(connection, found.id, **ended)
            _begin_deletion(connection, failed, actor="agent", now=now)
            _forget_failed(connection, failed.stream)
            return failed

    def delete_snapshot(self, snapshot_id: str, *, actor: str = "agent") -> SnapshotRecord:
        """Have an agent delete the snapshot's files, its Pub/Sub snapshots, and then its record.

        A snapshot whose deletion has failed gets another deletion job.

        Raises:
            StreamStateError: a stream is being put back to it.
        """
        with self._database.write_now() as (connection, now):
            # The stream is locked before its jobs, and these before its snapshots.
            stream = _SNAPSHOTS.get(connection, snapshot_id).stream
            record = get_record(connection, stream, now, for_update=True)
            changes: dict[str, Any] = {"state": SnapshotState.DELETING, "error": None}
            for job in find_active_jobs(connection, SNAPSHOT, stream_subject(stream)):
                if job.request["snapshot_id"] == snapshot_id:
                    error = FaultRecord(
                        StreamStateError.code, f"{snapshot_id} was deleted before it was complete."
                    )
                    failed = fail_job(connection, job.id, error, now)
                    changes["place"] = failed.memory.get("place")
                    _begin_deletions_of_runs(connection, failed, now)
            _SNAPSHOTS.get(connection, snapshot_id, for_update=True)
            # Looked for now: from here on no restore of another stream to it begins.
            for job in find_active_jobs(connection, RESTORE):
                if job.request["snapshot_id"] == snapshot_id:
                    stream = job.request["stream"]
                    raise StreamStateError(f"{stream} is being rolled back to {snapshot_id}.", stream=stream)
            deleting = _SNAPSHOTS.update(connection, snapshot_id, **changes)
            _begin_deletion(connection, deleting, actor=actor, now=now)
            what = f"snapshot {snapshot_id} to be deleted"
            append_line(connection, record, now, actor=actor, what=what, snapshot=snapshot_id)
            return deleting

    def end_deletion(self, job: Job) -> None:
        """Forget a DELETING snapshot of which nothing is left, or note why something is; a FAILED one is kept."""
        if "run" in job.request:
            return
        with self._database.write() as connection:
            found = _SNAPSHOTS.get(connection, job.request["snapshot_id"], for_update=True)
            if found.state is SnapshotState.DELETING and job.error is None:
                connection.execute(STREAM_SNAPSHOTS.delete().where(STREAM_SNAPSHOTS.c.id == found.id))
            elif found.state is SnapshotState.DELETING:
                _SNAPSHOTS.update(connection, found.id, error=job.error)
            elif job.error is None:
                _SNAPSHOTS.update(connection, found.id, place=None)

    # -- streams that are put back

    def create_restore(
        self,
        stream: str,
        snapshot_id: str,
        *,
        actor: str,
        discard_staged: bool = False,
        why: str | None = None,
        versions: Collection[int] | None = None,
        idempotency: Idempotency | None = None,
    ) -> RestoreRecord:
        """Have a living stream put back to a COMPLETED snapshot of a stream of its kind; it is a new version.

        With ``discard_staged`` what it staged since then goes too. The same key with the same fingerprint gives
        back the first restore.

        Raises:
            StreamStateError: it has ended or is to end, or is being put back already.
            UpdateInProgressError: an update of it has not ended.
            SnapshotRefusedError: the snapshot is not COMPLETED, or of another kind of stream.
            StreamChangedError: the stream is at none of ``versions``, and the key has made nothing before.
            IdempotencyKeyReusedError: the key was used with another fingerprint.
        """
        with self._database.write("create restore") as connection:
            key = of_kind(idempotency, RESTORE)
            before = JOB_RECORDS.find_made(connection, key, actor=actor, detail="rollback")
            if before is not None:
                return restore_of(before)
            now = self._database.now(connection)
            record = get_record(connection, stream, now, for_update=True)
            check_living(record, ": launch it first.")
            check_versions(record, versions)
            if record.wanted is not Wanted.RUNNING:
                raise StreamStateError(
                    f"{stream} is ending. After the end, launch the stream with the snapshot {snapshot_id}."
                )
            check_snapshot(connection, snapshot_id, record.kind)
            check_not_going_back(connection, stream)
            check_not_updating(connection, stream)
            made = insert_restore(
                connection,
                stream,
                snapshot_id,
                actor=actor,
                now=now,
                discard_staged=discard_staged,
                idempotency=idempotency,
            )
            update_stream(connection, stream, version=record.version + 1, changed_at=now)
            what = f"rollback to {snapshot_id} asked for"
            ids: dict[str, Any] = {"rollback": made.id, "snapshot": snapshot_id}
            append_line(connection, record, now, actor=actor, what=what, why=why, **ids)
            return made

    def list_restores(self, stream: str) -> list[RestoreRecord]:
        """Return every time that the stream was put back, newest first."""
        with self._database.read() as connection:
            return [restore_of(job) for job in find_jobs(connection, RESTORE, stream_subject(stream))]


def _begin_deletion(connection: Connection, snapshot: SnapshotRecord, *, actor: str, now: datetime) -> None:
    """Have what there is of a snapshot deleted; of one that FAILED there may be nothing."""
    subject = snapshot_subject(snapshot.id)
    is_nothing = snapshot.state is SnapshotState.FAILED and snapshot.place is None
    if is_nothing or find_active_jobs(connection, DELETION, subject):
        return
    place = None if snapshot.place is None else to_plain(snapshot.place)
    request = {"stream": snapshot.stream, "snapshot_id": snapshot.id, "place": place}
    _insert_deletion(connection, subject, request, actor=actor, now=now)


def _begin_deletions_of_runs(connection: Connection, job: Job, now: datetime) -> None:
    """Have deleted what runs of a job left on other machines, each by an agent that is there."""
    for place in job.memory.get("left", ()):
        run = PurePosixPath(place["location"]).name
        request = {name: job.request[name] for name in ("stream", "snapshot_id")}
        request |= {"place": place, "run": run}
        _insert_deletion(connection, snapshot_subject(run), request, actor="agent", now=now)


def _insert_deletion(
    connection: Connection, subject: str, request: dict[str, Any], *, actor: str, now: datetime
) -> None:
    begin_job(
        connection, now, kind=DELETION, prefix="dl", subject=subject, step="delete", request=request, actor=actor
    )


def _forget_failed(connection: Connection, stream: str) -> None:
    columns = STREAM_SNAPSHOTS.c
    is_failed = sa.and_(columns.stream == stream, columns.state == SnapshotState.FAILED)
    kept = sa.select(columns.id).where(is_failed).order_by(columns.id.desc()).limit(_KEPT_FAILED)
    is_over = sa.and_(is_failed, columns.place.is_(None), columns.id.not_in(kept))
    connection.execute(STREAM_SNAPSHOTS.delete().where(is_over))


def check_snapshot(connection: Connection, snapshot_id: str, kind: str) -> None:
    """Check that a stream of ``kind`` can be put back to the snapshot, which nobody deletes before the commit.

    Raises:
        StreamSnapshotNotFoundError: there is none.
        SnapshotRefusedError: it is not COMPLETED, or of another kind of stream.
    """
    snapshot = _SNAPSHOTS.get(connection, snapshot_id, for_update=True)
    if snapshot.state is not SnapshotState.COMPLETED or snapshot.kind != kind:
        raise SnapshotRefusedError(
            f"{snapshot_id} is a {snapshot.state} snapshot of a {snapshot.kind} stream. A {kind} "
            f"stream needs a {SnapshotState.COMPLETED} snapshot of a {kind} stream.",
            state=snapshot.state,
            kind=snapshot.kind,
        )


def insert_restore(
    connection: Connection,
    stream: str,
    snapshot_id: str,
    *,
    actor: str,
    now: datetime,
    discard_staged: bool = False,
    idempotency: Idempotency | None = None,
) -> RestoreRecord:
    """Have an agent put the stream to the snapshot before it starts the stream."""
    request = {"stream": stream, "snapshot_id": snapshot_id, "discard_staged": discard_staged}
    made = begin_job(
        connection,
        now,
        kind=RESTORE,
        prefix="rs",
        subject=stream_subject(stream),
        step="stop",
        request=request,
        actor=actor,
        idempotency=idempotency,
    )
    return restore_of(made)


def end_restores(connection: Connection, stream: str, *, now: datetime) -> None:
    """Make every restore FAILED that a stream which ends leaves behind: its next generation is not put back."""
    error = FaultRecord(StreamStateError.code, f"{stream} ended before the rollback was complete.")
    for job in find_active_jobs(connection, RESTORE, stream_subject(stream)):
        fail_job(connection, job.id, error, now)


def restore_of(job: Job) -> RestoreRecord:
    """Return a job of the kind restore as people see it."""
    request, memory = job.request, job.memory
    return RestoreRecord(
        job.id,
        request["stream"],
        request["snapshot_id"],
        _RESTORE_STATES.get(job.state, RestoreState.RUNNING),
        RestoreStep(memory.get("done", RestoreStep.WAITING)),
        job.created_by,
        job.created_at,
        not_reverted=tuple(memory.get("not_reverted", ())),
        discard_staged=request["discard_staged"],
        discarded_rows=memory.get("discarded_rows", {}),
        finished_at=job.finished_at,
        error=job.error,
    )
