"""One thread, one seed, virtual time: a scheduler steps every thread of every process, and makes mishaps.

A *task* is a thread of the product: a greenlet that runs until its next step. A step is a lock, a sleep, a
failpoint, or a call of the disk, of Pub/Sub or of a table. There :meth:`World.step` gives the turn to another task
and decides whether something goes wrong. The same seed gives the same run, step by step.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from greenlet import GreenletExit, getcurrent, greenlet

# Unix seconds at which each run begins.
EPOCH: Final = 1_750_000_000.0
_TRACED: Final = 20_000
# Between two steps of one task: what is slower than that is slow on purpose.
_STEP_SECONDS: Final = 0.002


class FaultFoundError(AssertionError):
    """A promise was broken; the world's trace says how it came to that."""


@dataclass(frozen=True, order=True)
class Mishap:
    """Something that went wrong, at the step with this number."""

    step: int
    kind: str


@dataclass(eq=False)
class Machine:
    """A machine: its clock may be wrong, and a power cut ends all its processes."""

    name: str
    skew_seconds: float = 0.0
    cut: Callable[[], None] = lambda: None
    processes: "list[Process]" = field(default_factory=list)


@dataclass(eq=False)
class Process:
    """A process: its tasks end together, without a word, when it is killed."""

    name: str
    machine: Machine
    # One that is not the product's has no mishaps.
    is_product: bool = True
    is_dead: bool = False
    hung_until: float = 0.0
    # Open files: the operating system closes them when it has ended, however it did.
    files: set[Any] = field(default_factory=set)
    # What it does at SIGTERM.
    on_signal: Callable[[], object] | None = None


@dataclass(eq=False)
class Task:
    """One thread of a process."""

    name: str
    process: Process
    run: Callable[[], object]
    greenlet: Any = None
    # The turn that it waits for; an older one in the queue counts no more.
    turn: int = 0
    is_over: bool = False
    waiters: "list[Task]" = field(default_factory=list)
    # What the product knows it by.
    thread: Any = None


