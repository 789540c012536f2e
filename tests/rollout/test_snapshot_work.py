import threading
from typing import cast
from unittest.mock import patch

import pytest

from connectors.pubsub.client import PubSub
from jobs.disk_files import DiskFiles
from jobs.store import JobStore
from model.errors import PubSubUnavailableError, SnapshotRefusedError
from model.fault import FaultRecord
from model.stream_options import StreamKind
from model.stream_record import Wanted
from model.stream_snapshot import RestoreState, SnapshotPlace, SnapshotReason, SnapshotState
from rollout.process import StreamProcess
from rollout.snapshot_taker import SnapshotTaker
from rollout.snapshot_work import SnapshotWork, pause_stream
from streams.folder import StreamFolder
from streams.journal_mark import JournalMark
from streams.status import StatusFile
from tests.work import counted
from tests.worlds.restores import list_running_restores
from tests.worlds.snapshot_jobs import begin_snapshot, complete_snapshot, fail_snapshot
from tests.worlds.snapshots import BROKEN, KilledError, server
from tests.worlds.snapshots import Bench as SnapshotBench

__all__ = ["server"]


class Stream:
    """A stream that carries out its orders at once, with the status file of a real one."""

    def __init__(self, path, *, follows=True):
        self.path = path
        self.is_running = True
        self.orders: list[str] = []
        self._status = StatusFile(path)
        self._follows = follows
        self.write("running", 0)

    def pause(self, timeout_seconds):
        self.orders.append("pause")
        number = len(self.orders)
        if self._follows:
            self.write("paused", number)
        return number

    def resume(self, number=None):
        assert number is not None, "a snapshot ends its own pause"
        self.orders.append("run")
        self.write("running", len(self.orders))

    def status(self):
        return StatusFile.read(self.path) or {}

    def write(self, state, number):
        self._status.write(state=state, control_number=number)


class Bench(SnapshotBench):
    """A stream with a process, and the work that an agent does for its snapshots."""

    def __init__(self, folder, server):
        super().__init__(folder, server)
        found = StreamFolder.of(folder, "backup", "in_1")
        found.run.mkdir(parents=True)
        self.process = Stream(found.status)
        self.work = self.make()

    def make(self, **options):
        return SnapshotWork(self.store, taker=self.taker, restorer=self.restorer, **options)

    def look(self, work=None):
        process = cast("StreamProcess", self.process)
        (work or self.work).look([(self.store.get_stream("backup"), process, self.state)])
        (work or self.work).stop()


@pytest.fixture
def bench(tmp_path, server):
    made = Bench(tmp_path, server)
    yield made
    made.store.close()


def test_a_running_stream_is_paused_for_its_snapshot_and_goes_on(bench):
    asked = bench.ask()
    bench.look()
    assert bench.store.get_snapshot(asked.id).state is SnapshotState.COMPLETED
    assert bench.process.orders == ["pause", "run"]
    bench.store.delete_snapshot(asked.id)
    bench.look()
    assert bench.store.list_snapshots() == []


def test_a_stream_without_a_process_has_its_snapshot_made_at_rest(bench):
    bench.process.is_running = False
    asked = bench.ask(with_source=False)
    bench.look()
    assert bench.store.get_snapshot(asked.id).state is SnapshotState.COMPLETED
    assert bench.process.orders == []


def test_a_snapshot_with_its_source_waits_until_the_stream_runs(bench):
    """After a move the home's state may be old, and a later rollback would discard rows that it does not know."""
    bench.process.is_running = False
    asked = bench.ask()
    bench.look()
    assert bench.store.get_snapshot(asked.id) == asked
    bench.process.is_running = True
    bench.look()
    assert bench.store.get_snapshot(asked.id).state is SnapshotState.COMPLETED


def test_a_stream_is_put_back_once_its_process_has_ended(bench):
    asked = bench.ask()
    bench.look()
    restore = bench.ask_back(asked)
    bench.look()
    assert bench.work.is_going_back("backup")
    assert list_running_restores(bench.store) == [restore]
    bench.process.is_running = False
    bench.look()
    (ended,) = bench.store.list_restores("backup")
    assert ended.state is RestoreState.SUCCEEDED
    assert JournalMark(bench.state / "journal").is_asked
    bench.look()
    assert not bench.work.is_going_back("backup")


