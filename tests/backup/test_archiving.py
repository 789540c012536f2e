import math
import time
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from google.pubsub_v1.types import AcknowledgeRequest, ModifyAckDeadlineRequest

from backup.archiving import ArchiveTarget, Archiving
from backup.source import ArchiveTask
from connectors.lake.archive import LakeArchive
from connectors.pubsub.source import TaskResult
from streams import ack_leases as ack_leases_module
from streams.ack_leases import AckLeases
from streams.committer import StreamCommitter
from streams.ids import ONLY_TABLE
from streams.journal import EntryState, Journal
from streams.learning import Learner
from streams.status import StatusFile
from tests.waiting import wait_until


class AckChannel:
    """Keeps which ids were acknowledged."""

    def __init__(self) -> None:
        self.acked: list[str] = []
        self.extended: list[str] = []

    def unary_unary(self, method, request_serializer, response_deserializer):
        return Extensions(self) if method.endswith("ModifyAckDeadline") else self

    def future(self, request, timeout):
        self.acked += AcknowledgeRequest.deserialize(request).ack_ids
        return SimpleNamespace(result=bytes)


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
                SimpleNamespace(again_since=None, expect_again=lambda *_: None),
                read_ids=lambda _, span: self.archive.read_ids(span),
                find_oldest=lambda: datetime.now(UTC),
                min_free_bytes=0,
                status=status,
            ),
        )
        self.committer.recover()

    def batch(self, *slots, held_until=math.inf) -> None:
        """Run one batch: a slot is the pulled batches of one task."""
        rows = [
            TaskResult(number, self.task(iter(batches)), None, "{}", held_until)
            for number, batches in enumerate(slots)
        ]
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
    stream.batch([pulled("orders", b"a", b"b")], [pulled("orders", b"b", first=2)])
    version = stream.archive.version()
    stream.batch([pulled("orders", b"b", first=2)])
    assert stream.archive.version() == version
    stream.batch([pulled("orders", b"b", b"c", first=2)])
    assert stream.archived() == Counter([("orders", "1"), ("orders", "2"), ("orders", "3")])
    assert stream.channel.acked.count("orders-2") == 4


def test_the_status_file_counts_what_was_done(stream, pulled, tmp_path):
    stream.batch([pulled("orders", b"a", b"b")])
    stream.batch([pulled("orders", b"b", first=2)])
    status = StatusFile.read(tmp_path / "status.json")
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


@pytest.mark.parametrize("seconds", [-1, 60])
def test_an_acknowledgement_that_is_later_than_its_lease_leaves_the_message_known(stream, pulled, seconds):
    """Pub/Sub takes it without an error, and may deliver the message again whenever it likes."""
    stream.batch([pulled("orders", b"a")], [pulled("orders", b"b", first=2)], held_until=time.time() + seconds)
    kept = [entry.read_ids()["message_id"].to_pylist() for entry in stream.journal.entries(EntryState.RECOVERED)]
    assert kept == ([["1", "2"]] if seconds < 0 else [])


def test_an_extension_of_a_lease_that_was_over_is_no_lease_again(stream, pulled, monkeypatch):
    monkeypatch.setattr(ack_leases_module, "_EXTEND_EVERY_SECONDS", 0.02)
    commit = LakeArchive.commit

    def slow_commit(*call):
        count = len(stream.channel.extended)
        wait_until(lambda: len(stream.channel.extended) > count, "the lease is extended")
        commit(*call)

    monkeypatch.setattr(LakeArchive, "commit", slow_commit)
    stream.batch([pulled("orders", b"a")], held_until=time.time() - 1)
    assert len(stream.journal.entries(EntryState.RECOVERED)) == 1
    stream.batch([pulled("orders", b"b", first=2)], held_until=time.time() + 10)
    assert len(stream.journal.entries(EntryState.RECOVERED)) == 1
