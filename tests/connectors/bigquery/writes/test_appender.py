"""Every row once at its own offset, whatever the stand-in does with the connection."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.cloud.bigquery_storage_v1 import types

from connectors.bigquery.client import Clients, Connection
from connectors.bigquery.writes.append_queue import AppendQueue, Request
from connectors.bigquery.writes.appender import StreamAppender
from connectors.bigquery.writes.batches import archive_batch
from connectors.bigquery.writes.write_streams import COMMITTED, PENDING, create_stream, finalize_stream
from model.errors import QuotaExceededError, TableNotFoundError, WarehouseError, WarehousePermissionError
from tests.connectors.bigquery.conftest import NOW
from tests.waiting import wait_until


@pytest.fixture
def clients(archive, settings):
    found = Clients(Connection.of("shop", settings.bigquery))
    yield found
    found.close()


@pytest.fixture
def batches(messages):
    return [archive_batch("orders", "s", messages(b"%d" % n, b"x" * n, first=2 * n), NOW) for n in range(5)]


@pytest.fixture
def appender(clients, archive):
    return StreamAppender(clients, create_stream(clients, archive.table, PENDING))


def test_a_request_is_what_protobuf_makes_of_it(appender, batches):
    rows = batches[3]
    wanted = types.AppendRowsRequest(
        write_stream=appender.stream,
        offset=7,
        trace_id="refeed",
        arrow_rows={
            "writer_schema": {"serialized_schema": rows.schema.serialize().to_pybytes()},
            "rows": {"serialized_record_batch": rows.serialize().to_pybytes()},
        },
    )
    assert types.AppendRowsRequest.deserialize(appender._frame(Request(rows, 7))) == wanted


def test_rows_go_while_others_come(appender, clients, batches):
    outbox = AppendQueue()
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(appender.drain, outbox)
        for number, rows in enumerate(batches):
            outbox.put(rows)
            wait_until(lambda n=number: appender.offset == 2 * n + 2, "durable before the next rows are there")
        outbox.close()
        draining.result(30)
    assert finalize_stream(clients, appender.stream) == 10


def test_a_failure_after_a_long_quiet_time_is_tried_again_like_any_other(
    clients, archive, batches, shared_standin
):
    appender = StreamAppender(clients, create_stream(clients, archive.table, PENDING), seconds=0.5)
    outbox = AppendQueue()
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(appender.drain, outbox)
        outbox.put(batches[0])
        wait_until(lambda: appender.offset == 2, "the first rows are durable")
        quiet_until = time.monotonic() + 0.6  # longer than it tries
        wait_until(lambda: time.monotonic() > quiet_until, "some quiet")
        shared_standin.fault("AppendRows", status="UNAVAILABLE")
        outbox.put(batches[1])
        outbox.close()
        draining.result(30)
    assert finalize_stream(clients, appender.stream) == 4


@pytest.mark.parametrize("in_band", [False, True])
def test_errors_that_pass_are_tried_again(appender, clients, batches, shared_standin, in_band):
    # "Storage Write API best practices" (Google): these codes are to be sent again.
    for status in ("UNAVAILABLE", "ABORTED", "INTERNAL", "RESOURCE_EXHAUSTED"):
        shared_standin.fault("AppendRows", status=status, in_band=in_band, skip=1)
    appender.append(batches)
    assert shared_standin.open_faults() == []
    assert finalize_stream(clients, appender.stream) == 10


def test_another_writers_rows_at_our_offset_are_not_taken_for_ours(clients, archive, batches):
    stream = create_stream(clients, archive.table, COMMITTED)
    StreamAppender(clients, stream).append(batches[:1])
    with pytest.raises(WarehouseError):
        StreamAppender(clients, stream).append(batches[1:2])


def test_a_missing_table_a_missing_role_and_a_quota_have_errors_of_their_own(clients, archive, shared_standin):
    with pytest.raises(TableNotFoundError, match="refeed init"):
        create_stream(clients, archive.table.companion("none"), PENDING)
    shared_standin.fault("CreateWriteStream", status="PERMISSION_DENIED")
    with pytest.raises(WarehousePermissionError, match=r"roles/bigquery\.dataEditor"):
        create_stream(clients, archive.table, PENDING)
    shared_standin.fault("CreateWriteStream", status="RESOURCE_EXHAUSTED", count=3)
    with pytest.raises(QuotaExceededError):
        create_stream(clients, archive.table, PENDING, seconds=0.1)
