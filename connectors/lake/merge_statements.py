"""The DuckDB SQL of a merge in a lake: which version is newer, what a row becomes, what the view shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from connectors.lake.taken_files import StagedRows
from model.entity import DELETED, OPERATION, PARTITION_DATE, REMOVE, EntityRules
from model.schema import Field, FieldType, RowSchema

# Names that no column has: staging's own begin with a letter or one underscore.
HASH: Final = "__hash"
FILE: Final = "__file"
ROW: Final = "__row"
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
        names = dict.fromkeys((*self.rules.key, *self.rules.order, "ingest_time"))
        columns = ", ".join(f"s.{quote_name(name)}" for name in names)
        recent = "" if since is None else f" WHERE s.ingest_time > {_timestamp(since)}"
        return (
            f"SELECT {columns}, md5_number_upper({self._key_text('s')}) AS {HASH}, "
            f"{self._partition('s')} AS {PARTITION_DATE}, s.{FILE} + {first} AS {FILE}, s.{ROW} "
            f"FROM ({self._rows(paths)}) s{recent}"
        )

    def newest(self, versions: str) -> str:
        """Return the newest version of each key among the rows of a query."""
        rank = f"row_number() OVER (PARTITION BY {self._keys('v')} ORDER BY {self._newest_first('v')})"
        return f"SELECT * FROM ({versions}) v QUALIFY {rank} = 1"

    def compared(self, changes: str, reporting: Sequence[str]) -> str:
        """Return a query for each row of ``reporting`` that a row of the table ``changes`` has the key of.

        ``place`` is the change's ``rowid``; a tie is not newer.
        """
        return (
            f"SELECT c.rowid AS place, r.{FILE}, r.{ROW}, {self._is_newer('c', 'r', 0)} AS is_newer "
            f"FROM ({self._rows(reporting)}) r JOIN {changes} c ON {self._same_key('r', 'c')}"
        )

    def changed_rows(self, paths: Sequence[str], chosen: str) -> str:
        """Return a query for whole rows of reporting, with their partition, that staged rows become.

        The table ``chosen`` has the ``__file`` (a place in ``paths``) and ``__row`` of each.
        """
        columns = ", ".join(self._change_column(field) for field in self.schema.fields if field.name != DELETED)
        ordered = ", ".join(quote_name(field.name) for field in self.schema.fields)
        return (
            f"SELECT {ordered}, {PARTITION_DATE} FROM (SELECT {columns}, {self._is_removed('s')} AS {DELETED}, "
            f"{self._partition('s')} AS {PARTITION_DATE} FROM ({self._rows(paths)}) s "
            f"SEMI JOIN {chosen} w ON s.{FILE} = w.{FILE} AND s.{ROW} = w.{ROW})"
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

    def _keys(self, alias: str) -> str:
        return ", ".join(f"{alias}.{quote_name(key)}" for key in self.rules.key)

    def _newest_first(self, alias: str) -> str:
        return ", ".join(f"{alias}.{quote_name(column)} DESC NULLS LAST" for column in self.rules.order)

    def _same_key(self, one: str, other: str) -> str:
        return " AND ".join(
            f"{one}.{quote_name(key)} IS NOT DISTINCT FROM {other}.{quote_name(key)}" for key in self.rules.key
        )

    def _key_text(self, alias: str) -> str:
        """Return an expression whose text is the same for the same key and for no other."""
        texts = [f"CAST({alias}.{quote_name(key)} AS VARCHAR)" for key in self.rules.key]
        return " || ".join(f"coalesce(length({text}) || ':' || {text}, '-')" for text in texts)

    def _is_newer(self, new: str, old: str, place: int) -> str:
        if place == len(self.rules.order):
            return "FALSE"
        mine, theirs = (f"{alias}.{quote_name(self.rules.order[place])}" for alias in (new, old))
        return (
            f"CASE WHEN {mine} IS NOT DISTINCT FROM {theirs} THEN {self._is_newer(new, old, place + 1)} "
            f"WHEN {theirs} IS NULL THEN TRUE WHEN {mine} IS NULL THEN FALSE ELSE {mine} > {theirs} END"
        )


def quote_name(name: str) -> str:
    """Return a name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return a text as a literal."""
    return "'" + text.replace("'", "''") + "'"


def _timestamp(moment: datetime) -> str:
    return f"TIMESTAMPTZ '{moment.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f')}+00'"


def _duckdb_type(field: Field) -> str:
    """Return the type of a column as the lake keeps it (:mod:`connectors.lake.columns`)."""
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
