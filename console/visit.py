"""One visit: who looks at a page, with which session, zone and filters, and the API as they see it."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

from client.api import RefeedApi
from model.errors import RequestRefusedError

SESSION_COOKIE: Final = "refeed_session"
_UNAUTHENTICATED: Final = 401
_Value = TypeVar("_Value")
# Open pages of callers with the same rights share what was read so lately.
_RECENT_SECONDS: Final = 2.0
_MOST_RECENT: Final = 1000


class SignedOutError(Exception):
    """You are not signed in, or your session or its key has ended."""


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of a page: what the API answered, or the problem that it answered instead."""

    data: Any = None
    problem: Mapping[str, Any] | None = None


@dataclass(slots=True)
class _Recent:
    """What was read, and until when it is good; one page at a time reads it again."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    until: float = 0.0
    value: Any = None


class RecentReads:
    """Keeps what was read a moment ago, for the other open pages of callers with the same rights."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By rights and call.
        self._kept: dict[tuple[str, str], _Recent] = {}

    def read(
        self, rights: str, what: str, call: Callable[[], _Value], *, for_seconds: float = _RECENT_SECONDS
    ) -> _Value:
        """Return what was read lately, else what is read now, which is good for ``for_seconds``."""
        key, now = (rights, what), time.monotonic()
        with self._lock:
            if len(self._kept) >= _MOST_RECENT:
                self._kept = {k: v for k, v in self._kept.items() if now < v.until or v.lock.locked()}
            recent = self._kept.setdefault(key, _Recent())
        with recent.lock:
            if time.monotonic() >= recent.until:
                recent.value = call()
                recent.until = time.monotonic() + for_seconds
            value: _Value = recent.value
            return value

    def forget(self) -> None:
        """Read everything again: an action has changed what was read before it."""
        with self._lock:
            self._kept = {}


@dataclass(frozen=True, slots=True)
class Visit:
    """A caller at a page; ``recent`` is there while the page is kept up to date."""

    api: RefeedApi
    session: str | None
    caller: Mapping[str, Any]
    params: Mapping[str, str]
    path_params: Mapping[str, str]
    path: str
    zone: ZoneInfo
    form_token: str
    recent: RecentReads | None = field(default=None)

    @property
    def rights(self) -> str:
        """What the API's answers to the caller depend on: scopes and topics, and not the name."""
        return repr((self.caller["scopes"], self.caller["topics"], self.caller["is_open"]))

    def may(self, scope: str) -> bool:
        """Whether the caller holds the scope."""
        return scope in self.caller["scopes"]

    def choose(self, name: str, options: Sequence[str], default: str) -> str:
        """Return which of the options the URL has under ``name``, the default where it has none.

        Raises:
            RequestRefusedError: it has something else: what a link says is never replaced by another thing.
        """
        chosen = self.params.get(name) or default
        if chosen not in options:
            detail = f"{name} can't be {chosen[:40]!r}. Use one of {', '.join(options)}."
            raise RequestRefusedError(detail, detail=detail, status=422, code="parameter_invalid")
        return chosen

    def read(self, what: str, call: Callable[[], Any], *, for_seconds: float = _RECENT_SECONDS) -> PagePart:
        """Return a part of the page; ``what`` names the call among those of callers with the same rights.

        While the page is kept up to date, what was read is good for ``for_seconds``.

        Raises:
            SignedOutError: the API does not know the caller any more.
            ApiUnavailableError: it does not answer.
        """
        if self.recent is None:
            return read_part(call)
        return self.recent.read(self.rights, what, lambda: read_part(call), for_seconds=for_seconds)


def read_part(call: Callable[[], Any]) -> PagePart:
    """Return what a call answers, or its problem.

    Raises:
        SignedOutError: the API does not know the caller.
        ApiUnavailableError: it does not answer.
    """
    try:
        return PagePart(call())
    except RequestRefusedError as refused:
        return PagePart(problem=problem_of(refused))


def problem_of(refused: RequestRefusedError) -> Mapping[str, Any]:
    """Return the API's problem.

    Raises:
        SignedOutError: it is that the API does not know the caller.
    """
    problem = {"code": "request_refused", "title": "", "detail": refused.message, "errors": [], **refused.details}
    if problem.get("status") == _UNAUTHENTICATED:
        raise SignedOutError from refused
    return problem
