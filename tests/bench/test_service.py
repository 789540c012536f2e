from bench.processes import Usage
from bench.service import add_up


def test_memory_is_added_up_by_what_processes_do_and_nothing_is_left_out():
    usages = [
        Usage(1, "java -cp x org.apache.spark.sql.connect.service.SparkConnectServer", 9, 400),
        Usage(2, "python -m pyspark.daemon pyspark.worker", 9, 30),
        Usage(3, "python -m pyspark.daemon pyspark.worker", 9, 40),
        Usage(4, "python -m cli.main api --port 8080", 9, 60),
        Usage(5, "something else", 9, 1),
    ]
    assert add_up(usages) == {"Spark Connect JVM": 400, "Python workers of Spark": 70, "API": 60, "others": 1}
