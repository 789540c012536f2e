"""A source's other sink: each row that is in its table is published, at least once, and acknowledged only then."""

import json
import secrets
from collections import Counter

import pytest
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from connectors.pubsub import publish
from connectors.pubsub.client import PubSub
from local.server import PubSubServer
from model.errors import PubSubUnavailableError, StorageFullError
from streams.journal import EntryState
from streams.status import StatusFile
from streams.topics import TopicTargets
from tests.pipeline.test_bigquery import BigQueryStream
from tests.pipeline.test_staging import Stream, failing, lose_home, pulled, replayed

__all__ = ["failing"]

SOURCES = """
sources:
  orders: {topic: orders, message: shop.Order, key: id, publish: ROWS, publish_ordering: key}
  members: {topic: members, message: shop.Member, key: id}
"""


@pytest.fixture(scope="module")
def pubsub(tmp_path_factory):
    with PubSubServer(tmp_path_factory.mktemp("pubsub")) as server, PubSub("p", server.emulator_host) as client:
        yield client


class Published:
    """A topic, and what came out of it."""

    def __init__(self, pubsub: PubSub) -> None:
        self.pubsub = pubsub
        self.topic = f"rows-{secrets.token_hex(4)}"
        self.create()
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=pubsub.channel))

    def create(self) -> None:
        self.pubsub.create_topic(self.topic)
        self.pubsub.create_subscription(f"sub-{self.topic}", self.topic, ack_deadline_seconds=10)

    def read(self) -> list:  # of PubsubMessages
        path = self.pubsub.subscription_path(f"sub-{self.topic}")
        found = []
        while answer := self._subscriber.pull(
            subscription=path, max_messages=1000, timeout=0.2, retry=None
        ).received_messages:
            found += [each.message for each in answer]
            self._subscriber.acknowledge(subscription=path, ack_ids=[each.ack_id for each in answer])
        return found

    def ids(self) -> list[str]:
        return [json.loads(message.data)["_message_id"] for message in self.read()]


class Publishing:
    """What a stream of tests has more when its orders are published."""

    def publish_to(self, published: Published) -> None:
        self.published = published
        self.reasons: dict[str, dict[str, str]] = {}
        self.registered = SOURCES.replace("ROWS", published.topic).encode()

    def targets(self, tables):
        pubsub = self.published.pubsub
        return TopicTargets(tables, pubsub.channel, pubsub.topic_path, self.note, give_up_seconds=0.2)

    def note(self, table, reasons):
        self.reasons.setdefault(table, {}).update(reasons)

    def refused(self):
        return self.reasons

    def totals(self) -> dict:
        return StatusFile.read(self.folder / "status.json")["totals"]


class LakeStream(Publishing, Stream):
    def __init__(self, folder, published) -> None:
        self.publish_to(published)
        super().__init__(folder)


class CloudStream(Publishing, BigQueryStream):
    def __init__(self, folder, published, standin) -> None:
        self.publish_to(published)
        super().__init__(folder, standin)


@pytest.fixture
def lake(tmp_path, pubsub):
    return LakeStream(tmp_path, Published(pubsub))


@pytest.fixture(params=["lake", "bigquery"])
def stream(request, tmp_path, pubsub):
    published = Published(pubsub)
    if request.param == "lake":
        yield LakeStream(tmp_path, published)
        return
    standin = request.getfixturevalue("shared_standin")
    found = CloudStream(tmp_path, published, standin)
    yield found
    standin.clear_faults()
    for tables in found.opened:
        tables.close()


def crash(*_, **__):
    raise KeyboardInterrupt


def crash_at(monkeypatch, place: str):
    monkeypatch.setattr("model.failpoint.hit", lambda name: name == place and crash())


def test_each_row_is_published_and_no_dead_letter_is(stream):
    stream.batch([pulled("orders", b'{"id": 1}', b"nope"), pulled("members", b"{}")])
    (message,) = stream.published.read()
    assert (message.attributes["source"], message.ordering_key) == ("orders", "1")
    assert json.loads(message.data)["id"] == 1
    assert stream.staged() == Counter([("orders", "1"), ("members", "1"), ("dead_letters", "2")])
    assert sorted(stream.hold.acked) == ["members-1", "orders-1", "orders-2"]
    assert [entry.attempt for entry in stream.journal.entries(EntryState.DONE)] == [1]
    assert {name: stream.totals()[name] for name in ("messages", "published", "redelivered")} == {
        "messages": 3,
        "published": 1,
        "redelivered": 0,
    }


@pytest.mark.parametrize("place", ["commit.after", "publish.before", "publish.after"])
def test_a_kill_between_table_and_topic_acknowledges_nothing_and_publishes_when_messages_come_again(
    stream, monkeypatch, place
):
    with monkeypatch.context() as patched:
        crash_at(patched, place)
        with pytest.raises(KeyboardInterrupt):
            stream.batch([pulled("orders", b'{"id": 1}')])
    assert stream.published.ids() == (["1"] if place == "publish.after" else [])
    stream.start()
    assert stream.hold.acked == []
    stream.batch([pulled("orders", b'{"id": 1}', b'{"id": 2}')])
    # BigQuery takes a part whole or not at all: what is new in it comes again by itself.
    stream.batch([pulled("orders", b'{"id": 2}', first=2)])
    # Without an ordering key no order is promised.
    assert sorted(stream.published.ids()) == ["1", "2"]
    assert stream.staged() == Counter([("orders", "1"), ("orders", "2")])
    assert set(stream.hold.acked) == {"orders-1", "orders-2"}


def test_a_kill_between_topic_and_acknowledgements_publishes_nothing_again(stream):
    stream.hold.is_crashing = True
    with pytest.raises(KeyboardInterrupt):
        stream.batch([pulled("orders", b'{"id": 1}')])
    stream.start()
    stream.batch([pulled("orders", b'{"id": 1}')])
    assert (stream.published.ids(), stream.hold.acked) == (["1"], ["orders-1"])


def test_a_message_that_comes_again_is_published_once(stream):
    stream.batch([pulled("orders", b"{}")])
    stream.batch([pulled("orders", b"{}", b"{}")])
    stream.batch([pulled("orders", b"{}", first=2)])
    assert stream.published.ids() == ["1", "2"]
    assert stream.hold.acked.count("orders-2") >= 1
    assert stream.staged() == Counter([("orders", "1"), ("orders", "2")])


def test_a_row_that_is_given_up_with_its_part_is_neither_published_nor_acknowledged_before_it_is_staged(
    tmp_path, pubsub, shared_standin
):
    stream = CloudStream(tmp_path, Published(pubsub), shared_standin)
    stream.batch([pulled("orders", b"{}")])
    stream.hold.acked.clear()
    stream.batch([pulled("orders", b"{}", b"{}")], [pulled("orders", b"{}", first=2)])
    assert stream.published.ids() == ["1"]
    assert "orders-2" not in stream.hold.acked
    stream.batch([pulled("orders", b"{}", first=2)])
    assert stream.published.ids() == ["2"]
    assert stream.staged() == Counter([("orders", "1"), ("orders", "2")])
    for tables in stream.opened:
        tables.close()


def test_a_topic_that_is_gone_keeps_its_messages_and_no_others_back(stream):
    stream.published.pubsub.delete_topic(stream.published.topic)
    batch = [pulled("orders", b"{}"), pulled("members", b"{}")]
    with pytest.raises(PubSubUnavailableError, match=r"staging\.orders.*NOT_FOUND"):
        stream.batch(batch)
    assert stream.hold.acked == ["members-1"]
    stream.published.pubsub.delete_subscription(f"sub-{stream.published.topic}")
    stream.published.create()
    stream.batch(batch)
    assert stream.published.ids() == ["1"]
    assert stream.staged() == Counter([("orders", "1"), ("members", "1")])
    assert set(stream.hold.acked) == {"members-1", "orders-1"}


def test_rows_that_their_table_does_not_have_are_not_published(lake, failing):
    with failing("staging.orders", StorageFullError), pytest.raises(StorageFullError):
        lake.batch([pulled("orders", b"{}"), pulled("members", b"{}")])
    assert (lake.published.ids(), lake.hold.acked) == ([], ["members-1"])
    with failing("staging.members", StorageFullError), pytest.raises(StorageFullError):
        lake.batch([pulled("orders", b"{}"), pulled("members", b"{}", first=2)])
    assert (lake.published.ids(), lake.hold.acked) == (["1"], ["members-1", "orders-1"])


def test_a_stream_that_lost_its_home_publishes_what_it_can_t_know_and_stages_nothing_twice(lake):
    lake.batch([pulled("orders", b"{}")])
    assert lake.published.ids() == ["1"]
    lose_home(lake)
    lake.batch([pulled("orders", b"{}")])
    lake.batch([pulled("orders", b"{}")])
    assert lake.published.ids() == ["1"]
    assert lake.staged() == Counter([("orders", "1")])


def test_a_message_whose_ack_failed_is_not_published_again(lake):
    lake.hold.is_down = True
    lake.batch([pulled("orders", b"{}")])
    lake.hold.is_down = False
    lake.start()
    lake.batch([pulled("orders", b"{}")])
    assert (lake.published.ids(), lake.hold.acked) == (["1"], ["orders-1"])


def test_a_key_s_rows_are_published_in_the_order_in_which_their_messages_were(lake):
    lake.batch([pulled("orders", *[b'{"id": 5}'] * 3, first=4)], [pulled("orders", *[b'{"id": 5}'] * 3)])
    assert lake.published.ids() == ["1", "2", "3", "4", "5", "6"]


def test_a_row_that_pubsub_refuses_for_good_is_a_dead_letter_beside_its_row_and_the_rest_goes_on(
    lake, monkeypatch
):
    with monkeypatch.context() as patched:
        # Pub/Sub refuses a message that a topic's schema does not fit, here one that its request has no room for.
        patched.setattr(publish, "MAX_PUBLISH_REQUEST_BYTES", 1000)
        with pytest.raises(PubSubUnavailableError, match="refuses 1 rows"):
            lake.batch([pulled("orders", b'{"id": 1}', b'{"id": 2, "new": "%s"}' % (b"x" * 900))])
        assert list(lake.reasons["staging.orders"]) == ["2"]
        lake.start()
        lake.batch([pulled("orders", b'{"id": 1}', b'{"id": 2, "new": "%s"}' % (b"x" * 900))])
    assert lake.staged() == Counter([("orders", "1"), ("orders", "2"), ("dead_letters", "2")])
    assert set(lake.hold.acked) == {"orders-1", "orders-2"}
    assert lake.published.ids() == ["1", "1"]


def test_a_replay_is_published_as_a_new_message_that_names_its_backfill(lake):
    lake.batch([pulled("orders", b"{}")])
    lake.batch([replayed("orders", b"{}")])
    first, again = lake.published.read()
    assert first.attributes["uuid"] == again.attributes["uuid"]
    assert (again.attributes["refeed_backfill_id"], again.attributes["refeed_row"]) == ("bf_1", "1")
    assert "refeed_replay" not in again.attributes
