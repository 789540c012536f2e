"""A backfill beside its limit: a plain Python loop from the same Parquet files to raw Publish calls.

Both publish the same selection (1 KB messages with 4 attributes) to the same local server; Refeed adds six tags to
each message, keeps checkpoints and runs on a warm Spark Connect server, the loop does none of that. Timed is from
the first confirmed messages to the last, so that nobody's start counts; the whole backfill's seconds stand beside.
"""

import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from backfill.opening import open_backfills
from backfill.request import BackfillRequest
from backfill.service import BackfillService
from cli.processes import Child, Children, free_port, is_listening
from connectors.lake.archive import Attempt, LakeArchive
from connectors.pubsub.client import PubSub
from connectors.pubsub.requests import ATTRIBUTES_TYPE, MESSAGE_SCHEMA, encode_requests
from jobs.progress import CheckpointFolder
from model.principal import LOCAL
from model.settings import Settings, read_settings

MESSAGES = 400_000
ROUNDS = 3
IN_FLIGHT = 4
QUERY = (
    "SELECT data, attributes, message_id FROM backup.messages "
    "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to"
)


@dataclass(frozen=True)
class Run:
    """Messages a second from the first confirmation to the last; seconds from the request to both."""

    messages_per_second: float
    seconds_to_first: float = 0.0
    seconds_to_end: float = 0.0


def run(messages: int = MESSAGES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure both, turn about, on one server, and return the medians."""
    refeed: list[Run] = []
    limit: list[Run] = []
    with tempfile.TemporaryDirectory() as folder, Children() as children:
        settings = _start_server(Path(folder), children)
        _fill(settings, messages)
        with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
            pubsub.create_topic("limit")
        service = open_backfills(settings)
        try:
            service.start()
            service.prepare()
            selection = Path()
            for number in range(rounds):
                backfill_id, found = measure_refeed(service, settings, messages)
                refeed.append(found)
                selection = settings.home / "backfills" / backfill_id / "selection"
                limit.append(measure_limit(settings, selection))
                print(
                    f"  round {number + 1}: refeed {refeed[-1].messages_per_second:,.0f} msg/s, "
                    f"limit {limit[-1].messages_per_second:,.0f} msg/s, "
                    f"ratio {refeed[-1].messages_per_second / limit[-1].messages_per_second:.2f}, "
                    f"first message after {refeed[-1].seconds_to_first:.1f} s, "
                    f"end after {refeed[-1].seconds_to_end:.1f} s",
                    flush=True,
                )
        finally:
            service.close(interrupt=True)
    pairs = list(zip(refeed, limit, strict=True))
    return {
        "name": "backfill",
        "unit": "messages/s",
        "refeed": statistics.median(r.messages_per_second for r in refeed),
        "limit": statistics.median(r.messages_per_second for r in limit),
        "ratio": statistics.median(a.messages_per_second / b.messages_per_second for a, b in pairs),
        "goal_ratio": 0.7,
        "seconds_to_first_message": statistics.median(r.seconds_to_first for r in refeed),
        "seconds_to_end": statistics.median(r.seconds_to_end for r in refeed),
    }


def measure_refeed(service: BackfillService, settings: Settings, messages: int) -> tuple[str, Run]:
    """Run a backfill of everything as the API would, and return its id and its speed."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    bounds = {"from": today - timedelta(days=1), "to": today + timedelta(days=2)}
    parameters = {name: {"type": "TIMESTAMP", "value": at.isoformat()} for name, at in bounds.items()}
    asked = time.monotonic()
    made = service.create(BackfillRequest(QUERY, "replay", parameters), principal=LOCAL)
    checkpoints = CheckpointFolder(settings.home / "backfills" / made.id / "progress")
    published = _watch(
        lambda: sum(c.published for c in checkpoints.read_all()), messages, lambda: _check(service, made.id)
    )
    while not (ended := service.get(made.id, principal=LOCAL)).state.is_final:
        time.sleep(0.02)
    seconds = time.monotonic() - asked
    assert ended.progress.published == messages, ended
    (first_at, first), (last_at, last) = published
    return made.id, Run((last - first) / (last_at - first_at), first_at - asked, seconds)


def measure_limit(settings: Settings, selection: Path) -> Run:
    """Publish the same rows with nothing but the loop: Parquet, Arrow to wire bytes, calls in flight."""
    with PubSub(settings.project, settings.pubsub_emulator_host) as pubsub:
        topic = pubsub.topic_path("limit")
        publish = pubsub.channel.unary_unary(
            "/google.pubsub.v1.Publisher/Publish", request_serializer=None, response_deserializer=None
        )
        flying: deque[tuple[int, Any]] = deque()
        confirmed = 0
        first: tuple[float, int] | None = None
        for path in sorted(selection.glob("*.parquet")):
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    (rows,) = file.read_row_group(group).combine_chunks().to_batches()
                    lists = rows.column("attributes")
                    keys, values = lists.values.field("key"), lists.values.field("value")
                    attributes = pa.MapArray.from_arrays(lists.offsets, keys, values).cast(ATTRIBUTES_TYPE)
                    columns = [rows.column("data"), attributes, pa.repeat("", rows.num_rows)]
                    batch = pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)
                    for request in encode_requests(batch, topic):
                        if len(flying) == IN_FLIGHT:
                            count, call = flying.popleft()
                            call.result()
                            confirmed += count
                            first = first or (time.monotonic(), confirmed)
                        flying.append((request.rows, publish.future(request.body)))
        for count, call in flying:
            call.result()
            confirmed += count
        assert first is not None, "raise the number of messages"
        return Run((confirmed - first[1]) / (time.monotonic() - first[0]))


