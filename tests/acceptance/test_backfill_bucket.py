"""A backfill whose folder is in a bucket, its driver perhaps a batch: paused in time, killed, and finished."""

import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointFolder
from connectors.dataproc.batches import Batches, BatchPlace
from connectors.lake.archive import LakeArchive
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import MAX_UNCONFIRMED_MESSAGES
from connectors.spark.environment import spark_environment
from connectors.spark.home import find_spark_submit
from jobs.dataproc import DataprocLauncher
from jobs.files import open_files
from jobs.folder import Control, Order
from jobs.launcher import Launch, SparkSubmitLauncher
from local.server import PubSubServer
from model.job import JobState
from model.message import replay_token
from model.process import DataprocBatch
from tests.acceptance.receiving import receive_waiting
from tests.archive import messages, write_commits
from tests.standin.dataproc_server import running_dataproc
from tests.standin.gcs_server import pointing_at, running_gcs
from tests.worlds.folders import bucket_folder

pytestmark = [pytest.mark.java, pytest.mark.cloud, pytest.mark.timeout(900)]

ROWS = 20_000
RATE = 2_000.0


@pytest.fixture
def gcs():
    with running_gcs("jobs") as server:
        yield server


@pytest.fixture
def dataproc(tmp_path, gcs):
    (tmp_path / "dataproc").mkdir()
    with running_dataproc(tmp_path / "dataproc", gcs) as server:
        yield server


@pytest.fixture
def bucket(request, gcs, monkeypatch):
    """The jobs' folder in Cloud Storage, or with the parameter ``s3`` in Amazon S3."""
    if getattr(request, "param", "gs") == "s3":
        with bucket_folder("s3", request) as found:
            yield open_files(found.location)
        return
    with pointing_at(gcs, monkeypatch):
        yield open_files("gs://jobs/refeed")


@pytest.fixture
def launcher(bucket, dataproc, tmp_path):
    conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    environment = spark_environment(tmp_path / "spark")
    if str(bucket).startswith("s3://"):
        yield SparkSubmitLauncher(
            find_spark_submit(), environment, master="local[2]", driver_memory="512m", conf=conf
        )
        return
    place = BatchPlace("shop", "europe-west1", "image", "2.3", 3600, host=dataproc.host)
    launcher = DataprocLauncher(Batches(place), bucket, environment, conf)
    yield launcher
    launcher.close()


@pytest.fixture
def host(tmp_path):
    server = PubSubServer(tmp_path / "pubsub")
    yield f"127.0.0.1:{server.start()}"
    server.stop()


@pytest.fixture
def pubsub(host):
    with PubSub("shop", host) as pubsub:
        pubsub.create_topic("replay")
        pubsub.create_subscription("listener", "replay")
        yield pubsub


@pytest.fixture
def folder(bucket, pubsub, host, tmp_path):
    rows = messages(ROWS, data=[b"x" * 100] * ROWS, attributes=[[]] * ROWS)
    write_commits(LakeArchive(str(tmp_path / "lake"), "backup.messages"), {"orders": rows})
    folder = BackfillFolder(bucket.folder("backfills").folder("bf_1"), logs=tmp_path)
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    folder.write_specification(
        {
            "query": {
                "sql": "SELECT * FROM refeed_archive WHERE topic = 'orders'",
                "parameters": {},
                "window": [(today - timedelta(days=1)).isoformat(), (today + timedelta(days=2)).isoformat()],
                "memory": "1GB",
            },
            "archive": {"lake": str(tmp_path / "lake"), "table": "backup.messages", "partitioning": "day"},
            "target": {
                "backfill_id": "bf_1",
                "topic_path": pubsub.topic_path("replay"),
                "emulator_host": host,
                "replay_token": replay_token("secret", "replay"),
            },
            "run": {},
        }
    )
    return folder


def receive_all(pubsub: PubSub) -> list[tuple[int, datetime]]:
    """Return number and time of every message that has been published."""
    received = receive_waiting(pubsub.channel, pubsub.subscription_path("listener"))
    return [(int(each.attributes["refeed_row"]), each.publish_time.ToDatetime(UTC)) for each in received]


@pytest.mark.parametrize("bucket", ["gs", "s3"], indirect=True)
def test_it_pauses_in_time_survives_the_kill_of_its_driver_and_publishes_all(folder, launcher, dataproc, pubsub):
    def launch(epoch):
        argument = json.dumps({"folder": folder.location, "epoch": epoch})
        return launcher.launch(Launch("bf_1", "backfill.job", argument, folder.driver_log, epoch))

    def published():
        return sum(c.published for c in CheckpointFolder(folder.progress).read_all())

    def log_of(driver):
        return dataproc.log_of(driver.name) if isinstance(driver, DataprocBatch) else folder.driver_log.read_text()

    def wait(driver, is_there, why):
        deadline = time.monotonic() + 240
        while not is_there():
            assert time.monotonic() < deadline, f"not within 240 s: {why}\n{log_of(driver)[-4000:]}"
            time.sleep(0.1)

    folder.write_control(Control(1, Order.RUN, RATE))
    first = launch(1)
    wait(first, lambda: published() > 0, "the first messages are out")

    folder.write_control(Control(1, Order.PAUSE, RATE))
    paused_at = datetime.now(UTC)
    wait(first, lambda: not folder.running_slices(1), "no task is at work")
    before = receive_all(pubsub)
    assert 0 < len(before) < ROWS
    assert max(at for _, at in before) < paused_at + timedelta(seconds=2)

    folder.write_control(Control(1, Order.RUN, RATE))
    wait(first, lambda: published() > len(before), "it goes on")
    launcher.kill(first)
    wait(first, lambda: launcher.exit_reason(first) is not None, "the batch is over")
    folder.write_control(Control(2, Order.RUN))
    second = launch(2)
    wait(second, lambda: folder.read_outcome(2) is not None, "the second attempt ends")

    outcome = folder.read_outcome(2)
    assert outcome.state is JobState.SUCCEEDED, outcome
    times = Counter(row for row, _ in before + receive_all(pubsub))
    assert sorted(times) == list(range(ROWS))
    repeated = sum(times.values()) - ROWS
    bound = sum(c.repeated_at_most for c in CheckpointFolder(folder.progress).read_all())
    assert repeated <= bound <= 2 * MAX_UNCONFIRMED_MESSAGES
    wait(second, lambda: launcher.exit_reason(second) is not None, "the batch is over")
    if isinstance(second, DataprocBatch):
        assert (launcher.exit_reason(second) or "").endswith("code 0.")
