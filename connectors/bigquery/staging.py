"""The rows that one backfill brought into staging tables of BigQuery: counted, and taken out again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from connectors.bigquery.client import Clients
from connectors.bigquery.entity_table import BigQueryEntityTable, MergeState
from connectors.bigquery.query_run import run_query
from connectors.bigquery.selection import QueryParameter
from connectors.bigquery.tables import TableId, read_table
from model.errors import AlreadyMergedError, RevertIncompleteError, WarehouseError
from model.job import created_at

_ROW: Final = "_backfill_row"
# What made the backfill has a clock of its own, and partitions are of BigQuery's.
_SKEW: Final = timedelta(days=1)
# "Data retention with time travel": a dataset keeps two days of its past, or more.
_PAST: Final = timedelta(hours=47)
_QUERY_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class StagingTexts:
    """The statements over one staging table, as :mod:`sql.staged` renders them."""

    table: TableId
    landed: str
    merged: str
    revert: str


class BigQueryStaging:
    """What of a backfill is in the staging tables of one source, and in its reporting table.

    A backfill's rows are younger than the backfill, so only those partitions are read, and the write buffer. A row
    is merged when staging had it at the moment that the last merge looked at: BigQuery keeps its tables' past.
    """

    def __init__(self, clients: Clients, texts: Sequence[StagingTexts], reporting: BigQueryEntityTable) -> None:
        self._clients = clients
        self._texts = tuple(texts)
        self._reporting = reporting

    def landed_rows(self, backfill_id: str) -> Iterator[Any]:
        """Yield arrays of the ``refeed_row`` of every row that landed, each once a table.

        Raises:
            WarehouseError: BigQuery failed.
        """
        for text, _ in self._existing():
            for batch in self._query(text.landed, _parameters(backfill_id)).to_arrow_iterable():
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
        parameters = {**_parameters(backfill_id), "merged_until": QueryParameter("TIMESTAMP", remembered)}
        # A table that was made anew has nothing that was merged, and no past to ask.
        texts = [text for text, created in self._existing() if created <= until]
        found = [int(row["merged"]) for text in texts for row in self._query(text.merged, parameters)]
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
            are = "are" if is_exact else "may be"
            raise AlreadyMergedError(
                f"Rows of {backfill_id} {are} in the reporting table already.", id=backfill_id
            )
        deleted, failure = 0, None
        left = [text for text, _ in self._existing()]
        try:
            while left:
                answer = self._query(left[0].revert, _parameters(backfill_id))
                deleted += int(answer.num_dml_affected_rows or 0)
                left.pop(0)
        except WarehouseError as exc:
            if not deleted:
                raise
            failure = exc
        # After the rows are gone: who has read them before can't commit them any more.
        if deleted and self._reporting.peek_state() is not None:
            after = self._reporting.overtake()
            if after.until != (None if before is None else before.until):
                raise AlreadyMergedError(
                    f"A merge ran while {deleted} rows of {backfill_id} were deleted from staging; reporting may "
                    "have them: repair it by another backfill.",
                    id=backfill_id,
                    deleted=deleted,
                )
        if failure is not None:
            names = [str(text.table) for text in left]
            raise RevertIncompleteError(
                f"{deleted} rows of {backfill_id} are deleted from staging; {', '.join(names)} may have more, as "
                f"BigQuery failed: {failure.message} Revert it again.",
                id=backfill_id,
                deleted=deleted,
                left=names,
            ) from failure
        return deleted

    def _existing(self) -> list[tuple[StagingTexts, datetime]]:
        """Return the tables that there are, and when each was made."""
        found = [(text, read_table(self._clients, text.table)) for text in self._texts]
        return [(text, table.created) for text, table in found if _has_backfills(table)]

    def _query(self, sql: str, parameters: Mapping[str, QueryParameter]) -> Any:
        what = "asking staging about a backfill"
        return run_query(self._clients, what, sql, parameters, seconds=_QUERY_SECONDS)


def _has_backfills(table: Any) -> bool:
    """Say whether there is a table, and one of rows that may be a backfill's."""
    return table is not None and any(field.name == _ROW for field in table.schema)


def _parameters(backfill_id: str) -> dict[str, QueryParameter]:
    first = (created_at(backfill_id) - _SKEW).astimezone(UTC)
    day = datetime(first.year, first.month, first.day, tzinfo=UTC)
    return {
        "backfill": QueryParameter("STRING", backfill_id),
        "partitions_from": QueryParameter("TIMESTAMP", day),
    }
