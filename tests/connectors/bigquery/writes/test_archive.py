"""What only BigQuery's archive has to survive: lost answers, fences, streams that are gone, rows of all sizes."""

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pytest

from connectors.bigquery.writes import attempt_notes as attempt_notes_module
from connectors.bigquery.writes import attempts as attempts_module
from connectors.bigquery.writes.appender import StreamAppender
from connectors.bigquery.writes.archive import BigQueryArchive
from connectors.bigquery.writes.archive_writer import BigQueryArchiveWriter
from model.archive import Attempt, IdSpan
from model.errors import CommitOutcomeUnknownError, LeaseLostError, WarehouseError, WarehouseUnavailableError
from tests.connectors.bigquery.conftest import NOW
from tests.worlds.tables import ids_of

LIMIT = 100_000


class World:
    def __init__(self, archive, settings, standin, messages) -> None:
        self.archive, self.settings, self.standin, self.messages = archive, settings, standin, messages
        self.epoch = archive.take_lease("l")

    def write(self, *payloads: bytes, first: int = 1):
        return self.archive.writer().write([("orders", "s", self.messages(*payloads, first=first))])

    def attempt(self, number: int, stream: str = "s") -> Attempt:
        return Attempt(stream, number, "l", self.epoch)

    def commit(self, parts, number: int, *message_ids: str) -> None:
        self.archive.commit(parts, self.attempt(number), ids_of(*message_ids))

    def restart(self) -> BigQueryArchive:
        """Return a new process's archive, which has taken the lease over."""
        self.archive.close()
        self.archive = self.archive.another()
        self.epoch = self.archive.take_lease("l")
        return self.archive

    def ids(self, table: str = "", where: str = "_PARTITIONTIME IS NOT NULL") -> Counter[str]:
        sql = f"SELECT message_id FROM `{self.settings.archive_table}{table}` WHERE {where}"
        return Counter(row["message_id"] for row in self.standin.client().query_and_wait(sql))


@pytest.fixture
def world(archive, settings, shared_standin, messages):
    shared_standin.clear_log()
    found = World(archive, settings, shared_standin, messages)
    yield found
    shared_standin.clear_faults()
    found.archive.close()


@pytest.fixture
def small(world, shared_standin):
    """The world with append requests so small that a row of 100 KB does not fit."""
    settings = replace(world.settings.bigquery, append_bytes=LIMIT)
    world.archive.close()
    world.archive = BigQueryArchive("shop", world.settings.archive_table, settings)
    world.epoch = world.archive.take_lease("l")
    return world


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["BatchCommitWriteStreams", "AppendRows", "FinalizeWriteStream"])
def test_an_answer_that_is_lost_changes_nothing_in_the_archive(world, method, when):
    world.standin.fault(method, "drop", when=when)
    world.commit([world.write(b"a", b"b"), world.write(b"c", first=3)], 1, "1", "2", "3")
    assert world.standin.open_faults() == []
    assert world.ids() == Counter(["1", "2", "3"])


def test_a_commit_whose_outcome_is_unknown_is_finished_by_the_next_start(world, monkeypatch):
    monkeypatch.setattr(attempts_module, "COMMIT_SECONDS", 0.2)
    world.standin.fault("BatchCommitWriteStreams", status="UNAVAILABLE", count=100)
    with pytest.raises(CommitOutcomeUnknownError):
        world.commit([world.write(b"a")], 1, "1")
    assert world.ids() == Counter()
    world.standin.clear_faults()
    world.restart()
    assert world.ids() == Counter(["1"])
    assert world.archive.settle(world.attempt(1))
    world.restart()
    assert world.ids() == Counter(["1"])


def test_the_newest_attempt_is_settled_also_when_the_clock_was_put_back_before_it(world, monkeypatch):
    class Earlier(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) - timedelta(hours=1)

    world.commit([world.write(b"a")], 1, "1")
    monkeypatch.setattr(attempts_module, "COMMIT_SECONDS", 0.2)
    monkeypatch.setattr(attempt_notes_module, "datetime", Earlier)
    world.standin.fault("BatchCommitWriteStreams", status="UNAVAILABLE", count=100)
    with pytest.raises(CommitOutcomeUnknownError):
        world.commit([world.write(b"b", first=2)], 2, "2")
    world.standin.clear_faults()
    world.restart()
    assert world.ids() == Counter(["1", "2"])


