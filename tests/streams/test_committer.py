import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest

from model.errors import CommitOutcomeUnknownError, LeaseLostError, RefeedError, StorageFullError
from streams.batch import Batch
from streams.committer import StreamCommitter
from streams.ids import ONLY_TABLE, TABLE_IDS_SCHEMA, concat_ids
from streams.journal import EntryState, Journal
from streams.status import StatusFile
from streams.targets import TargetPart, TaskOutput
from tests.waiting import wait_until

NONE = TABLE_IDS_SCHEMA.empty_table()


def ids(*message_ids, table=ONLY_TABLE):
    row = {"topic": "t", "subscription": "s", "publish_time": datetime(2024, 3, 1, tzinfo=UTC), "table": table}
    found = [{**row, "message_id": n, "ack_id": f"a{n}"} for n in message_ids]
    return pa.Table.from_pylist(found, TABLE_IDS_SCHEMA)


class Leases:
    """Acknowledges everything unless it ``is_down``, and knows whether messages are held at the moment."""

    is_held = False
    is_down = False

    def __init__(self):
        self.acked: list[str] = []
        self.given_back: list[str] = []

    @contextmanager
    def extended(self, *_):
        self.is_held = True
        yield
        self.is_held = False

    def acknowledge(self, ids, _):
        if self.is_down:
            return ids
        self.acked += ids.column("ack_id").to_pylist()
        return ids.slice(0, 0)

    def give_back(self, ids):
        self.given_back += ids.column("ack_id").to_pylist()


class OneTable:
    """A table in memory whose parts are lists of ids, each taken whole or not at all."""

    def __init__(self):
        self.rows: list[str] = []
        self.dropped: list[list[str]] = []
        self.numbers: list[int] = []
        self.newest = {ONLY_TABLE: 0}
        self.is_lost = False
        self.full: str | None = None
        self.fault: RefeedError | None = None
        # The tables that have their parts of an attempt that a crash left.
        self.settled = frozenset()

    def take(self, name):
        if self.is_lost:
            raise LeaseLostError(lease="l")
        return self.newest[name]

    def without(self, name, part, flags):
        self.drop(name, part)

    def which_follow(self, parts):
        return [True] * len(parts)

    def commit(self, parts, number, ids, commit_id):
        self.numbers.append(number)
        if self.fault is not None:
            raise self.fault
        committed = frozenset(parts) - {self.full}
        for part in (part for name in committed for part in parts[name]):
            self.rows += part.ids
        return committed, StorageFullError() if self.full in parts else None

    def settle(self, number, names, commit_id):
        return self.settled & set(names)

    def drop(self, name, part):
        self.dropped.append(part.ids)


class Stream:
    def __init__(self, folder, *, keep_seconds=600):
        self.leases = Leases()
        self.table = OneTable()
        self.room = True
        self.folder, self.keep_seconds = folder, keep_seconds
        self.start()

    def start(self):
        self.journal = Journal(self.folder / "journal", keep_seconds=self.keep_seconds, schema=TABLE_IDS_SCHEMA)
        work = SimpleNamespace(
            name="test", counted=(), status=dict, count=lambda *_: None, learn=lambda *_: self.room
        )
        self.committer = StreamCommitter(
            work=work,
            targets=self.table,
            names=[ONLY_TABLE],
            journal=self.journal,
            ack_leases=self.leases,
            status=StatusFile(self.folder / "status.json"),
        )

    def commit(self, *numbers, settled=NONE, unfit=NONE, wait_seconds=0.0, table=ONLY_TABLE):
        part = SimpleNamespace(ids=list(numbers), rows=len(numbers))
        parts = (TargetPart(table, part, ids(*numbers, table=table)),) if numbers else ()
        output = TaskOutput(parts, settled, unfit, None)
        self.committer.commit_batch(Batch((output,), next_at=time.monotonic() + wait_seconds))

    def commit_parts(self, parts):
        """Commit one batch for several tables."""
        made = [
            TargetPart(name, SimpleNamespace(ids=found, rows=len(found)), ids(*found, table=name))
            for name, found in parts.items()
        ]
        self.committer.commit_batch(Batch((TaskOutput(tuple(made), NONE, NONE, None),)))


