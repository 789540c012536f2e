import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from tests import ending
from tests.ending import pytest_sessionstart, pytest_unconfigure
ending.SECONDS = 0.2
"""
LEFT = """
import threading

def hang():
    threading.Event().wait()

def test_it():
    threading.Thread(target=hang, name="the one that is left").start()
    assert {passes}
"""


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]


@pytest.mark.parametrize(("passes", "status"), [(True, 0), (False, 1)])
def test_a_thread_that_is_left_keeps_no_verdict_back(tmp_path: Path, passes: bool, status: int) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_left.py").write_text(LEFT.format(passes=passes))

    ended = subprocess.run(
        command(tmp_path),
        # Other plugins take seconds to import.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == status, ended.stderr
    assert ("1 passed" if passes else "1 failed") in ended.stdout
    assert "the one that is left" in ended.stderr
    assert "in hang" in ended.stderr


def test_a_run_in_the_background_can_be_interrupted_and_says_how_far_it_came(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_long.py").write_text(
        "import os, signal\ndef test_it(): pass\ndef test_long(): os.kill(os.getpid(), signal.SIGINT)\n"
    )

    ended = subprocess.run(
        # As a shell does for `command &`.
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command(tmp_path)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == pytest.ExitCode.INTERRUPTED
    assert "1 passed" in ended.stdout
