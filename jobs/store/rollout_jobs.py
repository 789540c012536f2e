"""Rollouts of streams: updates that a manifest asked for, each with what is known of the manifest."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store.job_rows import JOB_RECORDS
from jobs.store.records import Idempotency, Job
from jobs.store.rows import Records, read_row
from jobs.store.step_jobs import UPDATE, find_active_jobs, of_kind, stream_subject
from jobs.store.stream_rows import get_record
from jobs.store.stream_updates import StreamUpdates, begin, check_not_updating, update_of
from jobs.store.tables import EVENTS, JOBS
from model.errors import (
    RolloutInProgressError,
    RolloutNotFoundError,
    RolloutRefusedError,
    StreamStateError,
)
from model.event import HistoryEvent, HistoryEventType
from model.rollout_record import (
    NewRollout,
    Rollout,
    RolloutSide,
    RolloutState,
    RolloutStep,
    rollout_state,
    step_state,
)
from model.stream_record import StreamRecord, Wanted
from model.stream_update import StreamUpdate

_MOST: Final = 1000
_ROLLOUTS: Final = Records(JOBS, Job, "rollout", RolloutNotFoundError)
_MANIFEST: Final = JOBS.c.labels["manifest"].as_string()
# A reversal is of a manifest, and no content that was tried.
_IS_REVERSAL: Final = JOBS.c.labels["reverses"].as_string().is_not(None)


class RolloutJobs(StreamUpdates):
    """Begins and finds the updates that are rollouts; each is carried out as any other update of its stream."""

    def create_rollout(self, new: NewRollout, *, actor: str, idempotency: Idempotency | None = None) -> Rollout:
        """Begin a rollout of what runs; the same key gives back the first one.

        Raises:
            StreamNotFoundError, StreamStateError: there is no such stream, or it does not run.
            RolloutRefusedError: something else runs than it says; ``details["errors"]`` has every difference.
            RolloutInProgressError, UpdateInProgressError: another rollout or an update has not ended.
            IdempotencyKeyReusedError: the key was used with another fingerprint.
        """
        with self._database.write("manifests") as connection:
            key = of_kind(idempotency, UPDATE)
            job = _ROLLOUTS.find_made(connection, key, actor=actor, detail="rollout")
            if job is None:
                now = self._database.now(connection)
                job = add_rollout(connection, now, new, actor=actor, idempotency=idempotency)
            return _rollouts_of(connection, [job])[0]

    def get_rollout(self, rollout_id: str) -> Rollout:
        """Return the rollout.

        Raises:
            RolloutNotFoundError: there is none; any call that names one may raise it.
        """
        with self._database.read() as connection:
            found = [_ROLLOUTS.get(connection, rollout_id)]
            if "rollout" not in found[0].request:
                raise RolloutNotFoundError(f"There is no rollout {rollout_id}.", id=rollout_id)
            return _rollouts_of(connection, found)[0]

    def list_rollouts(
        self, *, manifest: str | None = None, stream: str | None = None, limit: int = _MOST
    ) -> list[Rollout]:
        """Return rollouts, newest first: all, or those of a manifest or a stream."""
        query = sa.select(JOBS).where(JOBS.c.kind == UPDATE, _MANIFEST.is_not(None))
        query = query.order_by(JOBS.c.id.desc()).limit(limit)
        if manifest is not None:
            query = query.where(manifest == _MANIFEST)
        if stream is not None:
            query = query.where(JOBS.c.subject == stream_subject(stream))
        with self._database.read() as connection:
            return _rollouts_of(connection, _ROLLOUTS.find_all(connection, query))


def add_rollout(
    connection: Connection,
    now: datetime,
    new: NewRollout,
    *,
    actor: str,
    generation: int | None = None,
    idempotency: Idempotency | None = None,
) -> Job:
    """Begin a rollout as :meth:`RolloutJobs.create_rollout` does, within what its caller changes.

    Raises:
        RefeedError: as there.
    """
    record = get_record(connection, new.stream, now, for_update=True)
    check_not_updating(connection, new.stream)
    _check_runs(record, new.from_side)
    asked: dict[str, Any] = {"manifest": new.manifest, "generation": generation, "digest": new.digest}
    asked |= {"document": dict(new.document), "reverses": new.reverses}
    why = f"the rollout {new.manifest}"
    return begin(
        connection, now, new.stream, new.update, actor=actor, why=why, idempotency=idempotency, rollout=asked
    )


def is_tried(connection: Connection, manifest: str, digest: str) -> bool:
    """Whether the last rollout that the manifest began was of this content."""
    query = sa.select(JOBS).where(JOBS.c.kind == UPDATE, manifest == _MANIFEST, ~_IS_REVERSAL)
    last = JOB_RECORDS.find(connection, query.order_by(JOBS.c.id.desc()).limit(1))
    return last is not None and last.request["rollout"]["digest"] == digest


def check_manifest_free(connection: Connection, manifest: str) -> None:
    """Raise when a rollout of the manifest has not ended.

    Raises:
        RolloutInProgressError: there is one; ``details["rollout"]`` names it.
    """
    for update in map(update_of, find_active_jobs(connection, UPDATE)):
        if update.manifest == manifest:
            state = rollout_state(update)
            raise RolloutInProgressError(
                f"{update.id} of {manifest} is {state}. Wait for the end of the rollout, or cancel it with "
                f"'refeed cancel {update.id}'.",
                rollout=update.id,
                state=state,
            )


def _rollouts_of(connection: Connection, jobs: Sequence[Job]) -> list[Rollout]:
    """Return the rollouts that jobs are, each with its steps."""
    columns = EVENTS.c
    query = sa.select(EVENTS).where(columns.resource == UPDATE, columns.id.in_([each.id for each in jobs]))
    query = query.where(columns.type == HistoryEventType.STEP).order_by(columns.number)
    begun: dict[str, list[HistoryEvent]] = {each.id: [] for each in jobs}
    for row in connection.execute(query):
        begun[row.id].append(read_row(HistoryEvent, row))
    return [_rollout_of(each, begun[each.id]) for each in jobs]


def _rollout_of(job: Job, begun: Sequence[HistoryEvent]) -> Rollout:
    update, asked = update_of(job), job.request["rollout"]
    return Rollout(update, **asked, steps=tuple(_steps_of(update, begun, job.memory)))


def _steps_of(update: StreamUpdate, begun: Sequence[HistoryEvent], memory: Mapping[str, Any]) -> list[RolloutStep]:
    """Return the states that a rollout went through, each with when it was entered first and why."""
    steps = [RolloutStep(RolloutState.PENDING, update.created_at, None)]
    for event in begun:
        state = step_state(str(event.fields["step"]), is_restart=update.request.is_restart)
        if state is not steps[-1].state:
            steps.append(RolloutStep(state, event.at, event.why))
    if update.finished_at is not None:
        why = memory.get("why") if update.error is None else str(update.error)
        steps.append(RolloutStep(rollout_state(update), update.finished_at, why))
    return steps


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