def test_nothing_is_committed_under_a_lease_whose_last_holder_could_not_be_settled(world, monkeypatch):
    monkeypatch.setattr(attempts_module, "COMMIT_SECONDS", 0.2)
    world.standin.fault("BatchCommitWriteStreams", status="UNAVAILABLE", count=100)
    with pytest.raises(CommitOutcomeUnknownError):
        world.commit([world.write(b"a")], 1, "1")
    with pytest.raises(CommitOutcomeUnknownError):
        world.restart()
    world.epoch += 1
    world.standin.clear_faults()
    with pytest.raises(LeaseLostError):
        world.commit([world.write(b"b", first=2)], 2, "2")
    assert world.ids() == Counter()
    world.restart()
    assert world.ids() == Counter(["1"])


def test_the_commit_of_a_stream_that_slept_adds_nothing_though_it_was_noted_in_time(world):
    """Take over between the note and the commit: the successor commits it, the sleeper finds it committed."""
    sleeper, part = world.archive, world.write(b"a")
    successor = sleeper.another()
    drive = sleeper._attempts._driver.drive
    taken: list[int] = []

    def take_over_first(note, *, seconds):
        taken.append(successor.take_lease("l"))
        return drive(note, seconds=seconds)

    sleeper._attempts._driver.drive = take_over_first
    world.commit([part], 1, "1")
    assert taken == [world.epoch + 1]
    assert world.ids() == Counter(["1"])
    span = IdSpan(NOW - timedelta(days=1), datetime.now(UTC) + timedelta(days=1))
    assert [i for batch in successor.read_ids(span) for i in batch.column("message_id").to_pylist()] == ["1"]
    with pytest.raises(LeaseLostError):
        world.commit([world.write(b"b", first=2)], 2, "2")
    assert world.ids() == Counter(["1"])
    successor.close()


def test_a_lease_whose_answer_was_lost_is_taken_and_written_once(world):
    world.standin.fault("tables.patch", "drop", when="after")
    world.standin.clear_log()
    assert world.archive.take_lease("l") == world.epoch + 1
    assert len(world.standin.calls("tables.patch")) == 1


def test_somebody_elses_patch_of_the_lease_table_costs_a_renewal_nothing(world):
    get_table = world.archive._clients.rest().get_table
    client = world.standin.client()
    patched: list[str] = []

    def patch_in_between(name, *more, **options):
        found = get_table(name, *more, **options)
        if not patched:
            patched.append(name)
            other = client.get_table(name)
            other.labels = {**other.labels, "owner": "ada"}
            client.update_table(other, ["labels"])
        return found

    world.archive._clients.rest().get_table = patch_in_between
    world.archive.leases().write_lease("l", world.epoch, b"mine")
    assert patched
    assert world.archive.leases().read_lease("l") == b"mine"


# "A committed stream has a TTL of four days if there is no traffic on the stream" (cited in
# https://github.com/googleapis/java-bigquerystorage/issues/2198). Google names no code for it: Beam, whose authors
# are the API's, takes INVALID_ARGUMENT ("the stream doesn't exist or has already been finalized"), NOT_FOUND and
# FAILED_PRECONDITION for such a stream: https://github.com/apache/beam/pull/16906
@pytest.mark.parametrize("in_band", [False, True])
@pytest.mark.parametrize("status", ["NOT_FOUND", "INVALID_ARGUMENT", "FAILED_PRECONDITION"])
def test_an_idle_streams_fence_that_is_gone_is_replaced_and_still_fences(world, status, in_band):
    world.standin.fault("AppendRows", status=status, in_band=in_band, resource="_attempts")
    world.commit([world.write(b"a")], 1, "1")
    assert world.ids() == Counter(["1"])
    successor = world.archive.another()
    successor.take_lease("l")
    with pytest.raises(LeaseLostError):
        world.commit([world.write(b"b", first=2)], 2, "2")
    successor.close()


def test_a_note_that_is_refused_through_a_new_fence_as_well_is_no_matter_of_the_fence(world):
    world.standin.fault("AppendRows", status="INVALID_ARGUMENT", count=2, resource="_attempts")
    world.standin.clear_log()
    with pytest.raises(WarehouseError):
        world.commit([world.write(b"a")], 1, "1")
    assert len(world.standin.calls("CreateWriteStream")) == 2, "one of the part, one new fence"


def test_a_note_through_a_new_fence_whose_answer_is_lost_is_an_unknown_outcome(world, monkeypatch):
    monkeypatch.setattr(attempts_module, "StreamAppender", partial(StreamAppender, seconds=0.2))
    part = world.write(b"a")
    world.standin.fault("AppendRows", status="NOT_FOUND", resource="_attempts")
    # The ids are a request, the note itself is the next one.
    world.standin.fault("AppendRows", "drop", when="after", skip=1, resource="_attempts")
    world.standin.fault("AppendRows", skip=2, count=100, resource="_attempts")
    with pytest.raises(CommitOutcomeUnknownError):
        world.commit([part], 1, "1")
    world.standin.clear_faults()
    world.restart()
    assert world.archive.settle(world.attempt(1))
    assert world.ids() == Counter(["1"])


