"""The operator of the simulated stream: starts it on one of two machines, ends it, moves it and updates it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, cast

from model.errors import ProcessEndedError
from model.stream_options import PipelineStreamOptions, stream_lease
from model.stream_record import StreamState
from model.stream_update import UpdateRequest, UpdateStrategy, WhenInconclusive
from model.watch_bounds import WatchBounds
from rollout.process import HeldStream, StreamProcess
from rollout.snapshot_work import SnapshotWork
from rollout.starter import StreamStarter
from rollout.update_work import UpdateWork
from streams.control import Order
from streams.folder import StreamFolder
from tests.simulation.agent import STREAM, Records
from tests.simulation.disk import Disk, shutil_of
from tests.simulation.kernel import Process, World
from tests.simulation.pubsub import PROJECT
from tests.simulation.updates import Starter

OPTIONS: Final = PipelineStreamOptions(group="g")
LEASE: Final = stream_lease(OPTIONS, PROJECT)
_KEPT_INSTANCES: Final = 6


@dataclass(eq=False)
class Child:
    """A start of the stream as its agent sees it: :class:`rollout.child.Child`."""

    world: World
    process: Process
    pid: int = 0

    @property
    def is_running(self) -> bool:
        return not self.process.is_dead

    def ask_to_stop(self) -> None:
        """Send SIGTERM: who does not handle it yet ends by it."""
        if self.process.on_signal is None:
            self.kill()
        elif self.is_running:
            self.process.on_signal()

    def kill(self, *, seconds: float = 0.0) -> None:
        if self.is_running:
            self.world.kill(self.process)

    def stop(self, *, seconds: float) -> None:
        """Send SIGTERM, and SIGKILL when it takes long."""
        self.ask_to_stop()
        ends_at = self.world.now + seconds
        while self.is_running and self.world.now < ends_at:
            self.world.step("wait for its end", 0.5)
        self.kill()

    def ended_error(self) -> ProcessEndedError:
        return ProcessEndedError("It has ended.", exit_code=1)


@dataclass(eq=False)
class Place:
    """A machine's disk, and what runs on the machine."""

    disk: Disk
    held: HeldStream = field(default_factory=HeldStream)
    # Every start of the stream on this machine, by its instance id.
    children: dict[str, Child] = field(default_factory=dict)
    # What updates it, makes its snapshots and puts it back.
    agent: Process | None = None
    # The files as they were once.
    copy: dict[str, bytes | None] | None = None

    @property
    def is_used(self) -> bool:
        return any(child.is_running for child in self.children.values())

    def find(self, instance_id: str | None) -> Child | None:
        found = self.children.get(instance_id or "")
        return found if found is not None and found.is_running else None


