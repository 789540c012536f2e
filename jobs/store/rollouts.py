"""Rollouts of streams as records: each step is written down together with what begins it."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store.managed_streams import ManagedStreams
from jobs.store.rows import Records
from jobs.store.stream_rows import get_record
from jobs.store.stream_updates import begin, check_not_going_back, check_not_rolling_out, check_not_updating
from jobs.store.tables import ROLLOUTS
from model.errors import (
    RolloutInProgressError,
    RolloutNotFoundError,
    RolloutRefusedError,
    RolloutStateError,
    StreamStateError,
)
from model.fault import FaultRecord
from model.job import new_job_id
from model.rollout_record import (
    NewRollout,
    Rollout,
    RolloutSide,
    RolloutState,
    RolloutStep,
)
from model.stream_record import StreamRecord, Wanted
from model.stream_update import UpdateRequest
from model.typed import to_plain

# A drain may be bounded by more; a batch in hand is committed long before.
_DRAIN_SECONDS: Final = 120.0
_MOST: Final = 1000
_ROLLOUTS: Final = Records(ROLLOUTS, Rollout, "rollout", RolloutNotFoundError)


class Rollouts(ManagedStreams):
    """Keeps a record of each rollout; a stream has one at most that has not ended.

    Every replica may carry any of them out. A step names the version that its caller has seen, and what it does to
    the stream (a drain, a launch, an update) happens in the same transaction: of two replicas, or of one that was
    killed and the one that follows it, exactly one takes the step.
    """

    def create_rollout(self, new: NewRollout, *, actor: str) -> Rollout:
        """Keep a PENDING rollout of what runs; the same manifest and digest give back the first one.

        Raises:
            StreamNotFoundError, StreamStateError: there is no such stream, or it does not run.
            RolloutRefusedError: something else runs than it says; ``details["errors"]`` has every difference.
            RolloutInProgressError, UpdateInProgressError: another rollout or an update has not ended.
        """
        with self._database.write("manifests") as connection:
            if new.reverses is None and (made := _find_made(connection, new.manifest, new.digest)) is not None:
                return made
            return add_rollout(connection, self._database.now(connection), new, actor=actor)

    def get_rollout(self, rollout_id: str) -> Rollout:
        """Return the rollout.

        Raises:
            RolloutNotFoundError: there is none; any call that names one may raise it.
        """
        with self._database.read() as connection:
            return _ROLLOUTS.get(connection, rollout_id)

    def list_rollouts(
        self, *, manifest: str | None = None, stream: str | None = None, living: bool = False, limit: int = _MOST
    ) -> list[Rollout]:
        """Return rollouts, newest first: all, those of a manifest or a stream, or those that have not ended."""
        columns = ROLLOUTS.c
        query = sa.select(ROLLOUTS).order_by(columns.id.desc()).limit(limit)
        if manifest is not None:
            query = query.where(columns.manifest == manifest)
        if stream is not None:
            query = query.where(columns.stream == stream)
        if living:
            query = query.where(columns.finished_at.is_(None))
        with self._database.read() as connection:
            return _ROLLOUTS.find_all(connection, query)

    def advance_rollout(
        self,
        seen: Rollout,
        state: RolloutState,
        *,
        why: str | None = None,
        error: FaultRecord | None = None,
        **changes: Any,
    ) -> Rollout:
        """Go from the step that the caller has ``seen`` to ``state``; ``changes`` are columns of the record.

        Raises:
            RolloutStateError: it has changed meanwhile.
        """
        with self._database.write() as connection:
            _check_seen(connection, seen)
            now = self._database.now(connection)
            reason = why if error is None else str(error)
            # The first reason is the one that counts.
            if error is not None and seen.error is None:
                changes["error"] = error
            if state.is_ended:
                changes["finished_at"] = now
            steps = [*seen.steps, RolloutStep(state, now, reason)]
            return _change(connection, seen, **changes, state=state, changed_at=now, steps=steps)

    def drain_for_rollout(
        self, seen: Rollout, state: RolloutState, *, error: FaultRecord | None = None, **changes: Any
    ) -> Rollout:
        """Take the step to ``state`` and want the stream DRAINED by it.

        Raises:
            RolloutStateError: the rollout has changed meanwhile.
            RolloutRefusedError: the stream is not what the rollout knows of it.
            StreamStateError: it has ended, or is being cancelled.
        """
        with self._database.write() as connection:
            now = self._database.now(connection)
            _check_seen(connection, seen)
            _check_own(get_record(connection, seen.stream, now, for_update=True), seen)
            self.end_stream(
                seen.stream,
                Wanted.DRAINED,
                actor=seen.actor,
                timeout_seconds=_DRAIN_SECONDS,
                why=f"{seen.id} {state}",
            )
            return self.advance_rollout(seen, state, error=error, **changes)

    def launch_for_rollout(
        self,
        seen: Rollout,
        state: RolloutState,
        side: RolloutSide,
        *,
        guard: Callable[[StreamRecord, Sequence[StreamRecord]], None] = lambda _record, _living: None,
    ) -> Rollout:
        """Take the step to ``state`` and launch the drained stream as ``side``.

        ``guard`` gets the stream and all that run.

        Raises:
            RolloutStateError: the rollout has changed meanwhile.
            StreamExistsError: somebody else has launched it, or what does its work.
        """
        with self._database.write("launch stream") as connection:
            now = self._database.now(connection)
            _check_seen(connection, seen)
            record = get_record(connection, seen.stream, now, for_update=True)
            made = self.launch_stream(
                seen.stream,
                record.kind,
                actor=seen.actor,
                release=side.release,
                options=side.options,
                why=f"{seen.id} {state}",
                guard=lambda living: guard(record, living),
            )
            return self.advance_rollout(seen, state, generation=made.generation)

    def update_for_rollout(
        self,
        seen: Rollout,
        state: RolloutState,
        request: UpdateRequest,
        *,
        error: FaultRecord | None = None,
        **changes: Any,
    ) -> Rollout:
        """Take the step to ``state`` and begin an update of the stream.

        Raises:
            RolloutStateError: the rollout has changed meanwhile.
            RolloutRefusedError: the stream is not what the rollout knows of it.
            StreamStateError, UpdateInProgressError: it does not run, or is updated already.
        """
        with self._database.write("create update") as connection:
            now = self._database.now(connection)
            _check_seen(connection, seen)
            _check_own(get_record(connection, seen.stream, now, for_update=True), seen)
            made = begin(connection, now, seen.stream, request, actor=seen.actor)
            return self.advance_rollout(seen, state, error=error, **changes, update_id=made.id)

    def note_rollout(self, seen: Rollout, **changes: Any) -> Rollout:
        """Change columns of the record at the step that the caller has ``seen``.

        Raises:
            RolloutStateError: it has changed meanwhile.
        """
        with self._database.write() as connection:
            _check_seen(connection, seen)
            return _change(connection, seen, **changes)


def add_rollout(connection: Connection, now: datetime, new: NewRollout, *, actor: str) -> Rollout:
    """Keep a rollout as :meth:`Rollouts.create_rollout` does, within what its caller changes.

    Raises:
        RefeedError: as there.
    """
    record = get_record(connection, new.stream, now, for_update=True)
    check_not_rolling_out(connection, new.stream)
    check_not_updating(connection, new.stream)
    check_not_going_back(connection, new.stream)
    _check_runs(record, new.from_side)
    return _ROLLOUTS.insert(
        connection,
        id=new_job_id("ro"),
        **to_plain(new),
        state=RolloutState.PENDING,
        steps=[RolloutStep(RolloutState.PENDING, now, None)],
        version=1,
        generation=record.generation,
        created_by=actor,
        created_at=now,
        changed_at=now,
    )


def _find_made(connection: Connection, manifest: str, digest: str) -> Rollout | None:
    columns = ROLLOUTS.c
    query = sa.select(ROLLOUTS).where(
        columns.manifest == manifest, columns.digest == digest, columns.reverses.is_(None)
    )
    return _ROLLOUTS.find(connection, query.limit(1))


def is_tried(connection: Connection, manifest: str, digest: str) -> bool:
    """Whether the last rollout that the manifest began was of this content."""
    columns = ROLLOUTS.c
    query = (
        sa.select(columns.digest)
        .where(columns.manifest == manifest, columns.reverses.is_(None))
        .order_by(columns.id.desc())
        .limit(1)
    )
    return bool(connection.scalar(query) == digest)


def check_manifest_free(connection: Connection, manifest: str) -> None:
    """Raise when a rollout of the manifest has not ended.

    Raises:
        RolloutInProgressError: there is one; ``details["rollout"]`` names it.
    """
    columns = ROLLOUTS.c
    query = sa.select(columns.id, columns.state).where(columns.manifest == manifest, columns.finished_at.is_(None))
    row = connection.execute(query).first()
    if row is not None:
        raise RolloutInProgressError(
            f"{row.id} of {manifest} is {row.state}. Wait for the end of the rollout, or cancel it with "
            f"'refeed rollout cancel {row.id}'.",
            rollout=row.id,
            state=row.state,
        )


def _check_runs(record: StreamRecord, side: RolloutSide) -> None:
    """Raise unless the stream runs, as ``side`` says.

    Raises:
        StreamStateError: it has ended, or is to end.
        RolloutRefusedError: it runs as something else.
    """
    if not record.is_living or record.wanted is not Wanted.RUNNING:
        state = record.state if not record.is_living else f"to be {record.wanted}"
        raise StreamStateError(f"{record.name} is {state}. A rollout needs a running stream.", state=record.state)
    differences = side.differences(RolloutSide(record.release, record.options))
    if differences:
        told = "; ".join(
            f"{name} is {_shown(name, runs)}, but in 'from' it is {_shown(name, said)}"
            for name, (said, runs) in differences.items()
        )
        errors = [
            {
                "code": "from_differs",
                "pointer": "/from/" + name.replace(".", "/"),
                "message": f"{name} is {_shown(name, runs)}.",
            }
            for name, (_, runs) in differences.items()
        ]
        raise RolloutRefusedError(
            f"{record.name} does not run with the release and options in 'from': {told}.", errors=errors
        )


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "the installed one" if name == "release" else "not set"
    return str(value)


def _check_own(record: StreamRecord, rollout: Rollout) -> None:
    """Raise unless the stream is the launch that the rollout knows, as the side that it is to leave.

    Raises:
        StreamStateError: it has ended, is to end, or was launched again.
        RolloutRefusedError: it runs as something else.
    """
    if rollout.generation is not None and record.generation != rollout.generation:
        message = f"{record.name} was launched again while {rollout.id} was {rollout.state}."
        raise StreamStateError(message, state=record.state)
    _check_runs(record, rollout.from_side if rollout.state is RolloutState.PENDING else rollout.to_side)


def _check_seen(connection: Connection, seen: Rollout) -> None:
    found = _ROLLOUTS.get(connection, seen.id, for_update=True)
    if found.version != seen.version:
        raise RolloutStateError(
            f"{seen.id} is {found.state} at version {found.version}, no longer {seen.state} at {seen.version}.",
            rollout=seen.id,
            state=found.state,
        )


def _change(connection: Connection, seen: Rollout, **changes: Any) -> Rollout:
    return _ROLLOUTS.update(connection, seen.id, version=seen.version + 1, **changes)
