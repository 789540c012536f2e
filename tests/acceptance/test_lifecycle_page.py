"""docs/lifecycle.md: its ten lines, run as they stand, and its picture."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.processes import free_port
from cli.running import RunningUp, record_of
from connectors.spark.connect import ConnectServer
from tests.rollout.wheels import build_release

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(600)]
PAGE = (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text()
# The ports of 'refeed up' are the test's, and its end is not one of the page's lines.
FRAME = """
refeed() {{
  # In the background it is the job itself, so that the signal at the end reaches it.
  if [ "$1" = up ]; then exec "{python}" -m cli.main "$@" --port {port} --pubsub-port {pubsub_port}; fi
  "{python}" -m cli.main "$@"
}}
trap 'kill $(jobs -p); wait' EXIT
{lines}
# The stream has just been started again: what waits is archived within seconds.
for _ in $(seq 60); do
  refeed query "SELECT CAST(data AS STRING) AS data FROM backup.messages" --json > archived.json
  if [ -s archived.json ]; then break; fi
  sleep 3
done
"""


def lines_of_the_page() -> list[str]:
    (block,) = re.findall(r"^## Ten lines$.*?^```sh$\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(block).splitlines()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
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


def test_the_ten_lines_do_what_the_page_says(home: Path, tmp_path: Path) -> None:
    lines = lines_of_the_page()
    assert len(lines) == 10
    build_release(tmp_path, "0.2.0", {})
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("REFEED_", "PUBSUB_"))}
    environment = {**plain, "REFEED_HOME": str(home), "REFEED_BACKUP_BATCH_SECONDS": "0.3"}
    script = FRAME.format(port=free_port(), pubsub_port=free_port(), python=sys.executable, lines="\n".join(lines))
    ran = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    said = f"{ran.stdout}\n{ran.stderr}\n{(tmp_path / 'up.log').read_text()}"
    assert ran.returncode == 0, said
    assert "version 0.1.0 becomes 0.2.0" in ran.stdout
    assert "There is a way back." in ran.stdout
    assert "INCONCLUSIVE" in ran.stdout, said
    assert re.search(r"^up_\w+ .*ROLLED_BACK", ran.stdout, re.MULTILINE), said
    assert "backup  DRAINED" in ran.stdout
    archived = [json.loads(line) for line in (tmp_path / "archived.json").read_text().splitlines()]
    assert archived == [{"data": '"first"'}], "once, as JSON"
    assert "all stopped" in (tmp_path / "up.log").read_text()
