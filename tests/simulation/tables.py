"""The tables of a stream and its lease, as a warehouse keeps them: one owner, and all of a commit or nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from model.archive import IdSpan
from model.errors import CommitOutcomeUnknownError, LeaseLostError, RefeedError, WarehouseUnavailableError
from streams.targets import is_topic
from tests.simulation.kernel import Process, World

# Its number and the id of its commit.
_AttemptOf = tuple[int, int | None]


@dataclass
class Row:
    """One message in a table."""

    topic: str
    message_id: str
    publish_time: datetime
    ingest_time: datetime


@dataclass
class Table:
    """Its rows by message, its newest attempt and commit by stream, and the epoch under which it was taken last.

    ``version`` counts its changes: of two commits to one version the second one fails.
    """

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    commits: dict[str, int | None] = field(default_factory=dict)
    epoch: int = 0
    version: int = 0


@dataclass(frozen=True)
class Part:
    """Rows that a task wrote, and the time that its machine's clock showed then."""

    ids: pa.Table
    written_at: datetime

    @property
    def rows(self) -> int:
        return int(self.ids.num_rows)


class Warehouse:
    """All tables, and the lease beside them."""

    def __init__(self, world: World, server: Process) -> None:
        self.world = world
        self.server = server
        self.tables: dict[str, Table] = {}
        self.is_whole = world.random.random() < 0.5
        self.epochs: dict[str, int] = {}
        self.holders: dict[str, bytes] = {}

    def open_row_tables(self, *, stream: str, lease: str) -> "StreamTables":
        """Return the tables for one start of a stream, or for who fences it."""
        return StreamTables(self, stream)

    def reach(self, what: str) -> None:
        """Make a call, which fails while the warehouse is away."""
        self.world.step(what)
        if self.world.lasts("warehouse away", self, 0.0, 10.0, 60.0):
            raise WarehouseUnavailableError(f"The warehouse is away: {what}")


