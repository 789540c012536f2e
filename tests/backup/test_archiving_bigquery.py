"""What differs for an archive when parts are taken whole or not at all, and notes outlive a home."""

import uuid
from collections import Counter

import pytest

from connectors.bigquery.writes.archive import BigQueryArchive
from model.settings import read_settings
from streams.journal import EntryState
from streams.status import StatusFile
from tests.backup.test_archiving import Stream


class BigQueryStream(Stream):
    def __init__(self, archive, folder, standin, stream_id: str = "s", *, has_moved: bool = False) -> None:
        self.has_moved = has_moved
        self.standin = standin
        self.stream_id = stream_id
        super().__init__(archive, folder)

    def archived(self) -> Counter[tuple[str, str]]:
        sql = f"SELECT topic, message_id FROM `{self.archive.table}` WHERE _PARTITIONTIME IS NOT NULL"
        rows = self.standin.client().query_and_wait(sql)
        return Counter((row["topic"], row["message_id"]) for row in rows)


@pytest.fixture
def archive(shared_standin, tmp_path):
    settings = read_settings(shared_standin.environment, home=tmp_path / "home")
    found = BigQueryArchive("shop", f"d{uuid.uuid4().hex[:12]}.messages", settings.bigquery)
    found.create()
    yield found
    shared_standin.clear_faults()
    found.close()


@pytest.fixture
def stream(archive, tmp_path, shared_standin):
    return BigQueryStream(archive, tmp_path, shared_standin)


def crash(*_, **__):
    raise KeyboardInterrupt


def test_new_messages_of_a_part_that_holds_known_ones_are_given_back_and_written_when_they_come_again(
    stream, pulled, tmp_path
):
    stream.batch([pulled("orders", b"a", b"b")])
    stream.batch([pulled("orders", b"b", b"c", first=2)], [pulled("members", b"m")])
    assert stream.archived() == Counter([("orders", "1"), ("orders", "2"), ("members", "1")])
    assert stream.channel.acked.count("orders-2") == 2
    assert "orders-3" not in stream.channel.acked
    assert "orders-3" in stream.channel.extended  # by nothing: that gives it back
    status = StatusFile.read(tmp_path / "status.json")
    assert status["totals"]["given_back"] == 1
    stream.batch([pulled("orders", b"c", first=3)])
    assert stream.archived() == Counter([("orders", "1"), ("orders", "2"), ("orders", "3"), ("members", "1")])
    assert "orders-3" in stream.channel.acked


def test_a_message_that_comes_twice_in_one_batch_is_not_acknowledged_for_a_part_that_is_given_up(stream, pulled):
    """The one is left out because of the other, whose part may not be taken either."""
    stream.batch([pulled("orders", b"a"), pulled("orders", b"a")])
    assert (stream.archived(), stream.channel.acked) == (Counter(), [])
    stream.batch([pulled("orders", b"a")])
    stream.batch([pulled("orders", b"a", b"b")], [pulled("orders", b"b", first=2)])
    assert stream.archived() == Counter([("orders", "1")])
    assert "orders-2" not in stream.channel.acked
    stream.batch([pulled("orders", b"b", first=2)])
    assert stream.archived() == Counter([("orders", "1"), ("orders", "2")])


@pytest.mark.parametrize("place", ["note", "acks"])
def test_a_crash_after_the_note_is_finished_at_the_next_start(stream, pulled, monkeypatch, place):
    with monkeypatch.context() as patched:
        if place == "note":
            patched.setattr(stream.archive._attempts._driver, "drive", crash)
        else:
            patched.setattr(stream.committer, "_acknowledge", crash)
        with pytest.raises(KeyboardInterrupt):
            stream.batch([pulled("orders", b"a")])
    assert stream.channel.acked == []
    stream.start()
    assert stream.archived() == Counter([("orders", "1")])
    assert stream.channel.acked == ["orders-1"]
    stream.batch([pulled("orders", b"a")])
    assert stream.archived() == Counter([("orders", "1")])


def test_a_crash_before_the_note_leaves_nothing_and_the_message_is_new_again(stream, pulled, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(stream.archive._attempts, "_add_note", crash)
        with pytest.raises(KeyboardInterrupt):
            stream.batch([pulled("orders", b"a")])
    stream.start()
    assert stream.channel.acked == []
    assert stream.journal.entries(EntryState.PENDING) == []
    stream.batch([pulled("orders", b"a")])
    assert stream.archived() == Counter([("orders", "1")])


def test_another_home_finishes_what_a_lost_one_had_noted_and_knows_its_messages(
    stream, pulled, monkeypatch, shared_standin, tmp_path
):
    with monkeypatch.context() as patched:
        patched.setattr(stream.archive._attempts._driver, "drive", crash)
        with pytest.raises(KeyboardInterrupt):
            stream.batch([pulled("orders", b"a", b"b")])
    other = BigQueryStream(
        stream.archive.another(), tmp_path / "other", shared_standin, stream_id="other", has_moved=True
    )
    assert other.archived() == Counter([("orders", "1"), ("orders", "2")])
    # Nobody acknowledged them: they come again, here.
    other.batch([pulled("orders", b"a", b"b")])
    assert other.archived() == Counter([("orders", "1"), ("orders", "2")])
    assert other.channel.acked == ["orders-1", "orders-2"]
    other.archive.close()


def test_dead_letters_are_counted_and_acknowledged_like_every_other_message(
    stream, pulled, tmp_path, shared_standin
):
    shared_standin.fault("AppendRows", "row_errors", rows=[0], message="no good", resource="/messages/")
    stream.batch([pulled("orders", b"a", b"b")])
    assert stream.archived() == Counter([("orders", "2")])
    assert sorted(stream.channel.acked) == ["orders-1", "orders-2"]
    status = StatusFile.read(tmp_path / "status.json")
    assert status["totals"]["dead_letters"] == 1
