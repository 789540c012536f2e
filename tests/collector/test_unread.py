"""Pub/Sub keeps no message of a topic that nothing subscribes to: an answer that says "durable" would be a lie."""

import asyncio

import pytest

from collector import delivery, queue
from collector.delivery import TopicDirectory
from collector.records import ReadTopic
from model.errors import TopicUnreadError
from tests.collector.conftest import problem_of
from tests.collector.queues import message, numbers, run, wait_for


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Each request looks for its topic again."""
    for name in ("_READ_SECONDS", "_UNREAD_SECONDS"):
        monkeypatch.setattr(delivery, name, 0)
    monkeypatch.setattr(queue, "_FAULT_SECONDS", 0.01)


@pytest.mark.parametrize("is_pattern", [False, True])
def test_a_topic_that_nothing_subscribes_to_is_refused_until_something_does(yard, is_pattern):
    topic = yard.add_unread()
    app = yard.collector(yard.settings("", yard.topic, "unread-*" if is_pattern else topic))
    for answer in (
        yard.post(b"{}", app=app, to=f"/{topic}"),
        yard.call(lambda client: client.get(f"/{topic}?a=1"), app),
    ):
        assert problem_of(answer)[:2] == (503, "topic_unread")
        assert int(answer.headers["retry-after"]) >= 1
    # Others go on.
    assert yard.post(b"{}", app=app).status_code == 200
    yard.pull(1)
    metrics = yard.call(lambda client: client.get("/metrics"), app).text
    assert f'refeed_collector_unread_requests_total{{topic="{topic}"}} 2.0' in metrics
    yard.add_topic(topic)
    assert yard.post(b"1", app=app, to=f"/{topic}").status_code == 200
    assert [each.data for each in yard.pull(1, topic)] == [b"1"]
    yard.pubsub.delete_subscription(f"sub-{topic}")
    assert problem_of(yard.post(b"{}", app=app, to=f"/{topic}"))[:2] == (503, "topic_unread")


def test_a_collector_names_listed_topics_that_nothing_subscribes_to_and_stays_ready_for_the_others(yard):
    topic = yard.add_unread()
    app = yard.collector(yard.settings("", yard.topic, topic))
    answer = yard.call(lambda client: client.get("/readyz"), app)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "problems": {}, "unread": [topic]})


def test_events_that_nobody_reads_are_taken_where_that_is_allowed(yard):
    topic = yard.add_unread()
    settings = yard.settings("", topic).model_copy(update={"allow_unread": True})
    app = yard.collector(settings)
    assert yard.post(b"{}", app=app, to=f"/{topic}").status_code == 200
    assert yard.call(lambda client: client.get("/readyz"), app).status_code == 200
    metrics = yard.call(lambda client: client.get("/metrics"), app).text
    assert f'refeed_collector_unread_requests_total{{topic="{topic}"}} 1.0' in metrics


def test_a_topic_is_looked_for_every_ten_seconds_at_most(yard):
    topic = yard.add_unread()
    now = [0.0]
    read = ReadTopic(yard.pubsub, topic, clock=lambda: now[0])
    for _ in range(2):
        with pytest.raises(TopicUnreadError):
            read.check()
    yard.add_topic(topic)
    read.check()
    yard.pubsub.delete_subscription(f"sub-{topic}")
    now[0] = 9.9
    read.check()
    now[0] = 10.0
    with pytest.raises(TopicUnreadError):
        read.check()
    yard.pubsub.delete_topic(topic)
    # That is for the publish to say.
    read.check()


def test_the_queue_keeps_events_until_something_subscribes(yard, away, tmp_path):
    topic = yard.add_unread()

    async def take(queue):
        assert await queue.deliver(topic, [message(7)]) == [None]

    async def work(queue):
        # Long enough for a publish: a look, and a second one.
        await wait_for(lambda: looks[0] > 1, "the queue looks for the topic")
        assert queue.waiting_events() == {topic: 1}
        await asyncio.to_thread(yard.add_topic, topic)
        await wait_for(lambda: not queue.waiting_bytes, "the event is published")

    looks = [0]

    class Counted(TopicDirectory):
        async def find(self, name):
            found = await super().find(name)
            looks[0] += 1
            return found

    run(away, tmp_path / "queue", take, is_killed=True)
    run(yard.pubsub, tmp_path / "queue", work, directory=Counted(yard.pubsub))
    assert numbers(yard.pull(1, topic)) == [7]
