"""Updates of streams as records: each step is written down before it begins."""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store.database import Database
from jobs.store.records import Idempotency
from jobs.store.rows import Records, key_columns
from jobs.store.step_jobs import RESTORE, find_active_jobs, stream_subject
from jobs.store.stream_rows import append_event, check_living, check_versions, get_record, update_stream
from jobs.store.tables import MANAGED_STREAMS, ROLLOUTS, STREAM_UPDATES
from model.errors import RolloutInProgressError, StreamStateError, UpdateInProgressError, UpdateNotFoundError
from model.job import new_job_id
from model.stream_record import StreamEventType, StreamRecord, Wanted
from model.stream_update import ENDED_UPDATES, StreamUpdate, UpdateFault, UpdateRequest, UpdateState

_UPDATES: Final = Records(STREAM_UPDATES, StreamUpdate, "update", UpdateNotFoundError)
# Named one by one, so that the index by state is used.
_LIVING: Final = sorted(set(UpdateState) - ENDED_UPDATES)
_BEGIN_STANDBYS: Final = frozenset({UpdateState.STARTING, UpdateState.ROLLING_BACK})


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
        versions: Collection[int] | None = None,
    ) -> StreamUpdate:
        """Have a living stream updated; the same key with the same fingerprint gives back the first update.

        What ``guard`` raises keeps a new one from being made.

        Raises:
            StreamNotFoundError: there never was such a stream.
            StreamStateError: it has ended or is to end, or is being put back to a snapshot.
            UpdateInProgressError: another update of it has not ended; ``details["update"]`` names it.
            RolloutInProgressError: a rollout of it has not ended.
            IdempotencyKeyReusedError: the key was used with another fingerprint.
            StreamChangedError: the stream is at none of ``versions``, and the key has made nothing before.
        """
        with self._database.write("create update") as connection:
            before = _UPDATES.find_made(connection, idempotency, actor=actor, detail="update")
            if before is not None:
                return before
            guard()
            # First: a rollout may be draining the stream, which is no reason to launch it by hand.
            check_not_rolling_out(connection, stream)
            now = self._database.now(connection)
            check_versions(_runnable_stream(connection, stream, now), versions)
            key = key_columns(idempotency, actor)
            return begin(connection, now, stream, request, actor=actor, why=why, **key)

    def get_update(self, update_id: str) -> StreamUpdate:
        """Return the update.

        Raises:
            UpdateNotFoundError: there is none; any call that names one may raise it.
        """
        with self._database.read() as connection:
            return _UPDATES.get(connection, update_id)

    def list_updates(
        self, stream: str | None = None, *, living: bool = False, ended_since: datetime | None = None
    ) -> list[StreamUpdate]:
        """Return updates, newest first: all, or those of one stream, or those that have not ended.

        With ``ended_since`` those that have not ended, and those that ended since then.
        """
        query = sa.select(STREAM_UPDATES).order_by(STREAM_UPDATES.c.id.desc())
        if stream is not None:
            query = query.where(STREAM_UPDATES.c.stream == stream)
        if living:
            query = query.where(STREAM_UPDATES.c.state.in_(_LIVING))
        if ended_since is not None:
            ended_at = STREAM_UPDATES.c.finished_at
            query = query.where(sa.or_(ended_at.is_(None), ended_at >= ended_since))
        with self._database.read() as connection:
            return _UPDATES.find_all(connection, query)

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
            # Lock the stream before its update, as ending a stream does; another order could deadlock.
            get_record(connection, seen.stream, now, for_update=True)
            _check_seen(connection, seen)
            if error is not None:
                changes["error"] = error
            if state.is_ended:
                changes["finished_at"] = now
            if state in _BEGIN_STANDBYS:
                # The last step's were other processes.
                changes["attempts"] = 0
            if state is UpdateState.HANDING_OVER:
                changes["handed_over_at"] = now
            moved = _UPDATES.update(connection, seen.id, **changes, state=state, changed_at=now)
            if state.is_handing:
                _give_stream(connection, moved, now)
            reason = why if error is None else str(error)
            _append(connection, moved, now, actor=actor, what=f"update {seen.id} {state}", why=reason)
            return moved

    def note_update(self, seen: StreamUpdate, **changes: Any) -> StreamUpdate:
        """Change columns of the record at the step that the caller has ``seen``; no line of the history.

        Raises:
            StreamStateError: the update is at another step meanwhile.
        """
        with self._database.write() as connection:
            _check_seen(connection, seen)
            return _UPDATES.update(connection, seen.id, **changes)


