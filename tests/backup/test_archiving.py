import json
import time
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace

import grpc
import pyarrow.parquet as pq
import pytest
from google.pubsub_v1.types import AcknowledgeRequest, ModifyAckDeadlineRequest

from backup.archiving import ArchiveTarget, Archiving
from backup.source import ArchiveTask
from connectors.lake.archive import LakeArchive
from connectors.pubsub.source import TaskResult
from model.errors import LeaseLostError, PubSubUnavailableError, StorageFullError, WarehouseError
from streams import ack_leases as ack_leases_module
from streams.ack_leases import AckLeases
from streams.batch import Batch
from streams.committer import StreamCommitter
from streams.ids import ONLY_TABLE
from streams.journal import EntryState, Journal
from streams.learning import Learner
from streams.status import StatusFile
from tests.waiting import wait_until


class Refused(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.PERMISSION_DENIED

    def details(self) -> str:
        return "no"


class AckChannel:
    """Keeps which ids were acknowledged; it refuses all while ``is_down``, else those of the topics ``down``."""

    def __init__(self) -> None:
        self.acked: list[str] = []
        self.extended: list[str] = []
        self.is_down = False
        self.down: set[str] = set()

    def unary_unary(self, method, request_serializer, response_deserializer):
        return Extensions(self) if method.endswith("ModifyAckDeadline") else self

    def future(self, request, timeout):
        asked = AcknowledgeRequest.deserialize(request)
        is_refused = self.is_down or asked.subscription.rpartition(".")[2] in self.down
        if not is_refused:
            self.acked += asked.ack_ids
        return SimpleNamespace(result=refuse if is_refused else bytes)


def refuse():
    raise Refused


class Extensions:
    """The other method: it keeps whose leases were extended."""

    def __init__(self, channel: AckChannel) -> None:
        self.channel = channel

    def future(self, request, timeout):
        self.channel.extended += ModifyAckDeadlineRequest.deserialize(request).ack_ids
        return self

    def result(self):
        return b""


class Stream:
    """A committer over a real lake, and what it takes to start another one after a crash."""

    stream_id = "s"
    keep_seconds = 600
    # Whether its first start is in a new home, after another stream's.
    has_moved = False

    def __init__(self, archive, folder) -> None:
        self.archive = archive
        self.folder = folder
        self.channel = AckChannel()
        self.task = ArchiveTask(archive.writer(), "secret")
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.folder / "journal", keep_seconds=self.keep_seconds)
        if self.has_moved and not self.journal.mark.name:
            self.journal.begin(knows_all=False)
        status = StatusFile(self.folder / "status.json")
        target = ArchiveTarget(self.archive, stream=self.stream_id, lease="l", epoch=self.archive.take_lease("l"))
        self.committer = StreamCommitter(
            work=Archiving(self.archive.parse_part),
            targets=target,
            names=[ONLY_TABLE],
            journal=self.journal,
            ack_leases=AckLeases(self.channel, "p"),
            status=status,
            learner=Learner(
                self.journal,
                SimpleNamespace(),
                read_ids=lambda _, span: self.archive.read_ids(span),
                find_oldest=lambda: datetime.now(UTC),
                min_free_bytes=0,
                status=status,
            ),
        )
        self.committer.recover()

    def batch(self, *slots, error: dict | None = None) -> None:
        """Run one batch: a slot is the pulled batches of one task."""
        rows = [TaskResult(number, self.task(iter(batches)), None, "{}") for number, batches in enumerate(slots)]
        if error is not None:
            rows.append(TaskResult(len(rows), None, json.dumps(error), "{}"))
        self.committer.commit_batch(self.committer.open_batch(rows))

    def archived(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for file in self.archive.data_files():
            for row in pq.ParquetFile(file.path).read(columns=["topic", "message_id"]).to_pylist():
                found[row["topic"], row["message_id"]] += 1
        return found


@pytest.fixture
def stream(archive, tmp_path):
    return Stream(archive, tmp_path)


@pytest.fixture
def fail_at(monkeypatch):
    """Run a batch in which one method raises, which ends it."""

    def run(stream, where, name, error, *slots):
        def fail(*_, **_named):
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(where, name, fail)
            with pytest.raises(error):
                stream.batch(*slots)

    return run


def test_a_batch_is_one_commit_and_acknowledged_after_it(stream, pulled):
    before = stream.archive.version()
    stream.batch([pulled("orders", b"a", b"b")], [pulled("members", b"c")])
    assert stream.archived() == Counter([("orders", "1"), ("orders", "2"), ("members", "1")])
    assert stream.archive.version() == before + 1
    assert sorted(stream.channel.acked) == ["members-1", "orders-1", "orders-2"]
    assert [entry.attempt for entry in stream.journal.entries(EntryState.DONE)] == [1]


def test_a_batch_without_a_message_changes_nothing_and_its_leases_can_be_held(stream):
    before = stream.archive.version()
    empty = stream.committer.open_batch([TaskResult(0, None, None, "{}")])
    with stream.committer.hold(empty):
        stream.committer.commit_batch(empty)
    assert stream.archive.version() == before
    assert empty.ids().num_rows == 0


def test_a_message_that_comes_again_is_acknowledged_and_not_written_again(stream, pulled):
    stream.batch([pulled("orders", b"a", b"b")])
    stream.batch([pulled("orders", b"b", b"c", first=2)])
    assert stream.archived() == Counter([("orders", "1"), ("orders", "2"), ("orders", "3")])
    assert stream.channel.acked.count("orders-2") == 2


def test_a_message_that_two_tasks_pulled_is_written_once(stream, pulled):
    stream.batch([pulled("orders", b"a")], [pulled("orders", b"a", b"b")])
    assert stream.archived() == Counter([("orders", "1"), ("orders", "2")])


def test_a_batch_of_known_messages_alone_commits_nothing(stream, pulled):
    stream.batch([pulled("orders", b"a")])
    version = stream.archive.version()
    stream.batch([pulled("orders", b"a")])
    assert stream.archive.version() == version
    assert stream.channel.acked == ["orders-1", "orders-1"]


def test_an_ack_that_fails_costs_nothing_the_message_is_known_when_it_comes_again(stream, pulled):
    stream.channel.is_down = True
    stream.batch([pulled("orders", b"a")])
    stream.channel.is_down = False
    stream.batch([pulled("orders", b"a")])
    assert stream.archived() == Counter([("orders", "1")])
    assert stream.channel.acked == ["orders-1"]


@pytest.fixture
def forgetful(archive, tmp_path, monkeypatch):
    """A stream that forgets at once what it may forget."""
    monkeypatch.setattr(Stream, "keep_seconds", 0)
    return Stream(archive, tmp_path)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_messages_whose_acks_failed_stay_known_however_long_pubsub_is_away(forgetful, pulled, is_restarted):
    forgetful.channel.is_down = True
    forgetful.batch([pulled("orders", b"a", b"b")])
    forgetful.batch()
    if is_restarted:
        forgetful.start()
    forgetful.channel.is_down = False
    forgetful.batch([pulled("members", b"x")])
    forgetful.batch([pulled("orders", b"a", b"b")])
    assert forgetful.archived() == Counter([("orders", "1"), ("orders", "2"), ("members", "1")])
    assert sorted(forgetful.channel.acked) == ["members-1", "orders-1", "orders-2"]


def test_only_what_was_not_acknowledged_stays_known(forgetful, pulled):
    forgetful.channel.down = {"orders"}
    forgetful.batch([pulled("orders", b"a")], [pulled("members", b"x", b"y")])
    (entry,) = forgetful.journal.entries(EntryState.RECOVERED)
    assert entry.read_ids().select(["topic", "message_id", "ack_id"]).to_pylist() == [
        {"topic": "orders", "message_id": "1", "ack_id": ""}
    ]
    assert forgetful.journal.entries(EntryState.DONE) == []


def test_a_known_message_whose_ack_fails_stays_known(stream, pulled):
    stream.batch([pulled("orders", b"a")])
    stream.channel.is_down = True
    stream.batch([pulled("orders", b"a")])
    (entry,) = stream.journal.entries(EntryState.RECOVERED)
    assert entry.read_ids().column("message_id").to_pylist() == ["1"]
    stream.channel.is_down = False
    stream.batch([pulled("orders", b"a", b"b")])
    assert stream.archived() == Counter([("orders", "1"), ("orders", "2")])


def test_a_disk_that_is_full_after_the_commit_forgets_nothing_that_was_not_acknowledged(
    forgetful, pulled, monkeypatch
):
    write = Journal._write

    def refuse_recovered(self, path, ids):
        if "recovered" in path.name:
            raise StorageFullError
        write(self, path, ids)

    forgetful.channel.is_down = True
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_write", refuse_recovered)
        forgetful.batch([pulled("orders", b"a")])
    forgetful.channel.is_down = False
    forgetful.batch([pulled("orders", b"a")])
    assert forgetful.archived() == Counter([("orders", "1")])


def test_a_commit_that_failed_acknowledges_nothing_and_its_messages_are_new_again(stream, pulled, fail_at):
    fail_at(stream, LakeArchive, "commit", StorageFullError, [pulled("orders", b"a")])
    assert stream.channel.acked == []
    stream.batch([pulled("orders", b"a")])
    assert stream.archived() == Counter([("orders", "1")])


def test_a_crash_between_commit_and_acks_acknowledges_at_the_next_start(stream, pulled, fail_at):
    fail_at(stream, StreamCommitter, "_acknowledge", KeyboardInterrupt, [pulled("orders", b"a")])
    assert stream.channel.acked == []
    stream.start()
    assert stream.channel.acked == ["orders-1"]
    stream.batch([pulled("orders", b"a", b"b")])
    assert stream.archived() == Counter([("orders", "1"), ("orders", "2")])


def test_a_crash_between_journal_and_commit_forgets_the_attempt(stream, pulled, fail_at):
    fail_at(stream, LakeArchive, "commit", KeyboardInterrupt, [pulled("orders", b"a")])
    stream.start()
    assert stream.channel.acked == []
    stream.batch([pulled("orders", b"a")])
    assert stream.archived() == Counter([("orders", "1")])


def test_another_homes_commits_do_not_make_a_crashed_attempt_look_committed(stream, pulled, fail_at, archive):
    fail_at(stream, LakeArchive, "commit", KeyboardInterrupt, [pulled("orders", b"a")])
    other = Stream(archive.another(), stream.folder / "other")
    other.committer._targets._stream = "other"
    other.batch([pulled("orders", b"x", first=9)])
    stream.start()
    assert stream.channel.acked == []


def test_a_stream_whose_lease_was_taken_commits_and_acknowledges_nothing(stream, pulled):
    stream.archive.another().take_lease("l")
    with pytest.raises(LeaseLostError):
        stream.batch([pulled("orders", b"a")])
    assert stream.archived() == Counter()
    assert stream.channel.acked == []


def test_an_error_that_a_task_reports_ends_the_batch_before_its_commit(stream, pulled):
    with pytest.raises(StorageFullError, match="full"):
        stream.batch([pulled("orders", b"a")], error={"code": "storage_full", "message": "the disk is full"})
    with pytest.raises(PubSubUnavailableError):
        stream.batch(error={"code": "pubsub_unavailable", "message": "away"})
    assert stream.archived() == Counter()
    assert stream.channel.acked == []


def test_the_status_file_counts_what_was_done(stream, pulled, tmp_path):
    stream.batch([pulled("orders", b"a", b"b")])
    stream.batch([pulled("orders", b"b", first=2)])
    status = StatusFile.read(tmp_path / "status.json")
    assert status is not None
    assert status["totals"] == {
        "messages": 2,
        "file_bytes": status["totals"]["file_bytes"],
        "replays": 0,
        "dead_letters": 0,
        "faults": 0,
        "commits": 1,
        "redelivered": 1,
    }
    assert 0 < status["batch_seconds"] < 60


def test_an_unreadable_table_after_a_commit_leaves_the_attempt_to_the_next_start(stream, pulled, monkeypatch):
    commit = LakeArchive._commit

    def commit_then_break(self, table, files, transactions):
        commit(self, table, files, transactions)
        raise OSError("connection reset")

    def unreadable(*_):
        raise WarehouseError("unreadable")

    with monkeypatch.context() as patched:
        patched.setattr(LakeArchive, "_commit", commit_then_break)
        patched.setattr(LakeArchive, "committed_attempt", unreadable)
        with pytest.raises(WarehouseError, match="can't be read"):
            stream.batch([pulled("orders", b"a")])
    assert stream.channel.acked == []
    assert len(stream.journal.entries(EntryState.PENDING)) == 1
    stream.start()
    assert stream.channel.acked == ["orders-1"]
    stream.batch([pulled("orders", b"a")])
    assert stream.archived() == Counter([("orders", "1")])


def test_leases_are_extended_for_as_long_as_a_commit_takes(stream, pulled, monkeypatch):
    monkeypatch.setattr(ack_leases_module, "_EXTEND_EVERY_SECONDS", 0.02)
    commit = LakeArchive.commit

    def slow_commit(*call):
        wait_until(lambda: stream.channel.extended.count("orders-1") >= 3, "the lease is extended")
        commit(*call)

    monkeypatch.setattr(LakeArchive, "commit", slow_commit)
    stream.batch([pulled("orders", b"a")])
    assert stream.channel.acked == ["orders-1"]
    extended = len(stream.channel.extended)
    time.sleep(0.1)  # five times what an extension would take, were the thread still there
    assert len(stream.channel.extended) == extended


def test_a_batch_in_which_nothing_came_holds_no_ids():
    assert Batch().ids().num_rows == 0
