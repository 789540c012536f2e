"""A Spark cluster of a master and two workers: one of them killed while a backup and while a backfill run."""

import json
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from cli.processes import free_port, is_listening
from rollout.child import Child, Children
from tests.acceptance.conftest import Backyard
from tests.integration.cluster import Cluster, install_wheel
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.kills, pytest.mark.timeout(900)]

EXECUTOR = {
    "spark.executor.memory": "600m",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    # Everything of this cluster is on loopback.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class ClusterYard(Backyard):
    """A home whose streams and jobs run on the cluster, from the wheel."""

    def __init__(self, home: Path, children: Children, cluster: Cluster, python: Path) -> None:
        super().__init__(home, children)
        self._python = python
        self.environment |= {
            "REFEED_SPARK_MASTER": cluster.master,
            "REFEED_SPARK_CONF": json.dumps(EXECUTOR),
            "REFEED_LAUNCHER": "spark-submit",
            "PYTHONSAFEPATH": "1",
        }

    def start(self, name: str, *arguments: str) -> Child:
        command = [str(self._python), "-m", "cli.main", *arguments]
        log = self.home / "logs" / f"{name}.log"
        return self._children.start(Child(name, command, environment=self.environment, log=log))

    def pull_replays(self, topic: str, count: int) -> Counter[tuple[str, str]]:
        """Take ``count`` different messages from a subscription; return how often each original came."""
        found: Counter[tuple[str, str]] = Counter()
        deadline = time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages arrived"
            found.update(self._pull(topic))
        return found

    def _pull(self, topic: str) -> list[tuple[str, str]]:
        from google.pubsub_v1.types import PullRequest, PullResponse

        call = self.pubsub.channel.unary_unary(
            "/google.pubsub.v1.Subscriber/Pull", PullRequest.serialize, PullResponse.deserialize
        )
        request = PullRequest(subscription=self.pubsub.subscription_path(topic), max_messages=10_000)
        messages = call(request, timeout=30).received_messages
        tags = ("refeed_topic", "refeed_message_id")
        return [(m.message.attributes[tags[0]], m.message.attributes[tags[1]]) for m in messages]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return install_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def children():
    with Children() as started:
        yield started


@pytest.fixture
def cluster(tmp_path, children, python):
    return Cluster(tmp_path / "cluster", children, python)


@pytest.fixture
def yard(tmp_path, children, cluster, python):
    return ClusterYard(tmp_path / "home", children, cluster, python)


def test_the_wheel_alone_has_all_of_refeed(python, tmp_path):
    command = [str(python), "-c", "import backup.job, sys; sys.exit(0 if '/venv/' in backup.job.__file__ else 1)"]
    child = Child("import", command, environment={"PYTHONSAFEPATH": "1"}, log=tmp_path / "import.log").start()
    wait_until(lambda: not child.is_running, seconds=60, why="the import ends")
    assert child.exit_code == 0, child.log_tail()


def test_a_worker_killed_during_a_backup_and_one_during_a_backfill_lose_nothing(yard, cluster):
    yard.attach("orders", "members")
    yard.publish("orders", 2_000)
    backup = yard.start("backup", "backup")

    def is_under_way():
        assert backup.is_running, backup.ended_error().message
        yard.publish("orders", 5, seed=time.monotonic_ns())
        return yard.unacked() < len(yard.published)

    wait_until(
        is_under_way,
        seconds=180,
        every_seconds=0.05,
        why=f"the first messages are archived and acknowledged; {backup.log_tail()}",
    )
    cluster.workers[0].kill()
    for seed in range(20):
        yard.publish("members", 200, seed)
    yard.wait_until_archived(backup, seconds=180)
    yard.check_archive()
    assert backup.stop(seconds=60) == 0

    cluster.workers[0] = cluster.add_worker(2)
    yard.pubsub.create_topic("again")
    yard.pubsub.create_subscription("again", "again")
    port = free_port()
    api = yard.start("api", "api", "--open", "--port", str(port))
    api.wait_until(lambda: is_listening(f"127.0.0.1:{port}"), seconds=60, what="begun to listen")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        asked = {
            "query": "SELECT data, attributes, message_id, topic, publish_time FROM backup.messages "
            "WHERE _PARTITIONTIME >= TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL 2 DAY)",
            "topic": "again",
            "rate_limit_messages_per_second": 500,
        }
        backfill = http.post("/backfills", json=asked).raise_for_status().json()

        def look():
            return http.get(f"/jobs/{backfill['id']}").raise_for_status().json()

        # Whichever worker has the task: one of the two that are killed has it.
        for place, published in enumerate((500, 4_000)):
            wait_until(
                lambda published=published: look()["progress"]["published"] > published,
                seconds=180,
                every_seconds=0.05,
                why=f"it publishes; {look()}; {api.log_tail()}",
            )
            cluster.workers.append(cluster.add_worker(3 + place))
            cluster.workers[place].kill()
        wait_until(
            lambda: look()["state"] == "SUCCEEDED", seconds=300, every_seconds=0.05, why=f"it ends; {look()}"
        )
        progress = look()["progress"]
    arrived = yard.pull_replays("again", len(yard.published))
    assert set(arrived) == set(yard.published)
    assert progress["selected"] == progress["published"] == len(yard.published)
    assert arrived.total() - len(arrived) <= progress["repeated_at_most"]
