"""Updates of streams: jobs in steps, and what their steps change of their streams."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from jobs.store.events import STREAM, append_event
from jobs.store.records import Idempotency, Job
from jobs.store.rows import Records
from jobs.store.step_jobs import (
    RESTORE,
    UPDATE,
    StepJobs,
    begin_job,
    end_job,
    find_active_jobs,
    of_kind,
    stream_subject,
)
from jobs.store.stream_rows import check_living, check_runs, check_versions, get_record, update_stream
from jobs.store.tables import JOBS, MANAGED_STREAMS
from model.errors import (
    JobChangedError,
    StreamStateError,
    UpdateInProgressError,
    UpdateNotFoundError,
)
from model.event import HistoryEventType
from model.fault import FaultRecord
from model.job import JobState
from model.rollout_record import RolloutSide
from model.stream_record import StreamState, Wanted
from model.stream_update import (
    UNWANTED,
    UPDATE_STEPS,
    StreamUpdate,
    UpdateFault,
    UpdateManifest,
    UpdateRequest,
    UpdateState,
)
from model.typed import field_readers

_UPDATES: Final = Records(JOBS, Job, "update", UpdateNotFoundError)
_CHECK: Final = next(iter(UPDATE_STEPS))
_STANDS_BY: Final = frozenset({"stand_by", "back_stand_by"})
# Whoever wants an update taken back now is heard when the step ends.
_DECIDED_LATER: Final = frozenset({UpdateState.HANDING_OVER, UpdateState.STOPPING})
_READERS: Final = field_readers(StreamUpdate)
# The fields of an update that its steps find, by their names in the job's memory.
_REMEMBERED: Final = (
    "checked",
    "snapshot_id",
    "instance_id",
    "outgoing_id",
    "handed_over_at",
    "paused_seconds",
    "figures",
    "replay",
    "error",
    "unwanted_by",
)
MANIFEST_LABEL: Final = JOBS.c.labels["manifest"].as_string()
_OUTCOMES: Final = {JobState.SUCCEEDED: UpdateState.STABLE, JobState.CANCELLED: UpdateState.ROLLED_BACK}


class StreamUpdates(StepJobs):
    """Keeps updates, which are jobs; a stream has one at most that has not ended.

    The agent that holds the stream carries the update out. The steps that hand the stream over change its record
    in the transaction that begins them: its release, its options and its newest process.
    """

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
        manifest: UpdateManifest | None = None,
        from_side: RolloutSide | None = None,
        reverses: str | None = None,
    ) -> StreamUpdate:
        """Have a living stream updated; the same key with the same fingerprint gives back the first update.

        What ``guard`` raises keeps a new one from being made. ``manifest`` asks for it, with ``from_side`` as
        what has to run; or it ``reverses`` another update.

        Raises:
            StreamNotFoundError: there never was such a stream.
            StreamStateError: it has ended or is to end, or is being put back to a snapshot.
            UpdateInProgressError: another update of it has not ended; ``details["update"]`` names it.
            RolloutRefusedError: something else than ``from_side`` runs; the details have every difference.
            IdempotencyKeyReusedError: the key was used with another fingerprint.
            StreamChangedError: the stream is at none of ``versions``, and the key has made nothing before.
        """
        with self._database.write("create update") as connection:
            key = of_kind(idempotency, UPDATE)
            before = _UPDATES.find_made(connection, key, actor=actor, detail="update")
            if before is not None:
                return update_of(before)
            guard()
            made = begin(
                connection,
                self._database.now(connection),
                stream,
                request,
                actor=actor,
                why=why,
                idempotency=idempotency,
                versions=versions,
                manifest=manifest,
                from_side=from_side,
                reverses=reverses,
            )
            return update_of(made)

    def get_update(self, update_id: str) -> StreamUpdate:
        """Return the update.

        Raises:
            UpdateNotFoundError: there is none; any call that names one may raise it.
        """
        with self._database.read() as connection:
            return update_of(_get(connection, update_id))

    def list_updates(
        self,
        stream: str | None = None,
        *,
        manifest: str | None = None,
        living: bool = False,
        ended_since: datetime | None = None,
    ) -> list[StreamUpdate]:
        """Return updates, newest first: all, or those of one stream or manifest, or those that have not ended.

        With ``ended_since`` those that have not ended, and those that ended since then.
        """
        about = None if stream is None else stream_subject(stream)
        with self._database.read() as connection:
            found = find_active_jobs(connection, UPDATE, about)
            if not living:
                query = sa.select(JOBS).where(JOBS.c.kind == UPDATE, JOBS.c.finished_at.is_not(None))
                if about is not None:
                    query = query.where(JOBS.c.subject == about)
                if manifest is not None:
                    query = query.where(manifest == MANIFEST_LABEL)
                if ended_since is not None:
                    query = query.where(JOBS.c.finished_at >= ended_since)
                found += _UPDATES.find_all(connection, query)
        if manifest is not None:
            found = [job for job in found if _asked_by(job).get("manifest") == manifest]
        # An id begins with its kind, and then has the time at which it was made.
        return sorted(map(update_of, found), key=lambda update: update.id.partition("_")[2], reverse=True)

    def take_update_back(
        self,
        update_id: str,
        fault: UpdateFault,
        *,
        actor: str,
        may_stay: bool = False,
        versions: Collection[int] | None = None,
    ) -> StreamUpdate:
        """Have an update taken back, as far as it has come: it ends, or the stream is handed back.

        In the middle of a hand-over or a stop this is only noted, and its agent decides. With ``may_stay`` a
        release without a way back stays, and the update is FAILED.

        Raises:
            StreamStateError: it has ended, goes back already, or has no way back.
            JobChangedError: it is at none of ``versions``.
        """
        with self._database.write_now() as (connection, now):
            # Lock the stream before its update, as ending a stream does; another order could deadlock.
            get_record(connection, _get(connection, update_id).request["stream"], now, for_update=True)
            job = _get(connection, update_id, for_update=True)
            if versions is not None and job.version not in versions:
                raise JobChangedError(f"{update_id} is at version {job.version}.", version=job.version)
            update = update_of(job)
            memory = {"error": fault, "unwanted_by": actor}
            if update.state.is_before_hand_over:
                return _end(connection, job, UpdateState.ROLLED_BACK, now, memory, actor=actor)
            if update.state in _DECIDED_LATER:
                if update.error is not None:
                    return update
                what = f"update {update_id} to be rolled back"
                _append(connection, update, now, actor=actor, what=what)
                return update_of(self.note_step(job, memory))
            is_taken = update.state in {UpdateState.WATCHING, UpdateState.RESTARTING}
            if is_taken and update.has_way_back:
                begun = self.begin_step(
                    job,
                    first_step_back(update.request),
                    owner=None,
                    memory=memory,
                    entered=lambda job: self.enter_update_step(job, str(fault), actor=actor),
                    actor=actor,
                )
                return update_of(begun)
            if update.state is UpdateState.WATCHING and may_stay:
                return _end(connection, job, UpdateState.FAILED, now, memory, actor=actor)
        if update.state is not UpdateState.WATCHING:
            message = f"{update_id} is {update.state}. It can be rolled back only until it is STABLE."
        else:
            reasons = "; ".join((update.checked or {}).get("no_way_back", ()))
            message = f"{update_id} can't be rolled back. The check before the update found the reason: {reasons}."
        raise StreamStateError(message, update=update_id, state=update.state.value)

    def enter_update_step(self, job: Job, why: str | None, *, actor: str = "agent") -> None:
        """Write down for its stream that an update has begun a step; a hand-over gives the stream away."""
        if job.step == _CHECK:
            return
        with self._database.write() as connection:
            update = update_of(job)
            now = update.changed_at
            if update.state.is_handing or update.state.is_restarting:
                _give_stream(connection, update, now)
            _append(connection, update, now, actor=actor, what=f"update {update.id} {update.state}", why=why)

    def end_update(self, job: Job) -> None:
        """Write down for its stream that an update has ended."""
        with self._database.write() as connection:
            _append_end(connection, job, actor="agent")


def update_of(job: Job) -> StreamUpdate:
    """Return a job of the kind update as people see it."""
    request, memory = job.request, job.memory
    asked = _asked_by(job)
    # At a step of a later release it may have the stream already: only a way back is sure to be right.
    state = UPDATE_STEPS.get(job.step or "", UpdateState.WATCHING)
    if job.state.is_final:
        state = UpdateState(memory.get("outcome") or _OUTCOMES.get(job.state, UpdateState.FAILED))
    kept = {name: _READERS[name](memory[name]) for name in _REMEMBERED if name in memory}
    before = kept.get("error")
    if job.error is not None and (before is None or str(before) != str(job.error)):
        # A step failed in a way that it does not know, maybe on the way back from another fault.
        why = "" if before is None else f" Before that: {before.message}"
        logs = {} if before is None else before.logs
        kept["error"] = UpdateFault(job.error.code, f"{job.error.message}{why}", logs)
    # Only processes that stood by are counted; the way back begins with none.
    stood_by, _, attempts = str(memory.get("standby", "")).partition("/")
    is_counted = job.step not in _STANDS_BY or job.step == stood_by
    return StreamUpdate(
        job.id,
        request["stream"],
        request["generation"],
        state,
        UpdateRequest.from_json(request["update"]),
        request["from_release"],
        request["from_options"],
        job.created_by,
        job.created_at,
        job.finished_at or job.step_began_at or job.created_at,
        attempts=int(attempts or 0) if is_counted else 0,
        finished_at=job.finished_at,
        manifest=UpdateManifest(asked["manifest"], asked["digest"], asked["generation"]) if asked else None,
        # An earlier release kept it with the manifest.
        reverses=request.get("reverses", asked.get("reverses")),
        **kept,
    )


def _asked_by(job: Job) -> Mapping[str, Any]:
    """Return what is known of the manifest that asked for an update; nothing where none did."""
    return job.request.get("rollout") or {}


def first_step_back(request: UpdateRequest) -> str:
    """Return the step with which the way back begins."""
    return "back_stop" if request.is_restart else "back_stand_by"


def standby_name(job: Job) -> str:
    """Return which attempt of which step a process that stands by belongs to."""
    return f"{job.step}/{job.attempt}"


def begin(
    connection: Connection,
    now: datetime,
    stream: str,
    request: UpdateRequest,
    *,
    actor: str,
    why: str | None = None,
    idempotency: Idempotency | None = None,
    versions: Collection[int] | None = None,
    manifest: UpdateManifest | None = None,
    from_side: RolloutSide | None = None,
    reverses: str | None = None,
) -> Job:
    """Begin an update as :meth:`StreamUpdates.create_update` does, within what its caller changes.

    Raises:
        RolloutRefusedError: something else than ``from_side`` runs.
        StreamNotFoundError, StreamStateError, StreamChangedError, UpdateInProgressError: as there.
    """
    record = get_record(connection, stream, now, for_update=True)
    check_living(record, ": launch it with the other release.")
    if record.wanted is not Wanted.RUNNING:
        message = f"{stream} has the wanted state {record.wanted}, so it can't be changed."
        raise StreamStateError(message, wanted=record.wanted)
    check_versions(record, versions)
    check_not_updating(connection, stream)
    check_not_going_back(connection, stream)
    if from_side is not None:
        check_runs(record, from_side)
    labels = {} if reverses is None else {"reverses": reverses}
    asked: dict[str, Any] = {**labels}
    if manifest is not None:
        labels["manifest"] = manifest.name
        named = {"manifest": manifest.name, "generation": manifest.version, "digest": manifest.digest}
        asked["rollout"] = named
    job = begin_job(
        connection,
        now,
        kind=UPDATE,
        prefix="up" if manifest is None else "ro",
        labels=labels,
        subject=stream_subject(stream),
        step=_CHECK,
        request={
            "stream": stream,
            "generation": record.generation,
            "update": request.to_json(),
            "from_release": record.release,
            "from_options": dict(record.options),
            **asked,
        },
        actor=actor,
        idempotency=idempotency,
    )
    made = update_of(job)
    _append(connection, made, now, actor=actor, what=f"update {made.id} asked for", why=why or request.reason)
    return job


def check_not_updating(connection: Connection, stream: str) -> None:
    """Raise when the stream is being updated: two changes would undo each other.

    Raises:
        UpdateInProgressError: an update of it has not ended; the details name it.
    """
    for job in find_active_jobs(connection, UPDATE, stream_subject(stream)):
        raise in_progress(update_of(job))


def in_progress(update: StreamUpdate) -> UpdateInProgressError:
    """Return the error of what has to wait for the end of an update."""
    asked_by = "" if update.manifest is None else f", which the manifest {update.manifest.name} describes,"
    return UpdateInProgressError(
        f"The update {update.id} of {update.stream}{asked_by} is {update.state}. Wait for the end of the update, "
        f"or roll it back with 'refeed cancel {update.id}'.",
        stream=update.stream,
        update=update.id,
        state=update.state,
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
    for seen in find_active_jobs(connection, UPDATE, stream_subject(stream)):
        # Read once more, held: a step may have noted something meanwhile.
        job = _get(connection, seen.id, for_update=True)
        update = update_of(job)
        if not update.state.is_handing and not update.state.is_ended:
            memory = {"error": update.abandoned(wanted)}
            _end(connection, job, UpdateState.FAILED, now, memory, actor=actor)


def _give_stream(connection: Connection, update: StreamUpdate, now: datetime) -> None:
    """Make one side of an update the stream's, and its newest process the one that takes over, where one does."""
    is_forward = update.state in {UpdateState.HANDING_OVER, UpdateState.RESTARTING}
    # Without a process that takes over, the agent starts the stream as after a launch.
    is_handing = update.state.is_handing
    newest = {"instance_id": update.instance_id} if is_handing else {"state": StreamState.STARTING, "error": None}
    update_stream(
        connection,
        update.stream,
        release=update.request.release if is_forward else update.from_release,
        options=update.to_options if is_forward else update.back_options,
        version=MANAGED_STREAMS.c.version + 1,
        changed_at=now,
        **newest,
    )
    if not is_handing:
        return
    what = f"started {update.instance_id}"
    fields = {"instance_id": update.instance_id}
    _append(connection, update, now, actor="agent", what=what, kind=HistoryEventType.STARTED, **fields)


