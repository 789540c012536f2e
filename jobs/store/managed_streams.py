"""Streams as records: what is wanted of each, which agent looks after it, and its history."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from jobs.store.database import Database
from jobs.store.records import Idempotency
from jobs.store.rows import scoped_key
from jobs.store.stream_rows import append_event, check_version
from jobs.store.stream_snapshots import check_snapshot, end_old_restores, insert_restore
from jobs.store.stream_updates import abandon_update, check_not_rolling_out, check_not_updating
from jobs.store.tables import MANAGED_STREAMS, STREAM_EVENTS
from model.errors import (
    IdempotencyKeyReusedError,
    LeaseLostError,
    StreamExistsError,
    StreamNotFoundError,
    StreamStateError,
)
from model.stream_options import StreamKind
from model.stream_record import (
    DRAIN_TIMEOUT_SECONDS,
    ENDED_STATES,
    StreamEvent,
    StreamEventType,
    StreamFault,
    StreamHome,
    StreamRecord,
    StreamState,
    Wanted,
)

_ENDED: Final = sorted(state.value for state in ENDED_STATES)
_ENDS: Final = {Wanted.DRAINED: StreamState.DRAINED, Wanted.CANCELLED: StreamState.CANCELLED}
# The line of the history that began the stream's present generation.
_LAUNCH: Final = (
    STREAM_EVENTS.c.stream == MANAGED_STREAMS.c.name,
    STREAM_EVENTS.c.generation == MANAGED_STREAMS.c.generation,
    STREAM_EVENTS.c.type == StreamEventType.LAUNCHED.value,
)
_RECORDS: Final[sa.Select[Any]] = sa.select(
    MANAGED_STREAMS,
    sa.select(STREAM_EVENTS.c.actor).where(*_LAUNCH).limit(1).scalar_subquery().label("launched_by"),
    sa.select(STREAM_EVENTS.c.at).where(*_LAUNCH).limit(1).scalar_subquery().label("launched_at"),
)
_NOBODY: Final[Mapping[str, None]] = {"agent": None, "agent_until": None}


class ManagedStreams:
    """Keeps one record a name, for ever; what people ask for makes a new version and a line of the history.

    A name is taken while its stream is living. One that drained or was cancelled can be launched again: the same
    record, its next generation. An agent holds a record for a while that it must renew; as with jobs this is no
    fence, so that what an agent reports names the agent, and the tables' own lease keeps two processes apart.
    """

    _database: Database

    def launch_stream(
        self,
        name: str,
        kind: StreamKind,
        *,
        actor: str,
        release: str | None = None,
        options: Mapping[str, Any] | None = None,
        snapshot_id: str | None = None,
        why: str | None = None,
        idempotency: Idempotency | None = None,
        guard: Callable[[Sequence[StreamRecord]], None] | None = None,
    ) -> StreamRecord:
        """Keep a new stream, or the next generation of one that ended; its state is STARTING.

        The same key with the same fingerprint gives back the stream as it is now: a launch that comes again late
        undoes no drain. With ``snapshot_id`` an agent puts the stream to that snapshot before it starts. ``guard``
        sees every living stream, by name, and no other launch happens before this one is kept: what it raises
        keeps the stream from being launched.

        Raises:
            StreamExistsError: a stream of this name is living, or one of another kind had it before.
            IdempotencyKeyReusedError: the stream was launched with this key and another fingerprint.
            StreamSnapshotNotFoundError: there is no such snapshot.
            SnapshotRefusedError: the snapshot is not COMPLETED, or of another kind of stream.
        """
        with self._database.write("launch stream") as connection:
            now = self._database.now(connection)
            before = _find_row(connection, name, for_update=True)
            key = None if idempotency is None else scoped_key(idempotency, actor)
            if before is not None and idempotency is not None and before.idempotency_key == key:
                if before.fingerprint != idempotency.fingerprint:
                    raise IdempotencyKeyReusedError(stream=name)
                return _record_of(before, now)
            return launch(
                connection,
                now,
                name,
                kind,
                actor=actor,
                release=release,
                options=options or {},
                snapshot_id=snapshot_id,
                why=why,
                guard=guard,
                columns={
                    "idempotency_key": key,
                    "fingerprint": None if idempotency is None else idempotency.fingerprint,
                },
            )

    def get_stream(self, name: str) -> StreamRecord:
        """Return the record of a stream, living or ended.

        Raises:
            StreamNotFoundError: there never was one; any call that names a stream may raise it.
        """
        with self._database.read() as connection:
            return get_record(connection, name, self._database.now(connection))

    def list_streams(self, *, agent: str | None = None) -> list[StreamRecord]:
        """Return every record, by name, or only those that an agent holds."""
        query = _RECORDS.order_by(MANAGED_STREAMS.c.name)
        if agent is not None:
            query = query.where(MANAGED_STREAMS.c.agent == agent)
        with self._database.read() as connection:
            now = self._database.now(connection)
            return [_record_of(row, now) for row in connection.execute(query)]

    def end_stream(
        self,
        name: str,
        wanted: Wanted,
        *,
        actor: str,
        timeout_seconds: float = DRAIN_TIMEOUT_SECONDS,
        why: str | None = None,
        expected_version: int | None = None,
    ) -> StreamRecord:
        """Want a living stream DRAINED or CANCELLED; asked for again, a drain gets a new ``timeout_seconds``.

        A stream that no agent has started yet has ended with this. Any other one ends when its agent reports it.
        An update of it that has not ended is FAILED by this, after its hand-over where it is in the middle of one.

        Raises:
            StreamStateError: it has ended, or it is being cancelled and nothing is left to drain.
            StreamChangedError: it is no longer at ``expected_version``.
        """
        with self._database.write() as connection:
            now = self._database.now(connection)
            return end(
                connection,
                now,
                name,
                wanted,
                actor=actor,
                timeout_seconds=timeout_seconds,
                why=why,
                expected_version=expected_version,
            )

    def change_stream(
        self,
        name: str,
        *,
        actor: str,
        options: Mapping[str, Any],
        release: str | None = None,
        why: str | None = None,
        expected_version: int | None = None,
    ) -> StreamRecord:
        """Change options of a living stream one by one, None takes one away, and its release where one is given.

        Raises:
            StreamStateError: it has ended, or is to end.
            StreamChangedError: it is no longer at ``expected_version``.
            UpdateInProgressError, RolloutInProgressError: an update or a rollout of it has not ended.
        """
        with self._database.write() as connection:
            now = self._database.now(connection)
            record = get_record(connection, name, now, for_update=True)
            check_version(name, record.version, expected_version)
            _check_living(record)
            check_not_updating(connection, name)
            check_not_rolling_out(connection, name)
            if record.wanted is not Wanted.RUNNING:
                raise StreamStateError(f"{name} is to end: nothing of it can be changed.", wanted=record.wanted)
            merged = {key: value for key, value in {**record.options, **options}.items() if value is not None}
            changes: dict[str, Any] = {"options": merged, "version": record.version + 1, "changed_at": now}
            if release is not None:
                changes["release"] = release
            _update(connection, name, **changes)
            names = sorted(options)
            what = f"changed {', '.join(names)}" if release is None else f"changed to release {release}"
            fields = {"options": names, "release": release}
            _append(connection, record, StreamEventType.CHANGED, now, actor=actor, what=what, why=why, **fields)
            return get_record(connection, name, now)

    def take_streams(self, agent: str, *, limit: int, lease_seconds: float) -> list[StreamRecord]:
        """Give the agent living streams that nobody holds, ``limit`` with those it has; return the new ones.

        The ones that have waited for longest since they were changed come first.
        """
        columns = MANAGED_STREAMS.c
        with self._database.write() as connection:
            now = self._database.now(connection)
            held = sa.select(sa.func.count()).where(columns.agent == agent)
            room = limit - connection.execute(held).scalar_one()
            if room <= 0:
                return []
            is_free = sa.or_(columns.agent.is_(None), columns.agent_until < now)
            query = (
                sa.select(columns.name)
                .where(columns.state.not_in(_ENDED), is_free, columns.agent.is_distinct_from(agent))
                .order_by(columns.changed_at, columns.name)
                .limit(room)
                .with_for_update(skip_locked=True)
            )
            names = list(connection.scalars(query))
            until = now + timedelta(seconds=lease_seconds)
            for name in names:
                _update(connection, name, agent=agent, agent_until=until)
            return [get_record(connection, name, now) for name in names]

    def renew_streams(self, agent: str, lease_seconds: float) -> None:
        """Hold what the agent holds for ``lease_seconds`` more; what expired and nobody took counts as held."""
        with self._database.write() as connection:
            until = self._database.now(connection) + timedelta(seconds=lease_seconds)
            is_held = MANAGED_STREAMS.c.agent == agent
            connection.execute(MANAGED_STREAMS.update().where(is_held).values(agent_until=until))

    def release_streams(self, agent: str, name: str | None = None) -> None:
        """Let go of all that an agent holds, or of one stream; an agent that is known to be dead loses all so."""
        is_held = MANAGED_STREAMS.c.agent == agent
        if name is not None:
            is_held = sa.and_(is_held, MANAGED_STREAMS.c.name == name)
        with self._database.write() as connection:
            connection.execute(MANAGED_STREAMS.update().where(is_held).values(**_NOBODY))

    def list_agents(self) -> list[str]:
        """Return everybody who holds a stream, also when the lease has expired."""
        query = sa.select(MANAGED_STREAMS.c.agent).where(MANAGED_STREAMS.c.agent.is_not(None)).distinct()
        with self._database.read() as connection:
            return sorted(connection.scalars(query))

    def report_stream(
        self,
        name: str,
        agent: str,
        state: StreamState,
        *,
        instance_id: str | None = None,
        home: StreamHome | None = None,
        error: StreamFault | None = None,
        why: str | None = None,
    ) -> StreamRecord:
        """Keep where a stream stands, in the words of the agent that holds it; no new version.

        ``error`` replaces what it had. A new ``instance_id`` is a line of the history, and so is another state.
        With DRAINED or CANCELLED the stream has ended, and the agent holds it no longer.

        Raises:
            LeaseLostError: another agent holds it, or nobody does.
            StreamStateError: it is to run, and can't have ended; or the state is NOT_REPORTING, which only shows.
        """
        with self._database.write() as connection:
            now = self._database.now(connection)
            record = get_record(connection, name, now, for_update=True)
            if record.agent != agent:
                raise LeaseLostError(f"Another agent looks after {name} now.", owner=record.agent)
            if state is StreamState.NOT_REPORTING or (state.is_ended and _ENDS.get(record.wanted) is not state):
                raise StreamStateError(f"{name} is to be {record.wanted} and can't become {state}.", wanted=state)
            changes: dict[str, Any] = {
                "state": state.value,
                "error": None if error is None else asdict(error),
                **(_NOBODY if state.is_ended else {}),
            }
            if home is not None:
                changes["home"] = asdict(home)
            if instance_id is not None and instance_id != record.instance_id:
                changes["instance_id"] = instance_id
                started, what = StreamEventType.STARTED, f"started {instance_id}"
                _append(connection, record, started, now, actor="agent", what=what, instance_id=instance_id)
            if state is not record.state:
                reason = why if error is None else why or f"{error.code}: {error.message}"
                _append_move(connection, record, state, now, actor="agent", why=reason)
            _update(connection, name, **changes)
            return get_record(connection, name, now)

    def note_stream(self, name: str, *, actor: str, what: str, why: str | None = None, **fields: Any) -> None:
        """Add a line to a stream's history that changes nothing of its record."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            record = get_record(connection, name, now, for_update=True)
            _append(connection, record, StreamEventType.NOTED, now, actor=actor, what=what, why=why, **fields)

    def list_stream_events(self, name: str, *, after: int = 0) -> list[StreamEvent]:
        """Return the stream's history behind line number ``after``, oldest first, of all its generations."""
        columns = STREAM_EVENTS.c
        query = sa.select(STREAM_EVENTS).where(columns.stream == name, columns.number > after)
        with self._database.read() as connection:
            get_record(connection, name, self._database.now(connection))
            return [_event_of(row) for row in connection.execute(query.order_by(columns.number))]


