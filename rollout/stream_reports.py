"""Reports streams to the job store, for APIs that can't read the streams' home."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from jobs.store import JobStore
from jobs.store.events import TOPIC
from model.errors import RefeedError, RequestInvalidError
from model.message import backup_subscription_id
from model.stream import StreamReport
from streams.folder import read_statuses

_log = structlog.get_logger(__name__)

# A stream writes its status every five seconds, so that a report is at most some ten seconds old.
_REPORT_SECONDS: Final = 3.0
# Longest wait for the last report, so that a store that does not answer does not delay the end.
_LAST_SECONDS: Final = 5.0
# The fields of a status that are reported; the rest, such as the counts of each source, stays in the file.
_REPORTED: Final = (
    *("error", "started_at", "totals", "rates", "rates_over_seconds"),
    *("batch_seconds", "alerts", "subscriptions", "backlog", "not_committed"),
)


class StreamReports:
    """Reports the new statuses of the streams of ``home`` every few seconds.

    A thread reports all streams in one transaction, so that a slow or absent store delays nothing; the beginning
    and the end of an outage are logged once. An unchanged status is not reported again, and a report has the time
    of its status: the reports of a stream that hangs stop. A topic that a stream attached gets a line in its
    history. ``open_store`` is called for each report, so that a store that is absent at the start is opened later.
    """

    def __init__(self, open_store: Callable[[], JobStore], home: Path) -> None:
        self._open_store = open_store
        self._home = home
        self._names: frozenset[str] = frozenset()
        # The followed names, and those that were dropped since the last report: their end may be unreported.
        self._due: set[str] = set()
        self._reported_at: dict[tuple[str, str], float] = {}
        self._refused: set[str] = set()
        self._noted: set[tuple[str, float]] = set()
        self._is_failing = False
        self._ended = threading.Event()
        # A daemon, so that a hanging call to the store does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def follow(self, names: Iterable[str]) -> None:
        """Report the streams of these names from now on, and the previously followed ones once more."""
        self._names = frozenset(names)
        self._due.update(self._names)
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Report a last time, within five seconds."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_SECONDS)
        if self._thread.is_alive():
            _log.warning("last_report_missing", waited_seconds=_LAST_SECONDS)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._ended.wait(_REPORT_SECONDS)
            try:
                self._report()
            except Exception as exc:  # noqa: BLE001 - one file or one row must not end the reports of all streams
                if not self._is_failing:
                    code = exc.code if isinstance(exc, RefeedError) else type(exc).__name__
                    _log.warning("streams_not_reported", code=code, error=str(exc))
                self._is_failing = True

    def _report(self) -> None:
        held, due = self._names, set(self._due)
        written: dict[tuple[str, str], float] = {}
        changed: list[tuple[StreamReport, float]] = []
        attached: dict[tuple[str, float], str] = {}
        for stream in sorted(due):
            for _, status in read_statuses(self._home, stream):
                # A file with other content is no status.
                with suppress(KeyError, TypeError, ValueError):
                    report, at = _report_of(stream, status), float(status["at"])
                    key = (stream, report.instance)
                    if self._reported_at.get(key) != at:
                        changed.append((report, max(0.0, time.time() - at)))
                        attached |= dict.fromkeys(_attached_in(status), stream)
                    written[key] = at
        if changed:
            self._put(changed)
            self._note_attached(attached)
            if self._is_failing:
                _log.info("streams_reported_again")
            self._is_failing = False
        self._reported_at = written
        self._due.difference_update(due - held)

    def _note_attached(self, attached: Mapping[tuple[str, float], str]) -> None:
        for topic, at in attached.keys() - self._noted:
            what = f"attached, through {backup_subscription_id(topic)}"
            actor = f"stream:{attached[topic, at]}"
            # The store ignores an event that another agent has noted already.
            self._open_store().note_event(TOPIC, topic, what, actor=actor, at=datetime.fromtimestamp(at, UTC))
        self._noted |= attached.keys()

    def _put(self, reports: Sequence[tuple[StreamReport, float]]) -> None:
        try:
            self._open_store().put_stream_reports(reports)
        except RequestInvalidError as exc:
            if len(reports) > 1:
                # The store may refuse the content of one report: store each report by itself.
                for each in reports:
                    self._put([each])
                return
            name = reports[0][0].name
            if name not in self._refused:
                _log.warning("stream_not_reported", stream=name, code=exc.code, error=exc.message)
            self._refused.add(name)


def _attached_in(status: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(topic, float(at)) for topic, at in status.get("attached", {}).items()]


def _report_of(name: str, status: Mapping[str, Any]) -> StreamReport:
    shown = {field: status[field] for field in _REPORTED if status.get(field) is not None}
    return StreamReport(name, str(status["instance"]), status["host"], status["pid"], status["state"], shown)