def _get(connection: Connection, update_id: str, *, for_update: bool = False) -> Job:
    job = _UPDATES.get(connection, update_id, for_update=for_update)
    if job.kind != UPDATE:
        raise UpdateNotFoundError(f"There is no update {update_id}.", id=update_id)
    return job


def _end(
    connection: Connection,
    job: Job,
    outcome: UpdateState,
    now: datetime,
    memory: Mapping[str, Any],
    *,
    actor: str,
) -> StreamUpdate:
    """End an update by what a person wants of it or of its stream; ``memory`` has the reason."""
    fault: UpdateFault = memory["error"]
    is_cancelled = fault.code == UNWANTED and outcome is not UpdateState.FAILED
    state = JobState.CANCELLED if is_cancelled else JobState.FAILED
    kept = {**job.memory, **memory, "outcome": outcome}
    error = FaultRecord(fault.code, fault.message)
    ended = end_job(connection, job, state, now, error=error, memory=kept, actor=actor)
    _append_end(connection, ended, actor=actor)
    return update_of(ended)


def _append_end(connection: Connection, job: Job, *, actor: str) -> None:
    update = update_of(job)
    assert update.finished_at is not None, "it has ended"
    why = job.memory.get("why") if update.error is None else str(update.error)
    what = f"update {update.id} {update.state}"
    _append(connection, update, update.finished_at, actor=actor, what=what, why=why)


def _append(
    connection: Connection,
    update: StreamUpdate,
    now: datetime,
    *,
    actor: str,
    what: str,
    kind: HistoryEventType = HistoryEventType.NOTED,
    **fields: Any,
) -> None:
    fields |= {"generation": update.generation, "update": update.id}
    append_event(connection, STREAM, update.stream, kind, now, actor=actor, what=what, **fields)
