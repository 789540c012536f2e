import json
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from google.pubsub_v1 import types

from connectors.pubsub.client import PubSub
from jobs.store import open_store
from model.settings import read_settings
from model.stream_options import StreamKind
from model.stream_record import Wanted
from streams.journal import Journal
from streams.lease import lock_home


def publish(pubsub: PubSub, *data: bytes) -> None:
    call = pubsub.channel.unary_unary(
        "/google.pubsub.v1.Publisher/Publish", types.PublishRequest.serialize, types.PublishResponse.deserialize
    )
    messages = [{"data": each} for each in data]
    call(types.PublishRequest(topic=pubsub.topic_path("orders"), messages=messages), timeout=10)


def take_all(pubsub: PubSub) -> list[bytes]:
    name = pubsub.subscription_path("refeed-backup.orders")
    pull = pubsub.channel.unary_unary(
        "/google.pubsub.v1.Subscriber/Pull", types.PullRequest.serialize, types.PullResponse.deserialize
    )
    request = types.PullRequest(subscription=name, max_messages=100, return_immediately=True)
    found = pull(request, timeout=10).received_messages
    if found:
        ack = pubsub.channel.unary_unary(
            "/google.pubsub.v1.Subscriber/Acknowledge", types.AcknowledgeRequest.serialize, None
        )
        ack(types.AcknowledgeRequest(subscription=name, ack_ids=[m.ack_id for m in found]), timeout=10)
    return [m.message.data for m in found]


def test_a_restore_delivers_again_what_came_after_the_snapshot(refeed, pubsub_server):
    assert refeed("attach", "orders", "members").code == 0
    with PubSub("refeed-local", pubsub_server.emulator_host) as pubsub:
        publish(pubsub, b"before")
        assert take_all(pubsub) == [b"before"]
        made = json.loads(refeed("backup", "snapshot", "repair-1", "--json").out)
        assert [(s["name"], s["topic"]) for s in made] == [("repair-1", "members"), ("repair-1", "orders")]
        publish(pubsub, b"after")
        assert take_all(pubsub) == [b"after"]
        assert take_all(pubsub) == []
        assert refeed("backup", "restore", "repair-1", "--yes").code == 0
        assert take_all(pubsub) == [b"after"]


def test_after_a_restore_the_backup_knows_nothing_but_what_the_archive_has(refeed, pubsub_server, home):
    assert refeed("attach", "orders").code == 0
    assert refeed("backup", "snapshot", "one").code == 0
    journal = Journal(home / "streams" / "backup" / "journal", keep_seconds=600)
    ids = {"topic": ["orders"], "subscription": [""], "message_id": ["1"], "ack_id": [""]}
    journal.remember(1, pa.table({**ids, "publish_time": [datetime(2026, 3, 1, tzinfo=UTC)]}))
    assert not journal.mark.is_asked
    with lock_home(home / "streams" / "backup"):
        assert "lease_held" in refeed("backup", "restore", "one", "--yes").err
    assert refeed("backup", "restore", "one", "--yes").code == 0
    left = Journal(home / "streams" / "backup" / "journal", keep_seconds=600)
    assert left.mark.is_asked
    # Nothing waited at the snapshot, so that only what was published since can come again.
    assert timedelta(0) < datetime.now(UTC) - left.mark.learn_since < timedelta(minutes=1)
    assert left.last_attempt() == 0


def test_a_backup_that_an_agent_runs_has_one_way_only(refeed, pubsub_server, home):
    assert refeed("attach", "orders").code == 0
    assert refeed("backup", "snapshot", "one").code == 0
    with closing(open_store(read_settings({"REFEED_HOME": str(home)}).job_store)) as store:
        store.launch_stream("vault", StreamKind.BACKUP, actor="ann")
        assert "refeed snapshot vault" in refeed("backup", "snapshot", "two").err
        assert "refeed restore vault" in refeed("backup", "restore", "one", "--yes").err
        store.end_stream("vault", Wanted.DRAINED, actor="ann")
    assert refeed("backup", "restore", "one", "--yes").code == 0


def test_snapshots_are_listed_and_forgotten(refeed, pubsub_server):
    assert "No topic is attached" in refeed("backup", "snapshot", "one").err
    assert refeed("attach", "orders").code == 0
    assert refeed("backup", "snapshot", "one").code == 0
    assert refeed("backup", "snapshot", "two").code == 0
    assert [s["name"] for s in json.loads(refeed("backup", "snapshots", "--json").out)] == ["one", "two"]
    assert refeed("backup", "forget", "one").code == 0
    assert [s["name"] for s in json.loads(refeed("backup", "snapshots", "--json").out)] == ["two"]
    assert "snapshot_not_found" in refeed("backup", "restore", "one", "--yes").err


@pytest.mark.parametrize("name", ["Big", "a.b", "", "x" * 41])
def test_a_name_that_pubsub_would_not_take_is_refused(refeed, pubsub_server, name):
    assert "not a valid name for a snapshot" in refeed("backup", "snapshot", name).err
