"""The log of a Delta table: on a local disk it survives a power cut, in a bucket a commit is one request.

delta-rs syncs nothing. So every entry is synced before anything relies on it, a checkpoint is synced before it
gets its name, and entries that a power cut left torn are set aside when the table is opened. On an object store a
write is durable when it is answered.
"""

import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import structlog
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import PostCommitHookProperties

from connectors.lake.bucket_log import LOG_RETENTION, BucketLog, entry_name, hinted_version, parse_interval
from connectors.lake.clocks import Stopwatch
from connectors.lake.objects import Objects, open_objects, sync_file

# Delta's own default.
_CHECKPOINT_INTERVAL: Final = 100
# Entries that were never synced are those of writers that were at work when the power failed. Where more entries
# follow a damaged one, something else has damaged it: they are not touched.
_MOST_TORN: Final = 16
_TORN_FOLDER: Final = "_torn"
_CHECKPOINT_FOLDER: Final = "_checkpoint"
_LEFTOVER_SECONDS: Final = 3600.0
_CLEAN_UP: Final = "delta.enableExpiredLogCleanup"
# After a checkpoint that failed.
_COMMITS_BETWEEN_TRIES: Final = 10
# Of days for which the log in a bucket is kept.
_MOST_WRITE_SECONDS: Final = 300.0

_log = structlog.get_logger(__name__)


