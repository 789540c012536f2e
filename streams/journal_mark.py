"""The mark of a journal, which the lease names too if the journal has the ids of all that was committed."""

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
    """The file as it is; times are ISO 8601.

    ``moved_at`` is the start that found the journal not to know all, and ``tables`` are those learned since then.
    ``attempt`` is the newest in one of them, or of an entry that was dropped when it was old.
    """

    marks: tuple[str, ...] = ()
    moved_at: str | None = None
    tables: tuple[str, ...] = ()
    attempt: int = 0
    learn_since: str | None = None
    is_asked: bool = False


class JournalMark:
    """The mark of the journal in ``folder``, and the tables whose ids it knows.

    The mark is a new one at each start, and the lease names it: a journal whose mark the lease does not name is
    empty, another stream's, or a copy from before a start. While a start has written the one and not the other the
    old mark counts as well, so that a crash then costs nothing.
    """

    def __init__(self, folder: Path) -> None:
        # Whether this start found the journal to know all; None before the start has begun.
        self.is_heir: bool | None = None
        self._path = folder / _FILE
        self._fields = _read(self._path)

    @property
    def name(self) -> str:
        """The mark that the lease names from this start on; empty before the first one."""
        return self._fields.marks[-1] if self._fields.marks else ""

    @property
    def is_asked(self) -> bool:
        """Whether :func:`ask_to_learn` has asked for all ids to be learned, which no start has done since."""
        return self._fields.is_asked

    @property
    def learn_since(self) -> datetime | None:
        """The publish time since which messages may come again, as :func:`ask_to_learn` gave it."""
        found = self._fields.learn_since
        return None if found is None else datetime.fromisoformat(found)

    def is_named(self, mark: str) -> bool:
        """Whether ``mark`` is this journal's."""
        return mark in self._fields.marks

    def begin(self, *, knows_all: bool) -> None:
        """Begin a start with a new mark, beside the old one or, if the journal does not know all, in its place.

        Then it knows no table's ids until they are learned, or nothing can come again any more.

        Raises:
            StorageFullError: there is no room; nothing has changed.
        """
        mark = uuid.uuid4().hex
        if knows_all:
            self._write(replace(self._fields, marks=(*self._fields.marks[-1:], mark)))
        else:
            now = datetime.now(UTC).isoformat()
            self._write(replace(self._fields, marks=(mark,), moved_at=now, tables=(), attempt=0, is_asked=False))
        self.is_heir = knows_all

    def settle(self) -> None:
        """Forget the mark of the start before: the lease names the new one."""
        if len(self._fields.marks) > 1:
            self._write(replace(self._fields, marks=self._fields.marks[-1:]))

    @property
    def attempt(self) -> int:
        """The newest attempt that the journal has seen without an entry of its own, 0 when there is none."""
        return self._fields.attempt

    def knows(self, table: str) -> bool:
        """Whether the journal has the ids of ``table`` that may come again."""
        moved_at = self._fields.moved_at
        if moved_at is None or table in self._fields.tables:
            return True
        return datetime.now(UTC) - datetime.fromisoformat(moved_at) > LONGEST_RETENTION

    def add(self, table: str, attempt: int) -> None:
        """Note durably that the ids of ``table`` are learned, whose newest attempt is ``attempt``."""
        tables = dict.fromkeys((*self._fields.tables, table))
        self._write(replace(self._fields, tables=tuple(tables), attempt=max(attempt, self._fields.attempt)))

    def note(self, attempt: int) -> None:
        """Note durably that the journal has seen ``attempt``, of which it has no entry any more."""
        if attempt > self._fields.attempt:
            self._write(replace(self._fields, attempt=attempt))

    def _write(self, fields: _Fields) -> None:
        _replace(self._path, fields)
        self._fields = fields


def ask_to_learn(folder: Path, since: datetime) -> None:
    """Have the next start learn all ids since ``since`` (aware), whatever Pub/Sub says of its oldest message.

    ``folder`` is the journal's of a stream that does not run. Call it before a seek to that time or to a snapshot
    whose oldest message is as old, and after a journal was put in the place of another.

    Raises:
        StorageFullError: there is no room; nothing has changed.
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
