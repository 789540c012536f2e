"""Starts a job's driver: one protocol, for a warm Spark Connect server or spark-submit."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from connectors.spark.environment import without_other_spark
from model.errors import LaunchError
from model.process import Driver, Process, signal_name


@dataclass(frozen=True, slots=True)
class Launch:
    """A driver to start: a module that takes one JSON argument, and the file for its output.

    ``name`` is the job's id and ``attempt`` its number. Launching an attempt again may return the running driver.
    """

    name: str
    module: str
    argument: str
    log: Path
    attempt: int = 1


class Launcher(Protocol):
    """Starts drivers that outlive the process that started them, and checks whether they live.

    A launcher must accept drivers of other launchers: a service may restart with another one.
    """

    def prepare(self) -> None:
        """Prepare for quick launches; may take a minute, and may be called repeatedly.

        Raises:
            LaunchError: launches are not possible.
        """
        ...

    def launch(self, launch: Launch) -> Driver:
        """Start a driver and return; calls ``prepare`` first if needed.

        Raises:
            LaunchError: the driver could not be started.
        """
        ...

    def close(self) -> None:
        """Release what ``prepare`` started; running drivers may fail."""
        ...

    def exit_reason(self, driver: Driver) -> str | None:
        """Return None while the driver lives, else a sentence about its end."""
        ...

    def kill(self, driver: Driver) -> None:
        """Kill the driver and its children; ignore one that has ended."""
        ...


class _Processes:
    """Drivers as local processes; remembers those it started, to report their exit codes.

    Each driver leads its own process group, so a Ctrl-C for the service does not reach it.
    """

    def __init__(self) -> None:
        self._started: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, command: list[str], environment: Mapping[str, str], log: Path) -> Process:
        """Start a process whose output goes to ``log``."""
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(  # noqa: S603 - the command is ours
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=log.parent,
                    env={**without_other_spark(os.environ), **environment},
                    start_new_session=True,
                )
        except OSError as exc:
            raise LaunchError(f"{command[0]} could not be started: {exc}") from exc
        self._started[process.pid] = process
        # The driver may have ended already, since this process may have been suspended; exit_reason shows that.
        return Process.of_child(process.pid)

    def exit_reason(self, driver: Driver) -> str | None:
        """Return None while the driver lives, else a sentence about its end."""
        if not isinstance(driver, Process):
            return f"The driver ({driver}) runs in another launcher: REFEED_LAUNCHER was changed after its start."
        if driver.is_alive:
            return None
        process = self._started.get(driver.pid)
        if process is None:
            return f"The driver (process {driver.pid}) is gone."
        code = process.wait()
        if code < 0:
            return f"The driver (process {driver.pid}) was ended by signal {signal_name(-code)}."
        return f"The driver (process {driver.pid}) ended with code {code}."

    def kill(self, driver: Driver) -> None:
        """Kill the driver and its children, such as a JVM and its workers."""
        if not isinstance(driver, Process):
            return
        driver.signal_group(signal.SIGKILL)
        process = self._started.get(driver.pid)
        if process is not None:
            process.wait()


class ConnectService(Protocol):
    """A Spark Connect server on demand; :class:`connectors.spark.connect.ConnectServer` implements it."""

    def start(self) -> str:
        """Start the server unless it runs, and return its address ("sc://host:port")."""
        ...

    def stop(self) -> None:
        """Stop the server."""
        ...


class ConnectLauncher(_Processes):
    """Starts the driver as a plain Python process on a warm Spark Connect server.

    The first task begins after 1.2 to 2 seconds, with spark-submit after 5 to 15. Tasks on the server outlive a
    killed driver, and stop when they read the job's control.
    """

    def __init__(self, server: ConnectService, environment: Mapping[str, str]) -> None:
        super().__init__()
        self._server = server
        self._environment = environment

    def prepare(self) -> None:
        """Start the server unless it runs."""
        self._server.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.stop()

    def launch(self, launch: Launch) -> Process:
        """Start a driver and return at once; waits for the server first."""
        environment = {**self._environment, "SPARK_REMOTE": self._server.start()}
        command = [sys.executable, "-m", launch.module, launch.argument]
        return self.start(command, environment, launch.log)


class SparkSubmitLauncher(_Processes):
    """Starts the driver with spark-submit on any master, in client mode.

    On a cluster every node needs Refeed's wheel, and the home must be on shared storage.
    """

    def __init__(
        self,
        spark_submit: Path,
        environment: Mapping[str, str],
        *,
        master: str,
        driver_memory: str,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._command = [str(spark_submit), "--master", master, "--driver-memory", driver_memory]
        for key, value in (conf or {}).items():
            self._command += ["--conf", f"{key}={value}"]
        self._environment = environment

    def prepare(self) -> None:
        """Do nothing: every launch starts its own JVM."""

    def close(self) -> None:
        """Do nothing: every driver ends its own JVM."""

    def launch(self, launch: Launch) -> Process:
        """Start a driver and return at once."""
        found = importlib.util.find_spec(launch.module)
        if found is None or found.origin is None:
            raise LaunchError(f"There is no module {launch.module}.", module=launch.module)
        command = [*self._command, "--name", launch.name, found.origin, launch.argument]
        return self.start(command, self._environment, launch.log)
