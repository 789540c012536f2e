"""Rows that streams brought may be in the write buffer, where _PARTITIONTIME is null.

"Query partitioned tables", section "Query an ingestion-time partitioned table": to query data in the
write-optimised storage, use ``_PARTITIONTIME IS NULL``
(https://cloud.google.com/bigquery/docs/querying-partitioned-tables). How long rows stay there nobody promises.

No page says whether rows of a PENDING stream lie there after their commit. "Batch load data using the Storage
Write API" (https://cloud.google.com/bigquery/docs/write-api-batch) says of the time before it: "After the stream
is finalized and before it is committed, the data can remain in the buffer for up to 4 hours." And the service
calls a COMMITTED stream, against committing it as a PENDING one, WRITE_OPTIMIZED
(https://github.com/googleapis/nodejs-bigquery-storage/issues/413). So the unkind answer is kept here: rows of both
lie there, for as long as a test holds them.
"""

from datetime import UTC, datetime, timedelta

from google.cloud import bigquery

from tests.standin.conftest import messages
from tests.standin.writer import PENDING, request


def test_rows_in_the_write_buffer_can_be_changed(shared_standin, archive):
    """ "Transform data with DML": rows of the Storage Write API can be modified however young they are."""
    shared_standin.hold_write_buffer(f"shop.{archive.name}")
    archive.add(0, 4)
    job = archive.run("DELETE FROM {t} WHERE _PARTITIONTIME IS NULL AND message_id = 'm1'")
    assert job.num_dml_affected_rows == 1
    assert archive.query("SELECT COUNT(*) FROM {t} WHERE _PARTITIONTIME IS NULL") == [(3,)]


def test_tables_get_says_how_much_is_in_the_write_buffer_and_how_old_it_is(shared_standin, archive):
    archive.add(0, 2)
    assert archive.rest.get_table(archive.name).streaming_buffer is None
    shared_standin.hold_write_buffer(f"shop.{archive.name}")
    began = datetime.now(UTC) - timedelta(milliseconds=2)
    archive.add(2, 3)
    buffer = archive.rest.get_table(archive.name).streaming_buffer
    assert buffer.estimated_rows == 3
    assert buffer.estimated_bytes > 0
    assert began <= buffer.oldest_entry_time <= datetime.now(UTC)
    shared_standin.release_write_buffer(f"shop.{archive.name}")
    assert archive.rest.get_table(archive.name).streaming_buffer is None


def test_rows_that_streams_bring_after_a_query_took_the_table_s_place_are_lost(archive):
    archive.add(0, 2)
    job = bigquery.QueryJobConfig(destination=f"shop.{archive.name}", write_disposition="WRITE_TRUNCATE")
    archive.rest.query_and_wait(f"SELECT * FROM `{archive.name}`", job_config=job)
    stream = archive.create(PENDING)
    archive.append(request(stream, messages(2, 3)))
    archive.finalise(stream)
    archive.commit(stream)
    assert archive.query("SELECT COUNT(*) FROM {t}") == [(2,)]
