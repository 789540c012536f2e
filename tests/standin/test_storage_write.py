import pyarrow as pa
import pytest
from google.api_core import exceptions
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import types

from tests.standin.conftest import messages
from tests.standin.writer import BUFFERED, COMMITTED, Code, Writer, batch, request


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


def test_streams_end_with_their_table(writer):
    stream = writer.create()
    writer.append(request(stream, batch("a")))
    table = writer.rest.get_table(writer.name)
    writer.rest.delete_table(table)
    writer.rest.create_table(bigquery.Table(table.reference, table.schema))
    with pytest.raises(exceptions.NotFound):
        writer.append(request(stream, batch("a")))


def test_rows_that_streams_bring_after_a_query_took_the_table_s_place_are_lost(archive):
    archive.add(0, 2)
    job = bigquery.QueryJobConfig(destination=f"shop.{archive.name}", write_disposition="WRITE_TRUNCATE")
    archive.rest.query_and_wait(f"SELECT * FROM `{archive.name}`", job_config=job)
    stream = archive.create()
    archive.append(request(stream, messages(2, 3)))
    archive.finalise(stream)
    archive.commit(stream)
    assert archive.query("SELECT COUNT(*) FROM {t}") == [(2,)]
