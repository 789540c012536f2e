import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from connectors.pubsub.client import PubSub
from jobs.disk_files import DiskFiles
from jobs.store import JobStore
from local.server import PubSubServer
from model.errors import LeaseHeldError, PubSubUnavailableError, SnapshotRefusedError
from model.fault import FaultRecord
from model.message import backup_subscription_id
from model.settings import read_settings
from model.stream_options import StreamKind
from model.stream_record import Wanted
from model.stream_snapshot import RestoreState, SnapshotPlace, SnapshotReason, SnapshotState
from rollout.fence import StreamFence
from rollout.process import StreamProcess
from rollout.restorer import StreamRestorer
from rollout.snapshot_taker import SnapshotTaker
from rollout.snapshot_work import SnapshotWork, pause_stream
from streams.folder import StreamFolder
from streams.journal import Journal
from streams.journal_mark import JournalMark
from streams.lease import lock_home
from streams.status import StatusFile
from tests.memory.warehouse import MemoryWarehouse
from tests.work import Work, counted


class Paused:
    """A process that carries out a pause at once."""

    def __init__(self, folder: StreamFolder) -> None:
        self.folder = folder
        self.is_running = True
        self.orders: list[str] = []
        folder.run.mkdir(parents=True)
        self._status = StatusFile(folder.status)

    def pause(self, timeout_seconds: float) -> int:
        self.orders.append("pause")
        self._status.write(state="paused", control_number=len(self.orders))
        return len(self.orders)

    def resume(self) -> None:
        self.orders.append("run")
        self._status.write(state="running", control_number=len(self.orders))

    def status(self) -> dict[str, Any]:
        return StatusFile.read(self.folder.status) or {}


class KilledError(BaseException):
    """The process ends here."""


def kill(*_: Any, **__: Any) -> None:
    raise KilledError


class Bench:
    def __init__(self, folder: Path, server: PubSubServer) -> None:
        self.store = JobStore(folder / "jobs.sqlite")
        self.store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
        self.folder = StreamFolder.of(folder, "backup", "in_1")
        Journal(self.folder.state / "journal", keep_seconds=600)
        (self.folder.state / "stream-id").write_text("a" * 32)
        self.process = Paused(self.folder)
        with PubSub("p", server.emulator_host) as pubsub:
            pubsub.create_topic("orders")
            pubsub.create_subscription(backup_subscription_id("orders"), "orders")

        def open_pubsub() -> PubSub:
            return PubSub("p", server.emulator_host)

        self.open_pubsub = open_pubsub
        self.taker = SnapshotTaker(
            self.store, open_pubsub=open_pubsub, files=DiskFiles(folder / "snapshots"), host="here"
        )
        fence = StreamFence(MemoryWarehouse.new(read_settings({"REFEED_HOME": str(folder)})), project="p")
        self.restorer = StreamRestorer(
            self.store, fence=fence, open_pubsub=open_pubsub, host="here", min_free_bytes=0
        )
        self.work = self.make()

    def make(self, **options: Any) -> SnapshotWork:
        return SnapshotWork(self.store, taker=self.taker, restorer=self.restorer, **options)

    def look(self, work: SnapshotWork | None = None) -> None:
        """Look, and wait for what was begun."""
        process = cast("StreamProcess", self.process)
        (work or self.work).look([(self.store.get_stream("backup"), process, self.folder.state)])
        (work or self.work).stop()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with PubSubServer(tmp_path / "pubsub") as server:
        made = Bench(tmp_path, server)
        yield made
        made.store.close()


def test_a_running_stream_is_paused_for_its_snapshot_and_goes_on(bench: Bench) -> None:
    asked = bench.store.create_snapshot("backup", with_source=True, actor="ann")
    bench.look()
    assert bench.store.get_snapshot(asked.id).state is SnapshotState.COMPLETED
    assert bench.process.orders == ["pause", "run"]
    bench.store.delete_snapshot(asked.id)
    bench.look()
    assert bench.store.list_snapshots() == []


def test_a_stream_without_a_process_has_its_snapshot_made_at_rest(bench: Bench) -> None:
    bench.process.is_running = False
    asked = bench.store.create_snapshot("backup", with_source=False, actor="ann")
    bench.look()
    assert bench.store.get_snapshot(asked.id).state is SnapshotState.COMPLETED
    assert bench.process.orders == []


def test_a_snapshot_with_its_source_waits_until_the_stream_runs(bench: Bench) -> None:
    """After a move the home's state may be old, and a later rollback would discard rows that it does not know."""
    bench.process.is_running = False
    asked = bench.store.create_snapshot("backup", with_source=True, actor="ann")
    bench.look()
    assert bench.store.get_snapshot(asked.id) == asked
    bench.process.is_running = True
    bench.look()
    assert bench.store.get_snapshot(asked.id).state is SnapshotState.COMPLETED