def launch(
    connection: Connection,
    now: datetime,
    name: str,
    kind: StreamKind,
    *,
    actor: str,
    release: str | None,
    options: Mapping[str, Any],
    snapshot_id: str | None = None,
    why: str | None = None,
    guard: Callable[[Sequence[StreamRecord]], None] | None = None,
    columns: Mapping[str, Any] = MappingProxyType({"idempotency_key": None, "fingerprint": None}),
) -> StreamRecord:
    """Launch as :meth:`ManagedStreams.launch_stream` does, and raise as it, within what its caller changes."""
    before = _find_row(connection, name, for_update=True)
    _check_free(name, kind, before)
    if guard is not None:
        guard(_living(connection, now))
    if snapshot_id is not None:
        check_snapshot(connection, snapshot_id, kind)
    values: dict[str, Any] = {
        "kind": kind.value,
        "release": release,
        "options": dict(options),
        "wanted": Wanted.RUNNING.value,
        "drain_timeout_seconds": DRAIN_TIMEOUT_SECONDS,
        "state": StreamState.STARTING.value,
        "instance_id": None,
        "snapshot_id": snapshot_id,
        "error": None,
        "changed_at": now,
        **columns,
        **_NOBODY,
    }
    if before is None:
        first = {"name": name, "generation": 1, "version": 1, "created_by": actor, "created_at": now}
        connection.execute(MANAGED_STREAMS.insert().values(**first, **values))
    else:
        _update(connection, name, generation=before.generation + 1, version=before.version + 1, **values)
    made = get_record(connection, name, now)
    what = "launched" if snapshot_id is None else f"launched from {snapshot_id}"
    _append(connection, made, StreamEventType.LAUNCHED, now, actor=actor, what=what, why=why)
    end_old_restores(connection, name, now=now)
    if snapshot_id is not None:
        insert_restore(connection, name, made.generation, snapshot_id, actor=actor, now=now)
    return get_record(connection, name, now)


