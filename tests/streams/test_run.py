"""Which end of a query is the stream's end, and which is only a reason to begin again."""

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from model.errors import LeaseLostError, RefeedError, WarehouseError, WarehouseUnavailableError
from streams import run as run_module
from streams.run import run_until_stopped
from streams.status import StatusFile


class Query:
    """A query that is active for so many ``looks`` at it, then has ended for ``reason``."""

    def __init__(self, reason: str, *, looks: int = 0) -> None:
        self.reason = reason
        self.looks = looks

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        self.looks -= 1
        return self.looks >= 0

    def exception(self) -> str:
        return self.reason


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return what runs a stream whose queries end for these reasons; it returns how many were started."""
    monkeypatch.setattr(run_module, "_RETRY_SECONDS", 0.0)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def start(*reasons: str, failure: RefeedError | None = None, looks: int = 0) -> int:
        queries = iter(reasons)
        started: list[Query] = []
        sink = SimpleNamespace(status=StatusFile(tmp_path / "status.json"), failure=failure)

        def start_query(*_) -> Query:
            sink.failure = failure if not started else None
            started.append(Query(next(queries), looks=looks))
            return started[-1]

        with pytest.raises(RefeedError, match="ended by itself: broken"):
            run_until_stopped(None, start_query, name="stream", sink=sink, scratch=tmp_path / "scratch")
        return len(started)

    yield start
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_query_that_ends_by_itself_ends_the_stream(run):
    assert run("broken") == 1


def test_a_worker_that_a_busy_machine_starts_too_late_only_begins_the_query_anew(run):
    assert run("... Python worker failed to connect back. ...", "broken") == 2


def test_a_fault_that_passes_only_begins_the_query_anew(run):
    assert run("what Spark makes of it", "broken", failure=WarehouseUnavailableError("not now")) == 2


def test_a_stream_without_batches_goes_on_saying_that_it_lives(run, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(run_module, "_WATCH_SECONDS", 0.0)
    monkeypatch.setattr(run_module, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(StatusFile, "write", lambda _, **fields: written.append(fields))
    run("broken", looks=3)
    assert written[:-1] == [{"state": "running"}, {}, {}, {}]


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (LeaseLostError("Another stream took over."), "Another stream took over."),
        (WarehouseError("Could not convert 'card 4111'"), "The job's log has the engine's words."),
        (RefeedError("SparkException: card 4111"), "Its log has Spark's words."),
    ],
)
def test_a_stream_that_a_fault_ends_says_so_without_quoting_a_message(drain, tmp_path, failure, message):
    with pytest.raises(type(failure)):
        drain(before=failure)
    status = StatusFile.read(tmp_path / "status.json")
    assert status is not None
    assert (status["state"], status["error"]["code"]) == ("failed", failure.code)
    assert status["error"]["message"].endswith(message)
    assert "4111" not in status["error"]["message"]


class DrainedQuery(Query):
    """A query that ends only when it drains, with its last batch, which may fail."""

    def __init__(self, fail: Callable[[], None] | None = None) -> None:
        super().__init__("what Spark makes of it", looks=100)
        self.fail = fail

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        if self.fail is not None:
            self.looks = 0
            self.fail()
            raise ValueError("what Spark makes of it")

    def stop(self) -> None:
        self.looks = 0


@pytest.fixture
def drain(tmp_path, monkeypatch):
    """Return what drains a stream whose query, or whose last batch in hand, fails so; and its status after it."""
    monkeypatch.setattr(run_module, "_RETRY_SECONDS", 0.0)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def start(
        *, query: RefeedError | None = None, before: RefeedError | None = None, last: RefeedError | None = None
    ) -> dict[str, Any] | None:
        sink = SimpleNamespace(status=StatusFile(tmp_path / "status.json"), failure=before)

        def fail_query() -> None:
            sink.failure = query

        def start_query(*_) -> Query:
            os.kill(os.getpid(), signal.SIGTERM)
            if before is not None:
                return Query("what Spark makes of it")
            return DrainedQuery(fail_query if query else None)

        def finish() -> None:
            if last is not None:
                raise last

        spark = SimpleNamespace(stop=lambda: None)
        run_until_stopped(
            spark, start_query, name="stream", sink=sink, scratch=tmp_path / "scratch", finish=finish
        )
        return StatusFile.read(tmp_path / "status.json")

    (tmp_path / "scratch").mkdir()
    yield start
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_stream_that_drains_ends_well_when_its_last_batch_does(drain):
    assert drain()["state"] == "stopped"


@pytest.mark.parametrize("where", ["query", "before", "last"])
def test_a_batch_that_fails_while_the_stream_drains_is_the_streams_end(drain, tmp_path, where):
    """Whether it passes or not: its messages are not acknowledged and nobody starts the query again."""
    with pytest.raises(WarehouseUnavailableError, match="not now"):
        drain(**{where: WarehouseUnavailableError("not now")})
    status = StatusFile.read(tmp_path / "status.json")
    assert status is not None
    assert (status["state"], status["error"]["code"]) == ("stopped", "warehouse_unavailable")
