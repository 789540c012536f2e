"""Queries in processes of their own: what one does wrong, however wrong, is an error and nothing more."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from connectors.lake import query_wire as wire
from connectors.lake.data_files import DataFile
from connectors.lake.object_reads import PIECE_BYTES, open_reads
from connectors.lake.query import ArchiveSnapshot, QueryLimits
from connectors.lake.query_process import Answers, QueryProcesses, Statement
from connectors.lake.query_tables import TableColumn, TableFile, TableSnapshot
from model.errors import QueryError, QueryStoppedError, QueryTooLargeError
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("own_spares")

EMPTY = ArchiveSnapshot([], "day")
ENDLESS = "SELECT sum(a.range * b.range) FROM range(1000000) a, range(10000000) b"
# DuckDB does not count a text that a function makes.
UNCOUNTED = "SELECT length(repeat('x', 400000000)) AS length"


def run(processes: QueryProcesses, sql: str, limits: QueryLimits, **parameters: Any) -> list[dict[str, Any]]:
    (table,) = processes.run(EMPTY, [Statement(sql, parameters)], limits)
    return table.to_pylist()


def still_answers(processes: QueryProcesses, limits: QueryLimits) -> bool:
    return run(processes, "SELECT 1 AS one", limits) == [{"one": 1}]


def test_several_statements_share_a_process_and_keep_their_columns(processes, limits):
    first, second = processes.run(
        EMPTY,
        [Statement("SELECT 1 AS a", {}), Statement("SELECT message_id, data FROM refeed_archive", {})],
        limits,
    )
    assert first.to_pylist() == [{"a": 1}]
    assert (second.num_rows, second.schema.names) == (0, ["message_id", "data"])


@pytest.mark.parametrize(
    "value",
    ["text", 7, 1.5, True, None, b"\x00\xff", date(2024, 1, 2), datetime(2024, 1, 2, 3, 4, 5, 6, UTC), ["a", "b"]],
)
def test_a_parameter_arrives_as_it_is(processes, limits, value):
    (row,) = run(processes, "SELECT $p AS p", limits, p=value)
    assert row["p"] == value


def test_memory_that_the_engine_does_not_count_is_bounded_by_the_system(processes, limits):
    with pytest.raises(QueryTooLargeError, match="REFEED_QUERY_MEMORY"):
        run(processes, UNCOUNTED, replace(limits, overhead_bytes=100_000_000))
    assert still_answers(processes, limits)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGSTOP])
def test_whatever_happens_to_the_process_the_caller_gets_an_error(tmp_path, number):
    processes = QueryProcesses(keep_spare=True)
    limits = QueryLimits("200MB", tmp_path, seconds=3)
    try:
        processes.warm()
        pid = processes._spare._popen.pid
        timer = threading.Timer(1.5, os.kill, (pid, number))
        timer.start()
        with pytest.raises(QueryError):
            run(processes, ENDLESS, limits)
        timer.join()
        assert still_answers(processes, QueryLimits("200MB", tmp_path, seconds=60))
        assert list(tmp_path.iterdir()) == []
    finally:
        processes.close()


def test_a_spare_that_died_meanwhile_is_replaced(tmp_path):
    processes = QueryProcesses(keep_spare=True)
    try:
        processes.warm()
        popen = processes._spare._popen
        popen.kill()
        popen.wait()
        assert still_answers(processes, QueryLimits("200MB", tmp_path, seconds=60))
    finally:
        processes.close()


def test_a_query_that_waits_for_others_stops_without_a_process(limits):
    processes, began = QueryProcesses(), time.monotonic()
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(processes.open(EMPTY, Statement("SELECT 1", {}), limits))
        with pytest.raises(QueryStoppedError):
            processes.run(EMPTY, [Statement("SELECT 1", {})], limits, should_stop=lambda: True)
    assert time.monotonic() - began < 30
    assert still_answers(processes, limits)


def test_leaving_a_query_ends_it(processes, limits):
    began = time.monotonic()
    with processes.open(EMPTY, Statement("SELECT range AS n FROM range(10000000000)", {}), limits) as batches:
        assert next(batches).column(0)[0].as_py() == 0
    assert time.monotonic() - began < 30


def test_a_result_that_is_too_large_is_refused(processes, limits):
    endless = Statement("SELECT range AS n FROM range(10000000000)", {})
    with pytest.raises(QueryTooLargeError, match="returns more than"):
        processes.run(EMPTY, [endless], limits, max_bytes=1_000_000)


def test_a_batch_that_is_too_large_is_refused_before_it_is_read(processes, limits):
    one_value = Statement("SELECT repeat('x', 50000000) AS x", {})
    tracemalloc.start()
    try:
        with pytest.raises(QueryTooLargeError):
            processes.run(EMPTY, [one_value], limits, max_bytes=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_query_knows_no_secret_of_the_service(processes, limits, monkeypatch, tmp_path):
    monkeypatch.setenv("REFEED_SECRET", "s3cret")
    fresh = QueryProcesses()
    (tmp_path / "secret").write_text("s3cret")
    with pytest.raises(QueryError):
        run(fresh, f"SELECT * FROM read_text('{tmp_path}/secret')", limits)
    endless = Statement("SELECT range AS n FROM range(10000000000)", {})
    with fresh.open(EMPTY, endless, limits) as batches:
        next(batches)
        environment = _environment_of_child()
    assert "PATH=" in environment
    assert "REFEED_SECRET" not in environment


def test_a_process_ends_with_the_one_that_asks(tmp_path):
    asker = (
        "import sys, time; from pathlib import Path\n"
        "from connectors.lake.query import *; from connectors.lake.query_process import *\n"
        "p = QueryProcesses(keep_spare=True); p.warm(); print(p._spare._popen.pid, flush=True)\n"
        f"p.run(ArchiveSnapshot([], 'day'), [Statement('{ENDLESS}', {{}})],"
        f" QueryLimits('200MB', Path({str(tmp_path)!r}), seconds=600))\n"
    )
    with subprocess.Popen([sys.executable, "-c", asker], stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        process.kill()
    wait_until(lambda: not _is_running(child), "the query's process ends with the one that asked")


def test_a_request_comes_through_the_pipe_whole(tmp_path):
    snapshot = ArchiveSnapshot(
        [DataFile("/lake/a'b.parquet", 5, 2, datetime(2024, 1, 2, tzinfo=UTC))],
        "hour",
        (
            TableSnapshot(
                "refeed_table_1",
                (TableColumn("data", "BYTES", "BLOB"), TableColumn("m", "ARRAY<...>", "MAP(...)", is_map=True)),
                ("day",),
                (TableFile("/lake/x.parquet", 7, ("2024-01-01",)), TableFile("/lake/y.parquet", 8, (None,))),
                "day",
            ),
        ),
    )
    limits = QueryLimits("1GB", tmp_path, seconds=5, threads=1)
    document = wire.render_request(snapshot, [("SELECT $a", {"a": b"x"})], limits)
    assert wire.read_request(document[wire.LENGTH.size :]) == (snapshot, [("SELECT $a", {"a": b"x"})], limits)


@pytest.mark.parametrize(
    "asked",
    [
        (wire.RANGE, wire.ASKED.pack(1, 1, 0, 10)),
        (wire.RANGE, wire.ASKED.pack(1, 0, 0, PIECE_BYTES + 1)),
        (wire.RANGE, wire.ASKED.pack(1, 0, 10, 9)),
        (wire.TAIL, wire.ASKED.pack(1, 7, 0, 0)),
        (wire.TAIL, b"x"),
    ],
)
def test_bytes_that_are_no_business_of_the_query_are_refused(asked):
    """A query process that asks for any other bytes gets an error."""
    with open_reads(["s3://shop/a.parquet"]) as reads, pytest.raises(QueryError, match="asked for"):
        Answers(["s3://shop/a.parquet"], reads).begin(*asked, io.BytesIO())


def test_a_lake_on_a_disk_has_nothing_to_ask_for():
    with open_reads(["/lake/a.parquet"]) as reads, pytest.raises(QueryError, match="asked for"):
        Answers(["/lake/a.parquet"], reads).begin(wire.TAIL, wire.ASKED.pack(1, 0, 0, 0), io.BytesIO())


@pytest.mark.parametrize("body", [b"", b"{}", b'{"code": "boom", "message": "x"}', b"\x80\x04."])
def test_an_answer_that_is_none_is_an_error_and_no_more(body):
    assert type(wire.read_error(body)) is QueryError
    with pytest.raises(QueryError):
        wire.read_batches(body)


def _environment_of_child() -> str:
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    children = [Path("/proc", pid) for path in tasks for pid in path.read_text().split()]
    (newest,) = sorted(
        (path for path in children if "query_process" in (path / "cmdline").read_text()),
        key=lambda path: int((path / "stat").read_text().rpartition(")")[2].split()[19]),
    )[-1:]
    return (newest / "environ").read_text()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
