import time
from typing import Any

import grpc
import pytest
from google.pubsub_v1 import types

from local import acklog, catalog, configs
from local.resources import Resources
from local.status import StatusError
from local.wire import parse_ack_ids
from model.errors import CheckpointCorruptError
from tests.worlds.full_disk import full

TOPIC = "projects/p/topics/orders"
SUBSCRIPTION = "projects/p/subscriptions/orders"
SNAPSHOT = "projects/p/snapshots/before"
PullResponse = types.PullResponse.pb()
DAY = 86_400


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
def resources(tmp_path):
    made = Resources(tmp_path, segment_bytes=1)
    made.create_topic(topic(labels={"a": "b"}))
    made.create_subscription(subscription(filter='attributes.a = "å"', labels={"c": "d"}))
    return made


def test_everything_is_there_after_a_restart(resources, tmp_path):
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


@pytest.mark.parametrize("number", [0x8000, 0x1_0005])
def test_a_folder_may_have_had_any_number_of_resources(tmp_path, number):
    made = Resources(tmp_path)
    made.create_topic(topic())
    made.create_subscription(subscription())
    made._next_number = number
    made.create_subscription(subscription("projects/p/subscriptions/late"))
    publish(made, b"a")
    assert consume(made) == consume(made, "projects/p/subscriptions/late") == [b"a"]
    assert consume(made, "projects/p/subscriptions/late") == []
    assert made.read_stats()["projects/p/subscriptions/late"]["undelivered_messages"] == 0


@pytest.mark.parametrize(("is_log_cut", "hours"), [(True, 0), (False, 1)])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_ids_of_a_topic_that_is_made_again_grow_whatever_was_passed_over_or_the_clock_says(
    tmp_path, monkeypatch, *, is_log_cut, hours, is_restarted
):
    made = Resources(tmp_path)
    made.create_topic(topic())
    if is_log_cut:
        made.topic(TOPIC).log.claim(1)
    body = types.PubsubMessage.serialize(types.PubsubMessage(data=b"a"))
    last_id = made.publish(TOPIC, [body])
    made.delete_topic(TOPIC)
    if is_restarted:
        made.close()
        made = Resources(tmp_path)
    monkeypatch.setattr("time.time_ns", lambda now=time.time_ns: now() - hours * 3600 * 10**9)
    made.create_topic(topic())
    assert made.publish(TOPIC, [body]) > last_id


def test_segments_go_when_nobody_needs_them(resources, tmp_path):
    everything = "projects/p/subscriptions/all"
    resources.create_subscription(subscription(everything))

    def segments():
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


def test_retained_segments_stay_for_a_seek(tmp_path):
    resources = Resources(tmp_path, segment_bytes=1)
    resources.create_topic(topic())
    resources.create_subscription(subscription(retain_acked_messages=True))
    for n in range(3):
        publish(resources, b"%d" % n)
        consume(resources)
    resources.clean_up()
    resources.seek_to_time(SUBSCRIPTION, 0)
    assert consume(resources) == [b"0", b"1", b"2"]


def test_a_message_goes_when_neither_its_subscription_nor_its_topic_keeps_it(tmp_path, monkeypatch):
    resources = Resources(tmp_path)
    resources.create_topic(topic(message_retention_duration={"seconds": 10 * DAY}))
    resources.create_subscription(subscription())
    publish(resources, b"a")
    now = time.time_ns()
    for days, floor in ((8, 0), (11, 1)):
        monkeypatch.setattr("time.time_ns", lambda days=days: now + days * DAY * 10**9)
        resources.clean_up()
        assert resources.subscription(SUBSCRIPTION).working.floor == floor


def test_an_expired_snapshot_is_dropped(resources):
    made = resources.create_snapshot(SNAPSHOT, SUBSCRIPTION, {})
    made.expire_time.FromSeconds(int(time.time()) - 1)
    resources.clean_up()
    with pytest.raises(StatusError, match="resource=before"):
        resources.snapshot(SNAPSHOT)


def test_a_snapshot_lives_seven_days_less_the_age_of_the_oldest_open_message(resources, monkeypatch):
    resources.create_subscription(subscription("projects/p/subscriptions/all"))
    publish(resources, b"old")
    published = time.time()
    monkeypatch.setattr("time.time", lambda: published + 3 * DAY)
    made = resources.create_snapshot(SNAPSHOT, "projects/p/subscriptions/all", {})
    assert abs(made.expire_time.ToMicroseconds() / 1_000_000 - published - 7 * DAY) <= 1
    consume(resources, "projects/p/subscriptions/all")
    fresh = resources.create_snapshot(SNAPSHOT + "-2", "projects/p/subscriptions/all", {})
    assert abs(fresh.expire_time.ToMicroseconds() / 1_000_000 - published - 10 * DAY) <= 1


