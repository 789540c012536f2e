"""Yields to live traffic: a backfill slows down, and stops, while a subscription's backlog is too old."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import structlog

from backfill.plan.request import YieldTo
from backfill.run.progress import CheckpointReader
from connectors.pubsub.backlog import Backlog, open_backlog
from jobs.files import Files
from model.errors import PubSubUnavailableError, RefeedError, SubscriptionNotFoundError

_LOG: Final = structlog.get_logger()
# An age that can't be read for this long counts as too old: what can't be seen is not to be made worse.
_BLIND_SECONDS: Final = 120.0
_EASY: Final = 0.5
_DECREASE: Final = 0.5
# Of the fastest rate that was held: the step up with each look, and what a rate begins with after a stop.
_INCREASE: Final = 0.1
_FIRST: Final = 0.05
_LEAST_RATE: Final = 1.0


class PublishedRate:
    """Messages a second that a job published since the last call, over all of its tasks."""

    def __init__(self, progress: Files | Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = CheckpointReader(progress)
        self._clock = clock
        self._last: tuple[float, int] | None = None

    def __call__(self) -> float:
        """Return the rate; 0 the first time."""
        now, published = self._clock(), sum(c.published for c in self._reader.read())
        before, self._last = self._last, (now, published)
        if before is None or now <= before[0]:
            return 0.0
        return (published - before[1]) / (now - before[0])


class BacklogThrottle:
    """The rate that a backlog's age allows: halved above half of the limit, 0 above it, then up step by step.

    Additive increase and multiplicative decrease, as in TCP: each look below half of the limit adds a tenth of the
    rate that was held before it became too much. Once that rate is held again there is no limit.
    """

    def __init__(self, max_oldest_seconds: float, measure_rate: Callable[[], float]) -> None:
        self._max = max_oldest_seconds
        self._measure_rate = measure_rate
        self._limit: float | None = None
        self._held = _LEAST_RATE

    def limit(self) -> float | None:
        """Return the messages a second that are allowed now, None for any number."""
        return self._limit

    def see(self, oldest_seconds: float) -> None:
        """Take a new look at the age into account."""
        before, rate = self._limit, self._measure_rate()
        if oldest_seconds > self._max * _EASY and before is None:
            self._held = max(_LEAST_RATE, rate)
        if oldest_seconds > self._max:
            self._limit = 0.0
        elif oldest_seconds > self._max * _EASY:
            # One that stands still stays so: it has not recovered yet.
            now = self._held if before is None else before
            self._limit = max(_LEAST_RATE, now * _DECREASE) if now else 0.0
        elif before is not None:
            step = max(_LEAST_RATE, self._held * _INCREASE)
            first = max(_LEAST_RATE, self._held * _FIRST)
            self._limit = first if before == 0 else before + step
            if self._limit >= self._held:
                self._limit = None
        if (before == 0) != (self._limit == 0) or (before is None) != (self._limit is None):
            _LOG.info("yields", oldest_unacked_seconds=oldest_seconds, limit_messages_per_second=self._limit)


class BacklogWatch:
    """Reads the age of a backlog again and again for a throttle, in a thread of its own.

    ``on_gone`` is called for a subscription that has not been there for ``blind_seconds``: its backlog
    will never be seen to be young enough.
    """

    def __init__(
        self,
        backlog: Backlog,
        throttle: BacklogThrottle,
        *,
        blind_seconds: float = _BLIND_SECONDS,
        on_gone: Callable[[RefeedError], None] | None = None,
    ) -> None:
        self._backlog = backlog
        self._throttle = throttle
        self._blind_seconds = blind_seconds
        self._on_gone = on_gone
        self._unseen_seconds = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="backlog", daemon=True)

    def start(self) -> None:
        """Look once, then go on in the background.

        Raises:
            SubscriptionNotFoundError, PubSubError: there is nothing to look at.
        """
        self._throttle.see(self._backlog.read_oldest_unacked_seconds())
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._backlog.every_seconds):
            self.look()

    def look(self) -> None:
        """Look once; a figure that can't be read is as the last one was, and too old after two minutes."""
        try:
            self._throttle.see(self._backlog.read_oldest_unacked_seconds())
            self._unseen_seconds = 0.0
        except RefeedError as exc:
            self._unseen_seconds += self._backlog.every_seconds
            if self._unseen_seconds > self._blind_seconds or not isinstance(exc, PubSubUnavailableError):
                self._throttle.see(float("inf"))
            is_gone = isinstance(exc, SubscriptionNotFoundError) and self._unseen_seconds > self._blind_seconds
            if is_gone and self._on_gone is not None:
                self._on_gone(exc)
            _LOG.warning("backlog unknown", error=exc.message, unseen_seconds=self._unseen_seconds)


@contextmanager
def open_throttle(
    yield_to: YieldTo | None,
    topic_path: str,
    emulator_host: str | None,
    progress: Files | Path,
    *,
    on_gone: Callable[[RefeedError], None] | None = None,
) -> Iterator[BacklogThrottle | None]:
    """Give the throttle of a backfill into ``topic_path`` whose checkpoints are in ``progress``; None is none.

    ``on_gone`` hears of a subscription that is deleted meanwhile and does not come back.

    Raises:
        SubscriptionNotFoundError, PubSubError, MonitoringMissingError: the backlog can't be read.
    """
    if yield_to is None:
        yield None
        return
    name = yield_to.subscription
    path = name if "/" in name else f"projects/{topic_path.split('/')[1]}/subscriptions/{name}"
    throttle = BacklogThrottle(yield_to.max_oldest_unacked_seconds, PublishedRate(progress))
    with closing(open_backlog(path, emulator_host)) as backlog:
        watch = BacklogWatch(backlog, throttle, blind_seconds=_BLIND_SECONDS, on_gone=on_gone)
        watch.start()
        try:
            yield throttle
        finally:
            watch.stop()
