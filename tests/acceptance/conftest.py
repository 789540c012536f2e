import json
import random
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest

from cli.processes import free_port, is_listening
from connectors.lake.archive import LakeArchive
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from model.message import Message, replay_token
from model.settings import read_settings
from model.window import Window
from rollout.child import Children
from streams.folder import read_statuses
from tests.waiting import wait_until
from tests.worlds.processes import plain_environment, start_numbered, start_pubsub
from warehouse.open import open_warehouse


class Backyard:
    """A home with a Pub/Sub server and a backup stream as processes, and all that was published."""

    def __init__(self, home, children, *, server_options=(), **environment):
        self.home = home
        self.port = free_port()
        self.environment = plain_environment(
            REFEED_HOME=str(home),
            PUBSUB_EMULATOR_HOST=f"127.0.0.1:{self.port}",
            REFEED_ACK_DEADLINE_SECONDS="10",
            REFEED_BACKUP_BATCH_SECONDS="0.3",
        )
        self.environment |= environment
        self.settings = read_settings(self.environment)
        self._children = children
        self.server = start_pubsub(children, home, self.port, *server_options, environment=self.environment)
        self.pubsub = PubSub(self.settings.project, self.settings.pubsub_emulator_host)
        self.published: dict[tuple[str, str], Message] = {}

    def wait_for_server(self):
        self.server.wait_until(lambda: is_listening(f"127.0.0.1:{self.port}"), seconds=20, what="begun to listen")

    def attach(self, *topics):
        for topic in topics:
            self.pubsub.create_topic(topic)
            token = replay_token(self.settings.replay_secret(), topic)
            self.pubsub.attach_backup(topic, token=token, ack_deadline_seconds=10)

    def publish(self, topic, count, seed=0):
        dice = random.Random(f"{topic}{seed}")
        messages = [
            Message(
                data=dice.randbytes(dice.choice([0, 1, 100, 2_000])),
                attributes={"n": str(number), "ключ": "вäl🙂" * dice.randrange(4), "refeed_row": "mine"},
            )
            for number in range(count)
        ]
        ids = Publisher(self.pubsub.channel, self.pubsub.topic_path(topic)).publish(messages)
        self.published |= {(topic, i): message for i, message in zip(ids, messages, strict=True)}

    def start_backup(self, *arguments, **environment):
        return self.start("backup", "backup", *arguments, **environment)

    def start_agent(self, **environment):
        return self.start("agent", "agent", **environment)

    def start(self, name, *command, **environment):
        return start_numbered(
            self._children, self.home, name, *command, environment=self.environment, **environment
        )

    def archived(self):
        archive = LakeArchive(self.settings.lake, self.settings.archive_table)
        rows = []
        for file in archive.data_files():
            rows += pq.ParquetFile(file.path).read().to_pylist()
        return rows

    def archived_ids(self):
        return Counter((row["topic"], row["message_id"]) for row in self.archived())

    def stats(self):
        call = self.pubsub.channel.unary_unary(
            "/refeed.local.Stats/Get", request_serializer=None, response_deserializer=None
        )
        return json.loads(call(b"", timeout=10))

    def unacked(self):
        return sum(s["undelivered_messages"] + s["leased_messages"] for s in self.stats().values())

    def wait_until_archived(self, backup, *, seconds=240):
        """Wait until nothing is on its way any more: a message that comes twice would have come by then.

        The stream says that it runs then, also where nothing was left for it: a SIGTERM to one that only starts
        ends it, and drains nothing.
        """

        def is_archived():
            if not backup.is_running:
                raise backup.ended_error()
            running = {status["pid"] for _, status in read_statuses(self.home) if status["state"] == "running"}
            return backup.pid in running and self.unacked() == 0

        wait_until(
            is_archived,
            seconds=seconds,
            every_seconds=0.05,
            why=f"all is acknowledged; the stream's log: {backup.log_tail()}",
        )

    def check_archive(self):
        """Nothing lost, nothing twice, not one byte changed."""
        rows = self.archived()
        ids = Counter((row["topic"], row["message_id"]) for row in rows)
        assert {key: n for key, n in ids.items() if n > 1} == {}
        assert set(ids) == set(self.published)
        for row in rows:
            message = self.published[row["topic"], row["message_id"]]
            assert row["data"] == message.data
            assert {pair["key"]: pair["value"] for pair in row["attributes"]} == message.attributes
        self.check_volumes(rows)

    def check_volumes(self, rows):
        """The archive's volumes are those of its rows, by hour and topic, in messages and in bytes."""
        counted = {}
        for row in rows:
            hour = row["ingest_time"].replace(minute=0, second=0, microsecond=0)
            of_topic = counted.setdefault((hour, row["topic"]), [0, 0])
            of_topic[0] += 1
            of_topic[1] += len(row["data"])
        now = datetime.now(UTC)
        with closing(open_warehouse(self.settings).open_archive()) as archive:
            found = archive.volumes(Window(now - timedelta(days=2), now + timedelta(days=1)))
        by_hour = found.by_hour.items()
        said = {(hour, topic): list(volume) for hour, topics in by_hour for topic, volume in topics.items()}
        assert (said, found.unknown) == (counted, ())


def kill_at(stream, marker, send, *, seconds=180):
    """Kill a stream once it has passed its failpoint; ``send`` gives it something to hold there."""

    def is_hit():
        if stream.is_running and not marker.exists():
            send()
        assert stream.is_running or marker.exists(), stream.ended_error().message
        return marker.exists()

    why = f"{marker.name} was passed; the stream's log: {stream.log_tail()}"
    wait_until(is_hit, seconds=seconds, every_seconds=0.05, why=why)
    stream.kill()


@pytest.fixture
def backyard(tmp_path):
    with Children() as children:
        yield Backyard(tmp_path / "home", children)
