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
from model.errors import (
    QuotaExceededError,
    TableNotFoundError,
    WarehouseError,
    WarehousePermissionError,
    WarehouseUnavailableError,
)
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


def test_all_rows_are_in_the_stream_in_order(appender, clients, batches):
    appender.append(batches)
    assert appender.offset == 10
    appender.append(batches[:1])
    assert finalize_stream(clients, appender.stream) == 12
    assert finalize_stream(clients, appender.stream) == 12


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


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_breaks_costs_no_row_and_doubles_none(appender, clients, batches, shared_standin, when):
    for skip in (0, 2):
        shared_standin.fault("AppendRows", "drop", when=when, skip=skip)
    appender.append(batches)
    assert shared_standin.open_faults() == []
    assert finalize_stream(clients, appender.stream) == 10


@pytest.mark.parametrize("in_band", [False, True])
def test_errors_that_pass_are_tried_again(appender, clients, batches, shared_standin, in_band):
    # "Storage Write API best practices" (Google): these codes are to be sent again.
    for status in ("UNAVAILABLE", "ABORTED", "INTERNAL", "RESOURCE_EXHAUSTED"):
        shared_standin.fault("AppendRows", status=status, in_band=in_band, skip=1)
    appender.append(batches)
    assert shared_standin.open_faults() == []
    assert finalize_stream(clients, appender.stream) == 10


def test_rows_that_are_refused_are_left_out_and_named_and_the_others_go_on(
    appender, clients, batches, shared_standin
):
    # AppendRowsResponse.row_errors (Google): no row of such a request is appended.
    shared_standin.fault("AppendRows", "row_errors", rows=[1], skip=1, message="no good")
    appender.append(batches)
    assert [(r.row.column("message_id")[0].as_py(), r.reason) for r in appender.refusals] == [("3", "no good")]
    assert finalize_stream(clients, appender.stream) == 9


def test_a_batch_of_which_every_row_is_refused_leaves_nothing_but_the_others(
    appender, clients, batches, shared_standin
):
    shared_standin.fault("AppendRows", "row_errors", rows=[0, 1])
    appender.append(batches)
    assert len(appender.refusals) == 2
    assert finalize_stream(clients, appender.stream) == 8


def test_what_does_not_pass_in_time_is_given_up(clients, archive, batches, shared_standin):
    appender = StreamAppender(clients, create_stream(clients, archive.table, PENDING), seconds=0.3)
    shared_standin.fault("AppendRows", status="UNAVAILABLE", count=100)
    with pytest.raises(WarehouseUnavailableError):
        appender.append(batches)


def test_a_stream_that_is_finalized_takes_nothing_and_is_no_passing_fault(appender, clients, batches):
    finalize_stream(clients, appender.stream)
    with pytest.raises(WarehouseError) as raised:
        appender.append(batches)
    assert not isinstance(raised.value, WarehouseUnavailableError)


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


def test_a_stream_that_nobody_knows_can_be_finalized_and_holds_nothing(clients, archive):
    assert finalize_stream(clients, f"{archive.table.path}/streams/none") is None
