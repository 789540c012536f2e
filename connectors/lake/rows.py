"""Tables of rows in a lake: a schema that grows, files that commits of an attempt add."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from connectors.columns import arrow_schema
from connectors.lake.data_files import DataFile, partition_step
from connectors.lake.delta_table import SCHEMA_PROPERTY, rewrite_mark
from connectors.lake.errors import our_errors
from connectors.lake.files import PARTITION_COLUMNS, LakeArchiveWriter, WrittenFile, partition_value
from connectors.lake.merged_files import MergedFiles, StagedRows
from connectors.lake.tables import CONFIGURATION, LakeTable
from model.schema import Evolution, RowSchema, evolution_error, plan_evolution
from model.table import Partitioning
from model.widening import plan_widening, widen_value


@dataclass(frozen=True, slots=True)
class LakeRowWriter(LakeArchiveWriter):
    """Writes files of rows into the folder of their table; picklable, so that tasks can carry it."""

    dictionary_columns: ClassVar[bool | list[str]] = True
    statistics_columns: ClassVar[bool | list[str]] = True
    bounded_columns: ClassVar[tuple[str, ...]] = ("ingest_time", "_topic", "_publish_time")
    # A task writes one for each of its tables, of some hundreds of rows where there are hundreds of tables.
    small_bytes: ClassVar[int] = 512 * 1024
    has_volumes: ClassVar[bool] = False
    schema: ClassVar[pa.Schema | None] = None

    def write_rows(self, batches: Sequence[pa.RecordBatch]) -> WrittenFile:
        """Write one durable file with the rows of ``batches``, which have one schema and an ``ingest_time``.

        ``ingest_time`` becomes now, the same for every row, so that a file lies in one partition.

        Raises:
            StorageFullError: there is no room; nothing is left behind.
            WarehouseError: the file can't be written.
        """
        table = pa.Table.from_batches(batches)
        now = datetime.now(UTC)
        place = table.schema.get_field_index("ingest_time")
        same = pa.repeat(pa.scalar(now, table.schema.field(place).type), table.num_rows)
        return self._write(table.set_column(place, table.schema.field(place), same), now)


class LakeRowTable(LakeTable):
    """A table of rows, partitioned by when they came in; ``ingest_time`` is one of its columns.

    ``partitioning`` is that of a table that is created; one that exists keeps its own.
    """

    def __init__(self, root: str, table: str, partitioning: Partitioning = "day") -> None:
        super().__init__(root, table, partitioning)
        self._folder = f"{root.rstrip('/')}/"

    def writer(self, schema: RowSchema | None = None) -> LakeRowWriter:  # noqa: ARG002  files say it themselves
        """Return what writes the files that :meth:`commit` takes; every schema's files are written alike."""
        if self._delta is None:
            # One that exists says itself how it is partitioned.
            self.exists()
        return LakeRowWriter(self.writer_uri(), self.partitioning)

    def _opened(self, table: DeltaTable) -> None:
        super()._opened(table)
        names = table.metadata().partition_columns
        for partitioning, column in PARTITION_COLUMNS.items():
            if names == [column.name]:
                self.partitioning, self._partition = partitioning, column

    def read_rows(self, columns: list[str] | None = None) -> list[dict[str, Any]]:
        """Return every row, with some of its columns or all; for small tables only."""
        with our_errors(f"reading {self.name}"):
            rows: list[dict[str, Any]] = self._table().to_pyarrow_table(columns=columns).to_pylist()
        return rows

    def as_taken(self, files: Sequence[DataFile]) -> MergedFiles:
        """Return files of this table as the list of a merge has them."""
        return {file.path.removeprefix(self._folder): file.partition for file in files}

    def staged_rows(
        self, files: Sequence[DataFile], taken: MergedFiles, since: datetime | None = None
    ) -> StagedRows:
        """Return what of ``files``, a snapshot of this table, is not ``taken``, and what came in after ``since``.

        Which files are new is decided by their names: no clock plays a part. A file that compaction wrote
        again is a new one.
        """
        old = {f"{self._folder}{name}" for name in taken}
        new = [file for file in files if file.path not in old]
        step = partition_step(self.partitioning)
        again = [f for f in files if since is not None and f.path in old and since < f.partition + step]
        # A file lies in the partition of its rows' ingest_time.
        first = min((file.partition for file in (*new, *again)), default=None)
        later = [file for file in files if first is not None and file.partition >= first]
        paths = (tuple(file.path for file in each) for each in (new, again, later, files))
        new_paths, again_paths, later_paths, every = paths
        return StagedRows(new_paths, again_paths, since, later_paths, every)

    def evolve(self, wanted: RowSchema) -> Evolution:
        """Create the table, or change it so that it holds rows of ``wanted``, and return what was done.

        Columns are added before the schema is noted, so that the next call repairs a crash between the two.

        Raises:
            EvolutionRefusedError: it can't; ``details["differences"]`` says why, and nothing was changed.
            WarehouseError: the lake failed.
        """
        evolution = self.plan(wanted)
        if evolution.refused:
            raise evolution_error(self.name, evolution)
        schema = evolution.schema
        if not self.exists():
            note = {SCHEMA_PROPERTY: json.dumps(schema.to_json())}
            self._create(arrow_schema(schema), {**CONFIGURATION, **note}, description=schema.description)
        elif evolution.changes:
            self._again(lambda: self._add_columns(schema))
        return evolution

    def widen(self, wanted: RowSchema) -> None:
        """Make the table what is wanted even where types become wider: every row is written again, in one commit.

        The caller holds the lease and commits nothing meanwhile. A crash is mended by the next call: the
        commit says whether it was made, whatever the schema that was noted.

        Raises:
            EvolutionRefusedError: a column would be dropped or become narrower; nothing was changed.
            WarehouseError: the lake failed, or another's upkeep came between three times.
        """
        current = self.schema()
        evolution = self.plan(wanted)
        if current is None or not evolution.refused:
            self.evolve(wanted)
            return
        widened = plan_widening(self.name, current, wanted, evolution)
        target = plan_evolution(widened, wanted).schema
        self._again(lambda: self._rewrite(current, target))

    def _rewrite(self, current: RowSchema, target: RowSchema) -> None:
        table, schema, mark = self._table(), arrow_schema(target), rewrite_mark(current, target)
        with our_errors(f"rewriting {self.name}", but=CommitFailedError):
            if not table.transaction_version(mark):
                names: dict[datetime, list[str]] = {}
                for file in self._files(table):
                    names.setdefault(file.partition, []).append(self._name(file))
                files = [
                    self.writer().write_batches(
                        self._widened(sorted(names[partition]), current, target), schema, partition
                    )
                    for partition in sorted(names)
                ]
                self._commit(table, [file for file in files if file is not None], {mark: 1}, schema=schema)
                table.update_incremental()
            self._note(table, target)
        self._delta = None

    def _widened(self, names: Sequence[str], current: RowSchema, target: RowSchema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files in the schema ``target``; an older file may lack columns of ``current``."""
        writer, schema = self.writer(), arrow_schema(target)
        with writer.reading(names) as files:
            for batch in writer.read_batches(files, names):
                yield widen_batch(batch, current, target, schema)

    def delete_where(self, column: str, value: str, *, since: datetime) -> int:
        """Delete the rows that came in since then whose text ``column`` is ``value``; return how many there were.

        Raises:
            WarehouseError: another commit came between, or the lake failed; nothing was deleted.
        """
        files = self.data_files()
        first = datetime.fromisoformat(partition_value(since, self.partitioning)).replace(tzinfo=UTC)
        files = [file for file in files if file.partition >= first]
        return self._delete(files, lambda batch: _holds(batch, column, value))

    def delete_since(self, since: datetime) -> int:
        """Delete the rows that came in at or after ``since``; return how many there were.

        Raises:
            WarehouseError: another commit came between, or the lake failed; nothing was deleted.
        """
        names = frozenset(self._files_since({"ingest_time": since}))
        files = [file for file in self.data_files() if self._name(file) in names]
        return self._delete(files, lambda batch: pc.greater_equal(batch.column("ingest_time"), since))

    def _delete(self, files: Sequence[DataFile], is_unwanted: Callable[[pa.RecordBatch], pa.BooleanArray]) -> int:
        """Delete the rows of ``files`` where ``is_unwanted`` holds, in one commit; return how many there were."""
        writer = self.writer()
        deleted, removed, added = 0, [], []
        with writer.reading([self._name(file) for file in files]) as opened:
            for file in files:
                name = self._name(file)
                rows = sum(is_unwanted(batch).true_count for batch in writer.read_batches(opened, [name]))
                if not rows:
                    continue
                read = writer.read_batches(opened, [name])
                kept = (batch.filter(pc.invert(is_unwanted(batch))) for batch in read)
                left = writer.write_batches(kept, writer.read_schema(opened, name), file.partition)
                deleted += rows
                removed.append(file)
                added += [] if left is None else [left]
        if removed:
            with our_errors(f"deleting from {self.name}"):
                self._replace(removed, added)
        return deleted

    def _note(self, table: DeltaTable, schema: RowSchema) -> None:
        if schema.description:
            table.alter.set_table_description(schema.description, post_commithook_properties=self._log.hooks)
        super()._note(table, schema)


def _holds(batch: pa.RecordBatch, column: str, value: str) -> pa.BooleanArray:
    """Return for each row whether its text ``column`` is ``value``; a file may be older than the column."""
    if column not in batch.schema.names:
        return pa.repeat(pa.scalar(False), batch.num_rows)
    return pc.equal(batch.column(column).cast(pa.string()), value).fill_null(False)


def widen_batch(batch: pa.RecordBatch, current: RowSchema, target: RowSchema, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of ``batch``, whose columns were ``current``, as those of the wider ``target``.

    ``schema`` is the target's, with the columns that are the lake's own; what did not change is taken as it is.
    """
    before = {field.name: field for field in current.fields}
    after = {field.name: field for field in target.fields}
    arrays = []
    for kind in schema:
        old, new = before.get(kind.name), after.get(kind.name)
        if kind.name not in batch.schema.names:
            arrays.append(pa.nulls(batch.num_rows, kind.type))
        elif old is None or new is None or old == new:
            column = batch.column(kind.name)
            # A record in an older file lacks fields, which no cast adds.
            is_older = pa.types.is_nested(kind.type) and column.type != kind.type
            arrays.append(pa.array(column.to_pylist(), kind.type) if is_older else column.cast(kind.type))
        else:
            cells = [widen_value(cell, old, new) for cell in batch.column(kind.name).to_pylist()]
            arrays.append(pa.array(cells, kind.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
