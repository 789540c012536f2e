"""Passes a stream's status on to the deployment's store, beside the stream's work."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final, Protocol

import structlog

from model.errors import RefeedError
from model.stream import StreamReport
from streams.status import StatusFile

_log = structlog.get_logger(__name__)

# A stream writes its status every five seconds: with these a report is ten seconds old at most.
_REPORT_SECONDS: Final = 3.0
# A drain is not kept waiting by a store that does not answer.
_LAST_SECONDS: Final = 5.0
# What others read of a status; the rest, such as the counts of each source, stays in the file.
_REPORTED: Final = (
    *("state", "error", "started_at", "totals", "rates", "rates_over_seconds"),
    *("batch_seconds", "last_batch_at", "alerts", "subscriptions", "backlog"),
    *("first_commit_at", "control_number", "not_committed"),
)


class StreamReporter(Protocol):
    """Keeps the reports of streams where the API finds them, whichever host it runs on."""

    def report(self, report: StreamReport) -> None:
        """Keep the report instead of the instance's last one.

        Raises:
            RefeedError: it can't be kept now.
        """
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


@contextmanager
def reporting(status: StatusFile, reporter: StreamReporter | None, *, name: str, instance: str) -> Iterator[None]:
    """Report ``status`` every few seconds until the block ends, and then once more; ``reporter`` is closed.

    Another thread does it, so that a store that is slow or away keeps nothing waiting: its outage is logged once,
    and its return. A status that was not written since the last report is not reported again: a stream that hangs
    falls silent. Without a reporter the status file is all there is.
    """
    if reporter is None:
        yield
        return
    heartbeat = _Heartbeat(status, reporter, name, instance)
    ended = threading.Event()

    def run() -> None:
        with closing(reporter):
            heartbeat.report()
            while not ended.wait(_REPORT_SECONDS):
                heartbeat.report()
            heartbeat.report()

    # A daemon: a call to the store that hangs must not keep the process from its end.
    thread = threading.Thread(target=run, name="report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LAST_SECONDS)
        if thread.is_alive():
            _log.warning("last_report_missing", stream=name, waited_seconds=_LAST_SECONDS)


class _Heartbeat:
    def __init__(self, status: StatusFile, reporter: StreamReporter, name: str, instance: str) -> None:
        self._status = status
        self._reporter = reporter
        self._name = name
        self._instance = instance
        self._reported_at: float | None = None
        self._is_failing = False

    def report(self) -> None:
        status = self._status.fields()
        written_at = status.get("at")
        if written_at is None or written_at == self._reported_at:
            return
        try:
            self._reporter.report(_report_of(self._name, self._instance, status))
        except (RefeedError, OSError) as exc:
            if not self._is_failing:
                code = exc.code if isinstance(exc, RefeedError) else "os_error"
                _log.warning("stream_not_reported", stream=self._name, code=code, error=str(exc))
            self._is_failing = True
            return
        self._reported_at = written_at
        if self._is_failing:
            _log.info("stream_reported_again", stream=self._name)
        self._is_failing = False


def _report_of(name: str, instance: str, status: Mapping[str, Any]) -> StreamReport:
    shown = {field: status[field] for field in _REPORTED if status.get(field) is not None}
    return StreamReport(name, instance, status["host"], status["pid"], status["state"], shown)
