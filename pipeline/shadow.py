"""A shadow: converts archived messages as another release would, and compares the rows with the running one's."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from connectors.pubsub.pull import PULLED_SCHEMA
from model.errors import CheckpointCorruptError, RefeedError, RegistryError
from model.read_budget import ReadBudget
from model.schema import RowSchema
from model.settings import Settings
from model.window import Window
from pipeline.comparison import CellDifference, compare_rows, joined_schema, shown_cell
from pipeline.plan import PlanFile
from pipeline.registry import Registry
from pipeline.shadow_report import MAX_EXAMPLES, ShadowExample, ShadowFolder, ShadowReport, ShadowState
from pipeline.shadow_sources import ShadowSource, open_sources
from warehouse.port import Warehouse
from warehouse.rows import RowTables

_log = structlog.get_logger(__name__)

# The column in which a dead letter and a row differ.
REFUSAL_COLUMN: Final = "error_code"
# The warehouse's own word against a row, of which a decoder knows nothing.
_ROW_REFUSED: Final = "row_refused"
_LETTER_COLUMNS: Final = ("topic", "message_id", "source", "error_code", "publish_time")
_MESSAGE_COLUMNS: Final = [name for name in PULLED_SCHEMA.names if name != "ack_id"]
# How many times ``wait_seconds`` a row waits for a running release that is behind its message.
PATIENCE: Final = 10
_KEPT_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ShadowOptions:
    """The columns that a shadow compares, and its times.

    ``hours`` of the archive come before its start. ``may_differ`` names columns that are meant to change, as
    ``column`` or ``dataset.table.column``. A message is read ``settle_seconds`` after its ingestion, when the
    commit that holds it has been made. A row that the running release has not staged ``wait_seconds`` after that
    is missing; while that release is behind its message it waits ``PATIENCE`` times as long. The archive is looked
    at again every ``poll_seconds``; ``chunk_rows`` are compared at once.
    """

    hours: float = 1.0
    may_differ: frozenset[str] = frozenset()
    settle_seconds: float = 10.0
    wait_seconds: float = 120.0
    poll_seconds: float = 2.0
    chunk_rows: int = 20_000

    @classmethod
    def of(cls, warehouse: Warehouse, *, hours: float, may_differ: Sequence[str]) -> Self:
        """Return the options for ``warehouse``: a service is asked seldom, because it bills each query."""
        if warehouse.is_embedded:
            return cls(hours, frozenset(may_differ))
        return cls(hours, frozenset(may_differ), 60.0, 900.0, 300.0, 200_000)


@dataclass(slots=True)
class _Chunk:
    """Rows of one source that wait for the running release, by table, and codes of refused messages by id."""

    source: ShadowSource
    published: Window
    wait_until: float
    tables: dict[str, pa.Table]
    refused: dict[str, str]
    is_first: bool
    look_at: float = 0.0

    @property
    def rows(self) -> int:
        return len(self.refused) + sum(int(table.num_rows) for table in self.tables.values())


class Shadow:
    """Compares the rows of archived messages with the rows that a stream of a home has staged.

    It reads the archive, the staging tables, the dead letters, the registry and the stream's plan; it writes to
    none of them, takes no lease and reaches no Pub/Sub. ``budget`` bounds what its reads may be billed for.
    ``acknowledged_until`` is the Unix time of publication up to which the stream has acknowledged every message,
    None where nobody knows.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        registry: Registry,
        plan_file: Path,
        secret: str,
        mapping: Mapping[str, str],
        options: ShadowOptions,
        budget: ReadBudget,
        acknowledged_until: Callable[[], float | None] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.report = ShadowReport()
        self._warehouse = warehouse
        self._registry = registry
        self._plan_file = plan_file
        self._secret = secret
        self._mapping = mapping
        self._options = options
        self._budget = budget
        self._acknowledged_until = acknowledged_until
        self._now = now
        started = now() - options.settle_seconds
        self._read_until = started - options.hours * 3600
        self._chunks: list[_Chunk] = []
        self._letters = ""
        # The plan's text and the registry's fingerprint that the sources were opened with.
        self._opened = ("", "")
        self._sources: list[ShadowSource] = []

    def look(self, on_chunk: Callable[[], None] = lambda: None) -> ShadowReport:
        """Compare the messages of the archive, and return the report; ``on_chunk`` is called in between.

        Raises:
            RefeedError: it can't go on: the registry or the plan can't be read, the budget is spent, or the
                warehouse failed.
        """
        report = self.report
        is_first = report.state is ShadowState.STARTING
        if is_first:
            report.state = ShadowState.CATCHING_UP
        with closing(self._warehouse.open_row_tables(stream="", lease="")) as tables:
            self._follow(tables)
            until = max(self._read_until, self._now() - self._options.settle_seconds)
            for chunks in self._read(until):
                for chunk in chunks:
                    chunk.is_first = is_first
                self._chunks += chunks
                self._compare_all(tables, on_chunk)
            self._read_until = until
            self._compare_all(tables, on_chunk)
        report.read_until = until
        if not any(chunk.is_first for chunk in self._chunks):
            report.state = ShadowState.FOLLOWING
        on_chunk()
        return report

    def _follow(self, tables: RowTables) -> None:
        """Take up the plan and the registry where they changed."""
        try:
            text = self._plan_file.read_text()
        except OSError as exc:
            message = f"The plan {self._plan_file} can't be read: {exc}. Start the stream first."
            raise CheckpointCorruptError(message, file=str(self._plan_file)) from exc
        try:
            fingerprint = self._registry.fingerprint()
            if (text, fingerprint) == self._opened:
                return
            snapshot = self._registry.read_valid()
        except RegistryError as exc:
            if not self._sources:
                raise
            # As with a stream that runs: what can't be read changes nothing.
            _log.warning("registry_unreadable", code=exc.code, error=exc.message)
            return
        plan = PlanFile(self._plan_file, self._warehouse).read()
        assert plan is not None, "it has just been read"
        self._sources = list(open_sources(plan, snapshot, tables, secret=self._secret, mapping=self._mapping))
        self._letters, self._opened = plan.dead_letter_table, (text, fingerprint)

    def _read(self, until: float) -> Iterator[list[_Chunk]]:
        """Yield the new release's rows of the messages that were ingested until then, some at a time."""
        topics = sorted({source.source.topic for source in self._sources})
        window = Window(_moment(self._read_until), _moment(until))
        if not topics or window.is_empty:
            return
        waiting: list[pa.RecordBatch] = []
        rows = self._options.chunk_rows
        with closing(self._warehouse.open_archive()) as archive:
            for batch in archive.read_messages(topics, window, self._budget):
                for start in range(0, batch.num_rows, rows):
                    waiting.append(batch.slice(start, rows))
                    is_full = sum(part.num_rows for part in waiting) >= rows
                    if is_full or sum(part.nbytes for part in waiting) >= _KEPT_BYTES:
                        yield self._convert(waiting)
                        waiting = []
        if waiting:
            yield self._convert(waiting)

    def _convert(self, batches: Sequence[pa.RecordBatch]) -> list[_Chunk]:
        """Return a chunk for each source of the messages."""
        messages = pa.Table.from_batches(batches)
        self.report.messages_read += messages.num_rows
        topic_of = messages.column("topic").cast(pa.string())
        chunks = []
        for source in self._sources:
            own = self._reaching(source, messages.filter(pc.equal(topic_of, source.source.topic)))
            own = own.select(_MESSAGE_COLUMNS)
            if own.num_rows:
                none = pa.repeat(pa.scalar("", pa.string()), own.num_rows)
                pulled = own.append_column("ack_id", none).cast(PULLED_SCHEMA).combine_chunks()
                chunks += [self._chunk(source, batch) for batch in pulled.to_batches()]
        return chunks

    def _reaching(self, source: ShadowSource, messages: pa.Table) -> pa.Table:
        """Return the messages that reach the running release: not those from before the source's subscription."""
        if source.attached_at is None:
            return messages
        first = pa.scalar(_moment(source.attached_at), pa.timestamp("us", tz="UTC"))
        found = messages.filter(pc.greater_equal(messages.column("publish_time"), first))
        self.report.rows_skipped += messages.num_rows - found.num_rows
        return found

    def _chunk(self, source: ShadowSource, messages: pa.RecordBatch) -> _Chunk:
        converted = source.convert(messages)
        ids = messages.column("message_id")
        times = pc.min_max(messages.column("publish_time")).as_py()
        return _Chunk(
            source,
            Window(times["min"], times["max"] + timedelta(microseconds=1)),
            self._now() + self._options.wait_seconds,
            converted.tables,
            {ids[refusal.index].as_py(): refusal.code for refusal in converted.refused},
            is_first=False,
        )

    def _compare_all(self, tables: RowTables, on_chunk: Callable[[], None]) -> None:
        """Compare every chunk that is due, and wait while too many rows are left to read more."""
        while True:
            for chunk in self._chunks:
                if self._now() >= min(chunk.look_at, chunk.wait_until):
                    self._compare(chunk, tables)
            self._chunks = [chunk for chunk in self._chunks if chunk.rows]
            self._count()
            on_chunk()
            if self.report.rows_waiting <= 2 * self._options.chunk_rows:
                return
            time.sleep(self._options.poll_seconds)

    def _compare(self, chunk: _Chunk, tables: RowTables) -> None:
        """Compare a chunk with the running release's rows by now; a row that is decided leaves the chunk."""
        # Before its rows are read: what was acknowledged by then is staged by then.
        is_due = self._now() >= chunk.wait_until and not self._is_behind(chunk)
        chunk.look_at = self._now() + max(self._options.poll_seconds, self._options.wait_seconds / 10)
        for name in chunk.source.tables() if chunk.refused else list(chunk.tables):
            schema = tables.open(name).schema()
            staged = None if schema is None else self._read_staged(chunk, name, schema, tables)
            if schema is not None and staged is not None:
                self._compare_refused(chunk, name, staged)
                self._compare_staged(chunk, name, staged, schema)
        if chunk.rows:
            self._compare_letters(chunk, tables)
        if is_due:
            self._miss(chunk)

    def _is_behind(self, chunk: _Chunk) -> bool:
        """Whether the running release still has messages of the chunk's time before it."""
        if self._now() >= chunk.wait_until + (PATIENCE - 1) * self._options.wait_seconds:
            return False
        until = self._acknowledged_until()
        return until is not None and until < chunk.published.end.timestamp()

    def _read_staged(self, chunk: _Chunk, name: str, schema: RowSchema, tables: RowTables) -> pa.Table | None:
        """Return the rows of the chunk's messages that are no replays, None when there are none yet."""
        ids = pa.array([*chunk.refused, *_ids(chunk.tables.get(name))], pa.string())
        found = []
        read = tables.read_published(name, schema.names(), "_publish_time", chunk.published, self._budget)
        for batch in read:
            is_own = pc.and_(
                pc.is_in(batch.column("_message_id").cast(pa.string()), value_set=ids),
                pc.equal(batch.column("_topic").cast(pa.string()), chunk.source.source.topic),
            )
            is_live = pc.is_null(batch.column("_backfill_id"))
            kept = batch.filter(pc.and_(pc.fill_null(is_own, fill_value=False), is_live))
            if kept.num_rows:
                found.append(pa.Table.from_batches([kept]))
        return pa.concat_tables(found, promote_options="permissive") if found else None

    def _compare_refused(self, chunk: _Chunk, name: str, staged: pa.Table) -> None:
        """Decide messages that the new release refuses and the running one has staged."""
        for message_id in _ids(staged):
            code = chunk.refused.pop(message_id, None)
            if code is not None:
                self._differ(name, chunk, message_id, [CellDifference(0, REFUSAL_COLUMN, None, code)])

    def _compare_staged(self, chunk: _Chunk, name: str, staged: pa.Table, schema: RowSchema) -> None:
        """Decide rows that both releases have."""
        rows = chunk.tables.get(name)
        if rows is None:
            return
        places = pc.index_in(rows.column("_message_id"), value_set=pa.array(_ids(staged), pa.string()))
        own, theirs = rows.filter(pc.is_valid(places)), staged.take(pc.drop_null(places))
        chunk.tables[name] = rows.filter(pc.is_null(places))
        version = chunk.source.version
        if version is not None:
            is_same = pc.fill_null(pc.equal(theirs.column("_schema_version"), version), fill_value=False)
            self.report.rows_skipped += own.num_rows - sum(is_same.to_pylist())
            own, theirs = own.filter(is_same), theirs.filter(is_same)
        joined = joined_schema(schema, chunk.source.schema(name))
        by_row: dict[int, list[CellDifference]] = defaultdict(list)
        for found in compare_rows(theirs, own, joined, lambda column: self._may_differ(name, column)):
            by_row[found.place].append(found)
        self.report.rows_equal += own.num_rows - len(by_row)
        ids = _ids(own)
        for place in sorted(by_row):
            self._differ(name, chunk, ids[place], by_row[place])

    def _compare_letters(self, chunk: _Chunk, tables: RowTables) -> None:
        """Decide messages that the running release refused."""
        codes = self._read_letters(chunk, tables)
        for name, table in chunk.tables.items():
            refused = [message_id for message_id in _ids(table) if message_id in codes]
            for message_id in refused:
                if codes[message_id] == _ROW_REFUSED:
                    self.report.rows_skipped += 1
                else:
                    code = codes[message_id]
                    self._differ(name, chunk, message_id, [CellDifference(0, REFUSAL_COLUMN, code, None)])
            if refused:
                is_decided = pc.is_in(table.column("_message_id"), value_set=pa.array(refused, pa.string()))
                chunk.tables[name] = table.filter(pc.invert(is_decided))
        for message_id in chunk.refused.keys() & codes.keys():
            code, before = chunk.refused.pop(message_id), codes[message_id]
            if code == before:
                self.report.rows_equal += 1
            else:
                self._differ(self._letters, chunk, message_id, [CellDifference(0, REFUSAL_COLUMN, before, code)])

    def _read_letters(self, chunk: _Chunk, tables: RowTables) -> dict[str, str]:
        """Return the codes of the running release's dead letters of the chunk, by message id."""
        wanted = set(chunk.refused).union(*map(_ids, chunk.tables.values()))
        read = tables.read_published(self._letters, _LETTER_COLUMNS, "publish_time", chunk.published, self._budget)
        return {
            row["message_id"]: row["error_code"]
            for batch in read
            for row in batch.to_pylist()
            if row["message_id"] in wanted
            and row["topic"] == chunk.source.source.topic
            and row["source"] in chunk.source.names
        }

    def _differ(self, table: str, chunk: _Chunk, message_id: str, differences: Sequence[CellDifference]) -> None:
        """Count a row that differs, unless all of its differences are meant to be."""
        meant = [found for found in differences if not self._may_differ(table, found.column)]
        if not meant:
            self.report.rows_equal += 1
            return
        self.report.rows_different += 1
        for found in meant:
            topic = chunk.source.source.topic
            example = ShadowExample(table, topic, message_id, found.column, found.running, found.new)
            self.report.show(example)

    def _miss(self, chunk: _Chunk) -> None:
        """Count the rows that the running release has not staged in time."""
        topic = chunk.source.source.topic
        for name, table in chunk.tables.items():
            self.report.rows_missing += table.num_rows
            for row in table.slice(0, MAX_EXAMPLES).to_pylist():
                self.report.show(ShadowExample(name, topic, row["_message_id"], None, None, shown_cell(row)))
        self.report.rows_missing += len(chunk.refused)
        for message_id, code in chunk.refused.items():
            self.report.show(ShadowExample(self._letters, topic, message_id, REFUSAL_COLUMN, None, code))
        chunk.tables, chunk.refused = {}, {}

    def _may_differ(self, table: str, column: str) -> bool:
        names = self._options.may_differ
        return column in names or f"{table}.{column}" in names

    def _count(self) -> None:
        report = self.report
        report.rows_waiting = sum(chunk.rows for chunk in self._chunks)
        report.messages_compared = report.rows_equal + report.rows_different + report.rows_missing
        report.bytes_billed = self._budget.spent_bytes


