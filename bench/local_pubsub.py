"""How fast one core of the local Pub/Sub server is: publish, then pull and acknowledge, over gRPC.

The server runs in a process of its own, pinned to one core; the client sends and reads raw bytes, several calls in
flight, so that it is not what is measured. Run it with ``python bench/local_pubsub.py``.
"""

import contextlib
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import grpc
from google.pubsub_v1 import types

TOPIC = "projects/bench/topics/messages"
SUBSCRIPTION = "projects/bench/subscriptions/messages"
BATCH_MESSAGES = 1000
DATA_BYTES = 1024
IN_FLIGHT = 4
ACK_ID_LENGTH = 32
BACKUP_FILTER = 'NOT attributes.refeed_replay = "0123456789abcdef"'


@contextlib.contextmanager
def serve(folder: Path, core: int) -> Iterator[tuple[grpc.Channel, int]]:
    """Run a server pinned to ``core``; yield a channel to it and its pid."""
    command = [sys.executable, "-m", "local.server", "--port", "0", "--data-dir", str(folder)]
    if taskset := shutil.which("taskset"):
        command = [taskset, "-c", str(core), *command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        target = process.stdout.readline().split()[-1]
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(target, options=options) as channel:
            yield channel, process.pid
    finally:
        process.terminate()
        process.wait(30)


def read_cpu_seconds(pid: int) -> float:
    """CPU time the process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def render_publish_request() -> bytes:
    """A PublishRequest of BATCH_MESSAGES messages of DATA_BYTES and 4 attributes."""
    attributes = {"event": "order_created", "source": "webshop", "version": "12", "trace": "4bf92f3577b34da6"}
    message = types.PubsubMessage(data=os.urandom(DATA_BYTES), attributes=attributes)
    return types.PublishRequest.serialize(types.PublishRequest(topic=TOPIC, messages=[message] * BATCH_MESSAGES))


def cut_ack_ids(response: bytes) -> list[bytes]:
    """The ack ids of a PullResponse, found without decoding the messages."""
    ids = []
    position = 0
    while position < len(response):
        length = shift = 0
        position += 1
        while True:
            byte = response[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        ids.append(response[position : position + 2 + ACK_ID_LENGTH])
        position += length
    return ids


def measure_publish(channel: grpc.Channel, messages: int) -> float:
    """Seconds to publish ``messages`` messages."""
    publish = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
    request = render_publish_request()
    started = time.perf_counter()
    flying = deque(publish.future(request) for _ in range(IN_FLIGHT))
    for _ in range(messages // BATCH_MESSAGES - IN_FLIGHT):
        flying.popleft().result()
        flying.append(publish.future(request))
    for call in flying:
        call.result()
    return time.perf_counter() - started


def measure_pull(channel: grpc.Channel, messages: int) -> float:
    """Seconds to pull and acknowledge ``messages`` messages."""
    pull = channel.unary_unary("/google.pubsub.v1.Subscriber/Pull")
    acknowledge = channel.unary_unary("/google.pubsub.v1.Subscriber/Acknowledge")
    request = types.PullRequest.serialize(
        types.PullRequest(subscription=SUBSCRIPTION, max_messages=BATCH_MESSAGES)
    )
    ack_head = types.AcknowledgeRequest.serialize(types.AcknowledgeRequest(subscription=SUBSCRIPTION))
    # Answers are read as they come: the oldest call may wait for messages that another one has already brought.
    answers: queue.SimpleQueue[grpc.Future] = queue.SimpleQueue()
    pulls = []

    def ask() -> None:
        pulls.append(pull.future(request, timeout=30))
        pulls[-1].add_done_callback(answers.put)

    started = time.perf_counter()
    for _ in range(IN_FLIGHT):
        ask()
    acks = []
    done = 0
    while done < messages:
        ids = cut_ack_ids(answers.get().result())
        done += len(ids)
        if done < messages:
            ask()
        if ids:
            # An ack id is field 1 of a ReceivedMessage and field 2 of an AcknowledgeRequest.
            acks.append(acknowledge.future(ack_head + b"".join(b"\x12" + field[1:] for field in ids)))
    for call in acks:
        call.result()
    seconds = time.perf_counter() - started
    for call in pulls:
        call.cancel()
    return seconds


def measure(messages: int, message_filter: str) -> dict[str, float]:
    """Measure and return messages a second and the server's CPU microseconds a message."""
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder), core=0) as (channel, pid):
        create_topic = channel.unary_unary("/google.pubsub.v1.Publisher/CreateTopic")
        create_topic(types.Topic.serialize(types.Topic(name=TOPIC)))
        subscription = types.Subscription(
            name=SUBSCRIPTION, topic=TOPIC, filter=message_filter, ack_deadline_seconds=60
        )
        channel.unary_unary("/google.pubsub.v1.Subscriber/CreateSubscription")(
            types.Subscription.serialize(subscription)
        )
        measure_publish(channel, 20_000)
        measure_pull(channel, 20_000)
        cpu = read_cpu_seconds(pid)
        publish_seconds = measure_publish(channel, messages)
        publish_cpu = read_cpu_seconds(pid) - cpu
        cpu = read_cpu_seconds(pid)
        pull_seconds = measure_pull(channel, messages)
        pull_cpu = read_cpu_seconds(pid) - cpu
    return {
        "publish_messages_per_second": messages / publish_seconds,
        "publish_server_cpu_us_per_message": publish_cpu / messages * 1e6,
        "pull_ack_messages_per_second": messages / pull_seconds,
        "pull_ack_server_cpu_us_per_message": pull_cpu / messages * 1e6,
    }


def run() -> list[dict[str, object]]:
    """Measure with the filter of a backup subscription; the limit is the rate that was asked for."""
    numbers = measure(400_000, BACKUP_FILTER)
    return [
        {
            "name": f"local server on one core: {name.replace('_', ' + ')}",
            "unit": "messages/s",
            "refeed": numbers[f"{name}_messages_per_second"],
            "limit": goal,
            "ratio": numbers[f"{name}_messages_per_second"] / goal,
            "goal_ratio": 1.0,
            "server_cpu_us_per_message": numbers[f"{name}_server_cpu_us_per_message"],
        }
        for name, goal in (("publish", 100_000), ("pull_ack", 150_000))
    ]


def main() -> None:
    """Print what ``measure`` finds, without and with a filter."""
    print(f"{'':24}{'publish/s':>12}{'CPU us':>8}{'pull+ack/s':>12}{'CPU us':>8}")
    for name, text in (("no filter", ""), ("backup filter", BACKUP_FILTER)):
        numbers = measure(400_000, text)
        publish, publish_cpu, pull, pull_cpu = numbers.values()
        print(f"{name:24}{publish:12,.0f}{publish_cpu:8.2f}{pull:12,.0f}{pull_cpu:8.2f}")


if __name__ == "__main__":
    main()