@pytest.fixture
def stream(tmp_path):
    return Stream(tmp_path)


def test_no_message_is_held_while_a_quota_is_waited_for(stream, monkeypatch):
    held = []
    sleep = time.sleep

    def note(seconds):
        held.append(stream.leases.is_held)
        sleep(seconds)

    monkeypatch.setattr("streams.committer.time.sleep", note)
    stream.commit("1", wait_seconds=1.0)
    assert set(held) == {False}
    assert stream.leases.acked == ["a1"]


def test_the_status_has_the_times_of_the_first_and_the_last_commit_and_of_nothing_else(stream):
    stream.commit(settled=ids("1"))
    assert "last_commit_at" not in stream.committer.status.fields()
    before = time.time()
    stream.commit("2")
    first = stream.committer.status.fields()
    stream.commit("3")
    stream.commit(settled=ids("4"))
    last = stream.committer.status.fields()
    assert before <= first["first_commit_at"] == first["last_commit_at"] <= last["last_commit_at"] <= time.time()
    assert last["first_commit_at"] == first["first_commit_at"] < last["last_commit_at"]


def test_messages_without_a_row_are_acknowledged_with_the_batch_and_known(stream):
    stream.commit("1", settled=ids("2"))
    stream.commit(settled=ids("3"))
    assert (stream.table.rows, stream.leases.acked) == (["1"], ["a1", "a2", "a3"])
    (entry,) = stream.journal.entries(EntryState.DONE)
    assert entry.read_ids().column("message_id").to_pylist() == ["1", "2"]


def test_new_rows_of_a_part_that_is_taken_whole_or_not_at_all_come_again_and_known_ones_are_acknowledged(stream):
    stream.commit("1")
    stream.commit("1", "2", settled=ids("9"))
    assert (stream.table.rows, stream.table.dropped) == (["1"], [["1", "2"]])
    assert (stream.leases.acked, stream.leases.given_back) == (["a1", "a1", "a9"], ["a2"])


@pytest.mark.parametrize("is_room", [True, False])
def test_messages_that_do_not_fit_come_again_at_once_only_where_there_is_room_for_them(stream, is_room):
    stream.room = is_room
    stream.commit("1", unfit=ids("2"))
    assert (stream.leases.acked, stream.leases.given_back) == (["a1"], ["a2"] if is_room else [])


def test_an_attempt_is_newer_than_those_of_every_table_that_it_commits_to(stream):
    # A table that is not taken yet has attempts of the stream's earlier life, which the journal has forgotten.
    stream.table.newest["other"] = 57
    stream.commit("1", table="other")
    assert stream.table.numbers == [58]
    assert [entry.attempt for entry in stream.journal.entries(EntryState.DONE)] == [58]


def test_parts_whose_table_another_stream_has_are_dropped_and_nothing_is_acknowledged(stream):
    stream.table.is_lost = True
    with pytest.raises(LeaseLostError):
        stream.commit("1", table="other")
    assert (stream.table.rows, stream.table.dropped, stream.leases.acked) == ([], [["1"]], [])
    assert stream.journal.entries(EntryState.PENDING) == []


def test_a_batch_waits_its_turn_with_its_messages_held_and_another_waits_for_no_quota(stream):
    """A pause has the turn: no journal entry, commit or acknowledgement comes while the state is copied."""
    assert stream.committer.turn.acquire(blocking=False)
    first = threading.Thread(target=stream.commit, args=("1",), daemon=True)
    first.start()
    wait_until(lambda: stream.leases.is_held, "its messages are held")
    assert (stream.table.rows, stream.leases.acked) == ([], [])
    assert stream.journal.entries(EntryState.PENDING) == []
    stream.committer.turn.release()
    first.join(30)
    assert (stream.table.rows, stream.leases.acked) == (["1"], ["a1"])
    waits = threading.Thread(target=stream.commit, args=("2",), kwargs={"wait_seconds": 0.5}, daemon=True)
    waits.start()
    assert stream.committer.turn.acquire(timeout=30), "a quota is waited for between two commits"
    stream.committer.turn.release()
    waits.join(30)
    assert stream.leases.acked == ["a1", "a2"]