class StreamTables:
    """The tables of one start of a stream, and their lease: :class:`warehouse.rows.RowTables`."""

    def __init__(self, warehouse: Warehouse, stream: str) -> None:
        self._warehouse = warehouse
        self._world = warehouse.world
        self._stream = stream
        self._epoch = 0
        self._taken: set[str] = set()

    def create(self) -> None:
        """Do nothing."""

    close = create

    def leases(self) -> "StreamTables":
        return self

    def read_lease(self, name: str) -> bytes | None:
        self._warehouse.reach("read the lease")
        return self._warehouse.holders.get(name)

    def write_lease(self, name: str, epoch: int, content: bytes) -> None:
        self._warehouse.reach("write the lease")
        if self._warehouse.epochs.get(name, 0) != epoch:
            raise LeaseLostError(lease=name)
        self._warehouse.holders[name] = content

    def now(self) -> float:
        return self._world.shown_seconds

    def take_lease(self, name: str) -> int:
        self._warehouse.reach("take the lease")
        self._warehouse.epochs[name] = self._warehouse.epochs.get(name, 0) + 1
        self._epoch = self._warehouse.epochs[name]
        return self._epoch

    def open(self, name: str) -> Any:
        return self

    def exists(self) -> bool:
        return True

    def compact(self, *, max_small_files: int = 0) -> int:
        self._world.step("compact")
        return 0

    def take(self, name: str) -> int:
        """Let no older epoch commit, and no commit of before come late."""
        table = self._table(name)
        if name not in self._taken:
            self._warehouse.reach(f"take {name}")
            if table.epoch > self._epoch:
                raise LeaseLostError(lease="stream")
            table.epoch = self._epoch
            table.version += 1
            self._taken.add(name)
        return table.attempts.get(self._stream, 0)

    def settle(self, number: int, names: Sequence[str], commit_id: int | None = None) -> frozenset[str]:
        """Return which tables have the attempt, as the lake does it: only the newest one can be open."""
        self._warehouse.reach(f"settle attempt {number}")
        found = {name: self.take(name) for name in names}
        ids = {name: self._table(name).commits.get(self._stream) for name in names}
        return frozenset(name for name in names if (found[name], ids[name]) == (number, commit_id))

    def without(self, name: str, part: Part, is_unwanted: pa.BooleanArray) -> Part | None:
        """Return the part without the unwanted rows, or None where a part is whole or nothing."""
        left = part.ids.filter(pc.invert(is_unwanted))
        return None if self._warehouse.is_whole or not left.num_rows else Part(left, part.written_at)

    def which_follow(self, parts: Sequence[Any]) -> list[bool]:
        return [True] * len(parts)

    def commit(
        self, parts: Mapping[str, Sequence[Part]], number: int, ids: pa.Table, commit_id: int | None = None
    ) -> tuple[frozenset[str], RefeedError | None]:
        done: set[str] = set()
        failure: RefeedError | None = None
        for name, found in parts.items():
            self._world.step(f"commit attempt {number} to {name}")
            try:
                self._commit(name, found, (number, commit_id))
            except CommitOutcomeUnknownError as exc:
                return frozenset(done), exc
            except RefeedError as exc:
                failure = exc
            else:
                done.add(name)
        return frozenset(done), failure

    def _commit(self, name: str, parts: Sequence[Part], attempt: _AttemptOf) -> None:
        table, world = self._table(name), self._world
        if table.epoch != self._epoch:
            raise LeaseLostError(lease="stream")
        if world.lasts("commit refused", name, 0.0, 10.0, 60.0):
            raise WarehouseUnavailableError("The warehouse is away: commit")
        if world.happens("commit late"):
            # An object store may make a commit after its client has given up on it.
            late = partial(self._commit_late, name, parts, attempt, table.version)
            delay_seconds = world.random.choice((0.0, 3.0, 60.0))
            world.start("late commit", self._warehouse.server, late, after_seconds=delay_seconds)
        elif not world.happens("commit lost"):
            self._add(name, parts, attempt)
            if not world.happens("commit answer lost"):
                return
        raise CommitOutcomeUnknownError("The warehouse did not answer.")

    def _commit_late(self, name: str, parts: Sequence[Part], attempt: _AttemptOf, version: int) -> None:
        if self._table(name).version == version:
            self._add(name, parts, attempt)

    def _add(self, name: str, parts: Sequence[Part], attempt: _AttemptOf) -> None:
        table = self._table(name)
        for part in parts:
            for row in part.ids.select(["topic", "message_id", "publish_time"]).to_pylist():
                key = (row["topic"], row["message_id"])
                if key in table.rows:
                    self._world.fail(f"{key} is in {name} twice")
                table.rows[key] = Row(**row, ingest_time=part.written_at)
        table.attempts[self._stream], table.commits[self._stream] = attempt
        table.version += 1
        added = [message_id for part in parts for message_id in part.ids.column("message_id").to_pylist()]
        self._world.say(f"   {name} has {' '.join(added)}")

    def drop(self, name: str, part: Part) -> None:
        """Drop a part."""

    def quota_seconds(self, parts: Sequence[Any]) -> float:
        return 0.0

    def read_ids(self, name: str, span: IdSpan) -> Iterator[pa.RecordBatch]:
        """Yield the ids of messages that may come again; nobody can ask a topic."""
        if is_topic(name):
            return
        self._world.step(f"read ids of {name}")
        rows = [
            {"topic": row.topic, "message_id": row.message_id, "publish_time": row.publish_time, "table": name}
            for row in self._table(name).rows.values()
            if row.publish_time >= span.published_since or row.ingest_time >= span.ingested_since
        ]
        for start in range(0, len(rows), 50):
            self._world.step("read more ids")
            yield pa.RecordBatch.from_pylist(rows[start : start + 50])

    def read_since(
        self, name: str, columns: Sequence[str], publish_column: str, span: IdSpan
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows as a staging table has them."""
        self._warehouse.reach(f"read {name}")
        rows = [
            {
                "_topic": row.topic,
                "_message_id": row.message_id,
                "_publish_time": row.publish_time,
                "_backfill_id": None,
                "ingest_time": row.ingest_time,
            }
            for row in self._table(name).rows.values()
            if row.publish_time >= span.published_since or row.ingest_time >= span.ingested_since
        ]
        if rows:
            yield pa.RecordBatch.from_pylist(rows)

    def delete_since(self, name: str, since: datetime) -> int:
        self._warehouse.reach(f"delete from {name}")
        table = self._table(name)
        assert table.epoch == self._epoch, "it is taken"
        table.version += 1
        gone = [key for key, row in table.rows.items() if row.ingest_time >= since]
        for key in gone:
            del table.rows[key]
        self._world.say(f"   {name} has no more {' '.join(message_id for _, message_id in gone)}")
        return len(gone)

    def _table(self, name: str) -> Table:
        return self._warehouse.tables.setdefault(name, Table())
