"""The stream's memory of message ids: which attempts are under way, and which ids may come again."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from model import failpoint
from model.errors import CheckpointCorruptError, StorageFullError

# One row a message that an attempt holds.
IDS_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("subscription", pa.dictionary(pa.int32(), pa.string())),
        ("message_id", pa.string()),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("ack_id", pa.string()),
    ]
)

# The same, for a stream that writes several tables: a message is known for the table that has it.
TABLE_IDS_SCHEMA: Final = IDS_SCHEMA.append(pa.field("table", pa.dictionary(pa.int32(), pa.string())))

# Pub/Sub keeps an un-acked message for seven days unless a subscription says otherwise.
_RECOVERED_SECONDS: Final = 7 * 86400
_SUFFIX: Final = ".arrow"


class EntryState(StrEnum):
    """Where an attempt stands.

    ``pending`` is written before its commit; ``done`` follows its acks; ``recovered`` is one whose commit was
    found after a crash: its acks may have come too late, so that its ids stay known until Pub/Sub itself
    forgets the messages.
    """

    PENDING = "pending"
    DONE = "done"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Entry:
    """One attempt's ids on disk, and the span of their publish times, which tells most lookups 'not here'."""

    attempt: int
    state: EntryState
    path: Path
    first_publish_time: datetime
    last_publish_time: datetime
    written_at: float
    schema: pa.Schema

    def read_ids(self) -> pa.Table:
        """Return the ids in the columns of their journal.

        Raises:
            CheckpointCorruptError: the file can't be read.
        """
        return _read(self.path, self.schema)[0]


