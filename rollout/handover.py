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
# A new process that gives no sign of life for this time, and waits for no other one, hangs. Owning a stream is a
# lock and a lease, a second or two; what takes longer, as learning ids does, writes the status meanwhile.
HUNG_SECONDS: Final = 60.0
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
    passed is killed, and so is a new one that hangs: that has written no status for a minute in which nobody kept
    it from the stream. Whichever of the two is killed, and whenever, the home's lock and the lease keep them
    apart: what the old one had not committed is pulled by the new one, and what it had committed is known.

    An old process that has its order to drain never runs again. When the new one ends before it owns the stream,
    the caller starts a process as after any death. Another agent goes on with the same two processes by a HandOver
    of its own: orders that were given are not given again, and the bound begins once more.
    """

    def __init__(self, old: StreamProcess | None, new: StreamProcess, *, timeout_seconds: float) -> None:
        self.was_killed = False
        self.has_hung = False
        self._old = old
        self._new = new
        self._timeout_seconds = timeout_seconds
        self._kill_at: float | None = None
        # The new process's last sign of life, and since when, by this machine's clock, there is no other one.
        self._seen_at: Any = None
        self._silent_since = 0.0

    def look(self) -> HandOverState:
        """Give the orders, the first time, then kill the old process when it is due; return where it stands."""
        if self._kill_at is None:
            if self._old is not None:
                self._old.order("drain", timeout_seconds=self._timeout_seconds)
            bound = self._timeout_seconds + KILL_GRACE_SECONDS
            self._new.order("run", timeout_seconds=bound + _WAIT_GRACE_SECONDS)
            # Last: an order that a full disk did not take is given by the next look.
            self._kill_at = time.monotonic() + bound
            self._silent_since = time.monotonic()
        if self._new.status().get("state") in _OWNING:
            return HandOverState.HANDED_OVER
        if not self._new.is_running:
            return HandOverState.NEW_ENDED
        if self._old is not None and self._old.is_running and time.monotonic() >= self._kill_at:
            _log.warning("old_stream_killed", stream=self._old.name, instance=self._old.instance_id)
            self._old.kill()
            self.was_killed = True
        return self._look_for_life(self._kill_at)

    def _look_for_life(self, free_at: float) -> HandOverState:
        """Kill the new process when it hangs: the old one has ended, or ought to have at ``free_at``."""
        now, seen_at = time.monotonic(), self._new.status().get("at")
        is_kept_waiting = self._old is not None and self._old.is_running and now < free_at
        if is_kept_waiting or seen_at != self._seen_at:
            self._seen_at, self._silent_since = seen_at, now
        if now - self._silent_since < HUNG_SECONDS:
            return HandOverState.UNDER_WAY
        _log.warning("new_stream_hangs", stream=self._new.name, instance=self._new.instance_id)
        self._new.kill()
        self.has_hung = True
        return HandOverState.NEW_ENDED


def is_ready(new: StreamProcess) -> bool:
    """Whether ``new`` is a standby that could run at once."""
    return new.is_running and new.status().get("state") == STANDBY


def _time(status: Mapping[str, Any], name: str) -> float | None:
    found = status.get(name)
    return float(found) if isinstance(found, int | float) else None
