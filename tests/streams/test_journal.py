import itertools
import os
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from model.errors import CheckpointCorruptError, WarehouseUnavailableError
from streams import journal as journal_module
from streams import spool
from streams.ids import IDS_SCHEMA, TABLE_IDS_SCHEMA, concat_ids
from streams.journal import EntryState, Journal
from streams.journal_mark import ask_to_learn

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)


def ids(*message_ids: str, topic: str = "orders", at: datetime = NOON) -> pa.Table:
    count = len(message_ids)
    return pa.table(
        {
            "topic": pa.array([topic] * count).dictionary_encode(),
            "subscription": pa.array([f"refeed-backup.{topic}"] * count).dictionary_encode(),
            "message_id": list(message_ids),
            "publish_time": pa.array([at] * count, pa.timestamp("us", tz="UTC")),
            "ack_id": [f"ack-{m}" for m in message_ids],
        },
        schema=IDS_SCHEMA,
    )


def test_an_id_of_a_written_attempt_is_known_and_a_new_one_is_not(tmp_path):
    journal = Journal(tmp_path, keep_seconds=600)
    journal.write(1, ids("1", "2"))
    assert journal.find_known(ids("2", "3")).to_pylist() == [True, False]


def test_an_attempt_has_a_commit_of_its_own_which_stays_the_same_in_every_state_and_after_a_restart(tmp_path):
    journal = Journal(tmp_path, keep_seconds=600)
    entry, other = journal.write(1, ids("1", "2")), journal.write(2, ids("3"))
    assert entry.commit_id not in (None, other.commit_id)
    journal.keep_only(entry, ids("1"))
    found = Journal(tmp_path, keep_seconds=600)
    assert [each.commit_id for each in found.entries(EntryState.PENDING)] == [entry.commit_id, other.commit_id]
    moved = found.move(found.entries(EntryState.PENDING)[0], EntryState.RECOVERED)
    assert moved.commit_id == entry.commit_id


def test_an_attempt_that_an_earlier_refeed_wrote_has_no_commit_of_its_own(tmp_path):
    with pa.ipc.new_file(tmp_path / f"{1:015d}.pending.arrow", IDS_SCHEMA) as file:
        file.write_table(ids("1"))
    (entry,) = Journal(tmp_path, keep_seconds=600).entries(EntryState.PENDING)
    assert entry.commit_id is None


def test_the_same_id_on_another_topic_is_another_message(tmp_path):
    journal = Journal(tmp_path, keep_seconds=600)
    journal.write(1, ids("1", topic="orders"))
    assert journal.find_known(ids("1", topic="members")).to_pylist() == [False]


def test_the_second_of_two_equal_ids_in_one_batch_is_known(tmp_path):
    journal = Journal(tmp_path, keep_seconds=600)
    assert journal.find_known(concat_ids([ids("1", "2"), ids("2", "2")])).to_pylist() == [False, False, True, True]


def test_an_attempt_whose_publish_times_lie_elsewhere_is_not_even_opened(tmp_path):
    journal = Journal(tmp_path, keep_seconds=600)
    entry = journal.write(1, ids("1"))
    entry.path.write_bytes(b"unreadable")
    assert journal.find_known(ids("1", at=NOON + timedelta(seconds=1))).to_pylist() == [False]
    with pytest.raises(CheckpointCorruptError):
        journal.find_known(ids("1"))


def test_ids_are_found_where_only_a_part_of_the_batch_is_as_old_as_the_attempt(tmp_path):
    journal = Journal(tmp_path, keep_seconds=600)
    later, last = NOON + timedelta(seconds=1), NOON + timedelta(seconds=2)
    journal.write(1, concat_ids([ids("1", "2"), ids("3", at=later)]))
    batch = concat_ids([ids("4", at=last), ids("3", at=later), ids("5", at=later), ids("6", at=last)])
    assert journal.find_known(batch).to_pylist() == [False, True, False, False]


