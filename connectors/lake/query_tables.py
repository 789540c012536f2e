"""Delta tables beside the archive as queries see them: their columns, and the files of one snapshot."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from connectors.columns import arrow_schema
from connectors.lake.data_files import partition_start, touches
from connectors.lake.delta_table import table_uri
from connectors.lake.engine import quote_name, quote_text
from connectors.lake.files import PARTITION_COLUMNS
from model.errors import WarehouseError
from model.schema import RowSchema
from model.table import PARTITION_DATE, PARTITION_TIME, Partitioning, TableRead, TableSchema

INGEST_TIME: Final = "ingest_time"

# Delta's types -> GoogleSQL's and the lake engine's; a column of another type is not there for queries.
_TYPES: Final = {
    "string": ("STRING", "VARCHAR"),
    "long": ("INT64", "BIGINT"),
    "integer": ("INT64", "BIGINT"),
    "short": ("INT64", "BIGINT"),
    "byte": ("INT64", "BIGINT"),
    "double": ("FLOAT64", "DOUBLE"),
    "float": ("FLOAT64", "DOUBLE"),
    "boolean": ("BOOL", "BOOLEAN"),
    "binary": ("BYTES", "BLOB"),
    "date": ("DATE", "DATE"),
    "timestamp": ("TIMESTAMP", "TIMESTAMPTZ"),
    "timestamp_ntz": ("DATETIME", "TIMESTAMP"),
}
_MAX_SCALE: Final = 9
_MAX_WHOLE_DIGITS: Final = 29
# Tables with these say in other places than the log's paths what a row is.
_UNREADABLE: Final = frozenset({"deletionVectors", "columnMapping"})


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column: its type in GoogleSQL and the one that its files are read as; a map is shown as its entries."""

    name: str
    type: str
    file_type: str
    is_map: bool = False


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file; ``values`` are those of the table's partition columns, as text."""

    path: str
    size_bytes: int
    values: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One table at one moment: what its view is called, its columns, and the files that a query may need.

    ``partitions`` are columns whose values stand in the log and not in the files. With ``partitioning`` the view
    has the pseudo columns, cut from ``ingest_time``. A ``select`` over the files says what its rows are,
    where they are not simply those of the files.
    """

    view: str
    columns: tuple[TableColumn, ...]
    partitions: tuple[str, ...]
    files: tuple[TableFile, ...]
    partitioning: Partitioning | None
    select: str | None = None

    @property
    def size_bytes(self) -> int:
        """How many bytes every column of every file has together."""
        return sum(file.size_bytes for file in self.files)


class LakeTables:
    """The tables that a deployment allows beside its archive; calls from several threads take turns."""

    def __init__(self, root: str, tables: Sequence[str]) -> None:
        self._root = root
        self._names = tuple(tables)
        self._open: dict[str, DeltaTable] = {}
        self._lock = threading.Lock()

    def read_schemas(self) -> tuple[tuple[TableSchema, ...], tuple[str, ...]]:
        """Return what is known of each table now, and which are not there or can't be read.

        Raises:
            WarehouseError: the lake does not answer.
        """
        schemas: list[TableSchema] = []
        missing: list[str] = []
        with self._lock:
            for name in self._names:
                table = self._table(name)
                if table is None:
                    missing.append(name)
                    continue
                columns, _, partitioning = _describe(table)
                shown = tuple((column.name, column.type) for column in columns)
                schemas.append(TableSchema(name, shown, partitioning))
        return tuple(schemas), tuple(missing)

    def snapshot(self, reads: Iterable[TableRead]) -> tuple[TableSnapshot, ...]:
        """Return the newest snapshot of each table that is read, without the files that its window leaves out.

        Raises:
            WarehouseError: a table is not there any more, or the lake does not answer.
        """
        with self._lock:
            return tuple(self._snapshot(read) for read in reads)

    def _snapshot(self, read: TableRead) -> TableSnapshot:
        table = self._table(read.table)
        if table is None:
            raise WarehouseError(f"The lake has no table {read.table}.", table=read.table)
        columns, partitions, partitioning = _describe(table)
        try:
            actions = pa.table(table.get_add_actions(flatten=True))
        except (DeltaError, OSError) as exc:
            raise WarehouseError(f"The lake failed while reading the log of {read.table}: {exc}") from exc
        paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
        values = [actions.column(f"partition.{name}").to_pylist() for name in partitions]
        starts: list[Any] = [None] * len(paths)
        if partitioning is not None:
            starts = actions.column(f"partition.{PARTITION_COLUMNS[partitioning].name}").to_pylist()
        root, window = table_uri(self._root, read.table), read.window
        files = [
            TableFile(f"{root}/{unquote(path)}", size, tuple(map(_text, of_file)))
            for path, size, start, *of_file in zip(paths, sizes, starts, *values, strict=True)
            if partitioning is None or window is None or touches(partition_start(start), partitioning, window)
        ]
        files.sort(key=lambda file: (tuple(map(str, file.values)), file.path))
        return TableSnapshot(read.view, columns, partitions, tuple(files), partitioning)

    def _table(self, name: str) -> DeltaTable | None:
        """Return the table at its newest version; None when there is none that can be read."""
        try:
            table = self._open.get(name)
            if table is None:
                table = self._open[name] = DeltaTable(table_uri(self._root, name))
            else:
                table.update_incremental()
            features = set(table.protocol().reader_features or ())
            mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        except TableNotFoundError:
            self._open.pop(name, None)
            return None
        except (DeltaError, OSError) as exc:
            self._open.pop(name, None)
            raise WarehouseError(f"The lake failed while opening {name}: {exc}") from exc
        return None if features & _UNREADABLE or mapping != "none" else table


def describe_columns(schema: RowSchema) -> tuple[TableColumn, ...]:
    """Return the columns of rows as queries see them; those of a type that queries can't have are left out."""
    fields = Schema.from_arrow(arrow_schema(schema)).fields
    return tuple(column for field in fields if (column := _column(field.name, field.type)) is not None)


