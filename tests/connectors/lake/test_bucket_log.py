"""The log of a lake in a bucket of either cloud: one request a commit; leases, checkpoints and clocks."""

import json
import time

import pytest

from connectors.lake.archive import LakeArchive
from connectors.lake.bucket_log import LOG_RETENTION
from connectors.lake.delta_table import KEPT_IN_BUCKET
from connectors.lake.tables import CONFIGURATION
from connectors.object_store.bucket import Bucket
from model.archive import Attempt
from model.errors import (
    CommitOutcomeUnknownError,
    LeaseLostError,
    WarehouseError,
    WarehousePermissionError,
    WarehouseUnavailableError,
)
from tests.connectors.lake.bucket_archive import append, ids, on_the_log, puts_on_the_log
from tests.worlds.bucket import Fault, Proxy
from tests.worlds.tables import pulled

pytestmark = pytest.mark.cloud


def test_a_commit_that_nobody_comes_between_is_one_request(archive, proxy):
    for number in (2, 3, 4):
        append(archive, number)
    assert on_the_log(proxy) == ["PUT 3.json", "PUT 4.json", "PUT 5.json"]
    assert ids(archive) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("kind", ["lost", "cut", "503"])
def test_a_commit_whose_answer_is_lost_is_known_to_be_in(archive, proxy, kind):
    proxy.faults.append(Fault("PUT", f"{3:020d}.json", kind))
    append(archive, 2)
    append(archive, 3)
    assert ids(archive) == ["1", "2", "3"]
    assert archive.another().version() == 4


def test_a_commit_follows_what_another_committed_meanwhile(archive, proxy):
    append(archive, 2)
    assert archive.another().compact() == 1
    proxy.forget()
    append(archive, 3)
    append(archive, 4)
    assert puts_on_the_log(proxy) == ["PUT 4.json", "PUT 5.json", "PUT 6.json"]
    assert ids(archive) == ["1", "2", "3", "4"]


def test_a_lease_whose_answer_is_lost_is_held(archive, proxy):
    proxy.faults.append(Fault("PUT", f"{3:020d}.json", "lost"))
    epoch = archive.take_lease("l")
    append(archive, 2, epoch)
    assert (epoch, ids(archive)) == (2, ["1", "2"])


def on_the_lease(proxy: Proxy) -> list[str]:
    found = [request.partition(" ") for request in proxy.requests if "_leases" in request]
    return [f"{method} {'list' if 'list-type' in path else path.rpartition('/')[2]}" for method, _, path in found]


def test_a_lease_is_renewed_by_one_request(archive, proxy):
    leases = archive.leases()
    for number in range(3):
        leases.write_lease("l", 1, b"%d" % number)
    own = "PUT messages.l.epoch-1.json"
    assert on_the_lease(proxy) == ["GET list", own, own, own]
    assert len(proxy.requests) == 4
    assert archive.another().leases().read_lease("l") == b"2"


def test_leases_run_out_by_the_clock_of_the_store(uri, proxy):
    proxy.clock_ahead_seconds = -7200
    leases = LakeArchive(uri, "backup.messages").leases()
    assert abs(leases.now() + 7200 - time.time()) < 10


def test_a_lease_is_read_by_a_list_and_the_newest_file(archive, proxy):
    archive.leases().write_lease("l", 1, b"1")
    proxy.forget()
    assert archive.leases().read_lease("l") == b"1"
    assert archive.leases().read_lease("nobody's") is None
    assert on_the_lease(proxy) == ["GET list", "GET messages.l.epoch-1.json", "GET list"]


@pytest.mark.parametrize("kind", ["lost", "cut", "503"])
def test_a_lease_whose_renewals_answer_is_lost_is_held(archive, proxy, kind):
    leases = archive.leases()
    for content in (b"1", b"2", b"3"):
        proxy.faults.append(Fault("PUT", "epoch-1.json", kind))
        leases.write_lease("l", 1, content)
        assert archive.another().leases().read_lease("l") == content


def test_a_renewal_that_is_not_answered_is_followed_by_one_that_counts(archive, proxy):
    leases = archive.leases()
    leases.write_lease("l", 1, b"1")
    proxy.faults.append(Fault("PUT", "epoch-1.json", "lost", count=20))
    with pytest.raises(WarehouseError):
        leases.write_lease("l", 1, b"2")
    proxy.faults.clear()
    leases.write_lease("l", 1, b"3")
    assert archive.another().leases().read_lease("l") == b"3"


def test_a_renewal_of_a_lease_that_another_has_taken_is_refused(archive, proxy):
    leases, successor = archive.leases(), archive.another().leases()
    leases.write_lease("l", 1, b"1")
    successor.write_lease("l", successor.take_lease("l"), b"2")
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            leases.write_lease("l", 1, b"1 again")
    assert archive.another().leases().read_lease("l") == b"2"


