import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from connectors.lake.archive import LakeArchive
from connectors.lake.files import LakeArchiveWriter, WrittenFile
from connectors.pubsub.pull import PULLED_SCHEMA
from model.archive import Attempt, IdSpan
from model.errors import CommitOutcomeUnknownError, LeaseLostError, WarehouseError
from model.read_budget import ReadBudget
from model.window import Window


def messages(*payloads: bytes, attributes: dict[str, str] | None = None) -> pa.RecordBatch:
    pairs = [{"key": k, "value": v} for k, v in (attributes or {}).items()]
    return pa.RecordBatch.from_pylist(
        [
            {
                "data": payload,
                "attributes": pairs,
                "message_id": str(number),
                "publish_time": datetime(2024, 3, 1, 12, 0, 0, 123456, tzinfo=UTC),
                "ordering_key": "",
                "ack_id": "a",
            }
            for number, payload in enumerate(payloads)
        ],
        schema=PULLED_SCHEMA,
    )


@pytest.fixture(params=["day", "hour"])
def archive(request, tmp_path):
    found = LakeArchive(str(tmp_path / "lake"), "backup.messages", request.param)
    found.create()
    return found


def write(archive: LakeArchive, *payloads: bytes) -> WrittenFile:
    return archive.writer().write([("orders", "refeed-backup.orders", messages(*payloads))])


def read(archive: LakeArchive, window: Window | None = None) -> list[dict]:
    rows: list[dict] = []
    for file in archive.data_files(window):
        rows += pq.ParquetFile(file.path).read().to_pylist()
    return rows


