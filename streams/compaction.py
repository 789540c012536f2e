"""Merges small files in a thread while the stream continues to commit."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

import structlog

from model.errors import RefeedError
from streams.targets import Targets

_log = structlog.get_logger(__name__)

_COMPACT_AT_FILES: Final = 64
_COMPACT_EVERY_SECONDS: Final = 30.0
# New files until the next look, which opens the table: with 300 tables a look at each new file would be expensive.
_LOOK_AT_FILES: Final = 16


class Compactor:
    """Compacts the tables of a stream that got enough new files since the last look, at most twice a minute.

    The first look at a table comes with its first new file, because an earlier stream may have left small files.
    """

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._thread: threading.Thread | None = None
        self._compacted_at = time.monotonic()
        self._new_files: Counter[str] = Counter()
        self._seen: set[str] = set()

    def touch(self, new_files: Mapping[str, int]) -> None:
        """Count the new files of tables, and begin a compaction when one is due."""
        self._new_files.update(new_files)
        now = time.monotonic()
        is_running = self._thread is not None and self._thread.is_alive()
        if is_running or now - self._compacted_at < _COMPACT_EVERY_SECONDS:
            return
        self._compacted_at = now
        due = [
            name for name, files in self._new_files.items() if files >= _LOOK_AT_FILES or name not in self._seen
        ]
        self._seen.update(due)
        for name in due:
            del self._new_files[name]
        self._thread = threading.Thread(target=self._compact, args=(sorted(due),), name="compact", daemon=True)
        self._thread.start()

    def _compact(self, names: list[str]) -> None:
        for name in names:
            try:
                # A separate table object, because each commit changes the stream's own.
                removed = self._targets.open(name).compact(max_small_files=_COMPACT_AT_FILES)
            except RefeedError as exc:
                _log.warning("compaction_failed", table=name, code=exc.code, error=exc.message)
            else:
                if removed:
                    _log.info("compacted", table=name, files_removed=removed)
