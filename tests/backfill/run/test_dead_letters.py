import json

import pyarrow as pa
import pytest

from backfill.run import dead_letters as module
from backfill.run.dead_letters import (
    DeadLetterReason,
    DeadLetterWriter,
    count_dead_letters,
    failed_rows,
    find_dead_letters,
    list_dead_letters,
    slices_with_letters,
)
from backfill.run.folder import BackfillFolder
from backfill.run.selection import read_slice, write_selection


@pytest.fixture
def folder(tmp_path):
    return BackfillFolder(tmp_path / "bf_1")


@pytest.fixture
def selection(folder, rows, monkeypatch):
    """Ten rows in each of three slices."""
    monkeypatch.setattr("backfill.run.selection._SLICE_ROWS", 10)
    folder.path.mkdir(parents=True)
    batch = rows(30, data=pa.array([bytes([n, 255]) for n in range(30)], pa.binary()))
    return write_selection([batch], folder.selection)


def fail(folder, selection, *numbers, epoch=1, reason="code: why"):
    for number in numbers:
        part = selection.slices[number // 10]
        batch = read_slice(folder.selection, part)
        DeadLetterWriter(folder, epoch, part).write(batch, [(number % 10, reason)])


def listed(folder, **page):
    return [letter.row for letter in list_dead_letters(folder, **{"limit": 100, **page}).letters]


def test_a_message_that_failed_is_kept_whole_with_its_reason(folder, selection):
    fail(folder, selection, 12, reason="refused_by_pubsub: attribute: goog is reserved")
    (letter,) = list_dead_letters(folder, limit=10).letters
    assert letter.data == bytes([12, 255])
    assert letter.attributes == {"n": "12"}
    assert (letter.row, letter.message_id, letter.topic, letter.ordering_key) == (12, "m12", "orders", "key")
    assert (letter.code, letter.reason) == ("refused_by_pubsub", "attribute: goog is reserved")
    assert letter.publish_time == "2024-03-01T12:00:00.000005Z"
    assert json.loads(json.dumps(letter.to_json()))["data"] == "DP8="
    assert type(letter).from_json(letter.to_json()) == letter


def test_they_are_listed_page_by_page_in_the_order_of_rows(folder, selection):
    fail(folder, selection, 25, 3, 14, 7, 21)
    first = list_dead_letters(folder, limit=2)
    second = list_dead_letters(folder, limit=2, after=first.next_after or -1)
    third = list_dead_letters(folder, limit=2, after=second.next_after or -1)
    assert [[letter.row for letter in page.letters] for page in (first, second, third)] == [[3, 7], [14, 21], [25]]
    assert (first.next_after, second.next_after, third.next_after) == (7, 21, None)


def test_a_page_of_large_messages_is_a_short_one(folder, selection, monkeypatch):
    fail(folder, selection, *range(6))
    monkeypatch.setattr(module, "_PAGE_BYTES", 5)
    page = list_dead_letters(folder, limit=100)
    assert ([letter.row for letter in page.letters], page.next_after) == ([0, 1], 1)


def test_what_is_published_later_leaves_the_list_and_what_fails_again_is_in_it_once(folder, selection):
    fail(folder, selection, 1, 2, 3)
    DeadLetterWriter(folder, 2, selection.slices[0]).write_published([1, 3])
    fail(folder, selection, 2, epoch=2, reason="code: again")
    fail(folder, selection, 3, epoch=10)
    assert listed(folder) == [2, 3]
    assert list_dead_letters(folder, limit=1).letters[0].reason == "again"
    assert failed_rows(folder, 0) == [2, 3]


def test_a_slice_that_is_begun_again_forgets_what_was_said_of_rows_still_to_come(folder, selection):
    fail(folder, selection, 12, 15, 25)
    DeadLetterWriter(folder, 2, selection.slices[1]).forget_from(14)
    assert listed(folder) == [12, 25]


def test_a_slice_without_failures_has_no_file(folder, selection):
    writer = DeadLetterWriter(folder, 1, selection.slices[0])
    writer.forget_from(0)
    writer.write_published([])
    writer.write(read_slice(folder.selection, selection.slices[0]), [])
    assert not folder.dead_letters.exists()
    assert slices_with_letters(folder) == []


def test_a_line_that_a_killed_task_left_unfinished_is_no_dead_letter(folder, selection):
    fail(folder, selection, 4)
    with (folder.dead_letters.path / "000000.1.ndjson").open("a") as file:
        file.write('{"row": 5, "top')
    assert listed(folder) == [4]
    assert slices_with_letters(folder, epoch=1) == [0]
    assert slices_with_letters(folder, epoch=2) == []


def test_a_job_without_a_selection_has_none(folder):
    assert list_dead_letters(folder, limit=5).letters == []


def test_dead_letters_are_counted_by_their_code_and_found_by_it(folder, selection):
    assert count_dead_letters(folder) == []
    fail(folder, selection, 12, 25, reason="refused_by_pubsub: goog is reserved")
    fail(folder, selection, 3, 4, 27, reason="message_too_large: 10000001 bytes")
    fail(folder, selection, 14, reason="message_too_large: 10000009 bytes")
    DeadLetterWriter(folder, 2, selection.slices[0]).write_published([4])
    assert count_dead_letters(folder) == [
        DeadLetterReason("message_too_large", 3, 3, "m3", "10000001 bytes"),
        DeadLetterReason("refused_by_pubsub", 2, 12, "m12", "goog is reserved"),
    ]
    assert find_dead_letters(folder) == [3, 12, 14, 25, 27]
    assert find_dead_letters(folder, code="message_too_large") == [3, 14, 27]
    assert find_dead_letters(folder, rows=[3, 4, 25, 29]) == [3, 25]
    assert find_dead_letters(folder, rows=[3, 25], code="refused_by_pubsub") == [25]


def test_a_letter_after_one_that_was_cut_short_is_there(folder, selection):
    """A kill, or a disk that was full for a moment, ends a write within a line; the next try writes it again."""
    fail(folder, selection, 3)
    (log,) = folder.dead_letters.list()
    path = folder.dead_letters.path / log
    path.write_bytes(path.read_bytes()[:-20])
    fail(folder, selection, 3, 5)
    assert failed_rows(folder, 0) == [3, 5]