def test_only_messages_of_equal_times_are_compared_however_many_attempts_overlap(tmp_path, monkeypatch):
    """A drain has each attempt overlap all others: what a lookup compares is bound by what can repeat."""
    journal = Journal(tmp_path, keep_seconds=600)

    def attempt(number: int) -> pa.Table:
        """Return one of 40 attempts whose messages lie between those of all others."""
        moments = [NOON + timedelta(microseconds=40 * place + number) for place in range(50)]
        return concat_ids([ids(f"{number}.{place}", at=at) for place, at in enumerate(moments)])

    for number in range(40):
        journal.write(number + 1, attempt(number))
    compared = []
    is_among = Journal.is_among

    def noted(self, asked, others):
        compared.append(others.num_rows)
        return is_among(self, asked, others)

    monkeypatch.setattr(Journal, "is_among", noted)
    fresh = concat_ids([ids(f"new.{n}", at=NOON + timedelta(microseconds=n)) for n in range(40)])
    repeated = attempt(7).slice(3, 5)
    other = attempt(2_050)
    assert journal.find_known(other).true_count == 0
    assert compared == []
    assert journal.find_known(concat_ids([other, repeated])).to_pylist() == [False] * 50 + [True] * 5
    assert compared == [5]
    # Messages that were published at one moment with others are compared with these, and are new.
    assert journal.find_known(fresh).true_count == 0
    assert sum(compared) == 5 + 40


def test_an_attempt_of_other_topics_is_not_opened_however_its_time_overlaps(tmp_path):
    journal = Journal(tmp_path, keep_seconds=600)
    later = NOON + timedelta(seconds=9)
    entry = journal.write(1, concat_ids([ids("1", topic="orders"), ids("2", topic="members", at=later)]))
    entry.path.write_bytes(b"unreadable")
    asked = concat_ids([ids("3", topic="orders", at=later), ids("4", topic="members"), ids("5", topic="prices")])
    assert journal.find_known(asked).to_pylist() == [False] * 3
    with pytest.raises(CheckpointCorruptError):
        journal.find_known(concat_ids([asked, ids("6", topic="members", at=later)]))


