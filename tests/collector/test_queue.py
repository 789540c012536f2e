import asyncio
import errno
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.processes import free_port
from collector.delivery import TopicDirectory
from collector.door import Door
from collector.http import Collector, make_event
from collector.queue import QueueDelivery, _TopicQueue
from collector.refused import RefusedFile
from connectors.pubsub.client import PubSub
from connectors.pubsub.encoding import encode_attributes
from connectors.pubsub.sending import decode_message, encode_message
from local.segment import Segment
from local.server import PubSubServer
from model.errors import LeaseHeldError, QueueFullError
from tests.collector.conftest import Yard
from tests.power import Survival, can_record, rebuild, record


def message(number: int, size: int = 0) -> bytes:
    return make_event(b"%d" % number + b" " * size, encode_attributes([("n", str(number))])).message


def numbers(messages: list[Any]) -> list[int]:
    return [int(each.data) for each in messages]


async def wait_for(is_true: Callable[[], bool], why: str) -> None:
    try:
        async with asyncio.timeout(10):
            while not is_true():  # noqa: ASYNC110  the queue tells nobody
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"not within 10 s: {why}")


def run(
    pubsub: PubSub,
    folder: Path,
    work: Callable[[QueueDelivery], Coroutine[Any, Any, Any]],
    *,
    is_killed: bool = False,
    **options: Any,
) -> Any:
    """Open the queue, work, and end it as at a SIGTERM; or as at a kill, without a word to it."""

    async def go() -> Any:
        options.setdefault("max_bytes", 10_000_000)
        queue = QueueDelivery(pubsub, folder, **options)
        try:
            await queue.start()
            return await work(queue)
        finally:
            if is_killed:
                for each in queue._topics.values():
                    await each.stop()
                os.close(queue._lock)
            else:
                await queue.stop()

    return asyncio.run(go())


@pytest.fixture
def away() -> Any:
    """A client of a Pub/Sub that nobody serves."""
    with PubSub("shop", f"127.0.0.1:{free_port()}") as client:
        yield client


def test_events_go_through_the_disk_and_arrive_in_their_order(yard: Yard, tmp_path: Path) -> None:
    async def work(queue: QueueDelivery) -> None:
        for start in range(0, 3_000, 300):
            assert await queue.deliver(yard.topic, [message(n) for n in range(start, start + 300)]) == [None] * 300
        await wait_for(lambda: not queue.waiting_bytes, "all is published")
        assert queue.waiting_events() == {yard.topic: 0}

    run(yard.pubsub, tmp_path / "queue", work)
    assert numbers(yard.pull(3_000)) == list(range(3_000))


