"""The DuckDB SQL of a merge in a lake: which version is newer, what a row becomes, what the view shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from connectors.lake.engine import quote_name, quote_text
from connectors.lake.merged_files import StagedRows
from connectors.lake.text_order import kind_of, sort_parts
from model.entity import (
    DELETED,
    MESSAGE_COLUMNS,
    OPERATION,
    PARTITION_DATE,
    REMOVE,
    REPLAY_COLUMNS,
    EntityRules,
)
from model.schema import Field, FieldType, RowSchema

# Names that no column has: staging's own begin with a letter or one underscore.
HASH: Final = "__hash"
FILE: Final = "__file"
ROW: Final = "__row"
UNORDERED: Final = "__unordered"
_RANK: Final = "__rank"


@dataclass(frozen=True, slots=True)
class MergeStatements:
    """The SQL for one kind of entity: its table's schema and its rules."""

    schema: RowSchema
    rules: EntityRules

    def versions(self, paths: Sequence[str], *, first: int = 0, since: datetime | None = None) -> str:
        """Return a query over staged files: what tells versions apart, and where each row lies.

        Its ``__file`` is the place in ``paths`` plus ``first``, ``__row`` the row's number in that file. With
        ``since`` only rows that came in after it.
        """
        columns = ", ".join(f"s.{quote_name(name)}" for name in self._version_columns())
        recent = "" if since is None else f" WHERE s.ingest_time > {_timestamp(since)}"
        return (
            f"SELECT {columns}, md5_number_upper({self._key_text('s')}) AS {HASH}, "
            f"{self._partition('s')} AS {PARTITION_DATE}, s.{FILE} + {first} AS {FILE}, s.{ROW} "
            f"FROM ({self._rows(paths)}) s{recent}"
        )

    @property
    def has_replays(self) -> bool:
        """Whether rows have the message that they are of: without these columns no replay takes a row away."""
        return set(REPLAY_COLUMNS) <= set(self.schema.names())

    @property
    def text_order(self) -> tuple[str, ...]:
        """The columns whose texts are ordered by what they say."""
        return self.rules.text_order(self.schema)

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that :meth:`key_hashes` are made of."""
        return (*self.rules.key, *(MESSAGE_COLUMNS if self.has_replays else ()))

    def replays(self, paths: Sequence[str]) -> str:
        """Return a query for the rows of files that are replays, and their ``__file``."""
        columns = ", ".join((*REPLAY_COLUMNS, FILE))
        return f"SELECT {columns} FROM ({self._rows(paths)}) WHERE _backfill_id IS NOT NULL"

    def current(self, rows: str, replays: str) -> str:
        """Return the rows of a query without those that a row of the table ``replays`` repairs."""
        return f"SELECT x.* FROM ({rows}) x ANTI JOIN {replays} y ON {_repairs('y', 'x')}"

    def displaced(self, reporting: Sequence[str], replays: str) -> str:
        """Return a query for the rows of ``reporting`` that a row of the table ``replays`` repairs."""
        columns = ", ".join(f"r.{quote_name(name)}" for name in self._version_columns())
        return (
            f"SELECT {columns}, r.{FILE}, r.{ROW} FROM ({self._rows(reporting)}) r "
            f"SEMI JOIN {replays} y ON {_repairs('y', 'r')}"
        )

    def without_heir(self, displaced: str, versions: str) -> str:
        """Return the rows of the table ``displaced`` than which no row of ``versions`` with their key is newer.

        Whatever else has their key may be newest then: all of staging has to be asked.
        """
        is_newer = f"{self._is_newer('c', 'd')} AND NOT {self._is_unordered('c', 'd')}"
        is_heir = f"{self._same_key('d', 'c')} AND {is_newer}"
        return f"SELECT d.* FROM {displaced} d ANTI JOIN {versions} c ON {is_heir}"

    def of_keys(self, rows: str, keys: str) -> str:
        """Return the rows of a query whose key a row of the table ``keys`` has."""
        return f"SELECT x.* FROM ({rows}) x SEMI JOIN {keys} k ON {self._same_key('x', 'k')}"

    def of_other_keys(self, rows: str, keys: str) -> str:
        """Return the rows of a query whose key no row of the table ``keys`` has."""
        return f"SELECT x.* FROM ({rows}) x ANTI JOIN {keys} k ON {self._same_key('x', 'k')}"

    def newest(self, versions: str) -> str:
        """Return the newest version of each key among the rows of a query, and whether it can't be told which."""
        rank = f"row_number() OVER (PARTITION BY {self._keys('v')} ORDER BY {self._newest_first('v')})"
        return f"SELECT *, {self._has_unordered('v')} AS {UNORDERED} FROM ({versions}) v QUALIFY {rank} = 1"

    def compared(self, changes: str, reporting: Sequence[str]) -> str:
        """Return a query for each row of ``reporting`` that a row of the table ``changes`` has the key of.

        ``place`` is the change's ``rowid``; a tie is not newer.
        """
        return (
            f"SELECT c.rowid AS place, r.{FILE}, r.{ROW}, {self._is_newer('c', 'r')} AS is_newer, "
            f"{self._is_unordered('c', 'r')} AS {UNORDERED} "
            f"FROM ({self._rows(reporting)}) r JOIN {changes} c ON {self._same_key('r', 'c')}"
        )

    def changed_rows(self, paths: Sequence[str], chosen: str | None) -> str:
        """Return a query for whole rows of reporting, with their partition, that staged rows become.

        The table ``chosen`` has the ``__file`` (a place in ``paths``) and ``__row`` of each; None are all rows.
        """
        which = "" if chosen is None else f"SEMI JOIN {chosen} w ON s.{FILE} = w.{FILE} AND s.{ROW} = w.{ROW}"
        columns = ", ".join(self._change_column(field) for field in self.schema.fields if field.name != DELETED)
        ordered = ", ".join(quote_name(field.name) for field in self.schema.fields)
        return (
            f"SELECT {ordered}, {PARTITION_DATE} FROM (SELECT {columns}, {self._is_removed('s')} AS {DELETED}, "
            f"{self._partition('s')} AS {PARTITION_DATE} FROM ({self._rows(paths)}) s {which})"
        )

    def widened_rows(self, path: str) -> str:
        """Return a query for the rows of a file in the columns of the table, and their ``__row``."""
        columns = ", ".join(quote_name(field.name) for field in self.schema.fields)
        return f"SELECT {columns}, {ROW} FROM ({self._rows([path])})"

    def key_hashes(self, reporting: Sequence[str]) -> str:
        """Return a query for the hash of each key in ``reporting``, and the place of its file."""
        return (
            f"SELECT md5_number_upper({self._key_text('r')}) AS {HASH}, r.{FILE} FROM ({self._rows(reporting)}) r"
        )

    def staged_count(self, paths: Sequence[str]) -> str:
        """Return a query for the number of all rows in files."""
        files = ", ".join(map(quote_text, paths))
        return f"SELECT sum(num_rows) FROM parquet_file_metadata([{files}])"

    def without_key(self, rows: str) -> str:
        """Return a query for the number of rows that are of no entity among those of a table."""
        return f"SELECT count(*) FROM {rows} x WHERE {self._is_without_key('x')}"

    def counted(self, paths: Sequence[str]) -> str:
        """Return a query for the rows, the keys and the newest ``ingest_time`` of files that a merge wrote."""
        if not paths:
            return "SELECT 0, 0, NULL"
        # All of one schema: the merge has just written them.
        rows = f"SELECT * FROM read_parquet([{', '.join(map(quote_text, paths))}], hive_partitioning = false)"
        each = f"SELECT count(*) AS rows, max(n.ingest_time) AS newest FROM ({rows}) n GROUP BY {self._keys('n')}"
        return f"SELECT sum(rows), count(*), max(newest) FROM ({each})"

    def union_sql(self, reporting: Sequence[str], staging: StagedRows) -> str:
        """Return DuckDB SQL of the view of both: each key once, its newest version, removed ones left out."""
        columns = ", ".join(quote_name(field.name) for field in self.schema.fields)
        order = f"{self._newest_first('u')}, u.{_RANK}"
        hidden = "FALSE" if self.rules.is_soft_delete else f"coalesce({DELETED}, FALSE)"
        merged, fresh, more, tables = self._rows(reporting), self._staged(staging), "", ""
        if staging.replays:
            merged, fresh = self.current(merged, "replays"), self.current(fresh, "replays")
            # A join with no keys reads no file: the rest of staging is asked for what has lost its heir alone.
            history = self.of_keys(self.current(self._rows(staging.every), "replays"), "lost")
            more = f"UNION ALL BY NAME {self._as_changed(history)} "
            tables = (
                f"WITH replays AS MATERIALIZED ({self.replays(staging.replays)}), "
                f"versions AS MATERIALIZED ({self._version_rows(fresh)}), "
                f"displaced AS MATERIALIZED ({self.displaced(reporting, 'replays')}), "
                f"lost AS MATERIALIZED ({self.without_heir('displaced', 'versions')}) "
            )
        return (
            f"{tables}SELECT {columns} FROM (SELECT {columns}, 0 AS {_RANK} FROM ({merged}) "
            f"UNION ALL BY NAME {self._as_changed(fresh)} {more}) u "
            f"QUALIFY row_number() OVER (PARTITION BY {self._keys('u')} ORDER BY {order}) = 1 AND NOT {hidden}"
        )

    # -- expressions

    def _as_changed(self, rows: str) -> str:
        changed = ", ".join(self._change_column(field) for field in self.schema.fields if field.name != DELETED)
        return f"SELECT {changed}, {self._is_removed('s')} AS {DELETED}, 1 AS {_RANK} FROM ({rows}) s"

    def _version_columns(self) -> list[str]:
        replay = REPLAY_COLUMNS if self.has_replays else ()
        return list(dict.fromkeys((*self.rules.key, *self.rules.order, *replay, "ingest_time")))

    def _version_rows(self, rows: str) -> str:
        return f"SELECT {', '.join(quote_name(name) for name in self._version_columns())} FROM ({rows})"

    def _rows(self, paths: Sequence[str]) -> str:
        """Return a query over files whose schemas may be older than the table's: a column they lack is null."""
        nothing = ", ".join(f"CAST(NULL AS {_duckdb_type(f)}) AS {quote_name(f.name)}" for f in self.schema.fields)
        empty = f"SELECT {nothing}, 0::BIGINT AS {FILE}, 0::BIGINT AS {ROW} WHERE FALSE"
        if not paths:
            return empty
        files = ", ".join(map(quote_text, paths))
        read = f"read_parquet([{files}], union_by_name = true, hive_partitioning = false, file_row_number = true)"
        return (
            f"{empty} UNION ALL BY NAME SELECT * EXCLUDE (file_row_number), file_index::BIGINT AS {FILE}, "
            f"file_row_number AS {ROW} FROM {read}"
        )

    def _staged(self, staging: StagedRows) -> str:
        """Return a query over rows of staging."""
        if not staging.again or staging.since is None:
            return self._rows(staging.new)
        again = f"SELECT * FROM ({self._rows(staging.again)}) WHERE ingest_time > {_timestamp(staging.since)}"
        return f"{self._rows(staging.new)} UNION ALL BY NAME {again}"

    def _change_column(self, field: Field) -> str:
        name = quote_name(field.name)
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
        return "CAST(NULL AS DATE)" if field is None else f"CAST({alias}.{quote_name(field)} AS DATE)"

    def _is_without_key(self, alias: str) -> str:
        return " AND ".join(f"{alias}.{quote_name(key)} IS NULL" for key in self.rules.key)

    def _identity(self, alias: str) -> list[str]:
        """Return the expressions that are the same for rows of one entity: its key, or which message has none."""
        keys = [f"{alias}.{quote_name(key)}" for key in self.rules.key]
        if not self.has_replays:
            return keys
        message = _joined([f"CAST({alias}.{quote_name(name)} AS VARCHAR)" for name in MESSAGE_COLUMNS])
        return [*keys, f"CASE WHEN {self._is_without_key(alias)} THEN {message} END"]

    def _keys(self, alias: str) -> str:
        return ", ".join(self._identity(alias))

    def _sorted_by(self, alias: str) -> list[str]:
        """Return the expressions that order versions, the first one first; null is the oldest of each."""
        return [part for name in self.rules.order for part in self._sort_parts(alias, name)]

    def _sort_parts(self, alias: str, name: str) -> list[str]:
        column = f"{alias}.{quote_name(name)}"
        if name in self.text_order:
            return sort_parts(column)
        # DuckDB sorts NaN above every number; GoogleSQL below, and null below that.
        return [f"(NOT isnan({column}))", column] if self._is_float(name) else [column]

    def _newest_first(self, alias: str) -> str:
        return ", ".join(f"{part} DESC NULLS LAST" for part in self._sorted_by(alias))

    def _is_float(self, name: str) -> bool:
        return any(field.name == name and field.type == "FLOAT64" for field in self.schema.fields)

    def _same_key(self, one: str, other: str) -> str:
        pairs = zip(self._identity(one), self._identity(other), strict=True)
        return " AND ".join(f"{mine} IS NOT DISTINCT FROM {theirs}" for mine, theirs in pairs)

    def _key_text(self, alias: str) -> str:
        """Return an expression whose text is the same for the same key and for no other."""
        return _joined([f"CAST({part} AS VARCHAR)" for part in self._identity(alias)])

    def _is_newer(self, new: str, old: str) -> str:
        found = "FALSE"
        pairs = zip(self._sorted_by(new), self._sorted_by(old), strict=True)
        for mine, theirs in reversed(list(pairs)):
            found = (
                f"CASE WHEN {mine} IS NOT DISTINCT FROM {theirs} THEN {found} "
                f"WHEN {theirs} IS NULL THEN TRUE WHEN {mine} IS NULL THEN FALSE ELSE {mine} > {theirs} END"
            )
        return found

    def _kind(self, alias: str, name: str) -> str:
        return kind_of(f"{alias}.{quote_name(name)}", is_moment=name == self.rules.event_time)

    def _is_unordered(self, one: str, other: str) -> str:
        """Whether the first column that tells two versions apart has texts of two kinds."""
        found = "FALSE"
        for name in reversed(self.rules.order if self.text_order else ()):
            pairs = zip(self._sort_parts(one, name), self._sort_parts(other, name), strict=True)
            is_same = " AND ".join(f"{mine} IS NOT DISTINCT FROM {theirs}" for mine, theirs in pairs)
            found = f"CASE WHEN {is_same} THEN {found} ELSE FALSE END" if found != "FALSE" else found
            if name in self.text_order:
                differ = f"{self._kind(one, name)} <> {self._kind(other, name)}"
                found = f"CASE WHEN {differ} THEN TRUE ELSE {found} END"
        return found

    def _has_unordered(self, alias: str) -> str:
        """Whether the versions that are as new as a row by its earlier columns have texts of several kinds."""
        same, found = self._identity(alias), ["FALSE"]
        for name in self.rules.order:
            if name in self.text_order:
                kind, window = self._kind(alias, name), f"OVER (PARTITION BY {', '.join(same)})"
                found.append(f"coalesce(min({kind}) {window} <> max({kind}) {window}, FALSE)")
            same = [*same, *self._sort_parts(alias, name)]
        return " OR ".join(found)