class Operator:
    """Starts an agent on the machine that is to run the stream, and is the person behind it as well.

    ``run`` is what a process of the stream does, ``open_work`` gives the agent's work on snapshots on a disk, and
    ``open_updates`` its work on updates.
    """

    def __init__(
        self,
        world: World,
        disks: list[Disk],
        records: Records,
        *,
        run: Callable[[StreamFolder], None],
        open_work: Callable[[Disk], SnapshotWork],
        open_updates: Callable[[], UpdateWork],
    ) -> None:
        self._world = world
        self._records = records
        self._run = run
        self._open_work = open_work
        self._open_updates = open_updates
        self._places = [Place(disk) for disk in disks]
        self._want(self._places[0])
        self._starts = 0

    def find_instance(self, _: str, instance_id: str) -> Child | None:
        """Return a process of the machine that asks: :func:`rollout.process.find_instance`."""
        machine = self._world.task.process.machine
        return next(place.find(instance_id) for place in self._places if place.disk.machine is machine)

    def list_instances(self, home: Any) -> list[StreamFolder]:
        """Return the starts of a machine: :func:`streams.folder.list_instances`."""
        place = next(place for place in self._places if place.disk.root == home)
        return [StreamFolder(home / STREAM, instance_id) for instance_id in place.children]

    def new_instance_id(self) -> str:
        """Return an id for one start: :func:`model.stream_record.new_instance_id`."""
        self._starts += 1
        return f"in_{self._starts:06d}"

    def running(self) -> list[str]:
        return [name for place in self._places for name, child in place.children.items() if child.is_running]

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
        place.held = HeldStream()
        work, updates = self._open_work(place.disk), self._open_updates()
        starter = cast("StreamStarter", Starter(place.disk, partial(self._start, place)))
        while place is self._wanted or place.is_used:
            self._world.step("look after the stream", self._world.random.choice((0.5, 1.0, 5.0)))
            with suppress(OSError):
                self._look(place, work, updates, starter)
        self._world.kill(process)

    def _look(self, place: Place, work: SnapshotWork, updates: UpdateWork, starter: StreamStarter) -> None:
        records, held, is_wanted = self._records, place.held, place is self._wanted
        record, state = records.get_stream(STREAM), place.disk.root / STREAM
        if held.process is None and (found := place.find(record.instance_id)) is not None:
            held.process = StreamProcess(StreamFolder(state, record.instance_id), _as_child(found))
        updates.look([(record, held)] if is_wanted else [], starter)
        work.look([(record, held.process, state)] if is_wanted else [])
        if not is_wanted:
            self._end_all(place)
            return
        self._ask_for_snapshots()
        self._ask_for_update()
        if not updates.is_handing(STREAM):
            self._keep(place, updates)

    def _keep(self, place: Place, updates: UpdateWork) -> None:
        """Start the stream where it ended, and give the one that runs an order now and then."""
        held, records = place.held, self._records
        is_stopped = bool(records.list_running_restores()) or updates.is_stopping(STREAM)
        if held.running is not None and is_stopped:
            held.running.order("drain", timeout_seconds=60.0)
        elif held.running is not None:
            if held.running.status().get("state") == "running":
                records.note_state(StreamState.RUNNING)
            self._order(held.running)
        elif is_stopped:
            held.process = None
        elif held.process is not None and not updates.is_moving(STREAM):
            # Its next start is a look away.
            held.process = None
            records.note_state(StreamState.FAILED)
        elif not updates.is_moving(STREAM):
            if not place.is_used:
                self._change_home(place)
            instance_id = self.new_instance_id()
            self._records.note_start(instance_id)
            held.process = self._start(place, instance_id, "run")

    def _end_all(self, place: Place) -> None:
        """Ask what is not wanted on a machine any more to end; it is not always heard."""
        place.held.process = None
        if self._world.random.random() < 0.2:
            for instance_id, child in list(place.children.items()):
                if child.is_running:
                    folder = StreamFolder(place.disk.root / STREAM, instance_id)
                    StreamProcess(folder, _as_child(child)).order("drain", timeout_seconds=60.0)

    def _ask_for_snapshots(self) -> None:
        """Have a snapshot made now and then, or the stream put back to one."""
        world, records = self._world, self._records
        if world.happens("snapshot"):
            records.create_snapshot(with_source=world.random.random() < 0.8)
        whole = records.list_whole()
        is_busy = records.list_running_restores() or records.list_updates(living=True)
        if whole and not is_busy and world.happens("roll back"):
            snapshot = world.random.choice(whole)
            world.say(f"   roll back to {snapshot.id}")
            # As the API has it: without its source nothing would come again.
            discard = snapshot.with_source and world.random.random() < 0.5
            records.create_restore(snapshot, discard_staged=discard)

    def _ask_for_update(self) -> None:
        """Have the stream updated now and then, and an update taken back."""
        world, records, dice = self._world, self._records, self._world.random
        living = records.list_updates(living=True)
        if not living and not records.list_running_restores() and world.happens("update"):
            release = str(int(records.stream.release or "0") + 1)
            when = dice.choice((WhenInconclusive.KEEP, WhenInconclusive.FAIL))
            bounds = WatchBounds(lag_seconds=3600.0, rate_factor=0.0, faults_per_second=1000.0)
            strategy = dice.choice((UpdateStrategy.HAND_OVER, UpdateStrategy.RESTART))
            watched = {"validate_seconds": dice.choice((0.0, 5.0, 30.0)), "min_messages": dice.choice((0, 5))}
            request = UpdateRequest(release, {}, {}, **watched, bounds=bounds, when_inconclusive=when)
            is_halting, is_trusted = dice.random() < 0.3, dice.random() < 0.1
            given = {"strategy": strategy, "is_halting": is_halting, "is_trusted": is_trusted}
            records.create_update(replace(request, **given))
        if living and world.happens("take back"):
            records.take_update_back(living[0])

    def _order(self, process: StreamProcess) -> None:
        """Give the stream an order now and then."""
        world = self._world
        for order in ("drain", "cancel"):
            if world.happens(order):
                process.order(cast("Order", order), timeout_seconds=world.random.choice((None, 5.0, 60.0)))
        if world.happens("signal"):
            process.ask_to_stop()
        if world.happens("pause"):
            process.pause(world.random.choice((1.0, 30.0)))
        if process.control.order == "pause" and world.happens("resume"):
            process.resume()

    def _change_home(self, place: Place) -> None:
        """Copy the home of a stream that does not run, put an old copy in its place, or lose it."""
        home = place.disk.root / STREAM
        if self._world.happens("home copied"):
            place.copy = place.disk.read(home)
        elif place.copy is not None and self._world.happens("home put back"):
            place.disk.put(home, place.copy)
        elif self._world.happens("home lost"):
            place.disk.put(home, {})

    def _start(self, place: Place, instance_id: str, order: Order) -> StreamProcess:
        machine, home = place.disk.machine, place.disk.root / STREAM
        for old in sorted(home.glob("instances/*"))[:-_KEPT_INSTANCES]:
            if place.find(old.name) is None:
                shutil_of().rmtree(old)
        folder = StreamFolder(home, instance_id)
        process = Process(f"{machine.name}.{instance_id}", machine)
        child = Child(self._world, process)
        made = StreamProcess(folder, _as_child(child))
        made.order(order)
        # From here on it runs, whatever becomes of its agent.
        place.children[instance_id] = child
        self._world.start("main", process, lambda: self._run(folder))
        return made


def _as_child(child: Child) -> Any:
    return child
