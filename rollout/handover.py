"""The hand-over of a stream from the process that runs it to its standby, with a bound."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

import structlog

from rollout.process import StreamProcess
from streams.folder import STANDBY

_log = structlog.get_logger(__name__)

# What the old process gets beyond the bound of its drain before it is killed.
KILL_GRACE_SECONDS: Final = 10.0
# How much longer than that the new one waits.
_WAIT_GRACE_SECONDS: Final = 60.0
_OWNING: Final = ("running", "waiting", "paused", "draining")


class HandOverState(StrEnum):
    """Where a hand-over stands; the last two are its end."""

    UNDER_WAY = "under_way"
    HANDED_OVER = "handed_over"
    NEW_ENDED = "new_ended"


@dataclass(frozen=True, slots=True)
class Pause:
    """The wall times of the old process's last commit and of the new one's first; None while there is none."""

    last_commit_at: float | None
    first_commit_at: float | None

    @classmethod
    def between(cls, old: Mapping[str, Any], new: Mapping[str, Any]) -> Self:
        """Return the pause between two processes, as their statuses report it."""
        return cls(_time(old, "last_commit_at"), _time(new, "first_commit_at"))

    @property
    def seconds(self) -> float | None:
        """How long nothing was committed; None while it is not over, or if the old process never committed."""
        if self.last_commit_at is None or self.first_commit_at is None:
            return None
        return round(max(0.0, self.first_commit_at - self.last_commit_at), 3)


class HandOver:
    """Drains ``old`` and has ``new``, a standby of the same stream, go on, a step a look.

    Both get their orders at the same moment. The new process owns the stream as soon as the old one lets go of
    it: after its last commit, or by its end. One that has not let go when ``timeout_seconds`` and some more have
    passed is killed. Whichever of the two is killed, and whenever, the home's lock and the lease keep them apart:
    what the old one had not committed is pulled by the new one, and what it had committed is known.

    An old process that has its order to drain never runs again. When the new one ends before it owns the stream,
    the caller starts a process as after any death. Another agent goes on with the same two processes by a HandOver
    of its own: orders that were given are not given again, and the bound begins once more.
    """

    def __init__(self, old: StreamProcess | None, new: StreamProcess, *, timeout_seconds: float) -> None:
        self.was_killed = False
        self._old = old
        self._new = new
        self._timeout_seconds = timeout_seconds
        self._kill_at: float | None = None

    def look(self) -> HandOverState:
        """Give the orders, the first time, then kill the old process when it is due; return where it stands."""
        if self._kill_at is None:
            if self._old is not None:
                self._old.order("drain", timeout_seconds=self._timeout_seconds)
            bound = self._timeout_seconds + KILL_GRACE_SECONDS
            self._new.order("run", timeout_seconds=bound + _WAIT_GRACE_SECONDS)
            # Last: an order that a full disk did not take is given by the next look.
            self._kill_at = time.monotonic() + bound
        if self._new.status().get("state") in _OWNING:
            return HandOverState.HANDED_OVER
        if not self._new.is_running:
            return HandOverState.NEW_ENDED
        if self._old is not None and self._old.is_running and time.monotonic() >= self._kill_at:
            _log.warning("old_stream_killed", stream=self._old.name, instance=self._old.instance_id)
            self._old.kill()
            self.was_killed = True
        return HandOverState.UNDER_WAY


def is_ready(new: StreamProcess) -> bool:
    """Whether ``new`` is a standby that could run at once."""
    return new.is_running and new.status().get("state") == STANDBY


def _time(status: Mapping[str, Any], name: str) -> float | None:
    found = status.get(name)
    return float(found) if isinstance(found, int | float) else None
