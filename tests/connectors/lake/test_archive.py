"""What only a lake's archive has to survive; tests/contract/test_archive.py has what every archive promises."""

import os
import shutil
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from connectors.lake import files
from connectors.lake.archive import LakeArchive
from connectors.lake.files import LakeArchiveWriter, WrittenFile
from model.archive import Attempt, IdSpan
from model.errors import CommitOutcomeUnknownError, LeaseLostError, WarehouseError
from model.read_budget import ReadBudget
from model.window import Window
from tests.archive import PUBLISHED, messages
from tests.worlds.tables import NOON, interrupt, pulled, raising


@pytest.fixture(params=["day", "hour"])
def archive(request, tmp_path):
    found = LakeArchive(str(tmp_path / "lake"), "backup.messages", request.param)
    found.create()
    return found


def write(archive: LakeArchive, *payloads: bytes) -> WrittenFile:
    return archive.writer().write([("orders", "s", pulled(*payloads))])


def commit(archive: LakeArchive, *payloads: bytes) -> int:
    """Commit each payload as an attempt of its own, and return the epoch of their lease."""
    epoch = archive.lease_epoch("l") or archive.take_lease("l")
    for number, payload in enumerate(payloads, archive.committed_attempt("s") + 1):
        archive.commit([write(archive, payload)], Attempt("s", number, "l", epoch))
    return epoch


def read(archive: LakeArchive) -> list[bytes]:
    return sorted(row["data"] for batch in archive.another().scan(["data"]) for row in batch.to_pylist())


def test_another_partitioning_is_refused_by_create_and_every_read_with_the_setting_to_change(archive, tmp_path):
    commit(archive, b"one")
    other = LakeArchive(
        str(tmp_path / "lake"), "backup.messages", "hour" if archive.partitioning == "day" else "day"
    )
    now = datetime.now(UTC)
    window = Window(now - timedelta(hours=1), now + timedelta(hours=1))
    for call in (
        other.create,
        lambda: other.data_files(window),
        lambda: other.statistics(window),
        lambda: list(other.read_messages(["orders"], window, ReadBudget(0))),
    ):
        with pytest.raises(WarehouseError, match="orrect REFEED_ARCHIVE_PARTITIONING"):
            call()


def test_a_take_over_between_check_and_commit_is_refused_by_the_log_itself(archive, monkeypatch):
    old, other = archive.take_lease("l"), archive.another()
    interrupt(monkeypatch, archive, lambda: other.take_lease("l"))
    with pytest.raises(LeaseLostError):
        archive.commit([write(archive, b"late")], Attempt("s", 1, "l", old))
    assert (read(archive), archive.lease_epoch("l")) == ([], old + 1)


def test_a_commit_of_another_owner_with_the_same_id_and_number_is_not_taken_for_its_own(archive, monkeypatch):
    """As where a home was copied: both are the same stream, and go on with the same number."""
    old, other = archive.take_lease("l"), archive.another()

    def take_over() -> None:
        other.commit([write(other, b"other")], Attempt("s", 1, "l", other.take_lease("l")))

    interrupt(monkeypatch, archive, take_over)
    with pytest.raises(LeaseLostError):
        archive.commit([write(archive, b"own")], Attempt("s", 1, "l", old))
    assert read(archive) == [b"other"]


def test_a_commit_whose_answer_was_lost_is_its_own_though_another_owner_followed(archive, monkeypatch):
    old, other = archive.take_lease("l"), archive.another()

    def lose_the_answer() -> None:
        other.commit([write(other, b"other")], Attempt("s", 2, "l", other.take_lease("l")))
        raise OSError("no answer")

    interrupt(monkeypatch, archive, lose_the_answer, after=True)
    archive.commit([write(archive, b"own")], Attempt("s", 1, "l", old))
    assert read(archive) == [b"other", b"own"]


@pytest.mark.parametrize("error", [OSError("cut"), CommitFailedError("it is there already")])
def test_a_lease_that_was_taken_although_its_answer_was_lost_is_held(archive, monkeypatch, error):
    """A store that is asked again answers that the entry is there already: it is the one that was asked for."""
    epoch = archive.take_lease("l")
    interrupt(monkeypatch, archive, raising(error), after=True)
    assert archive.take_lease("l") == archive.another().lease_epoch("l") == epoch + 1
    archive.commit([write(archive, b"one")], Attempt("s", 1, "l", epoch + 1))
    assert read(archive) == [b"one"]


@pytest.mark.parametrize("is_in", [False, True])
def test_a_lease_that_another_one_took_at_the_same_moment_is_lost_whatever_became_of_the_request(
    archive, monkeypatch, is_in
):
    other, taken = archive.another(), []

    def take_over() -> None:
        taken.append(other.take_lease("l"))
        raise OSError("cut")

    interrupt(monkeypatch, archive, take_over, after=is_in)
    with pytest.raises(LeaseLostError):
        archive.take_lease("l")
    assert taken == [archive.another().lease_epoch("l")] == [1 + is_in]
    other.commit([write(other, b"one")], Attempt("s", 1, "l", taken[0]))


