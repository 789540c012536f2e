"""What steers a running backfill, with real drivers on one Spark Connect server; a job is a folder here."""

import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from backfill.run.dead_letters import list_dead_letters
from backfill.run.folder import BackfillFolder
from backfill.run.progress import CheckpointFolder
from cli.processes import free_port
from connectors.lake.archive import LakeArchive
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from connectors.spark.connect import ConnectServer
from connectors.spark.environment import spark_environment
from jobs.folder import Control, Order, Outcome
from jobs.launcher import ConnectLauncher, Launch
from model.job import JobState
from model.message import Message, replay_token
from model.process import Process
from rollout.child import Children
from tests.acceptance.receiving import receive_waiting
from tests.archive import messages, write_commits
from tests.worlds.processes import start_pubsub

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(400)]

PROJECT = "shop"
BULK_ROWS = 60_000
KEYS, KEY_ROWS, HOT_ROWS = 120, 20, 27_000
START = datetime(2024, 3, 1, tzinfo=UTC)


@dataclass
class Job:
    """One backfill's folder and the driver of its latest attempt."""

    folder: BackfillFolder
    launcher: ConnectLauncher
    listener: str
    epoch: int = 0
    driver: Process | None = None
    drivers: list[Process] = field(default_factory=list)
    controls: dict[str, Any] = field(default_factory=dict)

    def order(self, order=Order.RUN, **controls):
        self.controls = {**self.controls, **controls}
        self.folder.write_control(Control(self.epoch, order, **self.controls))
        return time.time()

    def launch(self, order=Order.RUN, **controls):
        self.epoch += 1
        self.order(order, **controls)
        argument = f'{{"folder": "{self.folder.path}", "epoch": {self.epoch}}}'
        self.driver = self.launcher.launch(Launch("job", "backfill.job", argument, self.folder.driver_log))
        self.drivers.append(self.driver)

    def kill(self):
        """Kill the driver, and fence its tasks as a supervisor does."""
        self.driver.signal_group(signal.SIGKILL)
        self.wait(lambda: self.driver is not None and not self.driver.is_alive, "the driver is dead")
        self.order(Order.STOP)

    def change_run(self, **run):
        specification = self.folder.read_specification()
        self.folder.write_specification({**specification, "run": {**specification["run"], **run}})

    @property
    def log(self):
        return self.folder.driver_log.read_text() if self.folder.has_log() else ""

    @property
    def checkpoints(self):
        return CheckpointFolder(self.folder.progress).read_all()

    @property
    def published(self):
        return sum(checkpoint.published for checkpoint in self.checkpoints)

    def wait(self, is_there, why, *, seconds=90.0):
        deadline = time.monotonic() + seconds
        while not is_there():
            ended = self.folder.read_outcome(self.epoch)
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {why}; {ended}\n{self.log[-4000:]}"
            time.sleep(0.02)

    def wait_for_end(self):
        self.wait(lambda: self.folder.read_outcome(self.epoch) is not None, "the attempt ends")
        outcome = self.folder.read_outcome(self.epoch)
        assert outcome is not None
        return outcome


class Yard:
    """A home with an archive, a Pub/Sub server and a warm Spark Connect server."""

    def __init__(self, home, children):
        self.home = home
        port = free_port()
        self.host = f"127.0.0.1:{port}"
        start_pubsub(children, home, port)
        self.pubsub = PubSub(PROJECT, self.host)
        environment = spark_environment(home / "spark")
        self.server = ConnectServer(home / "run", environment)
        self.launcher = ConnectLauncher(self.server, {**environment, "REFEED_PAUSE_IDLE_SECONDS": "8"})
        self.write_archive()
        self.server.start()

    def write_archive(self):
        archive = LakeArchive(str(self.home / "lake"), "backup.messages")
        keyed = [f"key-{n % KEYS}" for n in range(KEYS * KEY_ROWS)] + ["hot"] * HOT_ROWS
        write_commits(archive, {"bulk": rows_of([""] * BULK_ROWS), "keyed": rows_of(keyed, backwards=True)})

    def make_job(self, name, *, source="bulk", sql=None, **run):
        self.pubsub.create_topic(name)
        self.pubsub.create_subscription(f"{name}-listener", name, ordering=source == "keyed")
        folder = BackfillFolder(self.home / "backfills" / name)
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        folder.write_specification(
            {
                "query": {
                    "sql": sql or f"SELECT * FROM refeed_archive WHERE topic = '{source}'",
                    "parameters": {},
                    "window": [(today - timedelta(days=1)).isoformat(), (today + timedelta(days=2)).isoformat()],
                    "memory": "1GB",
                },
                "archive": {"lake": str(self.home / "lake"), "table": "backup.messages", "partitioning": "day"},
                "target": {
                    "backfill_id": name,
                    "topic_path": self.pubsub.topic_path(name),
                    "emulator_host": self.host,
                    "replay_token": replay_token("secret", name),
                },
                "run": run,
            }
        )
        return Job(folder, self.launcher, self.pubsub.subscription_path(f"{name}-listener"))

    def receive(self, job):
        """Take every message that waits, in the order of their arrival; none for a while means none is left."""
        return receive_waiting(self.pubsub.channel, job.listener)

    def close(self):
        self.pubsub.close()
        self.server.stop()


