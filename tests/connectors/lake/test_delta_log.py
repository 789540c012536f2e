import json
import os
import random
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from connectors.lake.archive import LakeArchive
from connectors.lake.delta_log import DeltaLog
from connectors.lake.entities import EntityTable
from connectors.lake.merged_files import MergedFileLists
from connectors.lake.rows import LakeRowTable
from connectors.lake.tables import LakeTable
from model.archive import Attempt
from model.errors import RefeedError, StorageFullError, WarehouseError
from model.schema import Field, RowSchema
from tests.power import Moment, Survival, can_record, rebuild, record
from tests.worlds.full_disk import full
from tests.worlds.tables import pulled

ROWS = RowSchema((Field("id", "INT64"), Field("ingest_time", "TIMESTAMP")))
PROGRAM = Path(__file__).with_name("power_cut_program.py")


def read_ids(table: LakeTable, column: str) -> list[str]:
    return read_ids_of([file.path for file in table.data_files()] if table.exists() else [], column)


def read_ids_of(paths: list[str], column: str) -> list[str]:
    found = [pq.read_table(path, columns=[column]).column(0).to_pylist() for path in paths]
    return sorted(str(value) for values in found for value in values)


def promised(marks: tuple[str, ...], kind: str) -> set[str]:
    """Return what is to be found: what was acknowledged, without what was to be deleted since."""
    ids = {mark.removeprefix(f"{kind} ") for mark in marks if mark.startswith(f"{kind} ")}
    return ids - {mark.removeprefix(f"-{kind} ") for mark in marks if mark.startswith(f"-{kind} ")} - {"rewritten"}


def found_or_fault(root: Path, kind: str) -> list[str] | str:
    """Open a table that a power cut left, as the next process does, and return its ids or why it can't be read."""
    try:
        return FINDERS[kind](root)
    except (RefeedError, pa.ArrowException, OSError) as exc:
        return f"{type(exc).__name__}: {exc}"[:300]


def found_archive(root: Path) -> list[str]:
    table = LakeArchive(str(root / "lake"), "backup.messages")
    found = read_ids(table, "message_id")
    if is_cut(table):
        table.create()
        table.take_lease("l")
    return found


def found_rows(root: Path) -> list[str]:
    table = LakeRowTable(str(root / "lake"), "staging.orders")
    found = read_ids(table, "id")
    if is_cut(table):
        table.evolve(table.schema() or ROWS)
        table.take_lease("l")
    return found


def found_entities(root: Path) -> list[str]:
    table = EntityTable(str(root / "lake"), "reporting.orders")
    taken = table.snapshot().taken_number
    if taken and MergedFileLists(table.uri).read(taken) is None:
        return "the list of the files that its last merge took is lost"
    found = read_ids_of([file.path for file in table.snapshot().files] if table.exists() else [], "id")
    if is_cut(table):
        table.evolve(table.schema() or ROWS)
        table.overtake()
    return found


FINDERS = {"archive": found_archive, "rows": found_rows, "entities": found_entities}
DATASETS = {"archive": "backup", "rows": "staging", "entities": "reporting"}


def is_cut(table: LakeTable | EntityTable) -> bool:
    """Whether entries were set aside: then the log has to go on from there."""
    return Path(table.uri, "_torn").exists()


def faults_of(moment: Moment, kind: str, found: list[str] | str) -> list[str]:
    if isinstance(found, str):
        return [f"{kind} can't be read after {moment.call}: {found}"]
    lost = promised(moment.marks, kind) - set(found)
    faults = [f"{kind} lost {sorted(lost)} after {moment.call}"] if lost else []
    return faults if len(found) == len(set(found)) else [*faults, f"{kind} has {found} after {moment.call}"]