class World:
    """Everything that happens in one run.

    ``mishaps`` are how likely each kind is, a step. With ``only``, those and no others happen, which is how a
    failing run is made shorter.
    """

    def __init__(self, seed: int, mishaps: dict[str, float], only: Collection[Mishap] | None = None) -> None:
        self.now = 1000.0
        self.steps = 0
        self.happened: list[Mishap] = []
        self.trace: deque[str] = deque(maxlen=_TRACED)
        self.is_calm = False
        self.random = random.Random(f"{seed} choices")
        self._dice = random.Random(f"{seed} mishaps")
        self._mishaps = mishaps
        self._only = None if only is None else frozenset(only)
        self._hub = getcurrent()
        self._queue: list[tuple[float, float, int, Task, int]] = []
        self._numbers = itertools.count()
        self._task: Task | None = None
        # One that was killed is never run again, not even its ``finally``: it is kept here from being collected.
        self._tasks: set[Task] = set()
        self._is_over = False
        # By kind and thing: until when a mishap lasts.
        self._until: dict[tuple[str, object], float] = {}
        self._failure: BaseException | None = None

    @property
    def unix_seconds(self) -> float:
        """The true time of day."""
        return EPOCH + self.now

    @property
    def shown_seconds(self) -> float:
        """The time of day that the running process is shown."""
        return self.unix_seconds + (self._task.process.machine.skew_seconds if self._task is not None else 0.0)

    @property
    def task(self) -> Task:
        assert self._task is not None
        return self._task

    @property
    def is_running(self) -> bool:
        """Whether a task runs: else the world is being set up."""
        return self._task is not None

    def start(self, name: str, process: Process, run: Callable[[], object], *, after_seconds: float = 0.0) -> Task:
        """Start a task; an error that it does not catch ends the run."""
        task = Task(name, process, run)
        task.greenlet = greenlet(lambda: self._run(task), parent=self._hub)
        self._tasks.add(task)
        if process not in process.machine.processes:
            process.machine.processes.append(process)
        self._schedule(task, self.now + after_seconds)
        return task

    def step(self, what: str, seconds: float = 0.0) -> None:
        """Let the others run, and go on after ``seconds`` at the earliest; a mishap may come in between."""
        task = self._pass(what)
        pause = seconds + self.random.random() * _STEP_SECONDS
        if task.process.is_product and self.happens("slow"):
            pause += self.random.choice((0.5, 5.0, 40.0))
        self._schedule(task, self.now + pause)
        self._hub.switch()

    def wait(self, what: str, waiting: list[Task], seconds: float | None) -> None:
        """Wait until :meth:`wake` is called for the list ``waiting``, or for ``seconds``."""
        task = self._pass(what)
        waiting.append(task)
        task.turn += 1
        if seconds is not None:
            self._schedule(task, self.now + seconds)
        self._hub.switch()
        if task in waiting:
            waiting.remove(task)

    def wake(self, waiting: list[Task]) -> None:
        """Let the tasks go on that wait in this list."""
        for task in waiting:
            self._schedule(task, self.now + self.random.random() * _STEP_SECONDS)
        waiting.clear()

    def happens(self, kind: str, likely: float | None = None) -> bool:
        """Whether a mishap of this kind happens here; ``likely`` stands for the likelihood of the kind."""
        wanted = self._mishaps.get(kind, 0.0) * (1.0 if likely is None else likely)
        is_due = self._dice.random() < wanted
        mishap = Mishap(self.steps, kind)
        if self.is_calm or not (is_due if self._only is None else mishap in self._only):
            return False
        self.happened.append(mishap)
        self.say(f"!! {kind}")
        return True

    def end(self) -> None:
        """End the run: what is left of its tasks has no effect any more."""
        self._is_over = True
        self._tasks.clear()
        self._queue.clear()

    def lasts(self, kind: str, thing: object, *seconds: float) -> bool:
        """Whether ``thing`` has a mishap of this kind now; one that begins here lasts one of ``seconds``."""
        key = kind, thing
        if self.happens(kind):
            self._until[key] = self.now + self.random.choice(seconds)
        return self.now <= self._until.get(key, 0.0) and not self.is_calm

    def kill(self, process: Process) -> None:
        """End a process as SIGKILL does: nothing of it runs any more."""
        if process.is_dead:
            return
        process.is_dead = True
        process.machine.processes.remove(process)
        for file in process.files:
            file.close()
        process.files.clear()

    def exit(self) -> None:
        """End the running process, as ``os._exit`` does."""
        self.kill(self.task.process)
        self._hub.switch()

    def cut_power(self, machine: Machine) -> None:
        """End all processes of a machine, and lose what its disk had not synced."""
        for process in list(machine.processes):
            self.kill(process)
        machine.cut()

    def say(self, what: str) -> None:
        who = "world" if self._task is None else f"{self._task.process.name}/{self._task.name}"
        self.trace.append(f"{self.steps:7d} {self.now - 1000:10.3f} s  {who:<24} {what}")

    def fail(self, promise: str) -> None:
        """Break the run off: a promise does not hold."""
        self.say(f"## {promise}")
        self._failure = FaultFoundError(promise)
        if self._task is None:
            raise self._failure
        # Nobody may catch it.
        self._hub.switch()

    def go(self, until: Callable[[], bool], *, max_seconds: float) -> bool:
        """Run the tasks until ``until`` holds; False after virtual ``max_seconds`` or when no task is left."""
        ends_at = self.now + max_seconds
        while not until():
            if self._failure is not None:
                raise self._failure
            if not self._queue:
                return False
            due, _, _, task, turn = heapq.heappop(self._queue)
            if turn != task.turn or task.is_over or task.process.is_dead:
                continue
            if due > ends_at:
                heapq.heappush(self._queue, (due, 0.0, next(self._numbers), task, turn))
                return False
            if task.process.hung_until > max(due, self.now):
                heapq.heappush(self._queue, (task.process.hung_until, 0.0, next(self._numbers), task, turn))
                continue
            self.now = max(self.now, due)
            self._task = task
            task.greenlet.switch()
            self._task = None
            if task.is_over:
                self._tasks.discard(task)
        if self._failure is not None:
            raise self._failure
        return True

    def _pass(self, what: str) -> Task:
        """Count a step of the running task, and have the mishaps that end or stop its process."""
        if self._is_over:
            raise GreenletExit
        task = self.task
        self.steps += 1
        self.say(what)
        process = task.process
        if not process.is_product:
            return task
        if self.happens("kill"):
            self.kill(process)
        elif self.happens("power cut"):
            self.cut_power(process.machine)
        elif self.happens("hang"):
            process.hung_until = self.now + self.random.choice((1.0, 20.0, 90.0))
        elif self.happens("clock"):
            process.machine.skew_seconds = self.random.choice((-55.0, -5.0, 0.0, 0.0, 5.0, 55.0))
        if process.is_dead:
            self._hub.switch()
        return task

    def _schedule(self, task: Task, due: float) -> None:
        task.turn += 1
        heapq.heappush(self._queue, (due, self.random.random(), next(self._numbers), task, task.turn))

    def _run(self, task: Task) -> None:
        try:
            task.run()
        except Exception as exc:  # noqa: BLE001 - World.go raises it
            self._failure = exc
        task.is_over = True
        self.wake(task.waiters)
