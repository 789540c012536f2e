"""The union views of BigQuery as tables that queries read; the merge makes them, here they are looked up."""

import re
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from connectors.bigquery.client import Clients, Connection
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import read_table
from connectors.bigquery.tables.schema import from_bigquery
from connectors.bigquery.tables.successors import read_schema, successor_paths
from model.errors import TableMismatchError, TableNotFoundError
from model.settings import BigQuerySettings
from model.table import TableSchema
from sql.agreement import column_types
from warehouse.merges import MergeSource


class BigQueryViews:
    """The views of some sources in the project ``project``."""

    def __init__(self, project: str, settings: BigQuerySettings, sources: Iterable[MergeSource]) -> None:
        self._connection = Connection.of(project, settings)
        self._sources = {source.view: source for source in sources}

    def read_schemas(self) -> tuple[TableSchema, ...]:
        """Return the columns of every view, as BigQuery says.

        Raises:
            TableNotFoundError: one is not there yet.
            TableMismatchError: a column of its staging table has become wider, and no merge has run since: it
                would show null for what was written meanwhile.
            WarehouseError: BigQuery can't be asked.
        """
        found = []
        with closing(Clients(self._connection)) as clients:
            for name, source in self._sources.items():
                view = read_table(clients, TableId.parse(name, self._connection.project))
                if view is None:
                    raise TableNotFoundError(
                        f"BigQuery has no view {name} yet. The first merge creates it: run 'refeed merge "
                        f"--source {source.name}'.",
                        table=name,
                    )
                self._check_age(clients, name, source, view)
                found.append(TableSchema(name, column_types(field.to_api_repr() for field in view.schema)))
        return tuple(found)

    def _check_age(self, clients: Clients, name: str, source: MergeSource, view: Any) -> None:
        """Raise when the view does not read a column that rows are written to since another became wider."""
        staging = read_table(clients, TableId.parse(source.staging, self._connection.project))
        if staging is None:
            return
        columns = from_bigquery(staging)
        paths = successor_paths(columns.fields, read_schema(columns).fields)
        unread = [path for path, column in paths if not re.search(rf"\b{column}\b", view.view_query)]
        if unread:
            raise TableMismatchError(
                f"{', '.join(unread)} of {source.staging} have become wider since the view {name} was "
                "created. The next merge creates the view again: run 'refeed merge --source "
                f"{source.name}'.",
                table=name,
            )

    def tables_behind(self) -> frozenset[str]:
        """Return the full names of the tables that the views read: BigQuery says these of a query over a view."""
        names = (name for source in self._sources.values() for name in (source.reporting, source.staging))
        return frozenset(str(TableId.parse(name, self._connection.project)) for name in names)
