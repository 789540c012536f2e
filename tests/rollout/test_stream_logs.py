"""The end of a stream's log, wherever its newest process writes."""

from contextlib import closing
from pathlib import Path
from socket import gethostname

import pytest

from jobs.store import JobStore, open_store
from model.stream_options import StreamKind
from model.stream_record import StreamHome, StreamRecord, StreamState
from rollout import stream_logs
from rollout.stream_logs import StreamLogs


@pytest.fixture
def store(tmp_path):
    with closing(open_store(f"sqlite:///{tmp_path / 'jobs.db'}")) as store:
        store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
        store.take_streams("agent", limit=1, lease_seconds=60)
        yield store


def report(store: JobStore, home: Path, instance_id: str, host: str | None = None) -> StreamRecord:
    place = StreamHome(host or gethostname(), str(home / "streams" / "backup"))
    return store.report_stream("backup", "agent", StreamState.RUNNING, instance_id=instance_id, home=place)


def write(home: Path, name: str, text: str) -> None:
    (home / "logs").mkdir(exist_ok=True)
    (home / "logs" / name).write_text(text)


def test_a_process_that_was_a_standby_has_a_log_of_its_own_until_the_next_one(store, tmp_path):
    logs = StreamLogs(tmp_path)
    write(tmp_path, "backup.log", "old\n")
    write(tmp_path, "backup.in_2.log", "new\n")
    assert logs.read_end(report(store, tmp_path, "in_2"), tail_lines=100) == b"new\n"
    assert logs.read_end(report(store, tmp_path, "in_3"), tail_lines=100) == b"old\n"
    logs.remove_standbys("backup", keep=["in_2"])
    assert logs.of_standby("backup", "in_2").exists()
    logs.remove_standbys("backup", keep=[])
    assert not logs.of_standby("backup", "in_2").exists()


def test_another_machine_s_log_is_named_and_one_of_a_shared_home_is_read(store, tmp_path):
    write(tmp_path, "backup.log", "a line\n")
    elsewhere = report(store, tmp_path, "in_1", host="node-7")
    said = StreamLogs(tmp_path).read_end(elsewhere, tail_lines=100).decode()
    assert said == f"backup logs on node-7, in {tmp_path / 'logs'}.\n"
    (tmp_path / "streams" / "backup" / "instances" / "in_1").mkdir(parents=True)
    assert StreamLogs(tmp_path).read_end(elsewhere, tail_lines=100) == b"a line\n"


def test_a_log_that_is_removed_while_it_is_looked_for_is_empty(store, tmp_path, monkeypatch):
    record = report(store, tmp_path, "in_1")
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert StreamLogs(tmp_path).read_end(record, tail_lines=100) == b""


def test_a_log_that_a_process_fills_for_years_stays_short(store, tmp_path, monkeypatch):
    monkeypatch.setattr(stream_logs, "MAX_LOG_BYTES", 1000)
    logs, record = StreamLogs(tmp_path), report(store, tmp_path, "in_1")
    write(tmp_path, "backup.log", "")
    # As a child has it: opened once, to append.
    with logs.of("backup").open("ab", buffering=0) as written:
        for number in range(500):
            written.write(f"line {number}\n".encode())
            logs.rotate("backup", "in_1")
    assert sum(path.stat().st_size for path in (tmp_path / "logs").iterdir()) < 2100
    lines = logs.read_end(record, tail_lines=1000).decode().splitlines()
    assert lines == [f"line {number}" for number in range(500 - len(lines), 500)]
    assert len(lines) > 90, "the older log's lines come before the newest ones"
    assert logs.read_end(record, tail_lines=95).decode().splitlines() == lines[-95:]


def test_a_log_that_can_t_be_copied_is_begun_again(store, tmp_path, monkeypatch):
    monkeypatch.setattr(stream_logs, "MAX_LOG_BYTES", 10)
    monkeypatch.setattr(stream_logs.shutil, "copyfile", lambda *_: Path("/proc/none/none").read_bytes())
    write(tmp_path, "backup.log", "a long line of a log\n")
    StreamLogs(tmp_path).rotate("backup", None)
    assert [path.read_text() for path in (tmp_path / "logs").iterdir()] == [""]
    assert report(store, tmp_path, "in_1").instance_id == "in_1"