def test_a_note_that_got_in_before_the_lease_was_lost_is_an_unknown_outcome(world, monkeypatch):
    successor = world.archive.another()
    notes = world.archive._attempts._notes
    add = notes.add

    def add_then_lose_the_lease(*arguments):
        add(*arguments)
        successor.take_lease("l")
        raise WarehouseError("The stream is finalized.")

    monkeypatch.setattr(notes, "add", add_then_lose_the_lease)
    with pytest.raises(CommitOutcomeUnknownError, match="took over"):
        world.commit([world.write(b"a")], 1, "1")
    assert world.ids() == Counter(["1"]), "the successor has committed it"
    successor.close()


def test_streams_that_were_dropped_uncommitted_are_abandoned_and_their_messages_new_again(world):
    # "Batch load data using the Storage Write API" (Google): pending streams must be committed within a day.
    part = world.write(b"a")
    for method in ("BatchCommitWriteStreams", "GetWriteStream"):
        world.standin.fault(method, status="NOT_FOUND", count=1)
    with pytest.raises(WarehouseUnavailableError, match="dropped"):
        world.commit([part], 1, "1")
    assert not world.archive.settle(world.attempt(1))
    world.commit([world.write(b"a")], 2, "1")
    world.restart()
    assert world.archive.settle(world.attempt(2))
    assert not world.archive.settle(world.attempt(1))
    assert world.ids() == Counter(["1"])


@pytest.mark.parametrize("topic", ["orders", "members"])
def test_a_message_that_was_archived_before_proves_no_commit_of_an_attempt_that_was_dropped(world, topic):
    """Id 1 is in the archive: of another topic, or of the same message that came again after the window."""
    first = world.archive.writer().write([(topic, "s", world.messages(b"a"))])
    world.commit([first], 1, "1")
    part = world.write(b"a", b"b")
    for method in ("BatchCommitWriteStreams", "GetWriteStream"):
        world.standin.fault(method, status="NOT_FOUND")
    with pytest.raises(WarehouseUnavailableError, match="dropped"):
        world.commit([part], 2, "1", "2")
    assert not world.archive.settle(world.attempt(2))


def test_a_dropped_attempt_of_dead_letters_alone_is_abandoned_and_a_forgotten_one_is_known_by_them(world):
    world.standin.fault("AppendRows", "row_errors", rows=[0], message="no good", resource="messages/")
    world.commit([world.write(b"a")], 1, "1")
    for method in ("BatchCommitWriteStreams", "GetWriteStream"):
        world.standin.fault(method, status="NOT_FOUND", count=2)
    world.restart()
    assert world.archive.settle(world.attempt(1))
    world.standin.fault("AppendRows", "row_errors", rows=[0], message="no good", resource="messages/")
    part = world.write(b"a")
    for method in ("BatchCommitWriteStreams", "GetWriteStream"):
        world.standin.fault(method, status="NOT_FOUND")
    with pytest.raises(WarehouseUnavailableError, match="dropped"):
        world.commit([part], 2, "1")


def test_streams_that_are_forgotten_after_their_commit_are_known_by_their_rows(world):
    world.commit([world.write(b"a")], 1, "1")
    for method in ("BatchCommitWriteStreams", "GetWriteStream"):
        world.standin.fault(method, status="NOT_FOUND", count=2)
    world.restart()
    assert world.archive.settle(world.attempt(1))
    assert world.ids() == Counter(["1"])


def test_a_row_too_large_for_a_request_is_stored_whole_and_appears_with_its_attempt(small):
    large = bytes(range(256)) * 1000
    part = small.write(b"a", large, b"c")
    assert part.tables[0].staged is not None
    assert small.ids() == Counter()
    small.commit([part], 1, "1", "2", "3")
    assert small.ids() == Counter(["1", "2", "3"])
    sql = f"SELECT * FROM `{small.settings.archive_table}` WHERE message_id = '2' AND _PARTITIONTIME IS NOT NULL"
    (row,) = small.standin.client().query_and_wait(sql)
    assert row["data"] == large
    assert [dict(pair) for pair in row["attributes"]] == [{"key": "n", "value": "2"}]
    assert row["topic"] == "orders"
    tables = {found.table_id for found in small.standin.client().list_tables(small.archive.table.dataset)}
    assert not any("_large_" in name for name in tables)


