import socket
import subprocess
import sys
import time

import pytest

from streams.probe import find_fault
from streams.status import StatusFile


@pytest.fixture
def status(tmp_path, monkeypatch):
    monkeypatch.setenv("REFEED_HOME", str(tmp_path))
    (tmp_path / "streams" / "backup").mkdir(parents=True)
    return StatusFile(tmp_path / "streams" / "backup" / "status.json")


def test_a_stream_that_reports_from_here_is_alive(status):
    status.write(state="running")
    done = subprocess.run([sys.executable, "-m", "streams.probe", "backup"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_stream_that_never_reported_or_fell_silent_is_not(status):
    host = socket.gethostname()
    assert "not there" in str(find_fault("backup", host=host, now=time.time()))
    status.write(state="running")
    assert "old" in str(find_fault("backup", host=host, now=time.time() + 61))


def test_a_report_of_the_pod_before_says_nothing_of_this_one(status):
    status.write(state="running")
    assert "another-pod" in str(find_fault("backup", host="another-pod", now=time.time()))
