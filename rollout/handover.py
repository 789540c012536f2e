"""The hand-over of a stream from its running process to its standby, with a timeout."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

import structlog

from rollout.process import StreamProcess
from streams.folder import STANDBY

_log = structlog.get_logger(__name__)

# Time after the drain timeout until the old process is killed.
KILL_GRACE_SECONDS: Final = 10.0
# Further time that the new process waits.
_WAIT_GRACE_SECONDS: Final = 60.0
# A new process hangs if it writes no status for this time and waits for no other process. Taking the lock and the
# lease needs a second or two; slower work, such as learning ids, writes the status meanwhile.
HUNG_SECONDS: Final = 60.0
_OWNING: Final = ("running", "waiting", "paused", "draining")


class HandOverState(StrEnum):
    """The progress of a hand-over; the last two states are its end."""

    UNDER_WAY = "under_way"
    HANDED_OVER = "handed_over"
    NEW_ENDED = "new_ended"


@dataclass(frozen=True, slots=True)
class Pause:
    """The wall times of the old process's last commit and of the new one's first commit, or None."""

    last_commit_at: float | None
    first_commit_at: float | None

    @classmethod
    def between(cls, old: Mapping[str, Any], new: Mapping[str, Any]) -> Self:
        """Return the pause between two processes, read from their statuses."""
        return cls(_time(old, "last_commit_at"), _time(new, "first_commit_at"))

    @property
    def seconds(self) -> float | None:
        """The time without commits; None before its end, or if the old process never committed."""
        if self.last_commit_at is None or self.first_commit_at is None:
            return None
        return round(max(0.0, self.first_commit_at - self.last_commit_at), 3)


class HandOver:
    """Drains the process ``old`` and runs ``new``, a standby of the same stream; each look takes one step.

    Both processes get their orders at the same moment. The new process owns the stream as soon as the old one
    releases it: after its last commit, or by its end. The old process is killed if it has not released the stream
    some time after ``timeout_seconds``. The new process is killed if it hangs: if it has written no status for a
    minute although no other process held the stream. At every moment the home's lock and the lease keep the two
    apart: the new process pulls the messages that the old one has not committed, and knows the committed ones.

    An old process with an order to drain never runs again. If the new process ends before it owns the stream, the
    caller starts another process, as after any death. A HandOver of another agent can continue with the same two
    processes: it repeats no order, and its timeout begins again.
    """

    def __init__(self, old: StreamProcess | None, new: StreamProcess, *, timeout_seconds: float) -> None:
        self.was_killed = False
        self.has_hung = False
        self._old = old
        self._new = new
        self._timeout_seconds = timeout_seconds
        self._kill_at: float | None = None
        # The new process's last heartbeat, and the start of its silence by this machine's clock.
        self._seen_at: Any = None
        self._silent_since = 0.0

    def look(self) -> HandOverState:
        """Give the orders in the first look, kill a process that is late, and return the progress."""
        if self._kill_at is None:
            if self._old is not None:
                self._old.order("drain", timeout_seconds=self._timeout_seconds)
            bound = self._timeout_seconds + KILL_GRACE_SECONDS
            self._new.order("run", timeout_seconds=bound + _WAIT_GRACE_SECONDS)
            # Set last: if the disk is full and an order fails, the next look gives it again.
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
        """Kill the new process if it hangs; from ``free_at`` on the old process must have released the stream."""
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
    """Whether ``new`` is a standby that can run at once."""
    return new.is_running and new.status().get("state") == STANDBY


def _time(status: Mapping[str, Any], name: str) -> float | None:
    found = status.get(name)
    return float(found) if isinstance(found, int | float) else None
