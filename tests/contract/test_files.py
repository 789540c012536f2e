"""What the shared files of a job keep to, on a disk and in a bucket."""

import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointFolder, CheckpointReader, SliceCheckpoint
from jobs.disk_files import DiskFiles
from jobs.files import open_files
from jobs.folder import Control, JobFolder, Order
from model.errors import FolderUnavailableError
from tests.worlds.bucket import SCHEMES
from tests.worlds.folders import bucket_folder


@pytest.fixture(params=["disk", *SCHEMES])
def bucket(request):
    """A folder of the test's own, None on a disk."""
    if request.param == "disk":
        yield None
        return
    with bucket_folder(request.param, request) as found:
        yield found


def test_a_folder_is_there_once_it_has_a_file_and_names_itself(files, location):
    assert not files.exists()
    assert files.list() == []
    files.make()
    files.write("a", b"1")
    assert files.exists()
    assert (str(files), files.name) == (location, location.rpartition("/")[2])
    assert (str(files.folder("b")), files.folder("b").name) == (f"{location}/b", "b")


def test_a_file_is_replaced_whole_and_seen_by_others_at_once(files, reopen):
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


def test_a_list_names_files_logs_and_folders_once(files):
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


def test_a_folder_or_bucket_that_is_away_has_no_versions_and_says_so(tmp_path, files):
    scheme = str(files).partition("://")[0]
    away = open_files(f"{scheme}://nowhere/tests" if files.path is None else str(tmp_path / "nowhere"))
    with pytest.raises(OSError, match="nowhere"):
        away.versions()


def test_of_many_who_change_a_file_none_loses_a_change(location, files):
    files.make()

    def count_up(found):
        return str(int(found or b"0") + 1).encode()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: open_files(location).change("n", count_up), range(12)))
    assert files.read("n") == b"12"
    assert not files.change("n", lambda _: None)
    assert files.read("n") == b"12"


def test_a_log_keeps_the_lines_of_all_who_write_in_the_order_of_each(location, files):
    files.make()

    def write(writer):
        mine = open_files(location)
        for n in range(5):
            mine.append("log", f"{writer} {n}\n".encode())

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    lines = files.read_log("log").decode().splitlines()
    assert len(lines) == 15
    for writer in range(3):
        assert [line for line in lines if line.startswith(f"{writer} ")] == [f"{writer} {n}" for n in range(5)]


def test_a_log_goes_on_behind_what_a_writer_before_left(files, reopen):
    files.append("log", b"1\n")
    reopen().append("log", b"2\n")
    files.append("log", b"3\n")
    assert reopen().read_log("log") == b"1\n2\n3\n"
    with pytest.raises(FileNotFoundError):
        reopen().read_latest("none")


def test_of_a_log_of_which_the_last_line_counts_the_rest_goes(files, reopen):
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


def test_a_folder_that_is_made_appears_whole_or_not_at_all(files, reopen):
    made = files.folder("selection")
    rows = pa.table({"n": list(range(1000))})

    def fill(*, fails=False, is_there=False):
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


def test_what_a_killed_maker_of_a_folder_has_written_is_removed_by_the_next(tmp_path):
    selection = DiskFiles(tmp_path / "selection")
    killed = selection.making()
    killed.__enter__().write("rows", b"1")
    with selection.making() as made:
        made.complete("manifest", b"2")
    assert [each.name for each in tmp_path.iterdir()] == ["selection"]


def test_of_two_who_make_a_folder_at_once_it_is_one_s_whole(files, reopen):
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


def test_a_log_that_a_full_disk_cuts_short_is_an_error(tmp_path):
    files = DiskFiles(tmp_path)
    with room_for(10):
        files.append("log", b"whole\n")
        with pytest.raises(FolderUnavailableError, match="log can't be written to: File too large"):
            files.append("log", b"cut short\n")
        with pytest.raises(FolderUnavailableError, match="File too large"):
            files.append_latest("log", b"nothing\n")


def test_a_file_that_a_full_disk_does_not_take_leaves_nothing_behind(tmp_path):
    files = DiskFiles(tmp_path)
    files.write("pace.json", b"before")
    with room_for(10), pytest.raises(FolderUnavailableError, match="can't be written to: File too large"):
        files.write("pace.json", b"longer than there is room for")
    assert files.read("pace.json") == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["pace.json"]


def test_a_folder_is_taken_away_whole_unless_it_is_wanted(files, reopen):
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


def test_a_job_is_steered_through_its_folder_and_no_late_order_counts(location):
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
    for number, epoch in ((12, 2), (3, 2), (1, 1)):
        driver.enter_slice(number, epoch)
    assert service.running_slices(2) == [3, 12]
    for _ in range(2):
        driver.leave_slice(12, 2)
    assert service.running_slices(2) == [3]
    assert service.read_outcome(2) is None
    assert service.read_fault(2) is None
    assert service.read_heartbeat(2) is None
    driver.beat(2)
    first = service.read_heartbeat(2)
    driver.beat(2)
    assert None is not first != service.read_heartbeat(2)


def test_an_order_is_obeyed_once_it_can_be_seen(location, monkeypatch):
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


def test_checkpoints_are_read_slice_by_slice_of_the_latest_attempt(location):
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
