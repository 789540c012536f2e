"""What the gate lets through in this deployment, with what a lake tells of the allowed tables."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from connectors.lake.query_tables import LakeTables
from model.table import Partitioning
from sql.validate import Policy


class GatePolicy:
    """Makes the policy of each query; :meth:`make` reads a lake's tables' columns anew, which takes milliseconds.

    Without a ``lake`` nothing is known beforehand of the allowed tables' columns: BigQuery's dry run knows them.
    """

    def __init__(
        self,
        *,
        archive_table: str,
        project: str,
        query_tables: Sequence[str],
        lake: str | None,
        max_window_days: int,
        write_buffer: Partitioning | None = None,
    ) -> None:
        names = tuple(name for name in query_tables if name != archive_table)
        self._policy = Policy(
            archive_table,
            project,
            datetime.now(UTC),
            extra_tables=names,
            max_window_days=max_window_days,
            write_buffer=write_buffer,
        )
        self._tables = None if lake is None else LakeTables(lake, names)

    def make(self, *, replay: bool = True) -> Policy:
        """Return the policy as of now; only a replay needs a window and the columns of a message.

        Raises:
            WarehouseError: the lake does not answer.
        """
        now = datetime.now(UTC)
        if self._tables is None:
            return replace(self._policy, now=now, replay=replay)
        schemas, missing = self._tables.read_schemas()
        return replace(self._policy, now=now, schemas=schemas, missing_tables=missing, replay=replay)
