import errno
import json
import time
from pathlib import Path
from typing import Any

import pytest
from google.pubsub_v1 import types

from local import configs
from local.resources import Resources
from local.status import StatusError
from local.wire import parse_ack_ids
from model.errors import CheckpointCorruptError

TOPIC = "projects/p/topics/orders"
SUBSCRIPTION = "projects/p/subscriptions/orders"
SNAPSHOT = "projects/p/snapshots/before"
PullResponse = types.PullResponse.pb()


def topic(**settings: Any) -> Any:
    return configs.TopicConfig(name=TOPIC, **settings)


def subscription(name: str = SUBSCRIPTION, **settings: Any) -> Any:
    return configs.SubscriptionConfig(name=name, topic=TOPIC, **settings)


def publish(resources: Resources, *data: bytes) -> None:
    resources.topic(TOPIC).log.append(
        [types.PubsubMessage.serialize(types.PubsubMessage(data=each)) for each in data]
    )


def consume(resources: Resources, name: str = SUBSCRIPTION) -> list[bytes]:
    working = resources.subscription(name).working
    got = PullResponse.FromString(working.take(1000, 10**7)).received_messages
    if got:
        working.acknowledge(parse_ack_ids(m.ack_id for m in got))
    return [m.message.data for m in got]


@pytest.fixture
def resources(tmp_path: Path) -> Resources:
    made = Resources(tmp_path, segment_bytes=1)
    made.create_topic(topic(labels={"a": "b"}))
    made.create_subscription(subscription(filter='attributes.a = "å"', labels={"c": "d"}))
    return made


def test_everything_is_there_after_a_restart(resources: Resources, tmp_path: Path) -> None:
    resources.create_subscription(subscription("projects/p/subscriptions/all"))
    publish(resources, b"a", b"b")
    resources.create_snapshot(SNAPSHOT, "projects/p/subscriptions/all", {"e": "f"})
    assert consume(resources, "projects/p/subscriptions/all") == [b"a", b"b"]
    resources.close()
    again = Resources(tmp_path)
    assert again.topic(TOPIC).config == resources.topic(TOPIC).config
    assert again.subscription(SUBSCRIPTION).config == resources.subscription(SUBSCRIPTION).config
    assert again.snapshot(SNAPSHOT).config == resources.snapshot(SNAPSHOT).config
    assert consume(again, "projects/p/subscriptions/all") == []
    again.seek_to_snapshot("projects/p/subscriptions/all", SNAPSHOT)
    assert consume(again, "projects/p/subscriptions/all") == [b"a", b"b"]


def test_segments_go_when_nobody_needs_them(resources: Resources, tmp_path: Path) -> None:
    everything = "projects/p/subscriptions/all"
    resources.create_subscription(subscription(everything))

    def segments() -> int:
        resources.clean_up()
        return len(list(tmp_path.glob("topics/*/*.log")))

    for n in range(5):
        publish(resources, b"%d" % n)
    assert segments() == 5
    resources.create_snapshot(SNAPSHOT, everything, {})
    assert len(consume(resources, everything)) == 5
    assert segments() == 5
    assert consume(resources) == []
    assert segments() == 5
    resources.delete_snapshot(SNAPSHOT)
    assert segments() == 1


def test_retained_segments_stay_for_a_seek(tmp_path: Path) -> None:
    resources = Resources(tmp_path, segment_bytes=1)
    resources.create_topic(topic())
    resources.create_subscription(subscription(retain_acked_messages=True))
    for n in range(3):
        publish(resources, b"%d" % n)
        consume(resources)
    resources.clean_up()
    resources.seek_to_time(SUBSCRIPTION, 0)
    assert consume(resources) == [b"0", b"1", b"2"]


def test_an_expired_snapshot_is_dropped(resources: Resources) -> None:
    made = resources.create_snapshot(SNAPSHOT, SUBSCRIPTION, {})
    made.expire_time.FromSeconds(int(time.time()) - 1)
    resources.clean_up()
    with pytest.raises(StatusError, match="resource=before"):
        resources.snapshot(SNAPSHOT)


def test_the_files_of_what_is_deleted_go(resources: Resources, tmp_path: Path) -> None:
    publish(resources, b"a")
    resources.delete_topic(TOPIC)
    assert list(tmp_path.glob("topics/*/*.log"))
    resources.delete_subscription(SUBSCRIPTION)
    assert not list(tmp_path.glob("topics/*"))
    assert not list(tmp_path.glob("subscriptions/*"))
    assert Resources(tmp_path).topics == {}


def test_files_that_a_crash_left_behind_are_removed_at_start(resources: Resources, tmp_path: Path) -> None:
    (tmp_path / "topics" / "99").mkdir()
    (tmp_path / "subscriptions" / "98.acks").write_bytes(b"left")
    (tmp_path / "resources.new").write_text("half")
    again = Resources(tmp_path)
    assert not (tmp_path / "topics" / "99").exists()
    assert not (tmp_path / "subscriptions" / "98.acks").exists()
    assert again.topic(TOPIC)


def test_a_full_disk_creates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resources = Resources(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(json, "dump", full)
        with pytest.raises(StatusError, match="disk is full"):
            resources.create_topic(topic())
    assert TOPIC not in resources.topics
    resources.create_topic(topic())
    with monkeypatch.context() as patch:
        patch.setattr(json, "dump", full)
        with pytest.raises(StatusError, match="disk is full"):
            resources.create_subscription(subscription())
        with pytest.raises(StatusError, match="disk is full"):
            resources.update_topic(topic(labels={"x": "y"}), ["labels"])
        with pytest.raises(StatusError, match="disk is full"):
            resources.delete_topic(TOPIC)
    assert SUBSCRIPTION not in resources.subscriptions
    assert not resources.topic(TOPIC).config.labels


def test_an_unreadable_resources_file_says_which_and_what_to_do(resources: Resources, tmp_path: Path) -> None:
    (tmp_path / "resources.json").write_text("{half")
    with pytest.raises(CheckpointCorruptError, match=r"resources\.json can't be read"):
        Resources(tmp_path)