def end(
    connection: Connection,
    now: datetime,
    name: str,
    wanted: Wanted,
    *,
    actor: str,
    timeout_seconds: float = DRAIN_TIMEOUT_SECONDS,
    why: str | None = None,
    expected_version: int | None = None,
) -> StreamRecord:
    """End a stream as :meth:`ManagedStreams.end_stream` does, and raise as it, within what its caller changes."""
    record = get_record(connection, name, now, for_update=True)
    check_version(name, record.version, expected_version)
    _check_living(record)
    if record.wanted is Wanted.CANCELLED and wanted is Wanted.DRAINED:
        raise StreamStateError(f"{name} is being cancelled: nothing is left to drain.", wanted=record.wanted)
    abandon_update(connection, name, now, actor=actor, wanted=wanted)
    is_unborn = record.instance_id is None and not record.is_held
    state = _ENDS[wanted] if is_unborn else record.state
    _update(
        connection,
        name,
        wanted=wanted.value,
        drain_timeout_seconds=timeout_seconds,
        state=state.value,
        version=record.version + 1,
        changed_at=now,
        **(_NOBODY if is_unborn else {}),
    )
    fields = {"wanted": wanted.value, "timeout_seconds": timeout_seconds if wanted is Wanted.DRAINED else None}
    what = f"wanted {wanted}"
    _append(connection, record, StreamEventType.WANTED, now, actor=actor, what=what, why=why, **fields)
    if is_unborn:
        _append_move(connection, record, state, now, actor=actor, why="It was never started.")
    return get_record(connection, name, now)


