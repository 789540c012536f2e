"""The upkeep of a Delta log in a bucket: few requests a checkpoint, and ages by the store's clock alone."""

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from deltalake import DeltaTable

from connectors.object_store.bucket import Bucket

LOG_RETENTION: Final = "delta.logRetentionDuration"
_HINT: Final = "_last_checkpoint"
_READS_AT_ONCE: Final = 8
# One page of a list, and one request that deletes.
_MOST_DELETED: Final = 1000
# Where checkpoints keep failing.
_MOST_REMEMBERED: Final = 1000


class BucketLog:
    """The entries and checkpoints in the folder ``_delta_log`` of the table at ``uri``."""

    def __init__(self, uri: str) -> None:
        self._objects = Bucket(f"{uri}/_delta_log")
        self._own: dict[int, bytes] = {}

    def remember(self, version: int, content: bytes) -> None:
        """Keep an entry that this process wrote, so that a checkpoint need not read it."""
        if len(self._own) >= _MOST_REMEMBERED:
            self._own.clear()
        self._own[version] = content

    def is_tip(self, version: int) -> bool:
        """Whether no entry follows ``version``, by one request."""
        after = self._objects.list_after(entry_name(version), 1)
        return not any(name[:1].isdigit() for name, _ in after)

    def checkpoint_version(self) -> int:
        """Return the version of the newest checkpoint, -1 if there is none."""
        found = self._objects.read(_HINT)
        version = None if found is None else hinted_version(found.content)
        if version is not None:
            return version
        return max((int(name[:20]) for name in self._objects.list() if _is_checkpoint(name)), default=-1)

    def write_checkpoint(self, since: int, version: int) -> Mapping[str, str]:
        """Write the checkpoint of ``version`` and return the table's configuration; ``since`` is the newest one.

        delta-rs reads each entry of a log about five times. Here it reads a copy on this machine's disk.
        """
        with TemporaryDirectory() as root:
            copy = Path(root, "_delta_log")
            copy.mkdir()
            names = [entry_name(number) for number in range(since + 1, version + 1)]
            if since >= 0:
                names += self._parts_of(since)
            with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
                for name, content in zip(names, pool.map(self._read, names), strict=True):
                    (copy / name).write_bytes(content)
            table = DeltaTable(root)
            table.create_checkpoint()
            # The hint last: where it names a checkpoint that is not there, nobody can open the table.
            for name in (f"{version:020d}.checkpoint.parquet", _HINT):
                with self._objects.writing(name) as made:
                    made.stream.write((copy / name).read_bytes())
        self._own.clear()
        return dict(table.metadata().configuration)

    def clean_up(self, kept: timedelta) -> None:
        """Delete entries and checkpoints as old as ``kept``, but none that a younger version needs.

        One call deletes 1000 at most, the oldest ones. The age of an object is the time between its own
        modification and that of the newest checkpoint, which has just been written.
        """
        ((_, now),) = self._objects.list_after(_HINT[:-1], 1)
        oldest = [each for each in self._objects.list_after("", _MOST_DELETED) if each[0][:1].isdigit()]
        first = max((name[:20] for name, at in oldest if _is_checkpoint(name) and now - at >= kept), default="")
        self._objects.delete(*(name for name, _ in oldest if name[:20] < first))

    def _parts_of(self, version: int) -> list[str]:
        start = f"{version:020d}.checkpoint"
        return [name for name, _ in self._objects.list_after(start, 1000) if name.startswith(start)]

    def _read(self, name: str) -> bytes:
        if name.endswith(".json") and (own := self._own.get(int(name[:20]))) is not None:
            return own
        found = self._objects.read(name)
        if found is None:
            raise FileNotFoundError(f"{name} is missing in the log.")
        return found.content


def entry_name(version: int) -> str:
    """Return the name of the log entry of ``version``."""
    return f"{version:020d}.json"


def hinted_version(content: bytes) -> int | None:
    """Return the version that a file ``_last_checkpoint`` names, None if it is damaged."""
    try:
        return int(json.loads(content)["version"])
    except (ValueError, KeyError, TypeError):
        return None


def parse_interval(interval: str) -> timedelta | None:
    """Return the length of one of Delta's intervals, None if it is in no unit from seconds to weeks.

    Example:
        >>> parse_interval("interval 7 days").days
        7
    """
    found = re.fullmatch(r"interval (\d+) (second|minute|hour|day|week)s?", interval)
    return timedelta(**{f"{found[2]}s": int(found[1])}) if found else None


def _is_checkpoint(name: str) -> bool:
    return name[:20].isdigit() and ".checkpoint." in name and name.endswith(".parquet")
