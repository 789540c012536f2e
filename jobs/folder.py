"""A job's folder: the files by which its driver, its tasks and the service communicate."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from jobs.files import Files, find_json, open_files, parse_json, read_json, render_json, write_json
from model.errors import CheckpointCorruptError, SelectionGoneError
from model.job import JobState

_CONTROL: Final = "control.json"
_SPECIFICATION: Final = "specification.json"
_FINDINGS: Final = "findings.json"


class Order(StrEnum):
    """The order to a job's attempt: PAUSE keeps its driver alive and idle, STOP ends it."""

    RUN = "run"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Control:
    """The attempt (``epoch``) that counts, its order and its speed.

    ``rate_limit_messages_per_second`` is the limit of all tasks together, None for no limit. The attempt pauses by
    itself after ``canary_messages`` published messages of the job, None for never. Tasks read the control before
    each request.
    """

    epoch: int
    order: Order
    rate_limit_messages_per_second: float | None = None
    canary_messages: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt, as its driver reports it.

    PAUSED means that the driver ended after a long pause to free Spark; a resume begins a new attempt.
    """

    epoch: int
    state: JobState
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class JobFolders:
    """The folders of one kind's jobs; ``logs`` is for local drivers whose folders are in a bucket."""

    files: Files
    logs: Path | None = None

    @classmethod
    def at(cls, place: "JobFolders | Files | Path | str") -> "JobFolders":
        """Return the folders in ``place``."""
        return place if isinstance(place, JobFolders) else cls(open_files(place))

    def of(self, job_id: str) -> "JobFolder":
        """Return the folder of a job, whether it exists or not."""
        return JobFolder(self.files.folder(job_id), logs=self.logs)

    def remove(self, job_id: str, is_wanted: Callable[[], bool] = lambda: False) -> bool:
        """Remove a job's folder, atomically for other processes, unless ``is_wanted`` returns True at last."""
        log = self.of(job_id).driver_log
        is_removed = self.files.take_away(job_id, is_wanted)
        if is_removed:
            # The log of a driver that ran on this machine while its folder was in a bucket.
            log.unlink(missing_ok=True)
        return is_removed