def _joined(texts: Sequence[str]) -> str:
    """Return an expression whose text is the same for the same texts, or nulls, and for no others."""
    return " || ".join(f"coalesce(length({text}) || ':' || {text}, '-')" for text in texts)


def _repairs(replay: str, row: str) -> str:
    """Whether a replay was written after a row of the same message, and is no other part of the same replay."""
    is_later = (
        f"({replay}.ingest_time > {row}.ingest_time "
        f"OR ({replay}.ingest_time = {row}.ingest_time AND {row}._backfill_id IS NULL))"
    )
    is_other_part = (
        f"({replay}._backfill_id IS NOT DISTINCT FROM {row}._backfill_id "
        f"AND {replay}._backfill_row IS DISTINCT FROM {row}._backfill_row)"
    )
    same = f"{replay}._topic = {row}._topic AND {replay}._message_id = {row}._message_id"
    return f"{same} AND {is_later} AND NOT {is_other_part}"


def _timestamp(moment: datetime) -> str:
    return f"TIMESTAMPTZ '{moment.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f')}+00'"


def _duckdb_type(field: Field) -> str:
    """Return the type of a column as the lake keeps it (:mod:`connectors.columns`)."""
    if field.type == "RECORD":
        kind = "STRUCT(" + ", ".join(f"{quote_name(f.name)} {_duckdb_type(f)}" for f in field.fields) + ")"
    else:
        kind = _TYPES[field.type]
    return f"{kind}[]" if field.mode == "REPEATED" else kind


_TYPES: Final[Mapping[FieldType, str]] = {
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
