import json
import subprocess
import sys
from pathlib import Path

_LOG_ONE_LINE = (
    "import structlog; from cli.services import configure_logging; configure_logging(); "
    "structlog.get_logger('backup').warning('pull_failed', subscription='s'); print('went on')"
)


def log_one_line(stderr) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _LOG_ONE_LINE],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=True,
        timeout=60,
    )


def test_a_log_line_is_one_json_object():
    (line,) = log_one_line(subprocess.PIPE).stderr.splitlines()
    fields = json.loads(line)
    assert fields["event"] == "pull_failed"
    assert fields["level"] == "warning"
    assert fields["subscription"] == "s"
    assert fields["timestamp"].endswith("Z")


def test_a_log_on_a_full_disk_stops_nobody():
    with Path("/dev/full").open("w") as full:
        assert log_one_line(full).stdout == "went on\n"