def take_scheduled(bench):
    asked = bench.store.create_snapshot("backup", with_source=True, actor="agent", reason=SnapshotReason.SCHEDULED)
    return bench.take(asked).id


def test_scheduled_snapshots_take_the_place_of_older_ones(bench):
    manual = bench.ask(with_source=False)
    bench.look()
    scheduled = [take_scheduled(bench) for _ in range(3)]
    work = bench.make(every_seconds=3600, keep=2)
    for _ in range(3):
        bench.look(work)
    assert [each.id for each in bench.store.list_snapshots()] == [scheduled[2], scheduled[1], manual.id]


def test_a_snapshot_is_asked_for_when_the_newest_is_too_old_and_not_before(bench):
    for every_seconds, expected in ((0.0, 0), (3600.0, 1), (3600.0, 1), (1e-6, 2)):
        work = bench.make(every_seconds=every_seconds)
        bench.look(work)
        made = bench.store.list_snapshots()
        assert [(each.reason, each.with_source) for each in made] == [(SnapshotReason.SCHEDULED, True)] * expected
        assert {each.state for each in made} <= {SnapshotState.COMPLETED}


def test_nothing_is_left_of_a_snapshot_whose_stream_ended_before_it_was_whole(bench):
    asked = bench.ask()
    with patch.object(SnapshotTaker, "_copy", side_effect=KilledError), pytest.raises(KilledError):
        bench.take(asked)
    assert len(bench.sources()) == 1
    bench.store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    for _ in range(2):
        bench.work.look([], {"backup"})
        bench.work.stop()
    ended = bench.store.get_snapshot(asked.id)
    assert (ended.state, ended.error.code) == (SnapshotState.FAILED, "snapshot_refused")
    assert (bench.sources(), bench.folders(), ended.place) == ([], [], None)


def test_a_snapshot_that_was_whole_when_its_stream_ended_is_completed(bench):
    asked = bench.ask()
    with patch.object(JobStore, "end_step_job", side_effect=KilledError), pytest.raises(KilledError):
        bench.take(asked)
    bench.store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    bench.work.look([], {"backup"})
    bench.work.stop()
    made = bench.store.get_snapshot(asked.id)
    assert made.state is SnapshotState.COMPLETED
    assert bench.sources() == [source.snapshot for source in made.sources]


def test_what_is_left_of_a_snapshot_that_failed_is_deleted_by_a_later_look(bench):
    asked, away = bench.ask(), PubSubUnavailableError(BROKEN)
    with (
        patch.object(DiskFiles, "complete", side_effect=away),
        patch.object(PubSub, "delete_snapshot", side_effect=away),
    ):
        bench.look()
    assert bench.store.get_snapshot(asked.id).state is SnapshotState.FAILED
    assert len(bench.sources()) == 1
    bench.look(bench.make())
    assert (bench.sources(), bench.folders()) == ([], [])
    assert bench.store.get_snapshot(asked.id).place is None


def test_a_pause_of_another_order_is_not_this_one(tmp_path):
    stream = Stream(tmp_path / "status.json", follows=False)
    stream.write("paused", 7)
    with (
        pytest.raises(SnapshotRefusedError, match="did not pause within"),
        pause_stream(cast(StreamProcess, stream), timeout_seconds=0.1),
    ):
        pytest.fail("the stream has not paused")
    assert stream.orders == ["pause", "run"]


def end_by_itself(stream):
    stream.write("running", 1)


def be_overtaken(stream):
    stream.write("paused", 2)


@pytest.mark.parametrize("change", [end_by_itself, be_overtaken])
def test_a_block_that_outlasts_the_pause_fails(tmp_path, change):
    stream = Stream(tmp_path / "status.json")
    with (
        pytest.raises(SnapshotRefusedError, match="took longer than the stream's pause of"),
        pause_stream(cast(StreamProcess, stream), timeout_seconds=5),
    ):
        change(stream)
    assert stream.orders[-1] == "run"


