"""A reporting table in a lake: one row an entity, partitioned by a day of its own, replaced by the partition."""

import itertools
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from connectors.columns import arrow_schema
from connectors.lake.clocks import refuse_wrong_clock
from connectors.lake.delta_table import SCHEMA_PROPERTY, DurableTable, rewrite_mark
from connectors.lake.errors import our_errors
from connectors.lake.files import WrittenFile, row_groups
from connectors.lake.log_entries import add_action, remove_action
from connectors.lake.objects import open_objects
from connectors.lake.reading import open_files
from connectors.lake.rows import LakeRowTable, widen_batch
from connectors.lake.tables import refuse_old
from model.entity import PARTITION_DATE
from model.errors import MergeOvertakenError, WarehouseError
from model.schema import Evolution, RowSchema, plan_evolution
from model.widening import plan_widening

_PARTITION: Final = pa.field(PARTITION_DATE, pa.date32())
_WATERMARK: Final = "merge"
_INDEX: Final = "index"
_TAKEN: Final = "taken"
# A merge adds and removes a few files a night; the log stays short.
_CONFIGURATION: Final = {"delta.logRetentionDuration": "interval 7 days", "delta.enableExpiredLogCleanup": "true"}
_FILE_BYTES: Final = 256 * 1024 * 1024
_GROUP_ROWS: Final = 131_072
# A dictionary of values that do not repeat only costs: for 2,500 rows a third of the time to read the file, a
# quarter of the time to write it and a tenth of its bytes. The first values of a column tell.
_SAMPLED_ROWS: Final = 200
_OVERTAKE_TRIES: Final = 5
# A merge writes for hours before it commits; the vacuum of a reporting table leaves younger files alone.
_MAX_UNCOMMITTED_HOURS: Final = 12
_MIN_VACUUM_HOURS: Final = 24
_REWRITE_ROWS: Final = 8_192


@dataclass(frozen=True, slots=True)
class EntityFile:
    """One Parquet file of a reporting table; ``partition`` is None where the entity's day is null."""

    path: str
    name: str
    partition: date | None
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EntitySnapshot:
    """The table at one moment.

    ``watermark_us`` is when its last merge looked at staging, microseconds since 1970 by the clock of the machine
    that merged: to be shown, nothing else relies on it. ``taken_number`` is the list of the files that it took
    (:mod:`connectors.lake.merged_files`), 0 where there was no merge, or one of a Refeed that kept no lists.
    """

    version: int = 0
    files: tuple[EntityFile, ...] = ()
    watermark_us: int = 0
    index_number: int = 0
    taken_number: int = 0

    def of(self, partitions: set[date | None]) -> list[EntityFile]:
        """Return the files of some partitions."""
        return [file for file in self.files if file.partition in partitions]


