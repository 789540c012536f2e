import signal
import subprocess
import sys
from pathlib import Path

from connectors.worker import WorkerMarks

DIES = """
import os, signal, sys
from pathlib import Path
from connectors.worker import WorkerMarks
marks = WorkerMarks(Path(sys.argv[1]))
with marks.mark("past"):
    pass
try:
    with marks.mark("failed"):
        raise ValueError
except ValueError:
    pass
def die():
    print("ready", flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGSEGV)

if sys.argv[2] == "within":
    with marks.mark("now"):
        die()
die()
"""


FREEZES = """
import gc
from connectors.worker import freeze_loaded
freeze_loaded()
frozen = gc.get_freeze_count()
assert frozen > 0
later = [[]]
freeze_loaded()
assert gc.get_freeze_count() <= frozen
later[0].append(later)
del later
assert gc.collect() > 0
"""


def start_worker(folder: Path, where: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    worker = subprocess.Popen([sys.executable, "-c", DIES, str(folder), where], text=True, **pipes)
    assert worker.stdout.readline() == "ready\n"
    return worker


def test_what_is_loaded_is_frozen_once_and_garbage_is_still_collected():
    # In a process of its own: another test's process may have frozen and thawed before.
    subprocess.run([sys.executable, "-c", FREEZES], check=True, timeout=60)


def test_a_worker_that_died_in_a_marked_block_is_known_to_the_others_and_one_beside_it_is_not(tmp_path):
    marks = WorkerMarks(tmp_path)
    workers = [start_worker(tmp_path, where) for where in ("within", "beside")]
    assert marks.lethal() == frozenset()
    for worker in workers:
        worker.communicate("\n")
        assert worker.returncode == -signal.SIGSEGV
    with marks.mark("mine"):
        assert marks.lethal() == frozenset({"now"})
    # One that starts later knows it too, and what says nothing is removed.
    assert WorkerMarks(tmp_path).lethal() == frozenset({"now"})
    assert len(list(tmp_path.iterdir())) == 3
