"""Carries out jobs in steps: one runner knows every bound, so that a kind is its steps and nothing else."""

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
    """Where an agent carries out a job."""

    @property
    def agent(self) -> str | None:
        """Who holds the job's stream; None where nobody has to."""
        ...


Place = TypeVar("Place", bound=JobPlace)
# Somebody else changed the job, or forgot it after its end, or holds its stream now: it is theirs to go on.
_OVERTAKEN: Final = (JobChangedError, JobNotFoundError, LeaseLostError)
_NOTHING: Final[Mapping[str, Any]] = {}
# A step that began later than now by more was written down by a clock that was ahead.
_AHEAD: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Stay:
    """The step is not over yet."""


@dataclass(frozen=True, slots=True)
class Again:
    """The attempt has failed: another one begins, if the step has one left."""

    why: str


@dataclass(frozen=True, slots=True)
class Next:
    """The step is over, and ``step`` is the next one; ``memory`` is what later steps are to know."""

    step: str
    memory: Mapping[str, Any] = field(default_factory=dict)
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The job is done."""

    memory: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fail:
    """The job ends without its result: FAILED, or CANCELLED where a person wanted that."""

    error: FaultRecord
    memory: Mapping[str, Any] = field(default_factory=dict)
    state: JobState = JobState.FAILED


# Where a step stands.
Found = Stay | Again | Next | Done | Fail


@dataclass(slots=True)
class StepRun(Generic[Place]):
    """One run of a step: the ``job`` as this run knows it, and the ``place`` of what it is about."""

    store: JobStore
    job: Job
    place: Place

    def note(self, memory: Mapping[str, Any]) -> None:
        """Keep in the job's memory what the step has done, so that its next run goes on from there.

        Raises:
            JobChangedError, JobNotFoundError, LeaseLostError: another run of the step noted something, the job
                ended, or another agent holds its stream: what this run finds no longer counts.
        """
        self.job = self.store.note_step(self.job, memory, owner=self.place.agent)


@dataclass(frozen=True, slots=True)
class Step(Generic[Place]):
    """A part of a job: written down before it begins, and begun again after a crash, so it must allow that.

    ``look`` returns where the step stands. It never waits, unless the step ``is_slow``: then it is called in a
    thread. After an error in ``passing``, which passes by itself, it is called again later; any other error ends
    the job FAILED.

    An attempt has ``seconds``, counted from what the store has, so that a process that hangs or crashes again and
    again comes to an end too. After the last of its ``attempts``, ``gave_up`` returns what comes then, and without
    it the job is FAILED.

    A thread that hangs may wake up after its attempt: what it does to the outside must be safe then. What it
    writes to the job is refused.
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
    """A kind of job as its steps, the first one first.

    ``entered`` is called within the transaction that begins a step, with the reason, and ``ended`` within the one
    that ends a job, so that its subject changes with it. With ``keep`` only as many jobs that ended are kept.
    """

    name: str
    steps: Sequence[Step[Place]]
    entered: Callable[[Job, str | None], None] = lambda *_: None
    ended: Callable[[Job], None] = lambda _: None
    keep: int | None = None

    def find(self, step: str | None) -> Step[Place] | None:
        """Return a step by its name; None for one of a later release."""
        return next((each for each in self.steps if each.name == step), None)


class StepRunner(Generic[Place]):
    """Carries out the jobs of some kinds, a step a look; several may share a store.

    Everything it knows is in the store, so it can die at any moment. What an agent finds about a stream that
    another agent holds by now is not kept. Of a stream, which a job's request names, one slow step is under way at
    a time, in ``threads``.
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
        """Bring each of the jobs one step further that has a place here, and return the jobs as they are then.

        A fault of one keeps no other from its step.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        if not jobs:
            return []
        now = self._store.now()
        return [self._look_at(job, find_place, now) for job in jobs]

    def carry_out(self, job: Job, place: Place) -> Job:
        """Take the step that the job is at, write down what comes of it, and return the job as it is then.

        Raises:
            RefeedError: something that passes by itself; a later call goes on.
            JobChangedError, JobNotFoundError, LeaseLostError: somebody else has the job meanwhile.
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
        """Write down what comes of an act of a step."""
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
        except Exception:  # noqa: BLE001 - it is this job's; the others get their steps
            _log.exception("job_not_looked_after", job=job.id, step=job.step)
        return job

    def _look(self, job: Job, place: Place, now: datetime) -> Job:
        kind = self._kinds[job.kind]
        # Each step comes once at most in a look.
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
        """Carry out a slow step, and the slow ones after it by later looks."""
        try:
            self.carry_out(job, place)
        except _OVERTAKEN as exc:
            _log.info("job_moved", job=job.id, why=exc.message)

    def _try_again(self, kind: StepKind[Place], step: Step[Place], run: StepRun[Place], error: FaultRecord) -> Job:
        """Begin another attempt of a step; after the last one comes what the step says."""
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
    """Return what an act of a step finds; an error that does not pass by itself ends the job."""
    try:
        return act(run)
    except _OVERTAKEN:
        raise
    except (RefeedError, OSError) as exc:
        if isinstance(exc, (*step.passing, StoreUnavailableError)):
            raise
        return Fail(FaultRecord.of(exc, "A file can't be written: "))
    except Exception as exc:  # whatever it is, it must not be raised again at every look
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
