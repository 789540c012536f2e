"""What a session takes from its environment; tests/warehouse/lake/test_tasks.py opens one."""

from connectors.spark.environment import spark_environment, without_other_spark


def test_a_cluster_s_session_keeps_the_cluster_s_configuration(tmp_path):
    names = {"SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"}
    assert names <= set(spark_environment(tmp_path, "local[2]"))
    assert not names & set(spark_environment(tmp_path, "yarn"))


def test_an_environment_without_another_spark_keeps_all_else():
    given = {"SPARK_REMOTE": "sc://host", "SPARK_API_MODE": "connect", "SPARK_HOME": "/spark"}
    assert without_other_spark(given) == {"SPARK_HOME": "/spark"}
