import io
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from connectors.columns import arrow_schema
from connectors.lake import files, volumes
from connectors.lake.archive import LakeArchive
from connectors.lake.entities import EntityTable
from connectors.lake.objects import Disk
from connectors.lake.rows import LakeRowTable
from model.archive import Attempt
from model.schema import Field, RowSchema
from tests.archive import messages, write_commits
from tests.reporting.orders import Orders


@pytest.fixture
def archive(home):
    commits = [{"orders": messages(1, message_id=[str(number)])} for number in (1, 2, 3)]
    return write_commits(LakeArchive(str(home / "lake"), "backup.messages"), *commits)


def test_compact_makes_one_file_of_small_ones(refeed, archive):
    result = refeed("compact", "--json")
    assert (result.code, json.loads(result.out)) == (0, {"files_removed": 2})
    assert [file.rows for file in archive.data_files()] == [3]


def test_vacuum_keeps_what_is_young(refeed, archive):
    assert refeed("compact").code == 0
    assert json.loads(refeed("archive", "vacuum", "--json").out) == {
        "files": [],
        "dry_run": False,
        "tables": {"archive": 0},
    }
    too_short = refeed("archive", "vacuum", "--keep-hours", "1")
    assert too_short.code == 2
    assert "--keep-hours" in too_short.err


def test_expire_asks_first_and_then_takes_whole_days(refeed, archive, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    refused = refeed("archive", "expire", "--before", "2999-01-01")
    assert refused.code == 1
    assert len(archive.data_files()) == 3
    days = [file.partition.date() for file in archive.data_files()]
    for before, removed in ((min(days), 0), (max(days) + timedelta(days=1), 3)):
        done = refeed("archive", "expire", "--before", before.isoformat(), "--yes", "--json")
        assert json.loads(done.out) == {"files_removed": removed}
    assert archive.data_files() == []


def test_files_of_an_earlier_refeed_are_counted_once(refeed, archive, monkeypatch):
    size = sum(file.size_bytes for file in archive.data_files())
    assert json.loads(refeed("archive", "count", "--json").out) == {"files": 0, "bytes": 0, "dry_run": False}
    monkeypatch.setattr(files, "VOLUMES_KEY", b"another")
    monkeypatch.setattr(volumes, "VOLUMES_KEY", b"another")
    asked = json.loads(refeed("archive", "count", "--dry-run", "--json").out)
    assert asked == {"files": 3, "bytes": size, "dry_run": True}
    assert f"3 files were read, {size:,} bytes" in refeed("archive", "count").out
    assert json.loads(refeed("archive", "count", "--dry-run", "--json").out)["files"] == 0


def test_a_table_of_rows_is_looked_after_like_the_archive(refeed, home):
    table = LakeRowTable(str(home / "lake"), "staging.orders")
    schema = RowSchema((Field("id", "INT64"), Field("ingest_time", "TIMESTAMP")))
    table.evolve(schema)
    epoch = table.take_lease("lease")
    for number in (1, 2):
        rows = pa.RecordBatch.from_pylist([{"id": number, "ingest_time": None}], schema=arrow_schema(schema))
        table.commit([table.writer().write_rows([rows])], Attempt("stream", number, "lease", epoch))
    result = refeed("compact", "--table", "staging.orders", "--json")
    assert (result.code, json.loads(result.out)) == (0, {"files_removed": 1})
    result = refeed("archive", "expire", "--before", "2999-01-01", "--yes", "--table", "staging.orders", "--json")
    assert json.loads(result.out) == {"files_removed": 1}
    missing = refeed("archive", "vacuum", "--table", "staging.nothing")
    assert (missing.code, "no table staging.nothing" in missing.err) == (1, True)


def test_vacuum_frees_what_merges_and_compactions_replaced_in_every_table_of_the_registry(
    refeed, archive, home, tmp_path, monkeypatch
):
    lake, orders = home / "lake", Orders(home)
    orders.publish(tmp_path)
    for seconds in (1, 2):
        orders.stage((1, seconds))
    assert refeed("merge", "--source", "orders").code == 0
    reporting = EntityTable(str(lake), "reporting.orders")
    (merged,) = reporting.snapshot().files
    staged = {file.path for file in LakeRowTable(str(lake), "staging.orders").data_files()}
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "now", lambda _: time.time() - 3 * 86_400)
        assert refeed("compact", "--table", "staging.orders").code == 0
        orders.stage((1, 3))
        assert refeed("merge", "--source", "orders").code == 0
    version = reporting.snapshot().version
    found = json.loads(refeed("archive", "vacuum", "--dry-run", "--json").out)
    freed = {name: number for name, number in found["tables"].items() if number}
    assert freed == {"reporting.orders": 1, "staging.orders": 2}
    assert found["tables"].keys() - freed == {"archive", "backup.merge_audits"}
    assert Path(merged.path).exists()
    assert refeed("archive", "vacuum").out.splitlines()[-1] == "3 files were deleted"
    assert not any(Path(path).exists() for path in (merged.path, *staged))
    assert reporting.snapshot().version == version, "a commit would overtake a merge under way"
    orders.stage((1, 4), (2, 4))
    assert refeed("merge", "--source", "orders").code == 0
    assert orders.reported() == {1: "1-4", 2: "2-4"}


def test_vacuum_leaves_a_day_to_readers_of_reporting_and_to_a_merge_whatever_is_asked(
    refeed, archive, home, tmp_path, monkeypatch
):
    orders = Orders(home)
    orders.publish(tmp_path)
    orders.stage((1, 1))
    assert refeed("merge", "--source", "orders").code == 0
    (merged,) = EntityTable(str(home / "lake"), "reporting.orders").snapshot().files
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "now", lambda _: time.time() - 20 * 3600)
        orders.stage((1, 2))
        assert refeed("merge", "--source", "orders").code == 0
    uncommitted = Path(merged.path).with_name("2026-03-02-uncommitted.parquet")
    uncommitted.write_bytes(Path(merged.path).read_bytes())
    for path in (merged.path, uncommitted):
        os.utime(path, (time.time() - 20 * 3600,) * 2)
    for arguments in ((), ("--table", "reporting.orders")):
        assert refeed("archive", "vacuum", "--keep-hours", "2", *arguments).code == 0
        assert (Path(merged.path).exists(), uncommitted.exists()) == (True, True)