class EntityTable(DurableTable):
    """A reporting table; one object per thread."""

    def __init__(self, root: str, table: str) -> None:
        super().__init__(root, table, _PARTITION)

    def is_reporting(self) -> bool:
        """Whether there is a table, and it is a reporting table."""
        return self.exists() and self._table().metadata().partition_columns == [PARTITION_DATE]

    def evolve(self, wanted: RowSchema) -> Evolution:
        """Create the table or widen it; it is never narrowed. Where types become wider all of it is written again.

        Raises:
            EvolutionRefusedError: it can't hold rows of ``wanted``; nothing was changed.
            MergeOvertakenError: a merge changed the table meanwhile; nothing was changed.
        """
        current = self.schema()
        evolution = plan_evolution(RowSchema((), wanted.description) if current is None else current, wanted)
        if current is not None and evolution.refused:
            widened = plan_widening(self.name, current, wanted, evolution)
            self._rewrite(current, widened)
            evolution = replace(plan_evolution(widened, wanted), changes=evolution.changes)
        if current is None:
            note = {SCHEMA_PROPERTY: json.dumps(evolution.schema.to_json())}
            self._create(arrow_schema(evolution.schema), {**_CONFIGURATION, **note})
        elif evolution.changes:
            self._again(lambda: self._add_columns(evolution.schema))
        return evolution

    def _rewrite(self, current: RowSchema, target: RowSchema) -> None:
        """Give columns the wider types of ``target``, in one commit that every merge under way fails by.

        The schema is recorded after the commit; after a crash, the commit itself shows whether it was made.
        """
        mark = rewrite_mark(current, target)
        if not self._table().transaction_version(mark):
            snapshot = self.snapshot()
            schema = arrow_schema(target)
            written = [
                new
                for file in snapshot.files
                for new in write_partition(self.uri, file.partition, schema, _widened(file.path, current, target))
            ]
            marks = {mark: 1, _WATERMARK: snapshot.watermark_us}
            self._commit(snapshot, [add_action(file, PARTITION_DATE) for file in written], marks, schema)
        with our_errors(f"changing {self.name}"):
            self._note(self._table(), target)
        self._delta = None

    def snapshot(self) -> EntitySnapshot:
        """Return the table as it is now; an empty one where it has not been created."""
        if not self.exists():
            return EntitySnapshot()
        table = self._table()
        with our_errors("reading the table's log"):
            actions = pa.table(table.get_add_actions(flatten=True))
            watermark = table.transaction_version(_WATERMARK) or 0
            index = table.transaction_version(_INDEX) or 0
            taken = table.transaction_version(_TAKEN) or 0
        columns = [actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")]
        partitions = (
            actions.column(f"partition.{PARTITION_DATE}").to_pylist()
            if f"partition.{PARTITION_DATE}" in actions.column_names
            else [None] * actions.num_rows
        )
        files = [
            EntityFile(f"{self.uri}/{unquote(path)}", path, partition, rows, size)
            for path, size, rows, partition in zip(*columns, partitions, strict=True)
        ]
        ordered = tuple(sorted(files, key=_by_partition))
        return EntitySnapshot(int(table.version()), ordered, watermark, index, taken)

    def replace(
        self,
        snapshot: EntitySnapshot,
        removed: Sequence[EntityFile],
        added: Sequence[WrittenFile],
        *,
        watermark_us: int,
        index_number: int,
        taken_number: int,
    ) -> None:
        """Put ``added`` in the place of ``removed`` and move the watermark on, in one commit.

        Raises:
            MergeOvertakenError: the table has changed since ``snapshot``: nothing was changed, begin again.
            WarehouseError: a file is so old that vacuum may take it; nothing was changed.
            WarehouseError: the lake failed; whether the commit is in, the next snapshot's watermark says.
        """
        now = self._now()
        actions: list[AddAction | RemoveAction] = [
            remove_action(file.name, file.size_bytes, {PARTITION_DATE: _text(file.partition)}, now=now)
            for file in removed
        ]
        refuse_old(added, now, max_hours=_MAX_UNCOMMITTED_HOURS)
        actions += [add_action(file, PARTITION_DATE) for file in added]
        marks = {_WATERMARK: watermark_us, _INDEX: index_number, _TAKEN: taken_number}
        self._commit(snapshot, actions, marks)

    def _commit(
        self,
        snapshot: EntitySnapshot,
        actions: list[AddAction | RemoveAction],
        marks: Mapping[str, int],
        schema: pa.Schema | None = None,
    ) -> None:
        """Commit ``actions`` to the table as it was in ``snapshot``; with another ``schema`` its files go too."""
        table = self._table()
        if table.version() != snapshot.version:
            raise MergeOvertakenError(
                f"Another commit has changed {self.name}: its version is "
                f"{table.version()}, not {snapshot.version}."
            )
        try:
            with our_errors(f"committing to {self.name}", but=CommitFailedError):
                self._write(table, actions, marks, schema=schema)
        except CommitFailedError as exc:
            raise MergeOvertakenError(f"Another merge has just changed {self.name}.") from exc

    def overtake(self) -> int:
        """Make every merge that has begun fail when it commits; return the last one's ``taken_number``.

        Raises:
            WarehouseError: the lake failed, or merges commit all the time.
        """
        for _ in range(_OVERTAKE_TRIES):
            table = self._table()
            watermark = table.transaction_version(_WATERMARK) or 0
            try:
                with our_errors(f"committing to {self.name}", but=CommitFailedError):
                    # The same mark as a merge's: of two commits that set it at once, one fails.
                    self._write(table, [], {_WATERMARK: watermark})
            except CommitFailedError:
                continue
            return table.transaction_version(_TAKEN) or 0
        raise WarehouseError(f"Other merges keep committing to {self.name}. Try again.")


class ReportingUpkeep(LakeRowTable):
    """Upkeep of a reporting table: vacuum alone, as its partitions are no days of ingestion, and merged whole."""

    def vacuum(self, *, keep_hours: int = _MIN_VACUUM_HOURS, dry_run: bool = False) -> list[str]:
        """Delete files that no snapshot of the last ``keep_hours``, a day at least, names, and return them.

        Those are files that a merge replaced, and files of merges that died. A merge commits a file within half a
        day or never, so that none is taken from under it. Nothing is committed, which would overtake a merge.
        """
        refuse_wrong_clock(self._now(), "delete files")
        with our_errors("vacuuming the table"):
            table = self._table()
            # A file may only go when the entry that took it out of the table can't be undone any more.
            self._log.sync(table)
            found = table.vacuum(
                retention_hours=max(keep_hours, _MIN_VACUUM_HOURS),
                dry_run=True,
                enforce_retention_duration=False,
                full=True,
            )
            for path in () if dry_run else found:
                self._objects.delete(unquote(path))
        return list(found)


def write_partition(
    table_uri: str,
    partition: date | None,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    *,
    keys: Sequence[str] = (),
) -> list[WrittenFile]:
    """Write a partition's rows as files that nobody sees before they are committed; none for no rows.

    Of texts, the columns ``keys`` alone
    get statistics: others take half of the time to write, and a query rarely leaves out a row group by them.
    """
    objects = open_objects(table_uri)
    written: list[WrittenFile] = []
    groups = row_groups(batches, schema, _GROUP_ROWS)
    measured = [name for name in schema.names if name in keys or not _is_text(schema.field(name).type)]
    with our_errors(f"writing partition {partition}"):
        for group in groups:
            name, rows, size = f"{partition or 'none'}-{uuid.uuid4().hex}.parquet", 0, 0
            repeating = [field for field in schema if _repeats(group.column(field.name))]
            with (
                objects.writing(name) as made,
                pq.ParquetWriter(
                    made.stream,
                    schema,
                    compression="zstd",
                    use_dictionary=[leaf for field in repeating for leaf in _leaves(field)],
                    write_statistics=measured,
                ) as writer,
            ):
                for part in itertools.chain([group], groups):
                    writer.write_table(part, row_group_size=part.num_rows)
                    rows, size = rows + part.num_rows, size + part.nbytes
                    if size > _FILE_BYTES:
                        break
            stats = json.dumps({"numRecords": rows})
            written.append(WrittenFile(name, made.size_bytes, rows, _text(partition), made.modified_at_ms, stats))
    return written


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _repeats(column: pa.ChunkedArray) -> bool:
    """Return whether a column's values come more than once, by its first ones; of records and arrays, True."""
    if pa.types.is_nested(column.type):
        return True
    first = column.slice(0, _SAMPLED_ROWS)
    return bool(pc.count_distinct(first).as_py() * 2 <= len(first))


def _leaves(field: pa.Field, prefix: str = "") -> Iterator[str]:
    """Yield the paths of a column in Parquet: one a value, of records and arrays those within."""
    path = f"{prefix}{field.name}"
    if pa.types.is_struct(field.type):
        for inner in field.type:
            yield from _leaves(inner, f"{path}.")
    elif pa.types.is_list(field.type):
        yield from _leaves(field.type.value_field.with_name("element"), f"{path}.list.")
    else:
        yield path


def _widened(path: str, current: RowSchema, target: RowSchema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, which may lack columns that are younger than it, in the schema ``target``."""
    schema = arrow_schema(target)
    with open_files([path]) as files:
        for batch in files.batches(path, most_rows=_REWRITE_ROWS):
            yield widen_batch(batch, current, target, schema)


def _text(partition: date | None) -> str | None:
    return None if partition is None else partition.isoformat()


def _by_partition(file: EntityFile) -> tuple[date, str]:
    return (file.partition or date.min, file.name)
