import threading

import pyarrow as pa
import pytest
from google.api_core import exceptions
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import types
from grpc_status import rpc_status

from tests.standin.writer import BUFFERED, COMMITTED, PENDING, Code, Writer, batch, code_of, request


@pytest.fixture
def writer(shared_standin, dataset):
    with shared_standin.client() as client:
        pair = [bigquery.SchemaField("key", "STRING"), bigquery.SchemaField("value", "STRING")]
        table = bigquery.Table(
            f"shop.{dataset}.messages",
            [
                bigquery.SchemaField("data", "BYTES"),
                bigquery.SchemaField("attributes", "RECORD", mode="REPEATED", fields=pair),
                bigquery.SchemaField("message_id", "STRING", mode="REQUIRED"),
            ],
        )
        table.time_partitioning = bigquery.TimePartitioning(type_="DAY")
        client.create_table(table)
    return Writer(shared_standin, f"{dataset}.messages")


def test_a_buffered_stream_shows_rows_up_to_the_offset_that_it_is_flushed_to(writer):
    """The reference of FlushRows: a cursor that moves forward only; rows come in the order of the stream."""
    stream = writer.create(BUFFERED)
    writer.append(request(stream, batch("a", "b", "c"), 0), request(stream, batch("d"), 3))
    assert writer.rows == 0
    assert writer.flush(stream, 1) == 1
    assert writer.rows == 2
    with pytest.raises(exceptions.AlreadyExists):
        writer.flush(stream, 1)
    with pytest.raises(exceptions.OutOfRange, match="beyond the end of the stream"):
        writer.flush(stream, 4)
    assert writer.flush(stream, 3) == 3
    assert writer.rows == 4
    sql = f"SELECT message_id FROM `{writer.name}` ORDER BY message_id"
    assert [row["message_id"] for row in writer.rest.query_and_wait(sql)] == ["a", "b", "c", "d"]


def test_rows_that_were_not_flushed_before_their_stream_was_finalized_are_never_seen(writer):
    """Apache Beam's StorageApiFlushAndFinalizeDoFn: "those records will be retried on a new stream"."""
    stream = writer.create(BUFFERED)
    writer.append(request(stream, batch("a", "b"), 0))
    writer.flush(stream, 0)
    assert writer.finalise(stream) == 2
    for offset in (0, 1):
        with pytest.raises(exceptions.InvalidArgument):
            writer.flush(stream, offset)
    assert writer.rows == 1
    [error] = writer.commit(stream).stream_errors
    assert error.code == Code.INVALID_STREAM_TYPE


def test_only_a_buffered_stream_can_be_flushed(writer):
    for stream in (writer.create(PENDING), writer.create(COMMITTED), f"{writer.table}/streams/_default"):
        writer.append(request(stream, batch("a")))
        with pytest.raises(exceptions.InvalidArgument):
            writer.flush(stream, 0)
    with pytest.raises(exceptions.NotFound):
        writer.flush(f"{writer.table}/streams/nothing", 0)


def test_an_offset_that_is_taken_or_too_far_is_an_answer_and_the_stream_goes_on(writer):
    """Reference of AppendRowsResponse.error: ALREADY_EXISTS, OUT_OF_RANGE; of StorageError: their codes."""
    stream = writer.create()
    first, again, far, on = writer.append(
        request(stream, batch("a", "b"), 0),
        request(stream, batch("a", "b"), 0),
        request(stream, batch("x"), 7),
        request(stream, batch("c"), 2),
    )
    assert first.append_result.offset == 0
    assert (again.error.code, code_of(again.error)) == (6, Code.OFFSET_ALREADY_EXISTS)
    assert (far.error.code, code_of(far.error)) == (11, Code.OFFSET_OUT_OF_RANGE)
    assert on.append_result.offset == 2
    assert writer.finalise(stream) == 3


def test_streams_are_committed_all_or_none(writer):
    """Reference of BatchCommitWriteStreamsResponse: with any stream error, ZERO streams are committed."""
    done, open_, committed = writer.create(), writer.create(), writer.create(COMMITTED)
    for stream in (done, open_):
        writer.append(request(stream, batch(stream)))
    writer.finalise(done)
    missing = f"{writer.table}/streams/nothing"
    answer = writer.commit(done, open_, committed, missing)
    assert {e.entity: e.code for e in answer.stream_errors} == {
        open_: Code.INVALID_STREAM_STATE,
        committed: Code.INVALID_STREAM_TYPE,
        missing: Code.STREAM_NOT_FOUND,
    }
    assert not types.BatchCommitWriteStreamsResponse.pb(answer).HasField("commit_time")
    assert writer.rows == 0
    writer.finalise(open_)
    assert not writer.commit(done, open_).stream_errors
    assert writer.rows == 2
    [error] = writer.commit(done).stream_errors
    assert error.code == Code.STREAM_ALREADY_COMMITTED
    assert writer.rows == 2


def test_a_request_that_is_too_large_ends_the_connection(writer):
    """The reference of AppendRowsRequest: less than 20 MB."""
    stream = writer.create()
    with pytest.raises(exceptions.InvalidArgument, match="too large"):
        writer.append(request(stream, batch("a", data=bytes(20_000_000))))
    [answer] = writer.append(request(stream, batch("a", data=bytes(20_000_000 - 10_000))))
    assert answer.append_result.offset == 0


