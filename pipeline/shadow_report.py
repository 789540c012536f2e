"""The report of a shadow: how many rows it compared with the running release's, and those that differ."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from pydantic import TypeAdapter

from model.disk import replace_text
from model.errors import RefeedError
from model.failure import safe_message

MAX_EXAMPLES: Final = 20
MAX_SHOWN_BYTES: Final = 1024
# A shadow that nobody has looked at for this long ends by itself.
FORGOTTEN_SECONDS: Final = 120.0
_FOLDER: Final = "shadows"


class ShadowState(StrEnum):
    """Where a shadow stands; FOLLOWING when all that the archive held at its start is compared."""

    STARTING = "STARTING"
    CATCHING_UP = "CATCHING_UP"
    FOLLOWING = "FOLLOWING"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class ShadowExample:
    """One cell that differs, as texts of at most 1 KiB; ``column`` is None for a whole row that is missing."""

    table: str
    topic: str
    message_id: str
    column: str | None
    running: str | None
    new: str | None


@dataclass(slots=True)
class ShadowReport:
    """The findings of a shadow so far.

    ``messages_compared`` are those that were decided: ``rows_equal``, ``rows_different`` and ``rows_missing``
    together. A dead letter counts as the row of its message. ``rows_waiting`` wait for the running release,
    ``rows_skipped`` can't be compared: the running release made them with an older schema, or the warehouse
    refused its row, or its message is from before the source's subscription. ``examples`` are at most 20 for each
    table. ``bytes_billed`` is what reading cost, and ``read_until`` the time of ingestion up to which the archive
    was read.
    """

    state: ShadowState = ShadowState.STARTING
    messages_read: int = 0
    messages_compared: int = 0
    rows_equal: int = 0
    rows_missing: int = 0
    rows_different: int = 0
    rows_waiting: int = 0
    rows_skipped: int = 0
    bytes_billed: int = 0
    read_until: float | None = None
    examples: list[ShadowExample] = field(default_factory=list)
    error: dict[str, str] | None = None
    at: float = 0.0

    @property
    def has_differences(self) -> bool:
        """Whether a row differs or is missing, which no later row mends."""
        return self.rows_different + self.rows_missing > 0

    def show(self, example: ShadowExample) -> None:
        """Keep an example while there is room for one of its table."""
        if sum(kept.table == example.table for kept in self.examples) < MAX_EXAMPLES:
            self.examples.append(example)

    def fail(self, exc: RefeedError) -> None:
        """Note why the shadow ended."""
        self.state = ShadowState.FAILED
        self.error = {"code": exc.code, "message": safe_message(exc.code, exc.message)}


_REPORT: Final = TypeAdapter(ShadowReport)


@dataclass(frozen=True, slots=True)
class ShadowFolder:
    """Where a shadow reports, and its agent shows that it still wants it; nothing else of a shadow is kept."""

    path: Path

    @classmethod
    def of(cls, home: Path, stream: str, shadow_id: str) -> Self:
        """Return the folder of a stream's shadow in ``home``."""
        return cls(home / _FOLDER / stream / shadow_id)

    @classmethod
    def all_of(cls, home: Path) -> Iterator[Self]:
        """Yield the folders of all shadows of ``home``."""
        yield from map(cls, sorted((home / _FOLDER).glob("*/*")))

    @property
    def shadow_id(self) -> str:
        """The shadow's id."""
        return self.path.name

    @property
    def log(self) -> Path:
        """The log of its process."""
        return self.path / "log"

    @property
    def _report(self) -> Path:
        return self.path / "report.json"

    @property
    def _wanted(self) -> Path:
        return self.path / "wanted"

    def want(self, acknowledged_until: float | None = None) -> None:
        """Show that somebody looks at the shadow, and how far its stream has acknowledged.

        That is the Unix time up to which every message was acknowledged that was published before; without one,
        the last one stands.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if acknowledged_until is None:
            self._wanted.touch()
            return
        replace_text(self._wanted, repr(acknowledged_until))

    def read_acknowledged_until(self) -> float | None:
        """Return the last time that :meth:`want` got, None without one."""
        try:
            return float(self._wanted.read_text())
        except (OSError, ValueError):
            return None

    def is_wanted(self) -> bool:
        """Whether somebody looked at it lately; a shadow whose folder is gone is not wanted."""
        try:
            return time.time() - self._wanted.stat().st_mtime < FORGOTTEN_SECONDS
        except OSError:
            return False

    def write(self, report: ShadowReport) -> None:
        """Replace the report, all at once; nothing is written once the folder is gone."""
        report.at = time.time()
        with suppress(FileNotFoundError):
            replace_text(self._report, json.dumps(asdict(report)))

    def read(self) -> ShadowReport:
        """Return the report that was written last, by whichever release; an empty one without any."""
        try:
            return _REPORT.validate_json(self._report.read_bytes())
        except (OSError, ValueError):
            return ShadowReport()

    def forget(self) -> None:
        """Remove the report of a shadow that ended, so that the next start of it is not taken for that one."""
        self._report.unlink(missing_ok=True)
