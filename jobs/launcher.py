"""Starts a job's driver: one contract; on a warm Spark Connect server, or by spark-submit."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from jobs.driver import Driver
from model.errors import LaunchError


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be started: a module that takes one JSON argument, and the file its output goes to."""

    name: str
    module: str
    argument: str
    log: Path


class Launcher(Protocol):
    """Starts drivers that outlive the process that started them, and tells whether they live.

    A driver leads a process group of its own: a Ctrl-C for the service is none for the driver.
    """

    def launch(self, launch: Launch) -> Driver:
        """Start a driver and return at once.

        Raises:
            LaunchError: it could not be started.
        """
        ...

    def exit_reason(self, driver: Driver) -> str | None:
        """Return None while the driver lives, else what is known of its end, as a sentence."""
        ...

    def kill(self, driver: Driver) -> None:
        """End the driver and its children now; one that is gone already is no error."""
        ...


@dataclass(slots=True)
class _Processes:
    """Drivers as local processes; remembers those it started, to say how they ended."""

    _started: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, command: list[str], environment: Mapping[str, str], log: Path) -> Driver:
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(  # noqa: S603 - the command is ours
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=log.parent,
                    env={**os.environ, **environment},
                    start_new_session=True,
                )
        except OSError as exc:
            raise LaunchError(f"{command[0]} could not be started: {exc}") from exc
        self._started[process.pid] = process
        driver = Driver.of(process.pid)
        if driver is None:
            raise LaunchError(f"{command[0]} ended at once with code {process.wait()}; see {log}.", log=str(log))
        return driver

    def exit_reason(self, driver: Driver) -> str | None:
        process = self._started.get(driver.pid)
        code = None if process is None else process.poll()
        if code is None:
            return None if driver.is_alive else f"The driver (process {driver.pid}) is gone."
        if code < 0:
            return f"The driver (process {driver.pid}) was ended by signal {signal.Signals(-code).name}."
        return f"The driver (process {driver.pid}) ended with code {code}."

    def kill(self, driver: Driver) -> None:
        driver.signal_group(signal.SIGKILL)
        process = self._started.get(driver.pid)
        if process is not None:
            process.wait()


class ConnectLauncher:
    """Starts the driver as a plain Python process on a Spark Connect server that is warm already.

    Seconds to the first task: 1.2 to 2, against 5 to 15 of spark-submit. ``server`` returns the server's
    address ("sc://host:port"), and starts it when need be.
    """

    def __init__(self, server: Callable[[], str], environment: Mapping[str, str]) -> None:
        self._server = server
        self._environment = environment
        self._processes = _Processes()

    def launch(self, launch: Launch) -> Driver:
        """Start a driver and return at once; waits for the server first."""
        environment = {**self._environment, "SPARK_REMOTE": self._server(), "SPARK_CONNECT_MODE_ENABLED": "1"}
        command = [sys.executable, "-m", launch.module, launch.argument]
        return self._processes.start(command, environment, launch.log)

    def exit_reason(self, driver: Driver) -> str | None:
        """Return None while the driver lives, else what is known of its end."""
        return self._processes.exit_reason(driver)

    def kill(self, driver: Driver) -> None:
        """End the driver; its tasks on the server stop by their own look at the job's control."""
        self._processes.kill(driver)


class SparkSubmitLauncher:
    """Starts the driver with spark-submit on any master, in client mode.

    On a cluster every node needs Refeed's wheel installed, and the home on storage that all of them share.
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
        self._command = [str(spark_submit), "--master", master, "--driver-memory", driver_memory]
        for key, value in (conf or {}).items():
            self._command += ["--conf", f"{key}={value}"]
        self._environment = environment
        self._processes = _Processes()

    def launch(self, launch: Launch) -> Driver:
        """Start a driver and return at once."""
        found = importlib.util.find_spec(launch.module)
        if found is None or found.origin is None:
            raise LaunchError(f"There is no module {launch.module}.", module=launch.module)
        command = [*self._command, "--name", launch.name, found.origin, launch.argument]
        return self._processes.start(command, self._environment, launch.log)

    def exit_reason(self, driver: Driver) -> str | None:
        """Return None while the driver lives, else what is known of its end."""
        return self._processes.exit_reason(driver)

    def kill(self, driver: Driver) -> None:
        """End the driver, its JVM and its workers."""
        self._processes.kill(driver)
