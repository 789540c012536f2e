"""Rows that streams brought may be in the write buffer, where _PARTITIONTIME is null.

"Query partitioned tables", section "Query an ingestion-time partitioned table": to query data in the
write-optimised storage, use ``_PARTITIONTIME IS NULL``.
"""

from tests.standin.conftest import messages
from tests.standin.writer import PENDING, request


def test_rows_in_the_write_buffer_have_no_partition_until_it_is_flushed(shared_standin, archive):
    archive.add(0, 2)
    shared_standin.hold_write_buffer(f"shop.{archive.name}")
    archive.add(2, 3)
    stream = archive.create(PENDING)
    archive.append(request(stream, messages(5, 4)))
    archive.finalise(stream)
    archive.commit(stream)
    archive.load(9, 5, "20260102")
    nulls = "SELECT COUNT(*) FROM {t} WHERE _PARTITIONTIME IS NULL"
    assert archive.query(nulls) == [(7,)]
    assert archive.query("SELECT COUNT(*) FROM {t} WHERE _PARTITIONDATE > '2026-01-01'") == [(7,)]
    assert archive.query("SELECT COUNT(*) FROM {t}") == [(14,)]
    job = archive.run("SELECT topic FROM {t} WHERE _PARTITIONTIME IS NULL", dry_run=True)
    assert job.total_bytes_processed == 7 * 8
    shared_standin.release_write_buffer(f"shop.{archive.name}")
    assert archive.query(nulls) == [(0,)]


def test_rows_in_the_write_buffer_can_be_changed(shared_standin, archive):
    """ "Transform data with DML": rows of the Storage Write API can be modified however young they are."""
    shared_standin.hold_write_buffer(f"shop.{archive.name}")
    archive.add(0, 4)
    job = archive.run("DELETE FROM {t} WHERE _PARTITIONTIME IS NULL AND message_id = 'm1'")
    assert job.num_dml_affected_rows == 1
    assert archive.query("SELECT COUNT(*) FROM {t} WHERE _PARTITIONTIME IS NULL") == [(3,)]
