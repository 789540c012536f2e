"""The backup stream beside its limit: a plain Python loop that pulls, builds Arrow and commits to the same lake.

Both drain a backlog of 1 KB messages with 4 attributes from the same local server. Timed is from the first commit
to the last, so that nobody's start counts: rows after the first commit, divided by the time between the two.
"""

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cli.processes import Child, Children, free_port, is_listening
from connectors.lake.archive import Attempt, LakeArchive
from connectors.pubsub.acks import acknowledge
from connectors.pubsub.channel import open_channel
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from connectors.pubsub.pull import decode_pull_response
from connectors.wire import bytes_field
from model.message import Message, replay_token
from model.settings import Settings, read_settings

MESSAGES = 1_000_000
ROUNDS = 3
STEADY_MESSAGES_PER_SECOND = 8_000
LIMIT_COMMIT_BYTES = 128 * 1024 * 1024
IN_FLIGHT = 4
_RUN_BACKUP = (
    "import os, sys; from backup.job import run_backup; from model.settings import read_settings; "
    "sys.exit(run_backup(read_settings(os.environ)))"
)


@dataclass(frozen=True)
class Rate:
    """Messages a second between first and last commit, and the CPU that the process tree used a message."""

    messages_per_second: float
    cpu_us_per_message: float


def run(messages: int = MESSAGES, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Measure the drain beside its limit and the latency at a steady rate."""
    return [run_drain(messages, rounds), run_latency()]


def run_latency(seconds: int = 20) -> dict[str, Any]:
    """Publish SEGA's 8,000 messages/s and compare each message's publish time with its commit's."""
    with tempfile.TemporaryDirectory() as folder, Children() as children:
        settings, environment = _start_server(Path(folder), children)
        _attach(settings)
        backup = children.start(
            Child("backup", [sys.executable, "-c", _RUN_BACKUP], environment=environment, log=Path(folder) / "log")
        )
        archive = LakeArchive(settings.lake, settings.archive_table)
        _publish(settings, 1_000)
        backup.wait_until(lambda: _rows(archive) == 1_000, seconds=120, what="archived its first messages")
        began = time.monotonic()
        sent = 0
        while (now := time.monotonic() - began) < seconds:
            due = int(now * STEADY_MESSAGES_PER_SECOND) // 1_000 * 1_000 - sent
            if due:
                _publish(settings, due)
                sent += due
            time.sleep(0.01)
        took = time.monotonic() - began
        backup.wait_until(lambda: _rows(archive) == sent + 1_000, seconds=60, what="archived the rest")
        latencies = _latencies(archive)[1_000:]
    p50, p99 = (float(np.percentile(latencies, q)) for q in (50, 99))
    print(f"  {sent / took:,.0f} msg/s published, durable after p50 {p50:.2f} s, p99 {p99:.2f} s", flush=True)
    return {
        "name": "backup latency p50",
        "unit": f"s at {sent / took:,.0f} messages/s",
        "refeed": p50,
        "p99": p99,
        "limit": 2.0,
        "ratio": p50 / 2.0,
        "goal_ratio": "<= 1",
    }


def run_drain(messages: int, rounds: int) -> dict[str, Any]:
    """Drain a backlog with both, turn about, and return the medians."""
    refeed: list[Rate] = []
    limit: list[Rate] = []
    for number in range(rounds):
        limit.append(measure_limit(messages))
        refeed.append(measure_refeed(messages))
        print(
            f"  round {number + 1}: refeed {refeed[-1].messages_per_second:,.0f} msg/s, "
            f"limit {limit[-1].messages_per_second:,.0f} msg/s, "
            f"ratio {refeed[-1].messages_per_second / limit[-1].messages_per_second:.2f}",
            flush=True,
        )
    ratios = [a.messages_per_second / b.messages_per_second for a, b in zip(refeed, limit, strict=True)]
    return {
        "name": "backup",
        "unit": "messages/s",
        "refeed": statistics.median(r.messages_per_second for r in refeed),
        "limit": statistics.median(r.messages_per_second for r in limit),
        "ratio": statistics.median(ratios),
        "goal_ratio": 0.5,
        "cpu_us_per_message": {
            "refeed": statistics.median(r.cpu_us_per_message for r in refeed),
            "limit": statistics.median(r.cpu_us_per_message for r in limit),
        },
    }


def measure_refeed(messages: int) -> Rate:
    """Drain a backlog with the stream as it is started in production."""
    with tempfile.TemporaryDirectory() as folder, Children() as children:
        settings, environment = _start_server(Path(folder), children)
        _attach(settings)
        _publish(settings, messages)
        backup = children.start(
            Child("backup", [sys.executable, "-c", _RUN_BACKUP], environment=environment, log=Path(folder) / "log")
        )
        archive = LakeArchive(settings.lake, settings.archive_table)
        cpu: list[tuple[int, float]] = []

        def is_drained() -> bool:
            rows = _rows(archive)
            if rows and (not cpu or rows != cpu[-1][0]):
                cpu.append((rows, _tree_cpu_seconds(backup.pid)))
            return rows >= messages

        backup.wait_until(is_drained, seconds=300, what="drained the backlog")
        rate = _rate(archive)
        used = (cpu[-1][1] - cpu[0][1]) / max(1, cpu[-1][0] - cpu[0][0])
        return Rate(rate, used * 1e6)


def measure_limit(messages: int) -> Rate:
    """Drain a backlog with nothing but the loop: Pull in flight, Arrow, Parquet, commit, acknowledge."""
    with tempfile.TemporaryDirectory() as folder, Children() as children:
        settings, _ = _start_server(Path(folder), children)
        _attach(settings)
        _publish(settings, messages)
        archive = LakeArchive(settings.lake, settings.archive_table)
        archive.create()
        epoch = archive.take_lease("bench")
        with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
            path = pubsub.subscription_path("refeed-backup.orders")
            request = bytes_field(1, path.encode()) + b"\x18\xe8\x07"
            pull = pubsub.channel.unary_unary(
                "/google.pubsub.v1.Subscriber/Pull", request_serializer=None, response_deserializer=None
            )
            flying = deque(pull.future(request) for _ in range(IN_FLIGHT))
            done = attempt = 0
            began: tuple[int, float] | None = None
            while done < messages:
                batches: list[pa.RecordBatch] = []
                size = 0
                while size < LIMIT_COMMIT_BYTES and done + sum(b.num_rows for b in batches) < messages:
                    response = flying.popleft().result()
                    flying.append(pull.future(request))
                    if response:
                        size += len(response)
                        batches.append(decode_pull_response(response))
                attempt += 1
                file = archive.writer().write([("orders", "refeed-backup.orders", batch) for batch in batches])
                archive.commit([file], Attempt("bench", attempt, "bench", epoch))
                acknowledge(pubsub.channel, path, pa.concat_arrays([b.column("ack_id") for b in batches]))
                done += sum(b.num_rows for b in batches)
                began = began or (done, time.process_time())
            assert began is not None
            used = (time.process_time() - began[1]) / max(1, done - began[0])
            for future in flying:
                future.cancel()
        return Rate(_rate(archive), used * 1e6)


def _start_server(folder: Path, children: Children) -> tuple[Settings, dict[str, str]]:
    port = free_port()
    environment = {
        **os.environ,
        "REFEED_HOME": str(folder / "home"),
        "PUBSUB_EMULATOR_HOST": f"127.0.0.1:{port}",
    }
    server = children.start(
        Child(
            "pubsub",
            [sys.executable, "-m", "local.server", "--port", str(port), "--data-dir", str(folder / "pubsub")],
            environment=environment,
            log=folder / "pubsub.log",
        )
    )
    server.wait_until(lambda: is_listening(f"127.0.0.1:{port}"), seconds=20, what="begun to listen")
    return read_settings(environment), environment


def _attach(settings: Settings) -> None:
    with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
        pubsub.create_topic("orders")
        pubsub.attach_backup(
            "orders", token=replay_token(settings.replay_secret(), "orders"), ack_deadline_seconds=60
        )


def _publish(settings: Settings, messages: int) -> None:
    """Publish thousands of messages of 1 KB that compress about as a shop's events do."""
    batch = _messages()
    with open_channel(settings.pubsub_emulator_host) as channel:
        publisher = Publisher(channel, f"projects/{settings.project}/topics/orders")
        for at in range(0, messages, len(batch)):
            publisher.publish(batch[: messages - at])


@cache
def _messages() -> list[Message]:
    dice = random.Random(1)
    words = [f'"{dice.choice("abcdefgh")}{dice.randrange(10**6)}"' for _ in range(5_000)]
    bodies = [",".join(dice.choice(words) for _ in range(128))[:1000].encode() for _ in range(500)]
    return [
        Message(data=bodies[n % 500], attributes={"event": "order", "source": "shop", "n": str(n), "v": "1"})
        for n in range(10_000)
    ]


def _rows(archive: LakeArchive) -> int:
    if not DeltaTable.is_deltatable(archive.uri):
        return 0
    return sum(file.rows for file in archive.data_files())


def _rate(archive: LakeArchive) -> float:
    """Return rows a second between the first commit that added some and the last."""
    rows_by_file = {file.path.rsplit("/", 1)[-1]: file.rows for file in archive.data_files()}
    added = []
    for log in sorted((Path(archive.uri) / "_delta_log").glob("*.json")):
        text = log.read_text()
        rows = sum(count for name, count in rows_by_file.items() if name in text)
        if rows:
            added.append((log.stat().st_mtime, rows))
    assert len(added) > 1, "the backlog was drained in one commit: raise the number of messages"
    return sum(rows for _, rows in added[1:]) / (added[-1][0] - added[0][0])


def _latencies(archive: LakeArchive) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return seconds from publish to commit of every row, in commit order."""
    committed = {}
    for log in (Path(archive.uri) / "_delta_log").glob("*.json"):
        for line in log.read_text().splitlines():
            if path := json.loads(line).get("add", {}).get("path"):
                committed[path] = log.stat().st_mtime
    found = []
    for path, at in sorted(committed.items(), key=lambda item: item[1]):
        times = pq.ParquetFile(Path(archive.uri) / path).read(columns=["publish_time"]).column(0)
        found.append(at - times.cast(pa.int64()).to_numpy() / 1e6)
    return np.concatenate(found)


def _tree_cpu_seconds(pid: int) -> float:
    """Return user and system seconds of a process and all below it, by parent and by session."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            stats[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / ticks)
    below = {pid}
    while grown := {p for p, (parent, _) in stats.items() if parent in below} - below:
        below |= grown
    return sum(stats[p][1] for p in below if p in stats)


if __name__ == "__main__":
    print(run())
