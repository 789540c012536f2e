"""Snapshots of streams as records, and the records of streams that are put back to one."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store.database import Database
from jobs.store.records import Idempotency
from jobs.store.rows import Records, key_columns
from jobs.store.stream_rows import append_event, check_living, check_versions, get_record, update_stream
from jobs.store.stream_updates import check_not_rolling_out, check_not_updating
from jobs.store.tables import STREAM_RESTORES, STREAM_SNAPSHOTS
from model.errors import SnapshotRefusedError, StreamSnapshotNotFoundError, StreamStateError
from model.fault import FaultRecord
from model.job import new_job_id
from model.stream_record import StreamEventType, Wanted
from model.stream_snapshot import (
    RestoreRecord,
    RestoreState,
    RestoreStep,
    SnapshotPlace,
    SnapshotReason,
    SnapshotRecord,
    SnapshotState,
    SourceSnapshot,
)

# One is tried every ten minutes for as long as a schedule's snapshots fail.
_KEPT_FAILED: Final = 20
_SNAPSHOTS: Final = Records(STREAM_SNAPSHOTS, SnapshotRecord, "snapshot", StreamSnapshotNotFoundError)
_RESTORES: Final = Records(STREAM_RESTORES, RestoreRecord, "rollback", StreamSnapshotNotFoundError)


class StreamSnapshots:
    """Keeps a record of each snapshot until its files and its Pub/Sub snapshots are gone.

    The agent that holds a stream carries out what is asked for here: making a snapshot, deleting one, putting the
    stream back. Each can be begun again after a crash.
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
                message = f"{stream} is going to end. Make the snapshot when the stream has been launched again."
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
            append_event(
                connection,
                stream,
                record.generation,
                StreamEventType.NOTED,
                now,
                actor=actor,
                what=f"snapshot {made.id} asked for",
                why=None if reason is SnapshotReason.MANUAL else reason,
                snapshot=made.id,
            )
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

    def has_young_snapshot(self, stream: str, *, after: datetime, failed_after: datetime, until: datetime) -> bool:
        """Whether a snapshot of the stream with its source was asked for after ``after`` and not after ``until``.

        One that FAILED counts only when it is younger than ``failed_after``, and one that is to be deleted never.
        """
        columns = STREAM_SNAPSHOTS.c
        query = sa.select(columns.id).where(
            columns.stream == stream,
            columns.created_at > after,
            columns.created_at <= until,
            columns.with_source,
            columns.state != SnapshotState.DELETING,
            sa.or_(columns.state != SnapshotState.FAILED, columns.created_at > failed_after),
        )
        with self._database.read() as connection:
            return connection.scalar(query.limit(1)) is not None

    def list_unfinished_snapshots(self) -> list[SnapshotRecord]:
        """Return the snapshots that an agent has work with, newest first.

        They are to be made or to be deleted, or FAILED with a ``place``: what is left there is to be deleted.
        """
        columns = STREAM_SNAPSHOTS.c
        is_open = columns.state.in_((SnapshotState.PENDING, SnapshotState.DELETING))
        has_rest = sa.and_(columns.state == SnapshotState.FAILED, columns.place.is_not(None))
        query = sa.select(STREAM_SNAPSHOTS).where(sa.or_(is_open, has_rest)).order_by(columns.id.desc())
        with self._database.read() as connection:
            return _SNAPSHOTS.find_all(connection, query)

    def begin_snapshot(self, snapshot: SnapshotRecord, place: SnapshotPlace) -> SnapshotRecord:
        """Note the ``place`` of a new try, before its first file is written, and return the record.

        Nothing changes unless the record is still PENDING and as ``snapshot`` has it: the caller goes on only
        where the returned ``place`` is its own. Then the try before this one can neither complete nor fail it.
        """
        with self._database.write() as connection:
            return _change_pending(connection, snapshot.id, snapshot.place, place=place)

    def complete_snapshot(
        self,
        snapshot_id: str,
        place: SnapshotPlace | None,
        *,
        sources: Sequence[SourceSnapshot],
        format_version: int,
        taken_at: datetime,
        size_bytes: int,
        seconds_paused: float,
        known_messages: int,
    ) -> SnapshotRecord:
        """Make a PENDING snapshot COMPLETED, unless ``place`` is no longer that of its try; return the record."""
        return self._end_snapshot(
            snapshot_id,
            place,
            state=SnapshotState.COMPLETED,
            sources=list(sources),
            format_version=format_version,
            taken_at=taken_at,
            size_bytes=size_bytes,
            seconds_paused=seconds_paused,
            known_messages=known_messages,
        )

    def fail_snapshot(self, snapshot_id: str, place: SnapshotPlace | None, error: FaultRecord) -> SnapshotRecord:
        """Make a PENDING snapshot FAILED, unless ``place`` is no longer that of its try; return the record.

        It comes before anything is deleted, so that no COMPLETED snapshot is ever without its files. The records
        of a stream's last twenty that failed are kept, and earlier ones forgotten of which nothing is left.
        """
        columns = STREAM_SNAPSHOTS.c
        with self._database.write() as connection:
            failed = self._end_snapshot(snapshot_id, place, state=SnapshotState.FAILED, error=error)
            is_failed = sa.and_(columns.stream == failed.stream, columns.state == SnapshotState.FAILED)
            kept = sa.select(columns.id).where(is_failed).order_by(columns.id.desc()).limit(_KEPT_FAILED)
            is_over = sa.and_(is_failed, columns.place.is_(None), columns.id.not_in(kept))
            connection.execute(STREAM_SNAPSHOTS.delete().where(is_over))
            return failed

    def clear_snapshot(self, snapshot_id: str) -> SnapshotRecord:
        """Note that nothing is left of a FAILED snapshot but its record."""
        with self._database.write() as connection:
            found = _SNAPSHOTS.get(connection, snapshot_id, for_update=True)
            if found.state is not SnapshotState.FAILED:
                return found
            return _SNAPSHOTS.update(connection, snapshot_id, place=None)

    def delete_snapshot(self, snapshot_id: str) -> SnapshotRecord:
        """Have an agent delete the snapshot's files, its Pub/Sub snapshots, and then its record.

        Raises:
            StreamStateError: a stream is being put back to it.
        """
        columns = STREAM_RESTORES.c
        with self._database.write() as connection:
            _SNAPSHOTS.get(connection, snapshot_id, for_update=True)
            used = sa.select(columns.stream).where(
                columns.snapshot_id == snapshot_id, columns.state == RestoreState.RUNNING
            )
            if (stream := connection.scalar(used)) is not None:
                raise StreamStateError(f"{stream} is being rolled back to {snapshot_id}.", stream=stream)
            return _SNAPSHOTS.update(connection, snapshot_id, state=SnapshotState.DELETING)

    def forget_snapshot(self, snapshot_id: str) -> None:
        """Forget a snapshot of which nothing is left."""
        with self._database.write() as connection:
            connection.execute(STREAM_SNAPSHOTS.delete().where(STREAM_SNAPSHOTS.c.id == snapshot_id))

    def _end_snapshot(self, snapshot_id: str, place: SnapshotPlace | None, **changes: Any) -> SnapshotRecord:
        with self._database.write() as connection:
            changes["finished_at"] = self._database.now(connection)
            return _change_pending(connection, snapshot_id, place, **changes)

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
            UpdateInProgressError, RolloutInProgressError: an update or a rollout of it has not ended.
            SnapshotRefusedError: the snapshot is not COMPLETED, or of another kind of stream.
            StreamChangedError: the stream is at none of ``versions``, and the key has made nothing before.
            IdempotencyKeyReusedError: the key was used with another fingerprint.
        """
        with self._database.write("create restore") as connection:
            before = _RESTORES.find_made(connection, idempotency, actor=actor, detail="rollback")
            if before is not None:
                return before
            now = self._database.now(connection)
            record = get_record(connection, stream, now, for_update=True)
            check_living(record, ": launch it first.")
            check_versions(record, versions)
            if record.wanted is not Wanted.RUNNING:
                raise StreamStateError(f"{stream} is going to end. After its end, launch it from {snapshot_id}.")
            check_snapshot(connection, snapshot_id, record.kind)
            columns = STREAM_RESTORES.c
            going_back = sa.select(STREAM_RESTORES).where(
                columns.stream == stream, columns.state == RestoreState.RUNNING
            )
            if (running := _RESTORES.find(connection, going_back)) is not None:
                raise StreamStateError(
                    f"{stream} is being rolled back to {running.snapshot_id}.", restore=running.id
                )
            check_not_updating(connection, stream)
            check_not_rolling_out(connection, stream)
            made = insert_restore(
                connection,
                stream,
                record.generation,
                snapshot_id,
                actor=actor,
                now=now,
                discard_staged=discard_staged,
                **key_columns(idempotency, actor),
            )
            update_stream(connection, stream, version=record.version + 1, changed_at=now)
            append_event(
                connection,
                stream,
                record.generation,
                StreamEventType.NOTED,
                now,
                actor=actor,
                what=f"rollback to {snapshot_id} asked for",
                why=why,
                rollback=made.id,
                snapshot=snapshot_id,
            )
            return made

    def list_running_restores(self) -> list[RestoreRecord]:
        """Return every stream's restore that has not ended."""
        query = sa.select(STREAM_RESTORES).where(STREAM_RESTORES.c.state == RestoreState.RUNNING)
        with self._database.read() as connection:
            return _RESTORES.find_all(connection, query)

    def list_restores(self, stream: str) -> list[RestoreRecord]:
        """Return every time that the stream was put back, newest first."""
        columns = STREAM_RESTORES.c
        query = sa.select(STREAM_RESTORES).where(columns.stream == stream).order_by(columns.id.desc())
        with self._database.read() as connection:
            return _RESTORES.find_all(connection, query)

    def advance_restore(
        self, restore_id: str, step: RestoreStep, *, not_reverted: Sequence[str] = ()
    ) -> RestoreRecord:
        """Note that ``step`` is done, so that it is not begun again, and what it found."""
        changes: dict[str, Any] = {"step": step}
        if not_reverted:
            changes["not_reverted"] = list(not_reverted)
        return self._change_restore(restore_id, **changes)

    def end_restore(self, restore_id: str, *, error: FaultRecord | None = None) -> RestoreRecord:
        """Make it SUCCEEDED, or FAILED with an ``error``; the stream starts either way."""
        state = RestoreState.SUCCEEDED if error is None else RestoreState.FAILED
        return self._change_restore(restore_id, state=state, error=error, finished_at=datetime.now(UTC))

    def _change_restore(self, restore_id: str, **changes: Any) -> RestoreRecord:
        with self._database.write() as connection:
            return _RESTORES.update(connection, restore_id, **changes)


