"""The orders to one instance of a stream, by signals and by its control file."""

import signal
import threading
import time
from typing import Final, Protocol

from model.errors import RefeedError
from streams.control import LONGEST_PAUSE_SECONDS, ControlFile, StreamControl
from streams.status import StatusFile

WATCH_SECONDS: Final = 0.25


class Sink(Protocol):
    """The receiver of batches; keeps the error of a failed batch, and counts uncommitted messages at the end."""

    status: StatusFile
    failure: RefeedError | None

    def pause(self) -> bool:
        """Keep commits from beginning; return False during a commit."""
        ...

    def resume(self) -> None:
        """Allow commits again."""

    def finish(self) -> None:
        """Wait until the last batch is settled, or abandoned.

        Raises:
            RefeedError: the last batch is not committed.
        """

    def abandon(self) -> None:
        """Begin no further commit, and return later batches to Pub/Sub."""

    def wait_for_commit(self, *, seconds: float) -> bool:
        """Wait for the commit under way; return whether none is left."""
        ...

    def count_left(self) -> int:
        """Return the number of uncommitted messages."""


class Orders:
    """The newest order to a stream; callers poll it a few times a second.

    Before :meth:`follow_signals` a signal ends the process; after it a signal drains the stream.
    """

    def __init__(self, control: ControlFile | None) -> None:
        self.newest = StreamControl()
        self._control = control
        self._came_at = time.monotonic()
        self._stopping = threading.Event()
        self._is_paused = False
        self._told = 0
        self._look()

    def follow_signals(self) -> None:
        """Let SIGTERM and SIGINT drain the stream, without a timeout."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())

    @property
    def is_standing_by(self) -> bool:
        """Whether the instance is a standby, which must not own the stream yet."""
        self._look()
        return self.newest.order == "stand_by"

    @property
    def is_ending(self) -> bool:
        """Whether the stream must drain or end at once."""
        self._look()
        return self._stopping.is_set()

    @property
    def is_cancelled(self) -> bool:
        """Whether the stream must end at once, without its uncommitted messages."""
        return self.newest.order == "cancel"

    @property
    def is_out_of_time(self) -> bool:
        """Whether the stream must stop waiting: it is cancelled, or its drain has timed out."""
        self._look()
        bound = self.newest.timeout_seconds if self.newest.order == "drain" else None
        return self.is_cancelled or (bound is not None and time.monotonic() - self._came_at >= bound)

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until the stream must end."""
        ends_at = time.monotonic() + seconds
        while (left := ends_at - time.monotonic()) > 0 and not self.is_ending:
            self._stopping.wait(min(left, WATCH_SECONDS))

    def follow_pause(self, sink: Sink) -> bool:
        """Pause or resume ``sink`` by the newest order; return whether it is paused now."""
        bound = self.newest.timeout_seconds
        longest = LONGEST_PAUSE_SECONDS if bound is None else bound
        is_wanted = self.newest.order == "pause" and time.monotonic() - self._came_at < longest
        if is_wanted and not self._is_paused and sink.pause():
            self._is_paused = True
            sink.status.write(state="paused", control_number=self.newest.number)
        elif self._is_paused and not is_wanted:
            self.end_pause(sink)
            sink.status.write(state="running")
        if self.newest.order == "run" and self.newest.number != self._told:
            self._told = self.newest.number
            sink.status.write(control_number=self._told)
        return self._is_paused

    def end_pause(self, sink: Sink) -> None:
        """Resume paused commits."""
        if self._is_paused:
            self._is_paused = False
            sink.resume()

    def _look(self) -> None:
        if self._control is None:
            return
        found = self._control.read()
        # An ending stream never runs again; only its drain may become shorter, or a cancel.
        if found.number == self.newest.number or (self._stopping.is_set() and found.order not in _ENDS):
            return
        # A running stream never becomes a standby again.
        if self.is_cancelled or (found.order == "stand_by" and self.newest.number):
            return
        self.newest, self._came_at = found, time.monotonic()
        if found.order in _ENDS:
            self._stopping.set()


_ENDS: Final = ("drain", "cancel")
