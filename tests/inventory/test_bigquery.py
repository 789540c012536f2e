"""The inventory of an archive in BigQuery (the stand-in): volumes, histograms and pages of messages."""

import time
import uuid
from contextlib import closing
from datetime import UTC, datetime

import pytest

from inventory.messages import MessageRequest
from inventory.service import Inventory
from model.errors import QueryStoppedError, QueryTooLargeError, TopicUnknownError
from model.principal import LOCAL
from tests.standin.archived import fill_archive, numbered_messages
from warehouse.queries import QuerySpace

ROWS = 300
BILLED = ("jobs.insert", "jobs.query")


@pytest.fixture(scope="module")
def bigquery(session_standin):
    """An archive that holds 300 messages as orders, newest first, and ten of members."""
    return fill_archive(session_standin, f"d{uuid.uuid4().hex[:12]}.messages", numbered_messages([""] * ROWS))


@pytest.fixture
def inventory(tmp_path, emulator_host, pubsub, bigquery):
    pubsub.create_topic("replay")
    with closing(bigquery.open_queries(QuerySpace("500MB", tmp_path / "spill"))) as queries:
        yield Inventory(pubsub, queries, home=tmp_path, replay_secret="secret", reports=list, groups=lambda: None)


def test_topics_have_their_volumes_and_are_counted_once_in_five_minutes(inventory, pubsub, shared_standin):
    pubsub.create_topic("empty")
    for _ in range(3):
        topics = {topic.topic: topic for topic in inventory.list_topics(principal=LOCAL)}
    counted = {name: topic.messages for name, topic in topics.items()}
    assert counted == {"empty": 0, "members": 10, "orders": ROWS, "replay": 0}
    assert topics["orders"].stored_bytes is None
    assert topics["orders"].freshness_seconds is not None
    assert topics["orders"].last_publish_time == datetime(2024, 3, 1, 13, 59, tzinfo=UTC)
    assert sum(count for call, count in shared_standin.counts().items() if call in BILLED) == 1
    assert inventory.list_streams(principal=LOCAL) == []


@pytest.mark.parametrize("step", ["minute", "hour", "day"])
def test_a_histogram_counts_a_topic_by_the_time_of_its_ingestion(inventory, step):
    found = inventory.histogram("orders", principal=LOCAL, step=step)
    assert (found.messages, sum(bucket.messages for bucket in found.buckets)) == (ROWS, ROWS)
    assert len(found.buckets) - {"minute": 60, "hour": 24, "day": 30}[step] in (0, 1)
    assert inventory.histogram("replay", principal=LOCAL, step=step).messages == 0
    with pytest.raises(TopicUnknownError, match="is not in Pub/Sub and not in the archive"):
        inventory.histogram("nothing", principal=LOCAL, step=step)
    past = datetime(2024, 3, 1, tzinfo=UTC)
    assert inventory.histogram("orders", principal=LOCAL, step=step, end=past).messages == 0


def test_messages_are_browsed_by_one_capped_query_a_page(inventory):
    asked = MessageRequest("orders", attributes={"n": "7"})
    (found,) = inventory.read_messages(asked, principal=LOCAL).messages
    assert (found["message_id"], found["data"], found["attributes"]) == ("7", {"n": 7}, {"n": "7"})
    first = inventory.read_messages(MessageRequest("orders", page_size=2), principal=LOCAL)
    token = first.next_page_token
    second = inventory.read_messages(MessageRequest("orders", page_size=2, page_token=token), principal=LOCAL)
    latest = [message["message_id"] for message in (*first.messages, *second.messages)]
    # Of one commit and one publish_time, the last id first.
    assert latest == ["59", "299", "239", "179"]
    with pytest.raises(QueryTooLargeError):
        inventory.read_messages(MessageRequest("orders", max_bytes_billed=1), principal=LOCAL)


def test_a_page_that_nobody_waits_for_any_more_is_cancelled(inventory, shared_standin):
    shared_standin.fault("jobs.run", "delay", seconds=60.0)
    began = time.monotonic()
    with pytest.raises(QueryStoppedError):
        inventory.read_messages(MessageRequest("orders"), principal=LOCAL, should_stop=lambda: True)
    assert time.monotonic() - began < 30
    assert shared_standin.counts()["jobs.cancel"] == 1