class Clock:
    """Stands in for the journal's ``time``: a test moves it on."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now - 1_600_000_000.0


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(journal_module, "time", found)
    return found


def flow(journal: Journal, clock: Clock, seconds: int, *, has_messages: bool = True) -> None:
    """Let batches of a second end, one after the other."""
    for _ in range(seconds):
        clock.now += 1
        journal.prune(has_messages=has_messages)


def done(journal: Journal, attempt: int, message_id: str) -> None:
    journal.finish(journal.write(attempt, ids(message_id)), ids())


def test_done_attempts_leave_after_the_window_pending_and_unacknowledged_ones_stay(tmp_path, clock):
    journal = Journal(tmp_path, keep_seconds=100)
    journal.finish(journal.write(1, ids("1", "2")), ids("2"))
    journal.remember(2, ids("3"))
    journal.write(3, ids("4"))
    flow(journal, clock, 99)
    assert journal.find_known(ids("1", "2", "3", "4")).to_pylist() == [True, True, True, True]
    flow(journal, clock, 2)
    assert journal.find_known(ids("1", "2", "3", "4")).to_pylist() == [False, True, True, True]


def test_time_in_which_nothing_comes_does_not_count_towards_the_window(tmp_path, clock):
    journal = Journal(tmp_path, keep_seconds=100)
    done(journal, 1, "1")
    flow(journal, clock, 3600, has_messages=False)
    flow(journal, clock, 90)
    assert journal.find_known(ids("1")).to_pylist() == [True]
    flow(journal, clock, 11)
    assert journal.find_known(ids("1")).to_pylist() == [False]


def test_a_stream_that_stood_still_counts_a_tenth_of_the_window_for_it(tmp_path, clock):
    journal = Journal(tmp_path, keep_seconds=100)
    done(journal, 1, "1")
    clock.now += 3600  # stopped, or no commit went through
    flow(journal, clock, 80)
    assert journal.find_known(ids("1")).to_pylist() == [True]


def test_time_in_which_no_stream_ran_does_not_count_towards_the_window(tmp_path, clock):
    done(Journal(tmp_path, keep_seconds=100), 1, "1")
    clock.now += 3600
    restarted = Journal(tmp_path, keep_seconds=100)
    flow(restarted, clock, 90)
    assert restarted.find_known(ids("1")).to_pylist() == [True]


def test_what_was_not_acknowledged_is_forgotten_when_pubsub_has_forgotten_it_also_over_restarts(tmp_path, clock):
    journal = Journal(tmp_path, keep_seconds=100)
    journal.remember(1, ids("1"))
    (entry,) = journal.entries(EntryState.RECOVERED)
    os.utime(entry.path, (clock.now, clock.now))
    clock.now += 30 * 86400
    restarted = Journal(tmp_path, keep_seconds=100)
    restarted.prune(has_messages=False)
    assert restarted.find_known(ids("1")).to_pylist() == [True]
    clock.now += 1.1 * 86400
    restarted.prune(has_messages=False)
    assert restarted.find_known(ids("1")).to_pylist() == [False]


def test_a_crash_before_an_attempt_is_done_leaves_its_whole_entry(tmp_path, monkeypatch):
    def crash(*_):
        raise KeyboardInterrupt

    journal = Journal(tmp_path, keep_seconds=0)
    entry = journal.write(1, ids("1", "2"))
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "move", crash)
        with pytest.raises(KeyboardInterrupt):
            journal.finish(entry, ids("2"))
    again = Journal(tmp_path, keep_seconds=0)
    (pending,) = again.entries(EntryState.PENDING)
    again.move(pending, EntryState.RECOVERED)
    again.prune(has_messages=True)
    last = Journal(tmp_path, keep_seconds=0)
    for found in (again, last):
        assert found.find_known(ids("1", "2")).to_pylist() == [True, True]
        assert len(found.entries(EntryState.RECOVERED)) == 1


def test_a_file_that_was_cut_off_while_written_is_no_entry(tmp_path):
    (tmp_path / "000000000000001.pending.tmp").write_bytes(b"half")
    assert Journal(tmp_path, keep_seconds=600).last_attempt() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_named_with_what_to_do(tmp_path):
    (tmp_path / "000000000000001.pending.arrow").write_bytes(b"not arrow")
    with pytest.raises(CheckpointCorruptError, match=r"000000000000001\.pending\.arrow.*Move the folder"):
        Journal(tmp_path, keep_seconds=600)


def table_ids(table: str, *message_ids: str, subscription: str = "s") -> pa.Table:
    rows = [
        {
            "topic": "orders",
            "subscription": subscription,
            "message_id": message_id,
            "publish_time": NOON,
            "ack_id": f"ack-{message_id}",
            "table": table,
        }
        for message_id in message_ids
    ]
    return pa.Table.from_pylist(rows, schema=TABLE_IDS_SCHEMA)


def test_a_stream_of_several_tables_knows_a_message_for_the_table_that_has_it(tmp_path):
    journal = Journal(tmp_path, keep_seconds=600, schema=TABLE_IDS_SCHEMA)
    entry = journal.write(1, concat_ids([table_ids("a", "1", "2"), table_ids("b", "3")]))
    kept = journal.keep_only(entry, table_ids("a", "1", "2"))
    journal.move(kept, EntryState.RECOVERED)
    again = Journal(tmp_path, keep_seconds=600, schema=TABLE_IDS_SCHEMA)
    asked = concat_ids([table_ids("a", "1", "9"), table_ids("b", "1", "3")])
    assert again.find_known(asked).to_pylist() == [True, False, False, False]
    assert [entry.attempt for entry in again.entries(EntryState.RECOVERED)] == [1]


def test_a_message_in_a_shared_table_is_known_for_the_subscription_that_it_came_by(tmp_path):
    journal = Journal(tmp_path, keep_seconds=600, schema=TABLE_IDS_SCHEMA, shared_table="letters")
    journal.write(1, table_ids("letters", "1"))
    journal.remember(2, table_ids("letters", "2"))
    journal.write(3, table_ids("own", "3"))
    again = Journal(tmp_path, keep_seconds=600, schema=TABLE_IDS_SCHEMA, shared_table="letters")
    for subscription, is_known in (("s", True), ("other", False)):
        asked = concat_ids(
            [
                table_ids("letters", "1", "2", subscription=subscription),
                table_ids("own", "3", subscription=subscription),
            ]
        )
        assert again.find_known(asked).to_pylist() == [is_known, is_known, True]


def test_an_id_of_a_shared_table_that_an_earlier_refeed_wrote_without_a_subscription_stands_for_each(tmp_path):
    journal = Journal(tmp_path, keep_seconds=600, schema=TABLE_IDS_SCHEMA, shared_table="letters")
    journal.remember(1, table_ids("letters", "1", subscription=""))
    asked = concat_ids([table_ids("letters", "1", "2"), table_ids("letters", "1", subscription="other")])
    assert journal.find_known(asked).to_pylist() == [True, False, True]


def learned(journal, count: int, *, since: datetime = NOON, step_seconds: float = 1.0) -> int:
    """Let ``journal`` learn ids in two batches, the younger ones first."""
    steps = [
        pa.record_batch(
            {
                "topic": ["orders"] * len(numbers),
                "message_id": [str(n) for n in numbers],
                "publish_time": pa.array(
                    [since + timedelta(seconds=step_seconds * n) for n in numbers], pa.timestamp("us", tz="UTC")
                ),
            }
        )
        for numbers in (range(count // 2, count), range(count // 2))
    ]
    attempts = itertools.count(journal.last_attempt() + 1)
    return journal.learn(steps, since=since, next_attempt=lambda: next(attempts), check_room=lambda: None)


def test_ids_that_are_learned_are_known_after_a_restart_and_for_as_long_as_those_of_a_recovered_attempt(
    tmp_path, monkeypatch
):
    assert learned(Journal(tmp_path, keep_seconds=0), 10) == 10
    journal = Journal(tmp_path, keep_seconds=0)
    journal.prune(has_messages=True)
    assert journal.find_known(ids("7", at=NOON + timedelta(seconds=7))).to_pylist() == [True]
    assert journal.find_known(ids("10", at=NOON + timedelta(seconds=7))).to_pylist() == [False]
    assert journal.entries(EntryState.PENDING) == []
    for days, is_known in ((30, True), (31, False)):
        monkeypatch.setattr(journal_module.time, "time", lambda now=time.time, d=days: now() + d * 86400 + 1)
        journal.prune(has_messages=True)
        assert journal.find_known(ids("7", at=NOON + timedelta(seconds=7))).to_pylist() == [is_known]


def test_a_lookup_opens_only_the_learned_entries_of_its_own_time(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "TABLE_ROWS", 10)
    journal = Journal(tmp_path, keep_seconds=600)
    learned(journal, 1_000)
    entries = sorted(journal.entries(EntryState.RECOVERED), key=lambda entry: entry.first_publish_time)
    assert len(entries) == 100
    for entry in entries[20:]:
        entry.path.write_bytes(b"unreadable")
    assert journal.find_known(ids("15", at=NOON + timedelta(seconds=15))).to_pylist() == [True]


def test_nothing_is_known_and_nothing_is_left_of_ids_that_could_not_all_be_read(tmp_path):
    journal = Journal(tmp_path, keep_seconds=600)

    def batches():
        yield from ids("1").select(["topic", "message_id", "publish_time"]).to_batches()
        raise WarehouseUnavailableError

    with pytest.raises(WarehouseUnavailableError):
        journal.learn(batches(), since=NOON, next_attempt=lambda: 1, check_room=lambda: None)
    assert journal.find_known(ids("1")).to_pylist() == [False]
    assert list(tmp_path.iterdir()) == []


def test_what_a_start_left_behind_while_it_learned_goes_with_the_next(tmp_path):
    (tmp_path / "learning").mkdir()
    (tmp_path / "learning" / "ids").write_bytes(b"half")
    Journal(tmp_path, keep_seconds=600)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("newest", [1, 2])
def test_the_newest_attempt_is_noted_when_its_ids_are_dropped(tmp_path, clock, newest):
    journal = Journal(tmp_path, keep_seconds=100)
    for attempt in range(1, newest + 1):
        done(journal, attempt, str(attempt))
    assert journal.mark.attempt == 0
    flow(journal, clock, 200)
    assert journal.last_attempt() == 0
    assert Journal(tmp_path, keep_seconds=100).mark.attempt == newest


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_journal_that_does_not_know_all_forgets_its_ids_unless_it_was_restored_for_them(tmp_path, is_restored):
    """A rollback may have discarded their rows meanwhile: acknowledged, they would be lost."""
    journal = Journal(tmp_path, keep_seconds=600)
    done(journal, 1, "1")
    journal.remember(2, ids("2"))
    journal.write(3, ids("3"))
    if is_restored:
        ask_to_learn(tmp_path, NOON)
    again = Journal(tmp_path, keep_seconds=600)
    again.begin(knows_all=False)
    assert again.find_known(ids("1", "2", "3")).to_pylist() == [is_restored, is_restored, False]
