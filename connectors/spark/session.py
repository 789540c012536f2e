"""Spark sessions of this process: one JVM on loopback, quiet, started for Python sources and little else."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from connectors.spark.environment import OTHER_SPARK, network_conf, spark_environment
from connectors.spark.java import find_java_home
from connectors.spark.watch import leaving_without_server

# The JVM schedules and carries descriptors; it never sees a payload. C1 and the serial collector start a
# second faster and leave the second core alone.
JVM_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.net.preferIPv4Stack=true"

_CONF: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Renaming through java.io takes commitOffsets from 60 to 25 ms a batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
}


def jvm_options() -> str:
    """Return the options of a JVM that starts fast, with Spark's classes at hand where they were kept."""
    from connectors.spark.classes import class_data_options

    return f"{JVM_OPTIONS} {class_data_options(find_java_home())}".strip()


def open_session(
    app: str, *, master: str, driver_memory: str, scratch: Path, conf: Mapping[str, str] | None = None
) -> Any:
    """Return a Spark session of this process; ``scratch`` is made, and may be deleted after the process ended.

    ``conf`` wins over what Refeed sets.

    A SPARK_HOME of another Spark is not used: the sources need the PySpark that Refeed was installed with.

    Raises:
        JavaNotFoundError: there is no Java that fits.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    scratch.mkdir(parents=True, exist_ok=True)
    os.environ.update(spark_environment(scratch, master))
    for name in OTHER_SPARK:
        os.environ.pop(name, None)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    settings = {
        **_CONF,
        **network_conf(master),
        "spark.app.name": app,
        "spark.master": master,
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": jvm_options(),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **(conf or {}),
    }
    spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    # In a session of its own, so that a signal for the whole process group (Ctrl-C, a supervisor's SIGTERM)
    # leaves it to this process to drain; it ends by itself when this process does.
    gateway = launch_gateway(spark_conf, popen_kwargs={"start_new_session": True})
    return SparkSession(SparkContext(gateway=gateway, conf=spark_conf))


@contextmanager
def starting_spark(name: str) -> Iterator[Callable[[], Any]]:
    """Start the Spark of a launched driver while it does something else; what is given waits and returns it.

    The launcher says by the environment where it is: on a Connect server, or in this process under spark-submit.
    A driver whose server goes away ends at once, without an outcome, for another one to go on.
    """
    watched = leaving_without_server(os.environ.get("SPARK_REMOTE"))
    with watched, ThreadPoolExecutor(1, thread_name_prefix="spark") as pool:
        opening = pool.submit(_open_launched, name)
        try:
            yield opening.result
        finally:
            if opening.exception() is None:
                opening.result().stop()


def _open_launched(name: str) -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName(name).getOrCreate()
