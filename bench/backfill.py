"""A backfill beside its limit, a script, and Apache Beam: messages a second and CPU time a message.

All publish the same rows (1 KB messages with 4 attributes) to the same local server, turn about. Refeed adds six
tags to each message, keeps checkpoints and runs on a warm Spark Connect server behind its API. The limit is a
plain loop in one process a core, from the same selection to raw Publish calls. The script has DuckDB read the
archive and Google's client publish; Beam reads Parquet and writes to Pub/Sub on its local runner. Timed is from
the first message on the topic to the last, as the server counts them; the whole backfill's seconds stand beside.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from bench.backup import check
from bench.beam import BeamMissingError, find_python
from bench.comparison import Run, alternate, steady_run, summarise, watch
from bench.yard import start_program, start_server
from cli.processes import free_port
from connectors.lake.archive import LakeArchive
from connectors.pubsub.client import PubSub
from connectors.pubsub.stats import read_stats
from connectors.spark.connect import ConnectServer
from connectors.wire import bytes_field
from model.archive import Attempt
from model.job import JobState
from model.settings import Settings
from rollout.child import Child, Children

ROUNDS = 5
MESSAGES = 600_000
# Those that are many times slower get less to do, and Beam fewer rounds.
SCRIPT_MESSAGES = 100_000
BEAM_MESSAGES = 30_000
BEAM_ROUNDS = 3
RATIOS = {"limit": 0.7, "script": 7.0, "beam": 15.0}
QUERY = (
    "SELECT data, attributes, message_id FROM backup.messages "
    "WHERE _PARTITIONTIME >= @from AND _PARTITIONTIME < @to"
)
_COMMIT_MESSAGES = 50_000
_CHECK_SECONDS = 2.0


def run(messages: int = MESSAGES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure all, turn about, on one server, and return the medians."""
    with tempfile.TemporaryDirectory() as name, Children() as children:
        place = Place(Path(name), children, messages)
        place.warm_up()
        contenders: dict[str, Callable[[], Run]] = {
            "refeed": place.measure_refeed,
            "limit": place.measure_limit,
            "script": lambda: place.measure_program("script_backfill", SCRIPT_MESSAGES),
        }
        turns = dict.fromkeys(contenders, rounds)
        skipped = None
        try:
            python = find_python()
        except BeamMissingError as exc:
            skipped = str(exc)
            print(f"  without Beam: {skipped}", flush=True)
        else:
            contenders["beam"] = lambda: place.measure_program("beam_backfill", BEAM_MESSAGES, python)
            turns["beam"] = min(rounds, BEAM_ROUNDS)
        result = summarise("backfill", alternate(contenders, turns), ratios=RATIOS)
        place.close()
    return result | {
        "messages": {"refeed": messages, "script": SCRIPT_MESSAGES, "beam": BEAM_MESSAGES},
        "beam_skipped": skipped,
        "seconds_to_end": statistics.median(place.seconds_to_end),
    }