@pytest.mark.skipif(not can_record(), reason="strace is missing or may not trace here")
def test_a_power_cut_at_any_moment_leaves_a_lake_that_opens_and_has_all_that_was_acknowledged(tmp_path):
    root, kept = tmp_path / "root", tmp_path / "kept"
    root.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, str(PROGRAM), str(root), str(tmp_path / "marks")]
    # Of a table as a cut left it: what is found in it.
    known: dict[frozenset[tuple[str, bytes | None]], list[str] | str] = {}
    faults: list[str] = []
    dice = random.Random(14)
    for moment in record(argv, root, tmp_path / "marks", environment):
        for survival in Survival:
            left = moment.folder.after_a_cut(survival, dice)
            for kind, name in DATASETS.items():
                dataset = root / "lake" / name
                table = {path: content for path, content in left.items() if path.startswith(f"{dataset}/")}
                state = frozenset(table.items())
                if state not in known:
                    rebuild(table, dataset, kept)
                    known[state] = found_or_fault(root, kind)
                faults += [f"{survival.name}: {fault}" for fault in faults_of(moment, kind, known[state])]
    assert "rows rewritten" in moment.marks
    assert faults == []


def archive_of(root: Path, messages: int) -> LakeArchive:
    """Return an archive with one commit a message; its versions are 0 (made), 1 (lease), then the commits."""
    archive = LakeArchive(str(root), "backup.messages")
    archive.create()
    epoch = archive.take_lease("l")
    for number in range(1, messages + 1):
        append(archive, number, epoch)
    return archive


def append(archive: LakeArchive, number: int, epoch: int) -> None:
    part = archive.writer().write([("orders", "s", pulled(b"", first=number))])
    archive.commit([part], Attempt("s", number, "l", epoch))


def entry(archive: LakeArchive, version: int) -> Path:
    return Path(archive.uri, "_delta_log", f"{version:020d}.json")


def test_the_entry_that_a_power_cut_left_torn_is_set_aside_and_the_attempt_is_made_again(tmp_path):
    archive = archive_of(tmp_path, 3)
    newest = entry(archive, archive.version())
    torn = newest.read_bytes()[:100]
    newest.write_bytes(torn)
    found = archive.another()
    assert read_ids(found, "message_id") == ["1", "2"]
    assert not found.settle(Attempt("s", 3, "l", 1))
    assert [path.read_bytes() for path in Path(archive.uri, "_torn").iterdir()] == [torn]
    append(found, 3, found.take_lease("l"))
    assert read_ids(archive.another(), "message_id") == ["1", "2", "3"]


def test_a_damaged_entry_that_many_commits_follow_is_left_to_people(tmp_path):
    archive = archive_of(tmp_path, 20)
    entry(archive, 2).write_bytes(b"{")
    with pytest.raises(WarehouseError):
        archive.another().data_files()
    assert entry(archive, 21).exists()
    assert not Path(archive.uri, "_torn").exists()


def test_an_entry_of_nothing_is_not_taken_for_the_torn_one(tmp_path):
    archive = archive_of(tmp_path, 4)
    # What an earlier power cut left empty is read as a commit of nothing, and the log went on from there.
    entry(archive, 3).write_bytes(b"")
    entry(archive, 5).write_bytes(b"{")
    assert read_ids(archive.another(), "message_id") == ["1", "3"]


def synced_paths(monkeypatch) -> list[str]:
    found: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        found.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return found


def test_an_attempt_counts_as_in_only_when_its_entry_is_durable(tmp_path, monkeypatch):
    archive = archive_of(tmp_path, 1)
    synced = synced_paths(monkeypatch)
    # The process that committed it was killed before it synced.
    assert archive.another().settle(Attempt("s", 1, "l", 1))
    assert str(entry(archive, 2)) in synced
    assert synced[-1] == str(entry(archive, 2).parent)


def test_a_commit_syncs_the_entries_of_others_that_it_builds_on(tmp_path, monkeypatch):
    archive = archive_of(tmp_path, 1)
    other = archive.another()
    # Committed and not synced yet.
    other._delta = DeltaTable(other.uri)
    for _ in range(2):
        other._delta.create_write_transaction([], mode="append", schema=other._delta.schema())
    synced = synced_paths(monkeypatch)
    append(archive, 2, 1)
    assert {str(entry(archive, version)) for version in (3, 4, 5)} <= set(synced)


def test_a_commit_syncs_the_checkpoint_of_another_that_it_builds_on(tmp_path, monkeypatch):
    archive = archive_of(tmp_path, 1)
    DeltaTable(archive.uri).create_checkpoint()
    synced = synced_paths(monkeypatch)
    # The process that wrote it was killed before it synced.
    found = archive.another()
    append(found, 2, found.take_lease("l"))
    log = Path(archive.uri, "_delta_log")
    assert {str(log / "_last_checkpoint"), *map(str, log.glob("*.checkpoint*"))} <= set(synced)


