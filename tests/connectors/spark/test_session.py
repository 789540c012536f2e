"""What a session takes from its environment; tests/warehouse/lake/test_tasks.py opens one."""

from connectors.spark.environment import network_conf, spark_environment, without_other_spark


def test_a_cluster_s_session_keeps_the_cluster_s_configuration(tmp_path):
    names = {"SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"}
    assert names <= set(spark_environment(tmp_path, "local[2]"))
    assert not names & set(spark_environment(tmp_path, "yarn"))


def test_an_environment_without_another_spark_keeps_all_else():
    given = {"SPARK_REMOTE": "sc://host", "SPARK_API_MODE": "connect", "SPARK_HOME": "/spark"}
    assert without_other_spark(given) == {"SPARK_HOME": "/spark"}


def test_a_local_jvm_answers_no_other_account():
    conf = network_conf("local[2]")
    assert (conf["spark.driver.bindAddress"], conf["spark.authenticate"]) == ("127.0.0.1", "true")
    assert "spark.authenticate" not in network_conf("local-cluster[2,1,1024]"), "its workers get none"
    assert network_conf("spark://host:7077") == {}, "a cluster has a secret of its own"