def test_a_stream_goes_on_after_a_block_that_failed(tmp_path):
    stream = Stream(tmp_path / "status.json")
    with pytest.raises(ZeroDivisionError), pause_stream(cast(StreamProcess, stream), timeout_seconds=5):
        raise ZeroDivisionError
    assert stream.orders == ["pause", "run"]


def test_no_schedule_asks_for_a_snapshot_of_a_stream_that_is_to_end(bench):
    bench.store.take_streams("agent", limit=1, lease_seconds=60)
    bench.store.end_stream("backup", Wanted.DRAINED, actor="ann")
    bench.look(bench.make(every_seconds=3600))
    assert bench.store.list_snapshots() == []


def test_retention_keeps_the_snapshot_that_a_stream_is_put_back_to(bench):
    scheduled = [take_scheduled(bench) for _ in range(3)]
    bench.store.create_restore("backup", scheduled[0], actor="ann")
    bench.look(bench.make(every_seconds=3600, keep=1))
    assert [each.id for each in bench.store.list_snapshots(states=[SnapshotState.COMPLETED])] == [
        scheduled[2],
        scheduled[0],
    ]


def count_threads(bench, kind="snapshot"):
    """Return how many threads twenty looks begin."""
    begun = []
    start = threading.Thread.start

    def count(thread):
        if thread.name.startswith(f"{kind}-"):
            begun.append(thread.name)
        start(thread)

    with pytest.MonkeyPatch.context() as context:
        context.setattr(threading.Thread, "start", count)
        for _ in range(20):
            bench.look()
    return len(begun)


def test_what_another_machine_has_to_delete_costs_no_thread_a_look(bench):
    asked = bench.ask(with_source=False)
    begin_snapshot(bench.store, asked.id, SnapshotPlace("elsewhere", "/home/snapshots"))
    bench.store.delete_snapshot(asked.id)
    assert count_threads(bench) == 0
    assert bench.store.get_snapshot(asked.id).state is SnapshotState.DELETING


def test_a_snapshot_that_raises_what_nobody_expects_is_not_tried_at_every_look(bench):
    bench.ask(with_source=False)
    with pytest.MonkeyPatch.context() as context:
        context.setattr(SnapshotTaker, "take", lambda *_: 1 / 0)
        assert count_threads(bench) == 1


def test_the_schedule_reads_nothing_of_the_snapshots_that_people_keep_and_of_those_that_failed(bench):
    def look():
        work = bench.make(every_seconds=3600, keep=3)
        with counted(bench.store) as done:
            bench.look(work)
        return done

    for _ in range(3):
        take_scheduled(bench)
    first = look()
    error = FaultRecord("pubsub_error", "Pub/Sub refused it.")
    for _ in range(100):
        complete_snapshot(bench.store, bench.ask().id)
    for _ in range(20):
        fail_snapshot(bench.store, bench.ask().id, error)
    after = look()
    assert (after.statements, after.rows) == (first.statements, first.rows)
    assert after.instructions <= first.instructions + 200, "not one for each snapshot"


def test_the_schedule_asks_the_store_as_often_for_many_streams_as_for_one(bench):
    def count_statements(held):
        work = bench.make(every_seconds=3600)
        records = bench.store.list_streams()[:held]
        with counted(bench.store) as done:
            work.look([(record, None, bench.state) for record in records])
        return done.statements

    count_statements(1)
    of_one = count_statements(1)
    for number in range(20):
        bench.store.launch_stream(f"other-{number:02}", StreamKind.BACKUP, actor="ann")
    count_statements(21)
    assert len(bench.store.list_snapshots(states=[SnapshotState.PENDING])) == 21
    # However many of the streams this agent holds.
    assert (count_statements(21), count_statements(1)) == (of_one, of_one)


def test_a_deletion_that_fails_in_a_way_that_nobody_expects_is_tried_again(bench):
    asked = bench.take()
    bench.store.delete_snapshot(asked.id)
    with patch.object(PubSub, "list_snapshots", side_effect=ZeroDivisionError):
        bench.look()
    found = bench.store.get_snapshot(asked.id)
    assert (found.state, found.error) == (SnapshotState.DELETING, None)
    bench.look(bench.make())
    assert bench.store.list_snapshots() == []