def _find_row(connection: Connection, name: str, *, for_update: bool = False) -> Row[Any] | None:
    query = _RECORDS.where(MANAGED_STREAMS.c.name == name)
    return connection.execute(query.with_for_update(of=MANAGED_STREAMS) if for_update else query).first()


def get_record(connection: Connection, name: str, now: datetime, *, for_update: bool = False) -> StreamRecord:
    """Return the record of a stream, for a caller that changes more than that.

    Raises:
        StreamNotFoundError: there never was one.
    """
    row = _find_row(connection, name, for_update=for_update)
    if row is None:
        raise StreamNotFoundError(f"No stream was ever launched as {name[:80]}.", name=name[:80])
    return _record_of(row, now)


def _living(connection: Connection, now: datetime) -> list[StreamRecord]:
    query = _RECORDS.where(MANAGED_STREAMS.c.state.not_in(_ENDED))
    return [_record_of(row, now) for row in connection.execute(query.order_by(MANAGED_STREAMS.c.name))]


def _update(connection: Connection, name: str, **changes: Any) -> None:
    connection.execute(MANAGED_STREAMS.update().where(MANAGED_STREAMS.c.name == name).values(**changes))


def _check_free(name: str, kind: StreamKind, before: Row[Any] | None) -> None:
    if before is None:
        return
    if before.state not in _ENDED:
        message = f"{name} is {before.state} since its launch; drain or cancel it first, or choose another name."
        raise StreamExistsError(message, name=name, kind=before.kind, state=before.state)
    if before.kind != kind:
        message = f"{name} was a {before.kind} stream, and its state stays under this name; choose another name."
        raise StreamExistsError(message, name=name, kind=before.kind, state=before.state)


