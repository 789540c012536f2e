"""What stands for clocks, locks and threads in the simulation: the same names, no thread and no real time."""

import queue
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ALL_COMPLETED
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, Self

from tests.simulation.kernel import Task, World

_POLL_SECONDS: Final = 0.25


class Lock:
    """A lock of one process's memory."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owner: Task | None = None
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._world.is_running:
            return True
        ends_at = None if timeout < 0 else self._world.now + timeout
        self._world.step("lock")
        while self._owner is not None:
            left = None if ends_at is None else ends_at - self._world.now
            if not blocking or (left is not None and left <= 0):
                return False
            self._world.wait("wait for the lock", self._waiting, left)
        self._owner = self._world.task
        return True

    def release(self) -> None:
        self._owner = None
        self._world.wake(self._waiting)

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """A flag that tasks wait for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._world.wake(self._waiting)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        ends_at = None if timeout is None else self._world.now + timeout
        while not self._is_set and (ends_at is None or self._world.now < ends_at):
            self._world.wait("wait", self._waiting, None if ends_at is None else ends_at - self._world.now)
        return self._is_set


class Thread:
    """A task of the process that starts it."""

    def __init__(
        self,
        world: World,
        target: Callable[..., object],
        args: Iterable[Any] = (),
        name: str = "thread",
        daemon: bool = False,
    ) -> None:
        self._world = world
        self._run = lambda: target(*args)
        self._task: Task | None = None
        self.name = name
        self.daemon = daemon

    def start(self) -> None:
        self._task = self._world.start(self.name, self._world.task.process, self._run)
        self._task.thread = self

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_over

    def join(self, timeout: float | None = None) -> None:
        if self._task is not None and not self._task.is_over:
            self._world.wait(f"join {self.name}", self._task.waiters, timeout)


class Timer(Thread):
    """A task that does something after a time, unless it is cancelled before."""

    def __init__(self, world: World, seconds: float, act: Callable[[], object]) -> None:
        super().__init__(world, self._wait, name="timer")
        self._seconds = seconds
        self._act = act
        self._is_cancelled = Event(world)

    def cancel(self) -> None:
        self._is_cancelled.set()

    def _wait(self) -> None:
        if not self._is_cancelled.wait(self._seconds):
            self._act()


class SimpleQueue:
    """A queue between tasks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self._waiting: list[Task] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._world.wake(self._waiting)

    def get(self, timeout: float) -> Any:
        ends_at = self._world.now + timeout
        while not self._items:
            if self._world.now >= ends_at:
                raise queue.Empty
            self._world.wait("wait for an answer", self._waiting, ends_at - self._world.now)
        return self._items.popleft()


class Future:
    """What a task will have done."""

    def __init__(self, world: World) -> None:
        self.waiting: list[list[Task]] = []
        self._world = world
        self._is_done = False
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._is_done

    def set_result(self, value: Any) -> None:
        self._value, self._is_done = value, True
        self._wake()

    def set_exception(self, error: BaseException) -> None:
        self._error, self._is_done = error, True
        self._wake()

    def _wake(self) -> None:
        for waiting in self.waiting:
            self._world.wake(waiting)

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class Pool:
    """A pool: what is submitted is done one after the other, what is mapped all at once."""

    def __init__(self, world: World, _: int, thread_name_prefix: str = "pool") -> None:
        self._world = world
        self._name = thread_name_prefix
        self._last: Task | None = None

    def submit(self, act: Callable[..., Any], *arguments: Any) -> Future:
        before = self._last

        def run() -> Any:
            if before is not None and not before.is_over:
                self._world.wait("wait for the task before", before.waiters, None)
            return act(*arguments)

        future, self._last = self._start(run)
        return future

    def map(self, act: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        started = [self._start(partial(act, item)) for item in items]
        wait_for_futures(self._world, [future for future, _ in started])
        return [future.result() for future, _ in started]

    def _start(self, act: Callable[[], Any]) -> tuple[Future, Task]:
        future = Future(self._world)

        def run() -> None:
            try:
                future.set_result(act())
            except Exception as exc:  # noqa: BLE001 - as a pool does
                future.set_exception(exc)

        return future, self._world.start(self._name, self._world.task.process, run)

    def shutdown(self) -> None:
        if self._last is not None and not self._last.is_over:
            self._world.wait("shut down", self._last.waiters, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def wait_for_futures(
    world: World, futures: Iterable[Future], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> None:
    """Wait as :func:`concurrent.futures.wait` does; what it returns nobody uses."""
    given = tuple(futures)
    enough = all if return_when == ALL_COMPLETED else any
    ends_at = None if timeout is None else world.now + timeout
    waiting: list[Task] = []
    for future in given:
        # One list for all of them: whichever is done wakes this task.
        future.waiting.append(waiting)
    while not enough(future.done() for future in given) and (ends_at is None or world.now < ends_at):
        world.wait("wait for futures", waiting, None if ends_at is None else ends_at - world.now)


def threading_of(world: World) -> Any:
    return SimpleNamespace(
        Lock=lambda: Lock(world),
        Event=lambda: Event(world),
        Thread=lambda target, args=(), name="thread", daemon=False: Thread(world, target, args, name, daemon),
        Timer=lambda seconds, act: Timer(world, seconds, act),
        current_thread=lambda: world.task.thread,
    )


def queue_of(world: World) -> Any:
    return SimpleNamespace(SimpleQueue=lambda: SimpleQueue(world), Empty=queue.Empty)


def time_of(world: World) -> Any:
    return SimpleNamespace(
        **{
            **vars(time),
            "monotonic": lambda: world.now,
            "time": lambda: world.shown_seconds,
            "time_ns": lambda: int(world.shown_seconds * 1e9),
            # Who polls does it less often: its looks would be most of the steps.
            "sleep": lambda seconds: world.step("sleep", max(seconds, _POLL_SECONDS)),
        }
    )


def secrets_of(world: World) -> Any:
    return SimpleNamespace(
        token_hex=lambda size: world.random.randbytes(size).hex(), randbits=world.random.getrandbits
    )


def signal_of(world: World) -> Any:
    """Return what stands for the module ``signal``: the operator sends SIGTERM, and no other one."""

    def handle(number: int, handler: Callable[..., object]) -> None:
        world.task.process.on_signal = lambda: handler(number)

    return SimpleNamespace(SIGTERM=signal.SIGTERM, SIGINT=signal.SIGINT, signal=handle)


def now_of(world: World) -> datetime:
    """Return the time of day that the running process is shown."""
    return datetime.fromtimestamp(world.shown_seconds, UTC)
