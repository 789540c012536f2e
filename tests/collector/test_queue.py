"""The collector's queue on the disk: what it has answered for is published, in its order."""

import asyncio
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from collector.delivery import TopicDirectory
from collector.door import Door
from collector.http import Collector
from collector.queue import QueueDelivery, _TopicQueue
from collector.refused import RefusedFile
from connectors.pubsub.encoding import encode_attributes
from connectors.pubsub.sending import decode_message, encode_message
from model.errors import LeaseHeldError
from tests.collector.queues import message, numbers, run, wait_for
from tests.power import Survival, can_record, rebuild, record


@pytest.mark.parametrize(
    "name", ["refused.ndjson", "Refused.NDJSON", "unsubscribed.json", "unsubscribed.json.new"]
)
def test_a_topic_may_have_the_name_of_a_file_of_the_queue(yard, away, tmp_path, name):
    folder = tmp_path / "queue"
    topic = yard.add_topic(name)
    file = RefusedFile(folder / name.lower())

    async def take(queue):
        assert await queue.deliver(topic, [message(7)]) == [None]
        file.append(topic, decode_message(message(8)), "too large")

    async def work(queue):
        await wait_for(lambda: not queue.waiting_bytes, "what waits is published")

    run(away, folder, take, is_killed=True)
    run(yard.pubsub, folder, work)
    assert numbers(yard.pull(1, topic)) == [7]
    assert json.loads(file.path.read_bytes())["reason"] == "too large"
    yard.remove_topic(topic)


def test_a_folder_where_the_queue_s_own_file_belongs_is_a_topic_of_before(yard, away, tmp_path):
    folder = tmp_path / "queue"

    async def take(queue):
        assert await queue.deliver("before", [message(7)]) == [None]

    async def work(queue):
        await wait_for(lambda: not queue.waiting_bytes, "what waits is published")

    run(away, folder, take, is_killed=True)
    (folder / "before").rename(folder / "refused.ndjson")
    topic = yard.add_topic("refused.ndjson")
    run(yard.pubsub, folder, work)
    assert numbers(yard.pull(1, topic)) == [7]
    assert not (folder / "refused.ndjson").exists()
    yard.remove_topic(topic)


def test_an_event_that_is_published_before_its_write_is_noted_is_not_counted_for_ever(yard, tmp_path):
    async def work(queue):
        assert await queue.deliver(yard.topic, [message(0)]) == [None]
        await wait_for(lambda: not queue.waiting_bytes, "the first one is published")
        held = queue._topics[yard.topic]
        append = held._append

        def append_slowly(bodies):
            found = append(bodies)
            time.sleep(0.5)
            return found

        held._append = append_slowly  # type: ignore[method-assign]
        second = asyncio.create_task(queue.deliver(yard.topic, [message(1)]))
        await asyncio.sleep(0.1)
        # As when an event before it was under way.
        held._to_publish.set()
        assert await second == [None]
        await wait_for(lambda: not held.waiting, "the second one is published")
        await asyncio.sleep(0.1)
        assert (queue.waiting_bytes, held._fresh, held._fresh_bytes) == (0, {}, 0)

    run(yard.pubsub, tmp_path / "queue", work)
    assert numbers(yard.pull(2)) == [0, 1]


def test_what_was_answered_survives_a_kill_and_keeps_its_id_and_order(yard, away, tmp_path):
    wanted = [message(n) for n in range(500)]

    async def take(queue):
        await asyncio.gather(*(queue.deliver(yard.topic, [each]) for each in wanted[:250]))
        assert await queue.deliver(yard.topic, wanted[250:499]) == [None] * 249

    async def go_on(queue):
        assert queue.waiting_events() == {yard.topic: 499}
        # New behind queued.
        assert await queue.deliver(yard.topic, wanted[499:]) == [None]

    run(away, tmp_path / "queue", take, is_killed=True)
    run(yard.pubsub, tmp_path / "queue", go_on)
    found = yard.pull(500)
    assert numbers(found) == list(range(500))
    assert [encode_uuid(each) for each in found] == [uuid_of(each) for each in wanted]
    # Published and noted: nothing comes again.
    run(yard.pubsub, tmp_path / "queue", lambda _queue: asyncio.sleep(0.2))
    yard.pull(0)


def encode_uuid(found: Any) -> bytes:
    return str(found.attributes["uuid"]).encode()


def uuid_of(encoded: bytes) -> bytes:
    at = encoded.index(b"uuid") + 6
    return encoded[at : at + 36]


def test_a_torn_end_of_a_log_loses_nothing_that_was_answered(yard, away, tmp_path):
    folder = tmp_path / "queue"
    run(away, folder, lambda queue: queue.deliver(yard.topic, [message(n) for n in range(20)]), is_killed=True)
    [log] = (folder / yard.topic).glob("*.log")
    with log.open("ab") as file:
        # What a kill leaves of a write that nobody was answered for.
        file.write(log.read_bytes()[:57])

    async def go_on(queue):
        await wait_for(lambda: not queue.waiting_events()[yard.topic], "all is published")
        # The log goes on behind the damage.
        assert await queue.deliver(yard.topic, [message(20)]) == [None]

    run(yard.pubsub, folder, go_on)
    assert numbers(yard.pull(21)) == list(range(21))


