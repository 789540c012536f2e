"""A lake in a bucket of moto's S3 server: one request a commit, and answers that are lost, late or refusals."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from connectors.lake.archive import LakeArchive
from connectors.lake.bucket_log import LOG_RETENTION
from connectors.lake.delta_table import KEPT_IN_BUCKET
from connectors.lake.entities import write_partition
from connectors.lake.key_index import KeyDays, KeyIndex
from connectors.lake.merged_files import MergedFileLists
from connectors.lake.objects import Objects, check_conditions, open_objects
from connectors.lake.row_tables import LakeRowTables
from connectors.lake.tables import CONFIGURATION
from connectors.object_store.bucket import Bucket
from model.archive import Attempt, IdSpan
from model.errors import (
    CommitOutcomeUnknownError,
    LeaseLostError,
    WarehouseError,
    WarehousePermissionError,
    WarehouseUnavailableError,
)
from model.schema import Field, RowSchema
from tests.worlds.bucket import Fault, Proxy, make_lake, moto_server, settings_at
from tests.worlds.tables import pulled

pytestmark = pytest.mark.cloud

MB = 1024 * 1024
ROW = pa.record_batch({"id": [1], "ingest_time": pa.array([datetime.now(UTC)], pa.timestamp("us", "UTC"))})


@pytest.fixture(scope="module")
def moto(tmp_path_factory) -> Iterator[str]:
    with moto_server(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture
def proxy(moto, monkeypatch) -> Iterator[Proxy]:
    found = Proxy(moto.removeprefix("http://"))
    with found.serving() as url:
        for name, value in settings_at(url).items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def uri(proxy, moto) -> str:
    return make_lake(moto)


@pytest.fixture
def archive(uri, proxy) -> LakeArchive:
    found = LakeArchive(uri, "backup.messages")
    found.create()
    append(found, 1, found.take_lease("l"))
    proxy.forget()
    return found


def append(archive: LakeArchive, number: int, epoch: int = 1) -> None:
    file = archive.writer().write([("orders", "s", pulled(b"x", first=number))])
    archive.commit([file], Attempt("s", number, "l", epoch, commit_id=number))


def ids(archive: LakeArchive) -> list[str]:
    long_ago = datetime.fromtimestamp(0, UTC)
    found = archive.another().read_ids(IdSpan(long_ago, long_ago))
    return sorted((one for batch in found for one in batch.column("message_id").to_pylist()), key=int)


def on_the_log(proxy: Proxy) -> list[str]:
    """Return the requests about the table's log, each as its method and the version's number."""
    found = [request.partition(" ") for request in proxy.requests if "_delta_log" in request]
    return [f"{method} {path.rpartition('/')[2].lstrip('0')}" for method, _, path in found]


@pytest.fixture(params=["disk", "bucket"])
def objects(request, tmp_path) -> Objects:
    return open_objects(str(tmp_path / "folder") if request.param == "disk" else request.getfixturevalue("uri"))


def test_an_object_is_put_where_there_is_none_and_left_where_there_is_another(objects):
    assert objects.put_new("a/1.json", b"one")
    assert not objects.put_new("a/1.json", b"two")
    assert objects.put_new("a/1.json", b"one"), "it is this one, whose answer was lost"
    assert objects.put_new("a/2.json", b"one")


def test_an_object_is_replaced_where_it_is_the_one_that_was_read_or_put(objects):
    assert objects.replace("1.json", b"none", {"e_tag": '"one"'}) is None
    first = objects.put_new("1.json", b"one")
    second = objects.replace("1.json", b"two", first)
    assert objects.replace("1.json", b"three", first) is None
    assert objects.read("1.json").content == b"two"
    assert objects.replace("1.json", b"three", objects.read("1.json").tag)
    assert objects.replace("1.json", b"four", second) is None
    assert (objects.list(), objects.read("1.json").content) == (["1.json"], b"three")
    for _ in range(2):
        objects.delete("1.json")
    assert (objects.list(), objects.read("1.json")) == ([], None)


def test_an_object_that_another_request_is_about_to_put_is_not_put(uri, proxy):
    objects = Bucket(uri)
    # Amazon's ConditionalRequestConflict.
    proxy.faults.append(Fault("PUT", "1.json", "409", count=20))
    assert not objects.put_new("1.json", b"one")


@pytest.mark.parametrize("kind", ["lost", "cut", "503", "429"])
def test_an_object_whose_answer_is_lost_or_a_refusal_is_put_once(uri, proxy, kind):
    objects = Bucket(uri)
    proxy.faults.append(Fault("PUT", "1.json", kind))
    assert objects.put_new("1.json", b"one")
    assert not objects.put_new("1.json", b"two")


@pytest.mark.parametrize("kind", ["lost", "cut", "503", "429"])
def test_an_object_is_replaced_though_the_answer_is_lost_or_a_refusal(uri, proxy, kind):
    objects = Bucket(uri)
    first = objects.put_new("1.json", b"one")
    proxy.faults.append(Fault("PUT", "1.json", kind))
    second = objects.replace("1.json", b"two", first)
    assert objects.replace("1.json", b"three", second)


def test_an_object_of_any_size_is_there_when_the_block_has_ended(objects):
    objects.put_new("1.json", b"one")
    content = bytes(range(256)) * 1000
    with objects.writing("f.parquet") as made:
        made.stream.write(content[:1000])
        made.stream.write(content[1000:])
    assert objects.read("f.parquet").content == content
    assert made.size_bytes == len(content)
    assert sorted(objects.list()) == ["1.json", "f.parquet"]
    assert abs(made.modified_at_ms / 1000 - time.time()) < 60


def test_an_object_whose_block_raises_is_not_there(objects):
    def write() -> None:
        with objects.writing("f.parquet") as made:
            made.stream.write(b"one")
            raise KeyError

    objects.put_new("1.json", b"one")
    with pytest.raises(KeyError):
        write()
    assert objects.list() == ["1.json"]


def write_large(bucket: Bucket, *, monkeypatch) -> None:
    monkeypatch.setattr("connectors.object_store.bucket._ONE_REQUEST_BYTES", 6 * MB)
    # Amazon takes no smaller parts.
    monkeypatch.setattr("connectors.object_store.bucket._PART_BYTES", 5 * MB)
    with bucket.writing("f.parquet") as made:
        for number in range(12):
            made.stream.write(b"%d" % (number % 10) * MB)


def test_a_large_object_goes_in_parts(uri, proxy, monkeypatch):
    bucket = Bucket(uri)
    bucket.now()
    proxy.forget()
    write_large(bucket, monkeypatch=monkeypatch)
    assert sorted(request.partition(" ")[0] for request in proxy.requests) == ["POST", "POST", *["PUT"] * 3]
    found = bucket.read("f.parquet").content
    assert found == b"".join(b"%d" % (number % 10) * MB for number in range(12))


def test_the_parts_of_a_large_object_that_failed_are_deleted(uri, proxy, monkeypatch):
    bucket = Bucket(uri)
    proxy.faults.append(Fault("PUT", "partNumber=2", "403"))
    with pytest.raises(OSError, match="403"):
        write_large(bucket, monkeypatch=monkeypatch)
    assert proxy.requests[-1].startswith("DELETE ")
    assert bucket.list() == []


def test_a_file_is_one_request_and_a_commit_one_more(archive, proxy):
    files = [archive.writer().write([("orders", "s", pulled(b"x", first=number))]) for number in (2, 3)]
    assert [request.rpartition("/")[2] for request in proxy.requests] == [file.path for file in files]
    archive.commit(files, Attempt("s", 2, "l", 1, commit_id=2))
    methods = [request.partition(" ")[0] for request in proxy.requests]
    assert methods == ["PUT"] * (1 + len(files))
    assert ids(archive) == ["1", "2", "3"]


def test_a_file_that_is_not_committed_is_deleted_by_one_request(archive, proxy):
    file = archive.writer().write([("orders", "s", pulled(b"x", first=2))])
    proxy.forget()
    archive.drop(file)
    assert len(proxy.requests) == 1


def test_tables_of_rows_are_written_by_a_request_a_file_and_a_commit(uri, proxy):
    schema = RowSchema((Field("id", "INT64"), Field("ingest_time", "TIMESTAMP")))
    tables = LakeRowTables(uri, "backup.anchor", stream="s", lease="l")
    names = ["shop.orders", "shop.members"]
    for name in names:
        tables.open(name).evolve(schema)
        tables.append(name, ROW)
    writers = {name: tables.open(name).writer() for name in names}
    proxy.forget()
    parts = {name: [writer.write_rows([ROW])] for name, writer in writers.items()}
    assert len(proxy.requests) == len(names)
    assert tables.commit(parts, 2, ROW) == (frozenset(names), None)
    assert len(proxy.requests) == 2 * len(names)


def test_what_a_merge_keeps_beside_its_table_is_a_request_a_file(uri, proxy):
    pairs = KeyDays(np.array([1, 2], np.uint64), np.array([5, 6], np.int32))
    open_objects(uri).now()
    proxy.forget()
    index = KeyIndex(uri, 0, ["id"]).add(pairs)
    number = MergedFileLists(uri).write({"a.parquet": datetime.now(UTC)})
    (file,) = write_partition(uri, None, ROW.schema, iter([ROW]))
    assert [request.partition(" ")[0] for request in proxy.requests] == ["PUT"] * 4
    assert KeyIndex(uri, index.number, ["id"]).find(pairs.hashes).days.tolist() == [5, 6]
    assert list(MergedFileLists(uri).read(number)) == ["a.parquet"]
    assert file.rows == 1


@pytest.mark.parametrize("kind", [None, "lost", "503"])
def test_a_bucket_that_honours_conditions_is_found_so_by_five_requests(uri, proxy, kind):
    if kind is not None:
        proxy.faults.append(Fault("PUT", "", kind))
    check_conditions(uri)
    # What is sent again, and the look at whose object is there.
    assert len(proxy.requests) <= 5 + {None: 0, "lost": 2, "503": 1}[kind]
    assert Bucket(uri.removesuffix("/lake")).list() == Bucket(f"{uri}/_probe").list() == []


@pytest.mark.parametrize("condition", ["If-None-Match", "If-Match"])
def test_a_bucket_that_ignores_conditions_is_refused_with_what_to_do(uri, proxy, condition):
    proxy.ignored = (condition,)
    with pytest.raises(WarehouseError, match=rf"writes \({condition}\).*Set REFEED_LAKE to"):
        check_conditions(uri)
    assert len(proxy.requests) == {"If-None-Match": 3, "If-Match": 5}[condition]
    assert Bucket(f"{uri}/_probe").list() == []


@pytest.mark.parametrize(("skipped", "condition"), [(0, "If-None-Match"), (2, "If-Match")])
def test_a_bucket_that_knows_no_conditions_is_refused_with_what_to_do(uri, proxy, skipped, condition):
    proxy.faults += [Fault("PUT", "", "pass", count=skipped), Fault("PUT", "", "501", count=20)]
    with pytest.raises(WarehouseError, match=rf"writes \({condition}\).*Set REFEED_LAKE to"):
        check_conditions(uri)


def test_a_bucket_that_refuses_the_replacement_of_an_unchanged_object_is_refused(uri, proxy):
    proxy.faults += [Fault("PUT", "", "pass", count=2), Fault("PUT", "", "412", count=20)]
    with pytest.raises(WarehouseError, match=r"writes \(If-Match\)"):
        check_conditions(uri)


def test_a_bucket_that_does_not_answer_is_not_found_unfit(uri, proxy):
    with proxy.storm("503"), pytest.raises(WarehouseUnavailableError):
        check_conditions(uri)


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
    assert on_the_log(proxy)[-1] == "PUT 6.json"
    assert ids(archive) == ["1", "2", "3", "4"]


def test_a_stream_that_has_lost_its_lease_commits_nothing(archive):
    append(archive, 2)
    other = archive.another()
    epoch = other.take_lease("l")
    with pytest.raises(LeaseLostError):
        append(archive, 3)
    append(other, 4, epoch)
    assert ids(archive) == ["1", "2", "4"]


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
    put = [request for request in on_the_log(proxy) if request.startswith("PUT")]
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
    assert [each for each in on_the_log(proxy) if each.startswith("PUT")] == ["PUT 6.json", "PUT 7.json"]
    assert ids(archive) == ["1", "2", "3", "4", "5"]


CALLS = {
    "begin": lambda archive: archive.another().create(),
    "begin again": lambda archive: archive.exists(),
    "write": lambda archive: archive.writer().write([("orders", "s", pulled(b"x"))]),
    "take a lease": lambda archive: archive.take_lease("l"),
    "read a lease": lambda archive: archive.leases().read_lease("l"),
    "write a lease": lambda archive: archive.leases().write_lease("l", 1, b"1"),
    "settle": lambda archive: archive.settle(Attempt("s", 1, "l", 1, commit_id=1)),
    "learn": ids,
    "compact": lambda archive: archive.another().compact(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_stream_waits_for_a_store_that_refuses_every_request(archive, proxy, name):
    with proxy.storm("503"), pytest.raises(WarehouseUnavailableError):
        CALLS[name](archive)
    CALLS[name](archive)


@pytest.mark.parametrize("kind", ["429", "cut", "slow"])
def test_a_stream_waits_for_a_store_that_answers_late_or_badly(archive, proxy, monkeypatch, kind):
    # A request that is not answered ends then, and not after 30 s.
    monkeypatch.setenv("AWS_TIMEOUT", "3s")
    leases = archive.leases()
    leases.write_lease("l", 1, b"1")
    proxy.faults += [Fault("PUT", "", kind, count=100), Fault("POST", "", kind, count=100)]
    with pytest.raises(WarehouseUnavailableError):
        leases.write_lease("l", 1, b"2")


def test_a_store_that_refuses_the_account_is_not_waited_for(archive, proxy):
    with proxy.storm("403"), pytest.raises(WarehouseError) as found:
        CALLS["write"](archive)
    assert not isinstance(found.value, WarehouseUnavailableError)


@pytest.mark.parametrize("commits", [1, 2], ids=["delta-rs", "ours"])
def test_a_commit_that_a_store_refuses_the_account_is_an_error_at_once(archive, proxy, commits):
    other = archive.another()
    for number in range(2, 1 + commits):
        append(other, number)
    proxy.forget()
    proxy.faults.append(Fault("PUT", "_delta_log", "403", count=20))
    with pytest.raises(WarehousePermissionError, match=r"nothing was added.*needs s3:PutObject"):
        append(other, 1 + commits)
    assert on_the_log(proxy)[-1].startswith("PUT ")
    proxy.faults.clear()
    append(other, 1 + commits)
    assert ids(archive) == [str(number) for number in range(1, 2 + commits)]


def test_a_commit_that_is_refused_only_when_it_is_sent_again_may_be_in(archive, proxy):
    append(archive, 2)
    name = f"{4:020d}.json"
    proxy.faults += [Fault("PUT", name, "lost"), Fault("PUT", name, "403")]
    append(archive, 3)
    assert ids(archive) == ["1", "2", "3"]


REFUSED = {
    "write": ("PUT", "s3:PutObject"),
    "write a lease": ("PUT", "s3:PutObject"),
    "read a lease": ("GET", "s3:ListBucket"),
    "begin again": ("GET", "s3:GetObject"),
    "learn": ("HEAD", "s3:GetObject"),
    "check": ("PUT", "s3:PutObject"),
    "check and delete": ("POST", "s3:DeleteObject"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_store_that_refuses_the_account_is_an_error_that_names_the_right(archive, uri, proxy, name):
    method, right = REFUSED[name]
    proxy.faults.append(Fault(method, "", "403", count=20))
    call = CALLS.get(name, lambda _: check_conditions(uri))
    with pytest.raises(WarehousePermissionError, match=f"needs {right}"):
        call(archive)


def test_a_bucket_that_is_not_there_is_named_by_the_store_s_code(uri):
    with pytest.raises(OSError, match="<Code>NoSuchBucket</Code>"):
        Bucket("s3://no-such-bucket/lake").put_new("1.json", b"one")


@pytest.mark.parametrize("kind", ["501", "505"])
@pytest.mark.parametrize("name", ["write", "begin again", "learn", "read a lease"])
def test_a_store_that_can_not_do_what_it_is_asked_is_not_waited_for(archive, proxy, name, kind):
    with proxy.storm(kind), pytest.raises(WarehouseError) as found:
        CALLS[name](archive)
    assert not isinstance(found.value, WarehouseUnavailableError)


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
    monkeypatch.setenv("AWS_TIMEOUT", "3s")
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
