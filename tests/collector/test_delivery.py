import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cli.processes import free_port
from collector import delivery
from collector.batch import make_event
from collector.delivery import DirectDelivery, TopicDirectory, TopicState
from connectors.pubsub import sending
from connectors.pubsub.client import PubSub
from model.errors import PubSubUnavailableError


class HungPubSub:
    """A Pub/Sub that says nothing of a topic until the test ends, and has had ``orders`` with a subscription."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.is_hung = False
        self.looks = 0

    def is_topic_read(self, topic: str) -> bool:
        self.looks += 1
        if not self.is_hung:
            return topic == "orders"
        self.ended.wait(20)
        raise PubSubUnavailableError("Nobody answers.")


@pytest.fixture
def hung():
    found = HungPubSub()
    yield found
    found.ended.set()


def test_requests_for_a_topic_that_was_read_wait_once_for_a_pubsub_that_hangs(hung, monkeypatch):
    async def work():
        directory = TopicDirectory(hung)  # type: ignore[arg-type]
        monkeypatch.setattr(delivery, "_READ_SECONDS", 0)
        assert await directory.find("orders") is TopicState.READ
        hung.is_hung = True
        monkeypatch.setattr(delivery, "_WAIT_SECONDS", 0.01)
        asks = [directory.find("orders") for _ in range(20)]
        assert await asyncio.wait_for(asyncio.gather(*asks), 5) == [TopicState.READ] * 20
        monkeypatch.setattr(delivery, "_WAIT_SECONDS", 60)
        assert await asyncio.wait_for(directory.find("orders"), 5) is TopicState.READ
        assert hung.looks == 2
        hung.ended.set()

    asyncio.run(work())


def test_a_topic_in_use_is_looked_for_again_before_its_time_is_over(hung, monkeypatch):
    async def work():
        directory = TopicDirectory(hung)  # type: ignore[arg-type]
        monkeypatch.setattr(delivery, "_EARLY_SECONDS", 20)
        assert await directory.find("orders") is TopicState.READ
        hung.is_hung = True
        # Nobody waits for the second look.
        assert await directory.find("orders") is TopicState.READ
        assert list(directory._looks) == ["orders"]
        hung.ended.set()
        await asyncio.wait(directory._looks.values())

    asyncio.run(work())


def test_a_topic_that_was_never_seen_is_not_known_while_pubsub_hangs(hung, monkeypatch):
    async def work():
        directory = TopicDirectory(hung)  # type: ignore[arg-type]
        hung.is_hung = True
        monkeypatch.setattr(delivery, "_WAIT_SECONDS", 0.01)
        for _ in range(3):
            with pytest.raises(PubSubUnavailableError, match="whether orders has a subscription"):
                await directory.find("orders")
        assert (hung.looks, directory.knows("orders")) == (1, False)
        hung.ended.set()

    asyncio.run(work())


def test_looks_for_topics_leave_the_disk_s_threads_alone(hung):
    async def work():
        # The queue writes in the threads of the loop.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(6))
        directory = TopicDirectory(hung)  # type: ignore[arg-type]
        hung.is_hung = True
        asks = [asyncio.create_task(directory.find(f"made-up-{n}")) for n in range(20)]
        await asyncio.sleep(0)
        try:
            assert await asyncio.wait_for(asyncio.to_thread(lambda: "written"), 2) == "written"
        finally:
            hung.ended.set()
            await asyncio.gather(*asks, return_exceptions=True)

    asyncio.run(work())


def test_an_error_is_no_problem_any_more_once_nothing_was_sent_for_a_while(monkeypatch):
    """Nothing may be sent to a collector that says that it is not ready: then no publish clears its error."""

    async def work(away):
        direct = DirectDelivery(away, give_up_seconds=0.1)
        [error] = await direct.deliver("orders", [make_event(b"1", b"").message])
        assert isinstance(error, PubSubUnavailableError)
        assert list(direct.problems()) == ["orders"]
        monkeypatch.setattr(sending, "_ERROR_SECONDS", 0)
        assert direct.problems() == {}

    with PubSub("shop", f"127.0.0.1:{free_port()}") as away:
        asyncio.run(work(away))


def test_an_event_waits_no_longer_for_those_before_it():
    async def work(away):
        direct = DirectDelivery(away, give_up_seconds=1)
        began = time.monotonic()
        # Two requests of 1,000 are under way at a time.
        requests = [[make_event(b"%d" % number, b"").message] * 1_000 for number in range(20)]
        outcomes = await asyncio.gather(*(direct.deliver("orders", each) for each in requests))
        assert all(isinstance(error, PubSubUnavailableError) for errors in outcomes for error in errors)
        # One after the other they would take ten seconds.
        assert time.monotonic() - began < 5

    with PubSub("shop", f"127.0.0.1:{free_port()}") as away:
        asyncio.run(work(away))
