"""The whole system as processes of one home: Pub/Sub, backup, pipeline, API and its Spark; twenty topics."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
from deltalake import DeltaTable
from google.api_core.exceptions import NotFound

from cli.processes import free_port, is_listening
from connectors.pubsub.client import PubSub
from connectors.spark.connect import ConnectServer
from jobs.store import JobStore
from model.message import BACKFILL_ID_ATTRIBUTE, ROW_ATTRIBUTE, replay_token
from model.settings import read_settings
from pipeline.registry import Registry
from rollout.child import Children
from rollout.process import StreamProcess
from streams.folder import StreamFolder
from tests.chaos.messages import (
    APPEND_BYTES,
    EVENTS,
    ORACLE,
    ORDERS,
    TOPICS,
    Ear,
    Entity,
    Key,
    SteadyPublisher,
    digest,
    drain_topic,
)
from tests.chaos.oracle import Identity
from tests.chaos.processes import Part
from tests.chaos.schedule import parts_of
from tests.pipeline.conftest import compile_protos
from tests.standin.fixture import StandIn
from warehouse.open import open_warehouse

_ACK_SECONDS: Final = 10
# Longer than a stream that was killed keeps the leases of what it had in hand, short enough to outlast.
KNOWN_IDS_SECONDS: Final = 90
# The topic of the rows of the one after a schema.
ROWS: Final = "rows-of-orders"
_PROTO: Final = (
    'syntax = "proto3"; package shop; message Order { int64 id = 1; int64 version = 2; string customer = 3; }'
)
_SOURCES: Final = f"""
sources:
  orders: {{topic: {ORDERS}, message: shop.Order, key: id, dedup_order: [version], publish: {ROWS}}}
  events: {{topic: {EVENTS}, schema: inferred}}
"""


# Pub/Sub may take a minute; acknowledged messages come meanwhile.
_SEEK_SECONDS: Final = 5
_ENTITY: Final = ("id", "version", "customer")


def _entity(row: Mapping[str, Any]) -> Entity:
    return row["id"], row["version"], row["customer"]


class ChaosYard:
    """A home, its processes, and what is in its tables; with a stand-in its tables are in BigQuery.

    ``lake`` is in a bucket that this process's environment leads to; without it the lake is in the home.
    ``has_agents`` makes its streams records, for two agents with a home each, and lets a seek take effect late.
    """

    def __init__(
        self,
        home: Path,
        over: threading.Event,
        standin: StandIn | None = None,
        *,
        lake: str | None = None,
        has_agents: bool = False,
    ) -> None:
        self.home = home
        self.over = over
        self.standin = standin
        self.has_pipeline = "pipeline" in parts_of("lake" if standin is None else "bigquery")
        self.pubsub_port, self.api_port = free_port(), free_port()
        # While a merge waits for replayed rows, backfills go to the pipeline's topic.
        self.wants_replays = threading.Event()
        # Large rows go another way than an append: lower than its limit, so that messages of 10 MB go that way.
        append_bytes = {"REFEED_BIGQUERY_APPEND_BYTES": str(APPEND_BYTES)}
        warehouse = (
            {} if standin is None else {**standin.environment, **append_bytes, "REFEED_WAREHOUSE": "bigquery"}
        )
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("REFEED_", "PUBSUB_"))},
            "REFEED_HOME": str(home),
            "PUBSUB_EMULATOR_HOST": f"127.0.0.1:{self.pubsub_port}",
            "REFEED_ACK_DEADLINE_SECONDS": str(_ACK_SECONDS),
            "REFEED_KNOWN_IDS_SECONDS": str(KNOWN_IDS_SECONDS),
            "REFEED_BACKUP_BATCH_SECONDS": "0.3",
            "REFEED_PIPELINE_BATCH_SECONDS": "0.5",
            "REFEED_RATE_LIMIT_PER_MINUTE": "100000",
            **({"REFEED_MANIFESTS": str(home / "manifests")} if has_agents else {}),
            **({} if lake is None else {"REFEED_LAKE": lake}),
            **warehouse,
        }
        self.settings = read_settings(self.environment)
        self._children = Children()
        data = ["--port", str(self.pubsub_port), "--data-dir", str(home / "pubsub")]
        if has_agents:
            data += ["--seek-seconds", str(_SEEK_SECONDS)]
        self.server = self._part("pubsub", ["-m", "local.server", *data], lambda _: self._is_served())
        self.backup = self._part("backup", ["-m", "cli.main", "backup"], lambda said: "backup_started" in said)
        self.pipeline = self._part(
            "pipeline", ["-m", "cli.main", "pipeline", "run"], lambda said: "pipeline_started" in said
        )
        self.api = self._part(
            "api", ["-m", "cli.main", "api", "--open", "--port", str(self.api_port)], lambda _: self._is_answered()
        )
        self.agents = tuple(self._agent(place) for place in (home, home / "other")) if has_agents else ()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.api_port}", timeout=30)
        self.pubsub = PubSub(self.settings.project, self.settings.pubsub_emulator_host)
        self.ear = Ear(self.pubsub, self.token)

    @property
    def stream_names(self) -> list[str]:
        return ["backup", "pipeline"] if self.has_pipeline else ["backup"]

    @property
    def uploads(self) -> Path:
        """The folder of uploaded manifests that the API watches under agents."""
        return self.home / "manifests"

    def open(self) -> None:
        """Start the Pub/Sub server and make all topics; whoever breaks a part starts it."""
        self.uploads.mkdir()
        self.server.ensure()
        self._make_topics()

    def close(self) -> None:
        """End every process, also what outlives its parent, without waiting for a drain."""
        self.client.close()
        for child in self._children:
            child.kill()
        store = JobStore(self.home / "jobs.db")
        for record in store.list_streams():
            if record.home is not None and record.instance_id is not None:
                process = StreamProcess.find(StreamFolder(Path(record.home.path), record.instance_id))
                if process is not None:
                    process.kill()
        for job in store.list_active("backfill"):
            if job.driver is not None:
                job.driver.signal_group(signal.SIGKILL)
        store.close()
        ConnectServer(self.home / "run", {}).stop()

    def token(self, topic: str) -> str:
        return replay_token(self.settings.replay_secret(), topic)

    def publishing(self, seed: int) -> SteadyPublisher:
        """Return what publishes until its block ends."""
        return SteadyPublisher(self.pubsub, seed)

    def command(self, name: str, *arguments: str) -> Part:
        """Return a command of ``refeed`` that ends by itself."""
        return self._part(name, ["-m", "cli.main", *arguments], lambda _: True)

    def backlog(self) -> dict[str, str]:
        """Return which of the streams' subscriptions have messages that were not acknowledged, and how many."""
        call = self.pubsub.channel.unary_unary(
            "/refeed.local.Stats/Get", request_serializer=None, response_deserializer=None
        )
        return {
            name: f"{stats['undelivered_messages']} undelivered, {stats['leased_messages']} leased"
            for name, stats in json.loads(call(b"", timeout=30)).items()
            if "/subscriptions/refeed-" in name and stats["undelivered_messages"] + stats["leased_messages"]
        }

    def archived(self) -> Iterator[tuple[Key, bytes]]:
        columns = ["topic", "message_id", "data", "attributes", "ordering_key"]
        for row in self._rows(self.settings.archive_table, columns, is_large=True):
            attributes = {pair["key"]: pair["value"] for pair in row["attributes"]}
            yield (row["topic"], row["message_id"]), digest(row["data"], attributes, row["ordering_key"] or "")

    def archived_ids(self) -> set[Key]:
        rows = self._rows(self.settings.archive_table, ["topic", "message_id"])
        return {(row["topic"], row["message_id"]) for row in rows}

    def staged(self, topic: str) -> Iterator[tuple[Identity, Entity | None]]:
        """Yield the rows that the pipeline made of a topic's messages, and the entity in each."""
        is_entity = topic == ORDERS
        columns = ["_topic", "_message_id", "_backfill_id", "_backfill_row", *(_ENTITY if is_entity else ())]
        for row in self._rows("staging.orders" if is_entity else "staging.events", columns):
            # What has no id, a nasty message that is JSON for example, is no entity that was sent.
            entity = _entity(row) if is_entity and row["id"] else None
            yield ((row["_topic"], row["_message_id"]), row["_backfill_id"], row["_backfill_row"]), entity

    def dead_letters(self, topic: str) -> Iterator[Identity]:
        """Yield the messages of a topic that the pipeline could make no row of, as their tags have them."""
        source = "orders" if topic == ORDERS else "events"
        columns = ["source", "topic", "message_id", "attributes", "error_code"]
        for row in self._rows(self.settings.dead_letter_table, columns, is_large=True):
            # One that is a row too is told by the other sink.
            if row["source"] == source and row["error_code"] != "publish_refused":
                tags = {pair["key"]: pair["value"] for pair in row["attributes"]}
                number = tags.get(ROW_ATTRIBUTE, "")
                at = int(number) if number.isdecimal() else None
                yield (row["topic"], row["message_id"]), tags.get(BACKFILL_ID_ATTRIBUTE), at

    def published(self) -> Iterator[Identity]:
        """Yield the rows that came out of the pipeline's topic, as often as they did."""
        for message in drain_topic(self.pubsub, ROWS):
            row = json.loads(message.data)
            yield (row["_topic"], row["_message_id"]), row["_backfill_id"], row["_backfill_row"]

    def reported(self) -> Iterator[Entity]:
        yield from map(_entity, self._rows("reporting.orders", list(_ENTITY)))

    def _rows(self, table: str, columns: list[str], *, is_large: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table, as its warehouse's own engine reads them; none when there is no table.

        Large ones come from BigQuery as Arrow, which is far quicker, and which nothing may break meanwhile.
        """
        if self.standin is not None:
            client = self.standin.client(self.settings.project)
            with suppress(NotFound):
                sql = f"SELECT {', '.join(columns)} FROM `{table}`"
                if client.get_table(f"{self.settings.project}.{table}").require_partition_filter:
                    sql += " WHERE _PARTITIONTIME IS NULL OR _PARTITIONTIME IS NOT NULL"
                found = client.query_and_wait(sql)
                if is_large:
                    for batch in found.to_arrow_iterable(bqstorage_client=self.standin.read_client()):
                        yield from batch.to_pylist()
                else:
                    yield from (dict(row.items()) for row in found)
            return
        path = f"{self.settings.lake}/{'/'.join(table.split('.')[-2:])}"
        if DeltaTable.is_deltatable(path):
            for batch in DeltaTable(path).to_pyarrow_dataset().to_batches(columns=columns):
                yield from batch.to_pylist()

    def _make_topics(self) -> None:
        for topic in TOPICS:
            self.ear.open(topic)
            self.pubsub.attach_backup(topic, token=self.token(topic), ack_deadline_seconds=_ACK_SECONDS)
        if self.standin is not None:
            archive = open_warehouse(self.settings).open_archive()
            archive.create()
            archive.close()
        if self.has_pipeline:
            self.pubsub.create_topic(ROWS)
            self.pubsub.create_subscription(f"{ORACLE}{ROWS}", ROWS)
            for topic in (ORDERS, EVENTS):
                self.pubsub.create_subscription(
                    f"refeed-pipeline.{topic}", topic, ack_deadline_seconds=_ACK_SECONDS
                )
            (self.home / "shop.proto").write_text(_PROTO)
            descriptors = compile_protos(self.home, "shop.proto")
            Registry(self.settings.registry).publish({"shop.desc": descriptors, "sources.yaml": _SOURCES.encode()})

    def _agent(self, home: Path) -> Part:
        """Return an agent whose streams have their state in ``home``; all else is this yard's."""
        shared = {
            "REFEED_HOME": str(home),
            "REFEED_LAKE": self.settings.lake,
            "REFEED_REGISTRY": self.settings.registry,
            "REFEED_JOB_STORE": self.settings.job_store,
            "REFEED_SECRET": self.settings.replay_secret(),
        }
        name = "agent" if home == self.home else f"agent-{home.name}"
        return self._part(
            name, ["-m", "cli.main", "agent"], lambda said: "agent_started" in said, home=home, **shared
        )

    def _part(
        self, name: str, arguments: list[str], is_ready: Any, *, home: Path | None = None, **environment: str
    ) -> Part:
        return Part(
            name,
            [sys.executable, *arguments],
            home=home or self.home,
            environment={**self.environment, **environment},
            children=self._children,
            is_ready=is_ready,
            over=self.over,
        )

    def _is_served(self) -> bool:
        return is_listening(f"127.0.0.1:{self.pubsub_port}")

    def _is_answered(self) -> bool:
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False
