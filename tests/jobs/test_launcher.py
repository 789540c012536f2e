"""How local drivers end; ``tests/contract/test_launchers.py`` has what all launchers keep to, on a real Spark."""

from jobs.launcher import _Processes
from model.process import DataprocBatch
from tests.waiting import wait_until


def test_a_driver_lives_until_it_ends_by_a_code_or_a_signal(tmp_path):
    processes = _Processes()
    sleeping = processes.start(["sleep", "60"], {}, tmp_path / "log")
    assert processes.exit_reason(sleeping) is None
    processes.kill(sleeping)
    assert (processes.exit_reason(sleeping) or "").endswith("was ended by signal SIGKILL.")
    failing = processes.start(["sh", "-c", "exit 3"], {}, tmp_path / "log")
    wait_until(lambda: processes.exit_reason(failing) is not None, "the driver ends")
    assert (processes.exit_reason(failing) or "").endswith("ended with code 3.")
    assert "REFEED_LAUNCHER" in (processes.exit_reason(DataprocBatch("projects/p/locations/r/batches/b")) or "")
