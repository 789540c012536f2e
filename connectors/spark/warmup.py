"""The first job of a Spark Connect server: it pays for what every first job pays, before anybody waits."""

from collections.abc import Iterator

import pyarrow as pa


def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what comes: a Python task that does nothing."""
    yield from batches


def warm_up() -> None:
    """Run a job of a few Python tasks on the server that SPARK_REMOTE names."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("refeed-warm-up").getOrCreate()
    try:
        spark.range(0, 4, 1, 4).mapInArrow(pass_on, "id bigint").collect()
    finally:
        spark.stop()
