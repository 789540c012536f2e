"""The smallest driver: it shows that Spark runs where a batch of ``refeed doctor --live`` is sent."""

from typing import Final

_ROWS: Final = 1000


def main(argument: str) -> int:
    """Count numbers with Spark under the name ``argument``; 0 when they are all there."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(argument).getOrCreate()
    count = spark.range(_ROWS).count()
    spark.stop()
    return 0 if count == _ROWS else 1
