import pytest
from google.api_core import exceptions
from google.cloud.bigquery_storage_v1 import types

from tests.standin.conftest import make_archive
from tests.standin.reader import Reader


@pytest.fixture
def reader(shared_standin, archive):
    return Reader(shared_standin, archive)


def test_a_session_reads_the_rows_of_its_beginning(archive, reader):
    archive.add(0, 10)
    session = reader.session()
    archive.add(10, 10)
    archive.run("DELETE FROM {t} WHERE message_id = 'm1'")
    assert len(reader.rows(session, session.streams[0])) == 10
    later = reader.session()
    assert len(reader.rows(later, later.streams[0])) == 19


def test_a_table_that_requires_a_filter_requires_it_here_too(shared_standin, dataset):
    archive = make_archive(shared_standin, dataset, require_partition_filter=True)
    archive.add(0, 2)
    reader = Reader(shared_standin, archive)
    with pytest.raises(exceptions.InvalidArgument, match="without a filter"):
        reader.session()
    session = reader.session(row_restriction="_PARTITIONDATE > '2026-01-01'")
    assert len(reader.rows(session, session.streams[0])) == 2


def test_what_is_no_table_or_no_session_is_refused(archive, reader, dataset):
    archive.add(0, 1)
    archive.run(f"CREATE VIEW {dataset}.v AS SELECT 1 AS x")
    session = types.ReadSession(table=f"projects/shop/datasets/{dataset}/tables/v", data_format="ARROW")
    with pytest.raises(exceptions.InvalidArgument, match="non-table"):
        reader.api.create_read_session(parent="projects/shop", read_session=session)
    session.table += "nothing"
    with pytest.raises(exceptions.NotFound):
        reader.api.create_read_session(parent="projects/shop", read_session=session)
    known = reader.session()
    for name in ("projects/shop/locations/us/sessions/ab/streams/0", f"{known.name}/streams/5", "x"):
        with pytest.raises(exceptions.NotFound):
            list(reader.api.read_rows(name))


# Google's REST client calls what its Storage client deprecates.
@pytest.mark.filterwarnings("ignore:Retrieving Arrow:PendingDeprecationWarning")
def test_query_results_are_read_by_google_s_client(shared_standin, archive):
    archive.add(0, 300)
    job = archive.run("SELECT message_id, data FROM {t} WHERE message_id LIKE 'm1%'")
    table = job.result().to_arrow(bqstorage_client=shared_standin.read_client())
    assert table.num_rows == 1 + 10 + 100
    assert shared_standin.counts()["ReadRows"] >= 1
