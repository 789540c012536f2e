"""docs/lifecycle.md and docs/how-to/update.md: their lines, run as they stand."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from cli.processes import free_port
from cli.running import RunningUp, record_of
from connectors.spark.connect import ConnectServer
from tests.rollout.wheels import build_release
from tests.worlds.processes import plain_environment

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(1500)]
DOCS = Path(__file__).parents[2] / "docs"
# The ports of 'refeed up' are the test's, and its end is not one of the page's lines.
FRAME = """
refeed() {{
  # In the background it is the job itself, so that the signal at the end reaches it.
  if [ "$1" = up ]; then exec "{python}" -m cli.main "$@" --port {port} --pubsub-port {pubsub_port}; fi
  "{python}" -m cli.main "$@"
}}
trap 'kill $(jobs -p); wait' EXIT
{lines}
"""
UNTIL_ARCHIVED = """
# The stream has just been started again: what waits is archived within seconds.
for _ in $(seq 60); do
  refeed query "SELECT CAST(data AS STRING) AS data FROM backup.messages" --json > archived.json
  if [ -s archived.json ]; then break; fi
  sleep 3
done
"""


# The page starts everything in a terminal of its own, and its checkout is not the test's folder.
BEFORE_UPDATE = """
python() {{ [ "$*" = "-m hatchling build -t wheel" ]; }}
refeed up > up.log 2>&1 &
until refeed describe stream/backup; do sleep 1; done
"""
# The publisher is the newest job; all that it published is archived soon.
AFTER_UPDATE = """
kill $!
for _ in $(seq 60); do
  {count} --json > counted.json
  if [ "$(tr -dc '0-9,' < counted.json | tr , '\\n' | sort -u | wc -l)" = 1 ]; then break; fi
  sleep 3
done
"""


def lines_of_the_page() -> list[str]:
    page = (DOCS / "lifecycle.md").read_text()
    (block,) = re.findall(r"^## Example$.*?^```sh$\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return str(block).splitlines()


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    yield home
    # Where the test failed, nobody else would end these; 'up' first, which would start them again.
    left = RunningUp.read(record_of(home))
    if left is not None:
        if left.up.is_alive:
            os.kill(left.up.pid, signal.SIGKILL)
        for _, process in left.left():
            process.signal_group(signal.SIGKILL)
    ConnectServer(home / "run", {}).stop()


def run_lines(lines: list[str], home: Path, folder: Path, *, seconds: float) -> str:
    """Run lines of a page in ``folder``, and return what they and 'refeed up' said."""
    environment = plain_environment(REFEED_HOME=str(home), REFEED_BACKUP_BATCH_SECONDS="0.3")
    script = FRAME.format(port=free_port(), pubsub_port=free_port(), python=sys.executable, lines="\n".join(lines))
    ran = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    said = f"{ran.stdout}\n{ran.stderr}\n{(folder / 'up.log').read_text()}"
    assert ran.returncode == 0, said
    return said


def test_the_ten_lines_do_what_the_page_says(home, tmp_path):
    lines = lines_of_the_page()
    assert len(lines) == 10
    build_release(tmp_path, "0.2.0", {})
    lines += UNTIL_ARCHIVED.splitlines()
    said = run_lines(lines, home, tmp_path, seconds=500)
    assert "version 0.1.0 becomes 0.2.0" in said
    assert "The update can be rolled back." in said
    assert "update_inconclusive" in said, said
    assert re.search(r"^up_\w+ .*ROLLED_BACK", said, re.MULTILINE), said
    assert "backup  DRAINED" in said
    archived = [json.loads(line) for line in (tmp_path / "archived.json").read_text().splitlines()]
    assert archived == [{"data": "first"}], "once, as it was written"
    assert "all stopped" in (tmp_path / "up.log").read_text()


def test_the_page_on_updates_does_what_it_says(home, tmp_path):
    page = (DOCS / "how-to" / "update.md").read_text()
    blocks = re.findall(r"^```sh$\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (count,) = [block.rstrip() for block in blocks if block.startswith("refeed query")]
    build_release(tmp_path / "dist", "0.1.0", {})
    lines = [BEFORE_UPDATE.format(), *blocks, AFTER_UPDATE.format(count=count)]
    said = run_lines(lines, home, tmp_path, seconds=1400)
    # From STABLE to the line that says so, one update after the other.
    ends = re.findall(r"^up_\w+ of backup: (\w+)$", said, re.MULTILINE)
    assert ends == ["STABLE", "STABLE", "ROLLED_BACK"], said
    shown = re.findall(r"^  (options|release)  +(.*)$", said, re.MULTILINE)
    assert ("options", "slots 2") in shown
    assert shown[-2] == ("options", "the deployment's settings")
    # Without an agent nobody knows its number.
    said_release = (shown[-1][0], shown[-1][1].removeprefix(f"{metadata.version('refeed')}, "))
    assert said_release == ("release", "the installed version")
    assert re.search(r"^up_\w+ +backup +STABLE +installed +same +slots= ", said, re.MULTILINE), said
    # One row, whose three numbers are the same: each message once.
    (counted,) = [json.loads(line) for line in (tmp_path / "counted.json").read_text().splitlines()]
    assert counted["messages"] == counted["ids"] == counted["newest"] > 0
    assert "all stopped" in said
