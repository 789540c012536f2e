"""One stream of the product in the simulation: its engine as it is, between a simulated Pub/Sub and warehouse."""

import errno
import json
import os
import queue
import random
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from connectors.pubsub import pull, source
from connectors.pubsub.pull import Puller
from connectors.pubsub.source import PullSource, collect_results
from connectors.spark.session import open_session
from jobs import steps, stream_threads
from model import failpoint
from model.disk import replacing
from model.errors import CheckpointCorruptError, LeaseHeldError, RefeedError, SnapshotCorruptError
from model.moment import CLOCK_SKEW
from model.stream_record import new_instance_id
from model.stream_snapshot import RestoreRecord, SnapshotRecord
from rollout.process import find_instance
from streams.backlog import measuring
from streams.commit_worker import end_process
from streams.folder import StreamFolder, list_instances
from streams.journal import Journal
from streams.lease import hold_lease
from streams.orders import WATCH_SECONDS
from streams.queries import StreamQuery
from streams.snapshot import PLAN_FILE
from streams.stream import OwnedHome, StreamWork, open_committer, run_stream
from streams.topics import TopicTargets
from tests.simulation import threads
from tests.simulation.agent import Records, open_snapshot_work
from tests.simulation.disk import Disk, DiskPath, os_of, shutil_of
from tests.simulation.kernel import Machine, Mishap, Process, World
from tests.simulation.operator import LEASE, OPTIONS, Operator
from tests.simulation.pubsub import PROJECT, Admin, Channel, Message, PubSub
from tests.simulation.spark import Spark
from tests.simulation.tables import Warehouse
from tests.simulation.updates import open_update_work
from tests.simulation.work import Kind, Work
from tests.years.clock import datetime_of, replaced

KEEP_SECONDS: Final = 200
_SETTINGS: Final = SimpleNamespace(
    project=PROJECT,
    pubsub_address=None,
    min_free_disk_bytes=0,
    spark_master="",
    spark_driver_memory="",
    spark_conf="",
)
_QUERY: Final = StreamQuery(
    source=PullSource,
    slots=2,
    idle_seconds=1.0,
    batch_seconds=0.5,
    batch_bytes=10**7,
    options={},
    prefix="refeed.",
)
_PACKAGES: Final = frozenset(
    {
        *("streams", "rollout", "jobs.disk_files", "jobs.steps", "jobs.stream_threads", "pipeline.staged_ids"),
        *("connectors.pubsub.ack_deadline", "connectors.pubsub.pull", "connectors.pubsub.publish"),
        "connectors.pubsub.source",
    }
)
_CALM_SECONDS: Final = 7200.0
# How often a stream looks at its orders and its pulls; more often would be most of the steps.
_WATCH_SECONDS: Final = 1.0

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
    "acks refused": 0.01,
    "redelivered": 0.001,
    "late": 0.05,
    "pubsub away": 0.003,
    "warehouse away": 0.004,
    "commit refused": 0.01,
    "commit lost": 0.04,
    "commit late": 0.04,
    "commit answer lost": 0.04,
    "move": 0.03,
    "drain": 0.01,
    "signal": 0.005,
    "cancel": 0.01,
    "pause": 0.01,
    "resume": 0.2,
    "snapshot": 0.03,
    "roll back": 0.02,
    "update": 0.02,
    "take back": 0.01,
    "home copied": 0.05,
    "home put back": 0.05,
    "home lost": 0.02,
}