def test_a_stream_is_put_back_once_its_process_has_ended(bench: Bench) -> None:
    asked = bench.store.create_snapshot("backup", with_source=True, actor="ann")
    bench.look()
    restore = bench.store.create_restore("backup", asked.id, actor="ann")
    bench.look()
    assert bench.work.is_going_back("backup")
    assert bench.store.list_running_restores() == [restore]
    bench.process.is_running = False
    bench.look()
    (ended,) = bench.store.list_restores("backup")
    assert ended.state is RestoreState.SUCCEEDED
    assert JournalMark(bench.folder.state / "journal").is_asked
    bench.look()
    assert not bench.work.is_going_back("backup")


def take_scheduled(bench: Bench) -> str:
    asked = bench.store.create_snapshot("backup", with_source=True, actor="agent", reason=SnapshotReason.SCHEDULED)
    return bench.taker.take(asked, bench.folder.state, nullcontext).id


def test_scheduled_snapshots_take_the_place_of_older_ones(bench: Bench) -> None:
    manual = bench.store.create_snapshot("backup", with_source=False, actor="ann")
    bench.look()
    scheduled = [take_scheduled(bench) for _ in range(3)]
    work = bench.make(every_seconds=3600, keep=2)
    for _ in range(3):
        bench.look(work)
    assert [each.id for each in bench.store.list_snapshots()] == [scheduled[2], scheduled[1], manual.id]


def test_a_snapshot_is_asked_for_when_the_newest_is_too_old_and_not_before(bench: Bench) -> None:
    for every_seconds, expected in ((0.0, 0), (3600.0, 1), (3600.0, 1), (1e-6, 2)):
        work = bench.make(every_seconds=every_seconds)
        bench.look(work)
        made = bench.store.list_snapshots()
        assert [(each.reason, each.with_source) for each in made] == [(SnapshotReason.SCHEDULED, True)] * expected
        assert {each.state for each in made} <= {SnapshotState.COMPLETED}


def test_nothing_is_left_of_a_snapshot_whose_stream_ended_before_it_was_whole(bench: Bench) -> None:
    asked = bench.store.create_snapshot("backup", with_source=True, actor="ann")
    with pytest.MonkeyPatch.context() as context:
        context.setattr(JobStore, "complete_snapshot", kill)
        with pytest.raises(KilledError):
            bench.taker.take(asked, bench.folder.state, nullcontext)
    left = bench.store.get_snapshot(asked.id)
    assert left.place is not None
    assert Path(left.place.location).exists()
    bench.store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    bench.work.look([])
    bench.work.stop()
    ended = bench.store.get_snapshot(asked.id)
    assert ended.error is not None
    assert (ended.state, ended.error.code) == (SnapshotState.FAILED, "snapshot_refused")
    assert not Path(left.place.location).exists()
    with bench.open_pubsub() as pubsub:
        assert list(pubsub.list_snapshots()) == []


