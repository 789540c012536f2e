"""What a task writes rows with: appended to a stream that waits for its commit, refused ones named."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

import pyarrow as pa

from connectors.bigquery.client import Connection, process_clients
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.schema import with_times
from connectors.bigquery.tables.successors import to_successors
from connectors.bigquery.writes.batches import RefusedRow
from connectors.bigquery.writes.part_writer import JsonPart, PartWriter, PendingRows
from model.errors import WarehouseError

# The columns that identify a message's row; a replay has its original's id.
_IDENTITY: Final = ("_topic", "_message_id", "_backfill_id", "_backfill_row", "topic", "message_id")


@dataclass(frozen=True, slots=True)
class BigQueryRowPart(JsonPart):
    """Rows of one table that wait for their commit; small, and JSON-ready.

    ``refused`` are rows that BigQuery refuses for good: their places in what was written, and why; ``rows`` are
    the others. ``ingest_time`` is the same in all of them.
    """

    rows: int
    ingest_time: str
    tables: tuple[PendingRows, ...]
    refused: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BigQueryRowWriter:
    """Appends rows to a stream of their table; picklable, so that tasks can carry it.

    ``times`` are the paths of TIME columns, which come as texts; ``successors`` those of fields that became wider,
    each with the name of the column that its cells go to. With a ``run`` the streams are kept over batches, for
    the driver of that run, which commits their rows in their order.
    """

    connection: Connection
    table: str
    append_bytes: int
    times: tuple[str, ...] = ()
    successors: tuple[tuple[str, str], ...] = ()
    run: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the writer that :meth:`as_json` described."""
        connection = Connection.from_json(fields["connection"])
        times = tuple(fields["times"])
        # A plan of a Refeed of old has none.
        successors = tuple((str(path), str(name)) for path, name in fields.get("successors", ()))
        return cls(connection, fields["table"], fields["append_bytes"], times, successors, fields.get("run"))

    def write_rows(self, batches: Sequence[pa.RecordBatch]) -> BigQueryRowPart:
        """Append the rows of ``batches``, which have one schema and an ``ingest_time``, durably and unseen.

        ``ingest_time`` becomes now, the same for every row. BigQuery drops what is never committed.

        Raises:
            TableNotReadyError: the table, or a column, is too new to be written; nothing will be visible.
            WarehouseError: not now, or not at all; nothing will be visible.
        """
        now = datetime.now(UTC)
        table = pa.Table.from_batches(batches)
        place = table.schema.get_field_index("ingest_time")
        same = pa.repeat(pa.scalar(now, table.schema.field(place).type), table.num_rows)
        table = with_times(table.set_column(place, table.schema.field(place), same), self.times)
        ready = to_successors(table.combine_chunks().to_batches(), self.successors)
        target = TableId.parse(self.table, self.connection.project)
        part = PartWriter(process_clients(self.connection), target, self.append_bytes, run=self.run)
        part.write(ready)
        tables, refusals = part.finish()
        refused = _places(pa.Table.from_batches(ready), refusals) if refusals else ()
        return BigQueryRowPart(table.num_rows - len(refused), now.isoformat(), tuple(tables), refused)


def _places(table: pa.Table, refusals: Iterable[RefusedRow]) -> tuple[tuple[int, str], ...]:
    """Return where the refused rows are in ``table``: a message that is there twice is refused twice."""
    names = [name for name in _IDENTITY if name in table.column_names]
    reasons = {tuple(found.row.column(name)[0].as_py() for name in names): found.reason for found in refusals}
    keys = zip(*(table.column(name).to_pylist() for name in names), strict=True) if reasons else ()
    found = tuple((place, reasons[key]) for place, key in enumerate(keys) if key in reasons)
    if len(found) < len(reasons):
        raise WarehouseError(f"BigQuery refuses a row that belongs to no message: {next(iter(reasons.values()))}")
    return found
