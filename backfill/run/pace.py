"""How fast an attempt publishes: its driver gives out how far each task may go, tasks go no further."""

import heapq
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import structlog

from backfill.run.backlog import BacklogThrottle
from backfill.run.dead_letters import slices_with_letters
from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointFolder, CheckpointReader, SliceCheckpoint
from jobs.files import find_json, write_json
from jobs.folder import Control, Order
from model.errors import CheckpointCorruptError
from model.message import MAX_PUBLISH_REQUEST_MESSAGES

_LOG: Final = structlog.get_logger()
_TICK_SECONDS: Final = 0.1
_BEAT_SECONDS: Final = 1.0
# A task ends when its driver has written nothing for this long; a driver that lives starts it again.
SILENT_SECONDS: Final = 10.0
# What may be given out and not be used yet, in seconds of the rate: a task that stood still catches that much up.
_BURST_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 0.2
# One until the driver looks, one until the task does, one to send.
_SIGHTS_AHEAD: Final = 3
_LEAST_BURST_MESSAGES: Final = 2
_COUNT_SECONDS: Final = 0.5
# After this long, a task that waits for its turn leaves its place in Spark to another one.
_TURN_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What the driver lets its tasks do; ``until`` is the end of what each piece may send, None is no limit.

    ``beat`` changes for as long as the driver lives.
    """

    beat: int
    go: bool
    until: Mapping[int, int] | None = None


def _name(epoch: int) -> str:
    return f"pace-{epoch}.json"


def write_pace(folder: BackfillFolder, epoch: int, pace: Pace) -> None:
    """Write how far the tasks of attempt ``epoch`` may go."""
    write_json(folder.files, _name(epoch), {"beat": pace.beat, "go": pace.go, "until": pace.until})


def read_pace(folder: BackfillFolder, epoch: int) -> Pace | None:
    """Return the pace of attempt ``epoch``, or None when its driver has said nothing yet."""
    found: dict[str, Any] | None = None
    with suppress(CheckpointCorruptError):
        found = find_json(folder.files, _name(epoch))
    if found is None:
        return None
    until = found["until"]
    return Pace(found["beat"], found["go"], None if until is None else {int(k): v for k, v in until.items()})


class Turn:
    """What a task asks before each request of a piece: how many rows from the next one may go out now."""

    def __init__(
        self, folder: BackfillFolder, epoch: int, number: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._epoch = epoch
        self._number = number
        self._clock = clock
        self._began = self._heard = self._saw = clock()
        self._beat = -1
        self._orders: tuple[Control, Pace | None] | None = None

    def room(self, offset: int) -> int | None:
        """Return how many rows from ``offset`` on may go out: 0 not yet, None nothing more by this task.

        None is an order to stop or to pause, a driver that has not been heard of for 10 seconds, and a turn that
        has been long enough while there is nothing to send.

        Raises:
            CheckpointCorruptError: the control could not be read for 10 seconds; nothing goes out meanwhile.
        """
        now = self._clock()
        if self._orders is None or now - self._saw >= self._folder.sight_seconds:
            try:
                self._orders = self._folder.read_control(), read_pace(self._folder, self._epoch)
            except CheckpointCorruptError:
                # A network file system may fail for once.
                if now - self._saw > SILENT_SECONDS:
                    raise
                return 0
            self._saw = now
        control, pace = self._orders
        if pace is not None and pace.beat != self._beat:
            self._beat, self._heard = pace.beat, now
        is_wanted = control.epoch == self._epoch and control.order is Order.RUN
        if not is_wanted or now - self._heard > SILENT_SECONDS or (pace is not None and not pace.go):
            return None
        if pace is None:
            return 0
        if pace.until is None:
            # A limit that the driver has not seen yet holds already.
            return 0 if is_limited(control) else MAX_PUBLISH_REQUEST_MESSAGES
        room = pace.until.get(self._number, 0) - offset
        if room <= 0 and now - self._began > _TURN_SECONDS:
            return None
        return max(0, room)


def burst_of(rate: float, sight_seconds: float) -> int:
    """Return how many messages still go out at most, after an order to pause, at a limit of ``rate`` a second."""
    # What is given out, and what the driver gives out before it sees the order.
    seconds = max(_BURST_SECONDS, _SIGHTS_AHEAD * sight_seconds) + sight_seconds
    return math.ceil(max(_LEAST_BURST_MESSAGES, rate * seconds)) if rate > 0 else 0


def is_limited(control: Control) -> bool:
    """Whether messages have to be counted before they go out."""
    return control.rate_limit_messages_per_second is not None or control.canary_messages is not None


class Pacer:
    """Keeps an attempt to its control: rate, pause, canary, error budget; in a thread of its own.

    It gives out rows, not messages a second: per piece an end up to which its task may send. What is given out
    and not confirmed yet is a second's worth at most, three in a bucket, so the rate holds over all tasks
    together, and a task whose driver has died stops there. ``is_halted`` is whether the attempt is to end.
    """

    def __init__(
        self,
        folder: BackfillFolder,
        epoch: int,
        *,
        max_failed: int = 0,
        throttle: BacklogThrottle | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._epoch = epoch
        self._max_failed = max_failed
        self._throttle = throttle
        self._clock = clock
        # Where a look costs a request, tasks look less often: they get as much more at a time.
        self._tick_seconds = max(_TICK_SECONDS, folder.sight_seconds)
        self._burst_seconds = max(_BURST_SECONDS, _SIGHTS_AHEAD * folder.sight_seconds)
        self._beat_seconds = max(_BEAT_SECONDS, folder.sight_seconds)
        self._checkpoints = CheckpointFolder(folder.progress)
        self._reader = CheckpointReader(folder.progress)
        self._rows: Mapping[int, int] = {}
        self._until: dict[int, int] = {}
        self._tokens = 0.0
        self._last: float | None = None
        self._written: tuple[bool, Mapping[int, int] | None] | None = None
        self._beat = 0
        self._beat_at = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._count_at = 0.0
        self._is_failing = False
        self.newly_failed = 0

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="pacer", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def is_halted(self) -> bool:
        """Whether the attempt is to end: more messages failed than may, or a task found out that nothing goes."""
        return self.newly_failed > self._max_failed or self._folder.read_fault(self._epoch) is not None

    def begin(self, rows: Mapping[int, int]) -> None:
        """Let tasks work on pieces; ``rows`` has how many each has, by its number."""
        with self._lock:
            self._rows = dict(rows)
            self._until.clear()
        self.tick()

    def tick(self) -> None:
        """Look once and write what may go out; ten times a second, in a bucket once."""
        with self._lock:
            control, now = self._folder.read_control(), self._clock()
            self._count_failed(now)
            may_run = control.epoch == self._epoch and control.order is Order.RUN and not self.is_halted
            go = may_run and self._folder.read_pause(self._epoch) is None
            rate = self._rate(control)
            if not go:
                self._rest()
                self._say(now, go=False, until=None)
            elif rate is None and control.canary_messages is None:
                self._rest()
                self._say(now, go=True, until=None)
            else:
                go = self._give(now, rate, control.canary_messages)
                self._say(now, go=go, until=self._until)

    def _run(self) -> None:
        while not self._ended.wait(self._tick_seconds):
            try:
                self.tick()
                self._is_failing = False
            except Exception:  # noqa: BLE001 - tasks stop when this does; a folder that fails once must not do that
                if not self._is_failing:
                    _LOG.exception("the control of the rate failed; trying again")
                self._is_failing = True

    def _rate(self, control: Control) -> float | None:
        limits = [
            control.rate_limit_messages_per_second,
            None if self._throttle is None else self._throttle.limit(),
        ]
        return min((limit for limit in limits if limit is not None), default=None)

    def _rest(self) -> None:
        """Forget what was given out: nothing is saved up while there is no limit or nothing goes."""
        self._until.clear()
        self._tokens, self._last = 0.0, None

    def _give(self, now: float, rate: float | None, canary: int | None) -> bool:
        """Give out what the time since the last tick is worth; False once the canary is out."""
        # The list first: a piece that is not in it any more has written its last checkpoint.
        running = set(self._folder.running_slices(self._epoch)) & self._rows.keys()
        reached = self._read_reached(running, canary)
        self._until = {
            number: max(self._until.get(number, 0), reached[number].offset)
            for number in running
            if number in reached
        }
        held = {number: end - reached[number].offset for number, end in self._until.items()}
        tokens: float | None = None
        if rate is not None:
            tokens = self._earn(now, rate, held, may_take_back=canary is None)
        if canary is not None:
            published = sum(checkpoint.published for checkpoint in reached.values())
            if published >= canary and not self._is_done(reached):
                self._folder.write_pause(
                    self._epoch, f"The canary is complete: {published} messages are published."
                )
                self._rest()
                return False
            left = max(0, canary - published - sum(held.values()))
            tokens = left if tokens is None else min(tokens, left)
        room = {number: self._rows[number] - end for number, end in self._until.items()}
        given = deal(int(tokens or 0), held, room)
        for number, count in given.items():
            self._until[number] += count
        self._tokens -= sum(given.values()) if rate is not None else 0
        return True

    def _read_reached(self, running: set[int], canary: int | None) -> dict[int, SliceCheckpoint]:
        """Return checkpoints by piece: all that count for a canary, else those of running pieces alone."""
        if canary is not None:
            # A piece that has only just begun stands in an earlier attempt's checkpoint, which says the same.
            return {checkpoint.slice: checkpoint for checkpoint in self._reader.read()}
        pairs = ((number, self._checkpoints.read_attempt(number, self._epoch)) for number in running)
        return {number: checkpoint for number, checkpoint in pairs if checkpoint is not None}

    def _earn(self, now: float, rate: float, held: dict[int, int], *, may_take_back: bool) -> float:
        """Return what may be given out now; all that is out and unused is a second's worth at most."""
        # While nobody works little is saved up: a pass that begins is no burst.
        burst = rate * (self._burst_seconds if held else max(_IDLE_SECONDS, self._folder.sight_seconds))
        burst = max(_LEAST_BURST_MESSAGES, burst) if rate > 0 else 0
        if may_take_back and sum(held.values()) > burst:
            # The rate was lowered: what was given out at the old one would be a burst at the new one.
            share = int(burst / len(held))
            for number, rows in list(held.items()):
                held[number] = min(rows, share)
                self._until[number] -= rows - held[number]
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        free = max(0.0, burst - sum(held.values()))
        self._tokens = min(self._tokens + rate * passed, free)
        return self._tokens

    def _is_done(self, reached: Mapping[int, SliceCheckpoint]) -> bool:
        return all(number in reached and reached[number].offset >= rows for number, rows in self._rows.items())

    def _count_failed(self, now: float) -> None:
        if now < self._count_at or not slices_with_letters(self._folder, self._epoch):
            return
        self._count_at = now + _COUNT_SECONDS
        self.newly_failed = sum(c.newly_failed for c in self._reader.read() if c.epoch == self._epoch)

    def _say(self, now: float, *, go: bool, until: Mapping[int, int] | None) -> None:
        said = (go, None if until is None else dict(until))
        if said == self._written and now - self._beat_at < self._beat_seconds:
            return
        self._beat += 1
        self._beat_at = now
        write_pace(self._folder, self._epoch, Pace(self._beat, *said))
        self._written = said


def deal(tokens: int, held: Mapping[int, int], room: Mapping[int, int]) -> dict[int, int]:
    """Share ``tokens`` among pieces: who holds least gets first, nobody more than its ``room``.

    Example:
        >>> deal(10, {1: 0, 2: 4}, {1: 100, 2: 100})
        {1: 7, 2: 3}
        >>> deal(10, {1: 0, 2: 0}, {1: 2, 2: 100})
        {1: 2, 2: 8}
    """
    given: dict[int, int] = {}
    waiting = [(held[number], number) for number in sorted(held) if room[number] > 0]
    heapq.heapify(waiting)
    # Small enough to be fair, large enough to be quick.
    portion = max(1, tokens // (16 * len(waiting))) if waiting else 0
    while tokens > 0 and waiting:
        holds, number = heapq.heappop(waiting)
        count = min(portion, tokens, room[number] - given.get(number, 0))
        given[number] = given.get(number, 0) + count
        tokens -= count
        if given[number] < room[number]:
            heapq.heappush(waiting, (holds + count, number))
    return given
