"""How cost grows: with the number of topics, with the size of the archive, with the size of messages.

Topics: one stream, the same rate in all, dealt out over 1, 10, 100, 300 topics; CPU time a message. Archive:
seconds to append a file and to plan a backfill of one day while the archive grows from 1 day to 100. Messages:
megabytes a second that the stream archives, from 100 bytes to 100 KB.
"""

import statistics
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from app.deployment import Deployment
from backfill.plan.request import BackfillRequest
from bench.backup import measure_commits
from bench.comparison import Goal
from bench.processes import CpuMeter
from bench.yard import (
    SUBSCRIPTION,
    TOPIC,
    attach,
    make_messages,
    start_backup,
    start_server,
    wait_for_rows,
)
from connectors.lake.archive import LakeArchive
from connectors.lake.files import LakeArchiveWriter, WrittenFile, partition_value
from connectors.pubsub.channel import open_channel
from connectors.pubsub.client import PubSub
from connectors.pubsub.publish import Publisher
from model.archive import Attempt
from model.principal import LOCAL
from model.settings import Settings
from rollout.child import Children

TOPICS = (1, 10, 100, 300)
RATE = 4_000
LEVEL_SECONDS = 15
WARM_UP_SECONDS = 15
DAYS = (1, 10, 100)
ROWS_A_FILE = 25_000
FILES_A_DAY = 4
REPEATS = 7
SIZES = {100: 6_000_000, 1_000: 1_200_000, 10_000: 150_000, 100_000: 15_000}
_SMALL_BYTES = 200
_TARGET = "replay"
_DISCOVERY_SECONDS = 5.0
_PLAN = (
    "SELECT data, attributes, message_id FROM backup.messages "
    "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to AND topic = 'orders'"
)


def run() -> list[dict[str, Any]]:
    """Measure all three."""
    return [*run_topics(), *run_archive(), *run_sizes()]


def run_topics(levels: tuple[int, ...] = TOPICS, seconds: float = LEVEL_SECONDS) -> list[dict[str, Any]]:
    """Return the CPU time a message with ever more topics on one stream; few messages each, one rate in all."""
    found: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as name, Children() as children:
        folder = Path(name)
        settings, environment, _ = start_server(folder, children)
        topics = [f"topic-{number:03d}" for number in range(levels[-1])]
        attach(settings, topics[:1])
        backup = start_backup(folder, children, environment)
        archive = LakeArchive(settings.lake, settings.archive_table)
        meter = CpuMeter()
        sent = 0
        attached = 1
        for level in levels:
            attach(settings, topics[attached:level])
            attached = max(attached, level)
            time.sleep(_DISCOVERY_SECONDS)
            # Connections, code that is compiled when it is first used: no part of what a message costs.
            sent += _publish_over(settings, topics[:level], WARM_UP_SECONDS)
            wait_for_rows(backup, archive, sent)
            before = meter.read_seconds([backup.pid])
            count = _publish_over(settings, topics[:level], seconds)
            sent += count
            wait_for_rows(backup, archive, sent)
            found[level] = (meter.read_seconds([backup.pid]) - before) / count * 1e6
            print(
                f"  {level} topics: {found[level]:.1f} us of CPU a message at {count / seconds:,.0f}/s", flush=True
            )
    first = found[levels[0]]
    return [
        {
            "name": f"topics: {level}",
            "unit": f"CPU us at {RATE:,}/s",
            "refeed": cost,
            "limit": first,
            "ratio": cost / first,
            "goals": [Goal("cost / cost of 1 topic", 1.3, is_most=True).judge(cost / first)],
        }
        for level, cost in found.items()
    ]


