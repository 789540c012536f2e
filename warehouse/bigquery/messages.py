"""The archive's rows in BigQuery, as people browse them."""

from typing import Any, Final

from connectors.bigquery.client import Clients
from connectors.bigquery.queries.job import NamedParameter, read_answer
from connectors.bigquery.table_id import TableId
from model.errors import TableNotFoundError
from sql.validate import parse_parameters
from warehouse.queries import ArchiveQuery

_QUERY_SECONDS: Final = 60.0


class BigQueryMessages:
    """An archive in BigQuery; a query is billed, and one over its cap fails unbilled."""

    def __init__(self, archive: TableId, clients: Clients) -> None:
        self._archive = archive
        self._clients = clients

    @property
    def table(self) -> str:
        """The archive's full name."""
        return str(self._archive)

    def read(self, query: ArchiveQuery) -> list[dict[str, Any]]:
        """Return the query's rows.

        Raises:
            QueryTooLargeError: the query would be billed for more than its cap.
            QueryStoppedError: its ``should_stop`` said so; then it is cancelled.
            WarehouseError, QueryError: BigQuery can't be asked.
        """
        given = parse_parameters(query.parameters)
        try:
            table, _ = read_answer(
                self._clients,
                query.sql,
                {name: NamedParameter(one.type, one.value) for name, one in given.items()},
                maximum_bytes_billed=query.max_bytes_billed,
                max_rows=query.max_rows,
                seconds=_QUERY_SECONDS,
                should_stop=query.should_stop,
            )
        except TableNotFoundError:
            return []
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows
