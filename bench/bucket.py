"""The lake in a bucket beside one on a disk, turn about, and how long messages wait when each request does.

The bucket is a stand-in of Cloud Storage (``BUCKET=s3``: moto's server) on the same machine. What it uses the
others lack, so compare CPU time a message too. Only the waits are measured behind a proxy, which delays requests.
"""

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench import merge
from bench.backfill import Place
from bench.backup import watch_acks
from bench.comparison import Goal, Run, alternate, steady_run, summarise
from bench.yard import (
    SUBSCRIPTION,
    TOPIC,
    attach,
    count_rows,
    is_quick,
    make_messages,
    publish_steadily,
    start_backup,
    start_server,
)
from connectors.lake.archive import LakeArchive
from connectors.pubsub.channel import open_channel
from connectors.pubsub.publish import Publisher
from connectors.pubsub.stats import read_stats
from rollout.child import Children
from tests.worlds.bucket import at_bucket, make_lake, moto_server, serving

MESSAGES = 1_200_000
BACKFILLED = 600_000
ROUNDS = 3
RATE = 4_000
SECONDS = 20
# What a request waits for, and the most that half of the messages may then wait until they are durable.
P50_SECONDS = {0.03: 1.2, 0.06: 2.0}
_LOOK_SECONDS = 0.01
_WARM_SECONDS = 5


def run() -> list[dict[str, Any]]:
    """Measure backup, backfill and merge on both, then the waits."""
    rounds = 1 if is_quick() else ROUNDS
    scheme = os.environ.get("BUCKET", "gs")
    with open_bucket(scheme) as server:
        found = [
            measure_backup(scheme, server, rounds),
            measure_backfill(scheme, server, rounds),
            measure_merge(scheme, server),
        ]
    return [*found, *(measure_wait(scheme, delay) for delay in P50_SECONDS)]


@contextmanager
def open_bucket(scheme: str, delay_seconds: float = 0.0) -> Iterator[str]:
    """Serve buckets and have every client of this process and its children use them; yield the server's URL."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with moto_server(folder) if scheme == "s3" else serving("tests.standin.gcs_server", folder) as server:
            if not delay_seconds:
                with at_bucket(server):
                    yield server
                return
            arguments = ("--upstream", server, "--delay-seconds", str(delay_seconds), "--without-mishaps")
            with serving("tests.worlds.bucket", folder, *arguments) as proxy, at_bucket(proxy):
                yield server


def measure_backup(scheme: str, server: str, rounds: int) -> dict[str, Any]:
    """Drain a backlog into either."""
    contenders = {
        "refeed": lambda: drain(make_lake(server, scheme)),
        "disk": lambda: drain(None),
    }
    runs = alternate(contenders, dict.fromkeys(contenders, rounds))
    return summarise(f"backup, lake in {scheme}://", runs, ratios={"disk": 0.6})


def drain(lake: str | None) -> Run:
    """Drain a backlog into a lake, as fast as its commits are acknowledged."""
    found = steady_run(watch_acks(MESSAGES, start_backup, lake=lake), has_linger=True)
    assert lake is None or count_rows(LakeArchive(lake, "backup.messages")) == MESSAGES
    return found


def measure_backfill(scheme: str, server: str, rounds: int) -> dict[str, Any]:
    """Republish the same rows from either."""
    with tempfile.TemporaryDirectory() as name, Children() as children:
        places = {"refeed": make_lake(server, scheme), "disk": None}
        opened = {}
        for what, lake in places.items():
            folder = Path(name, what)
            folder.mkdir()
            opened[what] = Place(folder, children, BACKFILLED, lake)
            opened[what].warm_up()
        contenders = {what: place.measure_refeed for what, place in opened.items()}
        runs = alternate(contenders, dict.fromkeys(contenders, rounds))
        for place in opened.values():
            place.close()
    seconds = {what: statistics.median(place.seconds_to_end) for what, place in opened.items()}
    return summarise(f"backfill, lake in {scheme}://", runs, ratios={"disk": 0.8}) | {"seconds_to_end": seconds}


def measure_merge(scheme: str, server: str) -> dict[str, Any]:
    """Merge the same changes into either."""
    (bucket, bucket_cpu), (disk, disk_cpu) = merge.measure(10, make_lake(server, scheme)), merge.measure(10)
    return {
        "name": f"merge, lake in {scheme}://",
        "unit": "s",
        "refeed": bucket,
        "disk": disk,
        "ratio": disk / bucket,
        "cpu_seconds": {"refeed": bucket_cpu, "disk": disk_cpu},
    }


def measure_wait(scheme: str, delay_seconds: float) -> dict[str, Any]:
    """Publish at a steady rate, and see when as many messages are acknowledged as were published until then."""
    with (
        open_bucket(scheme, delay_seconds) as server,
        tempfile.TemporaryDirectory() as name,
        Children() as children,
    ):
        folder = Path(name)
        settings, environment, _ = start_server(folder, children, lake=make_lake(server, scheme))
        attach(settings)
        backup = start_backup(folder, children, environment)
        with open_channel(settings.pubsub_emulator_host) as channel:
            publisher = Publisher(channel, f"projects/{settings.project}/topics/{TOPIC}")

            def left() -> int:
                return (read_stats(channel, settings.project) or {})[SUBSCRIPTION].messages

            publish_steadily(publisher, make_messages(), RATE, _WARM_SECONDS)
            backup.wait_until(lambda: not left(), seconds=120, what="archived the first messages")
            began = time.monotonic()
            sender = threading.Thread(target=publish_steadily, args=(publisher, make_messages(), RATE, SECONDS))
            sender.start()
            durable: list[tuple[float, int]] = []
            while sender.is_alive() or left():
                passed = time.monotonic() - began
                durable.append((passed, min(int(passed * RATE), SECONDS * RATE) - left()))
                time.sleep(_LOOK_SECONDS)
            sender.join()
    at, counts = np.array(durable).T
    numbers = np.arange(RATE, SECONDS * RATE, 10)
    reached = np.searchsorted(np.maximum.accumulate(counts), numbers)
    known = reached < len(at)
    waits = at[reached[known]] - numbers[known] / RATE
    p50, p99 = (float(np.percentile(waits, q)) for q in (50, 99))
    print(f"  {delay_seconds * 1000:.0f} ms a request: durable after p50 {p50:.2f} s, p99 {p99:.2f} s", flush=True)
    return {
        "name": f"backup latency at {RATE:,}/s, {scheme}:// with {delay_seconds * 1000:.0f} ms a request",
        "unit": "s, p50",
        "refeed": p50,
        "p99": p99,
        "goals": [Goal("s, p50", P50_SECONDS[delay_seconds], is_most=True).judge(p50)],
    }
