"""The tables of one stream in one warehouse, and a stream that writes them as its process does."""

import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pyarrow as pa

from backup.archiving import ArchiveTarget
from connectors.columns import arrow_schema
from connectors.pubsub.pull import PULLED_SCHEMA
from model.message import replay_token
from model.schema import Field, RowSchema
from model.settings import read_settings
from pipeline.dead_letters import DEAD_LETTER_SCHEMA
from pipeline.schema import META_COLUMNS
from pipeline.staged_ids import StagedIds, open_journal
from streams.batch import Batch
from streams.committer import StreamCommitter
from streams.ids import IDS_SCHEMA, ONLY_TABLE, PULLED_IDS_SCHEMA
from streams.journal import Journal
from streams.learning import Learner
from streams.lease import hold_lease
from streams.status import StatusFile
from streams.targets import TargetPart, TaskOutput
from tests.memory.warehouse import MemoryWarehouse
from warehouse.open import open_warehouse

TOPIC = "orders"
SCHEMA = RowSchema((Field("id", "INT64"), *META_COLUMNS), "Orders.")
# As long as Pub/Sub keeps a message that nobody acknowledges.
WEEK = timedelta(days=7)
BEGAN = datetime.now(UTC)
# Those of the write buffer among them.
EVERY_PARTITION = "_PARTITIONTIME IS NULL OR _PARTITIONTIME IS NOT NULL"


def publish_time(number: int) -> datetime:
    """Return when a message was published, which is the same each time it comes."""
    return BEGAN + timedelta(milliseconds=number)


class Acks:
    """Acknowledges nothing: whatever was pulled comes again."""

    @contextmanager
    def extended(self, *_):
        yield

    def acknowledge(self, ids, _):
        return ids.slice(0, 0)

    def give_back(self, ids):
        """It comes again anyway."""


class World:
    """The tables of one stream in one warehouse; ``read`` has what the learning of the last start read."""

    schema = IDS_SCHEMA

    def __init__(self, warehouse, settings, standin, folder) -> None:
        self.warehouse = warehouse
        self.settings = settings
        self.standin = standin
        self.folder = folder
        self.opened = MemoryWarehouse.new(settings) if warehouse == "memory" else open_warehouse(settings)
        self.read: list[str] = []
        self.oldest = datetime.now(UTC) - WEEK
        self.min_free_bytes = 0

    @contextmanager
    def stream(self, home: str, *, folder: str = ""):
        """Run a stream in a home, as its process does: a committer under its lease, after recovery.

        A copy of a home, in ``folder``, is the same stream.
        """
        folder = self.folder / (folder or home)
        self.read = []
        with self.tables(home) as tables:
            journal = self.journal(folder / "journal")
            with hold_lease(self.leases(tables), "l", home, journal) as held:
                status = StatusFile(folder / "status.json")

                def read_ids(name, span):
                    self.read.append(name)
                    return self.read_ids(tables, name, span)

                committer = StreamCommitter(
                    work=SimpleNamespace(
                        name="test", counted=(), status=dict, count=lambda *_: None, learn=lambda *_: True
                    ),
                    targets=self.targets(tables, home, held),
                    names=self.names(),
                    journal=journal,
                    ack_leases=Acks(),
                    status=status,
                    learner=Learner(
                        journal,
                        held,
                        read_ids=read_ids,
                        find_oldest=lambda: self.oldest,
                        min_free_bytes=self.min_free_bytes,
                        status=status,
                    ),
                )
                committer.recover()
                yield SimpleNamespace(
                    commit=lambda *numbers, **how: self.commit(committer, tables, numbers, **how),
                    journal=journal,
                    committer=committer,
                    tables=tables,
                )

    def part(self, table, part, numbers, *, age=timedelta(0), subscription="s", backfill=None):
        rows = [
            {
                "topic": TOPIC,
                "subscription": subscription,
                "message_id": f"{number}-{backfill}" if backfill else str(number),
                "publish_time": publish_time(number) - age,
                "ack_id": f"a{number}",
                "table": table,
                "replay": f"{backfill}:{number}" if backfill else "",
            }
            for number in numbers
        ]
        return TargetPart(table, part, pa.Table.from_pylist(rows, self.schema))

    def commit_parts(self, committer, parts) -> None:
        none = self.schema.empty_table()
        committer.commit_batch(Batch((TaskOutput(tuple(parts), none, none, None),), next_at=0.0))


