"""A warm Spark Connect server on loopback: started once, found again by later commands."""

import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

import grpc

from connectors.spark.environment import network_conf, without_other_spark
from connectors.spark.home import find_spark_submit
from connectors.spark.session import jvm_options
from model.errors import LaunchError
from model.process import Process

_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_START_SECONDS: Final = 90.0
_STOP_SECONDS: Final = 10.0
_HEALTH_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.1
# The server takes it from its environment, where ``ps`` does not show it.
_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  a variable's name

_CONF: Final[Mapping[str, str]] = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Two backfills side by side share the cores instead of queueing.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.log.level": "WARN",
}


class ConnectServer:
    """One Spark Connect server of a home; kept in ``<folder>/connect.json`` so that it outlives who started it.

    A service that restarts finds the server its running jobs depend on. The server listens on 127.0.0.1 only, and
    requires a token, because a client of it can run any code as this user.
    ``environment`` is that of :func:`connectors.spark.session.spark_environment`.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        *,
        master: str = "local[2]",
        driver_memory: str = "1g",
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._master = master
        self._driver_memory = driver_memory
        self._conf = conf or {}
        self._record = folder / "connect.json"
        self._started: subprocess.Popen[bytes] | None = None
        self._is_unwanted = threading.Event()
        self.log = folder / "connect.log"

    def start(self) -> str:
        """Return the server's address with its token, started and answering; starts it at most once.

        Several processes may call this at once: one starts it, the others wait. Takes 3 to 7 seconds when
        it has to be started.

        Raises:
            LaunchError: it did not answer within 90 seconds, or ended; the message ends with its last lines.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._is_unwanted.clear()
        with self._locked():
            if (url := self.url()) is not None:
                return url
            self._end()
            port, token = _free_port(), secrets.token_urlsafe()
            self._launch(port, token)
            self._wait_until_ready(port)
            self._warm_up(url := _render_url(port, token))
            return url

    def url(self) -> str | None:
        """Return the address of the server if it runs and answers, else None; takes up to 2 seconds."""
        found = self._read_record()
        if found is None:
            return None
        process, port, token = found
        return _render_url(port, token) if process.is_alive and _answers(port, _HEALTH_SECONDS) else None

    def stop(self) -> None:
        """End the server, also one that another process started; its jobs fail. None running is no error.

        A :meth:`start` under way in another thread gives up at once.
        """
        self._is_unwanted.set()
        if self._folder.exists():
            with self._locked():
                self._end()

    def _launch(self, port: int, token: str) -> None:
        conf = {
            **_CONF,
            **network_conf(self._master),
            "spark.driver.extraJavaOptions": jvm_options(),
            **self._conf,
            "spark.connect.grpc.binding.port": str(port),
        }
        command = [str(find_spark_submit()), "--class", _CLASS, "--master", self._master]
        command += ["--driver-memory", self._driver_memory, "--name", "refeed-connect"]
        for key, value in conf.items():
            command += ["--conf", f"{key}={value}"]
        command += ["--conf", f"spark.sql.warehouse.dir={self._folder / 'warehouse'}", "spark-internal"]
        try:
            with self.log.open("wb") as output:
                self._started = subprocess.Popen(  # noqa: S603 - the command is ours
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._folder,
                    env={**without_other_spark(os.environ), **self._environment, _TOKEN: token},
                    start_new_session=True,
                )
        except OSError as exc:
            raise LaunchError(f"The Spark Connect server could not be started: {exc}") from exc
        process = Process.of(self._started.pid)
        if process is not None:
            temporary = self._record.with_suffix(".new")
            temporary.unlink(missing_ok=True)
            temporary.touch(mode=0o600)
            temporary.write_text(json.dumps({**asdict(process), "port": port, "token": token}))
            temporary.replace(self._record)

    def _wait_until_ready(self, port: int) -> None:
        def is_ready() -> bool:
            if self._started is not None and self._started.poll() is not None:
                raise LaunchError(f"The Spark Connect server ended at once; {self._last_lines()}")
            return _listens(port) and _answers(port, _HEALTH_SECONDS)

        self._wait(is_ready, "answer")

    def _wait(self, is_done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not is_done():
            if self._is_unwanted.is_set():
                self._end()
                raise LaunchError("The Spark Connect server was stopped while it started.")
            if time.monotonic() > deadline:
                self._end()
                lines = self._last_lines()
                raise LaunchError(f"The Spark Connect server did not {what} in {_START_SECONDS:.0f} s; {lines}")
            time.sleep(_POLL_SECONDS)

    def _warm_up(self, url: str) -> None:
        """Run a first job, which takes five seconds more than any after it.

        Raises:
            LaunchError: the server does not run jobs.
        """
        with self.log.open("ab") as output:
            warming = subprocess.Popen(
                # Not -m: workers import what they are sent by its module's name, which must not be __main__.
                [sys.executable, "-c", "from connectors.spark.warmup import warm_up; warm_up()"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**without_other_spark(os.environ), **self._environment, "SPARK_REMOTE": url},
            )
        try:
            self._wait(lambda: warming.poll() is not None, "run a first job")
        finally:
            warming.kill()
            code = warming.wait()
        if code != 0:
            self._end()
            raise LaunchError(f"The Spark Connect server does not run jobs; {self._last_lines()}")

    def _end(self) -> None:
        found = self._read_record()
        if found is not None:
            process = found[0]
            process.signal_group(signal.SIGTERM)
            deadline = time.monotonic() + _STOP_SECONDS
            while process.is_alive and time.monotonic() < deadline:
                if self._started is not None:
                    self._started.poll()
                time.sleep(_POLL_SECONDS)
            process.signal_group(signal.SIGKILL)
        if self._started is not None:
            with suppress(subprocess.TimeoutExpired):
                self._started.wait(_STOP_SECONDS)
            self._started = None
        self._record.unlink(missing_ok=True)

    def _read_record(self) -> tuple[Process, int, str | None] | None:
        try:
            found = json.loads(self._record.read_text())
            process = Process(found["pid"], found["start_ticks"], found["boot_id"])
            # An earlier release's server has no token.
            return process, int(found["port"]), found.get("token")
        except (OSError, ValueError, KeyError):
            return None

    def _last_lines(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-5:] if self.log.exists() else []
        return f"{self.log} ends with: " + " | ".join(lines)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "connect.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _render_url(port: int, token: str | None) -> str:
    # As a header of every call: with its own parameter for tokens, Spark's client wants TLS on 127.0.0.1.
    return f"sc://127.0.0.1:{port}" + (f"/;authorization=Bearer%20{token}" if token else "")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(_HEALTH_SECONDS)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _answers(port: int, seconds: float) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=seconds)
        except grpc.FutureTimeoutError:
            return False
        return True