def _change_pending(
    connection: Connection, snapshot_id: str, at: SnapshotPlace | None, /, **changes: Any
) -> SnapshotRecord:
    """Change a PENDING snapshot whose try is ``at`` a place, and return it; any other is returned as it is."""
    found = _SNAPSHOTS.get(connection, snapshot_id, for_update=True)
    if found.state is not SnapshotState.PENDING or found.place != at:
        return found
    return _SNAPSHOTS.update(connection, snapshot_id, **changes)


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
    generation: int,
    snapshot_id: str,
    *,
    actor: str,
    now: datetime,
    discard_staged: bool = False,
    **columns: str | None,
) -> RestoreRecord:
    """Have an agent put the stream to the snapshot before it starts the stream."""
    return _RESTORES.insert(
        connection,
        id=new_job_id("rs"),
        stream=stream,
        generation=generation,
        snapshot_id=snapshot_id,
        state=RestoreState.RUNNING,
        step=RestoreStep.WAITING,
        not_reverted=[],
        discard_staged=discard_staged,
        created_by=actor,
        created_at=now,
        **columns,
    )


def end_restores(connection: Connection, stream: str, *, now: datetime) -> None:
    """Make every restore FAILED that a stream which ends leaves behind: its next generation is not put back."""
    columns = STREAM_RESTORES.c
    error = FaultRecord(StreamStateError.code, f"{stream} ended before the rollback was complete.")
    connection.execute(
        STREAM_RESTORES.update()
        .where(columns.stream == stream, columns.state == RestoreState.RUNNING)
        .values(state=RestoreState.FAILED, error=error, finished_at=now)
    )
