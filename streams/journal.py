"""The stream's memory of message ids: the attempts under way, and the ids that may be redelivered."""

import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
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
from model.disk import replacing, sync
from model.errors import CheckpointCorruptError, StorageFullError
from model.format import Format
from streams.ids import IDS_SCHEMA
from streams.journal_mark import LONGEST_RETENTION, JournalMark
from streams.spool import IdSpool
from streams.topic_spans import TopicSpans

# The format of its files: the columns below, and the attempt's number and state in the file's name.
JOURNAL_FORMAT: Final = Format(1)

# The topic of learned ids of replays, because tables do not have their message ids; no topic has this name.
REPLAYS: Final = ""

_PLAIN: Final = {"publish_time": pa.timestamp("us", tz="UTC")}

# One batch adds at most this part of the window: a stream that was suspended for an hour received nothing in it.
_LONGEST_STEP: Final = 0.1
_SUFFIX: Final = ".arrow"
# The folder in which learned ids are sorted; each start empties it.
_LEARNING: Final = "learning"
# A key in a file's metadata, which earlier releases ignore.
_COMMIT_ID: Final = b"commit_id"


class EntryState(StrEnum):
    """The state of an attempt.

    ``pending`` is written before the commit, ``done`` after the acknowledgements. The ids of ``recovered`` are
    committed but perhaps not acknowledged, after a failed acknowledgement or a crash: they stay known for as long
    as Pub/Sub can keep a message.
    """

    PENDING = "pending"
    DONE = "done"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Entry:
    """The ids of one attempt on disk, and the spans of their publish times, which rule out most lookups.

    ``since`` is the start of its window: by the journal's own clock if it is done, in Unix seconds if recovered.
    ``commit_id`` is random and distinguishes its commit from one of another owner with the same number. It is None
    if nothing of the attempt is committed, or if an earlier release wrote the entry.
    """

    attempt: int
    state: EntryState
    path: Path
    first_publish_time: datetime
    last_publish_time: datetime
    spans: TopicSpans
    since: float
    schema: pa.Schema
    commit_id: int | None = None

    def read_ids(self) -> pa.Table:
        """Return the ids, with the journal's columns.

        Raises:
            CheckpointCorruptError: the file can't be read.
        """
        return _read(self.path, self.schema)[0]