def test_a_lease_that_was_not_taken_is_not_held_and_nobody_lost_it(archive, monkeypatch):
    epoch, other = archive.take_lease("l"), archive.another()
    interrupt(monkeypatch, other, raising(OSError("cut")))
    with pytest.raises(WarehouseError, match="taking the lease l: cut"):
        other.take_lease("l")
    archive.commit([write(archive, b"one")], Attempt("s", 1, "l", epoch))
    assert read(archive) == [b"one"]


def test_a_commit_that_lands_after_the_client_gave_up_finds_its_place_taken(archive, tmp_path, monkeypatch):
    lake = tmp_path / "lake"
    remote = LakeArchive(lake.as_uri(), "backup.messages", archive.partitioning)
    epoch = remote.take_lease("l")
    file = write(remote, b"one")
    # The request that is under way: the entry that this commit makes in a copy of the table.
    shutil.copytree(lake, tmp_path / "copy")
    copy = LakeArchive(str(tmp_path / "copy"), "backup.messages", archive.partitioning)
    copy.commit([file], Attempt("s", 1, "l", epoch))
    late = f"_delta_log/{copy.version():020d}.json"
    interrupt(monkeypatch, remote, raising(OSError("timed out")))
    with pytest.raises(WarehouseError, match="nothing was added"):
        remote.commit([file], Attempt("s", 1, "l", epoch))
    remote.drop(file)
    # An object store puts it only where there is none.
    with suppress(FileExistsError), (lake / "backup" / "messages" / late).open("xb") as entry:
        entry.write((tmp_path / "copy" / "backup" / "messages" / late).read_bytes())
    assert read(archive) == []