def test_a_damaged_event_takes_no_other_with_it(yard, away, tmp_path):
    folder = tmp_path / "queue"
    run(away, folder, lambda queue: queue.deliver(yard.topic, [message(n) for n in range(20)]), is_killed=True)
    [log] = (folder / yard.topic).glob("*.log")
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    log.write_bytes(raw)
    run(yard.pubsub, folder, lambda queue: wait_for(lambda: not queue.waiting_bytes, "all is published"))
    found = numbers(yard.pull(19))
    assert found == sorted(found)
    assert list((folder / yard.topic).glob("*.damaged-*"))


def test_what_pubsub_refuses_is_set_aside_and_blocks_nobody(yard, tmp_path):
    bad = encode_message(b"\xffbad", encode_attributes([("goog", "not allowed")]))

    async def work(queue):
        await queue.deliver(yard.topic, [message(1), bad, message(2)])

    run(yard.pubsub, tmp_path / "queue", work)
    assert numbers(yard.pull(2)) == [1, 2]
    line = json.loads((tmp_path / "queue" / "refused.ndjson").read_text())
    assert line.pop("reason").startswith("Pub/Sub refuses the message")
    assert line == {"topic": yard.topic, "attributes": {"goog": "not allowed"}, "data_base64": "/2JhZA=="}


def test_a_topic_that_is_missing_keeps_its_events_and_blocks_no_other(yard, tmp_path):
    missing = f"{yard.topic}-later"

    async def work(queue):
        await queue.deliver(missing, [message(1)])
        await queue.deliver(yard.topic, [message(2)])
        await wait_for(lambda: not queue.waiting_events()[yard.topic], "the other topic is published")
        await wait_for(lambda: missing in queue.problems(), "it is said")
        yard.add_topic(missing)
        await wait_for(lambda: not queue.waiting_bytes, "the topic is there")
        assert queue.problems() == {}

    run(yard.pubsub, tmp_path / "queue", work)
    assert numbers(yard.pull(1)) == [2]
    assert numbers(yard.pull(1, missing)) == [1]


def test_segments_that_are_published_are_deleted(yard, tmp_path):
    async def work(queue):
        for n in range(30):
            await queue.deliver(yard.topic, [message(n, 5_000)])
        await wait_for(lambda: not queue.waiting_bytes, "all is published")

    run(yard.pubsub, tmp_path / "queue", work, segment_bytes=10_000)
    assert len(list((tmp_path / "queue" / yard.topic).glob("*.log"))) <= 2
    assert numbers(yard.pull(30)) == list(range(30))


def test_two_processes_never_share_a_queue(yard, tmp_path):
    async def work(_queue):
        with pytest.raises(LeaseHeldError):
            QueueDelivery(yard.pubsub, tmp_path / "queue", max_bytes=1)

    run(yard.pubsub, tmp_path / "queue", work)


def test_a_topic_may_be_called_lock(yard, tmp_path):
    yard.add_topic("lock")

    async def work(queue):
        assert await queue.deliver("lock", [message(1)]) == [None]

    run(yard.pubsub, tmp_path / "queue", work)
    assert numbers(yard.pull(1, "lock")) == [1]


def test_a_request_is_answered_202_when_its_event_is_on_disk(yard, away, tmp_path):
    settings = yard.settings()

    async def work(queue):
        app = Collector(
            settings, delivery=queue, directory=TopicDirectory(away), door=Door(settings, is_open=True)
        )
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            one = await client.post(f"/{yard.topic}", content=b"1")
            many = await client.post(f"/{yard.topic}", content=b"[2, 3]")
            assert (one.status_code, many.status_code) == (202, 202)
            assert [item["status"] for item in many.json()["items"]] == [202, 202]
            text = (await client.get("/metrics")).text
            assert f'refeed_collector_waiting_events{{topic="{yard.topic}"}} 3.0' in text
            assert (await client.get("/readyz")).status_code == 503

    run(away, tmp_path / "queue", work, is_killed=True)
    run(yard.pubsub, tmp_path / "queue", lambda _queue: asyncio.sleep(0))
    assert numbers(yard.pull(3)) == [1, 2, 3]


def events_in(folder: Path) -> set[str]:
    """Return the events that wait in a queue's folder, as a collector finds them that starts on it."""
    found: set[str] = set()

    async def read(topic: str) -> None:
        queue = _TopicQueue(folder, topic, segment_bytes=300, refused=RefusedFile(folder / "refused.ndjson"))
        found.update(f"{topic} {decode_message(each).data.decode()}" for each in queue._read_batch().messages)

    for path in folder.iterdir() if folder.exists() else ():
        if path.is_dir():
            asyncio.run(read(path.name))
    return found


@pytest.mark.skipif(not can_record(), reason="strace is missing or may not trace here")
def test_what_was_answered_survives_a_power_cut_at_any_moment(tmp_path):
    root, marks = tmp_path / "root", tmp_path / "marks"
    root.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, str(Path(__file__).with_name("queue_program.py")), str(root / "home"), str(marks)]
    known = {}
    faults = []
    dice = random.Random(14)
    for moment in record(program, root, marks, environment):
        for survival in Survival:
            left = moment.folder.after_a_cut(survival, dice)
            state = frozenset(left.items())
            if state not in known:
                rebuild(left, root, tmp_path / "kept")
                # A start mends the files, and those of a rebuilt folder are shared.
                shutil.rmtree(tmp_path / "opened", ignore_errors=True)
                shutil.copytree(root, tmp_path / "opened")
                known[state] = events_in(tmp_path / "opened" / "home" / "collector")
            if lost := set(moment.marks) - known[state]:
                faults.append(f"{survival.name}: {sorted(lost)} after {moment.call}")
    assert len(moment.marks) == 12
    assert faults == []