def run_archive(days: tuple[int, ...] = DAYS) -> list[dict[str, Any]]:
    """Return seconds to append and to plan one day while the archive grows; a day has 100,000 messages."""
    append: dict[int, float] = {}
    plan: dict[int, float] = {}
    rows: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as name, Children() as children:
        # A plan asks for the topic's subscriptions.
        settings, _, _ = start_server(Path(name), children)
        with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
            pubsub.create_topic(_TARGET)
        ground = Archive(settings)
        today = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
        # The day that is planned stays as large as it is.
        elsewhere = today - timedelta(days=2 * days[-1])
        filled = 0
        deployment = Deployment(settings, interrupt_at_exit=True)
        service = deployment.backfills
        try:
            for wanted in days:
                for day in range(filled, wanted):
                    ground.commit_day(today - timedelta(days=day))
                filled = wanted
                append[wanted] = statistics.median(ground.append(elsewhere) for _ in range(REPEATS))
                bounds = {"from": today - timedelta(hours=12), "to": today + timedelta(hours=12)}
                parameters = {key: {"type": "TIMESTAMP", "value": at.isoformat()} for key, at in bounds.items()}
                request = BackfillRequest(_PLAN, _TARGET, parameters)
                taken = []
                for _ in range(REPEATS):
                    began = time.perf_counter()
                    service.plan(request, principal=LOCAL)
                    taken.append(time.perf_counter() - began)
                plan[wanted] = statistics.median(taken)
                rows[wanted] = ground.rows
                print(
                    f"  {rows[wanted]:,} rows: append {append[wanted] * 1000:.0f} ms, "
                    f"plan of a day {plan[wanted] * 1000:.0f} ms",
                    flush=True,
                )
        finally:
            deployment.close()
    return [
        {
            "name": f"archive of {rows[wanted]:,} rows: {what}",
            "unit": "s",
            "refeed": taken[wanted],
            "limit": taken[days[0]],
            "ratio": taken[wanted] / taken[days[0]],
        }
        for what, taken in (("append", append), ("plan of a day", plan))
        for wanted in days
    ]


def run_sizes(sizes: dict[int, int] | None = None) -> list[dict[str, Any]]:
    """Return the megabytes a second of the stream while it drains messages of one size."""
    results = []
    for size, messages in (sizes or SIZES).items():
        found = measure_commits(messages, start_backup, size_bytes=size)
        megabytes = found.messages_per_second * size / 1e6
        print(
            f"  {size:,} bytes: {megabytes:,.1f} MB/s, {found.messages_per_second:,.0f} msg/s, "
            f"{found.cpu_us_per_message:.1f} us",
            flush=True,
        )
        results.append(
            {
                "name": f"messages of {size:,} bytes",
                "unit": "MB/s",
                "refeed": megabytes,
                "messages_per_second": found.messages_per_second,
                "cpu_us_per_message": {"refeed": found.cpu_us_per_message},
            }
        )
    return results


class Archive:
    """A lake whose days are filled at once: files as the stream would have left them after compaction."""

    def __init__(self, settings: Settings) -> None:
        self.rows = 0
        self._archive = LakeArchive(settings.lake, settings.archive_table)
        self._archive.create()
        self._writer: LakeArchiveWriter = self._archive.writer()
        self._epoch = self._archive.take_lease("bench")
        self._attempt = 0
        self._batch = _small_batch()

    def commit_day(self, noon: datetime) -> None:
        """Add the files of one day."""
        self._commit([self._write(noon) for _ in range(FILES_A_DAY)])

    def append(self, noon: datetime) -> float:
        """Write one file and commit it; return the seconds."""
        began = time.perf_counter()
        self._commit([self._write(noon)])
        return time.perf_counter() - began

    def _write(self, at: datetime) -> WrittenFile:
        """Write a file that the log has in the partition of ``at``; by that alone a plan leaves out other days."""
        written = self._writer.write([(TOPIC, SUBSCRIPTION, self._batch)])
        return replace(written, partition=partition_value(at, self._archive.partitioning))

    def _commit(self, files: list[WrittenFile]) -> None:
        self._attempt += 1
        self._archive.commit(files, Attempt("bench", self._attempt, "bench", self._epoch))
        self.rows += sum(file.rows for file in files)


def _small_batch() -> pa.RecordBatch:
    entry = pa.struct([("key", pa.string()), ("value", pa.string())])
    messages = make_messages(_SMALL_BYTES)
    return pa.record_batch(
        {
            "data": pa.array([messages[n % len(messages)].data for n in range(ROWS_A_FILE)], pa.binary()),
            "attributes": pa.array([[{"key": "n", "value": str(n)}] for n in range(ROWS_A_FILE)], pa.list_(entry)),
            "message_id": [str(n) for n in range(ROWS_A_FILE)],
            "publish_time": pa.array([datetime.now(UTC)] * ROWS_A_FILE, pa.timestamp("us", "UTC")),
            "ordering_key": [""] * ROWS_A_FILE,
        }
    )


def _publish_over(settings: Settings, topics: list[str], seconds: float) -> int:
    """Publish RATE messages a second for so long, in turn over the topics, and return how many they were."""
    messages = make_messages()
    sent = turn = 0
    # Each topic gets a few at a time, so that a request a topic costs the publisher no more than the stream.
    portion = 20
    with open_channel(settings.pubsub_emulator_host) as channel:
        publishers = [Publisher(channel, f"projects/{settings.project}/topics/{topic}") for topic in topics]
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            while sent + portion <= passed * RATE:
                publishers[turn % len(publishers)].publish(messages[:portion])
                turn += 1
                sent += portion
            time.sleep(0.005)
    return sent