def render_view(table: TableSnapshot) -> str:
    """Return the SELECT that a table's view is, in the lake engine's words."""
    stored = [column for column in table.columns if column.name not in table.partitions]
    groups: dict[tuple[str | None, ...], list[str]] = {}
    for file in table.files:
        groups.setdefault(file.values, []).append(file.path)
    parts = [_render_group(table, stored, values, paths) for values, paths in groups.items()]
    if table.select is not None:
        parts = [table.select]
    elif not parts:
        nulls = ", ".join(
            f"CAST(NULL AS {column.file_type}) AS {quote_name(column.name)}" for column in table.columns
        )
        parts = [f"SELECT {nulls} WHERE false"]
    columns = ", ".join(
        f"map_entries({quote_name(column.name)}) AS {quote_name(column.name)}"
        if column.is_map
        else quote_name(column.name)
        for column in table.columns
    )
    if table.partitioning is not None:
        time = quote_name(INGEST_TIME)
        columns += (
            f", date_trunc('{table.partitioning}', {time}) AS {PARTITION_TIME}"
            f", CAST({time} AS DATE) AS {PARTITION_DATE}"
        )
    return f"SELECT {columns} FROM ({' UNION ALL '.join(parts)})"  # noqa: S608 - names and paths are quoted


def _render_group(
    table: TableSnapshot, stored: Sequence[TableColumn], values: Sequence[str | None], paths: Sequence[str]
) -> str:
    """Return the SELECT of the files that share their partition's values."""
    types = [(quote_text(column.name), quote_text(column.file_type)) for column in stored]
    schema = ", ".join(
        f"{name}: {{'name': {name}, 'type': {kind}, 'default_value': NULL}}" for name, kind in types
    )
    constants = dict(zip(table.partitions, values, strict=True))
    columns = ", ".join(
        f"CAST({'NULL' if constants[c.name] is None else quote_text(str(constants[c.name]))} AS {c.file_type}) "
        f"AS {quote_name(c.name)}"
        if c.name in constants
        else quote_name(c.name)
        for c in table.columns
    )
    files = ", ".join(map(quote_text, paths))
    source = f"read_parquet([{files}], hive_partitioning = false, schema = MAP {{{schema}}})"
    return f"SELECT {columns} FROM {source}"  # noqa: S608 - names and paths are quoted


def _describe(table: DeltaTable) -> tuple[tuple[TableColumn, ...], tuple[str, ...], Partitioning | None]:
    """Return a table's columns, those whose values stand in the log, and how it is partitioned by ingestion."""
    names = table.metadata().partition_columns
    fields = {field.name: field.type for field in table.schema().fields}
    partitioning: Partitioning | None = None
    if getattr(fields.get(INGEST_TIME), "type", None) == "timestamp":
        partitioning = next((p for p, c in PARTITION_COLUMNS.items() if names == [c.name]), None)
    if partitioning is not None:
        fields.pop(names[0])
        names = []
    columns = tuple(column for name, kind in fields.items() if (column := _column(name, kind)) is not None)
    return columns, tuple(name for name in names if name in {column.name for column in columns}), partitioning


def _column(name: str, kind: Any) -> TableColumn | None:
    if hasattr(kind, "key_type"):
        key, value = _types(kind.key_type), _types(kind.value_type)
        if key is None or value is None:
            return None
        entry = f"ARRAY<STRUCT<key {key[0]}, value {value[0]}>>"
        return TableColumn(name, entry, f"MAP({key[1]}, {value[1]})", is_map=True)
    types = _types(kind)
    return None if types is None else TableColumn(name, *types)


def _types(kind: Any) -> tuple[str, str] | None:
    """Return GoogleSQL's and the lake engine's type for a Delta type, None when queries can't have it."""
    if hasattr(kind, "element_type"):
        element = _types(kind.element_type)
        # GoogleSQL has no arrays of arrays.
        if element is None or element[0].startswith("ARRAY<"):
            return None
        return f"ARRAY<{element[0]}>", f"{element[1]}[]"
    if hasattr(kind, "fields"):
        fields = [(field.name, _types(field.type)) for field in kind.fields]
        if not fields or not all(types and name.isidentifier() for name, types in fields):
            return None
        known = [(name, types) for name, types in fields if types is not None]
        theirs = ", ".join(f"{name} {types[0]}" for name, types in known)
        ours = ", ".join(f"{quote_name(name)} {types[1]}" for name, types in known)
        return f"STRUCT<{theirs}>", f"STRUCT({ours})"
    text = str(getattr(kind, "type", ""))
    if text.startswith("decimal("):
        precision, scale = map(int, text[len("decimal(") : -1].split(","))
        fits = scale <= _MAX_SCALE and precision - scale <= _MAX_WHOLE_DIGITS
        return ("NUMERIC", "DECIMAL(38, 9)") if fits else None
    return _TYPES.get(text)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.isoformat(" ") if isinstance(value, datetime) else str(value)
