import urllib.error

import pytest
import requests
from google.api_core import exceptions
from google.cloud import bigquery

from tests.standin.writer import Writer, batch, request
from tests.waiting import wait_until


@pytest.fixture
def client(shared_standin):
    with shared_standin.client() as client:
        yield client
    shared_standin.clear_faults()


@pytest.fixture
def writer(shared_standin, dataset, client):
    fields = [bigquery.SchemaField("data", "BYTES"), bigquery.SchemaField("message_id", "STRING")]
    table = bigquery.Table(f"shop.{dataset}.messages", fields)
    table.time_partitioning = bigquery.TimePartitioning(type_="DAY")
    client.create_table(table)
    return Writer(shared_standin, f"{dataset}.messages")


def plain(*ids):
    return batch(*ids).drop_columns(["attributes"])


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("quotaExceeded", exceptions.Forbidden),
        ("rateLimitExceeded", exceptions.Forbidden),
        ("backendError", exceptions.InternalServerError),
        ("accessDenied", exceptions.Forbidden),
    ],
)
def test_the_next_calls_meet_the_error_and_those_after_do_not(shared_standin, client, dataset, reason, error):
    """ "BigQuery API HTTP status and error codes": reasons and codes."""
    shared_standin.fault("datasets.get", reason=reason, count=2, skip=1)
    client.get_dataset(dataset, retry=None)
    for _ in range(2):
        with pytest.raises(error) as refused:
            client.get_dataset(dataset, retry=None)
        assert refused.value.errors[0]["reason"] == reason
    client.get_dataset(dataset, retry=None)
    assert shared_standin.open_faults() == []
    outcomes = [call["outcome"] for call in shared_standin.calls("datasets.get")]
    assert outcomes == ["ok", reason, reason, "ok"]


def test_an_answer_can_be_lost_after_the_work_is_done(shared_standin, client, dataset):
    shared_standin.fault("tables.insert", "drop", when="after")
    table = bigquery.Table(f"shop.{dataset}.t", [bigquery.SchemaField("a", "STRING")])
    with pytest.raises(requests.exceptions.ConnectionError):
        client.create_table(table, retry=None)
    with pytest.raises(exceptions.Conflict):
        client.create_table(table, retry=None)


def test_a_lost_request_has_done_nothing(shared_standin, client, dataset):
    shared_standin.fault("tables.insert", "drop", when="before")
    table = bigquery.Table(f"shop.{dataset}.t", [bigquery.SchemaField("a", "STRING")])
    with pytest.raises(requests.exceptions.ConnectionError):
        client.create_table(table, retry=None)
    client.create_table(table, retry=None)


def test_an_append_can_fail_before_and_after_it_is_stored(shared_standin, writer):
    stream = writer.create()
    shared_standin.fault("AppendRows", status="RESOURCE_EXHAUSTED", message="Exceeds quota", in_band=True)
    [refused] = writer.append(request(stream, plain("a"), 0))
    assert refused.error.code == 8
    shared_standin.fault("AppendRows", status="UNAVAILABLE")
    with pytest.raises(exceptions.ServiceUnavailable):
        writer.append(request(stream, plain("a"), 0))
    shared_standin.fault("AppendRows", "drop", when="after")
    with pytest.raises(exceptions.ServiceUnavailable):
        writer.append(request(stream, plain("a"), 0))
    [again] = writer.append(request(stream, plain("a"), 0))
    assert again.error.code == 6
    assert writer.finalise(stream) == 1


def test_rows_can_be_refused_on_order(shared_standin, writer):
    stream = writer.create()
    shared_standin.fault("AppendRows", "row_errors", rows=[0, 2], message="bad")
    [answer] = writer.append(request(stream, plain("a", "b", "c"), 0))
    assert [(e.index, e.message) for e in answer.row_errors] == [(0, "bad"), (2, "bad")]
    [answer] = writer.append(request(stream, plain("b"), 0))
    assert answer.append_result.offset == 0


def test_a_commit_whose_answer_is_lost_is_committed(shared_standin, writer):
    stream = writer.create()
    writer.append(request(stream, plain("a"), 0))
    writer.finalise(stream)
    shared_standin.fault("BatchCommitWriteStreams", "drop", when="after")
    # Google's client repeats the call on UNAVAILABLE; the second answer says that it was done.
    [error] = writer.commit(stream).stream_errors
    assert error.code.name == "STREAM_ALREADY_COMMITTED"
    assert writer.rows == 1
    assert shared_standin.counts()["BatchCommitWriteStreams"] == 2


def test_creating_streams_can_meet_a_quota(shared_standin, writer):
    shared_standin.fault("CreateWriteStream", status="RESOURCE_EXHAUSTED", message="Exceeds quota")
    with pytest.raises(exceptions.ResourceExhausted, match="Exceeds quota"):
        writer.api.create_write_stream(parent=writer.table, write_stream={"type_": 2}, retry=None)


def test_a_fault_can_be_limited_to_a_resource(shared_standin, client, dataset):
    shared_standin.fault("datasets.get", "error", reason="notFound", resource=dataset)
    with pytest.raises(exceptions.NotFound):
        client.get_dataset("other")
    assert len(shared_standin.open_faults()) == 1
    with pytest.raises(exceptions.NotFound):
        client.get_dataset(dataset)
    assert shared_standin.open_faults() == []


def test_a_call_can_be_slow(shared_standin, client, dataset):
    shared_standin.fault("datasets.get", "delay", seconds=0.3)
    with pytest.raises(requests.exceptions.Timeout):
        client.get_dataset(dataset, retry=None, timeout=0.1)
    wait_until(lambda: shared_standin.calls("datasets.get"), "the slow call ends")


def test_an_order_with_an_unknown_member_is_refused(shared_standin):
    with pytest.raises(urllib.error.HTTPError, match="400"):
        shared_standin.fault("AppendRows", colour="red")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        shared_standin.fault("AppendRows", "explode")