def _watch(read: Callable[[], int], wanted: int, check: Callable[[], None]) -> tuple[tuple[float, int], ...]:
    """Return (when, how many) of the first look that saw some and of the first that saw all."""
    first: tuple[float, int] | None = None
    while (count := read()) < wanted:
        if count:
            first = first or (time.monotonic(), count)
        check()
        time.sleep(0.02)
    assert first is not None, "raise the number of messages"
    return first, (time.monotonic(), count)


def _check(service: BackfillService, backfill_id: str) -> None:
    found = service.get(backfill_id, principal=LOCAL)
    assert found.error is None, found.error


def _start_server(folder: Path, children: Children) -> Settings:
    port = free_port()
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("REFEED_")},
        "REFEED_HOME": str(folder / "home"),
        "PUBSUB_EMULATOR_HOST": f"127.0.0.1:{port}",
    }
    command = [sys.executable, "-m", "local.server", "--port", str(port), "--data-dir", str(folder / "pubsub")]
    server = children.start(Child("pubsub", command, environment=environment, log=folder / "pubsub.log"))
    server.wait_until(lambda: is_listening(f"127.0.0.1:{port}"), seconds=20, what="begun to listen")
    return read_settings(environment)


def _fill(settings: Settings, messages: int) -> None:
    """Write an archive of 1 KB messages with 4 attributes, as one commit."""
    archive = LakeArchive(settings.lake, settings.archive_table)
    archive.create()
    lease = archive.take_lease("bench")
    count = 50_000
    entry = pa.struct([("key", pa.string()), ("value", pa.string())])
    attributes = [
        [{"key": k, "value": v} for k, v in (("event", "order"), ("source", "shop"), ("n", str(n)), ("v", "1"))]
        for n in range(count)
    ]
    batch = pa.record_batch(
        {
            "data": pa.array([os.urandom(500).hex().encode() for _ in range(count)], pa.binary()),
            "attributes": pa.array(attributes, pa.list_(entry)),
            "message_id": [str(n) for n in range(count)],
            "publish_time": pa.array([datetime.now(UTC)] * count, pa.timestamp("us", "UTC")),
            "ordering_key": [""] * count,
        }
    )
    writer = archive.writer()
    files = [writer.write([("orders", "backup", batch)]) for _ in range(messages // count)]
    archive.commit(files, Attempt("bench", 1, "bench", lease))


if __name__ == "__main__":
    print(run())
