"""An archive in the stand-in, filled by Refeed's own writer."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa

from connectors.bigquery.writes.archive import BigQueryArchive
from model.settings import read_settings
from tests.archive import messages, write_commits
from tests.standin.fixture import StandIn
from warehouse.bigquery.warehouse import BigQueryWarehouse


def numbered_messages(keys: Sequence[str]) -> pa.RecordBatch:
    """Return a message for each ordering key, newest first, as a Pull brings them; the last one has number 0."""
    numbers = range(len(keys))
    times = [datetime(2024, 3, 1, 12 + n % 2, n % 60, tzinfo=UTC) for n in numbers]
    found = messages(len(keys), message_id=[str(n) for n in numbers], publish_time=times, ordering_key=keys)
    return found.take(pa.array(numbers[::-1]))


def fill_archive(standin: StandIn, table: str, rows: pa.RecordBatch) -> BigQueryWarehouse:
    """Make the archive ``table`` of project shop with the messages as orders, and the first ten as members."""
    settings = read_settings({**standin.environment, "REFEED_PROJECT": "shop", "REFEED_ARCHIVE_TABLE": table})
    archive = BigQueryArchive("shop", table, settings.bigquery)
    write_commits(archive, {"orders": rows, "members": rows.slice(0, 10)}).close()
    return BigQueryWarehouse.of(settings)
