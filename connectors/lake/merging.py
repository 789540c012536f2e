"""The steps of a merge in a lake, each over few files: newest changes, comparison, rewriting."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from connectors.lake.columns import arrow_schema
from connectors.lake.entities import EntityFile, NewFile, write_partition
from connectors.lake.key_index import NO_DAY, KeyDays
from connectors.lake.taken_files import StagedRows
from model.entity import DELETED, OPERATION, PARTITION_DATE, REMOVE, EntityRules
from model.errors import QueryTooLargeError, WarehouseError
from model.schema import Field, RowSchema

_EPOCH: Final = date(1970, 1, 1)
_BATCH_ROWS: Final = 8192
# Names that no column has: staging's own begin with a letter or one underscore.
_KEY: Final = "__key"
_HASH: Final = "__hash"
_RANK: Final = "__rank"


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """What one step may use; beyond the memory it spills into ``temp_folder``."""

    memory: str
    temp_folder: Path
    threads: int = 2


@dataclass(frozen=True, slots=True)
class Compared:
    """Of the changed keys found in a partition: those whose change is newer, and those whose change is not."""

    newer: tuple[str, ...]
    older: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A partition's new files and what became of its rows."""

    files: tuple[NewFile, ...]
    rows_before: int
    rows_after: int
    added: int
    keys_after: int
    newest_us: int

    def as_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Rewritten":
        """Return what :meth:`as_json` described."""
        return cls(**{**found, "files": tuple(NewFile(**file) for file in found["files"])})