def begin(
    connection: Connection,
    now: datetime,
    stream: str,
    request: UpdateRequest,
    *,
    actor: str,
    why: str | None = None,
    **columns: str | None,
) -> StreamUpdate:
    """Begin an update as :meth:`StreamUpdates.create_update` does, within what its caller changes.

    Raises:
        StreamNotFoundError, StreamStateError, UpdateInProgressError: as there.
    """
    record = _runnable_stream(connection, stream, now)
    check_not_updating(connection, stream)
    check_not_going_back(connection, stream)
    made = _UPDATES.insert(
        connection,
        id=new_job_id("up"),
        stream=stream,
        generation=record.generation,
        state=UpdateState.CHECKING,
        request=request.to_json(),
        from_release=record.release,
        from_options=record.options,
        attempts=0,
        created_by=actor,
        created_at=now,
        changed_at=now,
        **columns,
    )
    _append(connection, made, now, actor=actor, what=f"update {made.id} asked for", why=why or request.reason)
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
            f"The rollout {row.id} of {row.manifest} changes {stream} and is {row.state}. Wait for the end of "
            f"the rollout, or cancel it with 'refeed rollout cancel {row.id}'.",
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
            f"The update {living.id} of {stream} is {living.state}. Wait for the end of the update, or roll it "
            f"back with 'refeed stream update {stream} --roll-back'.",
            stream=stream,
            update=living.id,
            state=living.state,
        )


def check_not_going_back(connection: Connection, stream: str) -> None:
    """Raise when the stream is being put back to a snapshot.

    Raises:
        StreamStateError: it is.
    """
    for job in find_active_jobs(connection, RESTORE, stream_subject(stream)):
        snapshot = job.request["snapshot_id"]
        raise StreamStateError(f"{stream} is being rolled back to {snapshot}.", stream=stream, restore=job.id)


def abandon_update(connection: Connection, stream: str, now: datetime, *, actor: str, wanted: Wanted) -> None:
    """End the update of a stream that is to end; in the middle of a hand-over its agent does so after it."""
    living = _living_update(connection, stream)
    if living is None or living.state.is_handing:
        return
    fault = living.abandoned(wanted)
    ended = UpdateState.FAILED
    _UPDATES.update(connection, living.id, state=ended, error=fault, finished_at=now, changed_at=now)
    _append(connection, living, now, actor=actor, what=f"update {living.id} {ended}", why=fault.message)


def _give_stream(connection: Connection, update: StreamUpdate, now: datetime) -> None:
    """Make the process that takes over the stream's newest one, and its release and options the stream's."""
    is_forward = update.state is UpdateState.HANDING_OVER
    update_stream(
        connection,
        update.stream,
        release=update.request.release if is_forward else update.from_release,
        options=update.to_options if is_forward else update.back_options,
        instance_id=update.instance_id,
        version=MANAGED_STREAMS.c.version + 1,
        changed_at=now,
    )
    what = f"started {update.instance_id}"
    fields = {"instance_id": update.instance_id}
    _append(connection, update, now, actor="agent", what=what, kind=StreamEventType.STARTED, **fields)


def _runnable_stream(connection: Connection, name: str, now: datetime) -> StreamRecord:
    record = get_record(connection, name, now, for_update=True)
    check_living(record, ": launch it with the other release.")
    if record.wanted is not Wanted.RUNNING:
        message = f"{name} has the wanted state {record.wanted}, so it can't be changed."
        raise StreamStateError(message, wanted=record.wanted)
    return record


def _living_update(connection: Connection, stream: str) -> StreamUpdate | None:
    columns = STREAM_UPDATES.c
    query = sa.select(STREAM_UPDATES).where(columns.stream == stream, columns.state.in_(_LIVING))
    return _UPDATES.find(connection, query)


def _check_seen(connection: Connection, seen: StreamUpdate) -> None:
    found = _UPDATES.get(connection, seen.id, for_update=True)
    if found.state is not seen.state:
        raise StreamStateError(
            f"{found.id} is {found.state}, no longer {seen.state}.", update=found.id, state=found.state
        )


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