@pytest.mark.parametrize("method", ["jobs.insert", "jobs.get"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_answer_to_the_insert_of_large_rows_doubles_nothing(small, method, when):
    part = small.write(b"x" * (LIMIT + 1))
    small.standin.fault(method, "drop", when=when)
    small.commit([part], 1, "1")
    assert small.ids() == Counter(["1"])


def test_large_rows_that_a_crash_left_uninserted_are_inserted_by_the_next_start(small, monkeypatch):
    def crash(*_, **__):
        raise KeyboardInterrupt

    part = small.write(b"a", b"x" * (LIMIT + 1))
    with monkeypatch.context() as patched:
        patched.setattr("connectors.bigquery.writes.stream_commit.insert_large_rows", crash)
        with pytest.raises(KeyboardInterrupt):
            small.commit([part], 1, "1", "2")
    assert small.ids() == Counter(["1"])
    small.restart()
    assert small.ids() == Counter(["1", "2"])
    small.restart()
    assert small.ids() == Counter(["1", "2"])


def test_large_rows_of_a_part_that_is_dropped_leave_nothing(small):
    small.archive.drop(small.write(b"x" * (LIMIT + 1)))
    tables = {found.table_id for found in small.standin.client().list_tables(small.archive.table.dataset)}
    assert not any("_large_" in name for name in tables)


def test_a_row_that_is_refused_goes_to_the_dead_letters_whole_and_its_batch_goes_on(world):
    world.standin.fault("AppendRows", "row_errors", rows=[1], message="no good", resource="messages/")
    part = world.write(b"a", b"\x00\xff", b"c")
    assert (part.rows, part.dead_letters) == (3, 1)
    assert list(part.volumes.values()) == [{"orders": (2, 2)}]
    assert world.ids("_dead_letters", "TRUE") == Counter()
    world.commit([part], 1, "1", "2", "3")
    assert world.ids() == Counter(["1", "3"])
    sql = f"SELECT * FROM `{world.settings.archive_table}_dead_letters`"
    (dead,) = world.standin.client().query_and_wait(sql)
    assert (dead["message_id"], dead["topic"], dead["reason"]) == ("2", "orders", "no good")
    (row,) = pa.ipc.open_stream(dead["row"]).read_all().to_pylist()
    assert row["data"] == b"\x00\xff"
    assert row["attributes"] == [{"key": "n", "value": "2"}]


def test_a_task_appends_over_as_many_streams_as_it_is_told_and_commits_them_together(world, monkeypatch):
    monkeypatch.setattr("connectors.bigquery.writes.part_writer._GROUP_BYTES", 1)
    settings = replace(world.settings.bigquery, streams_per_task=3)
    world.archive.close()
    world.archive = BigQueryArchive("shop", world.settings.archive_table, settings)
    world.epoch = world.archive.take_lease("l")
    world.standin.clear_log()
    writer = BigQueryArchiveWriter.from_json(json.loads(json.dumps(world.archive.writer().as_json())))
    world.standin.fault("AppendRows", "row_errors", rows=[0], skip=1, message="no good", resource="messages/")
    part = writer.write(("orders", "s", world.messages(b"x", first=number)) for number in range(1, 8))
    assert (part.rows, part.dead_letters, len({table.stream for table in part.tables})) == (7, 1, 4)
    assert world.standin.counts()["CreateWriteStream"] == 4
    world.commit([part], 1, *map(str, range(1, 8)))
    assert sum(world.ids().values()) == 6
    assert world.ids() + world.ids("_dead_letters", "TRUE") == Counter(map(str, range(1, 8)))
    # One request a table: all streams of it at once.
    assert world.standin.counts()["BatchCommitWriteStreams"] == 2
    assert world.archive.batch_seconds(1.0, slots=4) == 4 * 3 * 3600 / 8000


def test_one_request_s_worth_of_rows_takes_one_stream_however_many_are_allowed(world):
    writer = replace(world.archive.writer(), streams=8)
    world.standin.clear_log()
    part = writer.write([("orders", "s", world.messages(b"a", b"b"))])
    assert len(part.tables) == 1
    assert world.standin.counts()["CreateWriteStream"] == 1


def test_batches_grow_when_there_would_be_too_many_streams(archive):
    assert archive.batch_seconds(1.0, slots=2) == 1.0
    # 8,000 streams an hour: 20 tasks may begin one every nine seconds.
    assert archive.batch_seconds(1.0, slots=20) == 9.0