def test_bad_rows_refuse_their_batch_and_are_named(writer):
    """Reference of AppendRowsResponse.row_errors: no row of the batch is appended."""
    stream = writer.create()
    broken = pa.array([b"ok", b"\xff\xfe", b"ok", None], pa.binary()).view(pa.string())
    rows = batch("a", "b", "c", "d").set_column(2, "message_id", broken)
    [answer] = writer.append(request(stream, rows, 0))
    assert [(e.index, e.code.name) for e in answer.row_errors] == [(1, "FIELDS_ERROR"), (3, "FIELDS_ERROR")]
    assert "UTF-8" in answer.row_errors[0].message
    assert "required" in answer.row_errors[1].message
    assert answer.error.code == 3
    pairs = pa.array([[{"key": b"k", "value": b"v"}], [], [{"key": b"k", "value": b"\x80"}]]).cast(
        pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
    )
    texts = pa.ListArray.from_arrays(
        pairs.offsets,
        pa.StructArray.from_arrays(
            [child.view(pa.string()) for child in pairs.values.flatten()], ["key", "value"]
        ),
    )
    [answer] = writer.append(request(stream, batch("a", "b", "c").set_column(1, "attributes", texts), 0))
    assert [e.index for e in answer.row_errors] == [2]
    [answer] = writer.append(request(stream, batch("a"), 0))
    assert answer.append_result.offset == 0


def test_a_schema_that_does_not_fit_ends_the_connection(writer):
    stream = writer.create()
    with pytest.raises(exceptions.InvalidArgument, match="more fields"):
        writer.append(request(stream, batch("a", colour="red")))
    with pytest.raises(exceptions.InvalidArgument, match="Schema mismatch"):
        writer.append(request(stream, batch("a").set_column(0, "data", pa.array([1]))))
    with pytest.raises(exceptions.InvalidArgument, match="writer schema"):
        writer.append(request(stream, batch("a"), schema=False))
    nanoseconds = batch("a").append_column("at", pa.array([1], pa.timestamp("ns", "UTC")))
    table = writer.rest.get_table(writer.name)
    table.schema = [*table.schema, bigquery.SchemaField("at", "TIMESTAMP")]
    writer.rest.update_table(table, ["schema"])
    with pytest.raises(exceptions.InvalidArgument, match="Schema mismatch"):
        writer.append(request(stream, nanoseconds))
    with pytest.raises(exceptions.InvalidArgument, match="Required field"):
        writer.append(request(stream, batch("a").drop_columns(["message_id"])))


def test_unknown_streams_and_tables_are_not_found(writer):
    with pytest.raises(exceptions.NotFound) as refused:
        writer.append(request(f"{writer.table}/streams/nothing", batch("a")))
    assert code_of(rpc_status.from_call(refused.value.errors[0])) == Code.STREAM_NOT_FOUND
    with pytest.raises(exceptions.NotFound):
        writer.api.get_write_stream(name=f"{writer.table}/streams/nothing")
    with pytest.raises(exceptions.NotFound):
        writer.api.create_write_stream(
            parent="projects/shop/datasets/none/tables/none", write_stream=types.WriteStream(type_=PENDING)
        )


def test_streams_end_with_their_table(writer):
    stream = writer.create()
    writer.append(request(stream, batch("a")))
    table = writer.rest.get_table(writer.name)
    writer.rest.delete_table(table)
    writer.rest.create_table(bigquery.Table(table.reference, table.schema))
    with pytest.raises(exceptions.NotFound):
        writer.append(request(stream, batch("a")))


def test_a_changed_table_is_told_once(writer):
    """ "Batch load and stream data with BigQuery Storage Write API": schema update detection."""
    stream = writer.create(COMMITTED)
    sent, changed = threading.Event(), threading.Event()

    def requests():
        yield request(stream, batch("a"))
        sent.set()
        assert changed.wait(30)
        yield request(stream, batch("b"))
        yield request(stream, batch("c"))

    answers = writer.api.append_rows(requests())
    first = next(iter(answers))
    assert sent.wait(30)
    table = writer.rest.get_table(writer.name)
    table.schema = [*table.schema, bigquery.SchemaField("topic", "STRING")]
    writer.rest.update_table(table, ["schema"])
    changed.set()
    second, third = list(answers)
    assert not first.updated_schema.fields
    assert [f.name for f in second.updated_schema.fields][-1] == "topic"
    assert not third.updated_schema.fields
    assert writer.rows == 3


def test_only_one_of_two_appends_at_the_same_offset_is_taken(writer):
    stream = writer.create()
    results = []
    threads = [
        threading.Thread(
            target=lambda n=n: results.extend(writer.append(request(stream, batch(str(n)), 0))), daemon=True
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(bool(r.error.code) for r in results) == [False, True, True, True]
    assert writer.finalise(stream) == 1


def test_a_new_table_and_new_columns_are_known_later_than_to_rest(writer, shared_standin):
    """https://github.com/googleapis/google-cloud-go/issues/12449, https://github.com/supabase/etl/pull/862"""
    shared_standin.delay_storage(tables=3600)
    with pytest.raises(exceptions.NotFound, match="Requested entity was not found"):
        writer.create()
    shared_standin.delay_storage(columns=3600)
    stream = writer.create()
    writer.append(request(stream, batch("a")))
    table = writer.rest.get_table(writer.name)
    table.schema = [*table.schema, bigquery.SchemaField("more", "STRING")]
    writer.rest.update_table(table, ["schema"])
    with pytest.raises(exceptions.InvalidArgument, match="extra fields"):
        writer.append(request(writer.create(), batch("b", more="x")))
    shared_standin.delay_storage()
    [answer] = writer.append(request(writer.create(), batch("b", more="x")))
    assert not answer.error.code
