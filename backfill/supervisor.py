"""Keeps the job store true: launches what waits, follows what runs, buries what died."""

import fcntl
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import structlog

from backfill.selection import read_selection
from jobs.folder import Control, JobFolder, Order, Outcome
from jobs.launcher import Launch, Launcher
from jobs.progress import CheckpointFolder, CheckpointReader, Progress, ProgressMeter
from jobs.store import Job, JobError, JobStore
from model.errors import JobStateError, RefeedError
from model.job import JobState

KIND: Final = "backfill"
ACTOR: Final = "refeed"
_MODULE: Final = "backfill.job"
_TICK_SECONDS: Final = 0.5
_CANCEL_SECONDS: Final = 4.0
# Requests under way when a job ends still get their answers, and their tasks write them down.
_SETTLE_SECONDS: Final = 5.0

_LOG: Final = structlog.get_logger()


class Supervisor:
    """Drives the backfills of one home; of several processes with one home, one supervises at a time.

    Everything it knows is in the store and in the jobs' folders, so it can die at any moment: the next one
    finds drivers by pid and start time, launches what is PENDING, and fails what has lost its driver.
    """

    def __init__(self, store: JobStore, launcher: Launcher, home: Path, *, max_running: int) -> None:
        self._store = store
        self._launcher = launcher
        self._backfills = home / "backfills"
        self._lock_path = home / "run" / "backfills.lock"
        self._lock: IO[str] | None = None
        self._max_running = max_running
        self._pool = ThreadPoolExecutor(max_workers=max_running, thread_name_prefix="launch")
        self._launching: set[str] = set()
        self._followed: dict[str, _Followed] = {}
        self._cancelling_since: dict[str, float] = {}
        self._settling: dict[str, float] = {}
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Supervise in a thread of its own until :meth:`stop`."""
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop supervising; drivers go on. A launch under way may still end; :meth:`join` waits for it."""
        self._ended.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for launches under way after :meth:`stop`, then let another process supervise."""
        self._pool.shutdown()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def wake(self) -> None:
        """Look now, not at the next half second."""
        self._wake.set()

    def folder(self, job_id: str) -> JobFolder:
        """Return the folder of a job."""
        return JobFolder(self._backfills / job_id)

    def interrupt(self, why: str) -> None:
        """Stop every running job; each is FAILED as interrupted and can be retried from where it is."""
        for job in self._store.list_active(KIND):
            if job.state in {JobState.RUNNING, JobState.CANCELLING}:
                self._finish(job, Outcome(job.epoch, JobState.FAILED, {"code": "interrupted", "message": why}))
                if job.driver is not None:
                    self._launcher.kill(job.driver)

    def tick(self) -> None:
        """Look at every job once; does nothing while another process supervises this home."""
        if not self._has_lock():
            return
        active = self._store.list_active(KIND)
        for job in active:
            if job.state is not JobState.PENDING:
                self._guarded(job, self._follow)
        for job_id, until in list(self._settling.items()):
            self._write_progress(job_id)
            if time.monotonic() > until:
                del self._settling[job_id]
                self._followed.pop(job_id, None)
        running = sum(job.state in {JobState.RUNNING, JobState.CANCELLING} for job in active)
        waiting = [job for job in active if job.state is JobState.PENDING and job.id not in self._launching]
        for job in waiting[: max(0, self._max_running - running - len(self._launching))]:
            self._launching.add(job.id)
            self._pool.submit(self._guarded, job, self._launch)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.clear()
            try:
                self.tick()
            except Exception:  # noqa: BLE001 - a store that is busy or a full disk must not end the supervision
                _LOG.exception("supervision failed; trying again")
            self._wake.wait(_TICK_SECONDS)

    def _guarded(self, job: Job, do: Callable[[Job], None]) -> None:
        """Let one job's trouble be its own."""
        try:
            do(job)
        except Exception:  # noqa: BLE001 - see above
            _LOG.exception("job failed to be supervised; trying again", backfill_id=job.id)

    def _launch(self, job: Job) -> None:
        try:
            folder = self.folder(job.id)
            try:
                # The server, if there is one, starts before the attempt does: a cancel meanwhile is just that.
                self._launcher.prepare()
                attempt = self._store.begin_attempt(job.id)
            except JobStateError:
                return
            except RefeedError as exc:
                if not self._ended.is_set():
                    self._finish(job, _failure(job, exc))
                # Else it is the launcher's end: the job stays PENDING for the next supervisor.
                return
            folder.write_control(Control(attempt.epoch, Order.RUN))
            argument = json.dumps({"folder": str(folder.path), "epoch": attempt.epoch})
            try:
                driver = self._launcher.launch(Launch(job.id, _MODULE, argument, folder.driver_log))
            except RefeedError as exc:
                self._finish(
                    attempt, Outcome(attempt.epoch, JobState.FAILED, {"code": exc.code, "message": exc.message})
                )
                return
            try:
                self._store.move(job.id, JobState.RUNNING, actor=ACTOR, driver=driver)
            except JobStateError:
                folder.write_control(Control(attempt.epoch, Order.STOP))
                self._launcher.kill(driver)
            _LOG.info("launched", backfill_id=job.id, epoch=attempt.epoch, pid=driver.pid)
        finally:
            self._launching.discard(job.id)
            self.wake()

    def _follow(self, job: Job) -> None:
        folder = self.folder(job.id)
        self._write_progress(job.id)
        reason = None if job.driver is None else self._launcher.exit_reason(job.driver)
        # Read after the look at the process: an outcome is written before its driver ends.
        outcome = folder.read_outcome(job.epoch)
        if outcome is not None:
            self._finish(job, outcome)
        elif reason is not None or job.driver is None:
            self._finish(job, _death(job, reason or "No driver is known.", folder))
        elif job.state is JobState.CANCELLING:
            # A service that died between the two writes of a cancel left only the first.
            folder.write_control(Control(job.epoch, Order.STOP))
            since = self._cancelling_since.setdefault(job.id, time.monotonic())
            if time.monotonic() - since > _CANCEL_SECONDS:
                self._launcher.kill(job.driver)

    def _finish(self, job: Job, outcome: Outcome) -> None:
        # Whatever still runs of this attempt must not publish on: on a Connect server, tasks outlive a driver.
        self.folder(job.id).write_control(Control(job.epoch, Order.STOP))
        self._write_progress(job.id)
        error = None if outcome.error is None else JobError(**outcome.error)
        why = None if error is None else error.message
        with suppress(JobStateError):
            self._store.move(job.id, outcome.state, actor=ACTOR, error=error, why=why)
        self._cancelling_since.pop(job.id, None)
        self._settling[job.id] = time.monotonic() + _SETTLE_SECONDS
        _LOG.info("finished", backfill_id=job.id, state=outcome.state.value, why=why)

    def _write_progress(self, job_id: str) -> None:
        followed = self._followed.get(job_id)
        if followed is None:
            followed = self._followed[job_id] = _Followed(self.folder(job_id))
        progress = followed.measure()
        if progress is not None:
            self._store.set_progress(job_id, progress)

    def _has_lock(self) -> bool:
        if self._lock is None:
            self._lock_path.parent.mkdir(parents=True, exist_ok=True)
            file = self._lock_path.open("a")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return False
            self._lock = file
        return True


class _Followed:
    """One job's figures between two looks."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._reader = CheckpointReader(CheckpointFolder(folder.progress))
        self._meter = ProgressMeter()
        self._selected: int | None = None
        self._latest: Progress | None = None

    def measure(self) -> Progress | None:
        """Return the figures, or None when they have not changed."""
        if self._selected is None:
            selection = read_selection(self._folder.selection)
            self._selected = None if selection is None else selection.rows
        progress = self._meter.measure(self._selected, self._reader.read(), time.monotonic())
        if progress == self._latest:
            return None
        self._latest = progress
        return progress


def _failure(job: Job, exc: RefeedError) -> Outcome:
    return Outcome(job.epoch, JobState.FAILED, {"code": exc.code, "message": exc.message})


def _death(job: Job, reason: str, folder: JobFolder) -> Outcome:
    if job.state is JobState.CANCELLING:
        return Outcome(job.epoch, JobState.CANCELLED)
    lines = folder.read_log_tail().splitlines()
    last = f" Its last line: {lines[-1][:300]}" if lines else ""
    message = f"{reason}{last} What it confirmed is kept; a retry goes on from there."
    return Outcome(job.epoch, JobState.FAILED, {"code": "driver_died", "message": message})
