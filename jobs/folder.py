"""A job's folder: what its driver, its tasks and the service tell each other, file by file."""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from model.errors import CheckpointCorruptError, SelectionGoneError
from model.job import JobState

# A writer that was stopped with the lock in its hands must not stop everybody else.
_LOCK_SECONDS: Final = 1.0
_LOCK_RETRY_SECONDS: Final = 0.01


class Order(StrEnum):
    """What a job's attempt is to do: PAUSE keeps its driver alive and idle, STOP ends it."""

    RUN = "run"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Control:
    """Which attempt of the job counts, what it is to do, and how fast.

    ``rate_limit_messages_per_second`` holds over all tasks together, None is no limit. ``canary_messages`` says
    after how many published messages of the job the attempt pauses by itself, None is never. Tasks look at it
    before each request.
    """

    epoch: int
    order: Order
    rate_limit_messages_per_second: float | None = None
    canary_messages: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, in its driver's own words.

    PAUSED is an attempt that was paused for long and let go of Spark: a resume takes a new attempt.
    """

    epoch: int
    state: JobState
    error: dict[str, Any] | None = None


class JobFolder:
    """The files of one job: specification, control, outcome, log and the folders of its kind.

    A folder on storage that every task reaches is all that driver, tasks and service share, so each goes on
    while the others are dead. Every file is replaced atomically: a reader sees the old or the new one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress = path / "progress"
        self.selection = path / "selection"
        self.dead_letters = path / "dead-letters"
        self.running = path / "running"
        self.driver_log = path / "driver.log"
        self._control = path / "control.json"
        self._specification = path / "specification.json"
        self._findings = path / "findings.json"

    def write_specification(self, specification: Mapping[str, Any]) -> None:
        """Make the folder and keep what the driver needs to know; readable by its owner only."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        write_json(self._specification, specification)

    def read_specification(self) -> dict[str, Any]:
        """Return what ``write_specification`` kept.

        Raises:
            SelectionGoneError: the whole folder was removed, as those of jobs that ended long ago are.
            CheckpointCorruptError: it is not there or can't be read.
        """
        if not self.path.exists():
            raise SelectionGoneError(
                f"The files of {self.path.name} were removed, its selection among them: make a new one.",
                id=self.path.name,
            )
        return _read_json(self._specification)

    def write_control(self, control: Control) -> bool:
        """Tell every task of this job, wherever it runs, which attempt counts and what to do.

        Tasks look before each request that they send: what a fenced task still has under way is all that
        goes out after this returns. An order to RUN takes back the attempt's own pause (``read_pause``), so a
        resume writes it before it says anywhere else that the job runs.

        A control of a later attempt stays, and False is returned: a service that was stopped and wakes up late
        can't take the job back from the one that took over.
        """
        with self._locked():
            # One that can't be read says nothing; a power cut may leave an empty file.
            with suppress(CheckpointCorruptError):
                if self.read_control().epoch > control.epoch:
                    return False
            if control.order is Order.RUN:
                self._pause(control.epoch).unlink(missing_ok=True)
            write_json(self._control, asdict(control))
            return True

    def read_control(self) -> Control:
        """Return the latest control.

        Raises:
            CheckpointCorruptError: there is none; a task that can't see it must not publish.
        """
        found = _read_json(self._control)
        return Control(
            int(found["epoch"]),
            Order(found["order"]),
            found.get("rate_limit_messages_per_second"),
            found.get("canary_messages"),
        )

    def may_go_on(self, epoch: int) -> bool:
        """Say whether attempt ``epoch`` is the one that counts and is not told to stop; a paused one lives on."""
        control = self.read_control()
        return control.epoch == epoch and control.order is not Order.STOP

    def may_publish(self, epoch: int) -> bool:
        """Say whether attempt ``epoch`` is the one that counts and is to run, now."""
        control = self.read_control()
        return control.epoch == epoch and control.order is Order.RUN

    def write_pause(self, epoch: int, why: str) -> None:
        """Say that attempt ``epoch`` publishes nothing until it is told to RUN, by its driver's own decision."""
        write_json(self._pause(epoch), {"epoch": epoch, "why": why})

    def read_pause(self, epoch: int) -> str | None:
        """Return why attempt ``epoch`` paused by itself, or None; a RUN that was written later takes it back."""
        try:
            found = json.loads(self._pause(epoch).read_text())
        except FileNotFoundError:
            # Not asked for first: a RUN may take it back in between.
            return None
        return str(found["why"])

    def write_fault(self, epoch: int, code: str, message: str) -> None:
        """Say, as a task of attempt ``epoch``, why the attempt can't succeed; its driver ends it."""
        write_json(self._fault(epoch), {"code": code, "message": message})

    def read_fault(self, epoch: int) -> dict[str, Any] | None:
        """Return the code and the message of what a task of attempt ``epoch`` found, or None."""
        path = self._fault(epoch)
        return _read_json(path) if path.exists() else None

    def enter_slice(self, number: int, epoch: int) -> None:
        """Say that a task of attempt ``epoch`` works on slice ``number``."""
        self.running.mkdir(parents=True, exist_ok=True)
        (self.running / f"{number}.{epoch}").touch()

    def leave_slice(self, number: int, epoch: int) -> None:
        """Say that the task is done with the slice for now; one that was killed never says so."""
        (self.running / f"{number}.{epoch}").unlink(missing_ok=True)

    def running_slices(self, epoch: int) -> list[int]:
        """Return the numbers of the slices that tasks of attempt ``epoch`` work on, in order."""
        if not self.running.exists():
            return []
        pairs = (path.name.split(".") for path in self.running.iterdir())
        return sorted(int(number) for number, attempt in pairs if int(attempt) == epoch)

    def beat(self, epoch: int) -> None:
        """Say that the driver of attempt ``epoch`` lives, for a service on another machine that can't see it."""
        self._heartbeat(epoch).write_text(str(time.time_ns()))

    def read_heartbeat(self, epoch: int) -> str | None:
        """Return what changes for as long as the driver of attempt ``epoch`` lives, None when it never said so.

        It is no time to compare with one's own: machines' clocks differ.
        """
        try:
            # Opened, not looked at: a network file system asks its server anew.
            return self._heartbeat(epoch).read_text()
        except FileNotFoundError:
            return None

    def write_findings(self, findings: Mapping[str, Any]) -> None:
        """Keep what the job has found out so far, in the words of its kind; replaces what was kept before."""
        write_json(self._findings, findings)

    def read_findings(self) -> dict[str, Any]:
        """Return what ``write_findings`` kept last, of any attempt; empty when nothing was."""
        return _read_json(self._findings) if self._findings.exists() else {}

    def write_outcome(self, outcome: Outcome) -> None:
        """Keep how the attempt ended, for a service that may be down at the moment."""
        write_json(self._outcome(outcome.epoch), asdict(outcome))

    def read_outcome(self, epoch: int) -> Outcome | None:
        """Return how attempt ``epoch`` ended, or None while its driver has said nothing."""
        path = self._outcome(epoch)
        if not path.exists():
            return None
        found = _read_json(path)
        return Outcome(int(found["epoch"]), JobState(found["state"]), found["error"])

    def read_log_tail(self, max_bytes: int = 2000) -> str:
        """Return the end of the driver's log, whole lines only; empty when there is none."""
        if not self.driver_log.exists():
            return ""
        with self.driver_log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            tail = file.read()
        lines = tail.decode(errors="replace").splitlines()
        return "\n".join(lines[1:] if size > max_bytes else lines)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.path / "control.lock").open("a") as file:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not _try_lock(file.fileno()) and time.monotonic() < deadline:
                time.sleep(_LOCK_RETRY_SECONDS)
            yield

    def _heartbeat(self, epoch: int) -> Path:
        return self.path / f"heartbeat-{epoch}"

    def _outcome(self, epoch: int) -> Path:
        return self.path / f"outcome-{epoch}.json"

    def _fault(self, epoch: int) -> Path:
        return self.path / f"fault-{epoch}.json"

    def _pause(self, epoch: int) -> Path:
        return self.path / f"pause-{epoch}.json"


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace ``path`` atomically.

    Written without fsync: a killed process loses nothing, a machine that loses power may come back with an
    older file, which costs repeated messages and never lost ones.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    temporary.write_text(json.dumps(value, separators=(",", ":")))
    temporary.replace(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as exc:
        raise CheckpointCorruptError(f"{path} can't be read: {exc}", path=str(path)) from exc
    if not isinstance(found, dict):
        raise CheckpointCorruptError(f"{path} does not hold a JSON object.", path=str(path))
    return found
