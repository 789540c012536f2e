"""What a Spark of Refeed's needs in its environment and its configuration, on this machine and on a cluster."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from connectors.spark.home import find_spark_home
from connectors.spark.java import find_java_home

_LOOPBACK: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

# Another account of this machine must not talk to the JVM, which makes a secret where it needs no other process.
_SECRET: Final[Mapping[str, str]] = {"spark.authenticate": "true"}

_LOCAL_ENVIRONMENT: Final[Mapping[str, str]] = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    # Spark's scripts take what is empty for what is not set.
    **dict.fromkeys(("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"), ""),
}

# Each of them makes PySpark or spark-submit look for a Spark that somebody else has started.
OTHER_SPARK: Final = (
    "SPARK_REMOTE",
    "SPARK_API_MODE",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
)


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own process, so that no other process has to reach it.

    Example:
        >>> is_local("local[2]"), is_local("spark://host:7077")
        (True, False)
    """
    return master.startswith("local")


def count_threads(master: str) -> int | None:
    """Return how many tasks run at the same time in the driver's own process; None of a cluster.

    Example:
        >>> count_threads("local[2,4]"), count_threads("local"), count_threads("spark://host:7077")
        (2, 1, None)
    """
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,.*)?\])?", master)
    if found is None:
        return None
    return os.cpu_count() if found[1] == "*" else int(found[1] or 1)


def network_conf(master: str) -> Mapping[str, str]:
    """Return where a driver of ``master`` listens, and to whom: loopback, unless executors elsewhere reach it."""
    secret = {} if count_threads(master) is None else _SECRET
    return {**_LOOPBACK, **secret} if is_local(master) else {}


def spark_environment(scratch: Path, master: str = "local") -> dict[str, str]:
    """Return what a process needs in its environment to start Spark; scratch files go under ``scratch``.

    With a cluster's ``master`` its executors use the same path of Python: install Refeed at one place everywhere.
    A local one runs without the configuration of Spark and Hadoop that somebody else's work is set up with, which
    might fetch packages, or look for a stream's files in HDFS.

    Raises:
        JavaNotFoundError: there is no Java that fits.
    """
    return {
        "JAVA_HOME": str(find_java_home()),
        "SPARK_HOME": str(find_spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(scratch),
        # Its default; a notebook's would choose another master.
        "PYSPARK_SUBMIT_ARGS": "pyspark-shell",
        **({**_LOCAL_ENVIRONMENT, "SPARK_CONF_DIR": str(find_spark_home() / "conf")} if is_local(master) else {}),
    }


def without_other_spark(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that names no Spark of somebody else's, such as a notebook's."""
    return {name: value for name, value in environment.items() if name not in OTHER_SPARK}
