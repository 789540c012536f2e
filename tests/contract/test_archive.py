"""What a backup needs of an archive, the same in the lake, in BigQuery (against the stand-in) and in memory."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from model.archive import Attempt, IdSpan
from model.errors import CommitOutcomeUnknownError, LeaseLostError, WarehouseError
from model.read_budget import ReadBudget
from model.window import Window
from tests.worlds.tables import COLUMNS, NOON, WORLDS, ArchiveWorld, ids_of, open_world

EXTREMES = [b"", b"\x00\xff", bytes(range(256)) * 40]
DAY = timedelta(days=1)


@pytest.fixture(params=WORLDS)
def world(request, tmp_path, shared_standin):
    with open_world(ArchiveWorld, request, tmp_path / "home", shared_standin) as found:
        yield found


def test_nothing_differs_once_it_is_created_and_a_stream_may_begin(world):
    world.archive.create()
    assert world.archive.differences() == []
    world.archive.check()


def test_a_part_is_seen_only_once_it_is_committed_and_then_bit_for_bit(world):
    epoch = world.archive.take_lease("l")
    part = world.write(*EXTREMES)
    assert (part.rows, part.dead_letters) == (3, 0)
    assert part.size_bytes > 0
    assert world.rows() == []
    before = datetime.now(UTC)
    world.archive.commit([part], Attempt("s", 1, "l", epoch), ids_of("1", "2", "3"))
    rows = sorted(world.rows(), key=lambda row: row["message_id"])
    assert [row["data"] for row in rows] == EXTREMES
    first = rows[0]
    assert [dict(pair) for pair in first["attributes"]] == [
        {"key": "ключ", "value": "вäl🙂"},
        {"key": "", "value": ""},
    ]
    assert (first["topic"], first["subscription"]) == ("orders", "refeed-backup.orders")
    assert (first["publish_time"], first["ordering_key"]) == (NOON, "k")
    assert (before - first["ingest_time"]).total_seconds() < 60
    assert world.another().count_rows() == 3


def test_parts_of_several_tasks_are_one_commit(world):
    epoch = world.archive.take_lease("l")
    parts = [world.write(b"a"), world.write(b"b", first=2), world.write(b"c", first=3)]
    world.archive.commit(parts, Attempt("s", 1, "l", epoch), ids_of("1", "2", "3"))
    assert world.ids() == ["1", "2", "3"]


def test_a_part_that_was_dropped_is_never_seen(world):
    epoch = world.archive.take_lease("l")
    dropped, kept = world.write(b"a"), world.write(b"b", first=2)
    for _ in range(2):
        world.archive.drop(dropped)
    world.archive.commit([kept], Attempt("s", 1, "l", epoch), ids_of("2"))
    assert world.ids() == ["2"]


def test_rows_that_are_unwanted_are_left_out_or_the_whole_part_is(world):
    epoch = world.archive.take_lease("l")
    part = world.archive.without(world.write(b"a", b"b", b"c"), pa.array([False, True, False]))
    if part is not None:
        world.archive.commit([part], Attempt("s", 1, "l", epoch), ids_of("1", "3"))
        assert world.ids() == ["1", "3"]
    else:
        assert world.ids() == []
    # None are left of it in either warehouse.
    assert world.archive.without(world.write(b"a"), pa.array([True])) is None


def test_the_archive_says_which_attempt_of_a_stream_is_in(world):
    epoch = world.archive.take_lease("l")
    assert world.archive.committed_attempt("s") == 0
    world.archive.commit([world.write(b"a")], Attempt("s", 41, "l", epoch), ids_of("1"))
    assert world.another().committed_attempt("s") == 41
    assert world.another().committed_attempt("t") == 0


def test_an_open_attempt_is_decided_after_a_restart(world):
    epoch = world.archive.take_lease("l")
    world.archive.commit([world.write(b"a")], Attempt("s", 1, "l", epoch), ids_of("1"))
    world.write(b"b", first=2)  # its driver died before the commit
    restarted = world.another()
    epoch = restarted.take_lease("l")
    assert restarted.settle(Attempt("s", 1, "l", epoch))
    assert not restarted.settle(Attempt("s", 2, "l", epoch))
    assert world.ids() == ["1"]


def test_an_attempt_is_told_by_its_commit_from_another_owner_s_of_the_same_stream_and_number(world):
    """As where a home was copied: an owner that slept comes back and asks."""
    own = Attempt("s", 1, "l", world.archive.take_lease("l"), commit_id=1)
    other = world.another()
    theirs = Attempt("s", 1, "l", other.take_lease("l"), commit_id=2)
    other.commit([world.write(b"a")], theirs, ids_of("1"))
    restarted = world.another()
    restarted.take_lease("l")
    for archive in (world.archive, restarted):
        assert (archive.settle(own), archive.settle(theirs)) == (False, True)
    # An earlier Refeed journaled no more than the number.
    assert restarted.settle(replace(own, commit_id=None))
    assert world.ids() == ["1"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_fails_adds_all_or_nothing_and_says_which_at_once_or_to_whoever_asks(
    world, monkeypatch, when
):
    attempt = Attempt("s", 1, "l", world.archive.take_lease("l"))
    world.lose_commit(monkeypatch, when)
    is_known, is_in = True, True
    try:
        world.archive.commit([world.write(b"a")], attempt, ids_of("1"))
    except CommitOutcomeUnknownError:
        is_known = False
    except WarehouseError:
        is_in = False
    restarted = world.another()
    restarted.take_lease("l")
    settled = restarted.settle(attempt)
    assert settled == (world.ids() == ["1"])
    assert not is_known or settled == is_in
    assert settled or when == "before"
    if not settled:
        restarted.commit([world.write(b"a")], Attempt("s", 2, "l", restarted.lease_epoch("l")), ids_of("1"))
    assert world.ids() == ["1"]


def test_each_taking_of_a_lease_counts(world):
    assert world.archive.lease_epoch("l") == 0
    first = world.archive.take_lease("l")
    second = world.another().take_lease("l")
    assert second == first + 1
    assert world.archive.lease_epoch("l") == second
    assert world.archive.lease_epoch("other") == 0


@pytest.mark.parametrize("number", [1, 2])
def test_a_commit_under_a_lease_that_was_taken_over_is_refused_and_adds_nothing(world, number):
    """The first commit of a stream, and one that comes after others under the same lease."""
    old = world.archive.take_lease("l")
    for one in range(1, number):
        world.archive.commit([world.write(b"a", first=one)], Attempt("s", one, "l", old), ids_of(one))
    part, before = world.write(b"late", first=number), world.ids()
    successor = world.another()
    new = successor.take_lease("l")
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            world.archive.commit([part], Attempt("s", number, "l", old), ids_of(number))
    assert world.ids() == before
    successor.commit([world.write(b"b", first=9)], Attempt("t", 1, "l", new), ids_of("9"))
    assert world.ids() == [*before, "9"]


def test_a_commit_under_an_earlier_taking_of_a_lease_is_refused_though_the_same_process_has_it_again(world):
    old, part = world.archive.take_lease("l"), world.write(b"late")
    new = world.archive.take_lease("l")
    with pytest.raises(LeaseLostError):
        world.archive.commit([part], Attempt("s", 1, "l", old), ids_of("1"))
    assert world.ids() == []
    world.archive.commit([world.write(b"b", first=2)], Attempt("s", 2, "l", new), ids_of("2"))
    assert world.ids() == ["2"]


def test_a_lease_says_who_holds_it_to_every_other_home(world):
    leases = world.archive.leases()
    assert leases.read_lease("backup-p") is None
    epoch = leases.take_lease("backup-p")
    leases.write_lease("backup-p", epoch, b'{"one": 1}')
    leases.write_lease("backup-p", epoch, b'{"two": 2}')
    assert world.another().leases().read_lease("backup-p") == b'{"two": 2}'
    # A holder that does not know its last write, as after a lost answer, renews its lease all the same.
    world.another().leases().write_lease("backup-p", epoch, b'{"three": 3}')
    assert world.another().leases().read_lease("backup-p") == b'{"three": 3}'


def test_a_lease_that_was_lost_can_be_neither_renewed_nor_given_back(world):
    sleeper, successor = world.archive.leases(), world.another().leases()
    old, new = sleeper.take_lease("backup-p"), successor.take_lease("backup-p")
    successor.write_lease("backup-p", new, b'{"two": 2}')
    with pytest.raises(LeaseLostError):
        sleeper.write_lease("backup-p", old, b'{"one": 1}')
    assert world.another().leases().read_lease("backup-p") == b'{"two": 2}'


def test_two_leases_do_not_meet_though_their_names_begin_alike(world):
    one, two = world.archive, world.another()
    first, second = one.take_lease("one"), two.take_lease("one2")
    one.commit([world.write(b"a")], Attempt("s", 1, "one", first), ids_of("1"))
    two.commit([world.write(b"b", first=2)], Attempt("t", 1, "one2", second), ids_of("2"))
    assert world.ids() == ["1", "2"]
    assert world.volumes() == world.counted()
    for archive, lease, epoch in ((one, "one", first), (two, "one2", second)):
        archive.leases().write_lease(lease, epoch, lease.encode())
    assert one.leases().read_lease("one") == b"one"
    assert one.leases().read_lease("one3") is None


def test_the_volumes_are_those_of_the_rows_that_were_committed(world):
    epoch = world.archive.take_lease("l")
    parts = [world.write(*EXTREMES), world.write(b"", b"22", topic="members"), world.write(b"x" * 7, first=9)]
    world.archive.commit(parts, Attempt("s", 1, "l", epoch), ids_of("1"))
    part = world.archive.without(world.write(b"aa", b"b" * 9, b"c", first=20), pa.array([False, True, False]))
    if part is not None:
        world.archive.commit([part], Attempt("s", 2, "l", epoch), ids_of("20", "22"))
    world.archive.drop(world.write(b"never", first=30))
    assert world.volumes() == world.counted() != {}
    assert {topic for _, topic in world.volumes()} == {"orders", "members"}
    world.archive.commit([world.write(b"late", first=40)], Attempt("s", 3, "l", epoch), ids_of("40"))
    world.another().compact()
    assert world.volumes() == world.counted()


def test_an_archive_without_a_message_has_no_volumes(world):
    assert world.volumes() == {}


def test_ids_are_found_by_either_time_and_messages_by_the_topic_and_the_time_of_their_ingestion(world):
    epoch, before = world.archive.take_lease("l"), datetime.now(UTC)
    for number, topic in ((1, "orders"), (2, "members"), (3, "orders")):
        part = world.write(b"x" * number, first=number, topic=topic)
        world.archive.commit([part], Attempt("s", number, "l", epoch), ids_of(number))

    def ids(published_since, ingested_since):
        found = list(world.another().read_ids(IdSpan(published_since, ingested_since)))
        assert all(batch.schema.names == ["topic", "message_id", "publish_time"] for batch in found)
        return sorted(one for batch in found for one in batch.column("message_id").to_pylist())

    def messages(topics, start, end):
        found = world.another().read_messages(topics, Window(start, end), ReadBudget(10**12))
        return sorted(row["message_id"] for batch in found for row in batch.select(COLUMNS).to_pylist())

    tomorrow = before + DAY
    for _ in range(2 if world.is_lake else 1):
        assert ids(NOON, tomorrow) == ids(tomorrow, before) == ["1", "2", "3"]
        assert ids(tomorrow, tomorrow) == []
        assert messages(["orders", "none"], before, tomorrow) == ["1", "3"]
        assert messages(["orders"], before - 9 * DAY, before) == messages(["none"], before, tomorrow) == []
        world.another().compact()


def test_upkeep_changes_no_row_and_no_attempt_and_keeps_no_stream_from_its_next_commit(world):
    epoch = world.archive.take_lease("l")
    for number in range(1, 4):
        world.archive.commit([world.write(b"x", first=number)], Attempt("s", number, "l", epoch), ids_of(number))
    looker = world.another()
    assert looker.committed_attempt("s") == 3
    world.another().compact()
    assert world.ids() == ["1", "2", "3"]
    # In BigQuery a process commits only under a lease that it took itself.
    for number, archive in ((4, world.archive), (5, looker if world.is_lake else world.archive)):
        archive.commit([world.write(b"x", first=number)], Attempt("s", number, "l", epoch), ids_of(number))
        assert world.another().committed_attempt("s") == number
    assert world.ids() == ["1", "2", "3", "4", "5"]
