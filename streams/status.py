"""The status of a running stream, in a small file for other processes."""

import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from model.disk import replace_text
from model.format import Format

if TYPE_CHECKING:
    # A container's probe imports this module every few seconds, and must not import a warehouse.
    from warehouse.port import Warehouse

# The API and the agent also read statuses that other releases wrote.
STATUS_FORMAT: Final = Format(1)
# Rates are those of the last minute.
RATE_SECONDS: Final = 60.0
# Number of attached topics in the status; a restart may attach all topics.
_KEPT_ATTACHED: Final = 1000
# The fields of a warehouse's description that are the place of its tables; the others may change.
_ADDRESS: Final = ("lake", "project", "archive_table", "dead_letter_table")


class StatusFile:
    """A JSON object that is replaced as a whole; it outlives the stream: check its ``host``, ``pid`` and ``at``.

    The stream's ``totals`` begin at 0 with its process. ``rates`` has their growth per second over the last
    ``rates_over_seconds`` (60, or less after a start). A failed write, for example on a full disk, is no error, so
    that the stream continues. ``instance`` is the id of the instance, or the stream's id in its lease.
    """

    def __init__(self, path: Path, *, instance: str | None = None) -> None:
        self._path = path
        self._fields: dict[str, Any] = {
            "instance": instance,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "state": "starting",
            "error": None,
            "started_at": time.time(),
        }
        # Several threads of a stream write the status: pass values that no longer change.
        self._lock = threading.Lock()
        self._is_closed = False
        self._seen: deque[tuple[float, dict[str, float]]] = deque([(time.monotonic(), {})])

    def write(self, **fields: Any) -> None:
        """Change ``fields`` and write all of them; a state without an error clears the error."""
        self._write(fields)

    def write_last(self, **fields: Any) -> None:
        """Write the end of the stream; later writes of threads that still run change nothing."""
        self._write(fields, is_last=True)

    def _write(self, fields: dict[str, Any], *, is_last: bool = False) -> None:
        if "state" in fields:
            fields.setdefault("error", None)
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = is_last
            if "totals" in fields:
                fields["rates"], fields["rates_over_seconds"] = self._rates(fields["totals"])
            elif "totals" not in self._fields:
                # Restart the measuring: a standby has counted nothing, perhaps for hours.
                self._see(time.monotonic(), {})
            self._fields |= fields
            self._fields["at"] = time.time()
            with suppress(OSError):
                replace_text(self._path, json.dumps(self._fields))

    def note(self, **fields: Any) -> None:
        """Change ``fields`` for the next write; unlike :meth:`write` this is no heartbeat."""
        with self._lock:
            if not self._is_closed:
                self._fields |= fields

    def note_attached(self, topic: str) -> None:
        """Note the time at which the stream attached a topic; the first one counts, the newest topics stay."""
        with self._lock:
            found = {topic: time.time(), **self._fields.get("attached", {})}
            self._fields["attached"] = dict(sorted(found.items(), key=lambda each: each[1])[-_KEPT_ATTACHED:])

    def fields(self) -> dict[str, Any]:
        """Return a copy of all present fields; ``at`` is missing before the first write."""
        with self._lock:
            return dict(self._fields)

    def _rates(self, totals: Mapping[str, Any]) -> tuple[dict[str, float], float]:
        """Return the growth per second of each numeric total, and the seconds over which it was measured."""
        now = time.monotonic()
        numbers = {name: float(count) for name, count in totals.items() if isinstance(count, int | float)}
        self._see(now, numbers)
        began, before = self._seen[0]
        seconds = now - began
        if not seconds:
            return {}, 0.0
        grown = {name: max(0.0, count - before.get(name, 0)) for name, count in numbers.items()}
        return {name: round(count / seconds, 3) for name, count in grown.items()}, round(seconds, 3)

    def _see(self, now: float, numbers: dict[str, float]) -> None:
        self._seen.append((now, numbers))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RATE_SECONDS:  # noqa: PLR2004 - a first and a last
            self._seen.popleft()

    @staticmethod
    def read(path: Path) -> dict[str, Any] | None:
        """Return the last written fields, or None if there are none."""
        try:
            fields: Any = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        return fields if isinstance(fields, dict) else None


def place_of(project: str, warehouse: "Warehouse") -> dict[str, Any]:
    """Return the place of a stream that writes messages of ``project`` to ``warehouse``."""
    return {"project": project, "warehouse": warehouse.name, "address": address_of(warehouse.to_json())}


def address_of(warehouse: Mapping[str, Any]) -> dict[str, str]:
    """Return the place of a warehouse's tables, from its ``to_json``."""
    return {name: str(warehouse[name]) for name in _ADDRESS if name in warehouse}