class _UnwantedError(Exception):
    """No update or rollout waits for this shadow comparison any more."""


def run_shadow(
    settings: Settings,
    warehouse: Warehouse,
    folder: ShadowFolder,
    *,
    plan_file: Path,
    mapping: Mapping[str, str],
    options: ShadowOptions,
) -> int:
    """Compare until nobody wants the shadow any more, and return the exit code: 1 when it can't go on.

    Its report, in ``folder``, says what was found, and why it ended.
    """
    shadow = Shadow(
        warehouse,
        registry=Registry(settings.registry),
        plan_file=plan_file,
        secret=settings.replay_secret(),
        mapping=mapping,
        options=options,
        budget=ReadBudget(settings.bigquery.merge_max_bytes_billed),
        acknowledged_until=folder.read_acknowledged_until,
    )

    def tell() -> None:
        folder.write(shadow.report)
        if not folder.is_wanted():
            raise _UnwantedError

    try:
        while True:
            shadow.look(tell)
            time.sleep(options.poll_seconds)
    except _UnwantedError:
        return 0
    except RefeedError as exc:
        _log.error("shadow_failed", code=exc.code, error=exc.message)
        shadow.report.fail(exc)
        folder.write(shadow.report)
        return 1


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _ids(rows: pa.Table | None) -> list[str]:
    return [] if rows is None else rows.column("_message_id").to_pylist()
