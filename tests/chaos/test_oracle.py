"""The oracle finds what it is for: each kind of harm, put in by hand."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.chaos.messages import ORDERS, Key, Taken
from tests.chaos.oracle import (
    Replay,
    compare_archive,
    compare_published,
    compare_replay,
    compare_reporting,
    compare_staging,
    select,
    settled,
)

START = datetime(2026, 3, 1, tzinfo=UTC)


def taken(number: int, **more: Any) -> Taken:
    key = (ORDERS, str(number))
    seconds = timedelta(seconds=number)
    found = Taken(key, START + seconds, f"digest {number}".encode(), 10, (number % 2, number, "c"), True)
    return replace(found, **more)


MESSAGES = {one.key: one for one in map(taken, range(1, 5))}
ARCHIVE = [(key, one.digest) for key, one in MESSAGES.items()]
FIRST: Key = (ORDERS, "1")


@pytest.mark.parametrize(
    ("archived", "lost", "duplicated", "changed"),
    [
        (ARCHIVE, (), (), ()),
        (ARCHIVE[1:], (FIRST,), (), ()),
        ([*ARCHIVE, ARCHIVE[0]], (), (FIRST,), ()),
        ([(FIRST, b"another"), *ARCHIVE[1:]], (), (), (FIRST,)),
        ([*ARCHIVE, ((ORDERS, "9"), b"")], (), (), ((ORDERS, "9"),)),
    ],
)
def test_an_archive_has_every_message_once_bit_for_bit(archived, lost, duplicated, changed):
    found = compare_archive(MESSAGES, archived)
    assert (found.lost, found.duplicated, found.changed) == (lost, duplicated, changed)
    assert bool(found) == bool(lost or duplicated or changed)


def test_a_replay_that_is_archived_is_found():
    replayed = taken(7, backfill_id="bf_1", row=0, original=FIRST)
    found = compare_archive({**MESSAGES, replayed.key: replayed}, [*ARCHIVE, (replayed.key, replayed.digest)])
    assert found.changed == (replayed.key,)


def replays(*rows: int, first: int = 100) -> dict[Key, Taken]:
    """Return arrivals of the messages of ``rows``, which count from 0."""
    arrived = {}
    for number, row in enumerate(rows, first):
        original = (ORDERS, str(row + 1))
        one = taken(number, digest=MESSAGES[original].digest, backfill_id="bf_1", row=row, original=original)
        arrived[one.key] = one
    return arrived


REPLAY = Replay("bf_1", frozenset(MESSAGES), frozenset(MESSAGES), 4, 4, 0, 1)
DIGESTS = {key: one.digest for key, one in MESSAGES.items()}


def test_a_backfill_may_repeat_no_more_than_it_says():
    assert not compare_replay(REPLAY, MESSAGES | replays(0, 1, 2, 3), DIGESTS)
    assert not compare_replay(REPLAY, MESSAGES | replays(0, 1, 1, 2, 3), DIGESTS)
    assert ("row", 2) in compare_replay(REPLAY, MESSAGES | replays(0, 1, 1, 2, 2, 3), DIGESTS).duplicated


def test_a_backfill_publishes_every_selected_message_as_it_was_and_no_other():
    assert compare_replay(REPLAY, MESSAGES | replays(0, 1, 2), DIGESTS).lost == ((ORDERS, "4"),)
    assert compare_replay(REPLAY, MESSAGES | replays(0, 1, 2, 3), {**DIGESTS, FIRST: b"other"}).changed == (FIRST,)
    narrow = replace(REPLAY, known=frozenset([FIRST]), possible=frozenset([FIRST]), selected=1, published=1)
    assert (ORDERS, "2") in compare_replay(narrow, MESSAGES | replays(0, 1), DIGESTS).changed


def test_a_backfill_s_own_figures_are_compared_with_what_arrived():
    assert compare_replay(replace(REPLAY, published=5), MESSAGES | replays(0, 1, 2, 3), DIGESTS).changed
    assert compare_replay(replace(REPLAY, selected=5), MESSAGES | replays(0, 1, 2, 3), DIGESTS).changed


def test_what_has_no_room_for_tags_is_not_missed():
    crowded = {**MESSAGES, FIRST: taken(1, has_room_for_tags=False)}
    assert not compare_replay(replace(REPLAY, published=3, failed=1), crowded | replays(1, 2, 3), DIGESTS)


def test_a_selection_is_half_open_and_of_its_topics_only():
    until = START + timedelta(seconds=3)
    assert select(MESSAGES, [ORDERS], until, smaller_than_bytes=100) == {FIRST, (ORDERS, "2")}
    assert select(MESSAGES, ["other"], until, smaller_than_bytes=100) == set()
    assert select(MESSAGES, [ORDERS], until, smaller_than_bytes=10) == set()
    assert select(MESSAGES | replays(0), [ORDERS], START + timedelta(days=1), smaller_than_bytes=100) == set(
        MESSAGES
    )


def test_what_is_archived_late_ends_what_is_known_to_be_archived():
    until = START + timedelta(seconds=4)
    wanted = select(MESSAGES, [ORDERS], until, smaller_than_bytes=100)
    assert settled(MESSAGES, wanted, wanted, until) == (until, wanted)
    second = (ORDERS, "2")
    assert settled(MESSAGES, wanted, wanted - {second}, until) == (START + timedelta(seconds=2), {FIRST})
    assert settled(MESSAGES, wanted, [], until) == (START + timedelta(seconds=1), set())


def test_every_message_is_one_row_or_one_dead_letter():
    rows = [((key, None, None), one.entity) for key, one in MESSAGES.items()]
    plain = {**MESSAGES, FIRST: taken(1, entity=None)}
    assert not compare_staging(ORDERS, MESSAGES, rows, [])
    letter = (FIRST, None, None)
    assert not compare_staging(ORDERS, plain, rows[1:], [letter])
    assert not compare_staging(ORDERS, plain, rows[1:], [(FIRST, "made up", 7)]), (
        "a producer's own tags say nothing"
    )
    assert compare_staging(ORDERS, MESSAGES, rows[1:], []).lost == ((FIRST, None, None),)
    assert compare_staging(ORDERS, MESSAGES, [*rows, rows[0]], []).duplicated == ((FIRST, None, None),)
    assert compare_staging(ORDERS, plain, rows, [letter]).duplicated == (letter,)
    assert compare_staging(ORDERS, MESSAGES, rows[1:], [letter]).changed, "an entity is no dead letter"
    assert compare_staging(ORDERS, MESSAGES, [(rows[0][0], (1, 1, "x")), *rows[1:]], []).changed


def test_a_replay_is_a_row_of_its_own():
    everything = MESSAGES | replays(0)
    rows = [((key, None, None), one.entity) for key, one in MESSAGES.items()]
    replayed = (((FIRST, "bf_1", 0), everything[ORDERS, "100"].entity),)
    assert not compare_staging(ORDERS, everything, [*rows, *replayed], [])
    assert compare_staging(ORDERS, everything, rows, []).lost == ((FIRST, "bf_1", 0),)
    again = {**everything, (ORDERS, "200"): replace(everything[ORDERS, "100"], key=(ORDERS, "200"))}
    assert not compare_staging(ORDERS, again, [*rows, *replayed], []), "one replay, by its backfill and row"
    assert not compare_staging(ORDERS, again, [*rows, *replayed, *replayed], [])
    assert compare_staging(ORDERS, again, rows, []).lost == ((FIRST, "bf_1", 0),)
    assert compare_staging(ORDERS, again, [*rows, *replayed * 3], []).duplicated == ((FIRST, "bf_1", 0),)
    refused = everything | {(ORDERS, "100"): replace(everything[ORDERS, "100"], entity=None)}
    assert not compare_staging(ORDERS, refused, rows, [(FIRST, "bf_1", 0)])


def test_reporting_has_every_entity_once_in_its_newest_version():
    assert not compare_reporting(MESSAGES, [(0, 4, "c"), (1, 3, "c")])
    assert compare_reporting(MESSAGES, [(1, 3, "c")]).lost == (0,)
    assert compare_reporting(MESSAGES, [(0, 4, "c"), (1, 1, "c")]).changed == ((1, 1, "c"),)
    assert compare_reporting(MESSAGES, [(0, 4, "c"), (1, 3, "c"), (1, 3, "c")]).duplicated == (1,)


@pytest.mark.parametrize(
    ("published", "lost", "duplicated"),
    [
        ([(FIRST, None, None), (FIRST, "bf", 1)], (), ()),
        ([(FIRST, None, None), (FIRST, "bf", 1), (FIRST, "bf", 1)], (), ()),
        ([(FIRST, None, None)] * 2, ((FIRST, "bf", 1),), ()),
        ([(FIRST, None, None), (FIRST, "bf", 1)] * 3, (), ("repeated", 4)),
    ],
)
def test_a_row_that_was_not_published_is_found_and_repeats_without_end_are(published, lost, duplicated):
    found = compare_published([(FIRST, None, None), (FIRST, "bf", 1)], published)
    assert (found.lost, found.duplicated) == (lost, duplicated)