def test_a_snapshot_that_would_expire_within_an_hour_is_refused(resources, monkeypatch):
    resources.create_subscription(subscription("projects/p/subscriptions/all"))
    publish(resources, b"old")
    published = time.time()
    monkeypatch.setattr("time.time", lambda: published + 7 * DAY - 3500)
    with pytest.raises(StatusError, match="less than 1 hour") as raised:
        resources.create_snapshot(SNAPSHOT, "projects/p/subscriptions/all", {})
    assert raised.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert resources.snapshots == {}
    monkeypatch.setattr("time.time", lambda: published + 7 * DAY - 3700)
    resources.create_snapshot(SNAPSHOT, "projects/p/subscriptions/all", {})


def test_a_project_has_no_more_snapshots_than_its_limit(resources, monkeypatch):
    monkeypatch.setattr("local.resources.MAX_SNAPSHOTS", 2)
    for number in range(2):
        resources.create_snapshot(f"{SNAPSHOT}-{number}", SUBSCRIPTION, {})
    with pytest.raises(StatusError, match="snapshots-per-project") as raised:
        resources.create_snapshot(f"{SNAPSHOT}-2", SUBSCRIPTION, {})
    assert raised.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    resources.create_snapshot("projects/q/snapshots/another-project", SUBSCRIPTION, {})
    resources.delete_snapshot(f"{SNAPSHOT}-0")
    resources.create_snapshot(f"{SNAPSHOT}-2", SUBSCRIPTION, {})


def test_a_snapshot_without_a_name_is_given_one(resources):
    made = resources.create_snapshot("", SUBSCRIPTION, {})
    assert made.name.startswith("projects/p/snapshots/")
    assert resources.snapshot(made.name).config == made


def test_the_files_of_what_is_deleted_go(resources, tmp_path):
    publish(resources, b"a")
    resources.delete_topic(TOPIC)
    assert list(tmp_path.glob("topics/*/*.log"))
    resources.delete_subscription(SUBSCRIPTION)
    assert not list(tmp_path.glob("topics/*"))
    assert not list(tmp_path.glob("subscriptions/*"))
    assert Resources(tmp_path).topics == {}


def test_files_that_a_crash_left_behind_are_removed_at_start(resources, tmp_path):
    (tmp_path / "topics" / "99").mkdir()
    (tmp_path / "subscriptions" / "98.acks").write_bytes(b"left")
    (tmp_path / "resources.new").write_text("half")
    again = Resources(tmp_path)
    assert not (tmp_path / "topics" / "99").exists()
    assert not (tmp_path / "subscriptions" / "98.acks").exists()
    assert again.topic(TOPIC)


def test_a_full_disk_creates_nothing(tmp_path, monkeypatch):
    resources = Resources(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "write_all", full)
        with pytest.raises(StatusError, match="disk is full"):
            resources.create_topic(topic())
    assert TOPIC not in resources.topics
    assert not list((tmp_path / "topics").iterdir())
    resources.create_topic(topic())
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "write_all", full)
        with pytest.raises(StatusError, match="disk is full"):
            resources.create_subscription(subscription())
        with pytest.raises(StatusError, match="disk is full"):
            resources.update_topic(topic(labels={"x": "y"}), ["labels"])
        with pytest.raises(StatusError, match="disk is full"):
            resources.delete_topic(TOPIC)
    assert SUBSCRIPTION not in resources.subscriptions
    assert not list((tmp_path / "subscriptions").iterdir())
    assert not resources.topic(TOPIC).config.labels


def test_a_full_disk_does_not_keep_what_retention_has_ended(tmp_path, monkeypatch):
    resources = Resources(tmp_path, segment_bytes=1)
    resources.create_topic(topic())
    resources.create_subscription(subscription())
    for n in range(5):
        publish(resources, b"%d" % n)
    resources.create_snapshot(SNAPSHOT, SUBSCRIPTION, {})

    monkeypatch.setattr(acklog, "write_all", full)
    monkeypatch.setattr(catalog, "write_all", full)
    now = time.time_ns()
    monkeypatch.setattr("time.time_ns", lambda: now + 8 * DAY * 10**9)
    resources.clean_up()
    assert len(list(tmp_path.glob("topics/*/*.log"))) == 1
    monkeypatch.undo()
    again = Resources(tmp_path)
    publish(again, b"next")
    assert consume(again)[-1:] == [b"next"]