class DeltaLog:
    """The log of the table at ``uri``; one object per thread, like the table's own."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._folder = None if "://" in uri else Path(uri).absolute() / "_delta_log"
        self._bucket = BucketLog(uri) if self._folder is None else None
        self._durable: int | None = None
        self._checkpointed = -1
        self._next_try = 0
        self._interval = _CHECKPOINT_INTERVAL
        self._read_at = Stopwatch()

    @property
    def is_local(self) -> bool:
        """Whether a power cut can undo what delta-rs has written."""
        return self._folder is not None

    @property
    def hooks(self) -> PostCommitHookProperties:
        """What delta-rs does after a commit: nothing, because :meth:`committed` does it."""
        return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

    def open(self) -> DeltaTable:
        """Return the table; entries that a power cut left torn are set aside, none of them was acknowledged.

        Raises:
            TableNotFoundError: there is no table, or its creation was cut short.
            DeltaError: the table can't be read.
        """
        try:
            return DeltaTable(self._uri)
        except TableNotFoundError:
            raise
        except DeltaError:
            if self._folder is None:
                raise
            self._set_torn_aside(self._folder)
            return DeltaTable(self._uri)

    def find(self) -> DeltaTable | None:
        """Return the table as :meth:`open` does, None where there is none."""
        try:
            return self.open()
        except TableNotFoundError:
            return None

    def committed(self, table: DeltaTable) -> bool:
        """Make durable what was committed through ``table``, and all before it; write a checkpoint when it is due.

        True after there is a new one: ``table`` still replays every entry since it was opened; open it again.

        Raises:
            OSError, DeltaError: the commit is made, and may not be durable.
        """
        read_at = Stopwatch()
        table.update_incremental()
        if self._folder is None:
            self._durable, self._read_at = table.version(), read_at
        else:
            self.sync(table)
        self._interval = _interval_of(table)
        before = self._checkpointed
        self._keep_short(table.version(), table)
        return self._checkpointed != before

    def append(self, version: int, actions: Iterable[Mapping[str, Any]]) -> bool:
        """Write the entry that follows ``version`` durably; False where it is taken, or may have been.

        For each commit delta-rs reads every entry since the last checkpoint, and this reads none. So the caller
        has to know that ``actions`` fit the table at ``version``, which it has made durable through this object.

        Raises:
            OSError: the entry may be there, and may not be durable.
            CommitFailedError: as :meth:`refuse_late` says.
        """
        if self._durable != version:
            return False
        if not self._is_place_kept(version):
            return False
        since, self._read_at = self._read_at, Stopwatch()
        content = "".join(f"{json.dumps(action)}\n" for action in actions).encode()
        # Two writers can't both put it: delta-rs puts its own in this way as well.
        if self._entries.put_new(entry_name(version + 1), content) is None:
            return False
        self.refuse_late(version, since)
        self._durable = version + 1
        if self._bucket is not None:
            self._bucket.remember(self._durable, content)
        return True

    def shorten(self, version: int) -> None:
        """Write the checkpoint that is due at ``version``, after :meth:`append`; a failure is only logged."""
        if self._bucket is None:
            self.committed(self.open())
        else:
            self._keep_short(version)

    def _is_place_kept(self, version: int) -> bool:
        """Whether the place after ``version`` has never been taken.

        An entry is only deleted after a checkpoint that is newer, and its place must not be taken again. In a
        bucket it is deleted after days. One request tells that no entry has come, where the log was read long ago.
        """
        if self._folder is not None:
            return self._checkpoint_version() <= version
        if self._read_at.seconds() <= _MOST_WRITE_SECONDS / 2:
            return True
        read_at = Stopwatch()
        if self._bucket is None or not self._bucket.is_tip(version):
            return False
        self._read_at = read_at
        return True

    @cached_property
    def _entries(self) -> Objects:
        # Vacuum deletes the unfinished entry that a kill leaves in the table's folder.
        return open_objects(f"{self._uri}/_delta_log", is_swept=True)

    def refuse_late(self, version: int, since: Stopwatch | None = None) -> None:
        """Raise where an entry that follows ``version`` was written so late that its place may have been freed.

        Clean-up deletes the entries that a checkpoint stands for once they are old, and an entry that comes into
        such a place is in no snapshot. ``since`` is when the log was read last. On a local disk the newest
        checkpoint tells; an object store is not asked with each commit, and keeps its log for days.

        Raises:
            CommitFailedError: the entry is in the log, and only a snapshot tells whether it counts.
        """
        if self._folder is not None:
            is_late = self._checkpoint_version() > version
        else:
            is_late = since is not None and since.seconds() > _MOST_WRITE_SECONDS
        if is_late:
            raise CommitFailedError(
                f"The log entry after version {version} was written late. It may be missing in every snapshot."
            )

    def is_checkpoint_due(self, version: int) -> bool:
        """Whether :meth:`shorten` would look for a checkpoint to write at ``version``."""
        return version >= max(self._checkpointed + self._interval, self._next_try)

    def sync(self, table: DeltaTable) -> None:
        """Make every entry up to the table's version durable, also those of other writers: the log has no gaps.

        Raises:
            OSError: the disk failed; how much is durable is unknown.
        """
        if self._folder is None or (self._durable is not None and table.version() <= self._durable):
            return
        if self._durable is None:
            self._durable = self._sync_beginning(self._folder)
        for version in range(self._durable + 1, table.version() + 1):
            # What is gone is older than the retention, behind a checkpoint that another process made.
            with suppress(FileNotFoundError):
                sync_file(str(_entry(self._folder, version)))
        sync_file(str(self._folder))
        self._durable = table.version()

    def _keep_short(self, version: int, table: DeltaTable | None = None) -> None:
        """Write the checkpoint of ``version`` when it is due, and delete what it stands for; log a failure.

        Only a disk needs the ``table``.
        """
        if not self.is_checkpoint_due(version):
            return
        try:
            self._checkpointed = self._checkpoint_version()
            if not self.is_checkpoint_due(version):
                return
            if self._bucket is not None:
                configuration = self._bucket.write_checkpoint(self._checkpointed, version)
                self._checkpointed = version
                kept = parse_interval(configuration.get(LOG_RETENTION, ""))
                if kept is not None and configuration.get(_CLEAN_UP) != "false":
                    self._bucket.clean_up(kept)
            elif self._folder is not None and table is not None:
                self._write_checkpoint(self._folder, version)
                if table.metadata().configuration.get(_CLEAN_UP) != "false":
                    table.cleanup_metadata()
        except (DeltaError, OSError) as exc:
            self._next_try = version + _COMMITS_BETWEEN_TRIES
            _log.warning("checkpoint_failed", table=self._uri, error=str(exc))

    def _checkpoint_version(self) -> int:
        """Return the version of the newest checkpoint, -1 if there is none."""
        if self._folder is None:
            return -1 if self._bucket is None else self._bucket.checkpoint_version()
        return _checkpoint_version(self._folder)

    def _sync_beginning(self, folder: Path) -> int:
        """Sync what the entries to come build on, and return the version up to which that is all."""
        version = _checkpoint_version(folder)
        for path in (*folder.glob(f"{version:020d}.checkpoint*"), folder / "_last_checkpoint"):
            with suppress(FileNotFoundError):
                sync_file(str(path))
        for parent in folder.parents:
            try:
                sync_file(str(parent))
            except PermissionError:
                # Somebody else's folder: it was not made for this table.
                break
            if parent.is_mount():
                break
        self._checkpointed = version
        return version

    def _write_checkpoint(self, folder: Path, version: int) -> None:
        """Let delta-rs write the checkpoint of ``version`` elsewhere, and move it here when it is durable."""
        place = folder.parent / _CHECKPOINT_FOLDER
        place.mkdir(exist_ok=True)
        _delete_leftovers(place)
        with TemporaryDirectory(dir=place) as root:
            copy = Path(root, "_delta_log")
            copy.mkdir()
            for path in (
                *folder.glob(f"{self._checkpointed:020d}.checkpoint*"),
                *(_entry(folder, number) for number in range(self._checkpointed + 1, version + 1)),
            ):
                (copy / path.name).hardlink_to(path)
            DeltaTable(root).create_checkpoint()
            # The hint last: where it names a checkpoint that is not there, nobody can open the table.
            for name in (f"{version:020d}.checkpoint.parquet", "_last_checkpoint"):
                sync_file(str(copy / name))
                (copy / name).replace(folder / name)
                sync_file(str(folder))
        self._checkpointed = version

    def _set_torn_aside(self, folder: Path) -> None:
        """Move the log's entries into a folder beside it, from the first on that is torn or missing."""
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            # Another process that opens the table does the same; the entries that it commits then must stay.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            torn = _checkpoint_version(folder) + 1
            while _is_readable(folder, torn):
                torn += 1
            after = sorted(
                (path for path in folder.glob("[0-9]*.json") if path.stem >= f"{torn:020d}"), reverse=True
            )
            # Looked at again: an entry may have come since.
            if not after or len(after) > _MOST_TORN or _is_readable(folder, torn):
                return
            aside = folder.parent / _TORN_FOLDER
            aside.mkdir(exist_ok=True)
            for path in after:
                path.rename(aside / f"{path.stem}-{uuid.uuid4().hex}.json")
            os.fsync(descriptor)
            _log.warning("torn_log_entries_set_aside", table=self._uri, first=torn, entries=len(after))
        finally:
            os.close(descriptor)


def _interval_of(table: DeltaTable) -> int:
    return int(table.metadata().configuration.get("delta.checkpointInterval") or _CHECKPOINT_INTERVAL)


def _entry(folder: Path, version: int) -> Path:
    return folder / entry_name(version)


def _is_readable(folder: Path, version: int) -> bool:
    """Whether an entry is there and whole; delta-rs reads an empty one as an empty commit, except the first."""
    try:
        lines = _entry(folder, version).read_bytes().splitlines()
        return (bool(lines) or version > 0) and all(isinstance(json.loads(line), dict) for line in lines)
    except (FileNotFoundError, ValueError):
        return False


def _checkpoint_version(folder: Path) -> int:
    """Return the version of the newest checkpoint, -1 where there is none."""
    with suppress(FileNotFoundError):
        if (version := hinted_version((folder / "_last_checkpoint").read_bytes())) is not None:
            return version
    return max((int(path.name[:20]) for path in folder.glob("[0-9]*.checkpoint*.parquet")), default=-1)


def _delete_leftovers(place: Path) -> None:
    """Delete the copies of processes that were killed while they wrote a checkpoint."""
    for path in place.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