class Journal:
    """The ids of attempts in ``folder``: one file for each attempt, and one more for its unacknowledged ids.

    All memory is in these files. A lookup opens only files whose publish times overlap those of the batch, topic
    by topic. In steady flow no file does, so that neither a long window nor a restart costs memory or time.

    The key of a message is its topic, its id and its table. Several subscriptions of one topic may write to
    ``shared_table``; there the subscription is in the key too. The key of a learned replay is its backfill and
    row.
    """

    def __init__(
        self, folder: Path, *, keep_seconds: int, schema: pa.Schema = IDS_SCHEMA, shared_table: str | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.keep_seconds = keep_seconds
        self.mark = JournalMark(folder)
        self._schema = schema
        self._shared_table = shared_table
        # Seconds in which messages came. Starts at 0 with the process: nothing was redelivered while none ran.
        self._clock = 0.0
        self._looked_at = time.monotonic()
        for leftover in folder.glob("*.tmp"):
            leftover.unlink()
        shutil.rmtree(folder / _LEARNING, ignore_errors=True)
        opened = [_open_entry(path, schema) for path in sorted(folder.glob(f"*{_SUFFIX}"))]
        self._entries = {entry.path: entry for entry in opened}

    def entries(self, state: EntryState) -> list[Entry]:
        """Return the entries in ``state``, oldest first."""
        return [entry for entry in list(self._entries.values()) if entry.state is state]

    def last_attempt(self) -> int:
        """Return the highest number of an attempt in the journal, 0 without one."""
        return max((entry.attempt for entry in list(self._entries.values())), default=0)

    def write(self, attempt: int, ids: pa.Table) -> Entry:
        """Write the ids of ``attempt`` durably as pending; call this before anything of it is committed.

        Raises:
            StorageFullError: the disk is full; nothing is left behind.
        """
        failpoint.hit("journal.before_write")
        entry = self._add(attempt, EntryState.PENDING, ids, commit_id=secrets.randbits(63))
        failpoint.hit("journal.written")
        return entry

    def remember(self, attempt: int, ids: pa.Table) -> None:
        """Write ``ids`` durably as recovered, for an attempt that has no entry yet.

        Raises:
            StorageFullError: the disk is full; nothing is left behind.
        """
        self._add(attempt, EntryState.RECOVERED, _without_acks(ids, self._schema))

    def begin(self, *, knows_all: bool) -> None:
        """Begin a start of the stream; an incomplete journal (not ``knows_all``) forgets all ids.

        The stream then learns the ids of each table's rows. Other messages are new when they are redelivered,
        because their rows may have been discarded. A journal that is asked to learn was restored for its ids, and
        forgets only pending attempts.

        Raises:
            StorageFullError: the disk is full.
        """
        if not knows_all:
            for entry in list(self._entries.values()):
                if entry.state is EntryState.PENDING or not self.mark.is_asked:
                    self.forget(entry)
        self.mark.begin(knows_all=knows_all)

    def learn(
        self,
        batches: Iterable[pa.RecordBatch],
        *,
        since: datetime,
        next_attempt: Callable[[], int],
        check_room: Callable[[], Any],
    ) -> int:
        """Write any number of ids durably as recovered, and return their number.

        ``batches`` have the journal's columns without the columns for acknowledgements; for a shared table they
        have the subscription. Most ids are published after ``since``. The ids are sorted on disk by time first,
        because a lookup opens every entry with an overlapping time span. ``check_room`` is called now and then and
        may raise. The journal knows none of the ids before it knows all of them.

        An id with the topic :data:`REPLAYS` is the ``replay`` of :data:`~streams.ids.PULLED_IDS_SCHEMA`. Its time
        is later than the publish time of its message, which is unknown.

        Raises:
            StorageFullError: the disk is full; nothing is left behind.
        """
        folder = self.folder / _LEARNING
        left_out = ("ack_id",) if self._shared_table is not None else ("ack_id", "subscription")
        names = [name for name in self._schema.names if name not in left_out]
        schema = pa.schema([(name, _PLAIN.get(name, pa.string())) for name in names])
        first, last = int(since.timestamp() * 1_000_000), int(time.time() * 1_000_000)
        try:
            folder.mkdir()
            with IdSpool(folder / "ids", schema, first=first, last=last, check_room=check_room) as spool:
                for batch in batches:
                    spool.add(batch)
                learned = [
                    self._write_learned(folder / f"{number:015d}.{EntryState.RECOVERED}{_SUFFIX}", ids)
                    for number, ids in enumerate(spool.tables())
                ]
            self._adopt([entry for entry, _ in learned], next_attempt)
        except OSError as exc:
            raise StorageFullError(
                f"The disk has no room for the ids that the stream reads into its journal {self.folder}: {exc}"
            ) from exc
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return sum(rows for _, rows in learned)

    def _write_learned(self, path: Path, ids: pa.Table) -> tuple[Entry, int]:
        """Write an entry outside the journal's folder, which no start reads; return it and its number of ids."""
        rows = _without_acks(ids, self._schema).unify_dictionaries().combine_chunks()
        self._write(path, rows)
        return _entry(path, rows, time.time()), rows.num_rows

    def _adopt(self, entries: Sequence[Entry], next_attempt: Callable[[], int]) -> None:
        adopted = {}
        for entry in entries:
            attempt = next_attempt()
            path = self._path(attempt, entry.state)
            entry.path.rename(path)
            adopted[path] = replace(entry, attempt=attempt, path=path)
        sync(self.folder)
        self._entries |= adopted

    def finish(self, entry: Entry, unacknowledged: pa.Table) -> None:
        """Mark ``entry`` as committed and acknowledged, except for ``unacknowledged`` ids, which stay known.

        If the disk has no room for a separate entry, or the entry is recovered, all of its ids stay known.
        """
        state = EntryState.DONE
        if unacknowledged.num_rows:
            if entry.state is EntryState.RECOVERED:
                return
            try:
                self.remember(entry.attempt, unacknowledged)
            except StorageFullError:
                state = EntryState.RECOVERED
        self.move(entry, state)

    def keep_only(self, entry: Entry, ids: pa.Table) -> Entry:
        """Reduce the entry to ``ids``, a part of its ids; the others were never committed.

        Raises:
            StorageFullError: the disk is full; the entry is unchanged.
        """
        ids = ids.select(self._schema.names)
        self._write(entry.path, ids, entry.commit_id)
        kept = replace(_entry(entry.path, ids, entry.since), commit_id=entry.commit_id)
        self._entries[entry.path] = kept
        return kept

    def _add(self, attempt: int, state: EntryState, ids: pa.Table, commit_id: int | None = None) -> Entry:
        path = self._path(attempt, state)
        ids = ids.select(self._schema.names)
        self._write(path, ids, commit_id)
        entry = self._entries[path] = replace(_entry(path, ids, self._now(state)), commit_id=commit_id)
        return entry

    def _now(self, state: EntryState) -> float:
        return self._clock if state is EntryState.DONE else time.time()

    def _write(self, path: Path, ids: pa.Table, commit_id: int | None = None) -> None:
        ids = ids.replace_schema_metadata(None if commit_id is None else {_COMMIT_ID: str(commit_id)})
        with replacing(path) as file, pa.ipc.new_file(file, ids.schema) as writer:
            writer.write_table(ids)

    def move(self, entry: Entry, state: EntryState) -> Entry:
        """Move ``entry`` to ``state``, and return the moved entry."""
        path = self._path(entry.attempt, state)
        entry.path.rename(path)
        sync(self.folder)
        del self._entries[entry.path]
        moved = self._entries[path] = replace(entry, state=state, path=path, since=self._now(state))
        return moved

    def forget(self, entry: Entry) -> None:
        """Drop an entry, such as an attempt that was never committed: its messages are new when redelivered."""
        entry.path.unlink()
        del self._entries[entry.path]

    def prune(self, *, has_messages: bool) -> None:
        """Drop the entries that are older than the window; a message that is redelivered later is archived twice.

        Call it after each batch, with whether the batch had messages. Only time with messages counts towards the
        window: while Pub/Sub or the warehouse is unavailable, nothing is redelivered.
        """
        now = time.monotonic()
        if has_messages:
            self._clock += min(now - self._looked_at, self.keep_seconds * _LONGEST_STEP)
        self._looked_at = now
        keep = {EntryState.DONE: self.keep_seconds, EntryState.RECOVERED: LONGEST_RETENTION.total_seconds()}
        newest = self.last_attempt()
        for entry in list(self._entries.values()):
            if entry.state in keep and self._now(entry.state) - entry.since >= keep[entry.state]:
                if entry.attempt == newest and self.keep_seconds:
                    # The next start compares this number, to detect an older copy of the journal.
                    self.mark.note(newest)
                self.forget(entry)

    def find_known(self, ids: pa.Table) -> pa.BooleanArray:
        """Return for each row whether its key is in the journal or in an earlier row.

        A redelivered message has the same topic and publish_time as before. So an entry is opened only if it
        shares a time span of a topic with the batch, and only messages with exactly equal times are compared.
        """
        known = self._is_repeated(ids)
        spans = TopicSpans.of(ids)
        times = ids.column("publish_time")
        different = times.unique()
        # A copy, because another thread may learn a table's ids meanwhile.
        for entry in list(self._entries.values()):
            if not entry.spans.overlap(spans):
                continue
            theirs = entry.read_ids()
            theirs = theirs.filter(pc.is_in(theirs.column("publish_time"), value_set=different))
            if theirs.num_rows:
                is_near = pc.is_in(times, value_set=theirs.column("publish_time"))
                places = np.flatnonzero(is_near.to_numpy())
                known[places] |= self.is_among(ids.filter(is_near), theirs).to_numpy(zero_copy_only=False)
        if "replay" in ids.column_names:
            is_replay = pc.not_equal(ids.column("replay"), "")
            known[np.flatnonzero(is_replay.to_numpy())] |= self._find_learned(_as_replays(ids.filter(is_replay)))
        return pa.array(known, pa.bool_())

    def _find_learned(self, replays: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each of ``replays`` whether it was learned; learned times are later than publish times."""
        known = np.zeros(replays.num_rows, dtype=bool)
        first = pc.min(replays.column("publish_time")).as_py()
        for entry in self.entries(EntryState.RECOVERED) if replays.num_rows else ():
            if first <= entry.last_publish_time:
                theirs = entry.read_ids()
                theirs = theirs.filter(pc.equal(theirs.column("topic").cast(pa.string()), REPLAYS))
                known |= self.is_among(replays, theirs).to_numpy(zero_copy_only=False)
        return known

    def is_among(self, ids: pa.Table, others: pa.Table) -> pa.BooleanArray:
        """Return for each row of ``ids`` whether its message (and table, if there are several) is in ``others``.

        In an entry of an earlier release, a row of the shared table may have no subscription; it then stands for
        all of them.
        """
        keys = self._keys(others)
        found = pc.is_in(self._keys(ids), value_set=keys)
        if self._shared_table is not None and pc.any(self._is_unnamed(others)).as_py():
            found = pc.or_(found, pc.is_in(self._keys(_without_subscription(ids)), value_set=keys))
        return found.combine_chunks()

    def _keys(self, ids: pa.Table) -> pa.ChunkedArray:
        """Return the key of each message as a string; no id has a line break."""
        columns = [ids.column("topic").cast(pa.string()), ids.column("message_id")]
        if "table" in ids.column_names:
            columns.append(ids.column("table").cast(pa.string()))
        if self._shared_table is not None:
            columns.append(pc.if_else(self._is_shared(ids), ids.column("subscription").cast(pa.string()), ""))
        return pc.binary_join_element_wise(*columns, "\n")

    def _is_shared(self, ids: pa.Table) -> pa.ChunkedArray:
        return pc.equal(ids.column("table").cast(pa.string()), self._shared_table)

    def _is_unnamed(self, ids: pa.Table) -> pa.ChunkedArray:
        return pc.and_(self._is_shared(ids), pc.equal(ids.column("subscription").cast(pa.string()), ""))

    def _is_repeated(self, ids: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each row whether an earlier row has the same key."""
        repeated = np.zeros(ids.num_rows, dtype=bool)
        # Ids of one topic differ, and those of two nearly always do: then there are no keys to make.
        if pc.count_distinct(ids.column("message_id")).as_py() < ids.num_rows:
            seen: set[str] = set()
            for place, key in enumerate(self._keys(ids).to_pylist()):
                repeated[place] = key in seen
                seen.add(key)
        return repeated

    def _path(self, attempt: int, state: EntryState) -> Path:
        return self.folder / f"{attempt:015d}.{state}{_SUFFIX}"


def _without_acks(ids: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return ids in the journal's ``schema``, without their acknowledgements."""
    empty = pa.repeat(pa.scalar(""), ids.num_rows)
    columns = {"subscription": empty, **{name: ids.column(name) for name in ids.column_names}, "ack_id": empty}
    return pa.table([columns[name] for name in schema.names], names=schema.names).cast(schema)


def _as_replays(ids: pa.Table) -> pa.Table:
    """Return ids of replays in the form in which they are learned."""
    columns = {name: ids.column(name) for name in ids.column_names}
    topic = pa.repeat(pa.scalar(REPLAYS), ids.num_rows)
    return pa.table({**columns, "topic": topic, "message_id": ids.column("replay")})


def _without_subscription(ids: pa.Table) -> pa.Table:
    at = ids.column_names.index("subscription")
    return ids.set_column(at, "subscription", pa.repeat(pa.scalar(""), ids.num_rows))


def _open_entry(path: Path, schema: pa.Schema) -> Entry:
    ids, written_at = _read(path, schema)
    entry = _entry(path, ids, written_at)
    found = (ids.schema.metadata or {}).get(_COMMIT_ID)
    commit_id = None if found is None else int(found)
    return replace(entry, since=0.0 if entry.state is EntryState.DONE else entry.since, commit_id=commit_id)


def _read(path: Path, schema: pa.Schema) -> tuple[pa.Table, float]:
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        if not table.schema.equals(schema):
            raise pa.ArrowInvalid(f"schema {table.schema.names}")
        return table, path.stat().st_mtime
    except (OSError, pa.ArrowException) as exc:
        raise CheckpointCorruptError(
            f"The journal file {path} can't be read ({exc}). Move the folder {path.parent} away "
            "and start the stream again. Nothing is lost: the stream reads from its tables the "
            "ids of the messages that Pub/Sub may redeliver.",
            file=str(path),
        ) from exc


def _entry(path: Path, ids: pa.Table, since: float) -> Entry:
    attempt, state, _ = path.name.split(".")
    ends = pc.min_max(ids.column("publish_time"))
    first, last = ends["min"].as_py(), ends["max"].as_py()
    return Entry(int(attempt), EntryState(state), path, first, last, TopicSpans.of(ids), since, ids.schema)