@pytest.mark.parametrize("clock", ["monotonic", "time"])
@pytest.mark.parametrize("is_in", [False, True])
def test_a_commit_to_a_store_that_took_minutes_is_read_back(archive, tmp_path, monkeypatch, clock, is_in):
    """Clean-up may have freed its place in the log: then the store takes it, and no reader ever sees it."""
    remote = LakeArchive((tmp_path / "lake").as_uri(), "backup.messages", archive.partitioning)
    epoch, write_entry, late = remote.take_lease("l"), DeltaTable.create_write_transaction, []

    def write_late(table: DeltaTable, *given, **options) -> None:
        if not late:
            late.append(getattr(time, clock)() + 600)
            monkeypatch.setattr(time, clock, lambda: late[0])
            if not is_in:
                return
        write_entry(table, *given, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", write_late)
    with nullcontext() if is_in else pytest.raises(WarehouseError, match="nothing was added"):
        remote.commit([write(remote, b"one")], Attempt("s", 1, "l", epoch, commit_id=1))
    assert read(archive) == [b"one"] * is_in


def log_retention(table: LakeArchive) -> str:
    return DeltaTable(table.uri).metadata().configuration["delta.logRetentionDuration"]


def test_a_log_in_a_bucket_is_kept_for_a_week_also_where_an_earlier_refeed_made_it_shorter(archive, tmp_path):
    bucket = (tmp_path / "bucket").as_uri()
    remote = LakeArchive(bucket, "backup.messages", archive.partitioning)
    remote.create()
    assert (log_retention(remote), log_retention(archive)) == ("interval 7 days", "interval 1 days")
    earlier = LakeArchive((tmp_path / "lake").as_uri(), "backup.messages", archive.partitioning)
    for interval, kept in (
        ("1 days", "7 days"),
        ("24 hours", "7 days"),
        ("30 days", "30 days"),
        ("2 weeks", "2 weeks"),
    ):
        properties = {"delta.logRetentionDuration": f"interval {interval}"}
        DeltaTable(archive.uri).alter.set_table_properties(properties)
        epoch = earlier.another().take_lease("l")
        assert log_retention(earlier) == f"interval {kept}"
    assert archive.another().lease_epoch("l") == epoch == 4


def test_a_table_whose_log_may_forget_who_has_its_lease_is_refused(archive):
    commit(archive, b"one")
    properties = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    DeltaTable(archive.uri).alter.set_table_properties(properties)
    for call in (archive.another().version, archive.another().exists, archive.another().create):
        with pytest.raises(WarehouseError, match=r"setTransactionRetentionDuration.*UNSET TBLPROPERTIES"):
            call()


def test_the_outcome_is_unknown_while_a_request_may_be_under_way(archive, tmp_path, monkeypatch):
    remote = LakeArchive((tmp_path / "lake").as_uri(), "backup.messages", archive.partitioning)
    epoch = remote.take_lease("l")
    interrupt(monkeypatch, remote, *[raising(OSError("timed out"))] * 2)
    with pytest.raises(CommitOutcomeUnknownError):
        remote.commit([write(remote, b"one")], Attempt("s", 1, "l", epoch))


def test_a_file_that_waited_too_long_is_not_committed(archive):
    file = write(archive, b"one")
    old = replace(file, modified_at_ms=file.modified_at_ms - 2 * 3_600_000)
    with pytest.raises(WarehouseError, match="waited"):
        archive.commit([old], Attempt("s", 1, "l", archive.take_lease("l")))


def test_readers_of_the_snapshot_before_a_compaction_keep_their_files(archive):
    commit(archive, *[b"%d" % number for number in range(5)])
    before = archive.data_files()
    assert (archive.compact(max_small_files=5), archive.compact()) == (0, 4)
    assert archive.vacuum() == []
    assert all(Path(file.path).exists() for file in before)


def test_two_compactions_of_one_partition_at_once_leave_every_row_once(archive, monkeypatch):
    commit(archive, b"0", b"1", b"2", b"3")
    other = archive.another()
    interrupt(monkeypatch, archive, other.compact)
    with pytest.raises(WarehouseError, match="another process"):
        archive.compact()
    assert read(archive) == [b"0", b"1", b"2", b"3"]


def test_a_compaction_lets_commits_that_come_meanwhile_in(archive, monkeypatch):
    commit(archive, b"0", b"1", b"2")
    compactor, other = archive.another(), archive.another()
    interrupt(monkeypatch, compactor, lambda: commit(other, b"3"), lambda: commit(other, b"4"))
    assert compactor.compact() == 2
    assert read(archive) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_compaction_that_took_longer_than_vacuum_waits_commits_nothing(archive, monkeypatch):
    commit(archive, b"0", b"1")
    write_batches = LakeArchiveWriter.write_batches

    def write_slowly(self, *arguments):
        return replace(write_batches(self, *arguments), modified_at_ms=int(time.time() * 1000) - 2 * 3_600_000)

    monkeypatch.setattr(LakeArchiveWriter, "write_batches", write_slowly)
    with pytest.raises(WarehouseError, match="waited"):
        archive.compact()
    assert len(archive.data_files()) == 2


def test_files_that_delta_rs_compacted_are_compacted_and_expire_like_others(archive):
    for number in range(3):
        commit(archive, b"%d" % number)
        # As an earlier Refeed did: the file lies in a folder of its partition, its name is encoded twice.
        DeltaTable(archive.uri).optimize.compact()
    commit(archive, b"3")
    assert archive.compact() == 1
    assert read(archive) == [b"0", b"1", b"2", b"3"]
    assert archive.expire(before=datetime.now(UTC).date() - timedelta(days=1)) == 0
    assert archive.expire(before=date(9999, 1, 1)) == 1
    assert archive.another().data_files() == []


def test_vacuum_takes_old_files_that_nobody_committed_and_leaves_young_ones(archive):
    old, young = write(archive, b"old"), write(archive, b"young")
    day_ago = time.time() - 25 * 3600
    folder = Path(archive.uri)
    os.utime(folder / old.path, (day_ago, day_ago))
    assert archive.vacuum(dry_run=True) == [old.path]
    assert archive.vacuum() == [old.path]
    assert [(folder / file.path).exists() for file in (old, young)] == [False, True]
    with pytest.raises(WarehouseError, match="2 hours"):
        archive.vacuum(keep_hours=1)


def test_reading_an_archive_that_is_not_there_says_how_to_get_one(tmp_path):
    with pytest.raises(WarehouseError, match="attach a topic"):
        LakeArchive(str(tmp_path / "none"), "backup.messages").data_files()


def test_a_file_that_can_have_no_id_of_the_span_is_not_opened(archive):
    commit(archive, b"a")
    (file,) = archive.data_files()
    Path(file.path).write_bytes(b"not read")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert list(archive.read_ids(IdSpan(NOON + timedelta(microseconds=1), tomorrow))) == []
    with pytest.raises(WarehouseError):
        list(archive.read_ids(IdSpan(NOON, tomorrow)))


def test_a_file_of_several_row_groups_is_found_by_the_first_and_the_last_of_its_times(archive, monkeypatch):
    monkeypatch.setattr(files, "_ROW_GROUP_BYTES", 1)
    writer, epoch = archive.writer(), archive.take_lease("l")
    written = writer.write([("orders", "s", messages(3))])
    with writer.reading([written.path]) as opened:
        rows = pa.Table.from_batches(writer.read_batches(opened, [written.path])).take([1, 0, 2])
    file = writer.write_batches(rows.to_batches(max_chunksize=1), rows.schema, datetime.now(UTC))
    archive.commit([file], Attempt("s", 1, "l", epoch))
    for number in range(3):
        begin = PUBLISHED + timedelta(seconds=number)
        window = Window(begin, begin + timedelta(seconds=1))
        found = archive.read_between(["message_id"], "publish_time", window)
        assert [row["message_id"] for batch in found for row in batch.to_pylist()] == [f"m{number}"]
