"""Which end of a query is the stream's end, and which is only a reason to begin again."""

import signal
from types import SimpleNamespace

import pytest

from jobs.stream import run as run_module
from jobs.stream.run import run_until_stopped
from jobs.stream.status import StatusFile
from model.errors import RefeedError, WarehouseUnavailableError


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
    assert written == [{"state": "running"}, {}, {}, {}]
