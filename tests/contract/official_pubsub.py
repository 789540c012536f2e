"""Google's own Pub/Sub emulator as a process, where it is installed."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.processes import free_port

HOW_TO_GET_IT = (
    "Google's Pub/Sub emulator is not installed, so nothing here is shown for it: "
    "'gcloud components install pubsub-emulator', or 'apt-get install google-cloud-cli-pubsub-emulator' from "
    "Google's package source, or set PUBSUB_EMULATOR_PATH to its program or its jar; it needs java"
)
_PROGRAM = "cloud-pubsub-emulator"
_START_SECONDS = 120.0


def find_official_emulator() -> list[str] | None:
    """Return the command that runs the emulator, or None where it or its Java is missing.

    PUBSUB_EMULATOR_PATH wins; then what is on PATH, then what stands beside gcloud.
    """
    named = os.environ.get("PUBSUB_EMULATOR_PATH")
    beside = [
        Path(gcloud).resolve().parents[1] / "platform" / "pubsub-emulator" / "bin" / _PROGRAM
        for gcloud in (shutil.which("gcloud"),)
        if gcloud is not None
    ]
    candidates = [named, shutil.which(_PROGRAM), *map(str, beside)]
    found = next((path for path in candidates if path is not None and Path(path).is_file()), None)
    if found is None or shutil.which("java") is None:
        return None
    return ["java", "-jar", found] if found.endswith(".jar") else [found]


@contextmanager
def running_official_emulator(command: list[str], folder: Path) -> Iterator[str]:
    """Give ``host:port`` of an emulator of its own, on loopback and in memory; it is ended with its Java."""
    port = free_port()
    log = folder / "emulator.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host=127.0.0.1", f"--port={port}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A small heap, and the plain collector: it shares a machine with the tests.
            env={**os.environ, "JAVA_TOOL_OPTIONS": "-Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"},
            cwd=folder,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _is_listening(port):
            assert process.poll() is None, f"the emulator has ended: {log.read_text()}"
            assert time.monotonic() < deadline, f"not within {_START_SECONDS:.0f} s: it listens: {log.read_text()}"
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_listening(port: int) -> bool:
    with socket.socket() as tried:
        tried.settimeout(1.0)
        return tried.connect_ex(("127.0.0.1", port)) == 0
