from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from model.errors import CheckpointCorruptError
from streams import journal_mark as journal_mark_module
from streams.journal_mark import JournalMark

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)


def test_each_start_has_a_mark_of_its_own_and_the_one_before_counts_until_it_is_settled(tmp_path):
    mark = JournalMark(tmp_path)
    assert mark.name == ""
    mark.begin(knows_all=True)
    mark.settle()
    first = mark.name
    mark.begin(knows_all=True)
    died = JournalMark(tmp_path)
    assert died.is_named(first)
    assert died.is_named(mark.name)
    assert first != mark.name
    mark.settle()
    assert not JournalMark(tmp_path).is_named(first)


def test_a_journal_that_does_not_know_all_knows_no_table_until_it_is_learned(tmp_path):
    mark = JournalMark(tmp_path)
    mark.begin(knows_all=True)
    assert mark.knows("a")
    before = mark.name
    mark.begin(knows_all=False)
    assert not mark.knows("a")
    assert not mark.is_named(before)
    mark.add("a", 7)
    mark.add("b", 3)
    found = JournalMark(tmp_path)
    assert (found.knows("a"), found.knows("b"), found.knows("c"), found.attempt) == (True, True, False, 7)


def test_nothing_is_left_to_learn_when_pubsub_keeps_nothing_from_before(tmp_path, monkeypatch):
    mark = JournalMark(tmp_path)
    mark.begin(knows_all=False)
    later = SimpleNamespace(
        now=lambda tz: datetime.now(tz) + timedelta(days=32), fromisoformat=datetime.fromisoformat
    )
    monkeypatch.setattr(journal_mark_module, "datetime", later)
    assert mark.knows("a")


def test_a_damaged_file_is_named_and_the_way_out_works(tmp_path):
    (tmp_path / "mark.json").write_text('{"marks"')
    with pytest.raises(CheckpointCorruptError, match=r"mark\.json.*Delete the file"):
        JournalMark(tmp_path)
    (tmp_path / "mark.json").unlink()
    assert JournalMark(tmp_path).name == ""
