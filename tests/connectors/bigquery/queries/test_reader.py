"""A table read in streams: every row once, in Arrow, over broken connections."""

import threading
from collections import Counter

import pytest

from connectors.bigquery.client import Clients, Connection
from connectors.bigquery.queries.reader import open_session, read_session, read_stream
from model.archive import Attempt
from model.errors import TableNotFoundError, WarehouseError, WarehousePermissionError
from tests.waiting import wait_until

ALL = "_PARTITIONTIME IS NOT NULL"
ROWS = 120


@pytest.fixture
def clients(settings, shared_standin):
    found = Clients(Connection.of("shop", settings.bigquery))
    yield found
    shared_standin.clear_faults()
    found.close()


@pytest.fixture
def table(archive, messages):
    epoch = archive.take_lease("l")
    # 100 KB a row: a stream's rows come in several responses.
    payloads = [bytes([n % 256]) * 100_000 for n in range(ROWS)]
    archive.commit(
        [archive.writer().write([("orders", "s", messages(*payloads, first=0))])], Attempt("s", 1, "l", epoch)
    )
    return archive.table


def ids(batches) -> Counter[str]:
    return Counter(i for batch in batches for i in batch.column("message_id").to_pylist())


def test_the_streams_together_hold_every_row_once(clients, table):
    session = open_session(clients, table, max_streams=4, condition=ALL)
    assert len(session.streams) == 4
    found = [[batch for _, batch in read_stream(clients, session, stream)] for stream in session.streams]
    assert sum((ids(batches) for batches in found), Counter()) == Counter(str(n) for n in range(ROWS))
    first = found[0][0]
    assert first.schema.equals(session.arrow_schema())
    row = first.slice(0, 1).to_pylist()[0]
    assert row["data"] == bytes([int(row["message_id"]) % 256]) * 100_000
    assert row["attributes"] == [{"key": "n", "value": row["message_id"]}]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_breaks_is_resumed_behind_the_last_row(clients, table, shared_standin, when):
    session = open_session(clients, table, max_streams=1, condition=ALL)
    shared_standin.fault("ReadRows", "drop", when=when)
    # After: behind another response; before: at the next opening.
    shared_standin.fault("ReadRows", "drop", when=when, skip=1 if when == "after" else 0)
    found = list(read_stream(clients, session, session.streams[0]))
    assert shared_standin.open_faults() == []
    assert ids(batch for _, batch in found) == Counter(str(n) for n in range(ROWS))
    place = 0
    for offset, batch in found:
        assert offset == place
        place += batch.num_rows


def threads_that_read() -> int:
    return sum(thread.name == "read-stream" for thread in threading.enumerate())


def test_all_streams_are_read_at_once_and_each_goes_on_behind_its_last_row(clients, table, shared_standin):
    session = open_session(clients, table, max_streams=4, condition=ALL)
    for _ in range(3):
        shared_standin.fault("ReadRows", "drop", when="after")
    batches = read_session(clients, session)
    found = ids([next(batches)])
    # A stream that nobody takes from is a few batches ahead and then waits: all have been opened by now.
    wait_until(lambda: len({c["resource"] for c in shared_standin.calls("ReadRows")}) == 4, "all streams are read")
    found += ids(batches)
    assert found == Counter(str(n) for n in range(ROWS))
    assert shared_standin.open_faults() == []
    wait_until(lambda: threads_that_read() == 0, "the readers end")


def test_an_error_of_one_stream_ends_the_whole_and_whoever_stops_early_leaves_no_reader(
    clients, table, shared_standin
):
    session = open_session(clients, table, max_streams=4, condition=ALL)
    batches = read_session(clients, session)
    next(batches)
    batches.close()
    wait_until(lambda: threads_that_read() == 0, "the readers end")
    shared_standin.fault("ReadRows", status="PERMISSION_DENIED", skip=2)
    with pytest.raises(WarehousePermissionError):
        list(read_session(clients, session))
    wait_until(lambda: threads_that_read() == 0, "the readers end")


def test_a_session_that_nobody_knows_a_missing_table_and_a_missing_role_say_so(clients, table, shared_standin):
    session = open_session(clients, table, max_streams=1, condition=ALL)
    with pytest.raises(WarehouseError):
        list(read_stream(clients, session, f"{session.name}x/streams/0"))
    with pytest.raises(TableNotFoundError):
        open_session(clients, table.companion("none"), max_streams=1)
    shared_standin.fault("CreateReadSession", status="PERMISSION_DENIED")
    with pytest.raises(WarehousePermissionError, match=r"roles/bigquery\.readSessionUser"):
        open_session(clients, table, max_streams=1, condition=ALL)