@pytest.fixture
def short_log(uri, monkeypatch) -> LakeArchive:
    """An archive of one commit, whose log has a checkpoint every 5 commits."""
    monkeypatch.setitem(CONFIGURATION, "delta.checkpointInterval", "5")
    found = LakeArchive(uri, "backup.messages")
    found.create()
    append(found, 1, found.take_lease("l"))
    return found


def checkpoints(proxy: Proxy) -> list[str]:
    put = puts_on_the_log(proxy)
    return [name.removeprefix("PUT ") for name in put if name.endswith(".checkpoint.parquet")]


def delete_entries(archive: LakeArchive, *, until: int) -> None:
    """Delete what a checkpoint stands for, so that a reader has to use it."""
    Bucket(archive.uri).delete(*(f"_delta_log/{version:020d}.json" for version in range(until + 1)))


def test_checkpoints_are_written_between_the_commits_by_few_requests(short_log, proxy):
    proxy.forget()
    for number in range(2, 14):
        append(short_log, number)
    assert checkpoints(proxy) == [f"{version}.checkpoint.parquet" for version in (4, 9, 14)]
    # Only entries of before this process knew the tip are read.
    assert on_the_log(proxy).count("PUT 14.json") == 1
    read = [request for request in on_the_log(proxy) if request.startswith("GET") and request.endswith(".json")]
    assert len(read) <= 3
    assert len(proxy.requests) - len(read) <= 2 * 12 + 3 * 7
    delete_entries(short_log, until=14)
    assert ids(short_log) == [str(number) for number in range(1, 14)]


def test_a_checkpoint_has_what_others_committed(short_log, proxy):
    other = short_log.another()
    for number in range(2, 14):
        append(other if number % 3 else short_log, number)
    newest = int(checkpoints(proxy)[-1].partition(".")[0])
    assert newest >= 9
    delete_entries(short_log, until=newest)
    assert ids(short_log) == [str(number) for number in range(1, 14)]


@pytest.mark.parametrize("kind", ["403", "503"])
def test_a_checkpoint_that_fails_fails_no_commit_and_is_tried_again(short_log, proxy, kind):
    proxy.faults.append(Fault("PUT", "checkpoint.parquet", kind, count=6))
    for number in range(2, 5):
        append(short_log, number)
    assert not Bucket(short_log.uri).read("_delta_log/_last_checkpoint")
    proxy.faults.clear()
    for number in range(5, 15):
        append(short_log, number)
    assert checkpoints(proxy)[-1] == "14.checkpoint.parquet"
    assert ids(short_log) == [str(number) for number in range(1, 15)]


@pytest.mark.parametrize(("kept", "apart"), [("0 seconds", 0), ("1 hour", -2 * 3600), ("1 hour", 2 * 3600)])
def test_old_entries_are_deleted_by_the_clock_of_the_store(uri, proxy, monkeypatch, kept, apart):
    monkeypatch.setitem(CONFIGURATION, "delta.checkpointInterval", "5")
    monkeypatch.setitem(KEPT_IN_BUCKET, LOG_RETENTION, f"interval {kept}")
    proxy.clock_ahead_seconds = apart
    archive = LakeArchive(uri, "backup.messages")
    archive.create()
    archive.take_lease("l")
    for number in range(1, 14):
        append(archive, number)
    entries = [name for name in Bucket(f"{uri}/backup/messages/_delta_log").list() if name[:1].isdigit()]
    assert int(min(entries)[:20]) == (14 if kept == "0 seconds" else 0)
    assert ids(archive) == [str(number) for number in range(1, 14)]


@pytest.mark.parametrize("apart", [-2 * 3600, 2 * 3600], ids=["machine ahead", "machine behind"])
def test_ages_come_from_the_clock_of_the_store_alone(uri, proxy, apart):
    proxy.clock_ahead_seconds = apart
    archive = LakeArchive(uri, "backup.messages")
    archive.create()
    archive.take_lease("l")
    append(archive, 1)
    append(archive, 2)
    assert archive.another().compact() == 1
    log = Bucket(f"{uri}/backup/messages/_delta_log")
    actions = [json.loads(line) for name in log.list() for line in log.read(name).content.splitlines()]
    noted = [action["add"]["modificationTime"] for action in actions if "add" in action]
    noted += [action["remove"]["deletionTimestamp"] for action in actions if "remove" in action]
    assert len(noted) == 5
    assert all(abs(moment / 1000 - time.time() - apart) < 60 for moment in noted)
    before = sorted(Bucket(archive.uri).list())
    with pytest.raises(WarehouseError, match=r"120 minutes .*Correct the machine's clock"):
        archive.vacuum(keep_hours=2)
    assert sorted(Bucket(archive.uri).list()) == before
    assert ids(archive) == ["1", "2"]


