"""The order in which a process closes what it has opened."""

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from enum import Enum, auto


class ClosingStep(Enum):
    """A step of a shutdown; the first member is closed first."""

    # They read the store; the next service sends what later steps do to jobs.
    WEBHOOKS = auto()
    # What was counted is written while the store is open.
    AUDIT = auto()
    # It applies schedules.
    UPLOADS = auto()
    # It reads streams and writes the store.
    FIGURES = auto()
    # It creates jobs by the services below.
    SCHEDULES = auto()
    # Nothing is launched or followed after these three.
    COMPACTIONS = auto()
    MERGES = auto()
    BACKFILLS = auto()
    # After all following, and before launches are waited for: closing it ends a start that a launch may wait for.
    LAUNCHER = auto()
    LAUNCHES = auto()
    QUERIES = auto()
    # Everything above reads or writes these.
    STORE = auto()
    PUBSUB = auto()


class Closers:
    """Closers of one process; :meth:`close` runs them in the order of :class:`ClosingStep`, however they came.

    A closer that raises keeps no other one from running; :meth:`close` raises its error after the last one.

    Example:
        >>> closers = Closers()
        >>> closers.add(ClosingStep.PUBSUB, lambda: print("the channel"))
        >>> closers.add(ClosingStep.BACKFILLS, lambda: print("the supervisor"))
        >>> closers.close()
        the supervisor
        the channel
        >>> closers.close()
    """

    def __init__(self) -> None:
        self._by_step: defaultdict[ClosingStep, list[Callable[[], object]]] = defaultdict(list)

    def add(self, step: ClosingStep, close: Callable[[], object]) -> None:
        """Have ``close`` called in ``step``; within a step the first one that was added runs first."""
        self._by_step[step].append(close)

    def close(self) -> None:
        """Run every closer once; a second call runs only those that were added since."""
        by_step = self._by_step
        self._by_step = defaultdict(list)
        with ExitStack() as stack:
            # An exit stack runs its last callback first, and the rest also after an error.
            for step in reversed(ClosingStep):
                for close in reversed(by_step[step]):
                    stack.callback(close)
