"""A lake in a bucket of moto's S3 server: one request a commit, and answers that are lost, late or refusals."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest

from connectors.lake.archive import LakeArchive
from connectors.lake.bucket import Bucket
from connectors.lake.tables import CONFIGURATION
from model.archive import Attempt, IdSpan
from model.errors import LeaseLostError
from tests.worlds.bucket import Fault, Proxy, moto_server
from tests.worlds.tables import pulled

pytestmark = pytest.mark.cloud


@pytest.fixture(scope="module")
def moto(tmp_path_factory) -> Iterator[str]:
    with moto_server(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture
def proxy(moto, monkeypatch) -> Iterator[Proxy]:
    found = Proxy(moto.removeprefix("http://"))
    with found.serving() as url:
        settings = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def uri(proxy, moto, request) -> str:
    name = f"lake-{time.time_ns()}"
    httpx.put(f"{moto}/{name}", timeout=60).raise_for_status()
    return f"s3://{name}/lake"


@pytest.fixture
def archive(uri, proxy) -> LakeArchive:
    found = LakeArchive(uri, "backup.messages")
    found.create()
    append(found, 1, found.take_lease("l"))
    proxy.requests.clear()
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
def objects(request, tmp_path) -> Bucket:
    (tmp_path / "folder").mkdir()
    folder = tmp_path.as_uri() if request.param == "disk" else request.getfixturevalue("uri")
    return Bucket(f"{folder}/folder")


def test_an_object_is_put_where_there_is_none_and_left_where_there_is_another(objects):
    assert objects.put_new("a/1.json", b"one")
    assert not objects.put_new("a/1.json", b"two")
    assert objects.put_new("a/1.json", b"one"), "it is this one, whose answer was lost"
    assert objects.put_new("a/2.json", b"one")


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
    proxy.requests.clear()
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


def test_delta_rs_writes_the_checkpoints_between_the_commits(uri, proxy, monkeypatch):
    monkeypatch.setitem(CONFIGURATION, "delta.checkpointInterval", "5")
    archive = LakeArchive(uri, "backup.messages")
    archive.create()
    archive.take_lease("l")
    for number in range(1, 14):
        append(archive, number)
    put = [request for request in on_the_log(proxy) if request.startswith("PUT") and "checkpoint" in request]
    assert [name for name in put if name.endswith(".parquet")] == [
        f"PUT {version}.checkpoint.parquet" for version in (4, 9, 14)
    ]
    assert ids(archive) == [str(number) for number in range(1, 14)]


def test_a_commit_that_comes_minutes_after_the_log_was_read_reads_it_again(archive, proxy, monkeypatch):
    append(archive, 2)
    later = time.monotonic() + 200
    monkeypatch.setattr(time, "monotonic", lambda: later)
    proxy.requests.clear()
    append(archive, 3)
    assert any("list-type=2" in request for request in on_the_log(proxy))
    append(archive, 4)
    assert on_the_log(proxy)[-1] == "PUT 5.json"
    assert ids(archive) == ["1", "2", "3", "4"]
