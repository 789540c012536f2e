import contextlib
import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs.disk_files import DiskFiles
from jobs.files import Files, open_files
from model.errors import (
    FolderUnavailableError,
    SnapshotCorruptError,
    SnapshotFormatError,
    SnapshotRefusedError,
    StorageFullError,
)
from streams import snapshot
from streams.journal import EntryState, Journal
from streams.lease import lock_home
from streams.snapshot import capture_state, finish_restore, read_manifest, restore_state, store_state
from tests.streams.test_journal import NOON, ids
from tests.worlds.bucket import SCHEMES
from tests.worlds.folders import bucket_folder


def add(folder: Path, attempt: int, *message_ids: str, at: datetime = NOON) -> None:
    journal = Journal(folder / "journal", keep_seconds=600)
    journal.move(journal.write(attempt, ids(*message_ids, at=at)), EntryState.DONE)


def known(folder: Path, *message_ids: str, at: datetime = NOON) -> list[bool]:
    return Journal(folder / "journal", keep_seconds=600).find_known(ids(*message_ids, at=at)).to_pylist()


def content(folder: Path) -> dict[str, bytes]:
    """The files in ``folder``, without the mark, by which a stream tells its own journal from another."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "mark.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "streams" / "backup"
    folder.mkdir(parents=True)
    (folder / "stream-id").write_text("a" * 32)
    (folder / "plan.json").write_text('{"plan": 1}')
    (folder / "status.json").write_text("{}")
    add(folder, 7, "1", "2")
    add(folder, 8, "3", at=NOON + timedelta(minutes=1))
    return folder


@pytest.fixture(params=["disk", *SCHEMES])
def place(request, tmp_path):
    if request.param == "disk":
        yield DiskFiles(tmp_path / "snapshots")
        return
    with bucket_folder(request.param, request) as found:
        yield open_files(found.location)


def take(state: Path, files: Files, **facts: object) -> snapshot.StateManifest:
    captured = capture_state(state)
    try:
        return store_state(captured, files, facts)
    finally:
        captured.discard()


def test_a_snapshot_brings_back_the_journal_and_the_plan_as_they_were(state, place):
    made = take(state, place.folder("sn_1"), release="0.1.0")
    before = content(state)
    shutil.rmtree(state / "journal")
    (state / "plan.json").write_text('{"plan": 2}')
    add(state, 9, "4")
    assert restore_state(place.folder("sn_1"), state) == made
    assert content(state) == before
    assert known(state, "1", "2", "4") == [True, True, False]
    assert Journal(state / "journal", keep_seconds=600).last_attempt() == 8
    assert (made.stream, made.stream_id, made.last_attempt, made.known_messages) == ("backup", "a" * 32, 8, 3)
    assert (made.first_publish_time, made.last_publish_time) == (NOON, NOON + timedelta(minutes=1))
    assert read_manifest(place.folder("sn_1")).facts == {"release": "0.1.0"}


def test_the_stream_may_go_on_while_its_state_is_copied(state, place):
    captured = capture_state(state)
    add(state, 9, "4")
    journal = Journal(state / "journal", keep_seconds=600)
    for entry in journal.entries(EntryState.DONE):
        if entry.attempt == 7:
            journal.keep_only(entry, ids("1"))
        elif entry.attempt == 8:
            journal.forget(entry)
    (state / "plan.new").write_text("{}")
    (state / "plan.new").rename(state / "plan.json")
    store_state(captured, place.folder("sn_1"), {})
    captured.discard()
    assert not (state / "captured").exists()
    restore_state(place.folder("sn_1"), state)
    assert known(state, "1", "2", "4") == [True, True, False]
    assert json.loads((state / "plan.json").read_text()) == {"plan": 1}


def test_the_id_of_a_stream_stays_its_own(state, place, tmp_path):
    take(state, place.folder("sn_1"))
    other = tmp_path / "other"
    restore_state(place.folder("sn_1"), other)
    assert not (other / "stream-id").exists()
    assert known(other, "1") == [True]


def test_times_of_the_files_come_back_so_that_what_was_recovered_is_kept_for_its_week(state, place):
    journal = Journal(state / "journal", keep_seconds=600)
    journal.remember(9, ids("9"))
    path = journal.entries(EntryState.RECOVERED)[0].path
    os.utime(path, (1_700_000_000.25, 1_700_000_000.25))
    take(state, place.folder("sn_1"))
    restore_state(place.folder("sn_1"), state)
    assert path.stat().st_mtime == 1_700_000_000.25


def test_no_snapshot_is_made_of_a_stream_that_never_ran_or_waits_for_an_outcome(state, tmp_path):
    with pytest.raises(SnapshotRefusedError, match="no state yet"):
        capture_state(tmp_path / "streams" / "none")
    Journal(state / "journal", keep_seconds=600).write(9, ids("9"))
    with pytest.raises(SnapshotRefusedError, match="commit 9"):
        capture_state(state)
    assert not (state / "captured").exists()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-600])


def flip(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)


@pytest.mark.parametrize("name", ["snapshot.json", "state.tar"])
@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_a_damaged_snapshot_is_refused_and_changes_nothing(state, tmp_path, damage, name):
    files = DiskFiles(tmp_path / "sn_1")
    take(state, files)
    add(state, 9, "4")
    before = content(state)
    damage(tmp_path / "sn_1" / name)
    with pytest.raises(SnapshotCorruptError):
        restore_state(files, state)
    assert content(state) == before


def test_a_snapshot_that_was_half_copied_is_none(state, place, monkeypatch):
    def fail(*_):
        raise OSError("no more")

    monkeypatch.setattr(type(place), "complete", fail)
    captured = capture_state(state)
    with pytest.raises(OSError, match="no more"):
        store_state(captured, place.folder("sn_1"), {})
    with pytest.raises(SnapshotCorruptError, match="not complete"):
        read_manifest(place.folder("sn_1"))


def test_a_newer_format_is_refused_by_its_number(state, place, monkeypatch):
    monkeypatch.setattr(snapshot, "STATE_FORMAT", 2)
    take(state, place.folder("sn_1"))
    monkeypatch.undo()
    before = content(state)
    with pytest.raises(
        SnapshotFormatError, match="format 2, but this release reads only formats up to 1"
    ) as raised:
        restore_state(place.folder("sn_1"), state)
    assert raised.value.details == {"format_version": 2, "newest_read": 1}
    assert content(state) == before


def test_a_file_that_is_no_part_of_a_state_is_refused(state, tmp_path):
    captured = capture_state(state)
    (captured.folder / "lock").write_text("1")
    files = DiskFiles(tmp_path / "sn_1")
    store_state(captured, files, {})
    before = content(state)
    with pytest.raises(SnapshotCorruptError, match="has lock"):
        restore_state(files, state)
    captured.discard()
    assert content(state) == {name: text for name, text in before.items() if not name.startswith("captured")}


def test_a_snapshot_without_room_is_refused_before_anything_changes(state, tmp_path, monkeypatch):
    files = DiskFiles(tmp_path / "sn_1")
    take(state, files)
    before = content(state)
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(StorageFullError):
        restore_state(files, state, min_free_bytes=free)
    assert content(state) == before


class PowerCutError(BaseException):
    """The machine loses its power."""


@pytest.mark.parametrize("step", range(12))
def test_a_state_is_the_old_or_the_new_one_wherever_a_restore_ends(state, tmp_path, monkeypatch, step):
    files = DiskFiles(tmp_path / "sn_1")
    take(state, files)
    new = content(state)
    add(state, 9, "4")
    (state / "plan.json").write_text('{"plan": 2}')
    old = content(state)
    left = step

    def counted(real):
        def call(*arguments, **options):
            nonlocal left
            if left == 0:
                raise PowerCutError
            left -= 1
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as cut:
        cut.setattr(Path, "rename", counted(Path.rename))
        cut.setattr(Path, "unlink", counted(Path.unlink))
        cut.setattr(Path, "mkdir", counted(Path.mkdir))
        cut.setattr(shutil, "rmtree", counted(shutil.rmtree))
        with contextlib.suppress(PowerCutError):
            restore_state(files, state)
    finish_restore(state)
    assert content(state) in ([new] if left else [old, new])
    assert not any((state / name).exists() for name in ("restored", "restored.unfinished"))


def test_a_snapshot_is_flushed_before_it_appears_and_a_state_before_it_counts(state, tmp_path, monkeypatch):
    flushed = []
    real = os.fsync

    def note(descriptor):
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path).as_posix())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    files = DiskFiles(tmp_path / "snapshots" / "backup" / "sn_1")
    take(state, files)
    unfinished = Path(flushed[0]).parent.as_posix()
    assert unfinished.startswith("snapshots/backup/sn_1.unfinished-")
    appears = ["snapshots/backup", "snapshots", "."]
    assert flushed == [f"{unfinished}/state.tar", f"{unfinished}/snapshot.json", unfinished, *appears]
    flushed.clear()
    restore_state(files, state)
    restored = "streams/backup/restored.unfinished"
    entries = [f"{restored}/journal/{path.name}" for path in (state / "journal").iterdir()]
    moved = flushed.index("streams/backup")
    assert {*entries, f"{restored}/plan.json", f"{restored}/journal", restored} <= set(flushed[:moved])
    assert flushed[moved:] == ["streams/backup", "streams/backup", "streams/backup/restored"]


@pytest.mark.parametrize("since", [NOON, None])
def test_a_restored_journal_asks_its_stream_to_learn_what_may_come_again(state, tmp_path, since):
    files = DiskFiles(tmp_path / "sn_1")
    journal = Journal(state / "journal", keep_seconds=600)
    journal.begin(knows_all=True)
    own = journal.mark.name
    take(state, files)
    began = datetime.now(UTC)
    restore_state(files, state, learn_since=since)
    mark = Journal(state / "journal", keep_seconds=600).mark
    assert mark.is_asked
    assert not mark.is_named(own)
    assert mark.learn_since is not None
    assert mark.learn_since == since if since is not None else began <= mark.learn_since <= datetime.now(UTC)


def test_a_stream_that_starts_puts_a_state_in_its_place_that_a_crash_left_halfway(state, tmp_path, monkeypatch):
    files = DiskFiles(tmp_path / "sn_1")
    take(state, files)
    new = content(state)
    add(state, 9, "4")
    with monkeypatch.context() as context:
        context.setattr(snapshot, "finish_restore", lambda _: False)
        restore_state(files, state)
    assert known(state, "4") == [True]
    with lock_home(state):
        pass
    (state / "lock").unlink()
    assert content(state) == new
    assert known(state, "4") == [False]


def test_a_storage_that_does_not_answer_leaves_the_state_alone(state, place, monkeypatch):
    take(state, place.folder("sn_1"))

    def fail(*_):
        raise FolderUnavailableError("away")

    monkeypatch.setattr(type(place), "reader", fail)
    before = content(state)
    with pytest.raises(FolderUnavailableError):
        restore_state(place.folder("sn_1"), state)
    assert content(state) == before
