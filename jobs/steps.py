"""Runs jobs in steps: one runner enforces every limit, so a kind of job is only its steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from jobs.store import Job, JobStore
from jobs.stream_threads import StreamThreads
from model import failpoint
from model.errors import (
    JobChangedError,
    JobNotFoundError,
    LeaseLostError,
    RefeedError,
    StepTimeoutError,
    StoreUnavailableError,
)
from model.fault import FaultRecord
from model.job import JobState

_log = structlog.get_logger(__name__)


class JobPlace(Protocol):
    """The place where an agent runs a job."""

    @property
    def agent(self) -> str | None:
        """The agent that holds the job's stream; None if the job needs no holder."""
        ...


Place = TypeVar("Place", bound=JobPlace)
# Another process changed the job, forgot it after its end, or holds its stream now, and continues it.
_OVERTAKEN: Final = (JobChangedError, JobNotFoundError, LeaseLostError)
_NOTHING: Final[Mapping[str, Any]] = {}
# A step whose begin is further in the future was recorded by a clock that was ahead.
_AHEAD: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Stay:
    """The step is not complete yet."""


@dataclass(frozen=True, slots=True)
class Again:
    """The attempt has failed; the next one begins, if the step has one left."""

    why: str


@dataclass(frozen=True, slots=True)
class Next:
    """The step is complete, and ``step`` is the next one; ``memory`` is data for later steps."""

    step: str
    memory: Mapping[str, Any] = field(default_factory=dict)
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The job is done."""

    memory: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fail:
    """The job ends without a result: FAILED, or CANCELLED if a person wanted that."""

    error: FaultRecord
    memory: Mapping[str, Any] = field(default_factory=dict)
    state: JobState = JobState.FAILED


# The results of a look.
Found = Stay | Again | Next | Done | Fail


@dataclass(slots=True)
class StepRun(Generic[Place]):
    """One run of a step: the ``job`` as this run last saw it, and the ``place`` of its stream."""

    store: JobStore
    job: Job
    place: Place

    def note(self, memory: Mapping[str, Any]) -> None:
        """Save the step's progress in the job's memory, so that its next run continues from there.

        Raises:
            JobChangedError, JobNotFoundError, LeaseLostError: another run of the step saved something, the job
                ended, or another agent holds its stream; the results of this run no longer count.
        """
        self.job = self.store.note_step(self.job, memory, owner=self.place.agent)


@dataclass(frozen=True, slots=True)
class Step(Generic[Place]):
    """A part of a job. It is recorded before it begins and begins again after a crash, so it must be idempotent.

    ``look`` returns the state of the step. It must not wait, unless the step ``is_slow``: then it runs in a
    thread. After a transient error, listed in ``passing``, it is called again later; any other error ends the job
    FAILED.

    An attempt has ``seconds``, counted from the begin in the store, so a step ends even if its process hangs or
    crashes repeatedly. After the last of its ``attempts`` the result of ``gave_up`` counts; by default the job is
    FAILED.

    A thread that hangs may wake up after its attempt has ended: its external effects must be safe then. Its
    writes to the job are refused.
    """

    name: str
    look: Callable[[StepRun[Place]], Found]
    seconds: float
    attempts: int = 1
    is_slow: bool = False
    passing: tuple[type[Exception], ...] = ()
    gave_up: Callable[[StepRun[Place], FaultRecord], Next | Done | Fail] = lambda _, error: Fail(error)


@dataclass(frozen=True, slots=True)
class StepKind(Generic[Place]):
    """A kind of job as the sequence of its steps.

    ``entered`` is called with the reason in the transaction that begins a step, and ``ended`` in the one that ends
    a job, so that the job's subject changes with it. With ``keep`` only that many ended jobs are kept.
    """

    name: str
    steps: Sequence[Step[Place]]
    entered: Callable[[Job, str | None], None] = lambda *_: None
    ended: Callable[[Job], None] = lambda _: None
    keep: int | None = None

    def find(self, step: str | None) -> Step[Place] | None:
        """Return a step by its name; None for a step of a later release."""
        return next((each for each in self.steps if each.name == step), None)


class StepRunner(Generic[Place]):
    """Runs the jobs of some kinds, step by step; several runners may share a store.

    All its state is in the store, so it can die at any moment. The store refuses an agent's results for a stream
    that another agent holds by now. For each stream, which a job's request names, one slow step runs at a time,
    in ``threads``.
    """

    def __init__(
        self,
        store: JobStore,
        kinds: Sequence[StepKind[Place]],
        threads: StreamThreads,
    ) -> None:
        self._store = store
        self._kinds = {kind.name: kind for kind in kinds}
        self._threads = threads

    def list_jobs(self) -> list[Job]:
        """Return the jobs that have not ended, oldest first.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        return self._store.list_step_jobs(self._kinds)

    def look(self, jobs: Sequence[Job], find_place: Callable[[Job], Place | None]) -> list[Job]:
        """Advance each job that has a place here, and return all jobs in their new state.

        A fault of one job does not stop the others.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        if not jobs:
            return []
        now = self._store.now()
        return [self._look_at(job, find_place, now) for job in jobs]

    def carry_out(self, job: Job, place: Place) -> Job:
        """Run the job's current step, record its result, and return the job in its new state.

        Raises:
            RefeedError: a transient error; a later call continues.
            JobChangedError, JobNotFoundError, LeaseLostError: another process has the job now.
        """
        kind = self._kinds[job.kind]
        step = kind.find(job.step)
        assert step is not None, "it was looked up before"
        return self._take(kind, step, StepRun(self._store, job, place), step.look)

    def _take(
        self,
        kind: StepKind[Place],
        step: Step[Place],
        run: StepRun[Place],
        act: Callable[[StepRun[Place]], Found],
    ) -> Job:
        """Record the result of ``act``, a call of the step."""
        found = _act(step, run, act)
        if isinstance(found, Stay):
            return run.job
        if isinstance(found, Again):
            return self._try_again(kind, step, run, FaultRecord(RefeedError.code, found.why).shown())
        failpoint.hit(f"{kind.name}.{step.name}.done")
        if isinstance(found, Next):
            return self._begin(kind, run.place, run.job, found.step, why=found.why, memory=found.memory)
        if isinstance(found, Fail):
            return self._end(kind, run, found.state, found.error, found.memory)
        return self._end(kind, run, JobState.SUCCEEDED, None, found.memory)

    def _look_at(self, job: Job, find_place: Callable[[Job], Place | None], now: datetime) -> Job:
        try:
            place = find_place(job)
            return job if place is None else self._look(job, place, now)
        except _OVERTAKEN as exc:
            _log.info("job_moved", job=job.id, why=exc.message)
        except StoreUnavailableError:
            raise
        except Exception:  # noqa: BLE001 - this job's; the others go on
            _log.exception("job_not_looked_after", job=job.id, step=job.step)
        return job

    def _look(self, job: Job, place: Place, now: datetime) -> Job:
        kind = self._kinds[job.kind]
        # A look takes each step at most once.
        for _ in kind.steps:
            step = kind.find(job.step)
            if step is None:
                break
            if job.state is JobState.PENDING:
                job = self._begin(kind, place, job, step.name)
            elif _is_late(job, step, now):
                job = self._end_attempt(kind, step, StepRun(self._store, job, place))
                if job.step != step.name:
                    continue
            if job.state.is_final:
                break
            if step.is_slow:
                self._threads.begin(_stream_of(job), job.id, partial(self._run, job, place))
                break
            job = self._take_fast(job, place, step)
            if job.state.is_final or job.step == step.name:
                break
        return job

    def _take_fast(self, job: Job, place: Place, step: Step[Place]) -> Job:
        try:
            return self.carry_out(job, place)
        except (RefeedError, OSError) as exc:
            if isinstance(exc, (*_OVERTAKEN, StoreUnavailableError)):
                raise
            _log.info("step_waits", job=job.id, step=step.name, error=str(exc))
            return job

    def _end_attempt(self, kind: StepKind[Place], step: Step[Place], run: StepRun[Place]) -> Job:
        """End an attempt that used up its time."""
        self._threads.abandon(_stream_of(run.job), run.job.id, older_than_seconds=step.seconds)
        why = f"The step {step.name} did not end within {step.seconds:g} s."
        return self._try_again(kind, step, run, FaultRecord(StepTimeoutError.code, why))

    def _run(self, job: Job, place: Place) -> None:
        """Run one slow step; later looks run the slow steps after it."""
        try:
            self.carry_out(job, place)
        except _OVERTAKEN as exc:
            _log.info("job_moved", job=job.id, why=exc.message)

    def _try_again(self, kind: StepKind[Place], step: Step[Place], run: StepRun[Place], error: FaultRecord) -> Job:
        """Begin another attempt of a step; after the last one the result of its ``gave_up`` counts."""
        job = run.job
        if job.attempt < step.attempts:
            _log.warning("step_failed_once", job=job.id, step=step.name, attempt=job.attempt, why=error.message)
            return self._begin(kind, run.place, job, step.name, why=error.message)
        tried = replace(error, message=f"{error.message} It was tried {job.attempt} times.")
        return self._take(kind, step, run, lambda last: step.gave_up(last, tried))

    def _begin(
        self,
        kind: StepKind[Place],
        place: Place,
        job: Job,
        step: str,
        *,
        why: str | None = None,
        memory: Mapping[str, Any] = _NOTHING,
    ) -> Job:
        begun = self._store.begin_step(
            job, step, owner=place.agent, why=why, memory=memory, entered=lambda job: kind.entered(job, why)
        )
        failpoint.hit(f"{kind.name}.{step}.entered")
        _log.info("step_began", job=job.id, step=step, attempt=begun.attempt)
        return begun

    def _end(
        self,
        kind: StepKind[Place],
        run: StepRun[Place],
        state: JobState,
        fault: FaultRecord | None,
        memory: Mapping[str, Any] = _NOTHING,
    ) -> Job:
        job = run.job
        ended = self._store.end_step_job(
            job,
            state,
            owner=run.place.agent,
            error=None if fault is None else FaultRecord(fault.code, fault.message).shown(),
            ended=kind.ended,
            keep=kind.keep,
            memory=memory,
        )
        _log.info(
            "job_ended", job=job.id, kind=job.kind, state=state.value, why=None if fault is None else str(fault)
        )
        return ended


def _act(step: Step[Place], run: StepRun[Place], act: Callable[[StepRun[Place]], Found]) -> Found:
    """Return the result of ``act``; an error that is not transient ends the job."""
    try:
        return act(run)
    except _OVERTAKEN:
        raise
    except (RefeedError, OSError) as exc:
        if isinstance(exc, (*step.passing, StoreUnavailableError)):
            raise
        return Fail(FaultRecord.of(exc, "A file can't be written: "))
    except Exception as exc:  # it must not be raised again at every look
        if isinstance(exc, step.passing):
            raise
        _log.exception("step_failed", job=run.job.id, step=step.name)
        message = f"The step {step.name} failed ({type(exc).__name__}). The agent's log has the reason."
        return Fail(FaultRecord(RefeedError.code, message))


def _is_late(job: Job, step: Step[Place], now: datetime) -> bool:
    assert job.step_began_at is not None, "it is RUNNING"
    return not -_AHEAD <= now - job.step_began_at < timedelta(seconds=step.seconds)


def _stream_of(job: Job) -> str:
    return str(job.request["stream"])
