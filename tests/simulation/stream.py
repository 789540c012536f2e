"""One stream of the product in the simulation: its engine as it is, between a simulated Pub/Sub and warehouse."""

import errno
import os
import queue
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from connectors.pubsub import source
from connectors.pubsub.pull import PulledBatch, Puller, PullTarget
from connectors.pubsub.source import PullOptions, PullStreamReader, TaskResult, collect_results
from model import failpoint
from model.errors import CheckpointCorruptError, LeaseHeldError, RefeedError
from streams.commit_worker import CommitWorker, end_process
from streams.ids import TABLE_IDS_SCHEMA, make_ids
from streams.journal import Journal
from streams.lease import hold_lease, lock_home
from streams.run import PASSING
from streams.status import StatusFile
from streams.stream import OwnedHome, open_committer
from streams.targets import TargetPart, TaskOutput
from tests.simulation import threads
from tests.simulation.disk import Disk, DiskPath, os_of, shutil_of
from tests.simulation.kernel import Machine, Mishap, Process, World
from tests.simulation.pubsub import PROJECT, Channel, Message, PubSub
from tests.simulation.tables import Part, StreamTables, Warehouse
from tests.years.clock import datetime_of, replaced

LEASE: Final = "stream"
KEEP_SECONDS: Final = 200
_SLOTS: Final = 2
_SETTINGS: Final = SimpleNamespace(project=PROJECT, min_free_disk_bytes=0)
_PACKAGES: Final = frozenset({"streams", "connectors.pubsub.pull", "connectors.pubsub.source"})
_CALM_SECONDS: Final = 7200.0

# How likely each mishap is, a step. A run has some of them only: a kind that is always there hides others.
MISHAPS: Final = {
    "kill": 0.001,
    "power cut": 0.0005,
    "hang": 0.0005,
    "clock": 0.0005,
    "slow": 0.002,
    "disk full": 0.005,
    "request lost": 0.03,
    "answer lost": 0.03,
    "redelivered": 0.001,
    "late": 0.05,
    "pubsub away": 0.003,
    "warehouse away": 0.004,
    "commit refused": 0.01,
    "commit lost": 0.02,
    "commit answer lost": 0.02,
    "move": 0.005,
    "drain": 0.01,
    "cancel": 0.01,
    "pause": 0.2,
    "home copied": 0.05,
    "home put back": 0.05,
    "home lost": 0.02,
}


class _Work:
    """What a kind of stream adds: outputs are handed over as they are."""

    name = "simulated"
    counted = ()

    def __init__(self) -> None:
        self.outputs: dict[bytes, TaskOutput] = {}

    def read_output(self, encoded: bytes) -> TaskOutput:
        return self.outputs.pop(encoded)

    def count(self, totals: Counter[str], outputs: Any, parts: Any) -> None:
        pass

    def learn(self, keeper: Any, outputs: Any) -> bool:
        return True

    def status(self) -> dict[str, Any]:
        return {}


