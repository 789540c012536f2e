"""Streams as records: what is wanted of each, which agent looks after it, and its history."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from jobs.store.database import Database
from jobs.store.events import STREAM, read_events
from jobs.store.records import Idempotency
from jobs.store.rows import key_columns
from jobs.store.stream_rows import (
    append_line,
    check_living,
    check_versions,
    find_row,
    get_record,
    record_of,
    update_stream,
)
from jobs.store.stream_snapshots import check_snapshot, end_restores, insert_restore
from jobs.store.stream_updates import abandon_update, check_not_updating
from jobs.store.tables import MANAGED_STREAMS
from jobs.store.waits import has_passed
from model.errors import (
    IdempotencyKeyReusedError,
    LeaseLostError,
    StreamExistsError,
    StreamStateError,
)
from model.event import HistoryEvent, HistoryEventType, render_changes
from model.fault import FaultRecord
from model.stream_options import StreamKind
from model.stream_record import (
    DRAIN_TIMEOUT_SECONDS,
    ENDED_STATES,
    StreamHome,
    StreamRecord,
    StreamState,
    Wanted,
)

_ENDED: Final = sorted(ENDED_STATES)
_ENDED_WAY_OUT: Final = "; it can be launched again."
_ENDS: Final = {Wanted.DRAINED: StreamState.DRAINED, Wanted.CANCELLED: StreamState.CANCELLED}
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
        with self._database.write_now("launch stream") as (connection, now):
            before = find_row(connection, name, for_update=True)
            key = key_columns(idempotency, actor)
            if before is not None and idempotency is not None and before.idempotency_key == key["idempotency_key"]:
                if before.fingerprint != idempotency.fingerprint:
                    raise IdempotencyKeyReusedError(stream=name)
                return record_of(before, now)
            _check_free(name, kind, before)
            if guard is not None:
                guard(_living(connection, now))
            if snapshot_id is not None:
                check_snapshot(connection, snapshot_id, kind)
            generation = 1 if before is None else before.generation + 1
            values: dict[str, Any] = {
                "kind": kind,
                "generation": generation,
                "release": release,
                "options": dict(options or {}),
                "wanted": Wanted.RUNNING,
                "drain_timeout_seconds": DRAIN_TIMEOUT_SECONDS,
                "state": StreamState.STARTING,
                "instance_id": None,
                "snapshot_id": snapshot_id,
                "error": None,
                "launched_by": actor,
                "launched_at": now,
                "changed_at": now,
                **key,
                **_NOBODY,
            }
            if before is None:
                first = {"name": name, "version": 1, "created_by": actor, "created_at": now}
                connection.execute(MANAGED_STREAMS.insert().values(**first, **values))
            else:
                update_stream(connection, name, version=before.version + 1, **values)
            record = get_record(connection, name, now)
            what = "launched" if snapshot_id is None else f"launched from {snapshot_id}"
            append_line(connection, record, now, HistoryEventType.LAUNCHED, actor=actor, what=what, why=why)
            if snapshot_id is not None:
                insert_restore(connection, name, snapshot_id, actor=actor, now=now)
            return record

    def get_stream(self, name: str) -> StreamRecord:
        """Return the record of a stream, living or ended.

        Raises:
            StreamNotFoundError: there never was one; any call that names a stream may raise it.
        """
        with self._database.read() as connection:
            return get_record(connection, name, self._database.now(connection))

    def list_streams(self) -> list[StreamRecord]:
        """Return every record, by name."""
        query = sa.select(MANAGED_STREAMS).order_by(MANAGED_STREAMS.c.name)
        with self._database.read() as connection:
            now = self._database.now(connection)
            return [record_of(row, now) for row in connection.execute(query)]

    def end_stream(
        self,
        name: str,
        wanted: Wanted,
        *,
        actor: str,
        timeout_seconds: float = DRAIN_TIMEOUT_SECONDS,
        why: str | None = None,
        versions: Collection[int] | None = None,
    ) -> StreamRecord:
        """Want a living stream DRAINED or CANCELLED; asked for again, a drain gets a new ``timeout_seconds``.

        A stream that no agent has started yet has ended with this. Any other one ends when its agent reports it.
        An update of it that has not ended is FAILED by this, after its hand-over where it is in the middle of one.

        Raises:
            StreamStateError: it has ended, or it is being cancelled and nothing is left to drain.
            StreamChangedError: it is at none of ``versions``.
        """
        with self._database.write_now() as (connection, now):
            record = get_record(connection, name, now, for_update=True)
            check_versions(record, versions)
            check_living(record, _ENDED_WAY_OUT)
            if record.wanted is Wanted.CANCELLED and wanted is Wanted.DRAINED:
                raise StreamStateError(f"{name} is being cancelled, so it can't be drained.", wanted=record.wanted)
            abandon_update(connection, name, now, actor=actor, wanted=wanted)
            is_unborn = record.instance_id is None and not record.is_held
            state = _ENDS[wanted] if is_unborn else record.state
            update_stream(
                connection,
                name,
                wanted=wanted,
                drain_timeout_seconds=timeout_seconds,
                state=state,
                version=record.version + 1,
                changed_at=now,
                **(_NOBODY if is_unborn else {}),
            )
            fields = {"wanted": wanted, "timeout_seconds": timeout_seconds if wanted is Wanted.DRAINED else None}
            event, what = HistoryEventType.WANTED, f"wanted {wanted}"
            append_line(connection, record, now, event, actor=actor, what=what, why=why, **fields)
            if is_unborn:
                end_restores(connection, name, now=now)
                _append_move(connection, record, state, now, actor=actor, why="It was never started.")
            return get_record(connection, name, now)

    def change_stream(
        self,
        name: str,
        *,
        actor: str,
        options: Mapping[str, Any],
        versions: Collection[int] | None = None,
    ) -> StreamRecord:
        """Change options of a living stream one by one; None takes one away.

        Raises:
            StreamStateError: it has ended, or is to end.
            StreamChangedError: it is at none of ``versions``.
            UpdateInProgressError: an update of it has not ended.
        """
        with self._database.write_now() as (connection, now):
            record = get_record(connection, name, now, for_update=True)
            check_versions(record, versions)
            check_living(record, _ENDED_WAY_OUT)
            check_not_updating(connection, name)
            if record.wanted is not Wanted.RUNNING:
                raise StreamStateError(f"{name} is ending, so it can't be changed.", wanted=record.wanted)
            merged = {key: value for key, value in {**record.options, **options}.items() if value is not None}
            update_stream(connection, name, options=merged, version=record.version + 1, changed_at=now)
            names, event = sorted(options), HistoryEventType.CHANGED
            fields = {"options": names, "changes": render_changes(record.options, merged)}
            what = f"changed {', '.join(names)}"
            append_line(connection, record, now, event, actor=actor, what=what, **fields)
            return get_record(connection, name, now)

    def take_streams(self, agent: str, *, limit: int, lease_seconds: float) -> list[StreamRecord]:
        """Give the agent living streams that nobody holds, ``limit`` with those it has; return the new ones.

        The ones that have waited for longest since they were changed come first.
        """
        columns = MANAGED_STREAMS.c
        with self._database.write_now() as (connection, now):
            held = sa.select(sa.func.count()).where(columns.agent == agent)
            room = limit - connection.execute(held).scalar_one()
            if room <= 0:
                return []
            is_free = sa.or_(columns.agent.is_(None), has_passed(columns.agent_until, now))
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
                update_stream(connection, name, agent=agent, agent_until=until)
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
        error: FaultRecord | None = None,
        why: str | None = None,
    ) -> StreamRecord:
        """Keep where a stream stands, in the words of the agent that holds it; no new version.

        ``error`` replaces what it had. A new ``instance_id`` is a line of the history, and so is another state.
        With DRAINED or CANCELLED the stream has ended, and the agent holds it no longer.

        Raises:
            LeaseLostError: another agent holds it, or nobody does.
            StreamStateError: it is to run, and can't have ended; or the state is NOT_REPORTING, which only shows.
        """
        with self._database.write_now() as (connection, now):
            record = get_record(connection, name, now, for_update=True)
            if record.agent != agent:
                raise LeaseLostError(f"Another agent runs {name} now.", owner=record.agent)
            if state is StreamState.NOT_REPORTING or (state.is_ended and _ENDS.get(record.wanted) is not state):
                raise StreamStateError(
                    f"{name} has the wanted state {record.wanted}, so it can't become {state}.", wanted=state
                )
            changes: dict[str, Any] = {"state": state, "error": error, **(_NOBODY if state.is_ended else {})}
            if home is not None:
                changes["home"] = home
            if instance_id is not None and instance_id != record.instance_id:
                changes["instance_id"] = instance_id
                event, what = HistoryEventType.STARTED, f"started {instance_id}"
                append_line(connection, record, now, event, actor="agent", what=what, instance_id=instance_id)
            if state is not record.state:
                reason = why if error is None else why or str(error)
                _append_move(connection, record, state, now, actor="agent", why=reason)
            if state.is_ended:
                end_restores(connection, name, now=now)
            update_stream(connection, name, **changes)
            return get_record(connection, name, now)

    def note_stream(self, name: str, *, actor: str, what: str, why: str | None = None, **fields: Any) -> None:
        """Add a line to a stream's history that changes nothing of its record."""
        with self._database.write_now() as (connection, now):
            record = get_record(connection, name, now, for_update=True)
            append_line(connection, record, now, actor=actor, what=what, why=why, **fields)

    def list_stream_events(self, name: str, *, after: int = 0) -> list[HistoryEvent]:
        """Return the stream's history after line number ``after``, oldest first, of all its generations.

        Long ones have lost their first lines.
        """
        with self._database.read() as connection:
            get_record(connection, name, self._database.now(connection))
            return read_events(connection, STREAM, name, after)


def _living(connection: Connection, now: datetime) -> list[StreamRecord]:
    query = sa.select(MANAGED_STREAMS).where(MANAGED_STREAMS.c.state.not_in(_ENDED))
    return [record_of(row, now) for row in connection.execute(query.order_by(MANAGED_STREAMS.c.name))]


def _check_free(name: str, kind: StreamKind, before: Row[Any] | None) -> None:
    if before is None:
        return
    if before.state not in _ENDED:
        message = (
            f"A stream with the name {name} is {before.state}. Drain or cancel it first, or choose another name."
        )
        raise StreamExistsError(message, name=name, kind=before.kind, state=before.state)
    if before.kind != kind:
        message = f"{name} was a {before.kind} stream, and its state still exists. Choose another name."
        raise StreamExistsError(message, name=name, kind=before.kind, state=before.state)


def _append_move(
    connection: Connection, record: StreamRecord, state: StreamState, at: datetime, *, actor: str, why: str | None
) -> None:
    moved, fields = HistoryEventType.MOVED, {"from": record.state, "to": state}
    what = f"{record.state} -> {state}"
    append_line(connection, record, at, moved, actor=actor, what=what, why=why, **fields)
