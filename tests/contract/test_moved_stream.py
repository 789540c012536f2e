"""A stream that starts in a new home writes nothing twice: it learns from its tables, in every warehouse."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from model.errors import StorageFullError
from streams.journal import EntryState, Journal
from streams.journal_mark import ask_to_learn
from tests.contract.stream_worlds import WEEK, BackupWorld, PipelineWorld, open_world


@pytest.fixture(params=[BackupWorld, PipelineWorld], ids=["backup", "pipeline"])
def kind(request):
    return request.param


@pytest.fixture(params=["lake", "bigquery", "memory"])
def world(request, kind, tmp_path, shared_standin):
    return open_world(kind, request.param, tmp_path, shared_standin)


def test_a_stream_in_a_new_home_writes_nothing_again_of_what_its_predecessor_committed_and_did_not_acknowledge(
    world,
):
    with world.stream("old") as stream:
        stream.commit(1, 2)
        stream.commit(3, 4)
    with world.stream("new") as stream:
        stream.commit(1, 2, 3, 4, 5, 6)
        # A part that is taken whole or not at all comes again without the rows that are known.
        stream.commit(5)
        stream.commit(6)
    assert world.rows() == Counter(map(str, range(1, 7)))


@pytest.mark.parametrize("warehouse", ["lake", "bigquery", "memory"])
def test_a_source_that_was_renamed_has_the_dead_letters_of_its_old_name(warehouse, tmp_path, shared_standin):
    world = open_world(PipelineWorld, warehouse, tmp_path, shared_standin)
    with world.stream("old") as stream:
        stream.commit(1, 2)
    world.source, world.mapping = "sales", {"orders": "sales"}
    with world.stream("new") as stream:
        stream.commit(1, 2)
        stream.commit(3)
    assert world.rows() == Counter("123")


def test_a_stream_that_starts_where_it_ended_reads_nothing(world):
    with world.stream("one") as stream:
        stream.commit(1, 2)
    assert world.read == []
    for _ in range(2):
        with world.stream("one") as stream:
            stream.commit(1, 2)
        assert world.read == []
    assert world.rows() == Counter("12")


def test_a_home_that_another_one_took_over_from_learns_when_it_comes_back(world):
    with world.stream("one") as stream:
        stream.commit(1, 2)
    with world.stream("two") as stream:
        stream.commit(3, 4)
    with world.stream("one") as stream:
        stream.commit(1, 2, 3, 4)
    assert set(world.read) == set(world.names())
    assert world.rows() == Counter("1234")


@pytest.fixture
def lake(kind, tmp_path, shared_standin):
    return open_world(kind, "lake", tmp_path, shared_standin)


def test_a_journal_that_was_lost_alone_is_learned_again(lake):
    with lake.stream("one") as stream:
        stream.commit(1, 2)
    for file in (lake.folder / "one/journal").iterdir():
        file.unlink()
    with lake.stream("one") as stream:
        stream.commit(1, 2)
    assert lake.rows() == Counter("12")


def copy_of(folder):
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def put_back(folder, files) -> None:
    for path in folder.iterdir():
        path.unlink()
    for path, content in files.items():
        path.write_bytes(content)


def test_a_journal_that_was_put_back_from_a_copy_is_learned_again(lake):
    journal = lake.folder / "one/journal"
    with lake.stream("one") as stream:
        stream.commit(1, 2)
        kept = copy_of(journal)
        stream.commit(3, 4)
    put_back(journal, kept)
    with lake.stream("one") as stream:
        stream.commit(1, 2, 3, 4)
    assert lake.rows() == Counter("1234")


def test_a_copy_from_before_another_start_is_told_by_its_mark_and_its_open_attempt_is_not_believed(lake):
    journal = lake.folder / "one/journal"
    with lake.stream("one") as stream:
        stream.commit(1, 2)
        held = lake.part(lake.names()[-1], None, [8]).ids
        stream.journal.write(stream.journal.last_attempt() + 1, held)
        number = stream.journal.last_attempt()
        kept = copy_of(journal)
    with lake.stream("one"):
        """The attempt was not committed, and is forgotten: its number is free at the next start."""
    with lake.stream("one") as stream:
        stream.commit(4)
        assert stream.journal.last_attempt() == number
    put_back(journal, kept)
    with lake.stream("one") as stream:
        stream.commit(4, 8)
    assert lake.rows() == Counter("1248")


def test_a_start_that_hung_while_a_copy_of_its_home_committed_takes_nothing_of_it_for_its_own(world, monkeypatch):
    """Both are one stream, hold the lease one after the other, and give one number to different messages."""
    held = world.part(world.names()[-1], None, [8]).ids
    with world.stream("one") as stream:
        # The lease has it already: to settle the attempt need not write it, which would find the lease lost.
        stream.committer._expect_again(held)
        stream.journal.write(1, held)  # it died before the commit
    open_targets = world.targets

    def hang(*opened):
        monkeypatch.setattr(world, "targets", open_targets)
        shutil.copytree(world.folder / "one", world.folder / "copy")
        with world.stream("one", folder="copy"):
            """The attempt is forgotten: its number is free at the next start."""
        with world.stream("one", folder="copy") as stream:
            stream.commit(4)
            assert stream.journal.last_attempt() == 1
        return open_targets(*opened)

    monkeypatch.setattr(world, "targets", hang)
    with world.stream("one") as stream:
        assert not any(stream.journal.find_known(held).to_pylist()), "it is in no table"
    with world.stream("one") as stream:
        stream.commit(4)
        stream.commit(8)
    assert world.rows() == Counter("48")


def test_a_start_that_died_while_it_learned_learns_all_again(lake, monkeypatch):
    with lake.stream("old") as stream:
        stream.commit(1, 2)

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Journal, "_adopt", die)
        with pytest.raises(KeyboardInterrupt), lake.stream("new"):
            pass
    with lake.stream("new") as stream:
        stream.commit(1, 2)
    assert lake.rows() == Counter("12")


def test_a_stream_does_not_start_where_there_is_no_room_for_the_ids_and_leaves_nothing_behind(lake, monkeypatch):
    with lake.stream("old") as stream:
        stream.commit(1, 2)
    lake.min_free_bytes = 2**62
    # As on a disk that is full but for its last tenth.
    usage = shutil.disk_usage(lake.folder)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=usage.total // 10))
    with pytest.raises(StorageFullError, match="REFEED_MIN_FREE_DISK_BYTES"), lake.stream("new"):
        pass
    assert list((lake.folder / "new/journal").glob("**/*.arrow")) == []
    monkeypatch.undo()
    lake.min_free_bytes = 0
    with lake.stream("new") as stream:
        stream.commit(1, 2)
    assert lake.rows() == Counter("12")


def test_what_was_acknowledged_again_a_moment_ago_is_learned_however_old_its_row_is(world, monkeypatch):
    with world.stream("old") as stream:
        stream.commit(1)
        stream.commit(1)
    # Message and row are older than all that a new home would read by itself.
    later = datetime.now(UTC) + timedelta(hours=1)
    world.oldest, read_ids = later, world.read_ids

    def read(tables, name, span):
        return read_ids(tables, name, replace(span, ingested_since=later))

    monkeypatch.setattr(world, "read_ids", read)
    for home in ("new", "newer"):
        with world.stream(home) as stream:
            stream.commit(1)
    assert world.rows() == Counter("1")


def test_a_message_that_was_acknowledged_a_moment_ago_is_learned_however_old_it_is(tmp_path, shared_standin):
    world = open_world(BackupWorld, "lake", tmp_path, shared_standin)
    with world.stream("old") as stream:
        stream.commit(2, age=WEEK)
    world.oldest = datetime.now(UTC)
    with world.stream("new") as stream:
        stream.commit(2, age=WEEK)
    assert world.rows() == Counter("2")


def test_what_cannot_come_again_is_not_learned(tmp_path, shared_standin, monkeypatch):
    world = open_world(BackupWorld, "lake", tmp_path, shared_standin)
    with world.stream("old") as stream:
        stream.commit(2)
    world.oldest = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setattr("streams.learning.datetime", Later)
    with world.stream("new") as stream:
        assert stream.journal.entries(EntryState.RECOVERED) == []


class Later(datetime):
    """An hour from now: what was ingested is out of the window of ids that stay known."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(hours=1)


