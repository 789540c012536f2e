import pyarrow as pa
import pytest

from backfill.plan.options import RunOptions
from backfill.run.dead_letters import DeadLetterWriter
from backfill.run.folder import BackfillFolder
from backfill.run.progress import SliceCheckpoint
from backfill.run.selection import Selection, read_slice, write_selection
from backfill.run.work import Piece, link_pieces, plan_work
from jobs.folder import Outcome
from model.job import JobState

DONE = {n: SliceCheckpoint(n, 1, offset=10, published=10, done=True) for n in range(4)}


@pytest.fixture
def folder(tmp_path):
    folder = BackfillFolder(tmp_path / "bf_1")
    folder.path.mkdir()
    return folder


@pytest.fixture
def selection(folder, rows, monkeypatch):
    """Four slices of ten rows; key b is in slices 1, 2 and 3."""
    monkeypatch.setattr("backfill.run.selection._SLICE_ROWS", 10)
    keys = pa.array(["a"] * 10 + ["b"] * 30)
    return write_selection([rows(40, ordering_key=keys)], folder.selection, by_key=True)


def fail(folder: BackfillFolder, selection: Selection, *numbers: int) -> None:
    for number in numbers:
        part = next(p for p in selection.slices if p.first_row <= number < p.first_row + p.rows)
        batch = read_slice(folder.selection, part)
        DeadLetterWriter(folder, 1, part).write(batch, [(number - part.first_row, "code: why")])


def rows_of(folder: BackfillFolder, pieces: list[Piece]) -> list[tuple[str, list[int]]]:
    return [(piece.kind, piece.read(folder).column("refeed_row").to_pylist()) for piece in pieces]


def test_a_retry_sends_dead_letters_again_and_what_is_left(folder, selection):
    fail(folder, selection, 3, 8)
    reached = {0: DONE[0], 1: SliceCheckpoint(1, 1, offset=2)}
    pieces = plan_work(folder, selection, RunOptions(), reached, 2)
    assert rows_of(folder, pieces)[0] == ("failed", [3, 8])
    assert len(pieces) == 1 + len(selection.slices)
    assert pieces[0].number == len(selection.slices)
    assert [pieces[0].row(folder, offset) for offset in (0, 1)] == [3, 8]
    assert pieces[0].read(folder, 1).column("message_id").to_pylist() == ["m8"]


def test_only_those_failed_rows_that_were_chosen_are_sent_again(folder, selection):
    fail(folder, selection, 3, 5, 12, 33)
    pieces = plan_work(folder, selection, RunOptions(only="failed", rows=(5, 33, 34)), DONE, 2)
    assert rows_of(folder, pieces) == [("failed", [5]), ("failed", [33])]


def test_a_dead_letter_that_its_slice_will_send_again_by_itself_is_not_sent_twice(folder, selection):
    # The task wrote it down and died before its checkpoint.
    fail(folder, selection, 7)
    assert plan_work(folder, selection, RunOptions(only="failed"), {0: SliceCheckpoint(0, 1, offset=5)}, 2) == []


def test_what_an_attempt_began_to_send_again_is_left_to_the_next_one(folder, selection):
    fail(folder, selection, 3, 8)
    first = plan_work(folder, selection, RunOptions(only="failed"), DONE, 2)
    again = plan_work(folder, selection, RunOptions(only="failed"), DONE, 2)
    after_a_crash = plan_work(folder, selection, RunOptions(only="failed"), DONE, 3)
    assert first == again == after_a_crash
    # Done, and row 8 failed once more: one try in each attempt.
    number = first[0].number
    DeadLetterWriter(folder, 3, selection.slices[0]).write_published([3])
    reached = DONE | {number: SliceCheckpoint(number, 3, offset=2, done=True)}
    pieces = plan_work(folder, selection, RunOptions(only="failed"), reached, 4)
    assert rows_of(folder, [piece for piece in pieces if piece.number not in reached]) == [("failed", [8])]
    assert len({piece.number for piece in pieces}) == 2


def test_only_missing_is_the_rows_that_are_asked_for_and_what_was_never_sent(folder, selection):
    fail(folder, selection, 3)
    options = RunOptions(only="missing", rows=(3, 5, 9, 12, 30))
    reached = {0: DONE[0], 1: DONE[1]}
    pieces = plan_work(folder, selection, options, reached, 2)
    # Row 30 comes with its slice, which has not begun.
    assert rows_of(folder, pieces)[:3] == [("failed", [3]), ("missing", [5, 9]), ("missing", [12])]
    assert [piece.number for piece in pieces[3:]] == [part.number for part in selection.slices]


def test_missing_rows_are_sent_once_for_each_time_they_are_asked_for(folder, selection):
    options = RunOptions(only="missing", rows=(5, 9))
    first = plan_work(folder, selection, options, DONE, 2)[0]
    done = DONE | {first.number: SliceCheckpoint(first.number, 2, offset=2, done=True)}
    # Its driver died: another goes on. It ended: somebody asked again.
    after_a_crash = plan_work(folder, selection, options, done, 3)
    folder.write_outcome(Outcome(3, JobState.SUCCEEDED))
    asked_again = plan_work(folder, selection, options, done, 4)
    assert [piece.number for piece in after_a_crash if piece.number not in done] == []
    assert rows_of(folder, [piece for piece in asked_again if piece.number not in done]) == [("missing", [5, 9])]


def test_slices_of_one_key_follow_each_other_behind_what_is_sent_again(folder, selection):
    fail(folder, selection, 2, 13)
    reached = {0: DONE[0], 1: DONE[1]}
    pieces = plan_work(folder, selection, RunOptions(ordering="by_key"), reached, 2)
    left = [piece for piece in pieces if piece.number not in reached]
    chains = link_pieces(left, selection, by_key=True)
    continued = [part.continues for part in selection.slices]
    assert continued == [False, False, True, True]
    found = [[(piece.kind, piece.part.number) for piece in chain] for chain in chains]
    assert found == [[("failed", 0)], [("failed", 1), ("selected", 2), ("selected", 3)]]
