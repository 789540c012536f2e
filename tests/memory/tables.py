"""Tables in the memory of this process: an archive, tables of rows, their leases and attempts."""

import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from connectors.columns import arrow_schema
from connectors.pubsub.pull import PULLED_SCHEMA
from model.archive import IdSpan
from model.errors import CommitOutcomeUnknownError, LeaseLostError
from model.schema import Evolution, RowSchema, evolution_error, plan_evolution
from model.volume import add_counts, hour_key, volumes_of
from model.widening import plan_widening, widen_value
from model.window import Window

IDS = pa.schema(
    [("topic", pa.string()), ("message_id", pa.string()), ("publish_time", pa.timestamp("us", tz="UTC"))]
)
MESSAGES = pa.schema(
    [
        *(field for field in PULLED_SCHEMA if field.name != "ack_id"),
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("ingest_time", pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass
class Table:
    """Rows that were committed, and for each stream the newest attempt that is in."""

    name: str
    schema: RowSchema | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    commits: dict[str, int | None] = field(default_factory=dict)

    def has(self, stream: str, number: int, commit_id: int | None) -> bool:
        return self.attempts.get(stream, 0) == number and commit_id in (None, self.commits.get(stream))


@dataclass
class Memory:
    """All tables, the parts that wait for a commit, the epochs of leases and what their holders wrote."""

    tables: dict[str, Table] = field(default_factory=dict)
    parts: dict[str, pa.Table] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    holders: dict[str, bytes] = field(default_factory=dict)
    # What the next commit of the archive loses: its request ("before") or its answer ("after").
    lost: str | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    def table(self, name: str) -> Table:
        return self.tables.setdefault(name, Table(name))

    def keep(self, rows: pa.Table) -> "Part":
        key = uuid.uuid4().hex
        self.parts[key] = rows
        return Part(key, rows.num_rows, max(1, rows.nbytes))

    def without(self, part: "Part", is_unwanted: pa.BooleanArray) -> "Part | None":
        kept = self.parts.pop(part.key).filter(pc.invert(is_unwanted))
        return self.keep(kept) if kept.num_rows else None

    def read_since(self, name: str, publish_column: str, span: IdSpan) -> list[dict[str, Any]]:
        return [
            row
            for row in list(self.table(name).rows)
            if row[publish_column] >= span.published_since or row["ingest_time"] >= span.ingested_since
        ]

    def read_between(self, name: str, column: str, window: Window) -> list[dict[str, Any]]:
        return [row for row in list(self.table(name).rows) if window.contains(row[column])]

    def check(self, lease: str, epoch: int) -> None:
        if self.epochs.get(lease, 0) != epoch:
            raise LeaseLostError(lease=lease)

    def add(self, name: str, parts: list["Part"], stream: str, number: int, commit_id: int | None) -> None:
        table = self.table(name)
        for part in parts:
            table.rows += self.parts.pop(part.key).to_pylist()
        table.attempts[stream] = number
        table.commits[stream] = commit_id


@dataclass(frozen=True)
class Part:
    """Rows that wait for their commit."""

    key: str
    rows: int
    size_bytes: int
    dead_letters: int = 0
    refused: tuple[tuple[int, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"key": self.key, "rows": self.rows, "size_bytes": self.size_bytes}


@dataclass(frozen=True)
class Leases:
    memory: Memory

    def read_lease(self, name):
        return self.memory.holders.get(name)

    def write_lease(self, name, epoch, content):
        self.memory.check(name, epoch)
        self.memory.holders[name] = content

    def now(self):
        return time.time()

    def take_lease(self, name):
        with self.memory.lock:
            self.memory.epochs[name] = self.memory.epochs.get(name, 0) + 1
            return self.memory.epochs[name]


@dataclass(frozen=True)
class ArchiveWriter:
    memory: Memory
    is_by_topic: bool = False

    def as_json(self):
        return {}

    def write(self, parts):
        now = datetime.now(UTC)
        rows = [
            {**row, "topic": topic, "subscription": subscription, "ingest_time": now}
            for topic, subscription, batch in parts
            for row in batch.drop_columns(["ack_id"]).to_pylist()
        ]
        return self.memory.keep(pa.Table.from_pylist(rows))


class Archive:
    """The archive: one table, committed to under a lease."""

    def __init__(self, memory: Memory, name: str) -> None:
        self.uri = f"memory:{name}"
        self._memory = memory
        self._name = name

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self._memory.table(self._name).rows

    def another(self):
        return Archive(self._memory, self._name)

    def create(self):
        self._memory.table(self._name)

    def differences(self):
        return []

    def check(self):
        """Everything is always ready here."""

    def writer(self):
        return ArchiveWriter(self._memory)

    def parse_part(self, fields):
        return Part(**fields)

    def without(self, part, is_unwanted):
        return self._memory.without(part, is_unwanted)

    def drop(self, part):
        self._memory.parts.pop(part.key, None)

    def leases(self):
        return Leases(self._memory)

    def take_lease(self, lease):
        return self.leases().take_lease(lease)

    def lease_epoch(self, lease):
        return self._memory.epochs.get(lease, 0)

    def committed_attempt(self, stream):
        return self._memory.table(self._name).attempts.get(stream, 0)

    def settle(self, attempt):
        return self._memory.table(self._name).has(attempt.stream, attempt.number, attempt.commit_id)

    def read_ids(self, span):
        rows = self._memory.read_since(self._name, "publish_time", span)
        yield from pa.Table.from_pylist(rows, schema=IDS).to_batches()

    def read_messages(self, topics, window, budget):
        rows = self._memory.read_between(self._name, "ingest_time", window)
        yield from pa.Table.from_pylist(
            [row for row in rows if row["topic"] in topics], schema=MESSAGES
        ).to_batches()

    def commit(self, parts, attempt, ids=None):
        lost, self._memory.lost = self._memory.lost, None
        with self._memory.lock:
            self._memory.check(attempt.lease, attempt.lease_epoch)
            if lost != "before":
                self._memory.add(self._name, parts, attempt.stream, attempt.number, attempt.commit_id)
        if lost is not None:
            raise CommitOutcomeUnknownError

    def compact(self, *, max_small_files=0):
        return 0

    def count_rows(self):
        return len(self.rows)

    def scan(self, columns):
        yield from pa.Table.from_pylist(self.rows, schema=MESSAGES).select(list(columns)).to_batches()

    def volumes(self, window):
        counts: dict[str, dict[str, tuple[int, int]]] = {}
        for row in self.rows:
            add_counts(counts, {hour_key(row["ingest_time"]): {row["topic"]: (1, len(row["data"]))}})
        return volumes_of([counts], window)

    def batch_seconds(self, wanted_seconds, slots):
        return wanted_seconds

    def close(self):
        """Nothing is open."""


@dataclass(frozen=True)
class RowWriter:
    memory: Memory

    def as_json(self):
        return {}

    def write_rows(self, batches):
        rows = pa.Table.from_batches(batches)
        place = rows.schema.get_field_index("ingest_time")
        now = pa.repeat(pa.scalar(datetime.now(UTC), rows.schema.field(place).type), rows.num_rows)
        return self.memory.keep(rows.set_column(place, rows.schema.field(place), now))


class RowTable:
    """One table of rows; cells are as Arrow gives them."""

    def __init__(self, memory: Memory, name: str) -> None:
        self.name = name
        self._memory = memory

    @property
    def _table(self) -> Table:
        return self._memory.table(self.name)

    def exists(self):
        return self._table.schema is not None

    def schema(self):
        return self._table.schema

    def plan(self, wanted):
        current = self.schema()
        return Evolution(wanted, (), ()) if current is None else plan_evolution(current, wanted)

    def evolve(self, wanted):
        evolution = self.plan(wanted)
        if evolution.refused:
            raise evolution_error(self.name, evolution)
        self._table.schema = evolution.schema
        return evolution

    def widen(self, wanted):
        current, evolution = self.schema(), self.plan(wanted)
        if current is not None and evolution.refused:
            widened = plan_widening(self.name, current, wanted, evolution)
            pairs = list(zip(current.fields, widened.fields, strict=True))
            for row in self._table.rows:
                row.update({new.name: widen_value(row.get(new.name), old, new) for old, new in pairs})
            self._table.schema = widened
        self.evolve(wanted)

    def writer(self, schema):
        return RowWriter(self._memory)

    def read_rows(self, columns=None):
        schema = self.schema()
        if schema is None:
            return []
        # Through the table's columns, so that a row written before one was added has it too.
        rows = pa.Table.from_pylist(self._table.rows, schema=arrow_schema(schema)).to_pylist()
        return [{name: row[name] for name in columns or schema.names()} for row in rows]

    def compact(self, *, max_small_files=0):
        return 0


class RowTables:
    """The tables that one stream writes under one lease; a commit is all or none here."""

    def __init__(self, memory: Memory, *, stream: str, lease: str) -> None:
        self._memory = memory
        self._stream = stream
        self._lease = lease
        self._epoch: int | None = None

    def create(self):
        """Nothing is needed beside the tables."""

    def open(self, name):
        return RowTable(self._memory, name)

    def leases(self):
        return Leases(self._memory)

    def take(self, name):
        # The lease is one for all tables: who took it last may commit.
        if self._epoch is None:
            self._epoch = self._memory.epochs.get(self._lease, 0)
        return self._memory.table(name).attempts.get(self._stream, 0)

    def settle(self, number, names, commit_id=None):
        return frozenset(name for name in names if self._memory.table(name).has(self._stream, number, commit_id))

    def read_since(self, name, columns, publish_column, span):
        schema = self.open(name).schema()
        if schema is not None:
            rows = self._memory.read_since(name, publish_column, span)
            yield from pa.Table.from_pylist(rows, schema=arrow_schema(schema)).select(columns).to_batches()

    def read_published(self, name, columns, publish_column, window, budget):
        schema = self.open(name).schema()
        if schema is not None:
            rows = self._memory.read_between(name, publish_column, window)
            yield from pa.Table.from_pylist(rows, schema=arrow_schema(schema)).select(columns).to_batches()

    def delete_since(self, name, since):
        table = self._memory.table(name)
        kept = [row for row in table.rows if row["ingest_time"] < since]
        deleted, table.rows = len(table.rows) - len(kept), kept
        return deleted

    def commit(self, parts, number, ids, commit_id=None):
        with self._memory.lock:
            for name in parts:
                self.take(name)
            try:
                self._memory.check(self._lease, self._epoch)
            except LeaseLostError as exc:
                return frozenset(), exc
            for name, found in parts.items():
                self._memory.add(name, list(found), self._stream, number, commit_id)
        return frozenset(parts), None

    def append(self, name, batch):
        part = RowWriter(self._memory).write_rows([batch])
        _, failure = self.commit({name: [part]}, self.take(name) + 1, None)
        if failure is not None:
            raise failure

    def parse_part(self, fields):
        return Part(**fields)

    def without(self, name, part, is_unwanted):
        return self._memory.without(part, is_unwanted)

    def drop(self, name, part):
        self._memory.parts.pop(part.key, None)

    def which_follow(self, parts):
        return [True] * len(parts)

    def quota_seconds(self, parts):
        return 0.0

    def close(self):
        """Nothing is open."""