@pytest.mark.parametrize(
    "name", ["refused.ndjson", "Refused.NDJSON", "unsubscribed.json", "unsubscribed.json.new"]
)
def test_a_topic_may_have_the_name_of_a_file_of_the_queue(
    yard: Yard, away: PubSub, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "queue"
    topic = yard.add_topic(name)
    file = RefusedFile(folder / name.lower())

    async def take(queue: QueueDelivery) -> None:
        assert await queue.deliver(topic, [message(7)]) == [None]
        file.append(topic, decode_message(message(8)), "too large")

    async def work(queue: QueueDelivery) -> None:
        await wait_for(lambda: not queue.waiting_bytes, "what waits is published")

    run(away, folder, take, is_killed=True)
    run(yard.pubsub, folder, work)
    assert numbers(yard.pull(1, topic)) == [7]
    assert json.loads(file.path.read_bytes())["reason"] == "too large"
    yard.remove_topic(topic)


def test_a_folder_where_the_queue_s_own_file_belongs_is_a_topic_of_before(
    yard: Yard, away: PubSub, tmp_path: Path
) -> None:
    folder = tmp_path / "queue"

    async def take(queue: QueueDelivery) -> None:
        assert await queue.deliver("before", [message(7)]) == [None]

    async def work(queue: QueueDelivery) -> None:
        await wait_for(lambda: not queue.waiting_bytes, "what waits is published")

    run(away, folder, take, is_killed=True)
    (folder / "before").rename(folder / "refused.ndjson")
    topic = yard.add_topic("refused.ndjson")
    run(yard.pubsub, folder, work)
    assert numbers(yard.pull(1, topic)) == [7]
    assert not (folder / "refused.ndjson").exists()
    yard.remove_topic(topic)


def test_an_event_that_is_published_before_its_write_is_noted_is_not_counted_for_ever(
    yard: Yard, tmp_path: Path
) -> None:
    async def work(queue: QueueDelivery) -> None:
        assert await queue.deliver(yard.topic, [message(0)]) == [None]
        await wait_for(lambda: not queue.waiting_bytes, "the first one is published")
        held = queue._topics[yard.topic]
        append = held._append

        def append_slowly(bodies: Any) -> Any:
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


def test_a_full_disk_refuses_the_first_event_of_a_topic_as_any_other(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def work(queue: QueueDelivery) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("local.segment.Path.touch", full)
            [error] = await queue.deliver(yard.topic, [message(0)])
            assert isinstance(error, QueueFullError)
        assert await queue.deliver(yard.topic, [message(1)]) == [None]

    run(yard.pubsub, tmp_path / "queue", work)
    assert numbers(yard.pull(1)) == [1]


def test_what_was_answered_survives_a_kill_and_keeps_its_id_and_order(
    yard: Yard, away: PubSub, tmp_path: Path
) -> None:
    wanted = [message(n) for n in range(500)]

    async def take(queue: QueueDelivery) -> None:
        await asyncio.gather(*(queue.deliver(yard.topic, [each]) for each in wanted[:250]))
        assert await queue.deliver(yard.topic, wanted[250:499]) == [None] * 249

    async def go_on(queue: QueueDelivery) -> None:
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


def test_a_torn_end_of_a_log_loses_nothing_that_was_answered(yard: Yard, away: PubSub, tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    run(away, folder, lambda queue: queue.deliver(yard.topic, [message(n) for n in range(20)]), is_killed=True)
    [log] = (folder / yard.topic).glob("*.log")
    with log.open("ab") as file:
        # What a kill leaves of a write that nobody was answered for.
        file.write(log.read_bytes()[:57])

    async def go_on(queue: QueueDelivery) -> None:
        await wait_for(lambda: not queue.waiting_events()[yard.topic], "all is published")
        # The log goes on behind the damage.
        assert await queue.deliver(yard.topic, [message(20)]) == [None]

    run(yard.pubsub, folder, go_on)
    assert numbers(yard.pull(21)) == list(range(21))


def test_a_damaged_event_takes_no_other_with_it(yard: Yard, away: PubSub, tmp_path: Path) -> None:
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


def test_a_full_queue_takes_nothing_of_a_request_until_there_is_room(yard: Yard, tmp_path: Path) -> None:
    port = free_port()
    topic = yard.topic

    async def work(queue: QueueDelivery) -> None:
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


def test_a_disk_that_takes_nothing_is_said_and_nothing_is_half_taken(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Segment.append

    async def work(queue: QueueDelivery) -> None:
        assert await queue.deliver(yard.topic, [message(1)]) == [None]

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Segment, "append", full)
        [refused] = await queue.deliver(yard.topic, [message(2)])
        assert isinstance(refused, QueueFullError)
        monkeypatch.setattr(Segment, "append", real)
        assert await queue.deliver(yard.topic, [message(3)]) == [None]

    run(yard.pubsub, tmp_path / "queue", work)
    assert numbers(yard.pull(2)) == [1, 3]


def test_a_fault_that_nobody_foresaw_leaves_no_request_without_an_answer(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Segment.append

    async def work(queue: QueueDelivery) -> None:
        await queue.deliver(yard.topic, [message(1)])

        def fail(*_: Any) -> None:
            raise ValueError("nobody foresaw this")

        monkeypatch.setattr(Segment, "append", fail)
        async with asyncio.timeout(5):
            [refused] = await queue.deliver(yard.topic, [message(2)])
        assert isinstance(refused, QueueFullError)
        monkeypatch.setattr(Segment, "append", real)
        async with asyncio.timeout(5):
            assert await queue.deliver(yard.topic, [message(3)]) == [None]

    run(yard.pubsub, tmp_path / "queue", work)
    assert numbers(yard.pull(2)) == [1, 3]


def test_what_pubsub_refuses_is_set_aside_and_blocks_nobody(yard: Yard, tmp_path: Path) -> None:
    bad = encode_message(b"\xffbad", encode_attributes([("goog", "not allowed")]))

    async def work(queue: QueueDelivery) -> None:
        await queue.deliver(yard.topic, [message(1), bad, message(2)])

    run(yard.pubsub, tmp_path / "queue", work)
    assert numbers(yard.pull(2)) == [1, 2]
    line = json.loads((tmp_path / "queue" / "refused.ndjson").read_text())
    assert line.pop("reason").startswith("Pub/Sub does not take the message")
    assert line == {"topic": yard.topic, "attributes": {"goog": "not allowed"}, "data_base64": "/2JhZA=="}


def test_what_is_refused_stays_queued_while_its_file_is_full_and_nothing_else_is_published_twice(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = encode_message(b"bad", encode_attributes([("goog", "not allowed")]))
    kept = tmp_path / "queue" / "refused.ndjson"
    monkeypatch.setattr("collector.queue._FAULT_SECONDS", 0.05)

    async def work(queue: QueueDelivery) -> None:
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


def test_refused_events_that_stay_queued_block_no_others_however_many_they_are(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = encode_message(b"bad", encode_attributes([("goog", "not allowed")]))
    monkeypatch.setattr("collector.queue._FAULT_SECONDS", 0.05)
    monkeypatch.setattr("collector.queue.MAX_PUBLISH_REQUEST_MESSAGES", 3)

    async def work(queue: QueueDelivery) -> None:
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


def test_a_topic_that_waits_leaves_room_for_all_others(yard: Yard, away: PubSub, tmp_path: Path) -> None:
    async def work(queue: QueueDelivery) -> None:
        taken: dict[str, int] = {}
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


def test_a_topic_alone_has_the_whole_queue(yard: Yard, away: PubSub, tmp_path: Path) -> None:
    async def work(queue: QueueDelivery) -> None:
        outcomes = [(await queue.deliver("a-first", [message(n, 1_000)]))[0] for n in range(90)]
        assert 70 < sum(outcome is None for outcome in outcomes) < 90

    run(away, tmp_path / "queue", work, max_bytes=100_000, is_killed=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk can't be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_refuses_events_publishes_what_waits_once_and_goes_on(
    small_disk: Path, tmp_path: Path
) -> None:
    port = free_port()
    answered: list[int] = []

    @contextmanager
    def served() -> Iterator[Yard]:
        with PubSubServer(tmp_path / "pubsub", port=port), PubSub("shop", f"127.0.0.1:{port}") as admin:
            yield Yard(admin, tmp_path)

    async def work(queue: QueueDelivery) -> None:
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


def test_a_topic_that_is_missing_keeps_its_events_and_blocks_no_other(yard: Yard, tmp_path: Path) -> None:
    missing = f"{yard.topic}-later"

    async def work(queue: QueueDelivery) -> None:
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


def test_segments_that_are_published_are_deleted(yard: Yard, tmp_path: Path) -> None:
    async def work(queue: QueueDelivery) -> None:
        for n in range(30):
            await queue.deliver(yard.topic, [message(n, 5_000)])
        await wait_for(lambda: not queue.waiting_bytes, "all is published")

    run(yard.pubsub, tmp_path / "queue", work, segment_bytes=10_000)
    assert len(list((tmp_path / "queue" / yard.topic).glob("*.log"))) <= 2
    assert numbers(yard.pull(30)) == list(range(30))


def test_two_processes_never_share_a_queue(yard: Yard, tmp_path: Path) -> None:
    async def work(_queue: QueueDelivery) -> None:
        with pytest.raises(LeaseHeldError):
            QueueDelivery(yard.pubsub, tmp_path / "queue", max_bytes=1)

    run(yard.pubsub, tmp_path / "queue", work)


def test_a_topic_may_be_called_lock(yard: Yard, tmp_path: Path) -> None:
    yard.add_topic("lock")

    async def work(queue: QueueDelivery) -> None:
        assert await queue.deliver("lock", [message(1)]) == [None]

    run(yard.pubsub, tmp_path / "queue", work)
    assert numbers(yard.pull(1, "lock")) == [1]


def test_a_request_is_answered_202_when_its_event_is_on_disk(yard: Yard, away: PubSub, tmp_path: Path) -> None:
    settings = yard.settings()

    async def work(queue: QueueDelivery) -> None:
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
def test_what_was_answered_survives_a_power_cut_at_any_moment(tmp_path: Path) -> None:
    root, marks = tmp_path / "root", tmp_path / "marks"
    root.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, str(Path(__file__).with_name("queue_program.py")), str(root / "home"), str(marks)]
    known: dict[frozenset[tuple[str, bytes | None]], set[str]] = {}
    faults: list[str] = []
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
