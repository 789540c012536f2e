"""kill -9 of the local Pub/Sub server at random moments: nothing published is lost, nothing acked comes again."""

import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import grpc
import pytest
from google.pubsub_v1 import types

TOPIC = "projects/p/topics/orders"
SUBSCRIPTION = "projects/p/subscriptions/orders"

pytestmark = pytest.mark.kills


class Server:
    """The server as a process on a fixed port, killed and started again by pid."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[str] | None = None

    def start(self, *, file_bytes=resource.RLIM_INFINITY):
        """Start; ``file_bytes`` is where its disk is full: no file of it may grow larger."""
        command = [sys.executable, "-m", "local.server", "--port", str(self.port), "--data-dir", str(self.folder)]
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (file_bytes, hard))
        assert self.process.stdout.readline().startswith("Pub/Sub server on 127.0.0.1:"), (
            "the server did not start"
        )

    def end(self, signal_number=signal.SIGKILL):
        os.kill(self.process.pid, signal_number)
        code = self.process.wait(30)
        self.process.stdout.close()
        return code

    @contextlib.contextmanager
    def channel(self):
        options = [("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 50)]
        with grpc.insecure_channel(f"127.0.0.1:{self.port}", options=options) as channel:
            yield channel


@pytest.fixture
def server(tmp_path):
    running = Server(tmp_path / "pubsub")
    running.start()
    yield running
    if running.process is not None and running.process.poll() is None:
        running.end()


def call(channel, method, request, response_type=types.PullResponse):
    """One call, made again while the server is away."""
    stub = channel.unary_unary(f"/google.pubsub.v1.{method}")
    raw = type(request).serialize(request)
    give_up = time.monotonic() + 30
    while True:
        try:
            return response_type.deserialize(stub(raw, timeout=5))
        except grpc.RpcError as exc:
            is_away = exc.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
            if not is_away or time.monotonic() > give_up:
                raise
            time.sleep(0.02)


def create(channel, **settings):
    call(channel, "Publisher/CreateTopic", types.Topic(name=TOPIC), types.Topic)
    subscription = types.Subscription(name=SUBSCRIPTION, topic=TOPIC, ack_deadline_seconds=10, **settings)
    call(channel, "Subscriber/CreateSubscription", subscription, types.Subscription)


def publish(channel, *data):
    messages = [types.PubsubMessage(data=each.encode(), attributes={"n": each}) for each in data]
    request = types.PublishRequest(topic=TOPIC, messages=messages)
    return list(call(channel, "Publisher/Publish", request, types.PublishResponse).message_ids)


def pull(channel, count=1000):
    request = types.PullRequest(subscription=SUBSCRIPTION, max_messages=count)
    return list(call(channel, "Subscriber/Pull", request).received_messages)


def ack(channel, messages):
    ack_ids = [message.ack_id for message in messages]
    call(channel, "Subscriber/Acknowledge", types.AcknowledgeRequest(subscription=SUBSCRIPTION, ack_ids=ack_ids))


def drain(channel):
    """Everything that is left; right after a restart nothing is leased."""
    found = []
    request = types.PullRequest(subscription=SUBSCRIPTION, max_messages=1000, return_immediately=True)
    while batch := list(call(channel, "Subscriber/Pull", request).received_messages):
        ack(channel, batch)
        found += batch
    return found


class Traffic:
    """One producer and two consumers on threads, and what each of their calls was told."""

    def __init__(self, server, chance):
        self._server = server
        self._chance = chance
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True)
            for work in (self._produce, self._consume, self._consume)
        ]
        self.confirmed: dict[str, str] = {}
        self.acked: set[str] = set()
        # Acks that were sent: without an answer they may count or not.
        self.acking: set[str] = set()
        self.came_back: set[str] = set()
        self.failures: list[BaseException] = []

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, work):
        try:
            with self._server.channel() as channel:
                while not self._stop.is_set():
                    work(channel)
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            self.failures.append(exc)

    def _produce(self, channel):
        names = [str(self._chance.random()) for _ in range(self._chance.choice([1, 3, 200]))]
        self.confirmed.update(zip(publish(channel, *names), names, strict=True))

    def _consume(self, channel):
        # After a restart both consumers may hold a message: one's late ack may be answered while the other's Pull,
        # which was served before it, is still on its way. Only what was acked before the Pull must not come.
        acked_before = self.acked.copy()
        batch = pull(channel, self._chance.choice([1, 50, 500]))
        self.came_back |= acked_before & {message.message.message_id for message in batch}
        kept = [message for message in batch if self._chance.random() < 0.9]
        if kept:
            ids = {message.message.message_id for message in kept}
            self.acking |= ids
            ack(channel, kept)
            self.acked |= ids


def test_kills_at_random_moments_lose_nothing_and_bring_nothing_acked_back(server):
    chance = random.Random(7)
    with server.channel() as channel:
        create(channel)
        with Traffic(server, chance) as traffic:
            for _ in range(6):
                # Not a wait for something: the moment of the kill is what varies.
                time.sleep(chance.uniform(0.2, 1.0))
                server.end()
                server.start()
        assert not traffic.failures
        server.end()
        server.start()
        rest = {message.message.message_id: message.message.data.decode() for message in drain(channel)}
    assert len(traffic.confirmed) > 1000
    assert not traffic.came_back
    assert not traffic.acked & rest.keys()
    assert traffic.confirmed.keys() <= traffic.acked | traffic.acking | rest.keys()
    assert all(rest[message_id] == name for message_id, name in traffic.confirmed.items() if message_id in rest)


def test_a_full_disk_refuses_the_publish_and_loses_nothing(server):
    server.end()
    server.start(file_bytes=100_000)
    confirmed = []
    with server.channel() as channel:
        create(channel)

        def publish_until_full():
            for number in range(1000):
                confirmed.extend(publish(channel, f"{number:04d}" * 200, f"{number:04d}"))

        with pytest.raises(grpc.RpcError) as caught:
            publish_until_full()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 40 < len(confirmed) < 200
        first = pull(channel, 5)
        ack(channel, first)
        server.end()
        server.start()
        confirmed += publish(channel, "there is room again")
        rest = drain(channel)
    assert [message.message.message_id for message in first + rest] == confirmed
