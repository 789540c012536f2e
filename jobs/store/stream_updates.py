"""Updates of streams as records: each step is written down before it begins."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from jobs.store.database import Database
from jobs.store.records import Idempotency
from jobs.store.rows import scoped_key
from jobs.store.stream_rows import append_event, check_version
from jobs.store.tables import MANAGED_STREAMS, ROLLOUTS, STREAM_RESTORES, STREAM_UPDATES
from model.errors import (
    IdempotencyKeyReusedError,
    RolloutInProgressError,
    StreamNotFoundError,
    StreamStateError,
    UpdateInProgressError,
    UpdateNotFoundError,
)
from model.stream_record import ENDED_STATES, StreamEventType, Wanted
from model.stream_snapshot import RestoreState
from model.stream_update import (
    ENDED_UPDATES,
    StreamUpdate,
    UpdateFault,
    UpdateReplay,
    UpdateRequest,
    UpdateState,
    new_update_id,
)

_ENDED: Final = sorted(state.value for state in ENDED_UPDATES)
_BEGIN_STANDBYS: Final = frozenset({UpdateState.STARTING, UpdateState.ROLLING_BACK})
_ENDED_STREAMS: Final = sorted(state.value for state in ENDED_STATES)


class StreamUpdates:
    """Keeps a record of each update; a stream has one at most that has not ended.

    The agent that holds the stream carries the update out. Every step names the state that its caller saw, so that
    a person's decision and an agent's step never overwrite each other. HANDING_OVER and HANDING_BACK change the
    stream's own record in the same transaction: its release, its options and its newest process.
    """

    _database: Database

    def create_update(
        self,
        stream: str,
        request: UpdateRequest,
        *,
        actor: str,
        why: str | None = None,
        guard: Callable[[], None] = lambda: None,
        idempotency: Idempotency | None = None,
        expected_version: int | None = None,
    ) -> StreamUpdate:
        """Have a living stream updated; the same key with the same fingerprint gives back the first update.

        What ``guard`` raises keeps a new one from being made.

        Raises:
            StreamNotFoundError: there never was such a stream.
            StreamStateError: it has ended or is to end, or is being put back to a snapshot.
            UpdateInProgressError: another update of it has not ended; ``details["update"]`` names it.
            RolloutInProgressError: a rollout of it has not ended.
            IdempotencyKeyReusedError: the key was used with another fingerprint.
            StreamChangedError: the stream is no longer at ``expected_version``.
        """
        with self._database.write("create update") as connection:
            now = self._database.now(connection)
            key = None if idempotency is None else scoped_key(idempotency, actor)
            if idempotency is not None:
                query = sa.select(STREAM_UPDATES).where(STREAM_UPDATES.c.idempotency_key == key)
                before = connection.execute(query).first()
                if before is not None and before.fingerprint != idempotency.fingerprint:
                    raise IdempotencyKeyReusedError(update=before.id)
                if before is not None:
                    return _update_of(before)
            guard()
            # First: a rollout may be draining the stream, which is no reason to launch it by hand.
            check_not_rolling_out(connection, stream)
            row = _living_stream(connection, stream)
            check_version(stream, row.version, expected_version)
            fingerprint = None if idempotency is None else idempotency.fingerprint
            return begin(connection, now, stream, request, actor=actor, why=why, key=key, fingerprint=fingerprint)

    def get_update(self, update_id: str) -> StreamUpdate:
        """Return the update.

        Raises:
            UpdateNotFoundError: there is none; any call that names one may raise it.
        """
        with self._database.read() as connection:
            return _get(connection, update_id)

    def list_updates(self, stream: str | None = None, *, living: bool = False) -> list[StreamUpdate]:
        """Return updates, newest first: all, or those of one stream, or those that have not ended."""
        query = sa.select(STREAM_UPDATES).order_by(STREAM_UPDATES.c.id.desc())
        if stream is not None:
            query = query.where(STREAM_UPDATES.c.stream == stream)
        if living:
            query = query.where(STREAM_UPDATES.c.state.not_in(_ENDED))
        with self._database.read() as connection:
            return [_update_of(row) for row in connection.execute(query)]

    def advance_update(
        self,
        seen: StreamUpdate,
        state: UpdateState,
        *,
        actor: str = "agent",
        error: UpdateFault | None = None,
        why: str | None = None,
        **changes: Any,
    ) -> StreamUpdate:
        """Go from the step that the caller has ``seen`` to ``state``; ``changes`` are columns of the record.

        Raises:
            StreamStateError: the update is at another step meanwhile.
        """
        with self._database.write("advance update") as connection:
            now = self._database.now(connection)
            found = _get(connection, seen.id, for_update=True)
            _check_seen(found, seen)
            if error is not None:
                changes["error"] = asdict(error)
            if state.is_ended:
                changes["finished_at"] = now
            if state in _BEGIN_STANDBYS:
                # The last step's were other processes.
                changes["attempts"] = 0
            if state is UpdateState.HANDING_OVER:
                changes["handed_over_at"] = now
            _change(connection, found.id, **_columns(changes), state=state.value, changed_at=now)
            moved = _get(connection, found.id)
            if state.is_handing:
                _give_stream(connection, moved, now)
            reason = why if error is None else f"{error.code}: {error.message}"
            _append(connection, moved, now, actor=actor, what=f"update {found.id} {state}", why=reason)
            return moved

    def note_update(self, seen: StreamUpdate, **changes: Any) -> StreamUpdate:
        """Change columns of the record at the step that the caller has ``seen``; no line of the history.

        Raises:
            StreamStateError: the update is at another step meanwhile.
        """
        with self._database.write() as connection:
            found = _get(connection, seen.id, for_update=True)
            _check_seen(found, seen)
            _change(connection, found.id, **_columns(changes))
            return _get(connection, found.id)


def begin(
    connection: Connection,
    now: datetime,
    stream: str,
    request: UpdateRequest,
    *,
    actor: str,
    why: str | None = None,
    key: str | None = None,
    fingerprint: str | None = None,
) -> StreamUpdate:
    """Begin an update as :meth:`StreamUpdates.create_update` does, within what its caller changes.

    Raises:
        StreamNotFoundError, StreamStateError, UpdateInProgressError: as there.
    """
    row = _living_stream(connection, stream)
    check_not_updating(connection, stream)
    check_not_going_back(connection, stream)
    update_id = new_update_id()
    connection.execute(
        STREAM_UPDATES.insert().values(
            id=update_id,
            stream=stream,
            generation=row.generation,
            state=UpdateState.CHECKING.value,
            request=request.to_json(),
            from_release=row.release,
            from_options=row.options,
            attempts=0,
            created_by=actor,
            created_at=now,
            changed_at=now,
            idempotency_key=key,
            fingerprint=fingerprint,
        )
    )
    made = _get(connection, update_id)
    _append(connection, made, now, actor=actor, what=f"update {update_id} asked for", why=why or request.reason)
    return made


def check_not_rolling_out(connection: Connection, stream: str) -> None:
    """Raise when a rollout of the stream has not ended: two changes of one stream would undo each other.

    Raises:
        RolloutInProgressError: there is one; ``details["rollout"]`` names it.
    """
    columns = ROLLOUTS.c
    query = sa.select(columns.id, columns.manifest, columns.state).where(
        columns.stream == stream, columns.finished_at.is_(None)
    )
    row = connection.execute(query).first()
    if row is not None:
        raise RolloutInProgressError(
            f"{row.id} of {row.manifest} rolls {stream} out and is {row.state}. Wait for its end, or end it with "
            f"'refeed rollout cancel {row.id}'.",
            stream=stream,
            rollout=row.id,
            state=row.state,
        )


def check_not_updating(connection: Connection, stream: str) -> None:
    """Raise when the stream is being updated.

    Raises:
        UpdateInProgressError: an update of it has not ended.
    """
    living = _living_update(connection, stream)
    if living is not None:
        raise UpdateInProgressError(
            f"{living.id} updates {stream} and is {living.state}. Wait for its end, or end it with "
            f"'refeed stream update {stream} --roll-back'.",
            stream=stream,
            update=living.id,
            state=living.state.value,
        )


def check_not_going_back(connection: Connection, stream: str) -> None:
    """Raise when the stream is being put back to a snapshot.

    Raises:
        StreamStateError: it is.
    """
    columns = STREAM_RESTORES.c
    query = sa.select(columns.snapshot_id).where(
        columns.stream == stream, columns.state == RestoreState.RUNNING.value
    )
    if (snapshot := connection.scalar(query)) is not None:
        raise StreamStateError(f"{stream} is being put back to {snapshot}.", stream=stream)


def abandon_update(connection: Connection, stream: str, now: datetime, *, actor: str, wanted: Wanted) -> None:
    """End the update of a stream that is to end; in the middle of a hand-over its agent does so after it."""
    living = _living_update(connection, stream)
    if living is None or living.state.is_handing:
        return
    fault = living.abandoned(wanted)
    ended = UpdateState.FAILED
    _change(connection, living.id, state=ended.value, error=asdict(fault), finished_at=now, changed_at=now)
    _append(connection, living, now, actor=actor, what=f"update {living.id} {ended}", why=fault.message)


def _give_stream(connection: Connection, update: StreamUpdate, now: datetime) -> None:
    """Make the process that takes over the stream's newest one, and its release and options the stream's."""
    is_forward = update.state is UpdateState.HANDING_OVER
    columns = MANAGED_STREAMS.c
    connection.execute(
        MANAGED_STREAMS.update()
        .where(columns.name == update.stream)
        .values(
            release=update.request.release if is_forward else update.from_release,
            options=update.to_options if is_forward else update.back_options,
            instance_id=update.instance_id,
            version=columns.version + 1,
            changed_at=now,
        )
    )
    what = f"started {update.instance_id}"
    fields = {"instance_id": update.instance_id}
    _append(connection, update, now, actor="agent", what=what, kind=StreamEventType.STARTED, **fields)


def _living_stream(connection: Connection, name: str) -> Row[Any]:
    query: sa.Select[Any] = sa.select(MANAGED_STREAMS).where(MANAGED_STREAMS.c.name == name)
    row = connection.execute(query.with_for_update()).first()
    if row is None:
        raise StreamNotFoundError(f"No stream was ever launched as {name[:80]}.", name=name[:80])
    if row.state in _ENDED_STREAMS:
        raise StreamStateError(f"{name} is {row.state}: launch it with the other release.", state=row.state)
    if row.wanted != Wanted.RUNNING:
        raise StreamStateError(f"{name} is to be {row.wanted}: nothing of it can be changed.", wanted=row.wanted)
    return row


def _living_update(connection: Connection, stream: str) -> StreamUpdate | None:
    columns = STREAM_UPDATES.c
    query = sa.select(STREAM_UPDATES).where(columns.stream == stream, columns.state.not_in(_ENDED))
    row = connection.execute(query).first()
    return None if row is None else _update_of(row)


def _get(connection: Connection, update_id: str, *, for_update: bool = False) -> StreamUpdate:
    query = sa.select(STREAM_UPDATES).where(STREAM_UPDATES.c.id == update_id)
    row = connection.execute(query.with_for_update() if for_update else query).first()
    if row is None:
        raise UpdateNotFoundError(f"There is no update {update_id[:80]}.", id=update_id[:80])
    return _update_of(row)


def _check_seen(found: StreamUpdate, seen: StreamUpdate) -> None:
    if found.state is not seen.state:
        raise StreamStateError(
            f"{found.id} is {found.state}, no longer {seen.state}.", update=found.id, state=found.state.value
        )


def _change(connection: Connection, update_id: str, **changes: Any) -> None:
    connection.execute(STREAM_UPDATES.update().where(STREAM_UPDATES.c.id == update_id).values(**changes))


def _columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(changes)
    replay = found.get("replay")
    if isinstance(replay, UpdateReplay):
        moments = {"since": replay.since, "until": replay.until}
        texts = {name: None if moment is None else moment.isoformat() for name, moment in moments.items()}
        found["replay"] = {**texts, "topics": list(replay.topics)}
    return found


def _append(
    connection: Connection,
    update: StreamUpdate,
    now: datetime,
    *,
    actor: str,
    what: str,
    why: str | None = None,
    kind: StreamEventType = StreamEventType.NOTED,
    **fields: Any,
) -> None:
    append_event(
        connection,
        update.stream,
        update.generation,
        kind,
        now,
        actor=actor,
        what=what,
        why=why,
        update=update.id,
        **fields,
    )


def _update_of(row: Row[Any]) -> StreamUpdate:
    replay = row.replay
    return StreamUpdate(
        id=row.id,
        stream=row.stream,
        generation=row.generation,
        state=UpdateState(row.state),
        request=UpdateRequest.from_json(row.request),
        from_release=row.from_release,
        from_options=row.from_options,
        created_by=row.created_by,
        created_at=row.created_at,
        changed_at=row.changed_at,
        checked=row.checked,
        snapshot_id=row.snapshot_id,
        instance_id=row.instance_id,
        outgoing_id=row.outgoing_id,
        attempts=row.attempts,
        handed_over_at=row.handed_over_at,
        paused_seconds=row.paused_seconds,
        figures=row.figures,
        replay=None
        if replay is None
        else UpdateReplay(
            None if replay["since"] is None else datetime.fromisoformat(replay["since"]),
            datetime.fromisoformat(replay["until"]),
            tuple(replay["topics"]),
        ),
        error=None if row.error is None else UpdateFault(**row.error),
        finished_at=row.finished_at,
    )
