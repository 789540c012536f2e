"""Queries over a lake in a bucket. The query process can read only the files of its query."""

import random
import re
from contextlib import closing
from datetime import UTC, datetime

import pytest

from connectors.lake import object_reads
from connectors.lake.archive import LakeArchive
from connectors.lake.query import ArchiveSnapshot, QueryLimits, open_query
from connectors.lake.query_process import QueryProcesses, Statement
from model.errors import QueryError, WarehouseError, WarehousePermissionError, WarehouseUnavailableError
from model.settings import read_settings
from sql.validate import Policy, validate_query
from tests.archive import messages, write_commits
from tests.worlds.bucket import Fault
from warehouse.open import open_warehouse
from warehouse.queries import QuerySpace, ReplayQuery

pytestmark = [pytest.mark.cloud, pytest.mark.usefixtures("own_spares")]

SUM = "SELECT count(*) AS n, sum(octet_length(data)) AS bytes, max(message_id) AS last FROM refeed_archive"


@pytest.fixture
def limits(tmp_path):
    return QueryLimits("500MB", tmp_path / "spill", seconds=60)


def payload(file: int, row: int, size: int) -> bytes:
    """Return bytes that no compression makes fewer."""
    return random.Random(file * 1_000_000 + row).randbytes(size)


def archive_of(lake: str, *, files: int, rows: int = 3, size: int = 10) -> ArchiveSnapshot:
    commits = [
        {
            "orders": messages(
                rows,
                message_id=[f"{number:03}-{n:06}" for n in range(rows)],
                data=[payload(number, n, size) for n in range(rows)],
            )
        }
        for number in range(1, files + 1)
    ]
    archive = write_commits(LakeArchive(lake, "backup.messages"), *commits)
    return ArchiveSnapshot(archive.data_files(), "day")


def run(processes: QueryProcesses, snapshot: ArchiveSnapshot, sql: str, limits: QueryLimits) -> list[dict]:
    (table,) = processes.run(snapshot, [Statement(sql, {})], limits)
    return table.to_pylist()


def select(_: QueryProcesses | None, snapshot: ArchiveSnapshot, sql: str, limits: QueryLimits) -> list[dict]:
    """Read as the driver of a backfill does, in its own process."""
    with open_query(snapshot, sql, {}, limits) as batches:
        return [row for batch in batches for row in batch.to_pylist()]


def test_a_query_reads_each_small_file_by_one_request(processes, bucket_lake, bucket_proxy, limits):
    snapshot = archive_of(bucket_lake, files=20)
    bucket_proxy.forget()
    (row,) = run(processes, snapshot, SUM, limits)
    assert (row["n"], row["bytes"], row["last"]) == (60, 600, "020-000002")
    assert sorted(request.partition("?")[0] for request in bucket_proxy.requests) == sorted(
        f"GET /{path.partition('://')[2]}" for path in snapshot.paths
    )


def test_a_plan_reads_the_log_and_each_file_once(bucket_lake, bucket_proxy, tmp_path):
    archive_of(bucket_lake, files=20)
    settings = read_settings({"REFEED_LAKE": bucket_lake}, home=tmp_path)
    with closing(open_warehouse(settings).open_queries(QuerySpace("500MB", tmp_path / "spill"))) as queries:
        policy = Policy(settings.archive_table, None, datetime.now(UTC))
        sql = f"SELECT * FROM {settings.archive_table} WHERE _PARTITIONDATE >= CURRENT_DATE() - 1"
        query = validate_query(sql, {}, queries.policy(policy))
        bucket_proxy.forget()
        found = queries.examine(ReplayQuery(query))
    assert (found.rows, len(found.samples)) == (60, 10)
    files = [request for request in bucket_proxy.requests if "_delta_log" not in request]
    assert sorted(request.partition(" ")[0] for request in files) == ["GET"] * 20


def test_statements_of_one_process_share_what_they_have_read(processes, bucket_lake, bucket_proxy, limits):
    snapshot = archive_of(bucket_lake, files=5)
    bucket_proxy.forget()
    first, second = processes.run(snapshot, [Statement(SUM, {})] * 2, limits)
    assert first == second
    assert len(bucket_proxy.requests) == 5


@pytest.mark.parametrize("read", [run, select])
def test_a_large_file_is_read_by_ranges_and_the_columns_that_are_asked_for(
    processes, bucket_lake, bucket_proxy, limits, read
):
    snapshot = archive_of(bucket_lake, files=2, rows=4000, size=300)
    assert all(file.size_bytes > 2 * object_reads.TAIL_BYTES for file in snapshot.files)
    sql = "SELECT message_id, data FROM refeed_archive ORDER BY message_id"
    rows = read(processes, snapshot, sql, limits)
    assert [row["message_id"] for row in rows] == [f"{f:03}-{n:06}" for f in (1, 2) for n in range(4000)]
    assert rows[4001]["data"] == payload(2, 1, 300)
    bucket_proxy.forget()
    # Eleven bytes a row of a column at the files' start.
    assert run(processes, snapshot, "SELECT count(data) AS n FROM refeed_archive", limits) == [{"n": 8000}]
    assert len(bucket_proxy.requests) <= 2 * len(snapshot.paths)


def test_a_query_reaches_nothing_but_the_files_of_its_snapshot(processes, bucket_lake, bucket_proxy, limits):
    snapshot = archive_of(bucket_lake, files=1)
    (own,) = snapshot.paths
    bucket_proxy.forget()
    for sql in (
        f"SELECT * FROM read_parquet('{bucket_lake}/backup/messages/other.parquet')",
        f"SELECT * FROM read_text('{bucket_lake}/secret')",
        f"SELECT * FROM glob('{bucket_lake}/*')",
        "SELECT * FROM read_parquet('s3://other/x.parquet')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('https://example.com/x.csv')",
        f"COPY (SELECT 1) TO '{bucket_lake}/stolen.csv'",
        f"COPY (SELECT 1) TO '{own}'",
        "INSTALL httpfs",
        "LOAD httpfs",
    ):
        with pytest.raises(QueryError):
            run(processes, snapshot, sql, limits)
    assert set(bucket_proxy.requests) == {f"GET /{own.partition('://')[2]}"}


@pytest.mark.parametrize("read", [run, select])
def test_a_file_that_can_not_be_read_is_an_error_of_the_lake(processes, bucket_lake, bucket_proxy, limits, read):
    snapshot = archive_of(bucket_lake, files=2)
    for kind, error in (
        ("503", WarehouseUnavailableError),
        ("403", WarehousePermissionError),
        ("404", WarehouseError),
    ):
        bucket_proxy.faults = [Fault("GET", snapshot.paths[1].rpartition("/")[2], kind, count=100)]
        with pytest.raises(WarehouseError, match=re.escape(snapshot.paths[1])) as found:
            read(processes, snapshot, SUM, limits)
        assert type(found.value) is error
