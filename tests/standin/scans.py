"""What a statement reads of a table: which partitions it can't need, and how many bytes the others are."""

from collections.abc import Iterator
from typing import Any, Final

import duckdb
import pyarrow as pa

from tests.standin.catalog import PARTITION_TIME, Catalog, TableEntry, now_us
from tests.standin.problems import Problem
from tests.standin.query_text import QueryText, engine_errors
from tests.standin.schemas import column_bytes
from tests.standin.statements import Statement, conditions, render_condition, render_moment

_PAST_US: Final = 7 * 86_400_000_000


class Scans:
    """Answers from one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def prune(
        self,
        query: QueryText,
        statement: Statement,
        entry: TableEntry,
        *,
        needs_filter: bool,
        at_us: int | None = None,
    ) -> frozenset[int | None] | None:
        """Return the partitions that a statement can read, None for all.

        Raises:
            Problem: ``invalidQuery``; the table asks for a condition on its partitions and there is none.
        """
        partitioning = entry.body.get("timePartitioning") or {}
        column = partitioning.get("field")
        found = list(conditions(statement, entry.key, query.project, query.default_dataset, column))
        if needs_filter and entry.body.get("requirePartitionFilter") and not all(found):
            columns = f"'{column}'" if column else "'_PARTITION_LOAD_TIME', '_PARTITIONDATE', '_PARTITIONTIME'"
            raise Problem(
                "invalidQuery",
                f"Cannot query over table '{entry.key}' without a filter over column(s) {columns} "
                "that can be used for partition elimination",
            )
        if not found or not all(found):
            return None
        day_column = _day_column(entry)
        if day_column is not None:
            known = set(self._days(entry, day_column))
        elif entry.ingestion_step_us:
            known = {piece.partition_us for piece in self._catalog.snapshot(entry, at_us).pieces}
        else:
            return None
        with duckdb.cursor() as connection, engine_errors(None):
            connection.execute("SET TimeZone = 'UTC'")
            wanted: set[int | None] = set()
            for parts in found:
                wanted |= self._matching(connection, query, parts, known, day_column)
        return frozenset(wanted)

    def _matching(
        self, connection: Any, query: QueryText, parts: Any, known: set[int | None], day_column: str | None
    ) -> set[int | None]:
        text = " AND ".join(f"({render_condition(part)})" for part in parts)
        table = pa.table({"us": pa.array(sorted(known, key=lambda us: us or 0), pa.int64())})
        connection.register("partitions", table)
        sql = (
            f"SELECT us FROM (SELECT us, make_timestamptz(us) AS {PARTITION_TIME}, "
            f"CAST(make_timestamptz(us) AS DATE) AS {day_column or '_PARTITIONDATE'} FROM partitions) WHERE {text}"
        )
        return {row[0] for row in connection.execute(sql, query.bound(sql)).fetchall()}

    def past(self, query: QueryText, statement: Statement, entry: TableEntry) -> int | None:
        """Return the moment at which a statement reads a table, in microseconds since 1970, None for now.

        Raises:
            Problem: ``invalidQuery``; it is of the future, or a past that is no longer kept or never was.
        """
        if entry.key not in statement.moments:
            return None
        sql = f"SELECT epoch_us({render_moment(statement.moments[entry.key])})"
        with duckdb.cursor() as connection, engine_errors(None):
            connection.execute("SET TimeZone = 'UTC'")
            [moment] = connection.execute(sql, query.bound(sql)).fetchone() or (0,)
        # "Access historical data": no future, and a window of seven days; a table has no past before it was made.
        least = max(now_us() - _PAST_US, int(entry.body["creationTime"]) * 1000)
        if not least <= int(moment) <= now_us():
            raise Problem("invalidQuery", f"Invalid snapshot time {moment} for table {entry.key}.")
        return int(moment)

    def size(self, entry: TableEntry, partitions: Any, columns: set[str] | None, at_us: int | None = None) -> int:
        """Return the bytes of ``columns`` (None: all) in ``partitions`` (None: all)."""
        day_column = None if partitions is None else _day_column(entry)
        pieces = [
            piece
            for piece in self._catalog.snapshot(entry, at_us).pieces
            if partitions is None or day_column is not None or piece.partition_us in partitions
        ]
        total = 0
        for found in self._catalog.read(entry, pieces, pseudo=False):
            batch = found
            if day_column is not None:
                batch = batch.filter(pa.array([day in partitions for day in _days(batch.column(day_column))]))
            total += sum(
                column_bytes(column)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
                if columns is None or name.lower() in columns
            )
        return total

    def _days(self, entry: TableEntry, column: str) -> Iterator[int | None]:
        for batch in self._catalog.read(entry, self._catalog.snapshot(entry).pieces, pseudo=False):
            yield from _days(batch.column(column))


def _day_column(entry: TableEntry) -> str | None:
    """Return the DATE column that partitions a table; by a moment's day nothing is told apart here."""
    partitioning = entry.body.get("timePartitioning") or {}
    types = {field["name"]: field["type"] for field in entry.fields}
    column = partitioning.get("field")
    return str(column) if partitioning.get("type") == "DAY" and types.get(column) == "DATE" else None


def _days(column: pa.Array) -> Iterator[int | None]:
    for day in column.cast(pa.int32()).to_pylist():
        yield None if day is None else day * 86_400_000_000
