import json
from collections.abc import Callable
from typing import Any

import pytest
from google.pubsub_v1 import types

from connectors.pubsub.client import PubSub
from local.server import PubSubServer


def publish(pubsub: PubSub, *data: bytes) -> None:
    call = pubsub.channel.unary_unary(
        "/google.pubsub.v1.Publisher/Publish", types.PublishRequest.serialize, types.PublishResponse.deserialize
    )
    messages = [{"data": each} for each in data]
    call(types.PublishRequest(topic=pubsub.topic_path("orders"), messages=messages), timeout=10)


def take_all(pubsub: PubSub) -> list[bytes]:
    """Pull and acknowledge what the backup subscription of orders has."""
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


def test_a_restore_delivers_again_what_came_after_the_snapshot(
    refeed: Callable[..., Any], pubsub_server: PubSubServer
) -> None:
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


def test_snapshots_are_listed_and_forgotten(refeed: Callable[..., Any], pubsub_server: PubSubServer) -> None:
    assert "Nothing is attached" in refeed("backup", "snapshot", "one").err
    assert refeed("attach", "orders").code == 0
    assert refeed("backup", "snapshot", "one").code == 0
    assert refeed("backup", "snapshot", "two").code == 0
    assert [s["name"] for s in json.loads(refeed("backup", "snapshots", "--json").out)] == ["one", "two"]
    assert refeed("backup", "forget", "one").code == 0
    assert [s["name"] for s in json.loads(refeed("backup", "snapshots", "--json").out)] == ["two"]
    assert "snapshot_not_found" in refeed("backup", "restore", "one", "--yes").err


@pytest.mark.parametrize("name", ["Big", "a.b", "", "x" * 41])
def test_a_name_that_pubsub_would_not_take_is_refused(
    refeed: Callable[..., Any], pubsub_server: PubSubServer, name: str
) -> None:
    assert "no name of a snapshot" in refeed("backup", "snapshot", name).err
