"""A program that uses Google's own Pub/Sub client against PUBSUB_EMULATOR_HOST and prints what it saw as JSON."""

import json
import sys
import threading
import time
from concurrent import futures

from google.cloud import pubsub_v1

PROJECT = "shop"
MESSAGES = 3000


def publish_and_subscribe() -> dict[str, object]:
    """Default batching out, flow control in, some messages nacked once."""
    publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()
    topic = publisher.topic_path(PROJECT, "orders")
    subscription = subscriber.subscription_path(PROJECT, "orders")
    publisher.create_topic(name=topic)
    subscriber.create_subscription(name=subscription, topic=topic)
    calls = [publisher.publish(topic, b"order %d" % n, number=str(n)) for n in range(MESSAGES)]
    ids = [call.result(timeout=30) for call in calls]
    seen: dict[str, bytes] = {}
    deliveries: list[str] = []
    most_in_hand = in_hand = 0
    lock = threading.Lock()
    done = threading.Event()

    def receive(message: object) -> None:
        nonlocal most_in_hand, in_hand
        with lock:
            in_hand += 1
            most_in_hand = max(most_in_hand, in_hand)
            first_time = message.message_id not in deliveries
            deliveries.append(message.message_id)
            in_hand -= 1
            if first_time and message.attributes["number"].endswith("7"):
                message.nack()
                return
            seen[message.message_id] = message.data
            if len(seen) == MESSAGES:
                done.set()
        message.ack()

    flow = pubsub_v1.types.FlowControl(max_messages=50, max_bytes=1_000_000)
    stream = subscriber.subscribe(subscription, callback=receive, flow_control=flow)
    complete = done.wait(60)
    stream.cancel()
    stream.result(timeout=30)
    # What the background threads still had to say about acknowledgements is said when nothing is left.
    left = subscriber.pull(subscription=subscription, max_messages=10, timeout=2, retry=None).received_messages
    subscriber.close()
    return {
        "complete": complete,
        "unique_ids": len(set(ids)),
        "ids_as_received": sorted(seen) == sorted(ids),
        "data_as_sent": sorted(seen.values()) == sorted(b"order %d" % n for n in range(MESSAGES)),
        "redelivered": len(deliveries) - len(seen),
        "left": len(left),
        "most_in_hand": most_in_hand,
    }


def wait_for_all(received: dict[str, list[int]], lock: threading.Lock) -> bool:
    """Poll until all 300 numbers were seen; False when that takes half a minute."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with lock:
            if sum(len(set(numbers)) for numbers in received.values()) == 300:
                return True
        time.sleep(0.05)
    return False


def keep_order() -> dict[str, object]:
    """Ordering keys through subscribe(), one message failing the first time."""
    options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
    publisher, subscriber = pubsub_v1.PublisherClient(publisher_options=options), pubsub_v1.SubscriberClient()
    topic = publisher.topic_path(PROJECT, "ledger")
    subscription = subscriber.subscription_path(PROJECT, "ledger")
    publisher.create_topic(name=topic)
    subscriber.create_subscription(request={"name": subscription, "topic": topic, "enable_message_ordering": True})
    calls = [publisher.publish(topic, b"%d" % n, ordering_key=f"key{n % 3}") for n in range(300)]
    futures.wait(calls, timeout=30)
    received: dict[str, list[int]] = {}
    failed = False
    done = threading.Event()
    lock = threading.Lock()

    def receive(message: object) -> None:
        nonlocal failed
        with lock:
            number = int(message.data)
            if number == 151 and not failed:
                failed = True
                message.nack()
                return
            received.setdefault(message.ordering_key, []).append(number)
            if received.get("key1", [])[-1:] == [298] and 151 in received["key1"] and len(received) == 3:
                done.set()
        message.ack()

    stream = subscriber.subscribe(subscription, callback=receive)
    complete = done.wait(60) and wait_for_all(received, lock)
    stream.cancel()
    stream.result(timeout=30)
    subscriber.close()
    in_order = {}
    for key, numbers in received.items():
        # The client hands out what it already holds behind a nacked message; then all of it comes again.
        tail = numbers[numbers.index(151) :] if 151 in numbers else numbers
        in_order[key] = list(dict.fromkeys(tail)) == list(range(tail[0], 300, 3))
        in_order[key] &= sorted(set(numbers)) == list(range(int(key[3:]), 300, 3))
    return {"complete": complete, "in_order": in_order}


if __name__ == "__main__":
    work = {"subscribe": publish_and_subscribe, "order": keep_order}[sys.argv[1]]
    sys.stdout.write(json.dumps(work()))
