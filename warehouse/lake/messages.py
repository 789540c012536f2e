"""The archive's rows in a lake, as people browse them."""

from datetime import UTC, datetime
from typing import Any

from connectors.lake.query import QueryLimits, read_snapshot
from connectors.lake.query_process import QueryProcesses, Statement
from sql.dialect import render_lake_query
from sql.validate import Policy, parse_parameters, validate_query
from warehouse.lake.warehouse import LakeWarehouse
from warehouse.queries import ArchiveQuery


class LakeMessages:
    """An archive in a lake; each query runs in a separate process and reads only the files of its window."""

    def __init__(self, place: LakeWarehouse, processes: QueryProcesses, limits: QueryLimits) -> None:
        self._place = place
        self._processes = processes
        self._limits = limits

    @property
    def table(self) -> str:
        """The archive's name."""
        return self._place.archive_table

    def read(self, query: ArchiveQuery) -> list[dict[str, Any]]:
        """Return the query's rows.

        Raises:
            QueryStoppedError: its ``should_stop`` said so.
            WarehouseError, QueryError: the archive can't be read.
        """
        place = self._place
        policy = Policy(place.archive_table, None, datetime.now(UTC), replay=False)
        lake = render_lake_query(validate_query(query.sql, parse_parameters(query.parameters), policy))
        snapshot = read_snapshot(place.lake, place.archive_table, place.partitioning, window=query.window)
        statement = Statement(lake.sql, lake.parameters)
        (table,) = self._processes.run(snapshot, [statement], self._limits, should_stop=query.should_stop)
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows
