"""A data folder that a disk or a hand has damaged: what is whole is served, the rest reported and kept aside."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.pubsub_v1 import types
from structlog.testing import capture_logs

from local import configs
from local.damage import keep_aside
from local.resources import Resources
from local.seqset import SeqSet
from local.wire import find_records, parse_ack_ids
from model.errors import CheckpointCorruptError

TOPIC = "projects/p/topics/orders"
SUBSCRIPTION = "projects/p/subscriptions/orders"
PullResponse = types.PullResponse.pb()


def publish(resources: Resources, *data: str, topic: str = TOPIC) -> list[int]:
    """Publish one request and return the messages' ids."""
    bodies = [types.PubsubMessage.serialize(types.PubsubMessage(data=each.encode())) for each in data]
    first = resources.publish(topic, bodies)
    return list(range(first, first + len(bodies)))


def pull(resources: Resources, count: int = 1000, name: str = SUBSCRIPTION) -> list[str]:
    working = resources.subscription(name).working
    got = PullResponse.FromString(working.take(count, 10**7)).received_messages
    if got:
        working.acknowledge(parse_ack_ids(m.ack_id for m in got))
    return [m.message.data.decode() for m in got]


def drain(resources: Resources, name: str = SUBSCRIPTION, count: int = 7) -> list[str]:
    found: list[str] = []
    while got := pull(resources, count, name):
        found += got
    return found


def make(folder: Path, segment_bytes: int = 10**6, **settings: Any) -> Resources:
    resources = Resources(folder, segment_bytes=segment_bytes)
    resources.create_topic(configs.TopicConfig(name=TOPIC))
    resources.create_subscription(configs.SubscriptionConfig(name=SUBSCRIPTION, topic=TOPIC, **settings))
    return resources


def flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("topics/*/*.log"))


def texts(start: int, end: int) -> list[str]:
    return [f"<{n:05}>" for n in range(start, end)]


@pytest.mark.parametrize(
    "settings", [{}, {"enable_message_ordering": True}, {"filter": "attributes:x OR NOT attributes:x"}]
)
@pytest.mark.parametrize("damage", ["cut", "removed", "emptied", "index removed", "both removed"])
def test_a_damaged_segment_that_is_not_the_last_is_passed_over(tmp_path, damage, settings):
    resources = make(tmp_path, segment_bytes=500, **settings)
    for n in range(0, 40, 2):
        publish(resources, *texts(n, n + 2))
    resources.close()
    path = logs(tmp_path)[1]
    raw = path.read_bytes()
    if damage == "cut":
        os.truncate(path, len(raw) - 10)
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "index removed":
        path.with_suffix(".idx").unlink()
    else:
        path.unlink()
        if damage == "both removed":
            path.with_suffix(".idx").unlink()
    left = path.read_bytes() if path.exists() else b""
    lost = [text for text in texts(0, 40) if text.encode() in raw and text.encode() not in left]
    if damage == "cut":
        lost.append(next(text for text in reversed(texts(0, 40)) if text.encode() in raw))
    with capture_logs() as said:
        again = Resources(tmp_path, segment_bytes=500)
    assert drain(again) == [text for text in texts(0, 40) if text not in lost]
    assert said
    assert again.read_stats()[SUBSCRIPTION]["undelivered_messages"] == 0
    missing = [each for each in said if each["event"] == "messages_missing"]
    assert sum(each["messages"] for each in missing) == len(lost)
    assert all(each["owner"] == TOPIC for each in said)


@pytest.mark.parametrize("segment_bytes", [300, 10**6])
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_a_flipped_byte_of_a_log_costs_its_message_alone(tmp_path: Path, segment_bytes: int, count: int) -> None:
    resources = make(tmp_path, segment_bytes)
    for n in range(0, 20, 5):
        publish(resources, *texts(n, n + 5))
    resources.close()
    path = logs(tmp_path)[0]
    place = path.read_bytes().index(b"<00003>")
    flip(path, place + 2)
    with capture_logs() as said:
        again = Resources(tmp_path)
        assert drain(again, count=count) == [*texts(0, 3), *texts(4, 20)]
    entry = next(each for each in said if each["event"] == "log_damaged")
    assert entry["messages"] == 1
    assert Path(entry["file"]) == path
    assert entry["offset"] < place < entry["offset"] + len(Path(entry["kept"]).read_bytes())
    assert b"<00003>"[3:] in Path(entry["kept"]).read_bytes()


@pytest.mark.parametrize("settings", [{}, {"enable_message_ordering": True}, {"filter": 'attributes.x != "1"'}])
def test_damage_that_comes_while_the_server_runs_is_reported_once_and_passed_over(tmp_path, settings):
    resources = make(tmp_path, segment_bytes=1000, **settings)
    resources.create_subscription(configs.SubscriptionConfig(name=SUBSCRIPTION + "2", topic=TOPIC))
    for n in range(0, 60, 5):
        publish(resources, *texts(n, n + 5))
    first, second, *_, last = logs(tmp_path)
    flip(first, first.read_bytes().index(b"<00003>"))
    second.unlink()
    lost = {"<00003>"}
    os.truncate(last, last.stat().st_size - 1)
    lost.add(texts(59, 60)[0])
    with capture_logs() as said:
        found = drain(resources)
        assert drain(resources, SUBSCRIPTION + "2") == found
    assert lost.isdisjoint(found)
    assert found == [text for text in texts(0, 60) if text in found]
    events = [each["event"] for each in said]
    assert events.count("log_damaged") == len(set(map(str, said)))
    assert resources.read_stats()[SUBSCRIPTION]["undelivered_messages"] == 0
    publish(resources, "<after>")
    assert pull(resources) == ["<after>"]
    resources.close()
    again = Resources(tmp_path)
    assert drain(again, SUBSCRIPTION + "2") == ["<after>"]


def test_messages_held_by_a_consumer_come_again_when_others_of_the_pull_are_damaged(tmp_path: Path) -> None:
    resources = make(tmp_path, dead_letter_policy=None)
    publish(resources, *texts(0, 5))
    (path,) = logs(tmp_path)
    flip(path, path.read_bytes().index(b"<00002>"))
    working = resources.subscription(SUBSCRIPTION).working
    got = PullResponse.FromString(working.take(1000, 10**7)).received_messages
    assert [m.message.data.decode() for m in got] == [*texts(0, 2), *texts(3, 5)]
    assert resources.read_stats()[SUBSCRIPTION]["leased_messages"] == 4
    working.modify_ack_deadline(parse_ack_ids(m.ack_id for m in got), 0)
    assert len(drain(resources)) == 4


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_message_damaged_after_its_delivery_holds_up_no_ordering_key(tmp_path: Path, damaged: int) -> None:
    resources = make(tmp_path, segment_bytes=1, enable_message_ordering=True)
    for text in texts(0, 4):
        body = types.PubsubMessage(data=text.encode(), ordering_key="a")
        resources.publish(TOPIC, [types.PubsubMessage.serialize(body)])
    working = resources.subscription(SUBSCRIPTION).working
    got = PullResponse.FromString(working.take(3, 10**7)).received_messages
    path = logs(tmp_path)[damaged]
    flip(path, path.read_bytes().index(texts(damaged, damaged + 1)[0].encode()))
    # As when other segments were read since.
    resources.topic(TOPIC).log._segment(damaged)._kept = ()
    working.modify_ack_deadline(parse_ack_ids(m.ack_id for m in got), 0)
    whole = [text for n, text in enumerate(texts(0, 4)) if n != damaged]
    assert drain(resources) == whole
    assert resources.read_stats()[SUBSCRIPTION]["undelivered_messages"] == 0


def test_a_damaged_entry_of_acknowledgements_brings_its_messages_again_and_no_others(tmp_path: Path) -> None:
    resources = make(tmp_path)
    publish(resources, *texts(0, 30))
    for _ in range(3):
        pull(resources, 10)
    resources.close()
    (path,) = tmp_path.glob("subscriptions/*.acks")
    flip(path, path.stat().st_size // 2)
    with capture_logs() as said:
        again = Resources(tmp_path)
    assert drain(again) == []
    assert [each["event"] for each in said] == ["acknowledgements_damaged"]
    again.close()
    path.unlink()
    with capture_logs() as said:
        assert drain(Resources(tmp_path)) == texts(0, 30)
    assert [(each["event"], each["owner"]) for each in said] == [("acknowledgements_missing", SUBSCRIPTION)]


def test_a_snapshot_counts_as_a_witness_of_numbers(tmp_path: Path) -> None:
    resources = make(tmp_path)
    old = publish(resources, *texts(0, 9))
    pull(resources)
    resources.create_snapshot("projects/p/snapshots/all", SUBSCRIPTION, {})
    resources.delete_subscription(SUBSCRIPTION)
    resources.close()
    for path in tmp_path.glob("topics/*/*"):
        path.write_bytes(b"")
    again = Resources(tmp_path)
    assert publish(again, "new")[0] > old[-1]


def test_what_is_kept_aside_is_never_overwritten_nor_kept_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    assert keep_aside(path, b"one") == tmp_path / "a.log.damaged-1"
    assert keep_aside(path, b"two") == tmp_path / "a.log.damaged-2"
    assert keep_aside(path, b"one") == tmp_path / "a.log.damaged-1"
    assert (tmp_path / "a.log.damaged-2").read_bytes() == b"two"


class Home:
    """A folder with three topics in small segments, and what each subscription has still to get."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.topics = [f"projects/p/topics/topic{n}" for n in range(3)]
        self.sent: dict[int, str] = {}
        self.done: set[int] = set()
        resources = Resources(folder, segment_bytes=800)
        for topic in self.topics:
            resources.create_topic(configs.TopicConfig(name=topic))
            resources.create_subscription(configs.SubscriptionConfig(name=subscription_of(topic), topic=topic))
        for topic in self.topics:
            for n in range(12):
                data = [f"{topic} {n} {m} " + "x" * (17 * m % 60) for m in range(n % 4 + 1)]
                self.sent |= zip(publish(resources, *data, topic=topic), data, strict=True)
        resources.create_snapshot("projects/p/snapshots/before", subscription_of(self.topics[0]), {})
        for count in (3, 4):
            for topic in self.topics[:2]:
                working = resources.subscription(subscription_of(topic)).working
                got = PullResponse.FromString(working.take(count, 10**7)).received_messages
                working.acknowledge(parse_ack_ids(m.ack_id for m in got))
                self.done |= {int(m.message.message_id) for m in got}
        resources.close()
        self.places = {
            record.message_id: (
                path.relative_to(folder),
                record.start,
                path.read_bytes()[record.start : record.end],
            )
            for path in logs(folder)
            for record in find_records(path.read_bytes())
        }
        assert self.places.keys() == self.sent.keys()

    def whole(self, folder: Path) -> set[int]:
        """The messages whose bytes are still where they were."""
        found = set()
        for message_id, (path, start, record) in self.places.items():
            if (folder / path).exists() and (folder / path).read_bytes()[start : start + len(record)] == record:
                found.add(message_id)
        return found


def subscription_of(topic: str) -> str:
    return topic.replace("topics", "subscriptions")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size + 1))


def flip_some(path: Path, chance: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    for _ in range(min(len(raw), chance.choice([1, 1, 1, 5]))):
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


def append(path: Path, chance: random.Random) -> None:
    raw = path.read_bytes()
    more = chance.choice([chance.randbytes(40), bytes(40), raw[-40:], raw])
    path.write_bytes(raw + more)


def remove(path: Path, chance: random.Random) -> None:
    path.unlink()


FAULTS: list[Callable[[Path, random.Random], None]] = [cut, flip_some, append, remove]


@pytest.mark.parametrize("seed", range(int(os.environ.get("REFEED_FUZZ_FOLDERS", "60"))))
def test_any_damage_leaves_a_start_that_serves_what_is_whole_or_says_what_is_not(tmp_path, home, seed):
    chance = random.Random(seed)
    folder = tmp_path / "home"
    shutil.copytree(home.folder, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in chance.sample(files, chance.choice([1, 1, 2, 3])):
        chance.choice(FAULTS)(path, chance)
    topics = sorted(folder.glob("topics/*"))
    whole = home.whole(folder)
    refusal = None
    with capture_logs() as said:
        try:
            resources = Resources(folder, segment_bytes=800)
        except CheckpointCorruptError as exc:
            refusal = exc.message
        if refusal is not None:
            assert "resources" in refusal
            assert topics == sorted(folder.glob("topics/*"))
            return
        for topic in home.topics:
            if subscription_of(topic) not in resources.subscriptions:
                assert any(each["event"] in {"change_cut", "subscription_unknown"} for each in said)
                continue
            read = read_all(resources, subscription_of(topic))
            own = {message_id for message_id, text in home.sent.items() if text.startswith(topic)}
            for message_id, text in read.items():
                assert home.sent[message_id] == text, "altered"
            missing = own - home.done - read.keys()
            assert not missing & whole, "whole, and not served"
            assert not missing or any(each["owner"] in {topic, subscription_of(topic)} for each in said)
            new = publish(resources, *(f"{topic} new {n}" for n in range(5)), topic=topic)
            assert not home.sent.keys() & {*new}, "a number given twice"
            assert list(read_all(resources, subscription_of(topic))) == new
    resources.close()
    again = Resources(folder, segment_bytes=800)
    assert not any(read_all(again, name) for name in again.subscriptions)


def read_all(resources: Resources, name: str) -> dict[int, str]:
    working = resources.subscription(name).working
    found: dict[int, str] = {}
    while got := PullResponse.FromString(working.take(7, 10**7)).received_messages:
        working.acknowledge(parse_ack_ids(m.ack_id for m in got))
        found |= {int(m.message.message_id): m.message.data.decode() for m in got}
    return found


def test_the_state_of_acknowledgements_knows_its_end() -> None:
    assert SeqSet(4).end == 4
    assert SeqSet(4, [(6, 9)]).end == 9
