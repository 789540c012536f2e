"""The collector's queue where there is no room: on the disk, in the queue, or in the file of refused events."""

import asyncio
import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest

from cli.processes import free_port
from connectors.pubsub.client import PubSub
from connectors.pubsub.encoding import encode_attributes
from connectors.pubsub.sending import encode_message
from local.segment import Segment
from local.server import PubSubServer
from model.errors import QueueFullError
from tests.collector.conftest import Yard
from tests.collector.queues import message, numbers, run, wait_for
from tests.worlds.full_disk import full
from tests.worlds.tables import raising


def test_a_full_disk_refuses_the_first_event_of_a_topic_as_any_other(yard, tmp_path, monkeypatch):
    async def work(queue):
        with monkeypatch.context() as patch:
            patch.setattr("local.segment.Path.touch", full)
            [error] = await queue.deliver(yard.topic, [message(0)])
            assert isinstance(error, QueueFullError)
        assert await queue.deliver(yard.topic, [message(1)]) == [None]

    run(yard.pubsub, tmp_path / "queue", work)
    assert numbers(yard.pull(1)) == [1]


def test_a_full_queue_takes_nothing_of_a_request_until_there_is_room(yard, tmp_path):
    port = free_port()
    topic = yard.topic

    async def work(queue):
        assert await queue.deliver(topic, [message(n, 1_000) for n in range(8)]) == [None] * 8
        refused = await queue.deliver(topic, [message(8), message(9, 3_000)])
        assert [type(each) for each in refused] == [QueueFullError] * 2
        assert queue.waiting_events() == {topic: 8}
        with PubSubServer(tmp_path / "pubsub", port=port), PubSub("shop", f"127.0.0.1:{port}") as admin:
            admin.create_topic(topic)
            await wait_for(lambda: not queue.waiting_bytes, "the queue is empty again")
            assert await queue.deliver(topic, [message(8, 3_000)]) == [None]
            await wait_for(lambda: not queue.waiting_bytes, "the queue is empty again")

    with PubSub("shop", f"127.0.0.1:{port}") as client:
        run(client, tmp_path / "queue", work, max_bytes=12_000)


@pytest.mark.parametrize("fault", [full, raising(ValueError("nobody foresaw this"))], ids=["full", "bug"])
def test_a_disk_that_takes_nothing_is_said_and_nothing_is_half_taken(yard, tmp_path, monkeypatch, fault):
    async def work(queue):
        assert await queue.deliver(yard.topic, [message(1)]) == [None]
        async with asyncio.timeout(5):
            with monkeypatch.context() as patch:
                patch.setattr(Segment, "append", fault)
                [refused] = await queue.deliver(yard.topic, [message(2)])
            assert isinstance(refused, QueueFullError)
            assert await queue.deliver(yard.topic, [message(3)]) == [None]

    run(yard.pubsub, tmp_path / "queue", work)
    assert numbers(yard.pull(2)) == [1, 3]


def test_what_is_refused_stays_queued_while_its_file_is_full_and_nothing_else_is_published_twice(
    yard, tmp_path, monkeypatch
):
    bad = encode_message(b"bad", encode_attributes([("goog", "not allowed")]))
    kept = tmp_path / "queue" / "refused.ndjson"
    monkeypatch.setattr("collector.queue._FAULT_SECONDS", 0.05)

    async def work(queue):
        await queue.deliver(yard.topic, [message(1), bad, message(2), bad, bad, message(3)])
        await wait_for(lambda: queue.waiting_events()[yard.topic] == 2, "one is set aside, two have no room")
        await queue.deliver(yard.topic, [message(4)])
        # Several rounds of trying again.
        await asyncio.sleep(0.3)
        assert queue.waiting_events()[yard.topic] == 2
        assert 0 < queue.waiting_bytes < 1_000
        kept.rename(tmp_path / "moved.ndjson")
        # Room for one again.
        await wait_for(lambda: queue.waiting_events()[yard.topic] == 1, "another one is set aside")

    run(yard.pubsub, tmp_path / "first", lambda queue: queue.deliver(yard.topic, [bad]))
    line_bytes = (tmp_path / "first" / "refused.ndjson").stat().st_size
    most = 2 * line_bytes - 1
    run(yard.pubsub, tmp_path / "queue", work, max_refused_bytes=most, is_killed=True)
    assert numbers(yard.pull(4)) == [1, 2, 3, 4]
    lines = [path.read_text().splitlines() for path in (tmp_path / "moved.ndjson", kept)]
    assert [len(found) for found in lines] == [1, 1]
    # The next process knows which one is left, in the middle of what is published.
    run(yard.pubsub, tmp_path / "queue", lambda _queue: asyncio.sleep(0.1))
    yard.pull(0)
    assert len(kept.read_text().splitlines()) == 2


