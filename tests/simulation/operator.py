"""The operator of the simulated stream: starts it on one of two machines, ends it, moves it and hands it over."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from model.stream_options import PipelineStreamOptions, stream_lease
from rollout.handover import HandOver, HandOverState, is_ready
from rollout.process import StreamProcess
from streams.control import Order
from streams.folder import StreamFolder
from tests.simulation.disk import Disk, shutil_of
from tests.simulation.kernel import Process, World
from tests.simulation.pubsub import PROJECT

OPTIONS: Final = PipelineStreamOptions(group="g")
LEASE: Final = stream_lease(OPTIONS, PROJECT)
_KEPT_INSTANCES: Final = 3
_READY_SECONDS: Final = 60.0


@dataclass(eq=False)
class Child:
    """A start of the stream as its agent sees it: :class:`rollout.child.Child`."""

    world: World
    process: Process
    pid: int = 0

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return not self.process.is_dead

    def ask_to_stop(self) -> None:
        """Send SIGTERM: who does not handle it yet ends by it."""
        if self.process.on_signal is None:
            self.kill()
        elif self.is_running:
            self.process.on_signal()

    def kill(self, *, seconds: float = 0.0) -> None:
        """Send SIGKILL."""
        self.world.kill(self.process)


@dataclass(eq=False)
class Place:
    """A machine's disk, and what runs on the machine: the stream, and a standby that is to follow it."""

    disk: Disk
    running: StreamProcess | None = None
    standby: StreamProcess | None = None
    standby_at: float = 0.0
    hand_over: HandOver | None = None
    # The files as they were once.
    copy: dict[str, bytes | None] | None = None


class Operator:
    """Looks after the stream: an agent and the person behind it in one."""

    def __init__(self, world: World, disks: list[Disk], run: Callable[[StreamFolder], None]) -> None:
        self._world = world
        self._run = run
        self._places = [Place(disk) for disk in disks]
        self._wanted = self._places[0]
        self._starts = 0

    def run(self) -> None:
        """Look after the stream for ever; an order that a full disk does not take is given later."""
        while True:
            self._world.step("look after the stream", self._world.random.choice((0.5, 1.0, 5.0)))
            with suppress(OSError):
                self._look()

    def _look(self) -> None:
        world, place = self._world, self._wanted
        if world.happens("move"):
            self._wanted = place = next(other for other in self._places if other is not place)
        if place.standby is None and not _is_running(place.running):
            self._change_home(place)
            place.running = self._start(place, "run")
        self._order(place)
        self._hand_over(place)
        for other in self._places:
            # One that is not wanted any more is asked to end, and not always heard.
            if other is not place and world.random.random() < 0.2:
                for process in (other.running, other.standby):
                    if _is_running(process):
                        process.order("drain", timeout_seconds=60.0)

    def _order(self, place: Place) -> None:
        """Give the stream an order now and then."""
        world, process = self._world, place.running
        if not _is_running(process):
            return
        for order in ("drain", "cancel"):
            if world.happens(order):
                process.order(cast("Order", order), timeout_seconds=world.random.choice((None, 5.0, 60.0)))
        if world.happens("signal"):
            process.ask_to_stop()
        if world.happens("pause"):
            process.pause(world.random.choice((1.0, 30.0)))
        if process.control.order == "pause" and world.happens("resume"):
            process.resume()

    def _hand_over(self, place: Place) -> None:
        """Have a standby start and take the stream over, step by step, as an update does."""
        world = self._world
        if place.standby is None:
            if world.happens("hand over"):
                place.standby, place.standby_at = self._start(place, "stand_by"), world.now
            return
        if place.hand_over is None:
            is_late = world.now - place.standby_at > _READY_SECONDS
            if is_ready(place.standby):
                place.hand_over = HandOver(place.running, place.standby, timeout_seconds=20.0)
            elif is_late or not place.standby.is_running:
                place.standby.kill()
                place.standby = None
            return
        if world.happens("other agent"):
            place.hand_over = HandOver(place.running, place.standby, timeout_seconds=20.0)
        if place.hand_over.look() is not HandOverState.UNDER_WAY:
            # Else whoever ended is started again, as after any death.
            if place.standby.is_running:
                place.running = place.standby
            place.standby = place.hand_over = None

    def _change_home(self, place: Place) -> None:
        """Copy the home of a stream that does not run, put an old copy in its place, or lose it."""
        if self._world.happens("home copied"):
            place.copy = place.disk.read()
        elif place.copy is not None and self._world.happens("home put back"):
            place.disk.put(place.copy)
        elif self._world.happens("home lost"):
            place.disk.put({})

    def _start(self, place: Place, order: Order) -> StreamProcess:
        self._starts += 1
        machine, home = place.disk.machine, place.disk.root / "home"
        for old in sorted(home.glob("instances/*"))[:-_KEPT_INSTANCES]:
            shutil_of(self._world).rmtree(old)
        folder = StreamFolder(home, f"{self._starts:06d}")
        process = Process(f"{machine.name}.{self._starts}", machine)
        made = StreamProcess(folder, cast("Any", Child(self._world, process)))
        made.order(order)
        self._world.start("main", process, lambda: self._run(folder))
        return made


def _is_running(process: StreamProcess | None) -> bool:
    return process is not None and process.is_running