def rows_of(keys, *, backwards=False):
    numbers = range(len(keys))
    rows = messages(
        len(keys),
        data=[n.to_bytes(4, "big") * 25 for n in numbers],
        message_id=[str(n) for n in numbers],
        publish_time=[START + timedelta(milliseconds=n) for n in numbers],
        ordering_key=keys,
    )
    return rows.take(pa.array(numbers[::-1])) if backwards else rows


@pytest.fixture(scope="module")
def yard(tmp_path_factory):
    with Children() as children:
        yard = Yard(tmp_path_factory.mktemp("yard"), children)
        yield yard
        yard.close()


@pytest.fixture
def make_job(yard):
    jobs = []

    def make(name, **run):
        jobs.append(yard.make_job(name, **run))
        return jobs[-1]

    yield make
    for job in jobs:
        job.order(Order.STOP)
        for driver in job.drivers:
            job.launcher.kill(driver)


def sent_at(messages):
    return sorted(message.publish_time.ToNanoseconds() / 1e9 for message in messages)


def rows_in(messages):
    return Counter(int(message.attributes["refeed_row"]) for message in messages)


def test_a_rate_holds_over_two_tasks_together_and_changes_while_it_runs(yard, make_job):
    job = make_job("rated")
    job.launch(rate_limit_messages_per_second=1000.0)
    job.wait(lambda: job.published > 1000, "it publishes")
    assert len(job.folder.running_slices(1)) == 2

    slow_from = time.time()
    time.sleep(10)
    changed = job.order(rate_limit_messages_per_second=3000.0)
    # The driver looks ten times a second.
    time.sleep(11)
    cancelled = job.order(Order.STOP)
    assert job.wait_for_end().state is JobState.CANCELLED

    times = sent_at(yard.receive(job))
    slow = sum(slow_from <= at < slow_from + 10 for at in times)
    fast = sum(changed + 1 <= at < changed + 11 for at in times)
    assert slow == pytest.approx(10_000, rel=0.05)
    assert fast == pytest.approx(30_000, rel=0.05)
    assert sum(at > cancelled + 2 for at in times) == 0


def test_a_backfill_yields_to_a_subscription_that_lags_and_goes_on_when_it_has_caught_up(yard, make_job):
    live = yard.make_job("live")
    job = make_job("yielding", yield_to={"subscription": "live-listener", "max_oldest_unacked_seconds": 4.0})
    Publisher(yard.pubsub.channel, yard.pubsub.topic_path("live")).publish([Message(b"live")])
    # So that there is something left to yield with.
    job.launch(rate_limit_messages_per_second=3000.0)
    job.wait(lambda: job.published > 0 or "yields" in job.log, "it begins")
    job.wait(lambda: "limit_messages_per_second=0.0" in job.log, "it stops")
    stopped = time.time()
    time.sleep(3)
    before = yard.receive(job)
    assert sum(at > stopped + 1 for at in sent_at(before)) == 0
    assert len(before) < BULK_ROWS

    assert len(yard.receive(live)) == 1
    job.wait(lambda: job.published > len(before), "it goes on")
    job.order(rate_limit_messages_per_second=None)
    assert job.wait_for_end().state is JobState.SUCCEEDED
    assert rows_in(before + yard.receive(job)) == Counter(range(BULK_ROWS))


def test_without_its_driver_a_limited_backfill_does_not_run_on(yard, make_job):
    job = make_job("orphaned")
    job.launch(rate_limit_messages_per_second=500.0)
    job.wait(lambda: job.published > 500, "it publishes")

    # Nobody fences it: what its tasks may send is what they were given.
    job.driver.signal_group(signal.SIGKILL)
    killed = time.time()
    job.wait(lambda: job.folder.running_slices(1) == [], "its tasks end by themselves", seconds=60)

    assert sum(at > killed for at in sent_at(yard.receive(job))) <= 2 * 500


