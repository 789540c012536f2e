"""What a test orders to go wrong, and the record of what was called."""

import fnmatch
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field, fields
from typing import Any, Final

_KEPT_CALLS: Final = 10_000
KINDS: Final = ("error", "drop", "delay", "row_errors")


@dataclass(slots=True)
class Fault:
    """The next ``count`` calls of ``method`` after ``skip`` others meet it.

    ``method`` is a name such as ``tables.get``, ``jobs.insert``, ``jobs.run`` (the job's work itself),
    ``AppendRows`` or ``BatchCommitWriteStreams``; ``*`` stands for any text. ``when`` is ``before`` (nothing was
    done) or ``after`` (done and durable, the answer is lost). Kinds: ``error`` (``reason`` for REST, ``status``
    for gRPC; ``in_band`` puts it into an AppendRowsResponse), ``drop`` (the connection ends without an answer),
    ``delay`` (``seconds``), ``row_errors`` (``rows`` of an append are refused). ``resource`` limits it to calls
    whose resource holds the text.
    """

    method: str
    kind: str = "error"
    when: str = "before"
    count: int = 1
    skip: int = 0
    reason: str = "backendError"
    status: str = "UNAVAILABLE"
    message: str = "Error encountered during execution. Retrying may solve the problem."
    code: int | None = None
    seconds: float = 0.0
    in_band: bool = False
    rows: list[int] = field(default_factory=lambda: [0])
    resource: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.when not in {"before", "after"}:
            raise ValueError(f"kind is one of {', '.join(KINDS)}; when is before or after")


class FaultBook:
    """The orders that are still open; safe for many threads."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, order: dict[str, Any]) -> None:
        """Take an order; an unknown member is a ValueError."""
        known = {member.name for member in fields(Fault)}
        if unknown := set(order) - known:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        with self._lock:
            self._faults.append(Fault(**order))

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def open(self) -> list[dict[str, Any]]:
        with self._lock:
            return [{m.name: getattr(f, m.name) for m in fields(Fault)} for f in self._faults]

    def take(self, method: str, when: str, resource: str = "") -> Fault | None:
        """Return the fault that this call meets, if any, and count it."""
        with self._lock:
            for fault in self._faults:
                if fault.when != when or not fnmatch.fnmatchcase(method, fault.method):
                    continue
                if fault.resource and fault.resource not in resource:
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.count -= 1
                if fault.count <= 0:
                    self._faults.remove(fault)
                return fault
        return None


class CallLog:
    """Every call with its outcome, the last ten thousand one by one."""

    def __init__(self) -> None:
        self._calls: deque[dict[str, Any]] = deque(maxlen=_KEPT_CALLS)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, method: str, resource: str, outcome: str, **more: Any) -> None:
        """Note one call; ``outcome`` is ``ok`` or the reason why not."""
        with self._lock:
            self._counts[method] += 1
            self._calls.append(
                {"method": method, "resource": resource, "outcome": outcome, "at": time.time(), **more}
            )

    def read(self) -> dict[str, Any]:
        """Return the calls, oldest first, and how many there were of each method."""
        with self._lock:
            return {"calls": list(self._calls), "counts": dict(self._counts)}

    def clear(self) -> None:
        with self._lock:
            self._calls.clear()
            self._counts.clear()
