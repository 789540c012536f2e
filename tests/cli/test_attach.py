import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from connectors.pubsub.client import PubSub
from local.server import PubSubServer
from model.message import replay_filter, replay_token


def test_attaching_makes_the_topic_and_a_subscription_that_leaves_replays_out(
    refeed: Callable[..., Any], pubsub_server: PubSubServer, home: Path
) -> None:
    result = refeed("attach", "orders", "members", "--json")
    assert result.code == 0
    secret = (home / "secret").read_text()
    assert json.loads(result.out) == [
        {
            "topic": topic,
            "subscription": f"refeed-backup.{topic}",
            "filter": replay_filter(replay_token(secret, topic)),
        }
        for topic in ("orders", "members")
    ]
    with PubSub("refeed-local", pubsub_server.emulator_host) as pubsub:
        assert [s.id for s in pubsub.list_subscriptions("orders")] == ["refeed-backup.orders"]


def test_attaching_twice_is_attaching_once(refeed: Callable[..., Any], pubsub_server: PubSubServer) -> None:
    assert refeed("attach", "orders").out == refeed("attach", "orders").out


def test_another_deployment_s_secret_is_refused(
    refeed: Callable[..., Any], pubsub_server: PubSubServer, home: Path
) -> None:
    assert refeed("attach", "orders").code == 0
    (home / "secret").unlink()
    result = refeed("attach", "orders")
    assert result.code == 1
    assert "subscription_mismatch" in result.err


def test_a_wrong_name_attaches_none_of_them(refeed: Callable[..., Any], pubsub_server: PubSubServer) -> None:
    result = refeed("attach", "orders", "1orders")
    assert result.code == 1
    assert "name_invalid" in result.err
    with PubSub("refeed-local", pubsub_server.emulator_host) as pubsub:
        assert pubsub.list_topics() == []
