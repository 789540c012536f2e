"""The operator of the simulated stream: starts it on one of two machines, ends it, moves it and hands it over."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from model.stream_options import PipelineStreamOptions, stream_lease
from rollout.handover import HandOver, HandOverState, is_ready
from rollout.process import StreamProcess
from rollout.snapshot_work import SnapshotWork
from streams.control import Order
from streams.folder import StreamFolder
from tests.simulation.agent import STREAM, Records
from tests.simulation.disk import Disk, shutil_of
from tests.simulation.kernel import Process, World
from tests.simulation.pubsub import PROJECT

OPTIONS: Final = PipelineStreamOptions(group="g")
LEASE: Final = stream_lease(OPTIONS, PROJECT)
HAND_OVER_SECONDS: Final = 20.0
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
    # What makes its snapshots and puts the stream back.
    agent: Process | None = None
    # The files as they were once.
    copy: dict[str, bytes | None] | None = None

    @property
    def is_used(self) -> bool:
        """Whether a process of the stream runs here."""
        return _is_running(self.running) or _is_running(self.standby)

    def find_again(self) -> None:
        """Take the processes over from an agent that has ended, with the orders that it has given."""
        self.running, self.standby = (
            None if found is None else StreamProcess(found.folder, found._runs)
            for found in (self.running, self.standby)
        )
        if self.hand_over is not None and self.standby is not None:
            self.hand_over = HandOver(self.running, self.standby, timeout_seconds=HAND_OVER_SECONDS)


class Operator:
    """Starts an agent on the machine that is to run the stream, and is the person behind it as well.

    ``run`` is what a process of the stream does, ``open_work`` gives the agent's work on snapshots on a disk.
    """

    def __init__(
        self,
        world: World,
        disks: list[Disk],
        records: Records,
        *,
        run: Callable[[StreamFolder], None],
        open_work: Callable[[Disk], SnapshotWork],
    ) -> None:
        self._world = world
        self._records = records
        self._run = run
        self._open_work = open_work
        self._places = [Place(disk) for disk in disks]
        self._want(self._places[0])
        self._starts = 0

    def run(self) -> None:
        """Start the agents where they ended, for ever, and move the stream to the other machine now and then."""
        while True:
            self._world.step("look after the agents", self._world.random.choice((1.0, 5.0, 20.0)))
            if self._world.happens("move"):
                self._want(next(place for place in self._places if place is not self._wanted))
            for place in self._places:
                is_needed = place is self._wanted or place.is_used
                if is_needed and (place.agent is None or place.agent.is_dead):
                    self._starts += 1
                    machine = place.disk.machine
                    place.agent = Process(f"{machine.name}.agent.{self._starts}", machine)
                    self._world.start("main", place.agent, partial(self._run_agent, place))

    def _want(self, place: Place) -> None:
        self._wanted, self._records.holder = place, place.disk.machine.name

    def _run_agent(self, place: Place) -> None:
        """Look after the stream of one machine; an order that a full disk does not take is given later."""
        process = self._world.task.process
        place.find_again()
        work = self._open_work(place.disk)
        while place is self._wanted or place.is_used:
            self._world.step("look after the stream", self._world.random.choice((0.5, 1.0, 5.0)))
            with suppress(OSError):
                self._look(place, work)
        self._world.kill(process)

    def _look(self, place: Place, work: SnapshotWork) -> None:
        world, is_wanted = self._world, place is self._wanted
        held = (self._records.get_stream(STREAM), place.running, place.disk.root / STREAM)
        work.look([held] if is_wanted else [])
        if is_wanted:
            self._ask_for_snapshots()
        if self._records.list_running_restores() or (not is_wanted and world.random.random() < 0.2):
            # One that is not wanted any more is asked to end, and not always heard.
            for found in (place.running, place.standby):
                if _is_running(found):
                    found.order("drain", timeout_seconds=60.0)
            place.standby = place.hand_over = None
        elif is_wanted:
            if place.standby is None and not _is_running(place.running):
                self._change_home(place)
                place.running = self._start(place, "run")
            self._order(place)
            self._hand_over(place)

    def _ask_for_snapshots(self) -> None:
        """Have a snapshot made now and then, or the stream put back to one."""
        world, records = self._world, self._records
        if world.happens("snapshot"):
            records.create_snapshot(with_source=world.random.random() < 0.8)
        whole = records.list_whole()
        if whole and not records.list_running_restores() and world.happens("roll back"):
            snapshot = world.random.choice(whole)
            world.say(f"   roll back to {snapshot.id}")
            # As the API has it: without its source nothing would come again.
            discard = snapshot.with_source and world.random.random() < 0.5
            records.create_restore(snapshot, discard_staged=discard)

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
                place.hand_over = HandOver(place.running, place.standby, timeout_seconds=HAND_OVER_SECONDS)
            elif is_late or not place.standby.is_running:
                place.standby.kill()
                place.standby = None
            return
        if place.hand_over.look() is not HandOverState.UNDER_WAY:
            # Else whoever ended is started again, as after any death.
            if place.standby.is_running:
                place.running = place.standby
            place.standby = place.hand_over = None

    def _change_home(self, place: Place) -> None:
        """Copy the home of a stream that does not run, put an old copy in its place, or lose it."""
        home = place.disk.root / STREAM
        if self._world.happens("home copied"):
            place.copy = place.disk.read(home)
        elif place.copy is not None and self._world.happens("home put back"):
            place.disk.put(home, place.copy)
        elif self._world.happens("home lost"):
            place.disk.put(home, {})

    def _start(self, place: Place, order: Order) -> StreamProcess:
        self._starts += 1
        machine, home = place.disk.machine, place.disk.root / STREAM
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