def test_a_batch_that_is_given_back_comes_again_at_once_and_its_parts_are_dropped(stream):
    part = SimpleNamespace(ids=["1", "2"], rows=2)
    output = TaskOutput((TargetPart(ONLY_TABLE, part, ids("1", "2")),), ids("3"), ids("4"), None)
    assert stream.committer.give_back(Batch((output,))) == 4
    assert (stream.leases.given_back, stream.leases.acked) == (["a1", "a2", "a3", "a4"], [])
    assert (stream.table.rows, stream.table.dropped) == ([], [["1", "2"]])


@pytest.mark.parametrize("is_restarted", [False, True])
def test_messages_whose_acks_failed_stay_known_however_long_pubsub_is_away(tmp_path, is_restarted):
    stream = Stream(tmp_path, keep_seconds=0)
    stream.leases.is_down = True
    stream.commit("1", "2")
    stream.commit()
    if is_restarted:
        stream.start()
    stream.leases.is_down = False
    stream.commit("9")
    stream.commit("1", "2")
    assert stream.table.rows == ["1", "2", "9"]
    assert stream.leases.acked == ["a9", "a1", "a2"]


def test_a_known_message_whose_ack_fails_stays_known(stream):
    stream.commit("1")
    stream.leases.is_down = True
    stream.commit("1")
    (entry,) = stream.journal.entries(EntryState.RECOVERED)
    assert entry.read_ids().column("message_id").to_pylist() == ["1"]


def test_a_full_disk_has_a_message_known_where_its_table_has_it_and_nowhere_else(stream, monkeypatch):
    """The disk has room for nothing: neither for one table's commit nor for the journal's shorter entry."""

    def full(*_):
        raise StorageFullError

    stream.table.newest["other"] = 0
    stream.table.full = "other"
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "keep_only", full)
        with pytest.raises(StorageFullError):
            stream.commit_parts({ONLY_TABLE: ["1"], "other": ["2"]})
        assert (stream.table.rows, stream.leases.acked) == (["1"], ["a1"])
        # Where there is still no room nothing is compared with the journal.
        with pytest.raises(StorageFullError):
            stream.commit("1")
    stream.table.full = None
    stream.commit("1")
    stream.commit("2", table="other")
    assert (stream.table.rows, stream.leases.acked) == (["1", "2"], ["a1", "a1", "a2"])


def test_known_messages_are_acknowledged_though_another_table_of_their_batch_has_no_room(stream):
    stream.table.newest["other"] = 0
    stream.commit("1")
    stream.table.full = "other"
    with pytest.raises(StorageFullError):
        stream.commit_parts({ONLY_TABLE: ["1"], "other": ["2"]})
    assert (stream.table.rows, stream.leases.acked) == (["1"], ["a1", "a1"])


def test_a_commit_whose_outcome_is_unknown_is_left_to_the_next_start(stream):
    stream.table.fault = CommitOutcomeUnknownError()
    with pytest.raises(CommitOutcomeUnknownError):
        stream.commit("1")
    assert (stream.leases.acked, len(stream.journal.entries(EntryState.PENDING))) == ([], 1)


def test_a_start_acknowledges_what_a_table_has_of_a_crashed_attempt_and_forgets_the_rest(stream):
    stream.journal.write(1, concat_ids([ids("1"), ids("2", table="other")]))
    stream.table.settled = frozenset({ONLY_TABLE})
    stream.table.newest["other"] = 0
    stream.start()
    stream.committer.recover()
    assert stream.leases.acked == ["a1"]
    stream.commit("1")
    stream.commit("2", table="other")
    assert (stream.table.rows, stream.leases.acked) == (["2"], ["a1", "a1", "a2"])


def test_a_disk_that_is_full_after_the_commit_forgets_nothing_that_was_not_acknowledged(tmp_path, monkeypatch):
    def full(*_):
        raise StorageFullError

    stream = Stream(tmp_path, keep_seconds=0)
    stream.leases.is_down = True
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remember", full)
        stream.commit("1")
    stream.leases.is_down = False
    stream.commit("1")
    assert (stream.table.rows, stream.leases.acked) == (["1"], ["a1"])