def _check_living(record: StreamRecord) -> None:
    if not record.is_living:
        raise StreamStateError(f"{record.name} is {record.state}; it can be launched again.", state=record.state)


def _append(
    connection: Connection,
    record: StreamRecord,
    kind: StreamEventType,
    at: datetime,
    *,
    actor: str,
    what: str,
    why: str | None = None,
    **fields: Any,
) -> None:
    append_event(connection, record.name, record.generation, kind, at, actor=actor, what=what, why=why, **fields)


def _append_move(
    connection: Connection, record: StreamRecord, state: StreamState, at: datetime, *, actor: str, why: str | None
) -> None:
    fields = {"from": record.state.value, "to": state.value}
    what = f"{record.state} -> {state}"
    _append(connection, record, StreamEventType.MOVED, at, actor=actor, what=what, why=why, **fields)


def _record_of(row: Row[Any], now: datetime) -> StreamRecord:
    return StreamRecord(
        name=row.name,
        kind=StreamKind(row.kind),
        release=row.release,
        options=row.options,
        wanted=Wanted(row.wanted),
        drain_timeout_seconds=row.drain_timeout_seconds,
        state=StreamState(row.state),
        generation=row.generation,
        version=row.version,
        instance_id=row.instance_id,
        agent=row.agent,
        is_held=row.agent_until is not None and row.agent_until >= now,
        home=None if row.home is None else StreamHome(**row.home),
        snapshot_id=row.snapshot_id,
        error=None if row.error is None else StreamFault(**row.error),
        created_by=row.created_by,
        created_at=row.created_at,
        launched_by=row.launched_by or row.created_by,
        launched_at=row.launched_at or row.created_at,
        changed_at=row.changed_at,
    )


def _event_of(row: Row[Any]) -> StreamEvent:
    return StreamEvent(
        number=row.number,
        stream=row.stream,
        generation=row.generation,
        at=row.at,
        actor=row.actor,
        type=StreamEventType(row.type),
        what=row.what,
        why=row.why,
        fields=row.fields,
    )