def test_a_stream_that_was_asked_to_learn_does_so_once_and_since_then(lake):
    with lake.stream("one") as stream:
        stream.commit(1, 2)
    ask_to_learn(lake.folder / "one/journal", datetime.now(UTC) - timedelta(days=3))
    with lake.stream("one"):
        assert set(lake.read) == set(lake.names())
    with lake.stream("one"):
        assert lake.read == []


def test_a_lease_of_an_earlier_refeed_counts_for_the_same_stream_and_for_no_other(lake):
    with lake.stream("one") as stream:
        stream.commit(1, 2)
    forget_marks(lake)
    with lake.stream("one"):
        assert lake.read == []
    forget_marks(lake)
    with lake.stream("two") as stream:
        stream.commit(1, 2)
    assert set(lake.read) == set(lake.names())
    assert lake.rows() == Counter("12")


def forget_marks(world) -> None:
    """Make lease and journals what they were before there were marks."""
    for path in world.folder.glob("home/lake/*/_leases/*.json"):
        fields = json.loads(path.read_text())
        del fields["journal"]
        path.write_text(json.dumps(fields))
    for path in world.folder.glob("*/journal/mark.json"):
        path.unlink()


def test_a_replay_in_staging_does_not_make_its_original_known(tmp_path, shared_standin):
    world = open_world(PipelineWorld, "lake", tmp_path, shared_standin)
    with world.stream("old") as stream:
        stream.commit(2, backfill="bf_1")
    with world.stream("new") as stream:
        stream.commit(2)
    assert world.rows() == Counter({"2": 2})


