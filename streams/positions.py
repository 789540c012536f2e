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
    is read, so that it stays the same over restarts.

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
        self._origin: datetime | None = None
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
            f"{self._stream} was read on {holder.host} before, and its positions are not here: copy "
            f"{self._path.name} from the stream's folder there to {self._path.parent}. If it is lost, begin at a "
            "moment before the last record that was published, or at TRIM_HORIZON: repeats have the same uuids."
        )

    def begin(self, origin: datetime | None) -> None:
        """Write the origin of a stream that was never read."""
        self._origin = origin
        self._change({})
        self.is_new = False

    def find(self, shard: str) -> ShardPosition:
        """Return how far ``shard`` is done."""
        with self._lock:
            return self._shards.get(shard, ShardPosition())

    def advance(self, shard: str, position: ShardPosition) -> None:
        """Keep the position; those of several threads at once share a write."""
        self._change({shard: position})

    def forget_ended(self, listed: Iterable[str]) -> None:
        """Forget the shards that have ended and are no longer listed."""
        kept = set(listed)
        with self._lock:
            gone = [name for name, found in self._shards.items() if found.is_ended and name not in kept]
            for name in gone:
                del self._shards[name]
        if gone:
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
            "shards": {name: asdict(found) for name, found in sorted(self._shards.items())},
        }
        return json.dumps(content).encode()

    def _read(self) -> None:
        try:
            found: dict[str, Any] = json.loads(self._path.read_text())
            _check_format(found["format"])
            stream, origin = str(found["stream"]), found["origin"]
            self._shards = {str(name): ShardPosition(**each) for name, each in found["shards"].items()}
            self._origin = None if origin is None else datetime.fromisoformat(origin).astimezone(UTC)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise CheckpointCorruptError(
                f"The positions in {self._path} can't be read: {exc}. Without the file the stream begins "
                "where its settings say, and what it has published since comes again.",
                file=str(self._path),
            ) from exc
        if stream != self._stream:
            raise SettingsError(
                f"{self._path} has the positions of {stream}: start {self._stream} under another name."
            )


def _check_format(number: int) -> None:
    if number not in POSITIONS_FORMAT.reads:
        raise ValueError(f"its format is {number}")