class BackupWorld(World):
    def __init__(self, *given) -> None:
        super().__init__(*given)
        archive = self.opened.open_archive()
        archive.create()
        archive.close()

    def journal(self, folder):
        return Journal(folder, keep_seconds=600)

    @contextmanager
    def tables(self, home):
        archive = self.opened.open_archive()
        yield archive
        archive.close()

    def leases(self, tables):
        return tables.leases()

    def names(self):
        return [ONLY_TABLE]

    def targets(self, tables, home, held):
        return ArchiveTarget(tables, stream=home, lease="l", epoch=held.epoch)

    def read_ids(self, tables, name, span):
        return tables.read_ids(span)

    def commit(self, committer, archive, numbers, *, age=timedelta(0)) -> None:
        """Archive messages in one batch, each in a part of its own, as tasks with one message do."""
        parts = []
        for number in numbers:
            row = {
                "data": b"d",
                "attributes": [],
                "message_id": str(number),
                "publish_time": publish_time(number) - age,
                "ordering_key": "",
                "ack_id": "a",
            }
            rows = pa.RecordBatch.from_pylist([row], schema=PULLED_SCHEMA)
            part = archive.parse_part(archive.writer().write([(TOPIC, "s", rows)]).as_json())
            parts.append(self.part(ONLY_TABLE, part, [number], age=age))
        self.commit_parts(committer, parts)

    def rows(self) -> Counter[str]:
        archive = self.opened.open_archive()
        try:
            if self.warehouse == "bigquery":
                sql = f"SELECT message_id FROM `{self.settings.archive_table}` WHERE {EVERY_PARTITION}"
                return Counter(row["message_id"] for row in self.standin.client().query_and_wait(sql))
            span = SimpleNamespace(
                published_since=datetime.min.replace(tzinfo=UTC), ingested_since=datetime.now(UTC)
            )
            return Counter(i for batch in archive.read_ids(span) for i in batch.column("message_id").to_pylist())
        finally:
            archive.close()


class PipelineWorld(World):
    schema = PULLED_IDS_SCHEMA
    # What the registry calls the source now, and what leads there.
    source = "orders"
    mapping: Mapping[str, str] = {}

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.letters = self.settings.dead_letter_table
        self.orders = f"{self.letters.rpartition('.')[0]}.orders"
        with self.tables("maker") as tables:
            tables.create()
            tables.open(self.letters).evolve(DEAD_LETTER_SCHEMA)
            tables.open(self.orders).evolve(SCHEMA)

    def journal(self, folder):
        return open_journal(folder, keep_seconds=600, dead_letter_table=self.letters)

    @contextmanager
    def tables(self, home):
        tables = self.opened.open_row_tables(stream=home, lease="l")
        yield tables
        tables.close()

    def leases(self, tables):
        return tables.leases()

    def names(self):
        return [self.letters, self.orders]

    def targets(self, tables, home, held):
        return tables

    def read_ids(self, tables, name, span):
        sources = [
            SimpleNamespace(name=name, topic=TOPIC, subscription=subscription)
            for name, subscription in ((self.source, "s-orders"), ("audit", "s-audit"))
        ]
        return StagedIds(tables, self.letters, lambda: sources, "secret", self.mapping).read(name, span)

    def commit(self, committer, tables, numbers, *, backfill=None, source="orders") -> None:
        """Stage even numbers and refuse odd ones, in one batch."""
        self.commit_parts(committer, self.parts(tables, numbers, backfill=backfill, source=source))

    def parts(self, tables, numbers, *, backfill=None, source="orders") -> list[TargetPart]:
        found = [(self.orders, SCHEMA, self._staged), (self.letters, DEAD_LETTER_SCHEMA, self._refused)]
        parts = []
        for place, (table, schema, row) in enumerate(found):
            own = [number for number in numbers if number % 2 == place]
            if own:
                rows = [row(number, backfill, source) for number in own]
                batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
                part = tables.parse_part(tables.open(table).writer(schema).write_rows([batch]).as_json())
                parts.append(self.part(table, part, own, subscription=f"s-{source}", backfill=backfill))
        return parts

    def _staged(self, number, backfill, _):
        return {
            "id": number,
            "_topic": TOPIC,
            "_message_id": str(number),
            "_publish_time": publish_time(number),
            "_backfill_id": backfill,
            "_backfill_row": number if backfill else None,
            "ingest_time": BEGAN,
        }

    def _refused(self, number, backfill, source):
        tags = {
            "refeed_replay": replay_token("secret", TOPIC),
            "refeed_backfill_id": backfill,
            "refeed_row": number,
        }
        return {
            "data": b"x",
            "attributes": [{"key": k, "value": str(v)} for k, v in tags.items()] if backfill else [],
            "message_id": str(number),
            "publish_time": publish_time(number),
            "topic": TOPIC,
            "source": source,
            "ingest_time": BEGAN,
        }

    def rows(self) -> Counter[str]:
        with self.tables("reader") as tables:
            return Counter(
                row[column]
                for table, column in ((self.orders, "_message_id"), (self.letters, "message_id"))
                for row in tables.open(table).read_rows([column])
            )


def open_world(kind, warehouse, tmp_path, standin):
    dataset = f"d{uuid.uuid4().hex[:12]}"
    settings = read_settings(
        {
            **standin.environment,
            "REFEED_WAREHOUSE": "lake" if warehouse == "memory" else warehouse,
            "REFEED_PROJECT": "shop",
            "REFEED_ARCHIVE_TABLE": f"{dataset}.messages",
            "REFEED_DEAD_LETTER_TABLE": f"{dataset}.dead_letters",
        },
        home=tmp_path / "home",
    )
    return kind(warehouse, settings, standin, tmp_path)
