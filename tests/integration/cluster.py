"""A Spark standalone cluster of processes on loopback, and Refeed installed on it from its wheel."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from cli.processes import free_port, is_listening
from rollout.child import Child, Children

ROOT = Path(__file__).resolve().parents[2]


def install_wheel(folder: Path) -> Path:
    """Return the Python of a new environment that has Refeed from its wheel, and our other packages from here."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir",
         str(folder), str(ROOT)],
        check=True, timeout=300,
    )  # fmt: skip
    (wheel,) = folder.glob("refeed-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True, timeout=120)
    python = folder / "venv" / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install", "--no-deps", "--no-index",
         str(wheel)],
        check=True, timeout=300,
    )  # fmt: skip
    # A path file of a path file is not read: the checkout that is installed here for editing stays out of sight.
    packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (packages / "here.pth").write_text(sysconfig.get_paths()["purelib"])
    return python


class Cluster:
    """A master and two workers of one core each, run by ``refeed spark`` of ``python``."""

    def __init__(self, folder: Path, children: Children, python: Path) -> None:
        self._folder = folder
        self._children = children
        self._python = python
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._start("master", "master", "--port", str(port)).wait_until(
            lambda: is_listening(f"127.0.0.1:{port}"), seconds=90, what="begun to listen"
        )
        self.workers = [self.add_worker(number) for number in range(2)]

    def add_worker(self, number: int) -> Child:
        worker = self._start(f"worker-{number}", "worker", self.master, "--memory", "1g")
        worker.wait_until(
            lambda: "Successfully registered with master" in worker.log_tail(200), seconds=90, what="registered"
        )
        return worker

    def _start(self, name: str, *arguments: str) -> Child:
        command = [str(self._python), "-m", "cli.main", "spark", *arguments]
        environment = {**os.environ, "PYTHONSAFEPATH": "1", "REFEED_HOME": str(self._folder / name)}
        log = self._folder / f"{name}.log"
        return self._children.start(Child(name, command, environment=environment, log=log))
