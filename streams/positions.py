"""Where reading stands in each shard: the offsets of a stream whose source takes no acknowledgements."""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from model.disk import replacing
from model.errors import CheckpointCorruptError, SettingsError
from model.format import Format
from model.moment import render_moment
from streams.lease import Holder

POSITIONS_FORMAT: Final = Format(1)
POSITIONS_FILE: Final = "positions.json"


@dataclass(frozen=True, slots=True)
class ShardPosition:
    """How far a shard is done: up to the record ``sequence_number``, None before the first one.

    Of that record all is done, or with ``subsequence`` only the parts up to that number. ``is_ended`` says that
    the shard is closed and all of it is done.
    """

    sequence_number: str | None = None
    subsequence: int | None = None
    is_ended: bool = False


class Positions:
    """The positions in one file, safe for several threads; a position counts once :meth:`advance` returns.

    ``stream`` names what is read, so that positions of another stream are never taken for its own. ``origin`` is
    where shards without a position begin: a moment, or None for the oldest record. It is written before anything
    is read, so that it stays the same over restarts. When the stream was created and where its shards begin tell
    its positions from those of a stream that had its name before.

    Raises:
        CheckpointCorruptError: the file can't be read.
        SettingsError: it has the positions of another stream.
        StorageFullError: any change, when it can't be written; then it does not count.
    """

    def __init__(self, path: Path, stream: str) -> None:
        self._path = path
        self._stream = stream
        self._lock = threading.Lock()
        self._version = 0
        # Which version is on the disk.
        self._written = 0
        self._write_lock = threading.Lock()
        self._shards: dict[str, ShardPosition] = {}
        self._beginnings: dict[str, str] = {}
        self._origin: datetime | None = None
        self._created_at: datetime | None = None
        self.is_new = not path.exists()
        if not self.is_new:
            self._read()

    @property
    def origin(self) -> datetime | None:
        """Where shards without a position begin; None is their oldest record."""
        return self._origin

    def check_home(self, stream: str, holder: Holder | None, *, is_latest: bool) -> None:
        """Refuse to begin at the newest record where another home has read before: what came in between is lost.

        ``stream`` is the id of this home's stream, ``holder`` who had its lease last.

        Raises:
            SettingsError: the positions are on the holder's machine; the message says what to do.
        """
        if not self.is_new or not is_latest or holder is None or holder.stream == stream:
            return
        raise SettingsError(
            f"The Kinesis stream {self._stream} was last read on {holder.host}, and this home does not contain "
            f"the positions. Copy {self._path.name} from the stream's folder on {holder.host} to "
            f"{self._path.parent}. If the file is lost, start at a time before "
            "the last published record, or at TRIM_HORIZON. Messages that are published again have the same "
            "uuid."
        )

    def begin(self, origin: datetime | None) -> None:
        """Write the origin of a stream that was never read, and forget all that is known of any other one."""
        with self._lock:
            self._origin, self._created_at = origin, None
            self._shards.clear()
            self._beginnings.clear()
        self._change({})
        self.is_new = False

    def is_of(self, created_at: datetime | None, beginnings: Mapping[str, str]) -> bool:
        """Whether these are the positions of the stream with this creation time, where known, and these shards.

        ``beginnings`` are the first sequence numbers of its shards. A position before its shard's beginning is of
        an older shard with the same id.
        """
        with self._lock:
            if created_at is not None and self._created_at not in {None, created_at}:
                return False
            return all(self._is_beginning(shard, first) for shard, first in beginnings.items())

    def note_stream(self, created_at: datetime | None, beginnings: Mapping[str, str]) -> None:
        """Keep when the stream was created, where known, and where its shards begin."""
        with self._lock:
            created_at = created_at or self._created_at
            if created_at == self._created_at and self._beginnings.items() >= beginnings.items():
                return
            self._created_at = created_at
            self._beginnings.update(beginnings)
        self._change({})

    def _is_beginning(self, shard: str, first: str) -> bool:
        known = self._beginnings.get(shard)
        if known is not None:
            return known == first
        position = self._shards.get(shard, ShardPosition()).sequence_number
        return position is None or int(position) >= int(first)

    def find(self, shard: str) -> ShardPosition:
        """Return how far ``shard`` is done."""
        with self._lock:
            return self._shards.get(shard, ShardPosition())

    def advance(self, shard: str, position: ShardPosition) -> None:
        """Keep the position; those of several threads at once share a write."""
        self._change({shard: position})

    def forget_ended(self, listed: Iterable[str]) -> None:
        """Forget the shards that have ended and are no longer listed, and where shards began that are not."""
        kept = set(listed)
        with self._lock:
            gone = [name for name, found in self._shards.items() if found.is_ended and name not in kept]
            for name in gone:
                del self._shards[name]
            unlisted = [name for name in self._beginnings if name not in kept and name not in self._shards]
            for name in unlisted:
                del self._beginnings[name]
        if gone or unlisted:
            self._change({})

    def _change(self, changed: Mapping[str, ShardPosition]) -> None:
        with self._lock:
            self._shards.update(changed)
            self._version += 1
            wanted = self._version
        with self._write_lock:
            if self._written >= wanted:
                return
            with self._lock:
                version, content = self._version, self._render()
            with replacing(self._path) as file:
                file.write(content)
            self._written = version

    def _render(self) -> bytes:
        content = {
            "format": POSITIONS_FORMAT.writes,
            "stream": self._stream,
            "origin": None if self._origin is None else render_moment(self._origin),
            "created_at": None if self._created_at is None else render_moment(self._created_at),
            "beginnings": dict(sorted(self._beginnings.items())),
            "shards": {name: asdict(found) for name, found in sorted(self._shards.items())},
        }
        return json.dumps(content).encode()

    def _read(self) -> None:
        try:
            found: dict[str, Any] = json.loads(self._path.read_text())
            _check_format(found["format"])
            stream, origin = str(found["stream"]), found["origin"]
            self._shards = {str(name): ShardPosition(**each) for name, each in found["shards"].items()}
            self._origin = _moment_of(origin)
            # An earlier Refeed wrote neither.
            self._created_at = _moment_of(found.get("created_at"))
            self._beginnings = {str(name): str(first) for name, first in found.get("beginnings", {}).items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise CheckpointCorruptError(
                f"The positions in {self._path} can't be read: {exc}. If you delete the file, the "
                "stream begins at the position in its settings, and publishes all records since then "
                "again.",
                file=str(self._path),
            ) from exc
        if stream != self._stream:
            raise SettingsError(
                f"{self._path} has the positions of the Kinesis stream {stream}. Use another name for "
                f"the stream that reads {self._stream}."
            )


def _moment_of(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)


def _check_format(number: int) -> None:
    if number not in POSITIONS_FORMAT.reads:
        raise ValueError(f"its format is {number}")