@pytest.fixture(params=["day", "hour"])
def followed(request, tmp_path) -> LakeArchive:
    """An archive that knows its newest version, after one commit; its entries are 0 to 2."""
    archive = LakeArchive(str(tmp_path), "backup.messages", request.param)
    archive.create()
    append(archive, 1, archive.take_lease("l"))
    return archive


def count_reads(monkeypatch) -> list[str]:
    """Note each time that delta-rs reads the log, or writes an entry."""
    found: list[str] = []
    for name in ("__init__", "update_incremental", "create_write_transaction"):
        own = getattr(DeltaTable, name)

        def noted(*args, own=own, name=name, **options):
            found.append(name)
            return own(*args, **options)

        monkeypatch.setattr(DeltaTable, name, noted)
    return found


def test_commits_that_nobody_comes_between_read_no_log(followed, monkeypatch):
    # With each entry since the checkpoint delta-rs takes longer.
    with monkeypatch.context() as watched:
        reads = count_reads(watched)
        for number in (2, 3):
            append(followed, number, 1)
    assert reads == []
    found = followed.another()
    assert read_ids(found, "message_id") == ["1", "2", "3"]
    assert found.settle(Attempt("s", 3, "l", 1))
    assert {file.partition for file in found.data_files()} == {file.partition for file in followed.data_files()}
    assert [commit["operation"] for commit in DeltaTable(found.uri).history()][:3] == ["WRITE"] * 3
    assert not list(Path(found.uri).glob("*.tmp"))


def test_an_entry_says_what_delta_rs_says(followed):
    append(followed, 2, 1)
    theirs, ours = (
        [json.loads(line) for line in entry(followed, version).read_bytes().splitlines()] for version in (2, 3)
    )
    assert [list(action) for action in ours] == [list(action) for action in theirs]
    (their_file,), (our_file,) = (
        [action["add"] for action in found if "add" in action] for found in (theirs, ours)
    )
    assert our_file["partitionValues"] == their_file["partitionValues"]
    assert our_file == {name: our_file.get(name) for name, value in their_file.items() if value is not None}
    assert [action for action in ours if action.get("txn", {}).get("appId") == "lease:l"] == [
        {"txn": {"appId": "lease:l", "version": 1}}
    ]


def test_an_entry_is_durable_before_it_has_its_name_and_before_the_commit_returns(followed, monkeypatch):
    synced = synced_paths(monkeypatch)
    append(followed, 2, 1)
    written, folder = synced[-2:]
    assert written.endswith(".json.tmp")
    assert folder == str(entry(followed, 3).parent)


def test_a_commit_follows_what_another_committed_meanwhile(followed, monkeypatch):
    other = followed.another()
    other.take_lease("another")
    synced = synced_paths(monkeypatch)
    for number in (2, 3):
        append(followed, number, 1)
    assert str(entry(followed, 3)) in synced
    assert followed.another().version() == 5
    assert read_ids(followed.another(), "message_id") == ["1", "2", "3"]


def test_the_place_of_an_entry_that_a_checkpoint_stands_for_is_not_taken_again(followed):
    DeltaTable(followed.uri).alter.set_table_properties({"delta.checkpointInterval": "5"})
    followed.another().take_lease("another")
    assert Path(followed.uri, "_delta_log", f"{4:020d}.checkpoint.parquet").exists()
    for version in range(4):
        entry(followed, version).unlink()
    append(followed, 2, 1)
    assert not entry(followed, 3).exists()
    assert read_ids(followed.another(), "message_id") == ["1", "2"]


