"""The probe of an agent's container, by the sign of life that the agent leaves in the home."""

import os
import socket
import subprocess
import sys
import time

from rollout.probe import beat, find_fault


def test_an_agent_that_looked_lately_is_alive(tmp_path):
    beat(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "rollout.probe"],
        env={**os.environ, "REFEED_HOME": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_agent_that_never_looked_or_fell_silent_is_not(tmp_path):
    host = socket.gethostname()
    assert "not there" in str(find_fault(tmp_path, host=host, now=time.time()))
    beat(tmp_path)
    assert find_fault(tmp_path, host=host, now=time.time()) is None
    assert "61 s old" in str(find_fault(tmp_path, host=host, now=time.time() + 61))
    assert "not there" in str(find_fault(tmp_path, host="another-pod", now=time.time()))
    # It looks again.
    past = time.time() - 100
    os.utime(tmp_path / "agents" / host, (past, past))
    beat(tmp_path)
    assert find_fault(tmp_path, host=host, now=time.time()) is None