@dataclass(frozen=True, slots=True)
class MergeStatements:
    """What one kind of entity takes to merge: its table's schema and its rules."""

    schema: RowSchema
    rules: EntityRules

    def write_changes(self, staging: StagedRows, target: Path, limits: MergeLimits) -> int:
        """Write each key's newest version among rows of staging; return how many there are."""
        columns = ", ".join(self._change_column(field) for field in self.schema.fields if field.name != DELETED)
        rank = f"row_number() OVER (PARTITION BY {self._keys('s')} ORDER BY {self._newest_first('s')})"
        with _connection(limits) as run:
            run(
                f"COPY (SELECT {columns}, {self._is_removed('s')} AS {DELETED}, {self._partition('s')} AS "
                f"{PARTITION_DATE}, md5({self._key_text('s')}) AS {_KEY}, "
                f"md5_number_upper({self._key_text('s')}) AS {_HASH} "
                f"FROM (SELECT *, {rank} AS {_RANK} FROM ({self._staged(staging)}) s) s "
                f"WHERE {_RANK} = 1) TO {_quote(str(target))} (FORMAT parquet, COMPRESSION zstd)"
            )
        return int(pq.ParquetFile(target).metadata.num_rows)

    def write_winners(self, changes: Path, older: Sequence[str], target: Path, limits: MergeLimits) -> int:
        """Write the changes but those whose keys are in ``older``; return how many there are."""
        with _connection(limits) as run:
            run("CREATE TABLE older (key VARCHAR)")
            run.register("given", pa.table({"key": pa.array(older, pa.string())}))
            run("INSERT INTO older SELECT key FROM given")
            run(
                f"COPY (SELECT * FROM read_parquet({_quote(str(changes))}) "
                f"WHERE {_KEY} NOT IN (SELECT key FROM older)) "
                f"TO {_quote(str(target))} (FORMAT parquet, COMPRESSION zstd)"
            )
        return int(pq.ParquetFile(target).metadata.num_rows)

    def read_key_days(self, changes: Path) -> KeyDays:
        """Return the hash and the new day of each changed key."""
        found = pq.read_table(changes, columns=[_HASH, PARTITION_DATE])
        return KeyDays(
            found.column(_HASH).to_numpy().astype(np.uint64), _days(found.column(PARTITION_DATE).combine_chunks())
        ).sorted()

    def read_table_key_days(self, file: EntityFile, limits: MergeLimits) -> KeyDays:
        """Return the hash of every key of one file of the table, all with its partition's day."""
        with _connection(limits) as run:
            found = run(f"SELECT md5_number_upper({self._key_text('r')}) AS h FROM ({self._rows([file.path])}) r")
            hashes = found.to_arrow_table().column("h").to_numpy().astype(np.uint64)
        return KeyDays(hashes, np.full(len(hashes), day_number(file.partition), np.int32))

    def compare(self, current: Sequence[str], changes: Path, limits: MergeLimits) -> Compared:
        """Say for each changed key in the files ``current`` which version is newer; a tie changes nothing."""
        with _connection(limits) as run:
            rows = run(
                f"SELECT c.{_KEY}, {self._is_newer('c', 'r', 0)} FROM ({self._rows(current)}) r "
                f"JOIN read_parquet({_quote(str(changes))}) c ON {self._same_key('r', 'c')}"
            ).fetchall()
        return Compared(
            tuple(sorted(key for key, is_newer in rows if is_newer)),
            tuple(sorted(key for key, is_newer in rows if not is_newer)),
        )

    def rewrite(
        self, table_uri: str, partition: date | None, current: Sequence[str], winners: Path, limits: MergeLimits
    ) -> Rewritten:
        """Write a partition anew: its rows but those that a winner replaces, and the winners in it."""
        schema = arrow_schema(self.schema)
        columns = ", ".join(_name(field.name) for field in self.schema.fields)
        lies_here = f"{PARTITION_DATE} IS NOT DISTINCT FROM {_date(partition)}"
        source = f"read_parquet({_quote(str(winners))})"
        with _connection(limits) as run:
            before = run(f"SELECT count(*) FROM ({self._rows(current)})").fetchall()[0][0]
            added = run(f"SELECT count(*) FROM {source} WHERE {lies_here}").fetchall()[0][0]
            kept = (
                f"SELECT {columns} FROM ({self._rows(current)}) r "
                f"WHERE NOT EXISTS (FROM {source} w WHERE {self._same_key('r', 'w')})"
            )
            reader = run(
                f"SELECT * FROM ({kept} UNION ALL SELECT {columns} FROM {source} WHERE {lies_here}) n "
                f"ORDER BY {self._keys('n')}"
            ).to_arrow_reader(_BATCH_ROWS)
            files = write_partition(table_uri, partition, schema, (_cast(batch, schema) for batch in reader))
        paths = [f"{table_uri}/{file.name}" for file in files]
        with _connection(limits) as run:
            keys, newest = run(
                f"SELECT count(DISTINCT md5({self._key_text('n')})), max(n.ingest_time) "
                f"FROM ({self._rows(paths)}) n"
            ).fetchall()[0]
        rows = sum(file.rows for file in files)
        return Rewritten(tuple(files), before, rows, added, keys, 0 if newest is None else microseconds(newest))

    def union_sql(self, reporting: Sequence[str], staging: StagedRows) -> str:
        """Return DuckDB SQL of the view of both: each key once, its newest version, removed ones left out."""
        columns = ", ".join(_name(field.name) for field in self.schema.fields)
        changed = ", ".join(self._change_column(field) for field in self.schema.fields if field.name != DELETED)
        order = f"{self._newest_first('u')}, u.{_RANK}"
        hidden = "FALSE" if self.rules.is_soft_delete else f"coalesce({DELETED}, FALSE)"
        return (
            f"SELECT {columns} FROM (SELECT {columns}, 0 AS {_RANK} FROM ({self._rows(reporting)}) "
            f"UNION ALL BY NAME SELECT {changed}, {self._is_removed('s')} AS {DELETED}, 1 AS {_RANK} "
            f"FROM ({self._staged(staging)}) s) u "
            f"QUALIFY row_number() OVER (PARTITION BY {self._keys('u')} ORDER BY {order}) = 1 AND NOT {hidden}"
        )

    # -- expressions

    def _rows(self, paths: Sequence[str]) -> str:
        """Return a query over files whose schemas may be older than the table's: what they lack is null."""
        nothing = ", ".join(f"CAST(NULL AS {_duckdb_type(f)}) AS {_name(f.name)}" for f in self.schema.fields)
        empty = f"SELECT {nothing} WHERE FALSE"
        if not paths:
            return empty
        files = ", ".join(map(_quote, paths))
        read = f"SELECT * FROM read_parquet([{files}], union_by_name = true, hive_partitioning = false)"
        return f"{empty} UNION ALL BY NAME {read}"

    def _staged(self, staging: StagedRows) -> str:
        """Return a query over rows of staging."""
        if not staging.again or staging.since is None:
            return self._rows(staging.new)
        again = f"SELECT * FROM ({self._rows(staging.again)}) WHERE ingest_time > {_timestamp(staging.since)}"
        return f"{self._rows(staging.new)} UNION ALL BY NAME {again}"

    def _change_column(self, field: Field) -> str:
        name = _name(field.name)
        if not self._is_wiped(field.name):
            return f"s.{name} AS {name}"
        return f"CASE WHEN {self._is_removed('s')} THEN NULL ELSE s.{name} END AS {name}"

    def _is_wiped(self, name: str) -> bool:
        """Whether a removed entity loses this column: all but what says which it was and when it went."""
        rules = self.rules
        kept = {*rules.key, *rules.order, rules.partition_field}
        return rules.has_operation and not rules.is_soft_delete and name not in kept and not name.startswith("_")

    def _is_removed(self, alias: str) -> str:
        return f"coalesce({alias}.{OPERATION} = '{REMOVE}', FALSE)" if self.rules.has_operation else "FALSE"

    def _partition(self, alias: str) -> str:
        field = self.rules.partition_field
        return "CAST(NULL AS DATE)" if field is None else f"CAST({alias}.{_name(field)} AS DATE)"

    def _keys(self, alias: str) -> str:
        return ", ".join(f"{alias}.{_name(key)}" for key in self.rules.key)

    def _newest_first(self, alias: str) -> str:
        return ", ".join(f"{alias}.{_name(column)} DESC NULLS LAST" for column in self.rules.order)

    def _same_key(self, one: str, other: str) -> str:
        return " AND ".join(
            f"{one}.{_name(key)} IS NOT DISTINCT FROM {other}.{_name(key)}" for key in self.rules.key
        )

    def _key_text(self, alias: str) -> str:
        """Return an expression whose text is the same for the same key and for no other."""
        texts = [f"CAST({alias}.{_name(key)} AS VARCHAR)" for key in self.rules.key]
        return " || ".join(f"coalesce(length({text}) || ':' || {text}, '-')" for text in texts)

    def _is_newer(self, new: str, old: str, place: int) -> str:
        if place == len(self.rules.order):
            return "FALSE"
        mine, theirs = (f"{alias}.{_name(self.rules.order[place])}" for alias in (new, old))
        return (
            f"CASE WHEN {mine} IS NOT DISTINCT FROM {theirs} THEN {self._is_newer(new, old, place + 1)} "
            f"WHEN {theirs} IS NULL THEN TRUE WHEN {mine} IS NULL THEN FALSE ELSE {mine} > {theirs} END"
        )


