"""What the shared files of a job keep to in a bucket that loses, delays and refuses answers."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from backfill.run.progress import CheckpointFolder, CheckpointReader, SliceCheckpoint
from jobs.files import Files, open_files
from jobs.folder import JobFolders
from model.errors import FolderUnavailableError, SettingsError
from model.file_version import FileVersion
from tests.worlds.bucket import SCHEMES, Fault
from tests.worlds.folders import bucket_folder

MB = 1024 * 1024


@pytest.fixture(params=SCHEMES)
def bucket(request):
    with bucket_folder(request.param, request) as found:
        yield found


def test_the_log_of_a_driver_that_ran_here_lies_here_and_goes_with_the_folder(files, tmp_path):
    folders = JobFolders(files, logs=tmp_path)
    folder = folders.of("bf_1")
    folder.write_specification({})
    folder.driver_log.write_text("first\nlast\n")
    assert folder.path is None
    assert folder.driver_log == tmp_path / "bf_1.log"
    assert folder.has_log()
    with folder.scratch() as scratch:
        assert scratch.parent.is_dir()
    assert not scratch.parent.exists()
    assert folders.remove("bf_1")
    assert not folder.exists()
    assert not folder.driver_log.exists()


def test_a_bucket_that_is_away_for_a_moment_costs_nothing(files, bucket):
    bucket.proxy.faults += [Fault("PUT", "", "503"), Fault("GET", "prefix", "429"), Fault("GET", "", "503")]
    files.write("a", b"1")
    assert files.list() == ["a"]
    assert files.read("a") == b"1"


@pytest.mark.parametrize("kind", ["lost", "cut"])
def test_a_line_whose_answer_got_lost_is_in_the_log(files, bucket, kind, reopen):
    bucket.proxy.faults.append(Fault("PUT", "", kind))
    files.append("log", b"1\n")
    files.append("log", b"2\n")
    # What may be there twice is the line whose fate nobody knew; none is gone and none is out of order.
    assert reopen().read_log("log").splitlines() in ([b"1", b"2"], [b"1", b"1", b"2"])


@pytest.mark.parametrize("kind", ["lost", "cut"])
def test_a_change_whose_answer_got_lost_is_made_once_more_on_what_is_there(files, bucket, kind):
    seen = []

    def set_to_five(found):
        seen.append(found)
        return b"5"

    bucket.proxy.faults.append(Fault("PUT", "", kind))
    assert files.change("n", set_to_five)
    assert seen == [None, b"5"]


@pytest.mark.parametrize("status", ["409", "412"])
def test_a_change_that_a_store_refuses_is_made_of_what_is_there(files, bucket, status):
    files.write("n", b"1")
    bucket.proxy.faults.append(Fault("PUT", "", status))
    assert files.change("n", lambda found: (found or b"") + b"2")
    assert files.read("n") == b"12"


def test_a_file_that_a_store_never_lets_change_is_an_error(files, bucket):
    bucket.proxy.faults.append(Fault("PUT", "", "412", count=1000))
    with pytest.raises(FolderUnavailableError, match="Other processes keep changing"):
        files.change("n", lambda _: b"3")
    with pytest.raises(FolderUnavailableError, match="Other processes keep writing"):
        files.append("log", b"1\n")


def test_of_two_who_make_the_same_change_at_once_both_count(files, reopen):
    """Another process may write the very bytes that this one was about to write."""
    seen = []

    def count_up_late(found):
        if not seen:
            reopen().change("n", lambda _: b"1")
        seen.append(found)
        return str(int(found or b"0") + 1).encode()

    assert files.change("n", count_up_late)
    assert files.read("n") == b"2"
    assert seen == [None, b"1"]


CALLS: dict[str, Callable[[Files], object]] = {
    "exists": lambda files: files.exists(),
    "list": lambda files: files.list(),
    "versions": lambda files: files.versions(),
    "read a version": lambda files: files.read_version("a", FileVersion('"x"', 1)),
    "changed at": lambda files: files.changed_at("below"),
    "take away": lambda files: files.take_away("below", lambda: False),
    "read": lambda files: files.read("a"),
    "write": lambda files: files.write("a", b"2"),
    "change": lambda files: files.change("a", lambda _: b"2"),
    "remove": lambda files: files.remove("a"),
    "complete": lambda files: files.complete("a", b"2"),
    "is made": lambda files: files.is_made("a"),
    "read a range": lambda files: files.reader("a"),
    "append": lambda files: files.append("log", b"2\n"),
    "read a log": lambda files: files.read_log("log"),
    "latest": lambda files: list(files.latest("")),
}


def test_a_bucket_that_does_not_answer_is_an_error_of_the_folder_and_nothing_is_lost(files, bucket):
    files.write("a", b"1")
    files.append("log", b"1\n")
    files.folder("below").write("b", b"1")

    def fault_of(name):
        try:
            CALLS[name](open_files(bucket.location))
        except FolderUnavailableError as exc:
            return exc
        return None

    # Each is tried for a second.
    with bucket.proxy.storm("503"), ThreadPoolExecutor(len(CALLS)) as pool:
        faults = dict(zip(CALLS, pool.map(fault_of, CALLS), strict=True))
    assert [name for name, fault in faults.items() if bucket.location not in str(fault)] == []
    assert files.list() == ["a", "below", "log"]
    assert (files.read("a"), files.read_log("log"), files.folder("below").read("b")) == (b"1", b"1\n", b"1")


@pytest.mark.parametrize("bucket", SCHEMES[1:], indirect=True)
def test_a_bucket_that_never_answers_is_not_waited_for_forever(bucket, monkeypatch):
    monkeypatch.setenv("AWS_TIMEOUT", "1s")
    files = open_files(bucket.location)
    bucket.proxy.faults.append(Fault("PUT", "", "slow", count=100))
    with pytest.raises(FolderUnavailableError, match="a: "):
        files.write("a", b"1")


def test_an_answer_that_ends_early_is_read_on_or_an_error_and_never_taken_for_the_whole(files, bucket):
    content = bytes(range(256)) * 4096
    files.write("a", content)
    bucket.proxy.faults.append(Fault("GET", "", "partial"))
    assert files.read("a") == content
    bucket.proxy.faults.append(Fault("GET", "", "partial"))
    with files.reader("a") as file:
        file.seek(1000)
        assert file.read() == content[1000:]
    bucket.proxy.faults.append(Fault("GET", "", "partial", count=100))
    with pytest.raises(FolderUnavailableError, match="a: "):
        files.read("a")


def test_a_listing_of_several_pages_is_read_to_its_end_or_is_an_error(files, bucket):
    names = [f"{number:04d}.1.0000000001" for number in range(1100)]
    bucket.fill([*(f"below/{name}" for name in names), "below/more/one"])
    below = files.folder("below")
    assert below.list() == [*(name.removesuffix(".0000000001") for name in names), "more"]
    assert len(below.versions()) == 1100
    assert sorted(name for name, _ in below.latest("109")) == [f"109{digit}.1" for digit in range(10)]
    bucket.proxy.faults.append(Fault("GET", "continuation-token", "503", count=1000))
    for call in (below.list, below.versions, lambda: list(below.latest("", lambda _: False))):
        with pytest.raises(FolderUnavailableError):
            call()
    with pytest.raises(FolderUnavailableError):
        files.take_away("below", lambda: False)
    bucket.proxy.faults.clear()
    assert len(below.list()) == 1101
    assert files.take_away("below", lambda: False)
    assert files.list() == []


def test_a_folder_that_another_process_is_removing_too_is_removed_whole(files, bucket, monkeypatch):
    below = files.folder("below")
    names = [f"{number:02d}" for number in range(30)]
    bucket.fill([f"below/{name}" for name in names])
    listed = type(files)._find

    def find(self, start):
        found = list(listed(self, start))
        # Between the listing and the removal.
        for name in names[::3]:
            open_files(str(below)).remove(name)
        yield from found

    with monkeypatch.context() as patched:
        patched.setattr(type(files), "_find", find)
        assert files.take_away("below", lambda: False)
    assert not below.exists()


def test_an_upload_in_several_parts_is_whole_or_not_there(files, bucket, monkeypatch):
    monkeypatch.setattr("connectors.object_store.bucket._ONE_REQUEST_BYTES", 6 * MB)
    # Amazon takes no smaller parts.
    monkeypatch.setattr("connectors.object_store.bucket._PART_BYTES", 5 * MB)
    content = bytes(range(256)) * 4096 * 12

    def write():
        with files.writer("large") as file:
            for start in range(0, len(content), MB):
                file.write(content[start : start + MB])

    bucket.proxy.faults.append(Fault("PUT", "partNumber=2", "403"))
    with pytest.raises(FolderUnavailableError, match="large: "):
        write()
    assert files.list() == []
    bucket.proxy.faults += [Fault("PUT", "partNumber=2", "503"), Fault("POST", "uploadId", "503")]
    write()
    assert files.read("large") == content
    with files.reader("large") as file:
        file.seek(-10, 2)
        assert (file.tell(), file.read()) == (len(content) - 10, content[-10:])


def test_a_file_that_was_replaced_while_it_is_read_is_an_error_and_no_mixture(files):
    files.write("a", b"1" * 100)
    with files.reader("a") as file:
        assert file.read(50) == b"1" * 50
        files.write("a", b"2" * 100)
        with pytest.raises(FolderUnavailableError, match="a: "):
            file.read(50)


@pytest.mark.parametrize("number", [2, 4])
def test_a_bucket_that_knows_no_conditions_is_found_and_one_that_does_is_left_as_it_was(files, bucket, number):
    files.check()
    assert files.list() == []
    # The second write of each pair is one that must be refused.
    bucket.proxy.faults += [Fault("PUT", "probe", "pass", count=number - 1), Fault("PUT", "probe", "501", count=9)]
    with pytest.raises(FolderUnavailableError, match=r"conditional writes \(If-.*Two processes could overwrite"):
        files.check()
    bucket.proxy.faults.clear()
    assert files.list() == []


RIGHTS = {
    "gs": r"roles/storage\.objectUser on the bucket",
    "s3": "s3:PutObject, s3:DeleteObject and s3:ListBucket on",
}


def test_who_may_not_is_told_the_right_and_who_has_no_bucket_is_told_that(files, bucket):
    scheme = bucket.location.partition("://")[0]
    bucket.proxy.faults.append(Fault("GET", "", "403", count=9))
    with pytest.raises(FolderUnavailableError, match=RIGHTS[scheme]) as refused:
        files.read("a")
    assert refused.value.details.get("role") == {"gs": "roles/storage.objectUser"}.get(scheme)
    with pytest.raises(FolderUnavailableError, match="Create the bucket"):
        open_files(f"{scheme}://no-such-bucket/jobs").write("a", b"")


@pytest.mark.parametrize("wrong", ["", "B/x", "a b/c", "bucket/a?b", "bucket/a//b", "bucket/../b"])
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_what_is_no_bucket_is_refused(scheme, wrong):
    with pytest.raises(SettingsError, match="is not s3://bucket/prefix or gs://bucket/prefix"):
        open_files(f"{scheme}://{wrong}")


def test_watching_costs_one_list_and_one_read_for_each_slice_that_went_on(location, bucket):
    writer = CheckpointFolder(open_files(location))
    for number in range(5):
        writer.write(SliceCheckpoint(number, 1, offset=1, done=number < 3))
    reader = CheckpointReader(open_files(location))
    reader.read()
    writer.write(SliceCheckpoint(4, 1, offset=2))
    bucket.proxy.requests.clear()
    assert {c.slice: c.offset for c in reader.read()}[4] == 2
    assert [request.partition(" ")[0] for request in bucket.proxy.requests] == ["GET", "GET"]
