"""Pub/Sub as a Spark streaming source whose tasks pull, hand the messages on and report in one small row."""

import json
import math
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from connectors.pubsub.channel import open_channel
from connectors.pubsub.pull import BatchPull, PulledBatch, Puller, PullLimits, PullTarget
from connectors.worker import freeze_loaded
from model import failpoint
from model.errors import PubSubError, RefeedError

if TYPE_CHECKING:
    from connectors.pubsub.client import PubSub

# How often the driver asks Pub/Sub which subscriptions there are: a new one is read within that time.
DISCOVERY_SECONDS: Final = 2.0
# A lease lasts ten seconds at least, and is extended when a third of it is gone.
_KEEP_SECONDS: Final = 1.0
_NOTHING_TO_READ_SECONDS: Final = 0.25
# A drain has ended when Spark has asked once more, and another process may be waiting for that.
_STOPPED_SECONDS: Final = 0.05
# A standby has its workers used this often, before Spark ends them as idle, and looks this often for its end.
_WARM_SECONDS: Final = 2.0
_HELD_POLL_SECONDS: Final = 0.02
# The first batch after a standby: what waits is committed soon, however long batches are.
_FIRST_SECONDS: Final = 0.1
# What Pub/Sub says instead of the topic of a subscription that outlived it.
_DELETED_TOPIC: Final = "_deleted-topic_"
# Up to here every slot pulls from every subscription, so that one busy topic has all cores.
_SHARED_SUBSCRIPTIONS: Final = 16
# With a large backlog a batch may be once longer for each hundred tables: each has a file and a commit a batch.
_TABLES_PER_BACKLOG: Final = 100
_MOST_BACKLOGS: Final = 3.0


@dataclass(frozen=True, slots=True)
class PullOptions:
    """What a source reads, and in what bites.

    ``emulator_host`` is where Pub/Sub is, as :func:`~connectors.pubsub.channel.open_channel` takes it. All
    subscriptions whose id begins with ``prefix`` are read, in ``slots`` tasks a batch. While the file
    ``stop_file`` exists no batch is begun, and running ones end early: that drains the stream. While the file
    ``hold_file`` exists batches pull nothing: they keep the workers of a standby warm.

    With a ``plan_file`` the subscriptions are those that it lists, and its text goes along with every batch to
    the tasks: what they do changes from one batch to the next without a new query. It is a JSON object with
    ``subscriptions``, on the driver's disk, and replaced whole.
    """

    project: str
    emulator_host: str | None
    prefix: str
    slots: int
    idle_seconds: float
    linger_seconds: float
    backlog_seconds: float
    max_bytes: int
    stop_file: str
    plan_file: str | None = None
    hold_file: str | None = None

    def as_json(self) -> str:
        """Return the text that Spark carries as an option."""
        return json.dumps(asdict(self))


class PullTask(Protocol):
    """What a task does with the messages it pulls; it is pickled and runs where the executor is."""

    def __call__(self, batches: Iterator[PulledBatch]) -> bytes | None:
        """Take all ``batches`` and return what the driver has to know, None when there was nothing."""


class PlannedPullTask(PullTask, Protocol):
    """What a task does with the messages of one batch, by its plan."""

    @property
    def tables(self) -> int:
        """How many tables the plan has: each that gets rows has a fixed cost a batch."""


class PlannedTask(Protocol):
    """A task that does what the plan file says."""

    def with_plan(self, plan: str) -> PlannedPullTask:
        """Return what a task does with the messages of one batch."""


class TaskResult(NamedTuple):
    """A row of the stream, as the driver takes it: what :class:`PullSource` says of its columns."""

    slot: int
    result: bytes | None
    error: str | None
    faults: str
    # As AckDeadline.unix_seconds.
    held_until: float = math.inf


def collect_results(frame: Any) -> list[TaskResult]:
    """Return the rows of one batch, as Spark's foreachBatch hands it over.

    Over Arrow: ``collect()`` would have the JVM pickle ``result`` byte by byte, which took it more time than all
    else it does for a batch.
    """
    table = frame.toArrow()
    columns = (table.column(name).to_pylist() for name in TaskResult._fields)
    return [TaskResult(*fields) for fields in zip(*columns, strict=True)]


