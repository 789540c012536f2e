"""What the stand-in keeps: datasets, tables, the parts that hold their rows, streams, jobs, read sessions.

One SQLite file beside a folder of frame files. A transaction is one moment for every reader, and what was
answered survives ``kill -9`` of the server: SQLite's log and the frames are the kernel's by then.
"""

import fcntl
import itertools
import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tests.standin.frames import Frame, FrameLog, write_table
from tests.standin.problems import not_found
from tests.standin.schemas import arrow_schema, conform

PARTITION_TIME: Final = "_PARTITIONTIME"
PARTITION_DATE: Final = "_PARTITIONDATE"
_STEPS_US: Final = {"HOUR": 3_600_000_000, "DAY": 86_400_000_000}
# How long Google's people have asked to wait after a table was made again
# (https://github.com/googleapis/google-cloud-go/issues/876).
_CONSISTENCY_US: Final = 600_000_000
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS datasets (project TEXT, dataset TEXT, body TEXT, PRIMARY KEY (project, dataset));
CREATE TABLE IF NOT EXISTS tables (id INTEGER PRIMARY KEY AUTOINCREMENT, project TEXT, dataset TEXT, name TEXT,
  body TEXT, UNIQUE (project, dataset, name));
CREATE TABLE IF NOT EXISTS parts (id INTEGER PRIMARY KEY AUTOINCREMENT, table_id INTEGER, path TEXT,
  first_row INTEGER, last_row INTEGER, arrival_us INTEGER, partition_us INTEGER, shown_us INTEGER,
  dropped_us INTEGER);
