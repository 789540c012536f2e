"""Google's Node client against the local server: another language's gRPC, protobuf and habits."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from local.server import PubSubServer

pytestmark = pytest.mark.cloud

CLIENT = Path(__file__).with_name("node_client")
FILES = ("package.json", "package-lock.json", "client.js")


@pytest.fixture(scope="session")
def node_folder() -> Path:
    """The client with its packages, installed once for each state of the lock file."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node or npm is not installed")
    state = hashlib.sha256((CLIENT / "package-lock.json").read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refeed" / f"node-client-{state}"
    cache.parent.mkdir(parents=True, exist_ok=True)
    if not (cache / "node_modules").exists():
        # Installed beside its place, so that a run that was cut short leaves no half of it.
        with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
            for name in FILES:
                shutil.copy(CLIENT / name, folder)
            command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=150, check=False)
            if done.returncode:
                if "ENOTFOUND" in done.stderr or "EAI_AGAIN" in done.stderr or "ECONNREFUSED" in done.stderr:
                    pytest.skip("npm reaches no registry")
                pytest.fail(f"npm ci failed: {done.stderr[-2000:]}")
            shutil.rmtree(cache, ignore_errors=True)
            shutil.move(folder, cache)
            Path(folder).mkdir()
    shutil.copy(CLIENT / "client.js", cache)
    return cache


def test_googles_node_client_publishes_subscribes_filters_and_orders(node_folder: Path, tmp_path: Path) -> None:
    with PubSubServer(tmp_path) as server:
        done = subprocess.run(
            ["node", "client.js"],
            cwd=node_folder,
            env={**os.environ, "PUBSUB_EMULATOR_HOST": server.emulator_host},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        left = server.read_stats()["projects/shop/subscriptions/orders"]["undelivered_messages"]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "uniqueIds": 501,
        "seen": 500,
        "redelivered": 50,
        "dataAsSent": True,
        "publishTimeIsNow": True,
        "ordered": True,
        "missing": 5,
    }
    assert left == 0
