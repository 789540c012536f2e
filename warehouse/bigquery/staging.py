"""The rows that one backfill brought into staging tables of BigQuery: counted, and taken out again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from connectors.bigquery.client import Clients
from connectors.bigquery.queries.job import NamedParameter, QueryJob, typed
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import read_table
from connectors.bigquery.tables.entity_table import BigQueryEntityTable, MergeState
from model.errors import AlreadyMergedError
from model.job import created_at
from sql.staged import render_landed, render_merged, render_revert
from warehouse.staging import delete_in_turn

Result = TypeVar("Result")

_ROW: Final = "_backfill_row"
# What made the backfill has a clock of its own, and partitions are of BigQuery's.
_SKEW: Final = timedelta(days=1)
# "Data retention with time travel": a dataset keeps two days of its past, or more.
_PAST: Final = timedelta(hours=47)
_QUERY_SECONDS: Final = 600.0


class BigQueryStaging:
    """What of a backfill is in the staging tables of one source, and in its reporting table.

    A backfill's rows are younger than the backfill, so only those partitions are read, and the write buffer. A row
    is merged when staging had it at the moment that the last merge looked at: BigQuery keeps its tables' past.
    """

    def __init__(self, clients: Clients, tables: Sequence[TableId], reporting: BigQueryEntityTable) -> None:
        self._clients = clients
        self._tables = tuple(tables)
        self._reporting = reporting

    def landed_rows(self, backfill_id: str) -> Iterator[Any]:
        """Yield arrays of the ``refeed_row`` of every row that landed, each once a table."""
        for table, _ in self._existing():
            found = self._read(render_landed(str(table)), _parameters(backfill_id), lambda rows: rows)
            for batch in found.to_arrow_iterable():
                yield batch.column("landed").to_numpy()

    def merged_rows(self, backfill_id: str) -> int:
        """Return how many different rows a merge has taken.

        They are rather too few than too many: none where the last merge was longer ago than BigQuery remembers.

        Raises:
            WarehouseError: BigQuery failed.
        """
        merged, is_exact = self._merged(self._reporting.peek_state(), backfill_id)
        return merged if is_exact else 0

    def _merged(self, state: MergeState | None, backfill_id: str) -> tuple[int, bool]:
        """Return how many rows are merged, and whether that is exact or only the most that may be."""
        if state is None or state.until is None:
            return 0, True
        until = min(state.until, state.now)
        remembered = max(until, state.now - _PAST)
        parameters = {**_parameters(backfill_id), **typed({"merged_until": remembered})}
        # A table that was created again has nothing that was merged, and no past to ask.
        texts = [render_merged(str(table)) for table, created in self._existing() if created <= until]
        found = [int(row["merged"]) for text in texts for row in self._read(text, parameters, list)]
        return sum(found), remembered == until

    def delete_rows(self, backfill_id: str) -> int:
        """Delete the backfill's rows and return how many there were; a merge under way fails and begins again.

        Each table is a statement of its own: where one of several fails, those before it are done already.

        Raises:
            AlreadyMergedError: a merge was quicker; rows that it took may be in reporting.
            RevertIncompleteError: some tables are done, and one failed; called again it goes on with that.
            WarehouseError: BigQuery failed, or keeps the rows in its write buffer, from which nothing is deleted;
                nothing was deleted.
        """
        before = self._reporting.peek_state()
        merged, is_exact = self._merged(before, backfill_id)
        if merged:
            are = "are already" if is_exact else "may already be"
            raise AlreadyMergedError(f"Rows of {backfill_id} {are} in the reporting table.", id=backfill_id)
        deletes = {str(table): partial(self._delete_from, table, backfill_id) for table, _ in self._existing()}
        return delete_in_turn(backfill_id, deletes, overtake=partial(self._overtake, before), place="BigQuery")

    def _delete_from(self, table: TableId, backfill_id: str) -> int:
        return self._read(
            render_revert(str(table)),
            _parameters(backfill_id),
            lambda answer: int(answer.num_dml_affected_rows or 0),
        )

    def _overtake(self, before: MergeState | None) -> bool:
        """Keep every merge under way from its commit, and return whether one has committed since ``before``."""
        if self._reporting.peek_state() is None:
            return False
        return self._reporting.overtake().until != (None if before is None else before.until)

    def _existing(self) -> list[tuple[TableId, datetime]]:
        """Return the tables that there are, and when each was made."""
        found = [(table, read_table(self._clients, table)) for table in self._tables]
        return [(table, read.created) for table, read in found if _has_backfills(read)]

    def _read(self, sql: str, parameters: Mapping[str, NamedParameter], read: Callable[[Any], Result]) -> Result:
        query = QueryJob(self._clients, sql, "backfill", parameters)
        return query.read("asking staging about a backfill", read, seconds=_QUERY_SECONDS)


def _has_backfills(table: Any) -> bool:
    """Whether there is a table, and one of rows that may be a backfill's."""
    return table is not None and any(field.name == _ROW for field in table.schema)


def _parameters(backfill_id: str) -> dict[str, NamedParameter]:
    first = (created_at(backfill_id) - _SKEW).astimezone(UTC)
    day = datetime(first.year, first.month, first.day, tzinfo=UTC)
    return typed({"backfill": backfill_id, "partitions_from": day})