def test_what_is_left_of_a_snapshot_that_failed_is_deleted_by_a_later_look(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise PubSubUnavailableError("Pub/Sub does not answer.")

    asked = bench.store.create_snapshot("backup", with_source=True, actor="ann")
    with monkeypatch.context() as context:
        context.setattr(DiskFiles, "complete", away)
        context.setattr(PubSub, "delete_snapshot", away)
        bench.look()
    assert bench.store.get_snapshot(asked.id).state is SnapshotState.FAILED
    with bench.open_pubsub() as pubsub:
        assert len(list(pubsub.list_snapshots())) == 1
        bench.look(bench.make())
        assert list(pubsub.list_snapshots()) == []
    assert bench.store.list_unfinished_snapshots() == []


class Stream:
    """A stream that carries out its orders at once, with the status file of a real one."""

    def __init__(self, path: Path, *, follows: bool = True) -> None:
        self.path = path
        self.orders: list[str] = []
        self._status = StatusFile(path)
        self._follows = follows
        self._status.write(state="running", control_number=0)

    def pause(self, timeout_seconds: float) -> int:
        self.orders.append(f"pause {timeout_seconds:g}")
        number = len(self.orders)
        if self._follows:
            self.write("paused", number)
        return number

    def resume(self) -> None:
        self.orders.append("run")
        self.write("running", len(self.orders))

    def status(self) -> dict[str, Any]:
        return StatusFile.read(self.path) or {}

    def write(self, state: str, number: int) -> None:
        self._status.write(state=state, control_number=number)


def test_the_block_runs_between_the_pause_and_the_order_to_go_on(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "status.json")
    with pause_stream(cast(StreamProcess, stream), timeout_seconds=5):
        assert stream.orders == ["pause 5"]
    assert stream.orders == ["pause 5", "run"]


def test_a_pause_of_another_order_is_not_this_one(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "status.json", follows=False)
    stream.write("paused", 7)
    with (
        pytest.raises(SnapshotRefusedError, match="did not pause within"),
        pause_stream(cast(StreamProcess, stream), timeout_seconds=0.1),
    ):
        pytest.fail("the stream has not paused")
    assert stream.orders == ["pause 0.1", "run"]


def end_by_itself(stream: Stream) -> None:
    stream.write("running", 1)


def be_overtaken(stream: Stream) -> None:
    stream.write("paused", 2)


@pytest.mark.parametrize("change", [end_by_itself, be_overtaken])
def test_a_block_that_outlasts_the_pause_fails(tmp_path: Path, change: Callable[[Stream], None]) -> None:
    stream = Stream(tmp_path / "status.json")
    with (
        pytest.raises(SnapshotRefusedError, match="longer than the stream's pause"),
        pause_stream(cast(StreamProcess, stream), timeout_seconds=5),
    ):
        change(stream)
    assert stream.orders[-1] == "run"


def test_a_stream_goes_on_after_a_block_that_failed(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "status.json")
    with pytest.raises(ZeroDivisionError), pause_stream(cast(StreamProcess, stream), timeout_seconds=5):
        raise ZeroDivisionError
    assert stream.orders == ["pause 5", "run"]


def test_a_state_at_rest_is_held_until_the_block_ends(tmp_path: Path) -> None:
    tried: list[str] = []

    def start() -> None:
        try:
            with lock_home(tmp_path):
                tried.append("started")
        except LeaseHeldError:
            tried.append("held")

    with lock_home(tmp_path):
        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        thread.join()
    start()
    assert tried == ["held", "started"]


def test_no_schedule_asks_for_a_snapshot_of_a_stream_that_is_to_end(bench: Bench) -> None:
    bench.store.take_streams("agent", limit=1, lease_seconds=60)
    bench.store.end_stream("backup", Wanted.DRAINED, actor="ann")
    bench.look(bench.make(every_seconds=3600))
    assert bench.store.list_snapshots() == []


def test_retention_keeps_the_snapshot_that_a_stream_is_put_back_to(bench: Bench) -> None:
    scheduled = [take_scheduled(bench) for _ in range(3)]
    bench.store.create_restore("backup", scheduled[0], actor="ann")
    bench.look(bench.make(every_seconds=3600, keep=1))
    assert [each.id for each in bench.store.list_snapshots(states=[SnapshotState.COMPLETED])] == [
        scheduled[2],
        scheduled[0],
    ]


def count_threads(bench: Bench, kind: str = "snapshot") -> int:
    """Return how many threads twenty looks begin."""
    begun: list[str] = []
    start = threading.Thread.start

    def count(thread: threading.Thread) -> None:
        if thread.name.startswith(f"{kind}-"):
            begun.append(thread.name)
        start(thread)

    with pytest.MonkeyPatch.context() as context:
        context.setattr(threading.Thread, "start", count)
        for _ in range(20):
            bench.look()
    return len(begun)


def test_what_another_machine_has_to_delete_costs_no_thread_a_look(bench: Bench) -> None:
    asked = bench.store.create_snapshot("backup", with_source=False, actor="ann")
    bench.store.begin_snapshot(asked, SnapshotPlace("elsewhere", "/home/snapshots"))
    bench.store.delete_snapshot(asked.id)
    assert count_threads(bench) == 0
    assert bench.store.get_snapshot(asked.id).state is SnapshotState.DELETING


def test_a_snapshot_that_raises_what_nobody_expects_is_not_tried_at_every_look(bench: Bench) -> None:
    bench.store.create_snapshot("backup", with_source=False, actor="ann")
    with pytest.MonkeyPatch.context() as context:
        context.setattr(SnapshotTaker, "take", lambda *_: 1 / 0)
        assert count_threads(bench) == 1


def test_the_schedule_reads_nothing_of_the_snapshots_that_people_keep_and_of_those_that_failed(
    bench: Bench,
) -> None:
    def look() -> Work:
        work = bench.make(every_seconds=3600, keep=3)
        with counted(bench.store) as done:
            bench.look(work)
        return done

    for _ in range(3):
        take_scheduled(bench)
    first = look()
    error = FaultRecord("pubsub_error", "Pub/Sub refused it.")
    facts = {"format_version": 1, "size_bytes": 1, "seconds_paused": 0.1, "known_messages": 1}
    for _ in range(100):
        asked = bench.store.create_snapshot("backup", with_source=True, actor="ann")
        bench.store.complete_snapshot(asked.id, None, sources=[], taken_at=asked.created_at, **facts)
    for _ in range(20):
        failed = bench.store.create_snapshot("backup", with_source=True, actor="ann")
        bench.store.fail_snapshot(failed.id, None, error)
    after = look()
    assert (after.statements, after.rows) == (first.statements, first.rows)
    assert after.instructions <= first.instructions + 200, "not one for each snapshot"
