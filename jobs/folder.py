"""A job's folder: what its driver, its tasks and the service tell each other, file by file."""

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


@dataclass(frozen=True, slots=True)
class JobFolders:
    """Where jobs of one kind have their folders; ``logs`` is for drivers that run here while folders do not."""

    files: Files
    logs: Path | None = None

    @classmethod
    def at(cls, place: "JobFolders | Files | Path | str") -> "JobFolders":
        """Return the folders in ``place``."""
        return place if isinstance(place, JobFolders) else cls(open_files(place))

    def of(self, job_id: str) -> "JobFolder":
        """Return the folder of a job, whether it is there or not."""
        return JobFolder(self.files.folder(job_id), logs=self.logs)

    def remove(self, job_id: str, is_wanted: Callable[[], bool] = lambda: False) -> bool:
        """Remove the folder of a job in one step for everybody else, unless ``is_wanted`` at the last moment."""
        log = self.of(job_id).driver_log
        is_removed = self.files.take_away(job_id, is_wanted)
        if is_removed:
            # Of a driver that ran on this machine while its folder lay in a bucket.
            log.unlink(missing_ok=True)
        return is_removed


class JobFolder:
    """The files of one job: specification, control, findings, outcome and log.

    A folder on storage that every task reaches, a disk or a bucket, is all that driver, tasks and service share,
    so each goes on while the others are dead. Every file is replaced atomically: a reader sees the old or the
    new one.

    ``driver_log`` is where a launcher on this machine writes, also when the folder itself is in a bucket: then it
    is under ``logs``, and other machines don't see it.
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
        """What another process opens it by."""
        return str(self.files)

    @property
    def path(self) -> Path | None:
        """Where it lies on this machine's disk, None in a bucket."""
        return self.files.path

    @property
    def sight_seconds(self) -> float:
        """How long tasks and drivers may go on with the order that they have read; 0 on a disk."""
        return self.files.sight_seconds

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a place on this machine's disk for what only this process reads, such as a query's spill."""
        if self.path is not None:
            yield self.path / "spill"
            return
        with TemporaryDirectory(prefix="refeed-") as folder:
            yield Path(folder) / "spill"

    def exists(self) -> bool:
        """Whether it is there; those of jobs that ended long ago are removed."""
        return self.files.exists()

    def write_specification(self, specification: Mapping[str, Any]) -> None:
        """Make the folder and keep what the driver needs to know; readable by its owner only."""
        self.files.make()
        write_json(self.files, _SPECIFICATION, specification)

    def read_specification(self) -> dict[str, Any]:
        """Return what ``write_specification`` kept.

        Raises:
            SelectionGoneError: the whole folder was removed, as those of jobs that ended long ago are.
            CheckpointCorruptError: it is not there or can't be read.
        """
        if not self.exists():
            raise SelectionGoneError(
                f"The files of {self.name} were deleted, with its selected messages. Create a new job.",
                id=self.name,
            )
        return read_json(self.files, _SPECIFICATION)

    def write_control(self, control: Control) -> bool:
        """Tell every task of this job, wherever it runs, which attempt counts and what to do.

        Tasks look before each request that they send, in a bucket once in ``sight_seconds``: what a fenced task
        still has under way is all that goes out after that. An order to RUN takes back the attempt's own pause
        (``read_pause``), so a resume writes it before it says anywhere else that the job runs.

        A control of a later attempt stays, and False is returned: a service that was stopped and wakes up late
        can't take the job back from the one that took over.
        """

        def overwrite(found: bytes | None) -> bytes | None:
            # One that can't be read says nothing; a power cut may leave an empty file.
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
            CheckpointCorruptError: there is none; a task that can't see it must not publish.
        """
        found = read_json(self.files, _CONTROL)
        return Control(
            int(found["epoch"]),
            Order(found["order"]),
            found.get("rate_limit_messages_per_second"),
            found.get("canary_messages"),
        )

    def see_control(self) -> Control:
        """Return the control as it was ``sight_seconds`` ago at most, for those that look again and again.

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
        """Whether attempt ``epoch`` is the one that counts and is not told to stop; a paused one lives on."""
        control = self.see_control()
        return control.epoch == epoch and control.order is not Order.STOP

    def may_publish(self, epoch: int) -> bool:
        """Whether attempt ``epoch`` is the one that counts and is to run, now."""
        control = self.see_control()
        return control.epoch == epoch and control.order is Order.RUN

    def write_pause(self, epoch: int, why: str) -> None:
        """Note that attempt ``epoch`` publishes nothing until it is told to RUN, by its driver's own decision."""
        write_json(self.files, _pause(epoch), {"epoch": epoch, "why": why})

    def read_pause(self, epoch: int) -> str | None:
        """Return why attempt ``epoch`` paused by itself, or None; a RUN that was written later takes it back."""
        found = find_json(self.files, _pause(epoch))
        return None if found is None else str(found["why"])

    def write_fault(self, epoch: int, code: str, message: str) -> None:
        """Note, as a task of attempt ``epoch``, why the attempt can't succeed; its driver ends it."""
        write_json(self.files, f"fault-{epoch}.json", {"code": code, "message": message})

    def read_fault(self, epoch: int) -> dict[str, Any] | None:
        """Return the code and the message of what a task of attempt ``epoch`` found, or None."""
        return find_json(self.files, f"fault-{epoch}.json")

    def beat(self, epoch: int) -> None:
        """Show that the driver of attempt ``epoch`` lives, for a service on another machine that can't see it."""
        self.files.write(f"heartbeat-{epoch}", str(time.time_ns()).encode())

    def read_heartbeat(self, epoch: int) -> str | None:
        """Return what changes for as long as the driver of attempt ``epoch`` lives, None when it never said so.

        It is no time to compare with one's own: machines' clocks differ.
        """
        try:
            return self.files.read(f"heartbeat-{epoch}").decode()
        except FileNotFoundError:
            return None

    def write_findings(self, findings: Mapping[str, Any]) -> None:
        """Keep what the job has found out so far, in the words of its kind; replaces what was kept before."""
        write_json(self.files, _FINDINGS, findings)

    def read_findings(self) -> dict[str, Any]:
        """Return what ``write_findings`` kept last, of any attempt; empty when nothing was."""
        return find_json(self.files, _FINDINGS) or {}

    def write_outcome(self, outcome: Outcome) -> None:
        """Keep how the attempt ended, for a service that may be down at the moment."""
        write_json(self.files, f"outcome-{outcome.epoch}.json", asdict(outcome))

    def read_outcome(self, epoch: int) -> Outcome | None:
        """Return how attempt ``epoch`` ended, or None while its driver has said nothing."""
        found = find_json(self.files, f"outcome-{epoch}.json")
        if found is None:
            return None
        return Outcome(int(found["epoch"]), JobState(found["state"]), found["error"])

    def has_log(self) -> bool:
        """Whether the driver has written something to its log."""
        return self.driver_log.exists() and self.driver_log.stat().st_size > 0


def _pause(epoch: int) -> str:
    return f"pause-{epoch}.json"
