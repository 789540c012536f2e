"""Merges small files in a thread while the stream goes on committing."""

import threading
import time
from collections.abc import Iterable
from typing import Final

import structlog

from model.errors import RefeedError
from streams.targets import Targets

_log = structlog.get_logger(__name__)

_COMPACT_AT_FILES: Final = 64
_COMPACT_EVERY_SECONDS: Final = 30.0


class Compactor:
    """Compacts the tables of a stream that were committed to, every half a minute at most."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._thread: threading.Thread | None = None
        self._compacted_at = time.monotonic()
        self._touched: set[str] = set()

    def touch(self, names: Iterable[str]) -> None:
        """Remember tables that have new files, and begin to compact when it is time for it."""
        self._touched.update(names)
        now = time.monotonic()
        is_running = self._thread is not None and self._thread.is_alive()
        if is_running or now - self._compacted_at < _COMPACT_EVERY_SECONDS:
            return
        self._compacted_at = now
        touched, self._touched = sorted(self._touched), set()
        self._thread = threading.Thread(target=self._compact, args=(touched,), name="compact", daemon=True)
        self._thread.start()

    def _compact(self, names: list[str]) -> None:
        for name in names:
            try:
                # A table object of its own: the stream's moves on with each commit.
                removed = self._targets.open(name).compact(max_small_files=_COMPACT_AT_FILES)
            except RefeedError as exc:
                _log.warning("compaction_failed", table=name, code=exc.code, error=exc.message)
            else:
                if removed:
                    _log.info("compacted", table=name, files_removed=removed)
