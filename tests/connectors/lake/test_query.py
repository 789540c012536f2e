"""DuckDB over the archive's files: what a query sees, and all that it can't reach."""

from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from connectors.lake.archive import LakeArchive
from connectors.lake.query import ArchiveSnapshot, open_query
from connectors.lake.query_process import QueryProcesses, Statement
from model.errors import QueryError, QueryStoppedError, QueryTooLargeError
from tests.archive import messages, write_commits
from tests.connectors.conftest import run_query

EMPTY = ArchiveSnapshot([], "day")


def archive_of(root, partitioning, sizes):
    at = datetime(2024, 3, 1, 23, 59, 59, 123456, UTC)
    commits = [
        {"orders": messages(count, message_id=[f"{number}-{n}" for n in range(count)], publish_time=[at] * count)}
        for number, count in enumerate(sizes, 1)
    ]
    archive = write_commits(LakeArchive(str(root / "lake"), "backup.messages", partitioning), *commits)
    return ArchiveSnapshot(archive.data_files(), partitioning)


@pytest.mark.parametrize(("partitioning", "hour"), [("day", 0), ("hour", None)])
def test_the_view_has_the_archive_and_its_pseudo_columns(tmp_path, limits, partitioning, hour):
    snapshot = archive_of(tmp_path, partitioning, [2])

    (row, _) = run_query(snapshot, "SELECT * FROM refeed_archive ORDER BY message_id", {}, limits).to_pylist()

    assert (row["data"], row["message_id"], row["topic"]) == (b'{"n": 0}', "1-0", "orders")
    assert row["attributes"] == [{"key": "n", "value": "0"}]
    assert row["publish_time"] == datetime(2024, 3, 1, 23, 59, 59, 123456, UTC)
    ingested = row["ingest_time"]
    assert row["_PARTITIONDATE"] == ingested.date()
    expected = ingested.hour if hour is None else hour
    assert row["_PARTITIONTIME"] == ingested.replace(hour=expected, minute=0, second=0, microsecond=0)


@pytest.mark.parametrize("name", ["100%", "a#b", "[x]", "x*", "trailing ", "a:b", "it's", "ä{c}"])
def test_a_folder_with_an_odd_name_can_have_a_lake(tmp_path, limits, name):
    snapshot = archive_of(tmp_path / name, "day", [2, 1])
    count = run_query(snapshot, "SELECT count(*) AS n FROM refeed_archive", {}, limits)
    assert count["n"].to_pylist() == [3]
    assert all(path.startswith(f"{tmp_path / name}/lake/") for path in snapshot.paths)


def test_parameters_are_values_and_never_text_of_the_query(tmp_path, limits):
    snapshot = archive_of(tmp_path, "day", [3])
    sql = "SELECT count(*) AS n FROM refeed_archive WHERE message_id = $id AND _PARTITIONDATE >= $day"
    for given, expected in (("1-1", 1), ("1-1' OR 'a' = 'a", 0)):
        found = run_query(snapshot, sql, {"id": given, "day": date(2020, 1, 1)}, limits)
        assert found["n"].to_pylist() == [expected]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('{root}/secret')",
        "SELECT * FROM '{root}/other.parquet'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_csv('https://example.com/x.csv')",
        "COPY (SELECT 1) TO '{root}/stolen.csv'",
        "ATTACH '{root}/other.db'",
        "SET enable_external_access = true",
        "SET memory_limit = '100GB'",
        "RESET lock_configuration",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM limits",
        "SELECT getenv('HOME')",
    ],
)
def test_nothing_but_the_snapshot_can_be_reached(tmp_path, limits, sql):
    (tmp_path / "secret").write_text("secret")

    with pytest.raises(QueryError):
        run_query(archive_of(tmp_path, "day", [1]), sql.format(root=tmp_path), {}, limits)

    assert not (tmp_path / "stolen.csv").exists()
    assert not (tmp_path / "other.db").exists()


ENDLESS = "SELECT sum(a.range * b.range) FROM range(1000000) a, range(10000000) b"


@pytest.mark.parametrize(
    ("sql", "more", "error", "says"),
    [
        (
            "SELECT list(repeat('x', 1000)) FROM range(50000)",
            {"memory": "40MB", "temp_bytes": 1000},
            QueryTooLargeError,
            "REFEED_QUERY_MEMORY",
        ),
        (ENDLESS, {"seconds": 0.5}, QueryTooLargeError, "longer than"),
        (ENDLESS, {"stop": True}, QueryStoppedError, "stop"),
        # The engine's message holds a byte of a character.
        ("SELECT from_hex('\u2028')", {}, QueryError, "failed while it ran"),
        ("SELECT error('not this one')", {}, QueryError, "not this one"),
    ],
    ids=["memory", "time", "stopped", "no text", "of its own"],
)
def test_a_query_that_can_not_end_well_says_why_here_and_from_a_process_of_its_own(limits, sql, more, error, says):
    is_stopped = more.pop("stop", False)
    limits = replace(limits, **more)

    def stop():
        return is_stopped

    with pytest.raises(error, match=says), open_query(EMPTY, sql, {}, limits, should_stop=stop) as batches:
        list(batches)
    processes = QueryProcesses()
    with pytest.raises(error, match=says):
        processes.run(EMPTY, [Statement(sql, {})], limits, should_stop=stop)
    with (
        pytest.raises(error, match=says),
        processes.open(EMPTY, Statement(sql, {}), limits, should_stop=stop) as batches,
    ):
        list(batches)