class Place:
    """A server, an archive, and the API with its Spark server kept warm."""

    def __init__(self, folder: Path, children: Children, messages: int, lake: str | None = None) -> None:
        self.seconds_to_end: list[float] = []
        self._folder = folder
        self._children = children
        self._messages = messages
        self._settings, self._environment, _ = start_server(folder, children, lake=lake)
        fill(self._settings, messages)
        self._pubsub = PubSub(self._settings.project, self._settings.pubsub_emulator_host)
        self._selection = Path()
        self._number = 0
        self._checked_at = 0.0
        port = free_port()
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        environment = self._environment | {"REFEED_RATE_LIMIT_PER_MINUTE": "1000000"}
        command = [sys.executable, "-m", "cli.main", "api", "--open", "--port", str(port)]
        self._api = children.start(Child("api", command, environment=environment, log=folder / "api.log"))
        self._api.wait_until(self._answers, seconds=120, what="answered")

    def warm_up(self) -> None:
        """Run a backfill that is not counted: it starts the Spark server."""
        self.measure_refeed()
        self.seconds_to_end.clear()

    def measure_refeed(self) -> Run:
        """Run a backfill of everything by the API."""
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        bounds = {"from": today - timedelta(days=1), "to": today + timedelta(days=2)}
        parameters = {name: {"type": "TIMESTAMP", "value": at.isoformat()} for name, at in bounds.items()}
        with self._target() as (topic, count):
            asked = time.monotonic()
            body = {"query": QUERY, "topic": topic, "parameters": parameters}
            made = self._client.post("/backfills", json=body).raise_for_status().json()
            samples = watch(count, self._messages, lambda: [self._api.pid], lambda: self._check(made["id"]))
            while not JobState((shown := self._show(made["id"]))["state"]).is_final:
                time.sleep(0.02)
            self.seconds_to_end.append(time.monotonic() - asked)
        assert shown["progress"]["published"] == self._messages, shown
        self._selection = self._settings.home / "backfills" / made["id"] / "selection"
        return steady_run(samples)

    def measure_limit(self) -> Run:
        """Publish the selection of the last backfill in one process a core."""
        with self._target() as (topic, count):
            cores = os.cpu_count() or 1
            publishers = [
                start_program(
                    "limit_backfill",
                    [self._pubsub.topic_path(topic), str(self._selection), str(number), str(cores)],
                    self._folder,
                    self._children,
                    self._environment,
                )
                for number in range(cores)
            ]
            samples = self._watch_programs(count, self._messages, publishers)
        return steady_run(samples)

    def measure_program(self, name: str, messages: int, python: str = sys.executable) -> Run:
        """Publish the first rows of the archive with a program that takes a topic and files."""
        pattern = self._sample(messages)
        with self._target() as (topic, count):
            arguments = [self._pubsub.topic_path(topic), str(pattern)]
            program = start_program(
                name, arguments, self._folder, self._children, self._environment, python=python
            )
            samples = self._watch_programs(count, messages, [program])
        return steady_run(samples)

    def close(self) -> None:
        """Stop the API, and the Spark server that it leaves behind for the next one."""
        self._client.close()
        self._api.stop()
        ConnectServer(self._settings.home / "run", {}).stop()
        self._pubsub.close()

    @contextmanager
    def _target(self) -> Iterator[tuple[str, Callable[[], int]]]:
        """Yield a new topic and what tells how many messages it has got."""
        self._number += 1
        topic = f"target-{self._number}"
        self._pubsub.create_topic(topic)
        self._pubsub.create_subscription(topic, topic)
        channel, project = self._pubsub.channel, self._pubsub.project
        try:
            yield topic, lambda: (read_stats(channel, project) or {})[topic].messages
        finally:
            self._pubsub.delete_subscription(topic)
            # Its messages too: what is written behind them would slow down the turn that comes next.
            delete_topic = channel.unary_unary("/google.pubsub.v1.Publisher/DeleteTopic")
            delete_topic(bytes_field(1, self._pubsub.topic_path(topic).encode()))

    def _watch_programs(self, count: Callable[[], int], messages: int, programs: Sequence[Child]) -> Any:
        def check_them() -> None:
            failed = [program for program in programs if not program.is_running and program.exit_code]
            check(failed)

        return watch(count, messages, lambda: [program.pid for program in programs], check_them)

    def _sample(self, messages: int) -> Path:
        """Return a file with the archive's first rows."""
        path = self._folder / f"sample-{messages}.parquet"
        if not path.exists():
            archive = LakeArchive(self._settings.lake, self._settings.archive_table)
            files = [file.path for file in archive.data_files()]
            tables = [pq.read_table(file) for file in files[: -(-messages // _COMMIT_MESSAGES)]]
            pq.write_table(pa.concat_tables(tables).slice(0, messages), path, compression="zstd")
        return path

    def _show(self, backfill_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self._client.get(f"/jobs/{backfill_id}").json()
        return shown

    def _check(self, backfill_id: str) -> None:
        check([self._api])
        # A call costs the API time that is not the backfill's.
        if time.monotonic() - self._checked_at > _CHECK_SECONDS:
            self._checked_at = time.monotonic()
            assert (error := self._show(backfill_id)["error"]) is None, error

    def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            return self._client.get("/healthz").is_success
        return False


def fill(settings: Settings, messages: int) -> None:
    """Write an archive of 1 KB messages with 4 attributes, as one commit."""
    archive = LakeArchive(settings.lake, settings.archive_table)
    archive.create()
    lease = archive.take_lease("bench")
    entry = pa.struct([("key", pa.string()), ("value", pa.string())])
    attributes = [
        [{"key": k, "value": v} for k, v in (("event", "order"), ("source", "shop"), ("n", str(n)), ("v", "1"))]
        for n in range(_COMMIT_MESSAGES)
    ]
    batch = pa.record_batch(
        {
            "data": pa.array([os.urandom(500).hex().encode() for _ in range(_COMMIT_MESSAGES)], pa.binary()),
            "attributes": pa.array(attributes, pa.list_(entry)),
            "message_id": [str(n) for n in range(_COMMIT_MESSAGES)],
            "publish_time": pa.array([datetime.now(UTC)] * _COMMIT_MESSAGES, pa.timestamp("us", "UTC")),
            "ordering_key": [""] * _COMMIT_MESSAGES,
        }
    )
    writer = archive.writer()
    files = [writer.write([("orders", "backup", batch)]) for _ in range(messages // _COMMIT_MESSAGES)]
    archive.commit(files, Attempt("bench", 1, "bench", lease))
