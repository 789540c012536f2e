"""Who holds a lease of the lake, whatever an earlier holder still writes."""

import json
import os
import time

import pytest

from connectors.lake.archive import LakeArchive
from model.errors import LeaseHeldError, StorageFullError
from streams.lease import hold_lease, refuse_held
from tests.worlds.full_disk import full

LEASE = "backup-p"


@pytest.fixture
def archive(tmp_path):
    found = LakeArchive(str(tmp_path / "lake"), "backup.messages")
    found.create()
    return found


def leases(archive):
    return archive.another().leases()


def holder(archive):
    content = leases(archive).read_lease(LEASE)
    assert content is not None
    return json.loads(content)["stream"]


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "lake/backup/_leases").iterdir())


def old_file(tmp_path, epoch, expires_at):
    """Write a lease as Refeed did when a lease was one file for all epochs."""
    path = tmp_path / "lake/backup/_leases/messages.backup-p.json"
    path.parent.mkdir(exist_ok=True)
    fields = {"stream": "old", "host": "h", "pid": 1, "epoch": epoch, "expires_at": expires_at}
    path.write_text(json.dumps(fields))
    return path


def test_a_stream_that_slept_through_the_loss_of_its_lease_takes_nothing_back(archive, monkeypatch):
    with hold_lease(leases(archive), LEASE, "sleeper"), monkeypatch.context() as later:
        later.setattr(time, "time", lambda now=time.time: now() + 3600)
        successor = hold_lease(leases(archive), LEASE, "successor")
        successor.__enter__()
    # The sleeper woke up and gave its lease back: the successor's is as it was.
    assert holder(archive) == "successor"
    with pytest.raises(LeaseHeldError):
        refuse_held(leases(archive), LEASE, "third")
    successor.__exit__(None, None, None)
    refuse_held(leases(archive), LEASE, "third")


def test_a_renewal_that_was_under_way_when_another_took_over_does_not_count(archive, monkeypatch):
    """Nobody can look and write in one step: the sleeper looks before the successor is there."""
    sleeper = leases(archive)
    old = sleeper.take_lease(LEASE)
    with monkeypatch.context() as patched:
        patched.setattr(sleeper, "_list", lambda _: {})
        with hold_lease(leases(archive), LEASE, "successor"):
            sleeper.write_lease(LEASE, old, b'{"stream": "sleeper"}')
            assert holder(archive) == "successor"


def test_only_the_newest_epochs_file_stays(archive, tmp_path):
    for stream in ("one", "two", "three"):
        with hold_lease(leases(archive), LEASE, stream):
            assert holder(archive) == stream
    assert files(tmp_path) == ["messages.backup-p.epoch-3.json"]


def test_a_lease_that_an_earlier_refeed_wrote_is_honoured_until_it_runs_out(archive, tmp_path):
    epoch = archive.another().take_lease(LEASE)
    old_file(tmp_path, epoch, time.time() + 30)
    with pytest.raises(LeaseHeldError):
        refuse_held(leases(archive), LEASE, "new")
    old_file(tmp_path, epoch, time.time() - 1)
    with hold_lease(leases(archive), LEASE, "new"):
        old_file(tmp_path, epoch, time.time() + 30)  # it wakes up
        assert holder(archive) == "new"
    # Somebody goes back to the earlier Refeed and forward again.
    old_file(tmp_path, archive.another().take_lease(LEASE), time.time() + 30)
    assert holder(archive) == "old"


def test_a_full_disk_takes_no_lease_and_renews_none_and_leaves_no_other_file(archive, tmp_path, monkeypatch):
    own, taker = leases(archive), archive.another()
    epoch = own.take_lease(LEASE)
    own.write_lease(LEASE, epoch, b'{"stream": "own"}')
    with monkeypatch.context() as later:
        later.setattr(os, "fsync", full)
        with pytest.raises(StorageFullError):
            taker.take_lease(LEASE)
        with pytest.raises(StorageFullError, match="disk is full"):
            own.write_lease(LEASE, epoch, b'{"stream": "later"}')
    assert own.read_lease(LEASE) == b'{"stream": "own"}'
    assert files(tmp_path) == [f"messages.{LEASE}.epoch-{epoch}.json"]
    assert taker.take_lease(LEASE) > epoch