CREATE INDEX IF NOT EXISTS parts_of_table ON parts (table_id);
CREATE TABLE IF NOT EXISTS streams (name TEXT PRIMARY KEY, table_id INTEGER, type TEXT, path TEXT,
  created_us INTEGER, finalised INTEGER DEFAULT 0, committed_us INTEGER, flushed INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS jobs (project TEXT, id TEXT, body TEXT, created_us INTEGER, PRIMARY KEY (project, id));
CREATE TABLE IF NOT EXISTS sessions (name TEXT PRIMARY KEY, body TEXT, expires_us INTEGER);
CREATE TABLE IF NOT EXISTS holds (table_id INTEGER PRIMARY KEY, since_us INTEGER);
"""


def now_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class TableKey:
    """A table's full name."""

    project: str
    dataset: str
    name: str

    def __str__(self) -> str:
        return f"{self.project}.{self.dataset}.{self.name}"


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table as it is stored; ``body`` is the REST resource without what is computed."""

    id: int
    key: TableKey
    body: Mapping[str, Any]

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns, without pseudo columns."""
        return self.body.get("schema", {}).get("fields", [])

    @property
    def ingestion_step_us(self) -> int | None:
        """The length of a partition of an ingestion-time partitioned table, else None."""
        partitioning = self.body.get("timePartitioning")
        if not partitioning or partitioning.get("field"):
            return None
        return _STEPS_US[partitioning["type"]]

    @property
    def is_view(self) -> bool:
        return "view" in self.body

    def arrow_schema(self, *, pseudo: bool = False) -> pa.Schema:
        """Return the columns as Arrow's, with ``pseudo`` those that are not stored as well."""
        schema = arrow_schema(self.fields)
        if pseudo and self.ingestion_step_us:
            schema = schema.append(pa.field(PARTITION_TIME, pa.timestamp("us", tz="UTC")))
            schema = schema.append(pa.field(PARTITION_DATE, pa.date32()))
        return schema


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [first, last) of a file that share a partition; None is the write buffer or no partitioning."""

    path: str
    first_row: int
    last_row: int
    partition_us: int | None
    arrival_us: int | None = None

    @property
    def rows(self) -> int:
        return self.last_row - self.first_row


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table's rows at one moment; ``ends`` says how far each part was read, for who replaces them."""

    table: TableEntry
    pieces: tuple[Piece, ...]
    ends: Mapping[int, int]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


class Catalog:
    """Everything that is kept, under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "rows").mkdir(parents=True, exist_ok=True)
        self._lock_file = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise SystemExit(f"Another server uses {folder}.") from exc
        self._db = sqlite3.connect(folder / "catalog.db", check_same_thread=False, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.executescript(_TABLES)
        self._lock = threading.RLock()
        self._logs: dict[str, FrameLog] = {}
        self._change_locks: dict[int, threading.Lock] = {}
        self._moment_us = 0
        # For how long the Storage Write API does not know a new table, and new columns of one.
        self.new_tables_us = self.new_columns_us = 0
        self.delayed = ""
        # By table: when all of its rows were replaced.
        self._replaced_us: dict[int, int] = {}

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, one at a time."""
        with self._lock:
            if self._db.in_transaction:
                yield self._db
                return
            self._db.execute("BEGIN IMMEDIATE")
            # What a transaction shows and what it takes away change at one moment of the table's past.
            self._moment_us = now_us()
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def query(self, sql: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def change_lock(self, table_id: int) -> threading.Lock:
        """Return the lock that whoever rewrites a table's rows holds."""
        with self._lock:
            return self._change_locks.setdefault(table_id, threading.Lock())

    def note_replaced(self, table_id: int) -> None:
        """Note that a query has taken the place of all of a table's rows just now."""
        self._replaced_us[table_id] = now_us()

    def loses_streams(self, table_id: int) -> bool:
        """Whether rows that streams bring to a table now are lost, because it was replaced a moment ago.

        "Truncating a table's data (by using a query job that uses writeDisposition of WRITE_TRUNCATE) can
        similarly cause subsequent inserts during the consistency period to be dropped."
        (https://cloud.google.com/bigquery/docs/error-messages#metadata-errors-for-streaming-inserts). No page says
        how long that is, or that the Storage Write API knows better: the unkind answer is kept here.
        """
        replaced_us = self._replaced_us.get(table_id)
        return replaced_us is not None and now_us() - replaced_us < _CONSISTENCY_US

    # Datasets and tables

    def find_dataset(self, project: str, dataset: str) -> dict[str, Any]:
        """Return a dataset's body.

        Raises:
            Problem: ``notFound``.
        """
        rows = self.query("SELECT body FROM datasets WHERE project = ? AND dataset = ?", project, dataset)
        if not rows:
            raise not_found("Dataset", project, dataset)
        return dict(json.loads(rows[0]["body"]))

    def find_table(self, key: TableKey) -> TableEntry:
        """Return a table; one that has expired is gone.

        Raises:
            Problem: ``notFound``, of the dataset or of the table.
        """
        entry = self.get_table(key)
        if entry is None:
            self.find_dataset(key.project, key.dataset)
            raise not_found("Table", key.project, key.dataset, key.name)
        return entry

    def get_table(self, key: TableKey) -> TableEntry | None:
        rows = self.query(
            "SELECT id, body FROM tables WHERE project = ? AND dataset = ? AND name = ?",
            key.project,
            key.dataset,
            key.name,
        )
        if not rows:
            return None
        entry = TableEntry(rows[0]["id"], key, json.loads(rows[0]["body"]))
        expires = entry.body.get("expirationTime")
        if expires and int(expires) * 1000 <= now_us():
            self.delete_table(entry)
            return None
        return entry

    def table_by_id(self, table_id: int) -> TableEntry | None:
        """Return a table by what outlives no deletion: its number."""
        rows = self.query("SELECT project, dataset, name FROM tables WHERE id = ?", table_id)
        return self.get_table(TableKey(*rows[0])) if rows else None

    def put_table(self, key: TableKey, body: Mapping[str, Any]) -> TableEntry:
        with self.transaction() as db:
            db.execute(
                "INSERT INTO tables (project, dataset, name, body) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (project, dataset, name) DO UPDATE SET body = excluded.body",
                (key.project, key.dataset, key.name, json.dumps(body)),
            )
        entry = self.get_table(key)
        assert entry is not None
        return entry

    def delete_table(self, entry: TableEntry) -> None:
        with self.transaction() as db:
            paths = db.execute(
                "SELECT path FROM parts WHERE table_id = ?1 UNION SELECT path FROM streams WHERE table_id = ?1",
                (entry.id,),
            ).fetchall()
            for table in ("parts", "streams", "holds"):
                db.execute(f"DELETE FROM {table} WHERE table_id = ?", (entry.id,))
            db.execute("DELETE FROM tables WHERE id = ?", (entry.id,))
        for row in paths:
            self._logs.pop(row["path"], None)
            (self.folder / row["path"]).unlink(missing_ok=True)

    # Rows

    def new_path(self, entry: TableEntry) -> str:
        """Return a path for new rows of a table, relative to the folder."""
        return f"rows/{entry.id}-{uuid.uuid4().hex}.frames"

    def log(self, path: str) -> FrameLog:
        """Return the file under ``path``, opened once."""
        with self._lock:
            if path not in self._logs:
                self._logs[path] = FrameLog(self.folder / path)
            return self._logs[path]

    def snapshot(self, entry: TableEntry, at_us: int | None = None) -> Snapshot:
        """Return the rows that a reader sees now, or saw at a moment; expired partitions are gone."""
        visible = "dropped_us IS NULL"
        if at_us is not None:
            visible = f"coalesce(shown_us, 0) <= {at_us} AND coalesce(dropped_us, {at_us} + 1) > {at_us}"
        with self._lock:
            parts = self.query(f"SELECT * FROM parts WHERE table_id = ? AND {visible} ORDER BY id", entry.id)
            holds = self.query("SELECT since_us FROM holds WHERE table_id = ?", entry.id)
        held_since = holds[0]["since_us"] if holds else None
        step = entry.ingestion_step_us
        expiration = int(entry.body.get("timePartitioning", {}).get("expirationMs") or 0) * 1000
        oldest = now_us() - expiration if expiration and step else None
        pieces: list[Piece] = []
        ends: dict[int, int] = {}
        for part in parts:
            frames = _frames_within(self.log(part["path"]), part["first_row"], part["last_row"])
            if at_us is not None and part["arrival_us"] is None:
                frames = [frame for frame in frames if frame.arrival_us <= at_us]
            if not frames:
                continue
            ends[part["id"]] = frames[-1].first_row + frames[-1].rows
            for partition, group in itertools.groupby(frames, lambda f: _partition(part, f, step, held_since)):  # noqa: B023
                if oldest is not None and partition is not None and partition + (step or 0) <= oldest:
                    continue
                run = list(group)
                # A flush may end within a frame.
                first = max(run[0].first_row, part["first_row"])
                last = run[-1].first_row + run[-1].rows
                last = last if part["last_row"] is None else min(last, part["last_row"])
                pieces.append(Piece(part["path"], first, last, partition, part["arrival_us"]))
        return Snapshot(entry, tuple(pieces), ends)

    def read(self, entry: TableEntry, pieces: Sequence[Piece], *, pseudo: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``pieces`` in the table's columns, with the pseudo columns if it has any."""
        schema = entry.arrow_schema()
        for piece in pieces:
            log = self.log(piece.path)
            frames = _frames_within(log, piece.first_row, piece.last_row)
            for frame, batch in log.read(frames):
                skipped = max(0, piece.first_row - frame.first_row)
                wanted = min(frame.rows, piece.last_row - frame.first_row) - skipped
                shaped = conform(batch.slice(skipped, wanted), schema)
                yield _with_pseudo(shaped, piece.partition_us) if pseudo and entry.ingestion_step_us else shaped

    def read_table(self, snapshot: Snapshot, partitions: frozenset[int | None] | None = None) -> pa.Table:
        """Return a snapshot's rows, of ``partitions`` only when they are given."""
        pieces = [p for p in snapshot.pieces if partitions is None or p.partition_us in partitions]
        schema = snapshot.table.arrow_schema(pseudo=True)
        relaxed = pa.schema([field.with_nullable(True) for field in schema])
        return pa.Table.from_batches(
            [batch.cast(relaxed) for batch in self.read(snapshot.table, pieces)], schema=relaxed
        )

    def write_rows(self, entry: TableEntry, rows: pa.Table, partition_us: int | None) -> dict[str, Any]:
        """Write rows to a new file and return the part that :meth:`add_part` makes visible."""
        path = self.new_path(entry)
        moment = now_us()
        written = write_table(self.folder / path, rows, moment)
        step = entry.ingestion_step_us
        floor = None if partition_us is None or step is None else partition_us - partition_us % step
        return {"path": path, "last_row": written, "arrival_us": moment, "partition_us": floor}

    def arrival_us(self, piece: Piece) -> int:
        if piece.arrival_us is not None:
            return piece.arrival_us
        return _frames_within(self.log(piece.path), piece.first_row, piece.last_row)[0].arrival_us

    def stored_bytes(self, snapshot: Snapshot) -> int:
        return sum(
            frame.size
            for piece in snapshot.pieces
            for frame in _frames_within(self.log(piece.path), piece.first_row, piece.last_row)
        )

    def add_part(self, entry: TableEntry, part: Mapping[str, Any]) -> None:
        """Make rows visible, in the transaction around or in one of its own; an empty part is none."""
        if part["last_row"] == 0:
            return
        with self.transaction() as db:
            db.execute(
                "INSERT INTO parts (table_id, path, first_row, last_row, arrival_us, partition_us, shown_us) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    entry.id,
                    part["path"],
                    part.get("first_row", 0),
                    part["last_row"],
                    part["arrival_us"],
                    part["partition_us"],
                    self._moment_us,
                ),
            )

    def drop_parts(self, snapshot: Snapshot) -> None:
        """Take the rows of a snapshot away, but from the past; what a stream has appended since stays."""
        with self.transaction() as db:
            moment = self._moment_us
            for part_id, end in snapshot.ends.items():
                db.execute(
                    "INSERT INTO parts (table_id, path, first_row, last_row, arrival_us, partition_us, shown_us, "
                    "dropped_us) SELECT table_id, path, first_row, ?, arrival_us, partition_us, shown_us, ? "
                    "FROM parts WHERE id = ? AND last_row IS NULL",
                    (end, moment, part_id),
                )
                db.execute("UPDATE parts SET first_row = ? WHERE id = ? AND last_row IS NULL", (end, part_id))
                db.execute(
                    "UPDATE parts SET dropped_us = ? WHERE id = ? AND last_row IS NOT NULL", (moment, part_id)
                )


def _frames_within(log: FrameLog, first: int, last: int | None) -> list[Frame]:
    frames = list(log.frames)
    return [f for f in frames if f.first_row + f.rows > first and (last is None or f.first_row < last)]


def _partition(part: Mapping[str, Any], frame: Frame, step: int | None, held_since: int | None) -> int | None:
    """Return a frame's partition, None in the write buffer, for as long as a test holds the rows there.

    "Query partitioned tables", section "Query an ingestion-time partitioned table": to query data in the
    write-optimised storage, use ``_PARTITIONTIME IS NULL``. No page says whether rows of a PENDING stream lie
    there after their commit, but the service calls a COMMITTED stream WRITE_OPTIMIZED
    (https://github.com/googleapis/nodejs-bigquery-storage/issues/413): the unkind answer is kept here, for both.
    """
    if step is None:
        return None
    if part["partition_us"] is not None:
        return int(part["partition_us"])
    arrival = part["arrival_us"] or frame.arrival_us
    if held_since is not None and arrival >= held_since:
        return None
    return int(arrival - arrival % step)


def _with_pseudo(batch: pa.RecordBatch, partition_us: int | None) -> pa.RecordBatch:
    moment = pa.scalar(partition_us, pa.timestamp("us", tz="UTC"))
    day = None if partition_us is None else partition_us // _STEPS_US["DAY"]
    times = pa.repeat(moment, batch.num_rows)
    days = pa.repeat(pa.scalar(day, pa.int32()), batch.num_rows).cast(pa.date32())
    return batch.append_column(PARTITION_TIME, times).append_column(PARTITION_DATE, days)