def test_one_that_crawls_by_its_limit_does_not_keep_another_from_running(yard, make_job):
    # Fifty slices on two places in Spark, none of which ends within the hour.
    crawling = make_job(
        "crawling", sql="SELECT * EXCLUDE range FROM refeed_archive, range(20) WHERE topic = 'bulk'"
    )
    crawling.launch(rate_limit_messages_per_second=5.0)
    crawling.wait(lambda: len(crawling.folder.running_slices(1)) == 2, "both places are taken")

    other = make_job("other", sql="SELECT * FROM refeed_archive WHERE topic = 'bulk' LIMIT 100")
    other.launch()

    assert other.wait_for_end() == Outcome(1, JobState.SUCCEEDED)
    assert crawling.folder.read_outcome(1) is None
    assert rows_in(yard.receive(other)) == Counter(range(100))


def test_a_long_pause_lets_go_of_spark_and_a_resume_takes_another_driver(yard, make_job):
    job = make_job("idle")
    job.launch(Order.PAUSE)

    assert job.wait_for_end() == Outcome(1, JobState.PAUSED)
    assert job.published == 0
    job.launch()
    assert job.wait_for_end() == Outcome(2, JobState.SUCCEEDED)
    assert rows_in(yard.receive(job)) == Counter(range(BULK_ROWS))


def test_what_failed_is_listed_ends_the_job_at_once_and_is_sent_again_alone(yard, make_job):
    # 95 attributes are added: no room for the tags beside them.
    added = {f"added-{n}": "" for n in range(95)}
    job = make_job("refused", attributes=added, max_failed=2)
    job.launch()

    ended = job.wait_for_end()

    assert (ended.state, (ended.error or {}).get("code")) == (JobState.FAILED, "messages_failed")
    assert job.published == 0
    page = list_dead_letters(job.folder, limit=1000)
    assert page.letters
    assert {letter.code for letter in page.letters} == {"no_room_for_tags"}

    failed = sum(checkpoint.failed for checkpoint in job.checkpoints)
    # Each slice stops at its first that is one too many.
    assert 3 <= failed == len(page.letters) <= 3 * 3
    job.change_run(attributes={"added": "one"}, only="failed")
    job.launch()
    ended = job.wait_for_end()

    assert (ended.error or {}).get("code") == "rows_left"
    first = yard.receive(job)
    assert len(first) == job.published == failed
    assert list_dead_letters(job.folder, limit=1000).letters == []

    job.change_run(only="all")
    job.launch()
    assert job.wait_for_end().state is JobState.SUCCEEDED
    received = first + yard.receive(job)
    assert rows_in(received) == Counter(range(BULK_ROWS))
    assert {message.attributes["added"] for message in received} == {"one"}


def test_by_key_every_key_is_in_its_order_over_tasks_pauses_and_kills(yard, make_job):
    job = make_job("keys", source="keyed", ordering="by_key")
    job.launch(rate_limit_messages_per_second=6000.0)
    job.wait(lambda: job.published > 4000, "it publishes")
    job.order(Order.PAUSE)
    job.wait(lambda: job.folder.running_slices(1) == [], "its tasks have ended")
    job.order(Order.RUN)
    job.wait(lambda: job.published > 8_000, "it publishes")
    job.order(Order.PAUSE)
    job.wait(lambda: job.folder.running_slices(1) == [], "its tasks have ended")
    job.kill()
    job.launch()
    job.wait(lambda: job.published > 14_000, "it publishes")
    job.kill()
    job.wait(lambda: job.folder.running_slices(2) == [], "the tasks on the server end by themselves", seconds=30)
    job.launch(rate_limit_messages_per_second=None)
    assert job.wait_for_end().state is JobState.SUCCEEDED

    count = KEYS * KEY_ROWS + HOT_ROWS
    received = yard.receive(job)
    assert {int(message.attributes["n"]) for message in received} == set(range(count))
    last = {}
    again = 0
    for message in received:
        n = int(message.attributes["n"])
        key = "hot" if n >= KEYS * KEY_ROWS else f"key-{n % KEYS}"
        assert message.ordering_key == key
        # What a kill lets go out twice goes out in order again.
        again += n <= last.get(key, -1)
        last[key] = n
    assert again <= sum(checkpoint.repeated_at_most for checkpoint in job.checkpoints)
    assert last["hot"] == count - 1
