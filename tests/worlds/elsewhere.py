"""A machine that is set up for another Spark."""

from pathlib import Path


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
