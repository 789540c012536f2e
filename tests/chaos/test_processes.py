import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rollout.child import Children
from tests.chaos.processes import Part, StuckError, descendants, find_faketime, skewed

LOOK = """
import subprocess, sys, threading, time
time.sleep(0.1)
threading.Event().wait(0.1)
print(time.time(), flush=True)
subprocess.run([sys.executable, "-c", "import time; print(time.time())"], check=True)
"""


def test_a_clock_is_skewed_in_one_process_which_still_sleeps_and_waits():
    library = find_faketime()
    if library is None:
        pytest.skip("libfaketime is not installed")
    found = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, **skewed(library, "-5h")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    own, below = map(float, found.stdout.split())
    assert own == pytest.approx(time.time() - 5 * 3600, abs=120)
    assert below == pytest.approx(time.time(), abs=120)


def test_descendants_are_found_by_their_programs_names():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = {pid: name for name, pids in descendants(os.getpid()).items() for pid in pids}
        assert found[child.pid] == Path(f"/proc/{child.pid}/comm").read_text().strip()


def test_nothing_is_started_again_once_its_run_is_over(tmp_path):
    over = threading.Event()
    with Children() as children:
        part = Part(
            "part",
            [sys.executable, "-c", "input()"],
            home=tmp_path,
            environment=os.environ,
            children=children,
            is_ready=lambda _: True,
            over=over,
        )
        part.start()
        part.kill()
        over.set()
        with pytest.raises(StuckError, match="part: the run is over"):
            part.start()
        assert not part.is_running
