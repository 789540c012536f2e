"""Who called for what, and what came of it: every refusal, and every call that changes something."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final

import structlog
from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import address_of
from api.operations import find_operation
from jobs.loop import BackgroundLoop
from jobs.store import JobStore
from model.errors import RefeedError

_LOG: Final = structlog.get_logger()
_REFUSALS: Final = (401, 403, 429)
_TOO_MANY: Final = 429
_ELSEWHERE: Final = 300
_ERROR: Final = 400
_FAULT: Final = 500
_READS: Final = ("GET", "HEAD", "OPTIONS")
_CHARS: Final = 200
_WHY_CHARS: Final = 500
_METHOD_CHARS: Final = 16
_MAX_THREADS: Final = 4
# Calls that came too often are counted for this time, and then become one line.
_COUNT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One call, as the audit log has it; no header, body or query of a request is ever part of it."""

    actor: str
    action: str
    target: str
    outcome: str
    why: str | None


class AuditTrail:
    """Writes lines in the order they come, many in one go when many wait; :meth:`close` writes what is left.

    ``write`` returns when the line is kept. Calls that came too often are not worth a line each, nor could the
    store keep up with them: ``count`` sums them up, and each sum becomes a line within a second or so.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._counted: Counter[AuditLine] = Counter()
        self.loop = BackgroundLoop("audit", self._sum_up, every_seconds=_COUNT_SECONDS)
        self.loop.start()

    def write(self, line: AuditLine) -> None:
        """Keep the line, and write it to the service's log."""
        _LOG.info("audit", **asdict(line))
        self._store.append_audit(line.actor, line.action, line.target, line.outcome, line.why)

    def count(self, line: AuditLine) -> None:
        """Count a line that comes again and again."""
        with self._lock:
            self._counted[line] += 1

    def close(self) -> None:
        """Write what was counted, and stop."""
        self.loop.stop()
        self._sum_up()

    def _sum_up(self) -> None:
        with self._lock:
            counted, self._counted = self._counted, Counter()
        for line, times in counted.items():
            try:
                self.write(replace(line, why=f"{times} times: {line.why}"))
            except Exception:  # noqa: BLE001  the log has the line; the next ones must be written all the same
                _LOG.exception("the audit log can't be written", times=times)


class AuditMiddleware:
    """ASGI middleware: a refusal, and a call that changes or costs something, is kept before it is answered.

    ``trail`` gives the trail of the app's life. Reads that are answered are not kept, but for those whose route
    sets the request's state ``read`` to a description of what was read: payloads are people's data.
    """

    def __init__(self, app: ASGIApp, trail: Callable[[], AuditTrail]) -> None:
        self._app = app
        self._trail = trail
        # Threads of its own, as api.auth's.
        self._threads = CapacityLimiter(_MAX_THREADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and keep what came of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_kept(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._keep(scope, message["status"], Headers(raw=message["headers"]).get("location"))
            await send(message)

        try:
            await self._app(scope, receive, send_kept)
        except Exception:
            # What answers it stands outside of this.
            await self._keep(scope, _FAULT, None)
            raise

    async def _keep(self, scope: Scope, status: int, location: str | None) -> None:
        state = scope.get("state", {})
        is_read = "read" in state and status < _ERROR
        if state.get("is_audited") or not (is_read or _is_kept(scope["method"], status)):
            return
        state["is_audited"] = True
        line = _line_of(scope, status, location)
        if status == _TOO_MANY:
            self._trail().count(line)
            return
        try:
            await to_thread.run_sync(self._trail().write, line, limiter=self._threads)
        except RefeedError:
            # What was refused stays refused and what is done stays done: the answer is sent. The log has the line.
            _LOG.exception("the audit log can't be written")


def _is_kept(method: str, status: int) -> bool:
    if status in _REFUSALS:
        return True
    # A call that was sent elsewhere or failed with 4xx has changed nothing; one that failed with 5xx may have.
    return method not in _READS and not _ELSEWHERE <= status < _FAULT


def _line_of(scope: Scope, status: int, location: str | None) -> AuditLine:
    state = scope.get("state", {})
    principal = state.get("principal")
    problem = state.get("problem")
    outcome = "refused" if status in _REFUSALS else "failed" if status >= _ERROR else "done"
    why = ": ".join(filter(None, (problem, state.get("why") or state.get("read"))))
    return AuditLine(
        actor=f"unknown at {address_of(scope)}" if principal is None else principal.name,
        action=find_operation(scope) or scope["method"][:_METHOD_CHARS],
        # One line for each address would let a caller write without end.
        target="" if status == _TOO_MANY else _printable(location or scope["path"])[:_CHARS],
        outcome=outcome,
        why=_printable(f"{status} {why}".strip())[:_WHY_CHARS],
    )


def _printable(text: str) -> str:
    """Return the text with escapes for what no database keeps, such as NUL, or a terminal would obey."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
