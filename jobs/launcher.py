"""Starts a job's driver: one contract; on a warm Spark Connect server, or by spark-submit."""

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
    """What is to be started: a module that takes one JSON argument, and the file its output goes to.

    ``name`` is the job's and ``attempt`` its number: launched again, an attempt may be the one that runs.
    """

    name: str
    module: str
    argument: str
    log: Path
    attempt: int = 1


class Launcher(Protocol):
    """Starts drivers that outlive the process that started them, and tells whether they live.

    Any launcher may be asked about any driver: a service may start again with another one.
    """

    def prepare(self) -> None:
        """Get ready, so that a launch is quick; may take a minute, and may be called again and again.

        Raises:
            LaunchError: it will not be.
        """
        ...

    def launch(self, launch: Launch) -> Driver:
        """Start a driver and return; prepares first when that has not been done.

        Raises:
            LaunchError: it could not be started.
        """
        ...

    def close(self) -> None:
        """Let go of what ``prepare`` got ready; drivers that still run may fail."""
        ...

    def exit_reason(self, driver: Driver) -> str | None:
        """Return None while the driver lives, else what is known of its end, as a sentence."""
        ...

    def kill(self, driver: Driver) -> None:
        """End the driver and its children now; one that is gone already is no error."""
        ...


class _Processes:
    """Drivers as local processes; remembers those it started, to say how they ended.

    Each leads a process group of its own: a Ctrl-C for the service is none for the driver.
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
        # It may have ended by now, also well: this process may have stood still. How it ended is looked at later.
        return Process.of_child(process.pid)

    def exit_reason(self, driver: Driver) -> str | None:
        """Return None while the driver lives, else what is known of its end."""
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
        """End the driver and its children, such as a JVM and its workers."""
        if not isinstance(driver, Process):
            return
        driver.signal_group(signal.SIGKILL)
        process = self._started.get(driver.pid)
        if process is not None:
            process.wait()


class ConnectService(Protocol):
    """A Spark Connect server that can be asked for; what :class:`connectors.spark.connect.ConnectServer` does."""

    def start(self) -> str:
        """Return its address ("sc://host:port"), started when it does not run."""
        ...

    def stop(self) -> None:
        """End it."""
        ...


class ConnectLauncher(_Processes):
    """Starts the driver as a plain Python process on a Spark Connect server that is warm already.

    Seconds to the first task: 1.2 to 2, against 5 to 15 of spark-submit. Its tasks on the server outlive a driver
    that is killed, and stop by their own look at the job's control.
    """

    def __init__(self, server: ConnectService, environment: Mapping[str, str]) -> None:
        super().__init__()
        self._server = server
        self._environment = environment

    def prepare(self) -> None:
        """Start the server, or find that it runs."""
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
        super().__init__()
        self._command = [str(spark_submit), "--master", master, "--driver-memory", driver_memory]
        for key, value in (conf or {}).items():
            self._command += ["--conf", f"{key}={value}"]
        self._environment = environment

    def prepare(self) -> None:
        """Do nothing: every launch brings its own JVM."""

    def close(self) -> None:
        """Do nothing: every launch takes its own JVM along."""

    def launch(self, launch: Launch) -> Process:
        """Start a driver and return at once."""
        found = importlib.util.find_spec(launch.module)
        if found is None or found.origin is None:
            raise LaunchError(f"There is no module {launch.module}.", module=launch.module)
        command = [*self._command, "--name", launch.name, found.origin, launch.argument]
        return self.start(command, self._environment, launch.log)