class Simulation:
    """One stream, two machines that may run it, its subscriptions and tables, and its operator."""

    def __init__(self, seed: int, root: Path, only: Collection[Mishap] | None = None) -> None:
        dice = World(seed, {}).random
        chosen = {kind: likely for kind, likely in MISHAPS.items() if dice.random() < 0.6}
        self.world = world = World(seed, chosen, only)
        outside = Process("outside", Machine("outside"), is_product=False)
        self.pubsub = PubSub(world, outside)
        self.pubsub.on_ack = self._check_ack
        self.warehouse = Warehouse(world)
        self.published: list[Message] = []
        self.topics = ("a", "b", "c")[: dice.randint(1, 3)]
        # Else each table is taken when its first message comes.
        self._is_taken_at_once = dice.random() < 0.5
        for topic in self.topics:
            self.pubsub.subscribe(topic)
        self.homes: list[tuple[Machine, DiskPath]] = []
        self._disks = []
        for name in ("one", "two"):
            machine = Machine(name)
            self._disks.append(disk := Disk(world, machine, root / name))
            self.homes.append((machine, disk.root / "home"))
        self._running: list[Process | None] = [None, None]
        self._wanted = 0
        # How the stream of a machine is asked to end.
        self._ends: dict[int, str] = {}
        # Files of a machine as they were once.
        self._copies: dict[int, dict[str, bytes | None]] = {}
        self._starts = 0
        # By process and slot: Spark gives each slot a process of its own.
        self._pullers: dict[tuple[Process, str], Puller] = {}
        self._above = root
        self._is_publishing = True
        world.start("publisher", outside, self._publish)
        world.start("operator", outside, self._operate)

    def run(self, steps: int) -> None:
        """Run ``steps`` steps with mishaps, then none, and check that all messages are done."""
        world = self.world
        try:
            with self._is_everything():
                world.go(lambda: world.steps >= steps, max_seconds=float("inf"))
                world.is_calm, self._is_publishing = True, False
                if not world.go(lambda: not self.pubsub.left(), max_seconds=_CALM_SECONDS):
                    world.fail(
                        f"{self.pubsub.left()} messages are not done {_CALM_SECONDS:.0f} s after all mishaps"
                    )
                for message in self.published:
                    self._check_ack(message)
        finally:
            world.end()
            for disk in self._disks:
                disk.close()

    @contextmanager
    def _is_everything(self) -> Iterator[None]:
        """Have the engine use the world's clock, threads and disk while the block runs."""
        world = self.world
        modules = (
            ("threading", threading, threads.threading_of(world)),
            ("time", time, threads.time_of(world)),
            ("shutil", shutil, shutil_of(world)),
            ("ThreadPoolExecutor", ThreadPoolExecutor, partial(threads.Pool, world)),
            ("Future", Future, _SubscriptableFuture(world)),
            ("wait", wait, partial(threads.wait_for_futures, world)),
            ("datetime", datetime, datetime_of(partial(threads.now_of, world))),
            ("queue", queue, threads.queue_of(world)),
            ("random", random, world.random),
            ("_process_puller", source._process_puller, self._puller_of),
            ("hit", failpoint.hit, lambda name: world.step(f"at {name}")),
        )
        with ExitStack() as stack:
            stack.enter_context(replaced(_PACKAGES, modules))
            stack.enter_context(replaced({"model"}, [modules[-1]]))
            stack.enter_context(replaced({"model.disk"}, [("os", os, os_of())]))
            own = [
                ("collect_results", collect_results, lambda rows: rows),
                ("end_process", end_process, world.exit),
            ]
            stack.enter_context(replaced({"streams.commit_worker"}, own))
            yield

    def _check_ack(self, message: Message) -> None:
        if not any((message.topic, message.id) in table.rows for table in self.warehouse.tables.values()):
            self.world.fail(f"{message.id} of {message.topic} is acknowledged, and no table has it")

    def _publish(self) -> None:
        dice = self.world.random
        while self._is_publishing:
            self.world.step("publish", dice.choice((0.05, 0.3, 2.0, 2.0, 15.0)))
            self.published += self.pubsub.publish(dice.choice(self.topics), dice.randint(1, 12))
            if dice.random() < 0.01:
                self.world.step("a long pause", dice.choice((100.0, 400.0, 900.0)))

    def _operate(self) -> None:
        """Start the stream again where it ended, and sometimes move it, drain it, or start it twice."""
        world, dice = self.world, self.world.random
        while True:
            world.step("look after the stream", dice.choice((0.5, 1.0, 5.0)))
            if world.happens("move"):
                self._wanted = 1 - self._wanted
            for end in ("drain", "cancel"):
                if world.happens(end):
                    self._end(self._wanted, end)
            running = self._running[self._wanted]
            if running is None or running.is_dead:
                self._ends.pop(self._wanted, None)
                self._stop_file(self._wanted).unlink(missing_ok=True)
                self._change_home(self._wanted)
                self._start(self._wanted)
            # The one that is not wanted any more is asked to end, and not always heard.
            other = 1 - self._wanted
            if self._running[other] is not None and dice.random() < 0.2:
                self._end(other, "drain")

    def _end(self, place: int, how: str) -> None:
        self._ends[place] = how
        self._stop_file(place).touch()

    def _stop_file(self, place: int) -> Path:
        return self._above / f"{place}.stop"

    def _change_home(self, place: int) -> None:
        """Copy the home of a stream that does not run, put an old copy in its place, or lose it."""
        disk = self._disks[place]
        if self.world.happens("home copied"):
            self._copies[place] = disk.read()
        elif place in self._copies and self.world.happens("home put back"):
            disk.put(self._copies[place])
        elif self.world.happens("home lost"):
            disk.put({})

    def _start(self, place: int) -> None:
        self._starts += 1
        machine, home = self.homes[place]
        process = Process(f"{machine.name}.{self._starts}", machine)
        self._running[place] = process
        self.world.start("main", process, lambda: self._run_process(place, home, process))

    def _run_process(self, place: int, home: DiskPath, process: Process) -> None:
        try:
            self._run_stream(home, place)
        except LeaseHeldError as exc:
            self.world.say(f"   {exc.code}")
        except CheckpointCorruptError as exc:
            self.world.fail(f"the state is damaged: {exc.message}")
        except RefeedError as exc:
            self.world.say(f"   ends by {exc.code}: {exc.message}")
        except OSError as exc:
            # As the command does.
            if exc.errno != errno.ENOSPC:
                raise
            self.world.say("   ends by a full disk")
        self.world.kill(process)

    def _run_stream(self, home: DiskPath, place: int) -> None:
        with lock_home(home) as stream:
            journal = Journal(home / "journal", keep_seconds=KEEP_SECONDS, schema=TABLE_IDS_SCHEMA)
            with hold_lease(self.warehouse, LEASE, stream, journal) as held:
                tables = StreamTables(self.warehouse, stream, held.epoch)
                work = _Work()
                committer = open_committer(
                    _SETTINGS,  # type: ignore[arg-type]
                    OwnedHome(home, stream, StatusFile(home / "status.json")),
                    held,
                    journal,
                    work=work,
                    targets=tables,
                    names=[f"t.{topic}" for topic in self.topics] if self._is_taken_at_once else [],
                    channel=Channel(self.pubsub),
                    read_ids=tables.read_ids,
                    find_oldest=self.pubsub.oldest,
                )
                with CommitWorker(committer) as worker:
                    world = self.world
                    world.start("pauses", world.task.process, lambda: self._pause_now_and_then(worker))
                    self._run_batches(worker, work, place)

    def _pause_now_and_then(self, worker: CommitWorker) -> None:
        """Let no commit begin for a while, as a snapshot does."""
        while True:
            self.world.step("no pause", 5.0)
            if self.world.happens("pause") and worker.pause():
                self.world.step("pause", self.world.random.choice((0.1, 3.0, 30.0)))
                worker.resume()

    def _run_batches(self, worker: CommitWorker, work: _Work, place: int) -> None:
        readers = [self._open_reader(work, place, slot) for slot in range(_SLOTS)]
        number = 0
        while place not in self._ends:
            number += 1
            try:
                worker.take_batch(self._read(readers, number), number)
            except PASSING as exc:
                self.world.step(f"wait, by {exc.code}", 5.0)
        if self._ends[place] == "cancel":
            worker.abandon()
            worker.wait_for_commit(seconds=self.world.random.choice((0.0, 5.0)))
        try:
            worker.finish()
        except PASSING as exc:
            self.world.say(f"   ends by {exc.code}")

    def _open_reader(self, work: _Work, place: int, slot: int) -> PullStreamReader:
        options = PullOptions(
            project=PROJECT,
            emulator_host=str(slot),
            prefix="refeed.",
            slots=_SLOTS,
            idle_seconds=1.0,
            linger_seconds=0.3,
            backlog_seconds=2.0,
            max_bytes=10**7,
            stop_file=str(self._stop_file(place)),
        )
        return PullStreamReader(options, partial(self._run_task, work))

    def _read(self, readers: list[PullStreamReader], number: int) -> list[TaskResult]:
        """Have each slot read a batch, all of them at the same time, and return their rows."""
        world = self.world
        targets = tuple(
            PullTarget(f"projects/{PROJECT}/subscriptions/{found.id}", found.id, found.topic, 10)
            for found in self.pubsub.subscriptions.values()
        )
        done: list[threads.Future] = []
        for slot, reader in enumerate(readers):
            done.append(future := threads.Future(world))
            part = source._Slot(slot, targets, batch=number)

            def read(reader: PullStreamReader = reader, part: Any = part, future: Any = future) -> None:
                future.set_result([TaskResult(*row) for row in reader.read(part)])

            world.start(f"task {slot}", world.task.process, read)
        threads.wait_for_futures(world, done)
        return [row for future in done for row in future.result()]

    def _puller_of(self, slot: str) -> Puller:
        key = self.world.task.process, slot
        if key not in self._pullers:
            self._pullers[key] = Puller(partial(Channel, self.pubsub))
        return self._pullers[key]

    def _run_task(self, work: _Work, batches: Iterator[PulledBatch]) -> bytes:
        """Write what comes to its table's file."""
        parts: list[TargetPart] = []
        for batch in batches:
            target, table = batch.target, f"t.{batch.target.topic}"
            names = {"topic": target.topic, "subscription": target.subscription, "table": table}
            ids = make_ids(TABLE_IDS_SCHEMA, batch.rows, **names)
            parts.append(TargetPart(table, Part(ids), ids))
        self.world.step("write files", 0.01)
        encoded = f"{len(work.outputs)}.{self.world.steps}".encode()
        none = TABLE_IDS_SCHEMA.empty_table()
        work.outputs[encoded] = TaskOutput(tuple(parts), none, none, None)
        return encoded


class _SubscriptableFuture:
    def __init__(self, world: World) -> None:
        self._world = world

    def __call__(self) -> threads.Future:
        return threads.Future(self._world)

    def __getitem__(self, _: object) -> "_SubscriptableFuture":
        return self
