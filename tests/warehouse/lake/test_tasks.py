"""A Spark of this process runs merges, whatever somebody's own Spark, Hadoop and notebooks are set up with."""

from datetime import timedelta
from typing import Any

import pytest
from pyspark import SparkContext

from connectors.spark.session import open_session
from tests.reporting.shops import START, LakeShop, order
from tests.worlds.elsewhere import set_up_elsewhere
from warehouse.lake.tasks import SparkTasks

pytestmark = pytest.mark.java


def close_session(spark: Any) -> None:
    """End the session's JVM, so that this process may open another one."""
    gateway = spark.sparkContext._gateway  # PySpark has no call that ends its JVM
    spark.stop()
    gateway.shutdown()
    # The JVM ends when its standard input does.
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None  # else the next session asks the dead one


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        for name, value in set_up_elsewhere(tmp_path_factory.mktemp("elsewhere")).items():
            patched.setenv(name, value)
        session = open_session(
            "merge", master="local[2]", driver_memory="512m", scratch=tmp_path_factory.mktemp("spark")
        )
        yield session
        close_session(session)


def test_a_session_runs_on_a_machine_that_is_set_up_for_another_spark(spark, tmp_path):
    (tmp_path / "words").write_text("one\ntwo\n")
    words = spark.read.text(str(tmp_path / "words")).mapInArrow(lambda batches: batches, "value string")
    assert sorted(row.value for row in words.collect()) == ["one", "two"]
    assert (spark.sparkContext.master, type(spark).__module__) == ("local[2]", "pyspark.sql.session")


def test_a_merge_of_spark_tasks_is_the_same_merge(spark, tmp_path):
    shop = LakeShop(lake=tmp_path / "lake", tasks=SparkTasks(spark))
    shop.stage([order(n, day=1 + n % 3) for n in range(30)], START)
    assert shop.merge(START + timedelta(hours=3)).newer == 30
    assert shop.reporting() == shop.oracle()
    shop.stage([order(n, day=5, minute=1) for n in range(4)], START + timedelta(hours=8))
    report = shop.merge(START + timedelta(hours=9))
    assert report.partitions == ("2026-03-01", "2026-03-02", "2026-03-03", "2026-03-05")
    assert shop.reporting() == shop.oracle()
