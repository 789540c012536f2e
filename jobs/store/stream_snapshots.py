"""Snapshots of streams as records, and the records of streams that are put back to one."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from jobs.store.database import Database
from jobs.store.records import Idempotency
from jobs.store.rows import scoped_key
from jobs.store.stream_rows import append_event, check_version
from jobs.store.stream_updates import check_not_rolling_out, check_not_updating
from jobs.store.tables import MANAGED_STREAMS, STREAM_RESTORES, STREAM_SNAPSHOTS
from model.errors import (
    IdempotencyKeyReusedError,
    SnapshotRefusedError,
    StreamNotFoundError,
    StreamSnapshotNotFoundError,
    StreamStateError,
)
from model.stream_record import ENDED_STATES, StreamEventType, Wanted
from model.stream_snapshot import (
    RestoreRecord,
    RestoreState,
    RestoreStep,
    SnapshotFault,
    SnapshotPlace,
    SnapshotReason,
    SnapshotRecord,
    SnapshotState,
    SourceSnapshot,
    new_restore_id,
    new_snapshot_id,
)

_ENDED: Final = sorted(state.value for state in ENDED_STATES)


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
            now = self._database.now(connection)
            key = None if idempotency is None else scoped_key(idempotency, actor)
            if idempotency is not None:
                query = sa.select(STREAM_SNAPSHOTS).where(STREAM_SNAPSHOTS.c.idempotency_key == key)
                before = connection.execute(query).first()
                if before is not None and before.fingerprint != idempotency.fingerprint:
                    raise IdempotencyKeyReusedError(snapshot=before.id)
                if before is not None:
                    return _record_of(before)
            row = _living_stream(connection, stream)
            if row.wanted != Wanted.RUNNING.value:
                message = f"{stream} is to end: make a snapshot of it before, or when it has been launched again."
                raise StreamStateError(message, wanted=row.wanted)
            snapshot_id = new_snapshot_id()
            connection.execute(
                STREAM_SNAPSHOTS.insert().values(
                    id=snapshot_id,
                    stream=stream,
                    kind=row.kind,
                    with_source=with_source,
                    reason=reason.value,
                    state=SnapshotState.PENDING.value,
                    release=row.release,
                    sources=[],
                    created_by=actor,
                    created_at=now,
                    idempotency_key=key,
                    fingerprint=None if idempotency is None else idempotency.fingerprint,
                )
            )
            append_event(
                connection,
                stream,
                row.generation,
                StreamEventType.NOTED,
                self._database.now(connection),
                actor=actor,
                what=f"snapshot {snapshot_id} asked for",
                why=None if reason is SnapshotReason.MANUAL else reason.value,
                snapshot=snapshot_id,
            )
            return _get(connection, snapshot_id)

    def get_snapshot(self, snapshot_id: str) -> SnapshotRecord:
        """Return the snapshot.

        Raises:
            StreamSnapshotNotFoundError: there is none; any call that names one may raise it.
        """
        with self._database.read() as connection:
            return _get(connection, snapshot_id)

    def list_snapshots(
        self,
        *,
        stream: str | None = None,
        states: Sequence[SnapshotState] = (),
        before: str | None = None,
        limit: int | None = None,
    ) -> list[SnapshotRecord]:
        """Return snapshots, newest first; ``before`` is the id that the page before ended with."""
        columns = STREAM_SNAPSHOTS.c
        query = sa.select(STREAM_SNAPSHOTS).order_by(columns.id.desc()).limit(limit)
        if stream is not None:
            query = query.where(columns.stream == stream)
        if states:
            query = query.where(columns.state.in_([state.value for state in states]))
        if before is not None:
            query = query.where(columns.id < before)
        with self._database.read() as connection:
            return [_record_of(row) for row in connection.execute(query)]

    def begin_snapshot(self, snapshot_id: str, place: SnapshotPlace) -> SnapshotRecord:
        """Note where the files of a PENDING snapshot will be, before the first of them is written."""
        return self._change_snapshot(snapshot_id, place=asdict(place))

    def complete_snapshot(
        self,
        snapshot_id: str,
        *,
        sources: Sequence[SourceSnapshot],
        format_version: int,
        taken_at: datetime,
        size_bytes: int,
        seconds_paused: float,
        known_messages: int,
    ) -> SnapshotRecord:
        """Make a PENDING snapshot COMPLETED; one that is to be deleted stays so."""
        return self._change_snapshot(
            snapshot_id,
            SnapshotState.COMPLETED,
            sources=[asdict(each) | {"expire_time": each.expire_time.isoformat()} for each in sources],
            format_version=format_version,
            taken_at=taken_at,
            size_bytes=size_bytes,
            seconds_paused=seconds_paused,
            known_messages=known_messages,
        )

    def fail_snapshot(self, snapshot_id: str, error: SnapshotFault) -> SnapshotRecord:
        """Make a PENDING snapshot FAILED, of which nothing is left; one that is to be deleted stays so."""
        return self._change_snapshot(snapshot_id, SnapshotState.FAILED, error=asdict(error))

    def delete_snapshot(self, snapshot_id: str) -> SnapshotRecord:
        """Have an agent delete the snapshot's files, its Pub/Sub snapshots, and then its record.

        Raises:
            StreamStateError: a stream is being put back to it.
        """
        columns = STREAM_RESTORES.c
        with self._database.write() as connection:
            _get(connection, snapshot_id, for_update=True)
            used = sa.select(columns.stream).where(
                columns.snapshot_id == snapshot_id, columns.state == RestoreState.RUNNING.value
            )
            if (stream := connection.scalar(used)) is not None:
                raise StreamStateError(f"{stream} is being put back to {snapshot_id}.", stream=stream)
            _update(connection, snapshot_id, state=SnapshotState.DELETING.value)
            return _get(connection, snapshot_id)

    def forget_snapshot(self, snapshot_id: str) -> None:
        """Forget a snapshot of which nothing is left."""
        with self._database.write() as connection:
            connection.execute(STREAM_SNAPSHOTS.delete().where(STREAM_SNAPSHOTS.c.id == snapshot_id))

    def _change_snapshot(
        self, snapshot_id: str, state: SnapshotState | None = None, **changes: Any
    ) -> SnapshotRecord:
        with self._database.write() as connection:
            found = _get(connection, snapshot_id, for_update=True)
            if state is not None:
                changes["finished_at"] = self._database.now(connection)
                if found.state is SnapshotState.PENDING:
                    changes["state"] = state.value
            _update(connection, snapshot_id, **changes)
            return _get(connection, snapshot_id)

    # -- streams that are put back

    def create_restore(
        self,
        stream: str,
        snapshot_id: str,
        *,
        actor: str,
        discard_staged: bool = False,
        why: str | None = None,
        expected_version: int | None = None,
    ) -> RestoreRecord:
        """Have a living stream put back to a COMPLETED snapshot of a stream of its kind.

        With ``discard_staged`` what it staged since then goes too.

        Raises:
            StreamStateError: it has ended, or is being put back already.
            UpdateInProgressError, RolloutInProgressError: an update or a rollout of it has not ended.
            SnapshotRefusedError: the snapshot is not COMPLETED, or of another kind of stream.
            StreamChangedError: the stream is no longer at ``expected_version``.
        """
        with self._database.write("create restore") as connection:
            now = self._database.now(connection)
            row = _living_stream(connection, stream)
            check_version(stream, row.version, expected_version)
            check_snapshot(connection, snapshot_id, row.kind)
            if (running := _running_restore(connection, stream)) is not None:
                raise StreamStateError(f"{stream} is being put back to {running.snapshot_id}.", restore=running.id)
            check_not_updating(connection, stream)
            check_not_rolling_out(connection, stream)
            made = insert_restore(
                connection,
                stream,
                row.generation,
                snapshot_id,
                actor=actor,
                now=now,
                discard_staged=discard_staged,
            )
            append_event(
                connection,
                stream,
                row.generation,
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
        query = sa.select(STREAM_RESTORES).where(STREAM_RESTORES.c.state == RestoreState.RUNNING.value)
        with self._database.read() as connection:
            return [_restore_of(row) for row in connection.execute(query)]

    def list_restores(self, stream: str) -> list[RestoreRecord]:
        """Return every time that the stream was put back, newest first."""
        columns = STREAM_RESTORES.c
        query = sa.select(STREAM_RESTORES).where(columns.stream == stream).order_by(columns.id.desc())
        with self._database.read() as connection:
            return [_restore_of(row) for row in connection.execute(query)]

    def advance_restore(
        self, restore_id: str, step: RestoreStep, *, not_reverted: Sequence[str] = ()
    ) -> RestoreRecord:
        """Note that ``step`` is done, so that it is not begun again, and what it found."""
        changes: dict[str, Any] = {"step": step.value}
        if not_reverted:
            changes["not_reverted"] = list(not_reverted)
        return self._change_restore(restore_id, **changes)

    def end_restore(self, restore_id: str, *, error: SnapshotFault | None = None) -> RestoreRecord:
        """Make it SUCCEEDED, or FAILED with an ``error``; the stream starts either way."""
        state = RestoreState.SUCCEEDED if error is None else RestoreState.FAILED
        return self._change_restore(
            restore_id,
            state=state.value,
            error=None if error is None else asdict(error),
            finished_at=datetime.now(UTC),
        )

    def _change_restore(self, restore_id: str, **changes: Any) -> RestoreRecord:
        with self._database.write() as connection:
            connection.execute(
                STREAM_RESTORES.update().where(STREAM_RESTORES.c.id == restore_id).values(**changes)
            )
            return _get_restore(connection, restore_id)


def check_snapshot(connection: Connection, snapshot_id: str, kind: str) -> None:
    """Check that a stream of ``kind`` can be put back to the snapshot, which nobody deletes before the commit.

    Raises:
        StreamSnapshotNotFoundError: there is none.
        SnapshotRefusedError: it is not COMPLETED, or of another kind of stream.
    """
    snapshot = _get(connection, snapshot_id, for_update=True)
    if snapshot.state is not SnapshotState.COMPLETED or snapshot.kind != kind:
        raise SnapshotRefusedError(
            f"{snapshot_id} is a {snapshot.state} snapshot of a {snapshot.kind} stream: a {kind} stream needs a "
            f"{SnapshotState.COMPLETED} one of its own kind.",
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
) -> RestoreRecord:
    """Have an agent put the stream to the snapshot before it starts the stream."""
    restore_id = new_restore_id()
    connection.execute(
        STREAM_RESTORES.insert().values(
            id=restore_id,
            stream=stream,
            generation=generation,
            snapshot_id=snapshot_id,
            state=RestoreState.RUNNING.value,
            step=RestoreStep.WAITING.value,
            not_reverted=[],
            discard_staged=discard_staged,
            created_by=actor,
            created_at=now,
        )
    )
    return _get_restore(connection, restore_id)


def end_old_restores(connection: Connection, stream: str, *, now: datetime) -> None:
    """Make every restore FAILED that a stream which ended left behind: its next generation is not put back."""
    columns = STREAM_RESTORES.c
    error = SnapshotFault(StreamStateError.code, f"{stream} ended before it was put back.")
    connection.execute(
        STREAM_RESTORES.update()
        .where(columns.stream == stream, columns.state == RestoreState.RUNNING.value)
        .values(state=RestoreState.FAILED.value, error=asdict(error), finished_at=now)
    )


def _living_stream(connection: Connection, name: str) -> Row[Any]:
    columns = MANAGED_STREAMS.c
    query: sa.Select[Any] = sa.select(MANAGED_STREAMS).where(columns.name == name)
    row = connection.execute(query.with_for_update()).first()
    if row is None:
        raise StreamNotFoundError(f"No stream was ever launched as {name[:80]}.", name=name[:80])
    if row.state in _ENDED:
        raise StreamStateError(f"{name} is {row.state}: launch it first.", state=row.state)
    return row


def _get(connection: Connection, snapshot_id: str, *, for_update: bool = False) -> SnapshotRecord:
    query = sa.select(STREAM_SNAPSHOTS).where(STREAM_SNAPSHOTS.c.id == snapshot_id)
    row = connection.execute(query.with_for_update() if for_update else query).first()
    if row is None:
        raise StreamSnapshotNotFoundError(f"There is no snapshot {snapshot_id[:80]}.", id=snapshot_id[:80])
    return _record_of(row)


def _update(connection: Connection, snapshot_id: str, **changes: Any) -> None:
    connection.execute(STREAM_SNAPSHOTS.update().where(STREAM_SNAPSHOTS.c.id == snapshot_id).values(**changes))


def _running_restore(connection: Connection, stream: str) -> RestoreRecord | None:
    columns = STREAM_RESTORES.c
    query = sa.select(STREAM_RESTORES).where(columns.stream == stream, columns.state == RestoreState.RUNNING.value)
    row = connection.execute(query).first()
    return None if row is None else _restore_of(row)


def _get_restore(connection: Connection, restore_id: str) -> RestoreRecord:
    row = connection.execute(sa.select(STREAM_RESTORES).where(STREAM_RESTORES.c.id == restore_id)).one()
    return _restore_of(row)


def _record_of(row: Row[Any]) -> SnapshotRecord:
    return SnapshotRecord(
        id=row.id,
        stream=row.stream,
        kind=row.kind,
        with_source=row.with_source,
        reason=SnapshotReason(row.reason),
        state=SnapshotState(row.state),
        created_by=row.created_by,
        created_at=row.created_at,
        release=row.release,
        format_version=row.format_version,
        sources=tuple(
            SourceSnapshot(**source | {"expire_time": datetime.fromisoformat(source["expire_time"])})
            for source in row.sources
        ),
        taken_at=row.taken_at,
        size_bytes=row.size_bytes,
        seconds_paused=row.seconds_paused,
        known_messages=row.known_messages,
        place=None if row.place is None else SnapshotPlace(**row.place),
        finished_at=row.finished_at,
        error=None if row.error is None else SnapshotFault(**row.error),
    )


def _restore_of(row: Row[Any]) -> RestoreRecord:
    return RestoreRecord(
        id=row.id,
        stream=row.stream,
        generation=row.generation,
        snapshot_id=row.snapshot_id,
        state=RestoreState(row.state),
        step=RestoreStep(row.step),
        created_by=row.created_by,
        created_at=row.created_at,
        not_reverted=tuple(row.not_reverted),
        discard_staged=row.discard_staged,
        finished_at=row.finished_at,
        error=None if row.error is None else SnapshotFault(**row.error),
    )
