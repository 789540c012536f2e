"""A thread that repeats one task: it looks at jobs, schedules, rollouts or uploads."""

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from model.errors import RefeedError
from model.failure import fixed_sentence

# A turn that takes longer is reported as hanging; the slowest one, listing a large bucket, takes a minute.
_HANG_SECONDS: Final = 300.0
_LOG: Final = structlog.get_logger()


class BackgroundLoop:
    """Calls ``turn`` at once, then every ``every_seconds`` or when woken, in its own thread.

    Errors don't end the loop. A failure is logged when it begins and when it is over.
    """

    def __init__(
        self, name: str, turn: Callable[[], object], *, every_seconds: float | Callable[[], float]
    ) -> None:
        self.name = name
        self._turn = turn
        self._every_seconds = every_seconds
        self._is_stopping = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._failure: tuple[type[Exception], str] | None = None
        self._begun_at: float | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether a long turn should end early."""
        return self._is_stopping

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def problem(self) -> str | None:
        """Why the last turn failed, or that it hangs; None without a problem. It never quotes a message."""
        begun_at = self._begun_at
        if begun_at is not None and (seconds := time.monotonic() - begun_at) > _HANG_SECONDS:
            return f"The task's last run has not ended after {seconds:.0f} s."
        return None if self._failure is None else self._failure[1]

    def start(self) -> None:
        """Run in the background until :meth:`stop`."""
        self._thread.start()

    def stop(self, timeout_seconds: float | None = None) -> None:
        """Stop, and wait at most ``timeout_seconds`` for the turn under way."""
        self._is_stopping = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def wake(self) -> None:
        """Take the next turn now."""
        self._woken.set()

    def wait(self, seconds: float) -> None:
        """Wait within a turn, until :meth:`stop` or :meth:`wake`."""
        self._woken.wait(seconds)

    def _run(self) -> None:
        while True:
            self._woken.clear()
            # Checked after the clear: an earlier stop is seen here, and a later one ends the wait below.
            if self._is_stopping:
                return
            self._take_turn()
            every = self._every_seconds
            self.wait(every() if callable(every) else every)

    def _take_turn(self) -> None:
        self._begun_at = time.monotonic()
        try:
            self._turn()
        except RefeedError as exc:
            if self._note(exc, f"{exc.code}: {fixed_sentence(exc.code)}"):
                _LOG.warning("background loop fails; trying again", loop=self.name, problem=exc.message)
        except Exception as exc:  # noqa: BLE001 - the next turn must be taken all the same
            if self._note(exc, f"It failed ({type(exc).__name__}). The service's log has the reason."):
                _LOG.exception("background loop fails; trying again", loop=self.name)
        else:
            if self._failure is not None:
                _LOG.info("background loop works again", loop=self.name)
            self._failure = None
        finally:
            self._begun_at = None

    def _note(self, error: Exception, problem: str) -> bool:
        """Keep the failure, and return whether it differs from the last one."""
        before, self._failure = self._failure, (type(error), problem)
        return before != self._failure
