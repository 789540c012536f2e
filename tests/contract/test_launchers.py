"""What every launcher keeps to, on a real Spark: a warm Connect server, spark-submit, and Dataproc's double."""

import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import grpc
import pytest
from pyspark.sql.connect.proto.base_pb2 import ConfigRequest
from pyspark.sql.connect.proto.base_pb2_grpc import SparkConnectServiceStub

from connectors.dataproc.batches import Batches, BatchPlace
from connectors.spark.connect import ConnectServer
from connectors.spark.environment import spark_environment
from connectors.spark.home import find_spark_submit
from jobs.dataproc import DataprocLauncher
from jobs.files import open_files
from jobs.launcher import ConnectLauncher, Launch, Launcher, SparkSubmitLauncher
from model.errors import LaunchError
from model.process import DataprocBatch, Driver, Process
from model.typed import reader
from tests.standin.dataproc_server import running_dataproc
from tests.standin.gcs_server import pointing_at, running_gcs
from tests.waiting import wait_until
from tests.worlds.elsewhere import set_up_elsewhere

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(600)]

PLACE = BatchPlace("shop", "europe-west1", "europe-docker.pkg.dev/shop/refeed/dataproc:1", "2.3", 86400)
_JOB = """
import json, os, sys, time
from pathlib import Path


def main(argument):
    job = json.loads(argument)
    print("the argument is", job["say"], flush=True)
    if job.get("spark"):
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.getOrCreate()
        rows = spark.range(0, 10, 1, 2).mapInArrow(lambda batches: batches, "id bigint").collect()
        Path(job["result"]).write_text(json.dumps(sorted(row.id for row in rows)))
        spark.stop()
    if job.get("wait"):
        Path(job["result"]).write_text(str(os.getpid()))
        time.sleep(120)
    return job.get("code", 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    modules = tmp_path_factory.mktemp("modules")
    (modules / "refeed_test_job.py").write_text(_JOB)
    return {**spark_environment(modules / "spark"), "PYTHONPATH": str(modules)}


@pytest.fixture(scope="module")
def server(environment, tmp_path_factory):
    server = ConnectServer(tmp_path_factory.mktemp("connect"), environment)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def dataproc(tmp_path_factory):
    with running_gcs("jobs") as gcs, running_dataproc(tmp_path_factory.mktemp("dataproc"), gcs) as dataproc:
        yield dataproc


@pytest.fixture
def bucket(dataproc, monkeypatch):
    """The jobs' folder in the double of Cloud Storage."""
    with pointing_at(dataproc.gcs, monkeypatch):
        yield open_files("gs://jobs/refeed")


@pytest.fixture(params=["connect", "spark-submit", "dataproc"])
def launcher(request, environment, monkeypatch):
    monkeypatch.syspath_prepend(environment["PYTHONPATH"])
    if request.param == "connect":
        yield ConnectLauncher(request.getfixturevalue("server"), environment)
        return
    conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    if request.param == "spark-submit":
        yield SparkSubmitLauncher(
            find_spark_submit(), environment, master="local[2]", driver_memory="512m", conf=conf
        )
        return
    server = request.getfixturevalue("dataproc")
    batches = Batches(replace(PLACE, host=server.host))
    launcher = DataprocLauncher(batches, request.getfixturevalue("bucket"), environment, conf)
    yield launcher
    launcher.close()


def launch(launcher: Launcher, folder: Path, **job: object) -> Driver:
    argument = json.dumps({"say": "hello", "result": str(folder / "result"), **job})
    # A job of its own for each test: an attempt of a job is launched once.
    name = f"bf_{folder.parent.name}_{folder.name}"
    return launcher.launch(Launch(name, "refeed_test_job", argument, folder / "driver.log"))


@pytest.fixture
def log_of(request, tmp_path):
    """Return what gives what a driver has printed."""

    def read(driver):
        if isinstance(driver, DataprocBatch):
            server = request.getfixturevalue("dataproc")
            return server.log_of(driver.name)
        return (tmp_path / "driver.log").read_text()

    return read


def start_again(launcher: Launcher, environment: dict[str, str]) -> Launcher:
    """Return a launcher as another service has it, which remembers nothing."""
    if isinstance(launcher, DataprocLauncher):
        return DataprocLauncher(launcher._batches, launcher._folder, environment, {})
    return SparkSubmitLauncher(Path("unused"), environment, master="local", driver_memory="1g")


def ended(launcher: Launcher, driver: Driver) -> str:
    wait_until(
        lambda: launcher.exit_reason(driver) is not None, "the driver ends", seconds=240, every_seconds=0.05
    )
    return launcher.exit_reason(driver) or ""


def test_a_driver_runs_python_tasks_on_spark(launcher, tmp_path, log_of):
    driver = launch(launcher, tmp_path, spark=True)
    assert ended(launcher, driver).endswith("code 0."), log_of(driver)
    assert json.loads((tmp_path / "result").read_text()) == list(range(10))


