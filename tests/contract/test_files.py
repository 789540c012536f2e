"""What the shared files of a job keep to, on a disk and in a bucket."""

import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointFolder, CheckpointReader, SliceCheckpoint
from jobs.disk_files import DiskFiles
from jobs.files import Files, open_files
from jobs.folder import Control, JobFolder, JobFolders, Order
from model.errors import FolderUnavailableError, SettingsError
from model.file_version import FileVersion
from tests.worlds.bucket import Fault
from tests.worlds.folders import SCHEMES, BucketFolder, bucket_folder

MB = 1024 * 1024


@pytest.fixture(params=["disk", *SCHEMES])
def bucket(request: pytest.FixtureRequest) -> Iterator[BucketFolder | None]:
    """A folder of the test's own, None on a disk."""
    if request.param == "disk":
        yield None
        return
    with bucket_folder(request.param, request) as found:
        yield found


@pytest.fixture
def location(bucket: BucketFolder | None, tmp_path: Path) -> str:
    """The location of a folder of the test's own, which is not there yet."""
    return str(tmp_path / "folder") if bucket is None else bucket.location


@pytest.fixture
def files(location: str) -> Files:
    return open_files(location)


@pytest.fixture
def reopen(location: str) -> Callable[[], Files]:
    """Return what opens the folder as another process does, with nothing remembered."""
    return lambda: open_files(location)


def test_a_folder_is_there_once_it_has_a_file_and_names_itself(files: Files, location: str) -> None:
    assert not files.exists()
    assert files.list() == []
    files.make()
    files.write("a", b"1")
    assert files.exists()
    assert (str(files), files.name) == (location, location.rpartition("/")[2])
    assert (str(files.folder("b")), files.folder("b").name) == (f"{location}/b", "b")


def test_a_file_is_replaced_whole_and_seen_by_others_at_once(files: Files, reopen: Callable[[], Files]) -> None:
    files.make()
    files.write("a.json", b"first")
    files.write("a.json", b"second \xff\x00\r\n--boundary")
    assert reopen().read("a.json") == b"second \xff\x00\r\n--boundary"
    with reopen().reader("a.json") as file:
        file.seek(7)
        assert file.read(2) == b"\xff\x00"
    files.remove("a.json")
    files.remove("a.json")
    with pytest.raises(FileNotFoundError):
        reopen().read("a.json")


def test_a_list_names_files_logs_and_folders_once(files: Files) -> None:
    files.make()
    files.write("b", b"")
    files.append("log", b"1\n")
    files.append("log", b"2\n")
    below = files.folder("below")
    below.make()
    below.write("c", b"")
    assert files.list() == ["b", "below", "log"]


def test_a_file_s_version_changes_with_each_write_and_is_read_only_while_it_is_there(files, reopen):
    files.make()
    files.write("a", b"first")
    below = files.folder("below")
    below.make()
    below.write("c", b"")
    first = reopen().versions()
    assert [(name, version.size_bytes) for name, version in first.items()] == [("a", 5)]
    assert reopen().versions() == first
    assert reopen().read_version("a", first["a"]) == b"first"
    files.write("a", b"later")
    second = reopen().versions()
    assert second["a"] != first["a"]
    assert reopen().read_version("a", first["a"]) is None
    assert reopen().read_version("a", second["a"]) == b"later"
    files.remove("a")
    assert reopen().versions() == {}
    assert reopen().read_version("a", second["a"]) is None


def test_a_folder_or_bucket_that_is_away_has_no_versions_and_says_so(tmp_path: Path, files: Files) -> None:
    scheme = str(files).partition("://")[0]
    away = open_files(f"{scheme}://nowhere/tests" if files.path is None else str(tmp_path / "nowhere"))
    with pytest.raises(OSError, match="nowhere"):
        away.versions()


def test_of_many_who_change_a_file_none_loses_a_change(location: str, files: Files) -> None:
    files.make()

    def count_up(found: bytes | None) -> bytes:
        return str(int(found or b"0") + 1).encode()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: open_files(location).change("n", count_up), range(12)))
    assert files.read("n") == b"12"
    assert not files.change("n", lambda _: None)
    assert files.read("n") == b"12"