class Journal:
    """The ids of attempts, a file each, in ``folder``.

    Files are the whole memory: a lookup opens only those whose publish times overlap the batch's, which in
    steady flow is none, so that neither a long window nor a restart costs memory or time.
    """

    def __init__(self, folder: Path, *, keep_seconds: int, schema: pa.Schema = IDS_SCHEMA) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._keep_seconds = keep_seconds
        # Time in which no stream ran does not count towards the window: nothing came again in it.
        self._started_at = time.time()
        for leftover in folder.glob("*.tmp"):
            leftover.unlink()
        opened = [_open_entry(path, schema) for path in sorted(folder.glob(f"*{_SUFFIX}"))]
        self._entries = {entry.attempt: entry for entry in opened}

    def entries(self, state: EntryState) -> list[Entry]:
        """Return the entries in ``state``, oldest first."""
        return [entry for entry in self._entries.values() if entry.state is state]

    def last_attempt(self) -> int:
        """Return the highest number of an attempt here, 0 when there is none."""
        return max(self._entries, default=0)

    def write(self, attempt: int, ids: pa.Table) -> Entry:
        """Write the ids of ``attempt`` durably, as pending, before anything of it is committed.

        Raises:
            StorageFullError: there is no room; nothing is left behind.
        """
        failpoint.hit("journal.before_write")
        path = self._path(attempt, EntryState.PENDING)
        self._write(path, ids)
        entry = _entry(path, ids, time.time())
        self._entries[attempt] = entry
        failpoint.hit("journal.written")
        return entry

    def keep_only(self, entry: Entry, ids: pa.Table) -> Entry:
        """Put ``ids``, a part of its own, in the place of the entry's: the others were never committed.

        Raises:
            StorageFullError: there is no room; the entry is as it was.
        """
        self._write(entry.path, ids)
        kept = _entry(entry.path, ids, entry.written_at)
        self._entries[entry.attempt] = kept
        return kept

    def _write(self, path: Path, ids: pa.Table) -> None:
        temporary = path.with_suffix(".tmp")
        try:
            with temporary.open("wb") as file:
                with pa.ipc.new_file(file, ids.schema) as writer:
                    writer.write_table(ids)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
            self._sync_folder()
        except OSError as exc:
            temporary.unlink(missing_ok=True)
            raise StorageFullError(f"The journal {path} can't be written: {exc}") from exc

    def move(self, entry: Entry, state: EntryState) -> None:
        """Say that ``entry`` is in ``state`` now."""
        path = self._path(entry.attempt, state)
        entry.path.rename(path)
        self._sync_folder()
        self._entries[entry.attempt] = replace(entry, state=state, path=path, written_at=time.time())

    def forget(self, entry: Entry) -> None:
        """Drop an attempt that was never committed: its messages come again and are new."""
        entry.path.unlink()
        del self._entries[entry.attempt]

    def prune(self) -> None:
        """Drop what is older than the window; ids that come again after it are archived twice."""
        now = time.time()
        for entry in list(self._entries.values()):
            keep = {EntryState.DONE: self._keep_seconds, EntryState.RECOVERED: _RECOVERED_SECONDS}.get(entry.state)
            if keep is not None and now - max(entry.written_at, self._started_at) > keep:
                self.forget(entry)

    def find_known(self, ids: pa.Table) -> pa.BooleanArray:
        """Say of each row whether its (topic, message_id) is in the journal, or stands in an earlier row.

        A message that comes again has the publish_time it had, so only rows within the span that a batch and an
        entry have in common are compared.
        """
        known = _is_repeated(ids)
        times = ids.column("publish_time")
        ends = pc.min_max(times)
        first, last = ends["min"].as_py(), ends["max"].as_py()
        for entry in self._entries.values():
            if entry.last_publish_time < first or last < entry.first_publish_time:
                continue
            is_near = _is_between(times, entry.first_publish_time, entry.last_publish_time)
            theirs = entry.read_ids()
            theirs = theirs.filter(_is_between(theirs.column("publish_time"), first, last))
            places = np.flatnonzero(is_near.to_numpy())
            known[places] |= pc.is_in(_keys(ids.filter(is_near)), value_set=_keys(theirs)).to_numpy()
        return pa.array(known, pa.bool_())

    def _path(self, attempt: int, state: EntryState) -> Path:
        return self._folder / f"{attempt:015d}.{state}{_SUFFIX}"

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def concat_ids(parts: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all ``parts`` in order, with one dictionary a column."""
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def without_acks(ids: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return ids of another home's messages in the journal's ``schema``: they can't be acknowledged from here."""
    empty = pa.repeat(pa.scalar(""), ids.num_rows)
    columns = {**{name: ids.column(name) for name in ids.column_names}, "subscription": empty, "ack_id": empty}
    return pa.table([columns[name] for name in schema.names], names=schema.names).cast(schema)


def is_among(ids: pa.Table, others: pa.Table) -> pa.BooleanArray:
    """Say of each row of ``ids`` whether its message, for its table where there are several, is in ``others``."""
    return pc.is_in(_keys(ids), value_set=_keys(others)).combine_chunks()


def _keys(ids: pa.Table) -> pa.ChunkedArray:
    """Return topic, message_id, and the table where there are several, as one string; no id has a line break."""
    columns = [ids.column("topic").cast(pa.string()), ids.column("message_id")]
    if "table" in ids.column_names:
        columns.append(ids.column("table").cast(pa.string()))
    return pc.binary_join_element_wise(*columns, "\n")


def _is_repeated(ids: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Say of each row whether its key stands in an earlier one."""
    repeated = np.zeros(ids.num_rows, dtype=bool)
    # Ids of one topic differ, and those of two nearly always do: then there are no keys to make.
    if pc.count_distinct(ids.column("message_id")).as_py() < ids.num_rows:
        seen: set[str] = set()
        for place, key in enumerate(_keys(ids).to_pylist()):
            repeated[place] = key in seen
            seen.add(key)
    return repeated


def _is_between(times: pa.ChunkedArray, first: datetime, last: datetime) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last))


def _open_entry(path: Path, schema: pa.Schema) -> Entry:
    ids, written_at = _read(path, schema)
    return _entry(path, ids, written_at)


def _read(path: Path, schema: pa.Schema) -> tuple[pa.Table, float]:
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        if not table.schema.equals(schema):
            raise pa.ArrowInvalid(f"schema {table.schema.names}")
        return table, path.stat().st_mtime
    except (OSError, pa.ArrowException) as exc:
        raise CheckpointCorruptError(
            f"The journal file {path} can't be read ({exc}). Move it away and start again: no message is lost by "
            "that; messages of this one attempt that were committed but not acknowledged may be archived twice.",
            file=str(path),
        ) from exc


def _entry(path: Path, ids: pa.Table, written_at: float) -> Entry:
    attempt, state, _ = path.name.split(".")
    ends = pc.min_max(ids.column("publish_time"))
    first, last = ends["min"].as_py(), ends["max"].as_py()
    return Entry(int(attempt), EntryState(state), path, first, last, written_at, ids.schema)