def test_a_driver_of_spark_submit_runs_where_a_notebook_on_a_cluster_is_set_up(environment, tmp_path, monkeypatch):
    for name, value in set_up_elsewhere(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(environment["PYTHONPATH"])
    launcher = SparkSubmitLauncher(find_spark_submit(), environment, master="local[2]", driver_memory="512m")
    driver = launch(launcher, tmp_path, spark=True)
    assert ended(launcher, driver).endswith("code 0."), (tmp_path / "driver.log").read_text()


def test_a_driver_gets_its_one_argument_and_writes_its_log(launcher, tmp_path, log_of):
    driver = launch(launcher, tmp_path, say="a 'quoted' \"word\" and é")
    ended(launcher, driver)
    assert "the argument is a 'quoted' \"word\" and é" in log_of(driver)


def test_the_code_of_a_driver_that_fails_is_told(launcher, tmp_path):
    driver = launch(launcher, tmp_path, code=3)
    reason = ended(launcher, driver)
    assert re.search(r"ended with code|failed with exit code", reason)
    assert not reason.endswith("code 0.")


def test_a_driver_that_is_killed_is_gone_with_its_children(launcher, tmp_path):
    driver = launch(launcher, tmp_path, wait=True)
    result = tmp_path / "result"
    wait_until(lambda: result.exists() and result.read_text() != "", "the driver runs", seconds=240)
    assert launcher.exit_reason(driver) is None
    if isinstance(driver, Process):
        assert os.getpgid(driver.pid) == driver.pid != os.getpgid(0)
    launcher.kill(driver)
    assert re.search("SIGKILL|was cancelled", ended(launcher, driver))
    wait_until(lambda: Process.of(int(result.read_text())) is None, "its Python process is gone", seconds=240)
    launcher.kill(driver)


def test_a_driver_is_known_to_a_launcher_that_did_not_start_it(launcher, environment, tmp_path):
    driver = launch(launcher, tmp_path, wait=True)
    known = reader(Driver)(json.loads(json.dumps(asdict(driver))))
    another = start_again(launcher, environment)
    assert another.exit_reason(known) is None
    launcher.kill(driver)
    wait_until(
        lambda: another.exit_reason(known) is not None,
        "the other launcher sees the end",
        seconds=240,
        every_seconds=0.05,
    )


def test_a_driver_of_another_kind_of_launcher_is_no_riddle(launcher, environment, tmp_path):
    foreign = DataprocBatch("projects/p/locations/r/batches/b")
    if isinstance(launcher, DataprocLauncher):
        with subprocess.Popen(["sleep", "60"]) as process:
            here = Process.of(process.pid)
            assert here is not None
            assert launcher.exit_reason(here) is None
            launcher.kill(here)
            process.kill()
        assert launcher.exit_reason(here) == f"The driver (process {here.pid}) is gone."
    else:
        launcher.kill(foreign)
        assert "REFEED_LAUNCHER was changed" in (launcher.exit_reason(foreign) or "")


def test_what_can_not_be_started_is_an_error(environment, tmp_path):
    launcher = SparkSubmitLauncher(tmp_path / "none", environment, master="local", driver_memory="1g")
    with pytest.raises(LaunchError):
        launcher.launch(Launch("test", "json", "{}", tmp_path / "driver.log"))
    with pytest.raises(LaunchError):
        launcher.launch(Launch("test", "no_such_module", "{}", tmp_path / "driver.log"))


def test_a_server_is_started_once_and_found_again(server, environment):
    url = server.start()
    other = ConnectServer(server.log.parent, environment)
    assert (other.start(), other.url()) == (url, url)


def test_a_server_answers_nobody_without_its_token(server):
    found = urlsplit(server.start())
    request = ConfigRequest(session_id=str(uuid4()))
    request.operation.get_all.SetInParent()
    with grpc.insecure_channel(found.netloc) as channel:
        config = SparkConnectServiceStub(channel).Config
        for sent in ([], [("authorization", "Bearer guessed")]):
            with pytest.raises(grpc.RpcError) as refused:
                config(request, metadata=sent, timeout=60)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (server.log.parent / "connect.json").stat().st_mode & 0o777 == 0o600


def test_a_server_that_was_killed_is_started_again(environment, tmp_path):
    server = ConnectServer(tmp_path / "run", environment, driver_memory="512m")
    try:
        server.start()
        record = json.loads((tmp_path / "run" / "connect.json").read_text())
        os.killpg(record["pid"], 9)
        wait_until(lambda: server.url() is None, "the server is gone", seconds=240)
        assert server.start().startswith("sc://127.0.0.1:")
    finally:
        server.stop()
    assert server.url() is None


def test_a_server_that_can_not_start_says_why(environment, tmp_path):
    broken = {**environment, "JAVA_HOME": str(tmp_path)}
    with pytest.raises(LaunchError, match=r"connect\.log ends with"):
        ConnectServer(tmp_path / "run", broken).start()


def test_a_server_that_is_stopped_while_it_starts_gives_up_and_is_gone(environment, tmp_path):
    server = ConnectServer(tmp_path / "run", environment, driver_memory="512m")
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(server.start)
        wait_until((tmp_path / "run" / "connect.json").exists, "it has begun to start", seconds=240)
        record = json.loads((tmp_path / "run" / "connect.json").read_text())
        server.stop()
        with pytest.raises(LaunchError, match="stopped while it started"):
            starting.result(30)
    assert Process.of(record["pid"]) is None
