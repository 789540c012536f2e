import struct
import uuid

import pytest
import requests
from google.api_core import exceptions
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import types

from tests.standin.conftest import make_archive
from tests.standin.fixture import StandIn, run_standin
from tests.standin.reader import Reader
from tests.standin.writer import COMMITTED, PENDING, Code, Writer, batch, code_of, request

pytestmark = pytest.mark.kills


@pytest.fixture(scope="module")
def standin(tmp_path_factory):
    """A server that tests may kill, if they start it again."""
    with run_standin(tmp_path_factory.mktemp("killed")) as server:
        yield server


@pytest.fixture
def dataset(standin):
    name = f"d{uuid.uuid4().hex[:12]}"
    standin.client().create_dataset(name)
    return name


@pytest.fixture
def writer(standin, dataset):
    fields = [bigquery.SchemaField("data", "BYTES"), bigquery.SchemaField("message_id", "STRING")]
    standin.client().create_table(bigquery.Table(f"shop.{dataset}.messages", fields))
    return Writer(standin, f"{dataset}.messages")


def plain(*ids, **columns):
    return batch(*ids, **columns).drop_columns(["attributes"])


def restart(standin):
    standin.kill()
    standin.start()


def test_committed_rows_and_pending_streams_survive_a_killed_server(standin, writer):
    done, open_, final = writer.create(), writer.create(), writer.create()
    for stream in (done, open_, final):
        writer.append(request(stream, plain("a", "b"), 0))
    writer.finalise(done)
    writer.finalise(final)
    writer.commit(done)
    restart(standin)
    writer = Writer(standin, writer.name)
    assert writer.rows == 2
    again, on = writer.append(request(open_, plain("a", "b"), 0), request(open_, plain("c"), 2))
    assert code_of(again.error) == Code.OFFSET_ALREADY_EXISTS
    assert on.append_result.offset == 2
    assert writer.finalise(open_) == 3
    [late] = writer.append(request(final, plain("x")))
    assert code_of(late.error) == Code.STREAM_FINALIZED
    [error] = writer.commit(done).stream_errors
    assert error.code == Code.STREAM_ALREADY_COMMITTED
    assert not writer.commit(open_, final).stream_errors
    assert writer.rows == 7


@pytest.mark.parametrize(("when", "expected"), [("before", 0), ("after", 2)])
def test_a_server_that_dies_in_a_commit_has_committed_all_or_nothing(standin, writer, when, expected):
    streams = [writer.create(), writer.create()]
    for stream in streams:
        writer.append(request(stream, plain("a"), 0))
        writer.finalise(stream)
    standin.fault("BatchCommitWriteStreams", "kill", when=when)
    with pytest.raises(exceptions.GoogleAPICallError):
        writer.api.batch_commit_write_streams(
            types.BatchCommitWriteStreamsRequest(parent=writer.table, write_streams=streams), retry=None
        )
    standin.wait_until_dead()
    standin.start()
    writer = Writer(standin, writer.name)
    assert writer.rows == expected
    answer = writer.commit(*streams)
    assert [e.code for e in answer.stream_errors] == ([Code.STREAM_ALREADY_COMMITTED] * 2 if expected else [])
    assert writer.rows == 2


def test_a_half_written_append_is_not_there(standin, writer):
    stream = writer.create(PENDING)
    writer.append(request(stream, plain("a"), 0))
    standin.kill()
    newest = max((standin.folder / "rows").glob("*.frames"), key=lambda file: file.stat().st_mtime)
    with newest.open("ab") as tail:
        # A header that promises 10,000 bytes and five rows, and the first 100 of them.
        tail.write(struct.pack("<4sIQQq", b"RFFR", 1, 10_000, 5, 0) + bytes(100))
    standin.start()
    writer = Writer(standin, writer.name)
    [answer] = writer.append(request(stream, plain("b"), 1))
    assert answer.append_result.offset == 1
    assert writer.finalise(stream) == 2


def test_sigterm_ends_it_cleanly_and_nothing_is_lost(standin, writer):
    stream = writer.create(COMMITTED)
    writer.append(request(stream, plain("a"), 0))
    assert standin.stop() == 0
    standin.start()
    assert Writer(standin, writer.name).rows == 1


@pytest.fixture
def archive(standin, dataset):
    archive = make_archive(standin, dataset)
    archive.add(0, 50)
    return archive


def test_jobs_and_their_results_survive_and_what_was_running_runs_again(standin, archive, dataset):
    config = bigquery.QueryJobConfig(destination=f"shop.{dataset}.selection", write_disposition="WRITE_EMPTY")
    done = archive.run("SELECT message_id FROM {t}", labels={"a": "b"})
    standin.fault("jobs.run", "kill", when="before")
    text = f"SELECT message_id FROM {archive.name}"
    with pytest.raises((exceptions.GoogleAPICallError, requests.exceptions.RequestException)):
        archive.rest.query(text, config, job_id="bf_2", job_retry=None, retry=None).result(
            retry=None, job_retry=None
        )
    standin.wait_until_dead()
    standin.start()
    assert archive.rest.get_job("bf_2").result(job_retry=None).total_rows == 50
    assert archive.rest.get_table(f"{dataset}.selection").num_rows == 50
    again = archive.rest.get_job(done.job_id)
    assert (again.state, again.labels) == ("DONE", {"a": "b"})
    assert again.result().total_rows == 50


def test_a_statement_whose_server_died_after_it_is_not_done_twice(standin, archive):
    standin.fault("jobs.run", "kill", when="after")
    text = f"INSERT INTO {archive.name} (message_id) SELECT message_id FROM {archive.name}"
    with pytest.raises((exceptions.GoogleAPICallError, requests.exceptions.RequestException)):
        archive.rest.query(text, job_id="dml_1", job_retry=None, retry=None).result(retry=None, job_retry=None)
    standin.wait_until_dead()
    standin.start()
    assert archive.rest.get_job("dml_1").num_dml_affected_rows == 50
    assert archive.rows == 100


def test_a_read_session_goes_on_after_a_restart(standin, archive):
    reader = Reader(standin, archive)
    session = reader.session(streams=2)
    before = [reader.rows(session, stream) for stream in session.streams]
    standin.kill()
    standin.start()
    archive.add(50, 5)
    reader = Reader(standin, archive)
    assert [reader.rows(session, stream) for stream in session.streams] == before
    assert reader.rows(session, session.streams[1], offset=20) == before[1][20:]


def test_two_servers_never_share_a_folder(standin):
    other = StandIn(standin.folder)
    with pytest.raises(AssertionError, match="Another server uses"):
        other.start()
