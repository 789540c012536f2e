"""Where the installed Spark is, and a home for it from which Python workers start in half the time."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from model.errors import LaunchError

# What Spark's scripts and its JVM read of their home. Not "python": the JVM puts python/lib/pyspark.zip on every
# worker's path, before the installed package, and Python keeps no bytecode for what it reads from a zip. So each
# process of a worker compiled PySpark again (docs/decisions/0032 has the times).
_LINKED: Final = ("bin", "conf", "jars", "sbin")


def find_spark_home() -> Path:
    """Return the home of the installed Spark; a SPARK_HOME of the environment may be another version's.

    Raises:
        LaunchError: PySpark is not installed.
    """
    installed, linked = _installed_home(), _linked_home()
    # The links lead elsewhere when PYTHONPATH has another PySpark, or the environment another Python by now.
    return linked if (linked / "bin").resolve() == (installed / "bin").resolve() else installed


def find_spark_submit() -> Path:
    """Return the spark-submit of the installed Spark.

    Raises:
        LaunchError: PySpark is not installed.
    """
    return find_spark_home() / "bin" / "spark-submit"


def link_spark_home() -> Path:
    """Link the installed Spark's folders into this environment and return their home; earlier links are replaced.

    Raises:
        LaunchError: PySpark is not installed.
        OSError: the environment can't be written; Spark's own home serves all the same.
    """
    installed, linked = _installed_home(), _linked_home()
    linked.mkdir(parents=True, exist_ok=True)
    for name in _LINKED:
        link = linked / name
        link.unlink(missing_ok=True)
        link.symlink_to(installed / name)
    return linked


def _linked_home() -> Path:
    return Path(sys.prefix) / "share" / "refeed" / "spark"


def _installed_home() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise LaunchError("PySpark is not installed.")
    return Path(found.origin).parent
