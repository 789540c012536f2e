"""A Spark of this process runs whatever somebody's own Spark, Hadoop and notebooks are set up with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.spark.environment import spark_environment, without_other_spark

PROGRAM = """
import sys
from pathlib import Path
from connectors.spark.session import open_session

folder = Path(sys.argv[1])
(folder / "words").write_text("one\\ntwo\\n")
spark = open_session("test", master="local[1]", driver_memory="512m", scratch=folder / "scratch")
found = spark.read.text(str(folder / "words")).mapInArrow(lambda batches: batches, "value string").collect()
print(spark.sparkContext.master, sorted(row.value for row in found), type(spark).__module__)
spark.stop()
"""


def set_up_elsewhere(folder: Path) -> dict[str, str]:
    """Return the environment of somebody who works with notebooks on a cluster."""
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text("spark.jars.packages none:such:1.0\nspark.master yarn\n")
    (folder / "conf" / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:9</value></property>"
        "</configuration>"
    )
    conf = str(folder / "conf")
    return {
        "PYSPARK_SUBMIT_ARGS": "--master yarn --packages none:such:1.0 pyspark-shell",
        "PYSPARK_DRIVER_PYTHON": "jupyter",
        "PYSPARK_PYTHON": "/nowhere/python",
        "SPARK_CONF_DIR": conf,
        "HADOOP_CONF_DIR": conf,
        "YARN_CONF_DIR": conf,
        "SPARK_HOME": "/nowhere/spark",
        "SPARK_REMOTE": "sc://127.0.0.1:9",
        "SPARK_API_MODE": "connect",
        "PYSPARK_GATEWAY_PORT": "9",
        "PYSPARK_GATEWAY_SECRET": "secret",
    }


@pytest.mark.java
def test_a_session_runs_on_a_machine_that_is_set_up_for_another_spark(tmp_path: Path) -> None:
    program = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    environment = {**os.environ, **set_up_elsewhere(tmp_path)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "local[1] ['one', 'two'] pyspark.sql.session", done.stderr[-3000:]


def test_a_cluster_s_session_keeps_the_cluster_s_configuration(tmp_path: Path) -> None:
    names = {"SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"}
    assert names <= set(spark_environment(tmp_path, "local[2]"))
    assert not names & set(spark_environment(tmp_path, "yarn"))


def test_an_environment_without_another_spark_keeps_all_else() -> None:
    given = {"SPARK_REMOTE": "sc://host", "SPARK_API_MODE": "connect", "SPARK_HOME": "/spark"}
    assert without_other_spark(given) == {"SPARK_HOME": "/spark"}
