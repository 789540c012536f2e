"""Takes events into the queue of the home in argument 1, and writes to the file of argument 2 what is answered."""

import asyncio
import sys
from pathlib import Path

from collector.batch import make_event
from collector.queue import QueueDelivery
from connectors.pubsub.client import PubSub

TOPICS = ("orders", "carts")


async def take_events(client: PubSub, home: Path, marks: Path) -> None:
    queue = QueueDelivery(client, home / "collector", max_bytes=10_000_000, segment_bytes=300)
    await queue.start()
    with marks.open("a", buffering=1) as answered:
        for number in range(12):
            topic = TOPICS[number % 2]
            assert await queue.deliver(topic, [make_event(b"%d" % number, b"").message]) == [None]
            answered.write(f"{topic} {number}\n")
    for each in queue._topics.values():
        await each.stop()


if __name__ == "__main__":
    with PubSub("shop", "127.0.0.1:9") as nobody:
        asyncio.run(take_events(nobody, Path(sys.argv[1]), Path(sys.argv[2])))
