from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from cli.demo.archive import ArchiveReader
from cli.demo.verdict import ArchivedMessage
from connectors.lake.archive import Attempt, LakeArchive
from model.settings import read_settings


def test_it_reads_what_lies_in_the_files(tmp_path: Path) -> None:
    settings = read_settings({"REFEED_HOME": str(tmp_path)})
    reader = ArchiveReader(settings)
    reader.create()
    assert (reader.count_rows(), list(reader.read()), reader.read_ids()) == (0, [], set())

    archive = LakeArchive(settings.lake, settings.archive_table)
    rows = pa.record_batch(
        {
            "data": pa.array([b"\x00\xff"], pa.binary()),
            "attributes": pa.array(
                [[{"key": "k", "value": ""}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
            ),
            "message_id": ["7"],
            "publish_time": pa.array([datetime(2024, 3, 1, 23, 59, 59, 5, UTC)]),
            "ordering_key": [""],
        }
    )
    written = archive.writer().write([("orders", "refeed-backup.orders", rows)])
    archive.commit([written], Attempt("stream", 1, "lease", archive.take_lease("lease")))

    row = ArchivedMessage("orders", "7", b"\x00\xff", (("k", ""),), "2024-03-01T23:59:59.000005Z")
    assert (reader.count_rows(), list(reader.read())) == (1, [row])
    assert reader.read_ids() == {("orders", "7")}
