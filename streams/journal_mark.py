"""The mark of a journal; the lease has the same mark if the journal has the ids of all commits."""

import json
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from model.disk import replacing
from model.errors import CheckpointCorruptError

_FILE: Final = "mark.json"


# Neither a subscription nor a topic keeps a message for longer:
# https://cloud.google.com/pubsub/docs/replay-overview
LONGEST_RETENTION: Final = timedelta(days=31)


@dataclass(frozen=True, slots=True)
class _Fields:
    """The content of the file; times are ISO 8601.

    ``moved_at`` is the time of the start that found the journal incomplete, ``tables`` are the tables learned
    since. ``attempt`` is the newest attempt in one of these tables, or of an old entry that was dropped.
    """

    marks: tuple[str, ...] = ()
    moved_at: str | None = None
    tables: tuple[str, ...] = ()
    attempt: int = 0
    learn_since: str | None = None
    is_asked: bool = False


class JournalMark:
    """The mark of the journal in ``folder``, and the tables whose ids it knows.

    Each start makes a new mark and writes it into the lease. A journal with another mark is empty, of another
    stream, or an old copy. Between the writes of journal and lease the old mark counts too, so that a crash costs
    nothing.
    """

    def __init__(self, folder: Path) -> None:
        # Whether this start found the journal complete; None before the start has begun.
        self.is_heir: bool | None = None
        self._path = folder / _FILE
        self._fields = _read(self._path)

    @property
    def name(self) -> str:
        """The mark of this start, which the lease gets; empty before the first start."""
        return self._fields.marks[-1] if self._fields.marks else ""

    @property
    def is_asked(self) -> bool:
        """Whether :func:`ask_to_learn` was called and no start has learned since."""
        return self._fields.is_asked

    @property
    def learn_since(self) -> datetime | None:
        """The publish time given to :func:`ask_to_learn`: later messages may be redelivered."""
        found = self._fields.learn_since
        return None if found is None else datetime.fromisoformat(found)

    def is_named(self, mark: str) -> bool:
        """Whether ``mark`` is this journal's."""
        return mark in self._fields.marks

    def begin(self, *, knows_all: bool) -> None:
        """Begin a start with a new mark, which for an incomplete journal replaces the old one.

        An incomplete journal knows a table's ids only after they are learned, or after the longest retention.

        Raises:
            StorageFullError: the disk is full; nothing has changed.
        """
        mark = uuid.uuid4().hex
        if knows_all:
            self._write(replace(self._fields, marks=(*self._fields.marks[-1:], mark)))
        else:
            now = datetime.now(UTC).isoformat()
            self._write(replace(self._fields, marks=(mark,), moved_at=now, tables=(), attempt=0, is_asked=False))
        self.is_heir = knows_all

    def settle(self) -> None:
        """Forget the previous mark, because the lease has the new one."""
        if len(self._fields.marks) > 1:
            self._write(replace(self._fields, marks=self._fields.marks[-1:]))

    @property
    def attempt(self) -> int:
        """The newest attempt that the journal has seen and has no entry of, 0 without one."""
        return self._fields.attempt

    def knows(self, table: str) -> bool:
        """Whether the journal has all ids of ``table`` that may be redelivered."""
        moved_at = self._fields.moved_at
        if moved_at is None or table in self._fields.tables:
            return True
        return datetime.now(UTC) - datetime.fromisoformat(moved_at) > LONGEST_RETENTION

    def add(self, table: str, attempt: int) -> None:
        """Note durably that the ids of ``table``, with its newest attempt ``attempt``, are learned."""
        tables = dict.fromkeys((*self._fields.tables, table))
        self._write(replace(self._fields, tables=tuple(tables), attempt=max(attempt, self._fields.attempt)))

    def note(self, attempt: int) -> None:
        """Note durably that the journal has seen ``attempt``, whose entry was dropped."""
        if attempt > self._fields.attempt:
            self._write(replace(self._fields, attempt=attempt))

    def _write(self, fields: _Fields) -> None:
        _replace(self._path, fields)
        self._fields = fields


def ask_to_learn(folder: Path, since: datetime) -> None:
    """Mark the journal so that the next start learns all ids published since ``since`` (an aware time).

    ``folder`` is the journal of a stream that does not run. Call it before a seek to that time, or to a snapshot
    with an oldest message of that time, and after a journal was replaced by another.

    Raises:
        StorageFullError: the disk is full; nothing has changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _FILE
    _replace(path, replace(_read(path), learn_since=since.astimezone(UTC).isoformat(), is_asked=True))


def _read(path: Path) -> _Fields:
    try:
        found = json.loads(path.read_text())
        return _Fields(**{**found, "marks": tuple(found["marks"]), "tables": tuple(found["tables"])})
    except FileNotFoundError:
        return _Fields()
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise CheckpointCorruptError(
            f"{path} can't be read ({exc}). Delete the file and start the stream again. The "
            "stream then reads from its tables the ids of the messages that Pub/Sub may redeliver.",
            file=str(path),
        ) from exc


def _replace(path: Path, fields: _Fields) -> None:
    with replacing(path) as file:
        file.write(json.dumps(asdict(fields)).encode())