def test_a_log_keeps_the_lines_of_all_who_write_in_the_order_of_each(location: str, files: Files) -> None:
    files.make()

    def write(writer: int) -> None:
        mine = open_files(location)
        for n in range(5):
            mine.append("log", f"{writer} {n}\n".encode())

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    lines = files.read_log("log").decode().splitlines()
    assert len(lines) == 15
    for writer in range(3):
        assert [line for line in lines if line.startswith(f"{writer} ")] == [f"{writer} {n}" for n in range(5)]


def test_a_log_goes_on_behind_what_a_writer_before_left(files: Files, reopen: Callable[[], Files]) -> None:
    files.append("log", b"1\n")
    reopen().append("log", b"2\n")
    files.append("log", b"3\n")
    assert reopen().read_log("log") == b"1\n2\n3\n"
    with pytest.raises(FileNotFoundError):
        reopen().read_latest("none")


def test_of_a_log_of_which_the_last_line_counts_the_rest_goes(files: Files, reopen: Callable[[], Files]) -> None:
    files.make()
    reader = reopen()
    for n in range(40):
        files.append_latest("0001.1", f"{n}\n".encode())
        if n % 7 == 0:
            assert reader.read_latest("0001.1").splitlines()[-1] == str(n).encode()
    files.append_latest("0002.1", b"x\n")
    assert reopen().list() == ["0001.1", "0002.1"]
    found = {name: end.splitlines()[-1] for name, end in reader.latest("")}
    assert found == {"0001.1": b"39", "0002.1": b"x"}
    assert [name for name, _ in reader.latest("", lambda name: name.startswith("0002"))] == ["0002.1"]
    assert [name for name, _ in reader.latest("0001.")] == ["0001.1"]


def test_a_folder_that_is_made_appears_whole_or_not_at_all(files: Files, reopen: Callable[[], Files]) -> None:
    made = files.folder("selection")
    rows = pa.table({"n": list(range(1000))})

    def fill(*, fails: bool = False, is_there: bool = False) -> str:
        with made.making() as unfinished:
            name = unfinished.own_name("rows.parquet")
            with unfinished.writer(name) as where, pq.ParquetWriter(where, rows.schema) as writer:
                for start in (0, 500):
                    writer.write_table(rows.slice(start, 500), row_group_size=500)
                if fails:
                    raise ZeroDivisionError
            assert reopen().folder("selection").is_made("manifest") == is_there
            unfinished.complete("manifest", name.encode())
        return name

    with pytest.raises(ZeroDivisionError):
        fill(fails=True)
    assert not reopen().folder("selection").is_made("manifest")
    name = fill()
    there = reopen().folder("selection")
    assert there.is_made("manifest")
    assert there.read("manifest").decode() == name
    with pq.ParquetFile(there.source(name), pre_buffer=True) as file:
        assert file.read_row_group(1).column("n").to_pylist() == list(range(500, 1000))
    with pytest.raises(FileExistsError):
        fill(is_there=True)
    assert there.read("manifest").decode() == name


def test_of_two_who_make_a_folder_at_once_it_is_one_s_whole(files: Files, reopen: Callable[[], Files]) -> None:
    """A driver that stood still, and was replaced by another one, goes on where it was."""
    late, quick = (opened.folder("selection").making() for opened in (files, reopen()))
    of_late = late.__enter__()
    rows_of_late = of_late.own_name("rows")
    of_late.write(rows_of_late, b"late")
    of_quick = quick.__enter__()
    rows_of_quick = of_quick.own_name("rows")
    of_quick.write(rows_of_quick, b"quick")
    for making, made, rows, content in (
        (late, of_late, rows_of_late, "late"),
        (quick, of_quick, rows_of_quick, "quick"),
    ):
        with suppress(OSError):
            made.complete("manifest", f"{rows} {content}".encode())
            making.__exit__(None, None, None)
    there = reopen().folder("selection")
    rows, _, content = there.read("manifest").decode().partition(" ")
    assert there.read(rows).decode() == content