def test_refused_events_that_stay_queued_block_no_others_however_many_they_are(yard, tmp_path, monkeypatch):
    bad = encode_message(b"bad", encode_attributes([("goog", "not allowed")]))
    monkeypatch.setattr("collector.queue._FAULT_SECONDS", 0.05)
    monkeypatch.setattr("collector.queue.MAX_PUBLISH_REQUEST_MESSAGES", 3)

    async def work(queue):
        await queue.deliver(yard.topic, [message(1), *[bad] * 8, message(2)])
        await wait_for(lambda: queue.waiting_events()[yard.topic] == 8, "only what is refused waits")
        await queue.deliver(yard.topic, [message(3)])
        await wait_for(lambda: queue.waiting_events()[yard.topic] == 8, "what comes later is published")
        (tmp_path / "queue" / "refused.ndjson").rename(tmp_path / "moved.ndjson")
        queue._refused._max_bytes = 10_000
        await wait_for(lambda: not queue.waiting_events()[yard.topic], "all are set aside once there is room")

    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "refused.ndjson").write_text("full\n")
    run(yard.pubsub, tmp_path / "queue", work, max_refused_bytes=6)
    assert numbers(yard.pull(3)) == [1, 2, 3]
    assert len((tmp_path / "queue" / "refused.ndjson").read_text().splitlines()) == 8


def test_a_topic_that_waits_leaves_room_for_all_others(yard, away, tmp_path):
    async def work(queue):
        taken = {}
        for topic in ("a-first", "b-second", "c-third"):
            number = 0
            while await queue.deliver(topic, [message(number, 1_000)]) == [None]:
                number += 1
            taken[topic] = number
        # A half, a quarter, an eighth, and one more always fits until the messages themselves are larger.
        assert taken["a-first"] >= taken["b-second"] >= taken["c-third"] > 2
        assert taken["a-first"] <= 50
        [refused] = await queue.deliver("a-first", [message(0, 1_000)])
        assert isinstance(refused, QueueFullError)
        assert "a-first" in refused.message

    run(away, tmp_path / "queue", work, max_bytes=100_000, is_shared=True, is_killed=True)


def test_a_topic_alone_has_the_whole_queue(yard, away, tmp_path):
    async def work(queue):
        outcomes = [(await queue.deliver("a-first", [message(n, 1_000)]))[0] for n in range(90)]
        assert 70 < sum(outcome is None for outcome in outcomes) < 90

    run(away, tmp_path / "queue", work, max_bytes=100_000, is_killed=True)


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk can't be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_refuses_events_publishes_what_waits_once_and_goes_on(small_disk, tmp_path):
    port = free_port()
    answered = []

    @contextmanager
    def served():
        with PubSubServer(tmp_path / "pubsub", port=port), PubSub("shop", f"127.0.0.1:{port}") as admin:
            yield Yard(admin, tmp_path)

    async def work(queue):
        while await queue.deliver(topic, [message(len(answered), 20_000)]) == [None]:
            answered.append(len(answered))
        [refused] = await queue.deliver(topic, [message(len(answered), 20_000)])
        assert isinstance(refused, QueueFullError)
        # Not a byte is left, not even to note what is published.
        with (small_disk / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, max(1, shutil.disk_usage(small_disk).free))
        with served() as far:
            await wait_for(lambda: not queue.waiting_bytes, "all is published")
            assert await queue.deliver(topic, [message(len(answered), 20_000)]) == [None]
            answered.append(len(answered))
            await wait_for(lambda: not queue.waiting_bytes, "the last one is published")
            # Each once: what can't be noted is not published again and again.
            assert numbers(far.pull(len(answered), topic)) == answered

    with served() as far:
        topic = far.topic
    with PubSub("shop", f"127.0.0.1:{port}") as client:
        run(client, small_disk / "queue", work, segment_bytes=100_000)
    assert len(answered) > 50
