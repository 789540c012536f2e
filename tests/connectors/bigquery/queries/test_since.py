"""The ids that a stream learns: what BigQuery reads, what it bills, and where it stops."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from connectors.bigquery.client import Clients, Connection
from connectors.bigquery.queries.since import read_since
from connectors.bigquery.table_id import TableId
from model.archive import Attempt, IdSpan
from model.errors import QueryTooLargeError

LONG_AGO = datetime(2024, 3, 1, tzinfo=UTC)
LIMIT = 10**9


@pytest.fixture
def fill(archive, messages):
    """Archive messages with these payloads as attempts of their own."""
    epoch = archive.take_lease("l")

    def commit(*payloads: bytes) -> None:
        for number, payload in enumerate(payloads, 1):
            part = archive.writer().write([("orders", "s", messages(payload, first=number))])
            archive.commit([part], Attempt("s", number, "l", epoch))

    return commit


@pytest.fixture
def read(settings):
    clients = Clients(Connection.of("shop", settings.bigquery))

    def rows(starts, *, limit: int = LIMIT) -> list[str]:
        table = TableId.parse(settings.archive_table, "shop")
        found = read_since(clients, table, ["message_id"], starts, maximum_bytes_billed=limit)
        return sorted(i for batch in found for i in batch.column("message_id").to_pylist())

    yield rows
    clients.close()


def test_rows_of_any_of_the_times_are_read_those_of_the_write_buffer_among_them(
    fill, read, settings, shared_standin
):
    fill(b"a", b"b")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert read({"publish_time": LONG_AGO, "ingest_time": tomorrow}) == ["1", "2"]
    assert read({"publish_time": tomorrow, "ingest_time": datetime.now(UTC) - timedelta(hours=1)}) == ["1", "2"]
    assert read({"publish_time": tomorrow, "ingest_time": tomorrow}) == []
    shared_standin.hold_write_buffer(f"shop.{settings.archive_table}")
    fill(b"c")
    assert read({"publish_time": LONG_AGO}) == ["1", "1", "2"]


def test_the_bytes_stand_in_the_log_and_those_of_payloads_are_not_among_them(fill, read):
    fill(b"a" * 50_000)
    with capture_logs() as log:
        read({"publish_time": LONG_AGO, "ingest_time": LONG_AGO})
    (said,) = [line for line in log if line["event"] == "ids_queried"]
    assert 0 < said["bytes_processed"] < 1_000


def test_more_than_may_be_billed_is_not_read_and_the_setting_is_named(fill, read):
    fill(b"a")
    with pytest.raises(QueryTooLargeError, match="REFEED_BIGQUERY_MERGE_MAX_BYTES_BILLED"):
        read({"publish_time": LONG_AGO}, limit=1)


def test_a_message_that_bigquery_refused_is_among_the_ids_of_the_archive(archive, messages, shared_standin):
    epoch = archive.take_lease("l")
    shared_standin.fault("AppendRows", "row_errors", rows=[1], message="no good", resource="messages/")
    part = archive.writer().write([("orders", "s", messages(b"a", b"b"))])
    assert part.dead_letters == 1
    archive.commit([part], Attempt("s", 1, "l", epoch))
    span = IdSpan(LONG_AGO, datetime.now(UTC) + timedelta(days=1))
    found = pa.Table.from_batches(list(archive.read_ids(span)))
    assert sorted(found.column("message_id").to_pylist()) == ["1", "2"]
    assert found.column_names == ["topic", "message_id", "publish_time"]