@pytest.mark.parametrize("is_next", [False, True], ids=["by delta-rs", "by the log itself"])
def test_a_commit_that_hung_until_its_place_was_freed_is_in_no_version_and_says_so(followed, monkeypatch, is_next):
    """Clean-up deletes old entries, also one that another wrote meanwhile: then its place is free again."""
    if not is_next:
        followed._tip = None

    def hang() -> None:
        monkeypatch.undo()
        DeltaTable(followed.uri).alter.set_table_properties({"delta.checkpointInterval": "5"})
        followed.another().take_lease("another")
        for version in range(4):
            entry(followed, version).unlink()

    link, write = Path.hardlink_to, DeltaTable.create_write_transaction

    def link_late(path: Path, target: Path) -> None:
        hang()
        link(path, target)

    def write_late(table: DeltaTable, actions, **options) -> None:
        held, place = Path(followed.uri, "held"), entry(followed, 3)
        # The entry is made where delta-rs sees nothing of what has come since it read the log.
        shutil.copytree(place.parent, held / "_delta_log")
        copy = DeltaTable(str(held))
        write(copy, actions, **options)
        hang()
        (held / "_delta_log" / place.name).rename(place)

    monkeypatch.setattr(Path, "hardlink_to", link_late)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", write_late)
    with pytest.raises(WarehouseError, match="nothing was added"):
        append(followed, 2, 1)
    monkeypatch.undo()
    assert entry(followed, 3).exists()
    assert read_ids(followed.another(), "message_id") == ["1"]
    append(followed, 3, 1)
    assert read_ids(followed.another(), "message_id") == ["1", "3"]


def test_a_commit_whose_folder_can_t_be_synced_is_asked_for(followed, monkeypatch):
    fsync, refused = os.fsync, []

    def refuse(descriptor: int) -> None:
        if not refused and Path(f"/proc/self/fd/{descriptor}").readlink() == entry(followed, 3).parent:
            refused.append(descriptor)
            raise OSError("I/O error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    append(followed, 2, 1)
    assert len(refused) == 1
    append(followed, 3, 1)
    assert read_ids(followed.another(), "message_id") == ["1", "2", "3"]


def test_an_entry_for_which_there_is_no_room_adds_nothing(followed, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Path, "hardlink_to", full)
        with pytest.raises(StorageFullError):
            append(followed, 2, 1)
    append(followed, 2, 1)
    assert read_ids(followed.another(), "message_id") == ["1", "2"]
    assert not list(Path(followed.uri).glob("*.tmp"))


def test_commits_that_read_no_log_write_its_checkpoints_too(tmp_path):
    archive = archive_of(tmp_path, 2)
    properties = {"delta.checkpointInterval": "5"}
    DeltaTable(archive.uri).alter.set_table_properties(properties)
    for number in range(3, 15):
        append(archive, number, 1)
    found = sorted(path.name for path in Path(archive.uri, "_delta_log").glob("*.checkpoint.parquet"))
    assert found == [f"{version:020d}.checkpoint.parquet" for version in (4, 9, 14)]
    assert read_ids(archive.another(), "message_id") == sorted(str(number) for number in range(1, 15))


def test_a_copy_that_a_kill_left_of_the_log_goes_with_a_later_checkpoint(tmp_path):
    archive = LakeArchive(str(tmp_path), "backup.messages")
    archive.create()
    left, young = Path(archive.uri, "_checkpoint", "left"), Path(archive.uri, "_checkpoint", "young")
    for folder in (left, young):
        (folder / "_delta_log").mkdir(parents=True)
    os.utime(left, (1, 1))
    for _ in range(100):
        archive.take_lease("l")
    assert not left.exists()
    assert young.exists()
    assert Path(archive.uri, "_delta_log", "_last_checkpoint").exists()
    assert archive.another().lease_epoch("l") == 100


def test_a_checkpoint_that_can_t_be_written_fails_no_commit(tmp_path, monkeypatch):
    archive = archive_of(tmp_path, 1)

    def refuse(*_) -> None:
        raise OSError("no space")

    monkeypatch.setattr(DeltaLog, "_write_checkpoint", refuse)
    for _ in range(100):
        archive.take_lease("l")
    assert archive.another().lease_epoch("l") == 101


def test_a_table_that_is_kept_open_is_opened_again_after_a_checkpoint(tmp_path, monkeypatch):
    # It would replay every entry since it was opened with each commit, which takes longer with every one of them.
    archive = archive_of(tmp_path, 1)
    opened, open_log = [], DeltaLog.open

    def noted(self):
        opened.append(self)
        return open_log(self)

    monkeypatch.setattr(DeltaLog, "open", noted)
    for _ in range(100):
        archive.take_lease("l")
    assert len(opened) == 1
