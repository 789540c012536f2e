"""Supervises jobs: launches waiting jobs, follows running ones, restarts dead drivers."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import structlog

from jobs.cleaning import clean_folders
from jobs.driver_watch import DriverWatch
from jobs.folder import Control, JobFolder, JobFolders, Order, Outcome
from jobs.kinds import JobKind
from jobs.launcher import Launch, Launcher
from jobs.lease_owner import LeaseOwner
from jobs.loop import BackgroundLoop
from jobs.periodic import CLEAN_SECONDS, PeriodicTask, PeriodicTasks
from jobs.renewal import Renewal
from jobs.store import Job, JobStore
from model.errors import (
    JobChangedError,
    JobStateError,
    LeaseLostError,
    RefeedError,
    SelectionGoneError,
    StoreUnavailableError,
)
from model.failure import fixed_sentence, safe_message
from model.fault import FaultRecord
from model.job import JobState

# The actors of history lines: the service by itself, and a driver.
ACTOR: Final = "refeed"
DRIVER: Final = "driver"
_TICK_SECONDS: Final = 0.5
LEASE_SECONDS: Final = 20.0
_KEEP: Final = timedelta(days=30)
# A schedule of every minute makes 130,000 jobs in this time.
_KEEP_RECORDS: Final = timedelta(days=90)
_KEPT_RECORDS: Final = 1000
_CANCEL_SECONDS: Final = 4.0
# Requests under way at a job's end still get answers, which their tasks record.
_SETTLE_SECONDS: Final = 5.0
# Seconds before each automatic restart of a dead driver; their number is the limit of restarts.
_RESTART_WAITS_SECONDS: Final = (1.0, 5.0, 25.0)

_ORDERS: Final[Mapping[JobState, Order]] = {
    JobState.RUNNING: Order.RUN,
    JobState.PAUSED: Order.PAUSE,
    JobState.CANCELLING: Order.STOP,
}
# Another process changed the job or holds it now, and continues it.
_OVERTAKEN: Final = (JobStateError, JobChangedError, LeaseLostError)

_LOG: Final = structlog.get_logger()


class JobSupervisor:
    """Supervises the jobs of one kind in a job store; a lease gives each job to one of several supervisors.

    All its state is in the store and in the jobs' folders, so it can die at any moment. Another supervisor takes
    its jobs over when their leases expire, or at once if it can see that the process is gone. A supervisor
    finds local drivers by pid and start time, remote ones by heartbeat, and restarts dead drivers up to three
    times. Supervisors that share a store must share the home's folders.

    At most ``max_running`` jobs of the kind run, over all supervisors. ``tasks`` are periodic tasks. A folder is
    removed ``keep`` after its job's end.
    """

    def __init__(
        self,
        kind: JobKind,
        store: JobStore,
        launcher: Launcher,
        folders: JobFolders,
        *,
        max_running: int,
        keep: timedelta = _KEEP,
        tasks: Sequence[PeriodicTask] = (),
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._kind = kind
        self.folders = folders
        self._store = store
        self._launcher = launcher
        self._keep = keep
        self._tasks = PeriodicTasks([*tasks, PeriodicTask(self._clean, CLEAN_SECONDS)])
        self.max_running = max_running
        self._lease_seconds = lease_seconds
        self._owner = str(LeaseOwner.current())
        self._renewal = Renewal(store, self._owner, lease_seconds)
        self._pool = ThreadPoolExecutor(max_workers=max_running, thread_name_prefix="launch")
        self._launching: set[str] = set()
        self._watches: dict[str, DriverWatch] = {}
        # By job and attempt: another supervisor may end an attempt whose cancel this one has seen.
        self._cancelling_since: dict[tuple[str, int], float] = {}
        self._settling: dict[str, float] = {}
        # Each look at a job in a bucket costs some requests.
        every_seconds = max(_TICK_SECONDS, folders.files.sight_seconds)
        self.loop = BackgroundLoop(f"{kind.name}-supervisor", self.tick, every_seconds=every_seconds)

    def start(self) -> None:
        """Supervise in the background until :meth:`stop`."""
        self._renewal.start()
        self.loop.start()

    def stop(self) -> None:
        """Stop supervising; drivers continue. :meth:`join` waits for launches under way."""
        self.loop.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._tasks.stop()

    def join(self) -> None:
        """Wait for launches under way after :meth:`stop`, then release the jobs to other supervisors."""
        self._pool.shutdown()
        self._tasks.join()
        self._renewal.stop()
        # If the store does not answer, the leases expire.
        with suppress(RefeedError):
            self._store.release_all(self._owner)

    def wake(self) -> None:
        """Look now instead of at the next tick."""
        self.loop.wake()

    def folder(self, job_id: str) -> JobFolder:
        """Return the folder of a job."""
        return self.folders.of(job_id)

    def interrupt(self, why: str) -> None:
        """Stop every running job that no other supervisor holds; call it after :meth:`stop`.

        A job becomes FAILED as interrupted and can be retried, or PENDING for the next supervisor if its kind goes
        on by itself. A paused job stays paused, without its driver.
        """
        self._take_over()
        for job in self._store.held(self._kind.name, self._owner):
            self._guarded(job.id, partial(self._interrupt, job, why))
            if job.driver is not None and job.driver.is_here:
                self._launcher.kill(job.driver)

    def _interrupt(self, job: Job, why: str) -> None:
        if job.state is JobState.PAUSED and job.driver is not None:
            self._let_go_of_driver(job, why)
        elif job.state not in {JobState.RUNNING, JobState.CANCELLING}:
            return
        elif not self._kind.goes_on_by_itself:
            self._finish(job, Outcome(job.epoch, JobState.FAILED, {"code": "interrupted", "message": why}))
        elif job.state is JobState.CANCELLING:
            self._finish(job, Outcome(job.epoch, JobState.CANCELLED))
        else:
            self._restart(job, why, wait_seconds=0.0, counts=False)

    def tick(self) -> None:
        """Look at every job of this supervisor once, and take jobs that nobody holds."""
        self._take_over()
        held = self._store.held(self._kind.name, self._owner)
        for job in held:
            if job.state is not JobState.PENDING:
                self._guarded(job.id, partial(self._follow, job))
        self._settle()
        claimed = self._store.claim(
            self._kind.name, self._owner, limit=self.max_running, lease_seconds=self._lease_seconds
        )
        for job in [*(job for job in held if job.state is JobState.PENDING), *claimed]:
            if job.id not in self._launching:
                self._launching.add(job.id)
                self._pool.submit(self._guarded, job.id, partial(self._launch, job))
        self._tasks.tick()
        self._forget({job.id for job in (*held, *claimed)})

    def _forget(self, held: set[str]) -> None:
        """Drop the memory of jobs that other supervisors hold now."""
        kept = held | self._settling.keys() | self._launching
        # A copy of the keys: launches in other threads add to the dict.
        for job_id in list(self._watches):
            if job_id not in kept:
                self._watches.pop(job_id, None)
        self._cancelling_since = {key: since for key, since in self._cancelling_since.items() if key[0] in held}

    def _clean(self) -> None:
        clean_folders(self._store, self.folders, keep=self._keep, now=datetime.now(UTC))
        if self._kind.is_forgotten:
            # A record outlives its folder: a folder without a job is removed after a day.
            keep_for = max(_KEEP_RECORDS, self._keep)
            if forgotten := self._store.forget_jobs(self._kind.name, keep=_KEPT_RECORDS, keep_for=keep_for):
                _LOG.info("forgot jobs", kind=self._kind.name, jobs=forgotten)

    def _guarded(self, job_id: str, do: Callable[[], None]) -> None:
        """Log the job's error, so that it does not affect other jobs."""
        try:
            do()
        except _OVERTAKEN as exc:
            _LOG.info("overtaken", job_id=job_id, why=exc.message)
        except Exception:  # noqa: BLE001 - see above
            _LOG.exception("the supervision of a job failed; trying again", job_id=job_id)

    def _take_over(self) -> None:
        """Renew its own leases, and take jobs that other supervisors have left."""
        self._renewal.looked()
        for name in self._store.owners(self._kind.name):
            owner = LeaseOwner.parse(name)
            if owner is not None and owner.is_dead:
                _LOG.info("another supervisor is gone", owner=name)
                self._store.release_all(name)
        for job in self._store.take_over(self._kind.name, self._owner, lease_seconds=self._lease_seconds):
            _LOG.info("took over", job_id=job.id, state=job.state.value, epoch=job.epoch)

    def _launch(self, job: Job) -> None:
        try:
            folder = self.folder(job.id)
            try:
                # A missing folder is found before Spark starts in vain.
                folder.read_specification()
                # Start the server, if any, before the attempt: a cancel meanwhile simply cancels a PENDING job.
                self._launcher.prepare()
                attempt = self._store.begin_attempt(job.id, owner=self._owner)
            except SelectionGoneError as exc:
                self._finish(job, _failure(job, exc))
                return
            except (*_OVERTAKEN, StoreUnavailableError):
                return
            except RefeedError as exc:
                if not self.loop.is_stopping:
                    self._finish(job, _failure(job, exc))
                # Otherwise the launcher was closed: the job stays PENDING for the next supervisor.
                return
            self._launch_attempt(attempt, folder)
        finally:
            self._launching.discard(job.id)
        # Not after an error: the launch would fail again at once, for as long as a disk is full.
        self.wake()

    def _launch_attempt(self, attempt: Job, folder: JobFolder) -> None:
        if not folder.write_control(_control_of(attempt, Order.RUN)):
            # Another supervisor took over and began a later attempt.
            return
        argument = json.dumps({"folder": folder.location, "epoch": attempt.epoch})
        try:
            driver = self._launcher.launch(
                Launch(attempt.id, self._kind.module, argument, folder.driver_log, attempt.epoch)
            )
        except RefeedError as exc:
            self._finish(attempt, _failure(attempt, exc))
            return
        try:
            self._store.move(
                attempt.id,
                JobState.RUNNING,
                actor=ACTOR,
                driver=driver,
                owner=self._owner,
                expected_epoch=attempt.epoch,
                expected_state=JobState.PENDING,
            )
        except RefeedError:
            folder.write_control(Control(attempt.epoch, Order.STOP))
            self._launcher.kill(driver)
            raise
        _LOG.info("launched", job_id=attempt.id, epoch=attempt.epoch, driver=str(driver))

    def _follow(self, job: Job) -> None:
        if job.state is JobState.PAUSED and job.driver is None:
            # The job waits for a resume, which launches it again.
            return
        folder = self.folder(job.id)
        self._write_progress(job.id)
        reason = self._watch_of(job.id).death(job, self._launcher)
        # Read after the check of the process: a driver writes its outcome before it ends.
        outcome = folder.read_outcome(job.epoch)
        if outcome is not None:
            self._end(job, outcome, folder)
        elif reason is not None:
            self._bury(job, reason, folder)
        else:
            self._steer(job, folder)

    def _end(self, job: Job, outcome: Outcome, folder: JobFolder) -> None:
        """Move the job by the outcome that its driver wrote."""
        if outcome.state is JobState.CANCELLED and job.state is not JobState.CANCELLING:
            # A STOP that nobody wants: a replica that was suspended while it wrote an order woke up late.
            self._bury(job, "Something stopped the driver, although nobody cancelled the job.", folder)
        elif outcome.state is not JobState.PAUSED:
            self._finish(job, outcome)
        elif job.state is JobState.CANCELLING:
            self._finish(job, Outcome(job.epoch, JobState.CANCELLED))
        elif self._is_paused(job, folder):
            self._let_go_of_driver(job, "The job was paused for a long time. A resume launches another driver.")
        else:
            # The job was resumed while the driver was ending.
            self._restart(
                job, "The driver ended after a long pause, just before the resume.", wait_seconds=0.0, counts=False
            )

    def _bury(self, job: Job, reason: str, folder: JobFolder) -> None:
        """Move a job whose driver died without an outcome."""
        if job.state is JobState.CANCELLING:
            self._finish(job, Outcome(job.epoch, JobState.CANCELLED))
            return
        died = f"{reason} Its log has details." if folder.has_log() else reason
        if self._is_paused(job, folder):
            self._let_go_of_driver(job, died)
        elif job.restarts < len(_RESTART_WAITS_SECONDS):
            number = f"{job.restarts + 1} of {len(_RESTART_WAITS_SECONDS)}"
            wait_seconds = _RESTART_WAITS_SECONDS[job.restarts]
            self._restart(job, f"Restarted ({number}): {died}", wait_seconds=wait_seconds, counts=True)
        else:
            message = (
                f"{died} It was restarted {job.restarts} times. Confirmed messages stay published. A "
                "retry continues."
            )
            self._finish(job, Outcome(job.epoch, JobState.FAILED, {"code": "driver_died", "message": message}))

    def _is_paused(self, job: Job, folder: JobFolder) -> bool:
        """Whether the job is paused; a pause by its driver is written to the store."""
        if job.state is JobState.PAUSED:
            return True
        why = folder.read_pause(job.epoch)
        if why is None:
            return False
        folder.write_control(_control_of(job, Order.PAUSE))
        # The figures for the decision, such as the number of rows, may be newer than the last look.
        self._write_progress(job.id)
        # A driver pauses only for a decision of a person, about its canary or an approval.
        self._store.move(
            job.id,
            JobState.PAUSED,
            actor=DRIVER,
            why=why,
            owner=self._owner,
            expected_version=job.version,
            awaits_person=True,
        )
        return True

    def _let_go_of_driver(self, job: Job, why: str) -> None:
        self._fence(job)
        self._store.forget_driver(job.id, actor=ACTOR, why=why, expected_epoch=job.epoch)
        self._watches.pop(job.id, None)
        _LOG.info("the paused job has no driver and waits for a resume", job_id=job.id, why=why)

    def _restart(self, job: Job, why: str, *, wait_seconds: float, counts: bool) -> None:
        self._fence(job)
        self._store.restart(
            job.id,
            self._owner,
            actor=ACTOR,
            why=why,
            epoch=job.epoch,
            wait_seconds=wait_seconds,
            counts=counts,
        )
        self._watches.pop(job.id, None)
        _LOG.info("a job will be launched again", job_id=job.id, why=why)

    def _steer(self, job: Job, folder: JobFolder) -> None:
        """Make the driver's control follow the job's state in the store."""
        if job.state is JobState.RUNNING and self._is_paused(job, folder):
            return
        # The kill comes first: writing the control fails on a full disk.
        if job.state is JobState.CANCELLING and job.driver is not None and job.driver.is_here:
            since = self._cancelling_since.setdefault((job.id, job.epoch), time.monotonic())
            if time.monotonic() - since > _CANCEL_SECONDS:
                self._launcher.kill(job.driver)
        wanted = _control_of(job, _ORDERS[job.state])
        is_astray = self._watch_of(job.id).is_astray(wanted, at_once=job.state is JobState.CANCELLING)
        if is_astray and self._store.get(job.id).version == job.version:
            # A service died after it wrote the store and before it wrote the control.
            folder.write_control(wanted)

    def _finish(self, job: Job, outcome: Outcome) -> None:
        self._fence(job)
        error = None
        if outcome.error is not None:
            code, message = outcome.error["code"], outcome.error["message"]
            error = FaultRecord(code, safe_message(code, message))
        why = None if error is None else f"{error.code}: {fixed_sentence(error.code)}"
        with suppress(*_OVERTAKEN):
            self._store.move(
                job.id,
                outcome.state,
                actor=ACTOR,
                error=error,
                why=why,
                owner=self._owner,
                expected_epoch=job.epoch,
            )
        self._cancelling_since.pop((job.id, job.epoch), None)
        self._settling[job.id] = time.monotonic() + _SETTLE_SECONDS
        _LOG.info("finished", job_id=job.id, state=outcome.state.value, why=why)

    def _fence(self, job: Job) -> None:
        """Stop all tasks of this attempt: on a Connect server they outlive the driver."""
        folder = self.folder(job.id)
        # Without the folder there is nothing to publish.
        if folder.exists():
            folder.write_control(_control_of(job, Order.STOP))
            self._write_progress(job.id)

    def _settle(self) -> None:
        for job_id, until in list(self._settling.items()):
            # A job with unreadable files must not prevent launches of others.
            self._guarded(job_id, partial(self._write_progress, job_id))
            if time.monotonic() > until:
                del self._settling[job_id]
                self._watches.pop(job_id, None)

    def _watch_of(self, job_id: str) -> DriverWatch:
        watch = self._watches.get(job_id)
        if watch is None:
            folder = self.folder(job_id)
            watch = self._watches[job_id] = DriverWatch(folder, self._kind.figures(folder))
        return watch

    def _write_progress(self, job_id: str) -> None:
        self._watch_of(job_id).write_figures(self._store, job_id)


def _control_of(job: Job, order: Order) -> Control:
    options = job.options
    return Control(job.epoch, order, options.get("rate_limit_messages_per_second"), options.get("canary_messages"))


def _failure(job: Job, exc: RefeedError) -> Outcome:
    return Outcome(job.epoch, JobState.FAILED, {"code": exc.code, "message": exc.message})