class Simulation:
    """One stream, two machines that may run it, its subscriptions and tables, and its operator."""

    def __init__(self, seed: int, root: Path, only: Collection[Mishap] | None = None) -> None:
        dice = World(seed, {}).random
        chosen = {kind: likely for kind, likely in MISHAPS.items() if dice.random() < 0.6}
        self.world = world = World(seed, chosen, only)
        outside = Process("outside", Machine("outside"), is_product=False)
        self.pubsub = PubSub(world, outside)
        self.pubsub.on_ack = self._check_ack
        self.warehouse = Warehouse(world, outside)
        self.published: list[Message] = []
        self.kind = kind = Kind(dice)
        if kind.is_backup:
            # The agent's snapshots are those of a pipeline here.
            chosen.pop("snapshot", None)
        # Else each table is taken when its first message comes.
        self._is_taken_at_once = dice.random() < 0.5
        for topic in kind.topics:
            self.pubsub.subscribe(topic)
        self._disks = [Disk(world, Machine(name), root / name) for name in ("one", "two")]
        self._works: dict[Process, Work] = {}
        # By process and slot: Spark gives each slot a process of its own.
        self._pullers: dict[tuple[Process, str], Puller] = {}
        self._is_publishing = True
        records = Records(world, OPTIONS)
        records.on_restored = self._check_restored
        self._records = records
        self._operator = operator = Operator(
            world,
            self._disks,
            records,
            run=self._run_process,
            open_work=lambda disk: open_snapshot_work(records, disk, self.pubsub, self.warehouse, PROJECT),
            open_updates=lambda: open_update_work(records, world),
        )
        world.start("publisher", outside, self._publish)
        world.start("operator", outside, operator.run)

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
                if not world.go(self._is_settled, max_seconds=_CALM_SECONDS):
                    world.fail(f"{self._operator.running()} run, and {self._records.list_updates(living=True)}")
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
            ("shutil", shutil, shutil_of()),
            ("ThreadPoolExecutor", ThreadPoolExecutor, partial(threads.Pool, world)),
            ("Future", Future, _SubscriptableFuture(world)),
            ("wait", wait, partial(threads.wait_for_futures, world)),
            ("datetime", datetime, datetime_of(partial(threads.now_of, world))),
            ("queue", queue, threads.queue_of(world)),
            ("random", random, world.random),
            ("secrets", secrets, threads.secrets_of(world)),
            ("signal", signal, threads.signal_of(world)),
            ("WATCH_SECONDS", WATCH_SECONDS, _WATCH_SECONDS),
            ("_POLL_SECONDS", pull._POLL_SECONDS, _WATCH_SECONDS),
            ("_STALL_SECONDS", pull._STALL_SECONDS, 2 * _WATCH_SECONDS),
            ("open_session", open_session, self._open_spark),
            ("measuring", measuring, lambda *_: nullcontext()),
            ("collect_results", collect_results, lambda rows: rows),
            ("end_process", end_process, world.exit),
            ("_process_puller", source._process_puller, self._puller_of),
            ("find_instance", find_instance, self._operator.find_instance),
            ("list_instances", list_instances, self._operator.list_instances),
            ("new_instance_id", new_instance_id, self._operator.new_instance_id),
            ("hit", failpoint.hit, lambda name: world.step(f"at {name}")),
        )
        with ExitStack() as stack:
            stack.enter_context(replaced(_PACKAGES, modules))
            stack.enter_context(replaced({"model"}, [modules[-1]]))
            stack.enter_context(replaced({"model.disk"}, [("os", os, os_of())]))
            own = [
                ("Path", Path, DiskPath),
                # Work that fails in a thread of an agent is tried again, whatever it is.
                ("_log", stream_threads._log, SimpleNamespace(warning=self._say_error, exception=self._fail)),
            ]
            stack.enter_context(replaced({"streams.snapshot", "jobs.stream_threads"}, own))
            said = SimpleNamespace(info=_say_nothing, warning=_say_nothing, exception=self._fail)
            stack.enter_context(replaced({"jobs.steps"}, [("_log", steps._log, said)]))
            # Leases name both, and the trace quotes them.
            stack.enter_context(patch.object(os, "getpid", return_value=1))
            stack.enter_context(patch.object(socket, "gethostname", return_value="machine"))
            yield

    def _is_settled(self) -> bool:
        """Whether no update goes on, and of all processes the one runs that the stream's record names."""
        is_alone = self._operator.running() == [self._records.stream.instance_id]
        return is_alone and not self._records.list_updates(living=True)

    def _say_error(self, what: str, *, error: str, **_: Any) -> None:
        self.world.say(f"   {what}: {error}")

    def _fail(self, what: str, **_: Any) -> None:
        self.world.fail(f"{what}: {sys.exception()!r}")

    def _check_ack(self, message: Message) -> None:
        key = message.topic, message.id
        if self.kind.is_settled(message.id):
            return
        if not any(key in table.rows for table in self.warehouse.tables.values()):
            self.world.fail(f"{message.id} of {message.topic} is acknowledged, and no table has it")
        if message.topic in self.kind.published and message.id not in self.pubsub.out:
            self.world.fail(f"{message.id} of {message.topic} is acknowledged, and was never published")

    def _check_restored(self, restore: RestoreRecord, snapshot: SnapshotRecord) -> None:
        """Check that rows of after the snapshot are discarded, if that was asked for and none is said to stay."""
        assert snapshot.taken_at is not None
        if restore.error is not None and restore.error.code == SnapshotCorruptError.code:
            self.world.fail(f"{snapshot.id} is damaged: {restore.error.message}")
        if restore.error is not None:
            return
        for name, table in self.warehouse.tables.items():
            is_kept = any(name in line for line in restore.not_reverted)
            late = [row for row in table.rows.values() if row.ingest_time > snapshot.taken_at + CLOCK_SKEW]
            if restore.discard_staged and late and not is_kept:
                self.world.fail(f"{late[0].message_id} is in {name} after it was discarded")

    def _publish(self) -> None:
        dice = self.world.random
        while self._is_publishing:
            self.world.step("publish", dice.choice((0.05, 0.3, 2.0, 2.0, 15.0)))
            self.published += self.pubsub.publish(dice.choice(self.kind.topics), dice.randint(1, 12))
            if dice.random() < 0.01:
                self.world.step("a long pause", dice.choice((100.0, 400.0, 900.0)))

    def _run_process(self, folder: StreamFolder) -> None:
        """Run one start of the stream, as its command does."""
        process = self.world.task.process
        self._works[process] = Work(self.world, self.kind)
        try:
            run_stream(
                _SETTINGS,  # type: ignore[arg-type]
                folder,
                _QUERY,
                open_work=self._open_work,
                place={},
            )
        except LeaseHeldError as exc:
            self.world.say(f"   {exc.code}")
        except CheckpointCorruptError as exc:
            self.world.fail(f"the state is damaged: {exc.message}")
        except RefeedError as exc:
            if exc.code == RefeedError.code:
                self.world.fail(f"a fault that is not known: {exc.message}")
            self.world.say(f"   ends by {exc.code}: {exc.message}")
        except OSError as exc:
            # As the command does.
            if exc.errno != errno.ENOSPC:
                raise
            self.world.say("   ends by a full disk")
        self.world.kill(process)

    @contextmanager
    def _open_work(self, home: OwnedHome) -> Iterator[StreamWork]:
        """Open what a stream that owns its home works with, as a pipeline does."""
        journal = Journal(home.journal, keep_seconds=KEEP_SECONDS, schema=self.kind.journal_schema)
        tables = self.warehouse.open_row_tables(stream=home.stream, lease=LEASE)
        if not (home.folder / PLAN_FILE).exists():
            with replacing(home.folder / PLAN_FILE) as file:
                file.write(json.dumps(self._plan()).encode())
        channel = Channel(self.pubsub)
        with hold_lease(tables.leases(), LEASE, home.stream, journal) as held:
            committer = open_committer(
                _SETTINGS,  # type: ignore[arg-type]
                home,
                held,
                journal,
                work=self._works[self.world.task.process],
                targets=TopicTargets(
                    tables, channel, lambda name: f"projects/{PROJECT}/topics/{name}", self._refuse
                ),
                names={self.kind.table(topic): None for topic in self.kind.topics}
                if self._is_taken_at_once
                else (),
                channel=channel,
                read_ids=tables.read_ids,
                find_oldest=self.pubsub.oldest,
            )
            yield StreamWork(committer, lambda: None)

    def _refuse(self, table: str, refused: Mapping[str, str]) -> None:
        self.world.fail(f"messages of {table} are refused: {refused}")

    def _plan(self) -> dict[str, Any]:
        """Return what a snapshot and a rollback read of a group's plan."""
        return {
            "subscriptions": [f"refeed.{topic}" for topic in self.kind.topics],
            "sources": [
                {
                    "source": {"name": topic, "topic": topic, "staging": f"t.{topic}", "schema": {"fields": []}},
                    "types": [],
                }
                for topic in self.kind.topics
            ],
        }

    def _open_spark(self, *_: Any, scratch: DiskPath, **__: Any) -> Spark:
        scratch.mkdir(parents=True)
        work = self._works[self.world.task.process]
        return Spark(self.world, work.run_task, Admin(self.pubsub))

    def _puller_of(self, _: str | None) -> Puller:
        key = self.world.task.process, self.world.task.name
        if key not in self._pullers:
            self._pullers[key] = Puller(partial(Channel, self.pubsub))
        return self._pullers[key]


class _SubscriptableFuture:
    def __init__(self, world: World) -> None:
        self._world = world

    def __call__(self) -> threads.Future:
        return threads.Future(self._world)

    def __getitem__(self, _: object) -> "_SubscriptableFuture":
        return self


def _say_nothing(*_: Any, **__: Any) -> None:
    """The operator's records say it."""
