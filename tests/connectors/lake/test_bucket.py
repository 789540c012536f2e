"""A lake in a bucket of Amazon S3 or Cloud Storage: few requests, and answers that are lost, late or refusals."""

import time
from contextlib import nullcontext
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from connectors.lake.entities import write_partition
from connectors.lake.key_index import KeyDays, KeyIndex
from connectors.lake.merged_files import MergedFileLists
from connectors.lake.objects import check_conditions, open_objects
from connectors.lake.row_tables import LakeRowTables
from connectors.object_store.bucket import Bucket
from model.archive import Attempt
from model.errors import WarehouseError, WarehousePermissionError, WarehouseUnavailableError
from model.schema import Field, RowSchema
from tests.connectors.lake.bucket_archive import ids
from tests.worlds.bucket import SCHEMES, Fault, bucket_lake_of
from tests.worlds.tables import pulled

pytestmark = pytest.mark.cloud

MB = 1024 * 1024

ROW = pa.record_batch({"id": [1], "ingest_time": pa.array([datetime.now(UTC)], pa.timestamp("us", "UTC"))})


@pytest.fixture(params=["disk", *SCHEMES])
def objects(request, tmp_path):
    is_disk = request.param == "disk"
    with nullcontext(str(tmp_path)) if is_disk else bucket_lake_of(request.param, request) as uri:
        yield open_objects(f"{uri}/folder")


def test_an_object_is_put_where_there_is_none_and_left_where_there_is_another(objects):
    assert objects.put_new("a/1.json", b"one")
    assert not objects.put_new("a/1.json", b"two")
    assert objects.put_new("a/1.json", b"one"), "it is this one, whose answer was lost"
    assert objects.put_new("a/2.json", b"one")


def test_an_object_is_replaced_where_it_is_the_one_that_was_read_or_put(objects):
    assert objects.replace("1.json", b"none", {"e_tag": '"one"', "version": "1"}) is None
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
    def write():
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
    # Another part may arrive after it.
    assert any(request.startswith("DELETE ") for request in proxy.requests)
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
    for cloud in ("AWS", "GOOGLE"):
        monkeypatch.setenv(f"{cloud}_TIMEOUT", "3s")
    leases = archive.leases()
    leases.write_lease("l", 1, b"1")
    proxy.faults += [Fault("PUT", "", kind, count=100), Fault("POST", "", kind, count=100)]
    with pytest.raises(WarehouseUnavailableError):
        leases.write_lease("l", 1, b"2")


REFUSED = {
    "write": ("PUT", "s3:PutObject"),
    "write a lease": ("PUT", "s3:PutObject"),
    "read a lease": ("GET", "s3:ListBucket"),
    "begin again": ("GET", "s3:GetObject"),
    "learn": ("GET .parquet", "s3:GetObject"),
    "check": ("PUT", "s3:PutObject"),
    "check and delete": ("DELETE", "s3:DeleteObject"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_store_that_refuses_the_account_is_an_error_that_names_the_right(archive, uri, proxy, name):
    request, right = REFUSED[name]
    method, _, part = request.partition(" ")
    proxy.faults.append(Fault(method, part, "403", count=20))
    if method == "DELETE":
        # Of several objects at once, on Amazon S3.
        proxy.faults.append(Fault("POST", "?delete", "403", count=20))
    call = CALLS.get(name, lambda _: check_conditions(uri))
    with pytest.raises(WarehousePermissionError, match=f"needs {right}") as found:
        call(archive)
    assert not isinstance(found.value, WarehouseUnavailableError), "it is not waited for"


def test_a_bucket_that_is_not_there_is_named_by_the_store_s_code(uri):
    with pytest.raises(OSError, match="<Code>NoSuchBucket</Code>"):
        Bucket("s3://no-such-bucket/lake").put_new("1.json", b"one")


@pytest.mark.parametrize("kind", ["501", "505"])
@pytest.mark.parametrize("name", ["write", "begin again", "learn", "read a lease"])
def test_a_store_that_can_not_do_what_it_is_asked_is_not_waited_for(archive, proxy, name, kind):
    with proxy.storm(kind), pytest.raises(WarehouseError) as found:
        CALLS[name](archive)
    assert not isinstance(found.value, WarehouseUnavailableError)
