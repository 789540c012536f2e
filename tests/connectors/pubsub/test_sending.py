import asyncio
import secrets
import time

import grpc
import pytest

from cli.processes import free_port
from connectors.pubsub import sending
from connectors.pubsub.channel import open_channel
from connectors.pubsub.client import PubSub
from connectors.pubsub.encoding import encode_attributes
from connectors.pubsub.sending import Sender, encode_message
from local.server import PubSubServer
from model.errors import MessageRefusedError, PubSubUnavailableError, TopicNotFoundError
from model.message import MAX_PUBLISH_REQUEST_BYTES


def run(work, pubsub, topic, **options):
    async def go():
        options.setdefault("give_up_seconds", 5.0)
        return await work(Sender(pubsub.channel, pubsub.topic_path(topic), **options))

    return asyncio.run(go())


def message(number, size=0):
    return encode_message(b"%d" % number + b"x" * size, encode_attributes([("n", str(number))]))


def bad():
    return encode_message(b"", encode_attributes([("goog", "Pub/Sub refuses this name")]))


@pytest.fixture
def topic(pubsub):
    name = f"t{secrets.token_hex(4)}"
    pubsub.create_topic(name)
    return name


@pytest.fixture
def pull(server, pubsub, topic):
    from google.pubsub_v1 import SubscriberClient
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

    subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=pubsub.channel))
    path = pubsub.subscription_path("all")
    subscriber.create_subscription(request={"name": path, "topic": pubsub.topic_path(topic)})

    def take(count):
        found = []
        while len(found) < count:
            answer = subscriber.pull(subscription=path, max_messages=1000, timeout=10, retry=None)
            found += answer.received_messages
        assert len(found) == count
        return [each.message.data for each in found]

    return take


async def outcomes(sender, *messages):
    return await asyncio.gather(*map(sender.send, messages), return_exceptions=True)


def test_messages_arrive_in_the_order_they_were_sent_in(pubsub, topic, pull):
    async def work(sender):
        assert set(await outcomes(sender, *map(message, range(2_500)))) == {None}

    run(work, pubsub, topic, in_flight=1)
    assert pull(2_500) == [b"%d" % number for number in range(2_500)]


def test_large_messages_share_no_request_that_is_too_large(pubsub, topic, pull):
    class Sizes(grpc.UnaryUnaryClientInterceptor):
        def intercept_unary_unary(self, go_on, details, request):
            sizes.append(len(request))
            return go_on(details, request)

    async def work():
        channel = grpc.intercept_channel(pubsub.channel, Sizes())
        sender = Sender(channel, pubsub.topic_path(topic), give_up_seconds=5.0)
        assert set(await outcomes(sender, *(message(number, 4_000_000) for number in range(6)))) == {None}

    sizes = []
    asyncio.run(work())
    assert len(pull(6)) == 6
    # One that is too large is refused, and its messages travel again.
    assert max(sizes) <= MAX_PUBLISH_REQUEST_BYTES


def test_what_nobody_waits_for_any_more_is_not_sent(pubsub, topic, pull):
    async def work(sender):
        first, second, third = (sender.send(message(number)) for number in range(3))
        second.cancel()
        await asyncio.gather(first, third)
        fourth = sender.send(message(3))
        fourth.cancel()
        await asyncio.sleep(0)
        await sender.send(message(4))

    run(work, pubsub, topic, in_flight=1)
    assert pull(3) == [b"0", b"2", b"4"]


def test_a_message_that_pubsub_refuses_takes_no_other_with_it(pubsub, topic, pull):
    async def work(sender):
        wanted = [message(number) for number in range(300)]
        wanted[7], wanted[150] = bad(), bad()
        return await outcomes(sender, *wanted)

    found = run(work, pubsub, topic, in_flight=1)
    assert [at for at, error in enumerate(found) if error is not None] == [7, 150]
    assert isinstance(found[7], MessageRefusedError)
    assert pull(298) == [b"%d" % number for number in range(300) if number not in {7, 150}]


def test_a_topic_that_is_gone_is_said_at_once(pubsub, monkeypatch):
    async def work(sender):
        with pytest.raises(TopicNotFoundError):
            await sender.send(message(1))
        assert sender.last_error is not None
        monkeypatch.setattr(sending, "_ERROR_SECONDS", 0.0)
        assert sender.last_error is None, "an old one says nothing of now"

    run(work, pubsub, "never-made")


def test_nobody_who_answers_is_given_up_on_in_time(tmp_path):
    async def go():
        with open_channel(f"127.0.0.1:{free_port()}") as channel:
            sender = Sender(channel, "projects/p/topics/t", give_up_seconds=0.5)
            began = time.monotonic()
            with pytest.raises(PubSubUnavailableError):
                await sender.send(message(1))
            assert time.monotonic() - began < 3

    asyncio.run(go())


def test_without_an_end_what_could_not_be_sent_goes_out_when_pubsub_is_back(tmp_path):
    port = free_port()

    async def go():
        with open_channel(f"127.0.0.1:{port}") as channel:
            sender = Sender(channel, "projects/p/topics/orders", give_up_seconds=None, in_flight=1)
            waiting = [sender.send(message(number)) for number in range(3)]
            done, _ = await asyncio.wait(waiting, timeout=0.3)
            assert not done
            with (
                PubSubServer(tmp_path / "pubsub", port=port) as server,
                PubSub("p", server.emulator_host) as pubsub,
            ):
                # The topic is not there yet: that, too, is a fault that somebody mends.
                pubsub.create_topic("orders")
                await asyncio.wait_for(asyncio.gather(*waiting), 10)
                assert sender.last_error is None

    asyncio.run(go())