def microseconds(moment: datetime) -> int:
    """Return an aware moment as microseconds since 1970, exactly."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def read_newest_us(changes: Path) -> int:
    """Return the latest ingest_time among changed rows, microseconds since 1970, 0 where there are none."""
    newest = pc.max(pq.read_table(changes, columns=["ingest_time"]).column(0)).as_py()
    return 0 if newest is None else microseconds(newest)


def day_number(day: date | None) -> int:
    """Return the days since 1970, or what stands for a null."""
    return NO_DAY if day is None else (day - _EPOCH).days


def day_of(number: int) -> date | None:
    """Return the day that :func:`day_number` gave a number.

    Example:
        >>> day_of(day_number(date(2026, 1, 2)))
        datetime.date(2026, 1, 2)
    """
    return None if number == NO_DAY else date.fromordinal(_EPOCH.toordinal() + number)


def _days(column: pa.Array) -> Any:
    numbers = column.cast(pa.int32())
    return numbers.fill_null(NO_DAY).to_numpy(zero_copy_only=False).astype(np.int32)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)], schema=schema
    )


def _duckdb_type(field: Field) -> str:
    """Return the type of a column as the lake keeps it (:mod:`connectors.lake.columns`)."""
    if field.type == "RECORD":
        kind = "STRUCT(" + ", ".join(f"{_name(f.name)} {_duckdb_type(f)}" for f in field.fields) + ")"
    else:
        kind = _TYPES[field.type]
    return f"{kind}[]" if field.mode == "REPEATED" else kind


_TYPES: Final[Mapping[str, str]] = {
    "STRING": "VARCHAR",
    "BYTES": "BLOB",
    "INT64": "BIGINT",
    "FLOAT64": "DOUBLE",
    "NUMERIC": "DECIMAL(38, 9)",
    "BOOL": "BOOLEAN",
    "TIMESTAMP": "TIMESTAMPTZ",
    "DATE": "DATE",
    "TIME": "VARCHAR",
    "DATETIME": "TIMESTAMP",
    "GEOGRAPHY": "VARCHAR",
    "JSON": "VARCHAR",
}


class _Run:
    """One statement after the other on one connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __call__(self, sql: str) -> Any:
        return self._connection.sql(sql) if sql.lstrip().startswith("SELECT") else self._connection.execute(sql)

    def register(self, name: str, table: pa.Table) -> None:
        self._connection.register(name, table)


@contextmanager
def _connection(limits: MergeLimits) -> Iterator[_Run]:
    limits.temp_folder.mkdir(parents=True, exist_ok=True)
    connection = duckdb.connect(":memory:")
    try:
        memory = limits.memory if limits.memory[-1] in "bB" else f"{limits.memory}B"
        for setting, value in (
            ("TimeZone", "'UTC'"),
            ("threads", str(limits.threads)),
            ("memory_limit", _quote(memory)),
            ("temp_directory", _quote(str(limits.temp_folder))),
            ("arrow_large_buffer_size", "true"),
            ("autoinstall_known_extensions", "false"),
        ):
            connection.execute(f"SET {setting} = {value}")
        yield _Run(connection)
    except duckdb.OutOfMemoryException as exc:
        raise QueryTooLargeError(f"The merge needs more than {limits.memory} of memory: {exc}") from exc
    except (duckdb.Error, pa.ArrowException) as exc:
        raise WarehouseError(f"The merge failed in the lake: {exc}") from exc
    finally:
        connection.close()


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _date(day: date | None) -> str:
    return "CAST(NULL AS DATE)" if day is None else f"DATE '{day.isoformat()}'"


def _timestamp(moment: datetime) -> str:
    return f"TIMESTAMPTZ '{moment.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f')}+00'"


def read_union(
    statements: MergeStatements,
    reporting: Sequence[str],
    staging: StagedRows,
    limits: MergeLimits,
) -> pa.Table:
    """Return the rows of the union view over files of reporting and rows of staging."""
    with _connection(limits) as run:
        return run(statements.union_sql(reporting, staging)).to_arrow_table()
