"""``refeed up`` as a person runs it: one terminal, paste a line, work, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from cli.processes import free_port
from connectors.spark.connect import ConnectServer
from model.process import Process
from rollout.child import Child
from streams.folder import read_newest_status
from tests.reporting.orders import Orders
from tests.waiting import wait_until
from tests.worlds.processes import plain_environment

pytestmark = [pytest.mark.kills, pytest.mark.java, pytest.mark.timeout(600)]


class Terminal:
    """``refeed up`` on a home of its own, and commands beside it with the lines it prints in their environment."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.collector_port = free_port()
        self.ports = ["--port", str(free_port()), "--pubsub-port", str(free_port())]
        self.ports += ["--collector-port", str(self.collector_port)]
        self.environment = plain_environment(
            REFEED_HOME=str(self.home),
            REFEED_BACKUP_BATCH_SECONDS="0.3",
            REFEED_COLLECTOR_TOPICS="orders",
            REFEED_COLLECTOR_QUEUE_BYTES="10000000",
        )
        self.folder = folder
        self.up = self._child()

    def _child(self) -> Child:
        command = [sys.executable, "-m", "cli.main", "up", *self.ports]
        return Child("up", command, environment=self.environment, log=self.folder / "terminal.log")

    def start(self) -> None:
        """Start it, wait for the lines to paste and paste them."""
        self.up = self._child().start()
        before = self.up.log_tail(1000).count("export PUBSUB_EMULATOR_HOST=")
        self.up.wait_until(
            lambda: self.up.log_tail(1000).count("REFEED_API_URL=") > before, seconds=150, what="printed its lines"
        )
        for line in self.up.log_tail(1000).splitlines():
            if line.startswith("export "):
                self.environment |= dict(pair.split("=", 1) for pair in line.split()[1:])

    def refeed(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments],
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=self.folder,
        )

    def processes(self) -> dict[str, Process]:
        fields = json.loads((self.home / "run" / "up.json").read_text())["processes"]
        return {name: Process(**process) for name, process in fields.items()}

    def connect_server(self) -> Process:
        found = json.loads((self.home / "run" / "connect.json").read_text())
        return Process(found["pid"], found["start_ticks"], found["boot_id"])


@pytest.fixture
def terminal(tmp_path):
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.up.stop(seconds=60)
    # Where the test failed between a kill -9 and the next start, nobody else would end these.
    if (terminal.home / "run" / "up.json").exists():
        for process in terminal.processes().values():
            process.signal_group(signal.SIGKILL)
    ConnectServer(terminal.home / "run", {}).stop()


def count_archived(terminal: Terminal) -> int:
    done = terminal.refeed("query", "SELECT COUNT(*) AS n FROM backup.messages", "--json")
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["n"])


def view_ids(terminal: Terminal) -> set[str]:
    """The sales that people see; one that is there twice fails."""
    done = terminal.refeed("query", "SELECT CAST(id AS STRING) AS id FROM reporting.sales_view", "--json")
    # While nothing was ever staged there is no view.
    ids = [json.loads(line)["id"] for line in done.stdout.splitlines()]
    assert len(set(ids)) == len(ids)
    return set(ids)


def test_a_day_with_up(terminal):
    terminal.start()
    said = terminal.up.log_tail(1000)
    assert said.index("waiting for the Pub/Sub server") < said.index(
        "waiting for the backup stream to start Spark"
    )
    # Nothing that is pasted: commands on its home find it.
    for name in ("PUBSUB_EMULATOR_HOST", "REFEED_API_URL"):
        del terminal.environment[name]

    # Attach, publish, query, replay: what the README says.
    assert terminal.refeed("attach", "orders").returncode == 0
    lines = "".join(json.dumps({"topic": "orders", "data": {"n": n}}) + "\n" for n in range(50))
    assert terminal.refeed("publish", "-", text=lines).returncode == 0
    # A look is a command, which takes half a core for as long as it runs.
    wait_until(
        lambda: count_archived(terminal) == 50, seconds=60, every_seconds=1, why="50 messages in the archive"
    )
    sql = (
        "SELECT data, attributes, message_id, topic, publish_time FROM backup.messages "
        "WHERE _PARTITIONDATE >= '2020-01-01' AND _PARTITIONDATE < @to AND topic = 'orders'"
    )
    tomorrow = time.strftime("%Y-%m-%d", time.gmtime(time.time() + 86400))
    sql = sql.replace("2020-01-01", time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86400)))
    made = terminal.refeed(
        "backfill", "orders", "--query", sql, "-p", f"to:DATE:{tomorrow}", "--yes", "--watch", "--json"
    )
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["progress"]["published"] == 50

    # A process that dies is started again.
    backup = terminal.processes()["backup"]
    os.killpg(backup.pid, signal.SIGKILL)
    wait_until(lambda: terminal.processes()["backup"] != backup, seconds=30, why="another backup process")

    # What a killed 'up' leaves running is ended by the next one, which goes on where it was.
    left = terminal.processes()
    os.kill(terminal.up.pid, signal.SIGKILL)
    terminal.up.kill()
    assert any(process.is_alive for process in left.values())
    terminal.start()
    assert not any(process.is_alive for process in left.values())
    answer = httpx.post(f"http://127.0.0.1:{terminal.collector_port}/orders", json="after", timeout=10)
    assert answer.status_code == 202, answer.text
    wait_until(
        lambda: count_archived(terminal) == 51,
        seconds=60,
        every_seconds=1,
        why="one more, and nothing of the replay",
    )

    # A source that is added while all of it runs: staged, merged by the service, queried.
    source = "{topic: sales, message: shop.Order, key: id, event_time: updated_at}"
    Orders(terminal.home).publish(terminal.folder, f"sources: {{sales: {source}}}")
    wait_until(
        lambda: (read_newest_status(terminal.home, "pipeline-default") or {}).get("state") == "running",
        seconds=90,
        why="its stream runs",
    )
    sales = "".join(json.dumps({"topic": "sales", "data": {"id": n % 3}}) + "\n" for n in range(9))
    assert terminal.refeed("publish", "-", text=sales).returncode == 0
    wait_until(
        lambda: view_ids(terminal) == {"0", "1", "2"},
        seconds=90,
        every_seconds=1,
        why="each sale once, from staging",
    )
    merged = terminal.refeed("merge", "create", "--source", "sales", "--watch", "--json")
    assert merged.returncode == 0, merged.stderr
    assert json.loads(merged.stdout)["progress"]["newer"] == 3
    assert view_ids(terminal) == {"0", "1", "2"}

    # Ctrl-C drains, exits 0 and leaves nothing running.
    running = [*terminal.processes().values(), terminal.connect_server()]
    os.kill(terminal.up.pid, signal.SIGINT)
    wait_until(lambda: not terminal.up.is_running, seconds=60, why="everything drained")
    assert terminal.up.exit_code == 0, terminal.up.log_tail()
    assert [process for process in running if process.is_alive] == []
    assert "backup_drained" in (terminal.home / "logs" / "backup.log").read_text()
