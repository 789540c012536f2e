"""An archive in the stand-in, filled by Refeed's own writer."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa

from connectors.bigquery.writes.archive import BigQueryArchive
from model.archive import Attempt
from model.settings import read_settings
from tests.standin.fixture import StandIn
from warehouse.bigquery.warehouse import BigQueryWarehouse


def numbered_messages(keys: Sequence[str]) -> pa.RecordBatch:
    """Return a message for each ordering key, newest first, as a Pull brings them; the last one has number 0."""
    numbers = range(len(keys) - 1, -1, -1)
    entry = pa.struct([("key", pa.string()), ("value", pa.string())])
    times = [datetime(2024, 3, 1, 12 + n % 2, n % 60, tzinfo=UTC) for n in numbers]
    return pa.record_batch(
        {
            "data": pa.array([f'{{"n": {n}}}'.encode() for n in numbers], pa.binary()),
            "attributes": pa.array([[{"key": "n", "value": str(n)}] for n in numbers], pa.list_(entry)),
            "message_id": [str(n) for n in numbers],
            "publish_time": pa.array(times, pa.timestamp("us", "UTC")),
            "ordering_key": [keys[n] for n in numbers],
            "ack_id": ["a"] * len(keys),
        }
    )


def fill_archive(standin: StandIn, table: str, messages: pa.RecordBatch) -> BigQueryWarehouse:
    """Make the archive ``table`` of project shop with the messages as orders, and the first ten as members."""
    settings = read_settings({**standin.environment, "REFEED_PROJECT": "shop", "REFEED_ARCHIVE_TABLE": table})
    archive = BigQueryArchive("shop", table, settings.bigquery)
    archive.create()
    lease = archive.take_lease("lease")
    part = archive.writer().write([("orders", "s", messages), ("members", "s", messages.slice(0, 10))])
    archive.commit([part], Attempt("s", 1, "lease", lease))
    archive.close()
    return BigQueryWarehouse.of(settings)