@contextmanager
def room_for(file_bytes: int) -> Iterator[None]:
    """Let no file of this process grow longer: as on a full disk, a write takes a part and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_log_that_a_full_disk_cuts_short_is_an_error(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path)
    with room_for(10):
        files.append("log", b"whole\n")
        with pytest.raises(FolderUnavailableError, match="log can't be written to: File too large"):
            files.append("log", b"cut short\n")
        with pytest.raises(FolderUnavailableError, match="File too large"):
            files.append_latest("log", b"nothing\n")


def test_a_file_that_a_full_disk_does_not_take_leaves_nothing_behind(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path)
    files.write("pace.json", b"before")
    with room_for(10), pytest.raises(FolderUnavailableError, match="can't be written to: File too large"):
        files.write("pace.json", b"longer than there is room for")
    assert files.read("pace.json") == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["pace.json"]


def test_a_folder_is_taken_away_whole_unless_it_is_wanted(files: Files, reopen: Callable[[], Files]) -> None:
    for name in ("job", "other"):
        folder = files.folder(name)
        folder.make()
        folder.write("specification.json", b"{}")
        below = folder.folder("below")
        below.make()
        below.append("log", b"1\n")
    assert files.changed_at("none") is None
    assert files.changed_at("job") is not None
    assert not files.take_away("job", lambda: True)
    assert reopen().folder("job").read("specification.json") == b"{}"
    assert files.take_away("job", lambda: False)
    assert not files.take_away("job", lambda: False)
    files.sweep()
    assert not reopen().folder("job").exists()
    assert files.list() == ["other"]
    assert reopen().folder("other").folder("below").read_log("log") == b"1\n"


def test_a_job_is_steered_through_its_folder_and_no_late_order_counts(location: str) -> None:
    service, driver = BackfillFolder(location), BackfillFolder(location)
    service.write_specification({"query": "é"})
    assert driver.read_specification() == {"query": "é"}
    assert service.write_control(Control(2, Order.RUN, 5.0))
    assert not JobFolder(location).write_control(Control(1, Order.STOP))
    assert driver.read_control() == Control(2, Order.RUN, 5.0)
    driver.write_pause(2, "The canary is complete.")
    assert service.read_pause(2) == "The canary is complete."
    assert service.write_control(Control(2, Order.RUN))
    assert driver.read_pause(2) is None
    driver.enter_slice(7, 2)
    driver.enter_slice(1, 1)
    assert service.running_slices(2) == [7]
    driver.leave_slice(7, 2)
    assert service.running_slices(2) == []
    assert service.read_outcome(2) is None
    assert service.read_fault(2) is None
    assert service.read_heartbeat(2) is None
    driver.beat(2)
    assert service.read_heartbeat(2) is not None


def test_an_order_is_obeyed_once_it_can_be_seen(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("jobs.folder.time", SimpleNamespace(monotonic=lambda: now[0]))
    service, task = JobFolder(location), JobFolder(location)
    service.write_specification({})
    service.write_control(Control(1, Order.RUN))
    assert task.may_publish(1)
    service.write_control(Control(1, Order.PAUSE))
    now[0] += task.sight_seconds
    assert not task.may_publish(1)
    assert task.sight_seconds <= 1.0


def test_checkpoints_are_read_slice_by_slice_of_the_latest_attempt(location: str) -> None:
    writer = CheckpointFolder(open_files(location))
    writer.create()
    reader = CheckpointReader(open_files(location))
    for offset in range(1, 20):
        writer.write(SliceCheckpoint(0, 1, offset=offset))
    writer.write(SliceCheckpoint(0, 2, offset=19, done=True))
    writer.write(SliceCheckpoint(1, 2, offset=3))
    assert {c.slice: (c.epoch, c.offset) for c in reader.read()} == {0: (2, 19), 1: (2, 3)}
    writer.write(SliceCheckpoint(1, 2, offset=4))
    assert {c.slice: (c.epoch, c.offset) for c in reader.read()} == {0: (2, 19), 1: (2, 4)}
    other = CheckpointFolder(open_files(location))
    assert other.read(0) == SliceCheckpoint(0, 2, offset=19, done=True)
    assert other.read_attempt(0, 1) == SliceCheckpoint(0, 1, offset=19)
    assert other.read_attempt(9, 1) is None
    assert other.read(9) is None


# What only a bucket does.
bucket_only = pytest.mark.parametrize("bucket", SCHEMES, indirect=True)


@bucket_only
def test_the_log_of_a_driver_that_ran_here_lies_here_and_goes_with_the_folder(files, tmp_path):
    folders = JobFolders(files, logs=tmp_path)
    folder = folders.of("bf_1")
    folder.write_specification({})
    folder.driver_log.write_text("first\nlast\n")
    assert folder.path is None
    assert folder.driver_log == tmp_path / "bf_1.log"
    assert folder.read_log_tail() == "first\nlast"
    with folder.scratch() as scratch:
        assert scratch.parent.is_dir()
    assert not scratch.parent.exists()
    assert folders.remove("bf_1")
    assert not folder.exists()
    assert not folder.driver_log.exists()


@bucket_only
def test_a_bucket_that_is_away_for_a_moment_costs_nothing(files: Files, bucket: BucketFolder) -> None:
    bucket.proxy.faults += [Fault("PUT", "", "503"), Fault("GET", "prefix", "429"), Fault("GET", "", "503")]
    files.write("a", b"1")
    assert files.list() == ["a"]
    assert files.read("a") == b"1"


@bucket_only
@pytest.mark.parametrize("kind", ["lost", "cut"])
def test_a_line_whose_answer_got_lost_is_in_the_log(files, bucket, kind, reopen):
    bucket.proxy.faults.append(Fault("PUT", "", kind))
    files.append("log", b"1\n")
    files.append("log", b"2\n")
    # What may be there twice is the line whose fate nobody knew; none is gone and none is out of order.
    assert reopen().read_log("log").splitlines() in ([b"1", b"2"], [b"1", b"1", b"2"])


@bucket_only
@pytest.mark.parametrize("kind", ["lost", "cut"])
def test_a_change_whose_answer_got_lost_is_made_once_more_on_what_is_there(files, bucket, kind):
    seen: list[bytes | None] = []

    def set_to_five(found: bytes | None) -> bytes:
        seen.append(found)
        return b"5"

    bucket.proxy.faults.append(Fault("PUT", "", kind))
    assert files.change("n", set_to_five)
    assert seen == [None, b"5"]


@bucket_only
@pytest.mark.parametrize("status", ["409", "412"])
def test_a_change_that_a_store_refuses_is_made_of_what_is_there(files, bucket, status):
    files.write("n", b"1")
    bucket.proxy.faults.append(Fault("PUT", "", status))
    assert files.change("n", lambda found: (found or b"") + b"2")
    assert files.read("n") == b"12"


@bucket_only
def test_a_file_that_a_store_never_lets_change_is_an_error(files: Files, bucket: BucketFolder) -> None:
    bucket.proxy.faults.append(Fault("PUT", "", "412", count=1000))
    with pytest.raises(FolderUnavailableError, match="Other processes keep changing"):
        files.change("n", lambda _: b"3")
    with pytest.raises(FolderUnavailableError, match="Other processes keep writing"):
        files.append("log", b"1\n")


@bucket_only
def test_of_two_who_make_the_same_change_at_once_both_count(files: Files, reopen: Callable[[], Files]) -> None:
    """Another process may write the very bytes that this one was about to write."""
    seen: list[bytes | None] = []

    def count_up_late(found: bytes | None) -> bytes:
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


@bucket_only
def test_a_bucket_that_does_not_answer_is_an_error_of_the_folder_and_nothing_is_lost(files, bucket):
    files.write("a", b"1")
    files.append("log", b"1\n")
    files.folder("below").write("b", b"1")

    def fault_of(name: str) -> Exception | None:
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
def test_a_bucket_that_never_answers_is_not_waited_for_forever(bucket: BucketFolder, monkeypatch) -> None:
    monkeypatch.setenv("AWS_TIMEOUT", "1s")
    files = open_files(bucket.location)
    bucket.proxy.faults.append(Fault("PUT", "", "slow", count=100))
    with pytest.raises(FolderUnavailableError, match="a: "):
        files.write("a", b"1")


@bucket_only
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


@bucket_only
def test_a_listing_of_several_pages_is_read_to_its_end_or_is_an_error(files: Files, bucket: BucketFolder) -> None:
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


@bucket_only
def test_a_folder_that_another_process_is_removing_too_is_removed_whole(files, bucket, monkeypatch):
    below = files.folder("below")
    names = [f"{number:02d}" for number in range(30)]
    bucket.fill([f"below/{name}" for name in names])
    listed = type(files)._find

    def find(self: Files, start: str) -> Iterator[object]:
        found = list(listed(self, start))
        # Between the listing and the removal.
        for name in names[::3]:
            open_files(str(below)).remove(name)
        yield from found

    with monkeypatch.context() as patched:
        patched.setattr(type(files), "_find", find)
        assert files.take_away("below", lambda: False)
    assert not below.exists()


@bucket_only
def test_an_upload_in_several_parts_is_whole_or_not_there(files, bucket, monkeypatch):
    monkeypatch.setattr("connectors.object_store.bucket._ONE_REQUEST_BYTES", 6 * MB)
    # Amazon takes no smaller parts.
    monkeypatch.setattr("connectors.object_store.bucket._PART_BYTES", 5 * MB)
    content = bytes(range(256)) * 4096 * 12

    def write() -> None:
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


@bucket_only
def test_a_file_that_was_replaced_while_it_is_read_is_an_error_and_no_mixture(files: Files) -> None:
    files.write("a", b"1" * 100)
    with files.reader("a") as file:
        assert file.read(50) == b"1" * 50
        files.write("a", b"2" * 100)
        with pytest.raises(FolderUnavailableError, match="a: "):
            file.read(50)


@bucket_only
@pytest.mark.parametrize("number", [2, 4])
def test_a_bucket_that_knows_no_conditions_is_found_and_one_that_does_is_left_as_it_was(files, bucket, number):
    files.check()
    assert files.list() == []
    # The second write of each pair is one that must be refused.
    bucket.proxy.faults += [
        Fault("PUT", "probe", "pass", count=number - 1),
        Fault("PUT", "probe", "501", count=9),
    ]
    with pytest.raises(FolderUnavailableError, match=r"conditional writes \(If-.*Two processes could overwrite"):
        files.check()
    bucket.proxy.faults.clear()
    assert files.list() == []


RIGHTS = {
    "gs": r"roles/storage\.objectUser on the bucket",
    "s3": "s3:PutObject, s3:DeleteObject and s3:ListBucket on",
}


@bucket_only
def test_who_may_not_is_told_the_right_and_who_has_no_bucket_is_told_that(
    files: Files, bucket: BucketFolder
) -> None:
    scheme = bucket.location.partition("://")[0]
    bucket.proxy.faults.append(Fault("GET", "", "403", count=9))
    with pytest.raises(FolderUnavailableError, match=RIGHTS[scheme]) as refused:
        files.read("a")
    assert refused.value.details.get("role") == {"gs": "roles/storage.objectUser"}.get(scheme)
    with pytest.raises(FolderUnavailableError, match="Create the bucket"):
        open_files(f"{scheme}://no-such-bucket/jobs").write("a", b"")


@pytest.mark.parametrize("wrong", ["", "B/x", "a b/c", "bucket/a?b", "bucket/a//b", "bucket/../b"])
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_what_is_no_bucket_is_refused(scheme: str, wrong: str) -> None:
    with pytest.raises(SettingsError, match="is not s3://bucket/prefix or gs://bucket/prefix"):
        open_files(f"{scheme}://{wrong}")


@bucket_only
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
