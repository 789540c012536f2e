"""``refeed spark``: a standalone cluster's master and workers, of the Spark that Refeed is installed with."""

import os
from pathlib import Path
from typing import Annotated

import typer

from cli.invocation import HomeGroup, command_settings

app = typer.Typer(
    cls=HomeGroup, help="Run a master or a worker of a Spark standalone cluster.", no_args_is_help=True
)

HostOption = Annotated[str, typer.Option(help="Address at which other Spark processes reach this process.")]


@app.command("master")
def master(
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the master.")] = 7077,
) -> None:
    """Run the master. Streams and jobs use this master if REFEED_SPARK_MASTER is spark://HOST:PORT."""
    _become("org.apache.spark.deploy.master.Master", host, "--port", str(port))


@app.command("worker")
def worker(
    url: Annotated[
        str,
        typer.Argument(
            metavar="spark://HOST:PORT", help="The master's address, spark://HOST:PORT.", show_default=False
        ),
    ],
    host: HostOption = "127.0.0.1",
    cores: Annotated[int, typer.Option(min=1, help="The number of Spark tasks that run at the same time.")] = 1,
    memory: Annotated[str, typer.Option(help="Memory for executors, such as 2g.")] = "2g",
) -> None:
    """Run a worker. The machine needs the same Python as the driver, at the same path."""
    folder = command_settings().home / "spark-worker"
    _become(
        "org.apache.spark.deploy.worker.Worker",
        *(host, "--port", "0", "--cores", str(cores), "--memory", memory, "--work-dir", str(folder), url),
    )


def _become(daemon: str, host: str, *arguments: str) -> None:
    """Turn this process into the daemon: signals and the exit code are its own."""
    from connectors.spark.home import find_spark_home
    from connectors.spark.java import find_java_home

    home = find_spark_home()
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(find_java_home()),
        "SPARK_DAEMON_MEMORY": os.environ.get("SPARK_DAEMON_MEMORY", "256m"),
        "SPARK_LOCAL_IP": host,
    }
    # The web pages know no passwords: on a free port of the same address, and named in the log.
    command = [str(home / "bin" / "spark-class"), daemon, "--host", host, "--webui-port", "0", *arguments]
    os.chdir(Path.home() if Path.home().is_dir() else "/")
    os.execve(command[0], command, environment)  # noqa: S606 - our own command, no shell
