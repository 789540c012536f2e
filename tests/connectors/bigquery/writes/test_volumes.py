"""Volumes by the notes of attempts: an open attempt counts once it is committed, an abandoned one never."""

from datetime import UTC, datetime, timedelta
from operator import itemgetter

import pytest

from connectors.bigquery.writes import archive as archives
from connectors.bigquery.writes import volumes
from connectors.bigquery.writes.stream_commit import WriteStreamCommitter, document_of
from model.archive import Attempt
from model.errors import CommitOutcomeUnknownError, WarehouseUnavailableError
from model.window import Window
from tests.worlds.tables import pulled

BILLED = ("jobs.insert", "jobs.query")


def write(archive, topic, count):
    return archive.writer().write([(topic, "s", pulled(*[b"x"] * count))])


def read(archive):
    now = datetime.now(UTC)
    return archive.volumes(Window(now - timedelta(days=2), now + timedelta(days=1)))


def messages(archive):
    """Return the messages by topic, as somebody who looks for the first time sees them."""
    return summed(read(archive.another()))


def summed(found):
    sums = {}
    for topics in found.by_hour.values():
        for topic, volume in topics.items():
            sums[topic] = sums.get(topic, 0) + volume.messages
    return sums


def test_nothing_is_billed_however_often_it_is_looked_at(archive, shared_standin, monkeypatch):
    epoch = archive.take_lease("l")
    archive.commit([write(archive, "orders", 3)], Attempt("s", 1, "l", epoch))
    before = shared_standin.counts()
    looker = archive.another()
    for _ in range(3):
        assert summed(read(looker)) == {"orders": 3}
    assert shared_standin.counts().get("CreateReadSession", 0) - before.get("CreateReadSession", 0) == 1
    monkeypatch.setattr(volumes, "REMEMBERED_SECONDS", -1.0)
    archive.commit([write(archive, "orders", 2)], Attempt("s", 2, "l", epoch))
    assert summed(read(looker)) == {"orders": 5}
    bills = {name: shared_standin.counts().get(name, 0) - before.get(name, 0) for name in BILLED}
    assert bills == dict.fromkeys(BILLED, 0)


def test_an_attempt_that_is_noted_counts_once_it_is_committed(archive, monkeypatch):
    monkeypatch.setattr(volumes, "REMEMBERED_SECONDS", -1.0)
    epoch = archive.take_lease("l")
    archive.commit([write(archive, "orders", 3)], Attempt("s", 1, "l", epoch))
    looker = archive.another()
    with monkeypatch.context() as patched:
        patched.setattr(WriteStreamCommitter, "drive", _never)
        with pytest.raises(CommitOutcomeUnknownError):
            archive.commit([write(archive, "orders", 4)], Attempt("s", 2, "l", epoch))
    assert summed(read(looker)) == messages(archive) == {"orders": 3}
    successor = archive.another()
    epoch = successor.take_lease("l")
    assert summed(read(looker)) == messages(archive) == {"orders": 7}
    successor.commit([write(archive, "orders", 1)], Attempt("s", 3, "l", epoch))
    assert summed(read(looker)) == messages(archive) == {"orders": 8} == {"orders": archive.count_rows()}


def _never(*_, **__):
    raise CommitOutcomeUnknownError("killed between note and commit")


def test_an_attempt_whose_streams_were_dropped_never_counts(archive, monkeypatch):
    epoch = archive.take_lease("l")
    with monkeypatch.context() as patched:
        patched.setattr(WriteStreamCommitter, "drive", lambda *_, **__: None)
        with pytest.raises(WarehouseUnavailableError):
            archive.commit([write(archive, "orders", 4)], Attempt("s", 1, "l", epoch))
    archive.commit([write(archive, "orders", 1)], Attempt("s", 2, "l", epoch))
    assert messages(archive) == {"orders": 1}


def test_notes_that_came_before_a_read_broke_are_counted_by_the_next_one(archive, monkeypatch):
    monkeypatch.setattr(volumes, "_OVERLAP", timedelta(0))
    epoch = archive.take_lease("l")
    for number in (1, 2):
        archive.commit([write(archive, "orders", number)], Attempt("s", number, "l", epoch))
    looker, rows = archive.another(), volumes.NotedVolumes._rows

    def break_after_the_newest(noted, since):
        yield max(rows(noted, since), key=itemgetter("noted_at"))
        raise WarehouseUnavailableError

    with monkeypatch.context() as patched:
        patched.setattr(volumes.NotedVolumes, "_rows", break_after_the_newest)
        with pytest.raises(WarehouseUnavailableError):
            read(looker)
    assert summed(read(looker)) == {"orders": 3}


def test_hours_that_an_earlier_refeed_noted_are_unknown(archive, monkeypatch):
    epoch = archive.take_lease("l")
    with monkeypatch.context() as patched:
        patched.setattr(archives, "document_of", _document_without_volumes)
        archive.commit([write(archive, "orders", 4)], Attempt("s", 1, "l", epoch))
    archive.commit([write(archive, "orders", 1)], Attempt("s", 2, "l", epoch))
    found = read(archive.another())
    assert summed(found) == {"orders": 1}
    (unknown,) = found.unknown
    assert unknown.end - unknown.start in (timedelta(hours=1), timedelta(hours=2))


def _document_without_volumes(parts):
    tables = document_of(parts)
    for entry in tables.values():
        del entry["volumes"]
    return tables


def test_what_is_older_than_the_notes_is_unknown(archive):
    now = datetime.now(UTC)
    assert archive.volumes(Window(now - timedelta(days=40), now)).unknown
    assert not archive.volumes(Window(now - timedelta(days=28), now)).unknown


def test_rows_in_the_write_buffer_count(archive, shared_standin):
    shared_standin.hold_write_buffer(f"{archive.table}_attempts")
    epoch = archive.take_lease("l")
    archive.commit([write(archive, "orders", 4)], Attempt("s", 1, "l", epoch))
    assert messages(archive) == {"orders": 4}