class JobFolder:
    """The files of one job: specification, control, findings, outcome and log.

    Driver, tasks and service share only this folder, on a disk or in a bucket that all of them reach, so each can
    continue while the others are dead. Every file is replaced atomically: a reader sees the old or the new one.

    A launcher on this machine writes to ``driver_log``. If the folder is in a bucket, the log is under ``logs`` on
    this machine, and other machines don't see it.
    """

    def __init__(self, place: Files | Path | str, *, logs: Path | None = None) -> None:
        self.files = open_files(place)
        self._seen: Control | None = None
        self._seen_at = 0.0
        own = self.files.path
        self.driver_log = (logs or Path()) / f"{self.name}.log" if own is None else own / "driver.log"

    @property
    def name(self) -> str:
        """The job's id."""
        return self.files.name

    @property
    def location(self) -> str:
        """The location by which another process opens the folder."""
        return str(self.files)

    @property
    def path(self) -> Path | None:
        """The folder's path on this machine's disk, None in a bucket."""
        return self.files.path

    @property
    def sight_seconds(self) -> float:
        """How long tasks and drivers may act on the control that they have read; 0 on a disk."""
        return self.files.sight_seconds

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a path on this machine's disk for private files of this process, such as a query's spill."""
        if self.path is not None:
            yield self.path / "spill"
            return
        with TemporaryDirectory(prefix="refeed-") as folder:
            yield Path(folder) / "spill"

    def exists(self) -> bool:
        """Whether the folder exists; it is removed long after the job's end."""
        return self.files.exists()

    def write_specification(self, specification: Mapping[str, Any]) -> None:
        """Create the folder, readable by its owner only, and write the driver's input."""
        self.files.make()
        write_json(self.files, _SPECIFICATION, specification)

    def read_specification(self) -> dict[str, Any]:
        """Return what ``write_specification`` wrote.

        Raises:
            SelectionGoneError: the whole folder was removed, as happens long after a job's end.
            CheckpointCorruptError: the file is missing or can't be read.
        """
        if not self.exists():
            raise SelectionGoneError(
                f"The files of {self.name} were deleted, with its selected messages. Create a new job.",
                id=self.name,
            )
        return read_json(self.files, _SPECIFICATION)

    def write_control(self, control: Control) -> bool:
        """Write the control that every task of this job reads: the attempt that counts, and its order.

        Tasks read it before each request, from a bucket once in ``sight_seconds``. After that a fenced task sends
        nothing but the requests that it has under way. An order to RUN removes the attempt's own pause
        (``read_pause``), so a resume must write it before it sets the job to RUNNING anywhere else.

        If the control is of a later attempt, it stays and the call returns False: a service that was suspended and
        wakes up late can't take the job back from the service that took over.
        """

        def overwrite(found: bytes | None) -> bytes | None:
            # A power cut may leave an empty file; an unreadable control is replaced.
            with suppress(CheckpointCorruptError):
                if found is not None and int(parse_json(found, _CONTROL)["epoch"]) > control.epoch:
                    return None
            if control.order is Order.RUN:
                self.files.remove(_pause(control.epoch))
            return render_json(asdict(control))

        return self.files.change(_CONTROL, overwrite)

    def read_control(self) -> Control:
        """Return the latest control.

        Raises:
            CheckpointCorruptError: it is missing or unreadable; a task that can't read it must not publish.
        """
        found = read_json(self.files, _CONTROL)
        return Control(
            int(found["epoch"]),
            Order(found["order"]),
            found.get("rate_limit_messages_per_second"),
            found.get("canary_messages"),
        )

    def see_control(self) -> Control:
        """Return the control, at most ``sight_seconds`` old, for callers that poll.

        Raises:
            CheckpointCorruptError: as ``read_control``.
        """
        now = time.monotonic()
        if self._seen is None or now - self._seen_at >= self.sight_seconds:
            self._seen = None
            self._seen = self.read_control()
            self._seen_at = now
        return self._seen

    def may_go_on(self, epoch: int) -> bool:
        """Whether attempt ``epoch`` counts and has no order to STOP; a paused attempt may go on."""
        control = self.see_control()
        return control.epoch == epoch and control.order is not Order.STOP

    def may_publish(self, epoch: int) -> bool:
        """Whether attempt ``epoch`` counts and has the order to RUN."""
        control = self.see_control()
        return control.epoch == epoch and control.order is Order.RUN

    def write_pause(self, epoch: int, why: str) -> None:
        """Note that the driver of attempt ``epoch`` paused it by itself, until an order to RUN."""
        write_json(self.files, _pause(epoch), {"epoch": epoch, "why": why})

    def read_pause(self, epoch: int) -> str | None:
        """Return why attempt ``epoch`` paused by itself, or None; a later order to RUN removes the pause."""
        found = find_json(self.files, _pause(epoch))
        return None if found is None else str(found["why"])

    def write_fault(self, epoch: int, code: str, message: str) -> None:
        """Note as a task why attempt ``epoch`` can't succeed; its driver then ends it."""
        write_json(self.files, f"fault-{epoch}.json", {"code": code, "message": message})

    def read_fault(self, epoch: int) -> dict[str, Any] | None:
        """Return the code and the message of a task's fault in attempt ``epoch``, or None."""
        return find_json(self.files, f"fault-{epoch}.json")

    def beat(self, epoch: int) -> None:
        """Write the heartbeat of attempt ``epoch``'s driver, for services on other machines."""
        self.files.write(f"heartbeat-{epoch}", str(time.time_ns()).encode())

    def read_heartbeat(self, epoch: int) -> str | None:
        """Return the latest heartbeat of attempt ``epoch``'s driver, None if there is none.

        It changes while the driver lives. Don't compare it with the local time: machines' clocks differ.
        """
        try:
            return self.files.read(f"heartbeat-{epoch}").decode()
        except FileNotFoundError:
            return None

    def write_findings(self, findings: Mapping[str, Any]) -> None:
        """Write the job's findings so far, whose shape is its kind's; replaces earlier findings."""
        write_json(self.files, _FINDINGS, findings)

    def read_findings(self) -> dict[str, Any]:
        """Return the last findings of any attempt, empty if there are none."""
        return find_json(self.files, _FINDINGS) or {}

    def write_outcome(self, outcome: Outcome) -> None:
        """Write the attempt's outcome to a file, since the service may be down."""
        write_json(self.files, f"outcome-{outcome.epoch}.json", asdict(outcome))

    def read_outcome(self, epoch: int) -> Outcome | None:
        """Return the outcome of attempt ``epoch``, or None while its driver has written none."""
        found = find_json(self.files, f"outcome-{epoch}.json")
        if found is None:
            return None
        return Outcome(int(found["epoch"]), JobState(found["state"]), found["error"])

    def has_log(self) -> bool:
        """Whether the driver's log has any content."""
        return self.driver_log.exists() and self.driver_log.stat().st_size > 0


def _pause(epoch: int) -> str:
    return f"pause-{epoch}.json"