def test_creating_a_resource_writes_as_much_whatever_there_is_already(tmp_path, monkeypatch):
    written = []
    write_all, write_catalog = catalog.write_all, catalog.write_catalog

    def note_change(descriptor, data, offset):
        written.append(len(data))
        write_all(descriptor, data, offset)

    def note_state(folder, content):
        write_catalog(folder, content)
        written.append((folder / "resources.json").stat().st_size)

    monkeypatch.setattr(catalog, "_MIN_REWRITE_BYTES", 4096)
    monkeypatch.setattr(catalog, "write_all", note_change)
    monkeypatch.setattr(catalog, "write_catalog", note_state)
    resources = Resources(tmp_path)

    def create(start, count):
        written.clear()
        for number in range(start, start + count):
            resources.create_topic(configs.TopicConfig(name=f"projects/p/topics/t{number:04}"))
        return sum(written)

    few = create(0, 100)
    # Four times as many on top of them: about four times the bytes, a rewrite now and then included.
    many = create(1000, 400)
    assert many < 6 * few
    assert many < 6 * create(2000, 100)
    assert len(Resources(tmp_path).topics) == 600


def test_changes_are_read_over_the_state_that_they_are_in_already(resources, tmp_path, monkeypatch):
    resources.create_subscription(subscription("projects/p/subscriptions/gone"))
    resources.delete_subscription("projects/p/subscriptions/gone")
    changes = (tmp_path / "resources.changes").read_bytes()
    monkeypatch.setattr(catalog, "_MIN_REWRITE_BYTES", 0)
    resources._catalog._whole_bytes = 0
    resources.update_topic(topic(labels={"x": "y"}), ["labels"])
    resources.close()
    left = (tmp_path / "resources.changes").read_bytes()
    assert len(left) < len(changes)
    # As a crash leaves it between the rewrite and the cut.
    (tmp_path / "resources.changes").write_bytes(changes + left)
    again = Resources(tmp_path)
    assert again.topic(TOPIC).config.labels == {"x": "y"}
    assert list(again.subscriptions) == [SUBSCRIPTION]


def test_a_change_that_a_crash_cut_was_never_made_and_the_next_one_follows(resources, tmp_path):
    resources.close()
    with (tmp_path / "resources.changes").open("ab") as file:
        file.write(b'0badf00d {"next_number": 9, "topics"')
    again = Resources(tmp_path)
    again.create_subscription(subscription("projects/p/subscriptions/next"))
    again.close()
    assert len(Resources(tmp_path).subscriptions) == 2


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("resources.changes", lambda raw: raw.replace(b"orders", b"0rders", 1), r"Line 1 of .*changes is damaged"),
        ("resources.changes", lambda _: b"", r"resources\.changes does not name"),
        ("resources.json", lambda _: b"{half", r"resources\.json can't be read"),
    ],
)
def test_a_damaged_catalogue_is_told_and_takes_no_messages_along(resources, tmp_path, name, damage, says):
    publish(resources, b"a")
    resources.close()
    path = tmp_path / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointCorruptError, match=says):
        Resources(tmp_path)
    assert list(tmp_path.glob("topics/*/*.log"))


def test_a_missing_resources_file_beside_topics_removes_nothing(resources, tmp_path):
    publish(resources, b"a")
    resources.close()
    kept = (tmp_path / "resources.json").read_bytes()
    (tmp_path / "resources.json").unlink()
    with pytest.raises(CheckpointCorruptError, match=r"resources\.json is missing, but the topics"):
        Resources(tmp_path)
    (tmp_path / "resources.changes").unlink()
    with pytest.raises(CheckpointCorruptError, match=r"resources\.json is missing, but the topics"):
        Resources(tmp_path)
    assert list(tmp_path.glob("topics/*/*.log"))
    assert b"checksum" in kept


def test_a_changed_letter_of_the_resources_file_is_no_other_topic(resources, tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "_MIN_REWRITE_BYTES", 0)
    resources._catalog._whole_bytes = 0
    resources.update_topic(topic(labels={"x": "y"}), ["labels"])
    resources.close()
    path = tmp_path / "resources.json"
    path.write_bytes(path.read_bytes().replace(b"topics/orders", b"topics/0rders", 1))
    with pytest.raises(CheckpointCorruptError, match="checksum"):
        Resources(tmp_path)


def test_a_resources_file_without_a_checksum_is_of_the_version_before(tmp_path):
    (tmp_path / "resources.json").write_text(
        '{"next_number": 7, "logs": [], "topics": [], "subscriptions": [], "snapshots": []}'
    )
    assert Resources(tmp_path)._next_number == 7