def test_the_clock_of_a_store_is_asked_for_once(uri, proxy):
    objects = Bucket(uri)
    found = [objects.now() for _ in range(3)]
    assert len(proxy.requests) == 3
    assert objects.list() == []
    assert abs(found[-1] - time.time()) < 10


def test_a_commit_that_comes_minutes_after_the_log_was_read_asks_whether_another_came(archive, proxy, monkeypatch):
    append(archive, 2)
    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 200)
    proxy.forget()
    append(archive, 3)
    assert [request.partition(" ")[0] for request in on_the_log(proxy)] == ["GET", "PUT"]
    assert "list-type=2" in proxy.requests[-2]
    archive.another().take_lease("other")
    monkeypatch.setattr(time, "monotonic", lambda: began + 400)
    proxy.forget()
    append(archive, 4)
    append(archive, 5)
    assert puts_on_the_log(proxy) == ["PUT 6.json", "PUT 7.json"]
    assert ids(archive) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("commits", [1, 2], ids=["delta-rs", "ours"])
def test_a_commit_that_a_store_refuses_the_account_is_an_error_at_once(archive, proxy, commits):
    other = archive.another()
    for number in range(2, 1 + commits):
        append(other, number)
    proxy.forget()
    proxy.faults.append(Fault("PUT", "_delta_log", "403", count=20))
    with pytest.raises(WarehousePermissionError, match=r"nothing was added.*needs s3:PutObject"):
        append(other, 1 + commits)
    assert len(puts_on_the_log(proxy)) == 1
    proxy.faults.clear()
    append(other, 1 + commits)
    assert ids(archive) == [str(number) for number in range(1, 2 + commits)]


def test_a_commit_that_is_refused_only_when_it_is_sent_again_may_be_in(archive, proxy):
    append(archive, 2)
    name = f"{4:020d}.json"
    proxy.faults += [Fault("PUT", name, "lost"), Fault("PUT", name, "403")]
    append(archive, 3)
    assert ids(archive) == ["1", "2", "3"]


def test_a_commit_in_a_storm_is_not_made_and_never_will_be(archive, proxy):
    append(archive, 2)
    proxy.faults += [
        Fault("PUT", f"{4:020d}.json", "503", count=6),
        Fault("GET", "_last_checkpoint", "503", count=11),
    ]
    with pytest.raises(WarehouseUnavailableError, match="nothing was added"):
        append(archive, 3)
    append(archive, 4)
    assert ids(archive) == ["1", "2", "4"]


def test_a_commit_that_is_made_after_its_client_gave_up_is_in_or_never_will_be(archive, proxy, monkeypatch):
    for cloud in ("AWS", "GOOGLE"):
        monkeypatch.setenv(f"{cloud}_TIMEOUT", "3s")
    late = archive.another()
    append(late, 2)
    append(late, 3)
    proxy.faults.append(Fault("PUT", f"{5:020d}.json", "slow"))
    is_in = True
    try:
        append(late, 4)
    except WarehouseUnavailableError:
        is_in = False
    append(late, 5)
    assert ids(archive) == ["1", "2", "3", *["4"] * is_in, "5"]


def test_a_commit_in_a_storm_that_is_in_is_found_to_be_in(archive, proxy):
    append(archive, 2)
    proxy.faults += [
        Fault("PUT", f"{4:020d}.json", "lost", count=6),
        Fault("GET", f"{4:020d}.json", "503", count=6),
        Fault("GET", "_last_checkpoint", "503", count=11),
    ]
    append(archive, 3)
    assert ids(archive) == ["1", "2", "3"]


def test_the_outcome_of_a_commit_is_unknown_after_a_storm_of_minutes(archive, proxy, monkeypatch):
    monkeypatch.setattr("connectors.lake.tables.OUTCOME_SECONDS", 0.1)
    append(archive, 2)
    file = archive.writer().write([("orders", "s", pulled(b"x", first=3))])
    with proxy.storm("503"), pytest.raises(CommitOutcomeUnknownError):
        archive.commit([file], Attempt("s", 3, "l", 1, commit_id=3))


@pytest.mark.parametrize("kind", ["lost", "cut"])
def test_a_table_is_created_though_the_answers_to_its_entries_are_lost(uri, proxy, kind):
    """delta-rs takes its own entry for another's, and writes a second one."""
    proxy.faults += [Fault("PUT", f"{version:020d}.json", kind) for version in range(2)]
    archive = LakeArchive(uri, "backup.messages")
    archive.create()
    append(archive, 1, archive.take_lease("l"))
    assert ids(archive) == ["1"]