def test_a_replay_that_comes_again_after_a_move_is_written_once(pipeline):
    with pipeline.stream("old") as stream:
        stream.commit(1, 2, backfill="bf_1")
    pipeline.oldest = datetime.now(UTC)
    with pipeline.stream("new") as stream:
        stream.commit(1, 2, 4, backfill="bf_1")
        # A part that is taken whole or not at all.
        stream.commit(4, backfill="bf_1")
        stream.commit(1, 2, backfill="bf_1", source="audit")
        stream.commit(2, backfill="bf_2")
        stream.commit(1)
    # Those of the first backfill, the dead letter of another source, another backfill's, and the original.
    assert pipeline.rows() == Counter({"1": 3, "2": 2, "4": 1})


def test_a_dead_letter_of_another_group_is_not_this_ones(tmp_path, shared_standin):
    world = open_world(PipelineWorld, "lake", tmp_path, shared_standin)
    with world.stream("old") as stream:
        stream.commit(1, source="elsewhere")
    with world.stream("new") as stream:
        stream.commit(1)
    assert world.rows() == Counter({"1": 2})


@pytest.fixture(params=["lake", "bigquery", "memory"])
def pipeline(request, tmp_path, shared_standin):
    return open_world(PipelineWorld, request.param, tmp_path, shared_standin)


def test_a_message_that_two_sources_refuse_is_a_dead_letter_of_each_once(pipeline):
    with pipeline.stream("old") as stream:
        stream.commit(1)
        stream.commit(1, source="audit")
        both = [pipeline.parts(stream.tables, [3], source=source) for source in ("orders", "audit")]
        pipeline.commit_parts(stream.committer, [part for parts in both for part in parts])
        for source in ("orders", "audit"):
            stream.commit(1, 3, source=source)
    assert pipeline.rows() == Counter({"1": 2, "3": 2})
    with pipeline.stream("new") as stream:
        stream.commit(1, 3)
        stream.commit(1, 3, source="audit")
        stream.commit(5, source="audit")
        stream.commit(5)
    assert pipeline.rows() == Counter({"1": 2, "3": 2, "5": 2})


def test_a_dead_letter_that_one_source_has_makes_it_known_for_no_other_after_a_move(pipeline):
    with pipeline.stream("old") as stream:
        stream.commit(1)
    with pipeline.stream("new") as stream:
        stream.commit(1)
        stream.commit(1, source="audit")
    assert pipeline.rows() == Counter({"1": 2})
