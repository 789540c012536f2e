from datetime import UTC, datetime

import pytest

from cli.demo.archive import ArchiveReader
from cli.demo.verdict import ArchivedMessage
from model.settings import read_settings
from tests.archive import entries, messages, write_commits
from warehouse.open import open_warehouse


@pytest.mark.parametrize("warehouse", ["lake", "bigquery"])
def test_it_reads_what_lies_in_the_archive(tmp_path, shared_standin, warehouse):
    settings = read_settings(
        {
            **shared_standin.environment,
            "REFEED_HOME": str(tmp_path),
            "REFEED_WAREHOUSE": warehouse,
            "REFEED_ARCHIVE_TABLE": "demo_reader.messages",
        }
    )
    reader = ArchiveReader(settings)
    reader.create()
    assert (reader.count_rows(), list(reader.read()), reader.read_ids()) == (0, [], set())
    published = [datetime(2024, 3, 1, 23, 59, 59, 5, UTC)]
    rows = messages(
        1, data=[b"\x00\xff"], attributes=[entries({"k": ""})], message_id=["7"], publish_time=published
    )
    write_commits(open_warehouse(settings).open_archive(), {"orders": rows}).close()
    row = ArchivedMessage("orders", "7", b"\x00\xff", (("k", ""),), "2024-03-01T23:59:59.000005Z")
    assert (reader.count_rows(), list(reader.read())) == (1, [row])
    assert reader.read_ids() == {("orders", "7")}
