"""The pipeline's stream: the drain of a backlog, CPU time at a steady rate, and seconds from publish to row.

Each case has a home, a server and a stream of its own. First the stream meets some messages of every type,
untimed, so that it has tables and forms. Then it is started again on a backlog. The drain is timed from the first
commit to the last but one, since the stream waits for more messages before the last. Then messages come at a
steady rate. Their CPU time counts from the first one sent to the last row. A reader sees a row as soon as it is in
the table's log. So the seconds of a row are that commit's time less the time when Pub/Sub took its message. The
limit is json and protobuf in one process, as in ``bench/decoder.py``.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.comparison import Goal, Run, steady_run, watch
from bench.decoder import measure_limit
from bench.pipeline_events import ODD_SHARES, SUBSCRIPTION, TOPIC, Case
from bench.processes import CpuMeter
from bench.yard import is_quick, is_wanted, publish_steadily, read_commit_times, start_server
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from model.message import Message
from model.settings import Settings
from pipeline.job import group_home
from pipeline.registry import Registry
from rollout.child import Child, Children
from streams.status import StatusFile

CASES = (
    *(Case(kind, odd) for kind in ("protobuf", "inferred") for odd in ODD_SHARES),
    Case("webhooks"),
    Case("inferred", types=30),
    Case("inferred", types=300),
)
BACKLOG = 600_000
WEBHOOK_BACKLOG = 30_000
# So many differ; a backlog has each of them several times.
DIFFERENT = 30_000
RATE = 8_000
WEBHOOK_RATE = 500
SECONDS = 20
# A form reads batches of a type from 16 messages on.
LESSON_OF_TYPE = 40
LESSON = 4_000
TIMES_LIMIT = 4.0
# Of 300 types: the CPU time of a drain beside one type's, and us a message at the steady rate.
MANY_TYPES = 300
MANY_TYPES_COST = 1.6
MANY_TYPES_CPU_US = 90.0
_PORTION = 50_000
_WAIT_SECONDS = 600.0


def run() -> list[dict[str, Any]]:
    """Measure each case; 300 types are judged beside one."""
    results: list[dict[str, Any]] = []
    cpu: dict[str, float] = {}
    for case in CASES:
        if not is_wanted(case.name):
            continue
        if case.is_missing:
            print(f"  SKIPPED {case.name}: the webhooks are missing; WEBHOOKS names their file", flush=True)
            continue
        drain, steady = measure(case)
        cpu[case.name] = drain["cpu_us_per_message"]["refeed"]
        one = cpu.get(Case(case.kind, case.odd).name)
        if case.types == MANY_TYPES:
            goal = Goal("CPU time of a drain, times one type's", MANY_TYPES_COST, is_most=True)
            drain["goals"].append(goal.judge(one and cpu[case.name] / one))
            goal = Goal("CPU us a message", MANY_TYPES_CPU_US, is_most=True)
            steady["goals"].append(goal.judge(steady["cpu_us_per_message"]["refeed"]))
        results += [drain, steady]
    return results


def measure(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results of the drain and of the steady rate."""
    is_wide = case.kind == "webhooks"
    backlog, rate = (WEBHOOK_BACKLOG, WEBHOOK_RATE) if is_wide else (BACKLOG, RATE)
    seconds = SECONDS
    if is_quick():
        backlog, rate, seconds = backlog // 20, rate // 10, 3
    events = case.make_events(min(backlog, DIFFERENT))
    limit = None if is_wide else measure_limit(events[:10_000])
    with tempfile.TemporaryDirectory() as folder, Children() as children:
        yard = Yard(Path(folder), children, case)
        yard.teach(events[: max(LESSON, case.types * LESSON_OF_TYPE) // (10 if is_quick() else 1)])
        drained = yard.drain(events, backlog)
        spent, times = yard.feed(events, rate, seconds)
    size = sum(len(event.data) for event in events) // len(events)
    p50, p99 = (float(np.percentile(times, q)) for q in (50, 99))
    cpu_us = drained.cpu_us_per_message
    print(
        f"  {case.name}: drain {drained.messages_per_second:,.0f}/s of {size} B, {cpu_us:.1f} us;"
        f" at {rate:,}/s {spent:.1f} us, publish to row p50 {p50:.2f} s, p99 {p99:.2f} s",
        flush=True,
    )
    drain = {
        "name": f"pipeline: {case.name}, drain",
        "unit": f"messages/s of {size} B",
        "refeed": drained.messages_per_second,
        "cpu_us_per_message": {"refeed": cpu_us},
        "goals": [],
    }
    if limit is not None:
        ratio = drained.messages_per_second / limit.messages_per_second
        drain |= {"limit": limit.messages_per_second, "ratio": ratio}
        if case.types == 1 and not case.odd:
            drain["goals"] = [Goal("refeed / limit", TIMES_LIMIT).judge(ratio)]
    steady = {
        "name": f"pipeline: {case.name}, at {rate:,}/s",
        "unit": "s from publish to row, p50",
        "refeed": p50,
        "p99": p99,
        "cpu_us_per_message": {"refeed": spent},
        "goals": [],
    }
    return drain, steady


class Yard:
    """A server with one topic, and a stream of the pipeline on it."""

    def __init__(self, folder: Path, children: Children, case: Case) -> None:
        self._folder = folder
        self._children = children
        self._settings, self._environment = self._start(case)
        self._stream: Child | None = None
        self._rows = 0

    def teach(self, events: Sequence[Message]) -> None:
        """Let the stream meet messages, and stop it."""
        self._publish(events, len(events))
        stream = self._start_stream()
        self._wait(stream)
        stream.stop()

    def drain(self, events: Sequence[Message], count: int) -> Run:
        """Publish a backlog of ``count`` messages, and time the stream that drains it; it goes on running."""
        self._publish(events, count)
        stream = self._start_stream()
        samples = watch(self._count, count, lambda: [stream.pid], lambda: _check(stream), seconds=_WAIT_SECONDS)
        return steady_run(samples, has_linger=True)

    def feed(self, events: Sequence[Message], rate: int, seconds: float) -> tuple[float, np.ndarray[Any, Any]]:
        """Return CPU us a message at ``rate`` messages a second, and each message's seconds until its row."""
        stream, meter, began = self._stream, CpuMeter(), time.time()
        assert stream is not None
        before = meter.read_seconds([stream.pid])
        with PubSub(self._settings.project, self._settings.pubsub_emulator_host) as pubsub:
            publisher = Publisher(pubsub.channel, pubsub.topic_path(TOPIC))
            sent = publish_steadily(publisher, events, rate, seconds)
        self._rows += sent
        self._wait(stream)
        spent = (meter.read_seconds([stream.pid]) - before) / sent * 1e6
        published, committed = read_commit_times(
            [log.parent for log in Path(self._settings.lake).rglob("_delta_log") if "staging" in str(log)],
            "_publish_time",
            since=began,
        )
        times = (committed - published)[published >= began]
        assert len(times) == sent, f"{len(times)} rows of {sent} messages"
        return spent, times

    def _start(self, case: Case) -> tuple[Settings, dict[str, str]]:
        settings, environment, _ = start_server(self._folder, self._children)
        if is_quick():
            # Several batches, also of few messages.
            environment["REFEED_PIPELINE_BATCH_BYTES"] = str(2 * 1024 * 1024)
        Registry(settings.registry).publish(case.registry_files)
        with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
            pubsub.create_topic(TOPIC)
            pubsub.create_subscription(SUBSCRIPTION, TOPIC, ack_deadline_seconds=60)
        return settings, environment

    def _publish(self, events: Sequence[Message], count: int) -> None:
        with PubSub(self._settings.project, self._settings.pubsub_emulator_host) as pubsub:
            publisher = Publisher(pubsub.channel, pubsub.topic_path(TOPIC))
            for at in range(0, count, _PORTION):
                places = range(at, min(at + _PORTION, count))
                publisher.publish([events[place % len(events)] for place in places])
        self._rows = count

    def _start_stream(self) -> Child:
        # A start counts from 0, and the file of the one before says otherwise until then.
        self._status.unlink(missing_ok=True)
        command = [sys.executable, "-m", "cli.main", "pipeline", "run"]
        log = self._folder / "pipeline.log"
        self._stream = Child("pipeline", command, environment=self._environment, log=log)
        return self._children.start(self._stream)

    @property
    def _status(self) -> Path:
        return group_home(self._settings, "default") / "status.json"

    def _count(self) -> int:
        return int((StatusFile.read(self._status) or {}).get("totals", {}).get("messages", 0))

    def _wait(self, stream: Child) -> None:
        wanted = self._rows
        stream.wait_until(lambda: self._count() >= wanted, seconds=_WAIT_SECONDS, what=f"written {wanted} rows")


def _check(stream: Child) -> None:
    if not stream.is_running:
        raise stream.ended_error()