def test_a_written_file_is_seen_only_once_it_is_committed(archive):
    epoch = archive.take_lease("l")
    file = write(archive, b"one", b"")
    assert read(archive) == []
    archive.commit([file], Attempt("s", 1, "l", epoch))
    rows = read(archive)
    assert [row["data"] for row in rows] == [b"one", b""]
    assert rows[0]["topic"] == "orders"
    assert rows[0]["subscription"] == "refeed-backup.orders"
    assert rows[0]["publish_time"] == datetime(2024, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
    assert rows[0]["ingest_time"] <= datetime.now(UTC)


def test_creating_it_again_changes_nothing_and_another_partitioning_is_refused(archive, tmp_path):
    archive.create()
    other = LakeArchive(
        str(tmp_path / "lake"), "backup.messages", "hour" if archive.partitioning == "day" else "day"
    )
    with pytest.raises(WarehouseError, match="REFEED_ARCHIVE_PARTITIONING"):
        other.create()


def test_the_archive_says_which_attempt_of_a_stream_is_in(archive):
    epoch = archive.take_lease("l")
    assert archive.committed_attempt("s") == 0
    archive.commit([write(archive, b"one")], Attempt("s", 41, "l", epoch))
    assert archive.another().committed_attempt("s") == 41
    assert archive.another().committed_attempt("t") == 0


def test_a_commit_under_a_lease_that_was_taken_over_is_refused_and_adds_nothing(archive):
    old = archive.take_lease("l")
    file = write(archive, b"late")
    archive.another().take_lease("l")
    with pytest.raises(LeaseLostError):
        archive.commit([file], Attempt("s", 1, "l", old))
    assert read(archive) == []
    assert archive.lease_epoch("l") == old + 1


def test_a_take_over_between_check_and_commit_is_refused_by_the_log_itself(archive, monkeypatch):
    old = archive.take_lease("l")
    file = write(archive, b"late")
    other = archive.another()
    commit = LakeArchive._commit

    def take_over_first(self, table, files, transactions):
        if self is archive:
            other.take_lease("l")
        commit(self, table, files, transactions)

    monkeypatch.setattr(LakeArchive, "_commit", take_over_first)
    with pytest.raises(LeaseLostError):
        archive.commit([file], Attempt("s", 1, "l", old))
    assert read(archive) == []
    assert archive.lease_epoch("l") == old + 1


def test_a_commit_that_is_in_though_it_was_answered_with_an_error_counts_as_made(archive, monkeypatch):
    epoch = archive.take_lease("l")
    commit = LakeArchive._commit

    def answer_with_an_error(self, table, files, transactions):
        commit(self, table, files, transactions)
        raise OSError("connection reset after the commit")

    monkeypatch.setattr(LakeArchive, "_commit", answer_with_an_error)
    archive.commit([write(archive, b"one")], Attempt("s", 1, "l", epoch))
    assert [row["data"] for row in read(archive)] == [b"one"]


def test_a_commit_that_failed_before_it_was_made_says_that_nothing_was_added(archive, monkeypatch):
    epoch = archive.take_lease("l")

    def refuse(*_):
        raise OSError("refused")

    monkeypatch.setattr(LakeArchive, "_commit", refuse)
    with pytest.raises(WarehouseError, match="nothing was added"):
        archive.commit([write(archive, b"one")], Attempt("s", 1, "l", epoch))
    assert read(archive) == []


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
    commit = LakeArchive._commit

    def give_up(self, table, files, transactions, **options):
        if files:
            raise OSError("timed out")
        commit(self, table, files, transactions, **options)

    monkeypatch.setattr(LakeArchive, "_commit", give_up)
    with pytest.raises(WarehouseError, match="nothing was added"):
        remote.commit([file], Attempt("s", 1, "l", epoch))
    remote.drop(file)
    # An object store puts it only where there is none.
    with suppress(FileExistsError), (lake / "backup" / "messages" / late).open("xb") as entry:
        entry.write((tmp_path / "copy" / "backup" / "messages" / late).read_bytes())
    assert read(archive.another()) == []


def test_the_outcome_is_unknown_while_a_request_may_be_under_way(archive, tmp_path, monkeypatch):
    remote = LakeArchive((tmp_path / "lake").as_uri(), "backup.messages", archive.partitioning)
    epoch = remote.take_lease("l")
    file = write(remote, b"one")

    def give_up(*_, **__):
        raise OSError("timed out")

    monkeypatch.setattr(LakeArchive, "_commit", give_up)
    with pytest.raises(CommitOutcomeUnknownError):
        remote.commit([file], Attempt("s", 1, "l", epoch))


def test_a_file_that_waited_too_long_is_not_committed(archive):
    epoch = archive.take_lease("l")
    fields = write(archive, b"one").as_json()
    fields["modified_at_ms"] -= 2 * 3_600_000
    with pytest.raises(WarehouseError, match="waited"):
        archive.commit([WrittenFile(**fields)], Attempt("s", 1, "l", epoch))


def test_files_outside_the_window_are_left_out(archive):
    epoch = archive.take_lease("l")
    archive.commit([write(archive, b"one")], Attempt("s", 1, "l", epoch))
    now = datetime.now(UTC)
    long_ago = Window(now - timedelta(days=9), now - timedelta(days=8))
    assert read(archive, long_ago) == []
    # Two days wide, so that a run over midnight passes too.
    assert len(read(archive, Window(now - timedelta(days=1), now + timedelta(days=1)))) == 1


def test_unwanted_rows_are_left_out_of_a_file_before_its_commit(archive):
    writer = archive.writer()
    file = write(archive, b"one", b"two", b"three")
    kept = writer.write_without(file, pa.array([False, True, False]))
    assert kept is not None
    writer.delete(file)
    writer.delete(file)
    archive.commit([kept], Attempt("s", 1, "l", archive.take_lease("l")))
    assert [row["data"] for row in read(archive)] == [b"one", b"three"]
    assert writer.write_without(kept, pa.array([True, True])) is None


def test_compaction_keeps_every_row_and_readers_of_the_old_snapshot_keep_their_files(archive):
    epoch = archive.take_lease("l")
    for number in range(5):
        archive.commit([write(archive, b"%d" % number)], Attempt("s", number + 1, "l", epoch))
    before = archive.data_files()
    assert archive.compact(max_small_files=5) == 0
    assert archive.compact() == 4
    assert sorted(row["data"] for row in read(archive)) == [b"0", b"1", b"2", b"3", b"4"]
    assert archive.vacuum() == []
    assert all(Path(file.path).exists() for file in before)
    assert archive.committed_attempt("s") == 5


def test_a_stream_commits_while_another_process_compacts(archive):
    epoch = archive.take_lease("l")
    for number in range(3):
        archive.commit([write(archive, b"%d" % number)], Attempt("s", number + 1, "l", epoch))
    stale = archive.another()
    stale.version()
    archive.another().compact()
    stale.commit([write(archive, b"3")], Attempt("s", 4, "l", epoch))
    assert sorted(row["data"] for row in read(archive)) == [b"0", b"1", b"2", b"3"]


def test_two_compactions_of_one_partition_at_once_leave_every_row_once(archive, monkeypatch):
    epoch = archive.take_lease("l")
    for number in range(4):
        archive.commit([write(archive, b"%d" % number)], Attempt("s", number + 1, "l", epoch))
    commit, other = LakeArchive._commit, archive.another()

    def compact_first(self, *arguments, **options):
        if self is archive:
            other.compact()
        commit(self, *arguments, **options)

    monkeypatch.setattr(LakeArchive, "_commit", compact_first)
    with pytest.raises(WarehouseError, match="another process"):
        archive.compact()
    assert sorted(row["data"] for row in read(other)) == [b"0", b"1", b"2", b"3"]


def test_a_compaction_lets_commits_that_come_meanwhile_in(archive, monkeypatch):
    epoch = archive.take_lease("l")
    for number in range(3):
        archive.commit([write(archive, b"%d" % number)], Attempt("s", number + 1, "l", epoch))
    commit, other, compactor = LakeArchive._commit, archive.another(), archive.another()
    numbers = iter((4, 5))

    def append_first(self, *arguments, **options):
        if self is compactor and (number := next(numbers, None)) is not None:
            other.commit([write(other, b"%d" % (number - 1))], Attempt("s", number, "l", epoch))
        commit(self, *arguments, **options)

    monkeypatch.setattr(LakeArchive, "_commit", append_first)
    assert compactor.compact() == 2
    assert sorted(row["data"] for row in read(archive)) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_compaction_that_took_longer_than_vacuum_waits_commits_nothing(archive, monkeypatch):
    epoch = archive.take_lease("l")
    for number in range(2):
        archive.commit([write(archive, b"%d" % number)], Attempt("s", number + 1, "l", epoch))
    write_batches = LakeArchiveWriter.write_batches

    def write_slowly(self, *arguments):
        return replace(write_batches(self, *arguments), modified_at_ms=int(time.time() * 1000) - 2 * 3_600_000)

    monkeypatch.setattr(LakeArchiveWriter, "write_batches", write_slowly)
    with pytest.raises(WarehouseError, match="waited"):
        archive.compact()
    assert len(archive.data_files()) == 2


def test_files_that_delta_rs_compacted_are_compacted_and_expire_like_others(archive):
    epoch = archive.take_lease("l")
    for number in range(3):
        archive.commit([write(archive, b"%d" % number)], Attempt("s", number + 1, "l", epoch))
        # As an earlier Refeed did: the file lies in a folder of its partition, its name is encoded twice.
        DeltaTable(archive.uri).optimize.compact()
    archive.commit([write(archive, b"3")], Attempt("s", 4, "l", epoch))
    assert archive.compact() == 1
    assert sorted(row["data"] for row in read(archive)) == [b"0", b"1", b"2", b"3"]
    assert archive.expire(before=date(9999, 1, 1)) == 1
    assert archive.another().data_files() == []


def test_vacuum_takes_old_files_that_nobody_committed_and_leaves_young_ones(archive):
    old, young = write(archive, b"old"), write(archive, b"young")
    day_ago = time.time() - 25 * 3600
    folder = Path(archive.uri)
    os.utime(folder / old.path, (day_ago, day_ago))
    assert archive.vacuum(dry_run=True) == [old.path]
    assert archive.vacuum() == [old.path]
    assert not (folder / old.path).exists()
    assert (folder / young.path).exists()


def test_vacuum_refuses_to_come_near_files_in_use(archive):
    with pytest.raises(WarehouseError, match="2 hours"):
        archive.vacuum(keep_hours=1)


def test_expiring_takes_whole_days_out(archive):
    archive.commit([write(archive, b"one")], Attempt("s", 1, "l", archive.take_lease("l")))
    today = datetime.now(UTC).date()
    assert archive.expire(before=today - timedelta(days=1)) == 0
    assert len(read(archive)) == 1
    assert archive.expire(before=date(9999, 1, 1)) == 1
    assert read(archive) == []


def test_reading_an_archive_that_is_not_there_says_how_to_get_one(tmp_path):
    with pytest.raises(WarehouseError, match="attach a topic"):
        LakeArchive(str(tmp_path / "none"), "backup.messages").data_files()


def test_ids_are_read_from_the_files_that_may_have_them_alone(archive):
    epoch = archive.take_lease("l")
    files = [write(archive, b"a"), write(archive, b"b", b"c")]
    for number, file in enumerate(files, 1):
        archive.commit([file], Attempt("s", number, "l", epoch))
    noon = datetime(2024, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
    tomorrow = datetime.now(UTC) + timedelta(days=1)

    def ids(published_since: datetime, ingested_since: datetime = tomorrow) -> list[str]:
        found = archive.read_ids(IdSpan(published_since, ingested_since))
        return sorted(i for batch in found for i in batch.column("message_id").to_pylist())

    assert ids(noon) == ["0", "0", "1"]
    assert ids(tomorrow, datetime.now(UTC) - timedelta(minutes=1)) == ["0", "0", "1"]
    for file in archive.data_files():
        Path(file.path).write_bytes(b"not read")
    assert ids(noon + timedelta(microseconds=1)) == []
    with pytest.raises(WarehouseError):
        ids(noon)


def test_ids_are_found_after_small_files_were_merged(archive):
    epoch = archive.take_lease("l")
    for number in (1, 2):
        archive.commit([write(archive, b"a")], Attempt("s", number, "l", epoch))
    assert archive.compact() == 1
    span = IdSpan(datetime(2024, 3, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(days=1))
    assert sum(batch.num_rows for batch in archive.another().read_ids(span)) == 2


def test_every_read_of_an_archive_with_another_partitioning_says_which_setting_to_change(archive, tmp_path):
    epoch = archive.take_lease("l")
    archive.commit([write(archive, b"one")], Attempt("s", 1, "l", epoch))
    another = "hour" if archive.partitioning == "day" else "day"
    other = LakeArchive(str(tmp_path / "lake"), "backup.messages", another)
    now = datetime.now(UTC)
    window = Window(now - timedelta(hours=1), now + timedelta(hours=1))
    for read_them in (
        lambda: other.data_files(window),
        lambda: other.statistics(window),
        lambda: list(other.read_messages(["orders"], window, ReadBudget(0))),
    ):
        with pytest.raises(WarehouseError, match="set REFEED_ARCHIVE_PARTITIONING to what it is"):
            read_them()