class PullSource(DataSource):  # type: ignore[misc]
    """A stream of results, one row a task: (slot, result, error, faults, held_until).

    Payloads never reach the JVM: what the task makes of them (:meth:`open_task`) is the row's ``result``. An
    error of ours is the row's ``error`` (its JSON) and ends nothing; ``faults`` names the subscriptions that
    could not be pulled. Up to ``held_until``, in Unix seconds, the leases of the messages are held for sure. The
    offset only counts batches: nothing can be read again from here, what is not acknowledged comes again by
    itself. So a batch that Spark plans again holds *other* messages, and a caller that writes results must never
    skip one because of its batch id.
    """

    def schema(self) -> str:
        """Return the schema of the result rows."""
        return "slot INT, result BINARY, error STRING, faults STRING, held_until DOUBLE"

    def streamReader(self, schema: Any) -> "PullStreamReader":  # noqa: ARG002, N802 - Spark's name
        """Return the reader that Spark drives."""
        return PullStreamReader(PullOptions(**json.loads(self.options["pull"])), self.open_task())

    @abstractmethod
    def open_task(self) -> PullTask | PlannedTask:
        """Return what a task does with the messages; a planned one goes with a ``plan_file``."""


class _Slot(InputPartition):  # type: ignore[misc]
    """One task of a batch, and what it pulls from: nothing at all where ``targets`` is None.

    ``is_first`` is a task of the first batch after those that pulled nothing; ``batch`` is a number that the
    tasks of one batch share.
    """

    def __init__(
        self,
        slot: int,
        targets: tuple[PullTarget, ...] | None,
        plan: str | None = None,
        *,
        batch: int = 0,
        is_first: bool = False,
    ) -> None:
        super().__init__(slot)
        self.slot = slot
        self.batch = batch
        self.targets = targets
        self.plan = plan
        self.is_first = is_first


class PullStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Plans batches in the driver, pulls in the executors."""

    def __init__(self, options: PullOptions, task: PullTask | PlannedTask) -> None:
        self._options = options
        self._task = task
        self._pubsub: PubSub | None = None  # of the driver's copy only
        self._targets: list[PullTarget] = []
        self._listed_at = 0.0
        self._was_held = False
        self._batches = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset before the first batch."""
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802
        """Return one batch more, or ``start`` when nothing is attached or the stream drains."""
        if Path(self._options.stop_file).exists():
            time.sleep(_STOPPED_SECONDS)
            return start
        if self._is_held():
            self._wait_for_end_of_hold()
        elif not self._list_targets():
            time.sleep(_NOTHING_TO_READ_SECONDS)  # Spark asks again at once, a hundred times a second
            return start
        return {"batch": start["batch"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[_Slot]:  # noqa: ARG002
        """Deal the subscriptions out to the slots; few of them are shared by all."""
        slots = self._options.slots
        if self._is_held():
            self._was_held = True
            return [_Slot(slot, None) for slot in range(slots)]
        targets = self._list_targets()
        plan = self._read_plan()
        is_first, self._was_held = self._was_held, False
        self._batches += 1
        is_shared = len(targets) <= _SHARED_SUBSCRIPTIONS
        dealt = [tuple(targets if is_shared else targets[slot::slots]) for slot in range(slots)]
        return [
            _Slot(slot, found, plan, batch=self._batches, is_first=is_first) for slot, found in enumerate(dealt)
        ]

    def read(self, partition: _Slot) -> Iterator[tuple[int, bytes | None, str | None, str, float]]:
        """Pull one batch, hand it to the task and yield its result."""
        options = self._options
        if partition.targets is None:
            _process_puller(options.emulator_host).warm_up()
            yield partition.slot, None, None, "{}", math.inf
            return
        stop_file = Path(options.stop_file)
        puller = _process_puller(options.emulator_host).start_batch(partition.targets)
        result = error = None
        try:
            task: Any = self._task if partition.plan is None else self._task.with_plan(partition.plan)  # type: ignore[union-attr]
            limits = self._limits(partition, tables=1 if partition.plan is None else task.tables)
            with _LeaseKeeper(puller) as keeper:
                mark = _BatchMark(stop_file.with_suffix(".batch"), partition.batch)
                batches = puller.pull(limits, stop_file.exists, mark.is_set)
                result = task(_tapped(keeper, mark, batches))
        except RefeedError as exc:
            error = json.dumps({"code": exc.code, "message": exc.message})
        faults = json.dumps({name: fault.message for name, fault in puller.faults.items()})
        failpoint.hit("descriptor.before_send")
        yield partition.slot, result, error, faults, puller.deadline.unix_seconds

    def _limits(self, partition: _Slot, *, tables: int) -> PullLimits:
        """Return how long the task pulls, and how much, where its rows go to this many tables."""
        options = self._options
        longest = _FIRST_SECONDS if partition.is_first else math.inf
        longest_seconds = options.backlog_seconds * (1 + min(tables / _TABLES_PER_BACKLOG, _MOST_BACKLOGS))
        return PullLimits(
            idle_seconds=options.idle_seconds,
            linger_seconds=min(options.linger_seconds, longest),
            backlog_seconds=min(options.backlog_seconds, longest),
            max_bytes=options.max_bytes,
            longest_seconds=min(longest_seconds, longest),
        )

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the stream acknowledges after its results are durable."""

    def stop(self) -> None:
        """Close the driver's connection."""
        if self._pubsub is not None:
            self._pubsub.close()

    def _is_held(self) -> bool:
        """Whether batches pull nothing for now."""
        return self._options.hold_file is not None and Path(self._options.hold_file).exists()

    def _wait_for_end_of_hold(self) -> None:
        """Wait until batches may pull again, but not so long that Spark ends idle workers."""
        if self._options.plan_file is None or Path(self._options.plan_file).exists():
            # The answer is at hand then.
            self._list_targets()
        ends_at = time.monotonic() + _WARM_SECONDS
        while self._is_held() and not Path(self._options.stop_file).exists() and time.monotonic() < ends_at:
            time.sleep(_HELD_POLL_SECONDS)

    def _list_targets(self) -> list[PullTarget]:
        """Return what there is to pull from; a failure to ask leaves the last answer standing."""
        now = time.monotonic()
        if self._listed_at and now - self._listed_at < DISCOVERY_SECONDS:
            return self._targets
        self._listed_at = now
        options = self._options
        if self._pubsub is None:
            from connectors.pubsub.client import PubSub  # the driver's copy alone needs Google's client

            self._pubsub = PubSub(options.project, options.emulator_host)
        try:
            found = self._pubsub.list_subscriptions()
        except PubSubError:
            # Pulling reports the same fault for each subscription, where it is seen.
            return self._targets
        is_wanted = self._wanted()
        self._targets = [
            PullTarget(
                self._pubsub.subscription_path(s.id),
                s.id,
                # A deleted topic leaves its backlog behind; the topic is in the subscription's own name.
                s.id.removeprefix(options.prefix) if s.topic == _DELETED_TOPIC else s.topic,
                s.ack_deadline_seconds,
            )
            for s in found
            if is_wanted(s.id) and not s.detached
        ]
        return self._targets

    def _read_plan(self) -> str | None:
        """Return the text of the plan file, None without one."""
        return None if self._options.plan_file is None else Path(self._options.plan_file).read_text()

    def _wanted(self) -> Callable[[str], bool]:
        """Return what says of a subscription whether it is read."""
        plan = self._read_plan()
        if plan is None:
            prefix = self._options.prefix
            return lambda subscription: subscription.startswith(prefix)
        listed = frozenset(json.loads(plan)["subscriptions"])
        return lambda subscription: subscription in listed


class _LeaseKeeper:
    """Extends a batch's leases from a thread while its task works on after the pull.

    A task may take longer than a lease is: it may wait for a warehouse, for example. While it pulls, the pull
    extends them itself.
    """

    def __init__(self, puller: BatchPull) -> None:
        self._puller = puller
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keep-leases", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        # The way to the driver, which takes over from here, takes time as well.
        self._puller.extend_leases()

    def start(self) -> None:
        """Begin: the pull is over."""
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(_KEEP_SECONDS):
            self._puller.extend_leases()


class _BatchMark:
    """Says to a batch's tasks that one of them has a message: the others need not wait for one of their own.

    It is a file, so tasks on other machines do not see it, and wait.
    """

    def __init__(self, file: Path, batch: int) -> None:
        self._file = file
        self._text = str(batch)

    def is_set(self) -> bool:
        """Return whether a task of this batch, on this machine, has a message."""
        with suppress(OSError):
            return self._file.read_text() == self._text
        return False

    def set(self) -> None:
        """Note that there is a message; where no file can be written, the others wait."""
        with suppress(OSError):
            self._file.write_text(self._text)


def _tapped(keeper: _LeaseKeeper, mark: _BatchMark, batches: Iterator[PulledBatch]) -> Iterator[PulledBatch]:
    for number, batch in enumerate(batches):
        if number == 0:
            mark.set()
        failpoint.hit("pull.received")
        yield batch
    keeper.start()


def _process_puller(emulator_host: str | None) -> Puller:
    """Return this worker's puller: Spark uses a worker for one task after the other."""
    if emulator_host not in _PULLERS:
        freeze_loaded()
        _PULLERS[emulator_host] = Puller(partial(open_channel, emulator_host))
    return _PULLERS[emulator_host]


_PULLERS: dict[str | None, Puller] = {}
