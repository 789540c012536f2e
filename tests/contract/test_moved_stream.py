"""A stream that starts in a new home writes nothing twice: it learns from its tables, in every warehouse."""

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest

from backup.archiving import ArchiveTarget
from connectors.columns import arrow_schema
from connectors.pubsub.pull import PULLED_SCHEMA
from model.errors import StorageFullError
from model.message import replay_token
from model.schema import Field, RowSchema
from model.settings import read_settings
from pipeline.dead_letters import DEAD_LETTER_SCHEMA
from pipeline.schema import META_COLUMNS
from pipeline.staged_ids import StagedIds, open_journal
from streams.batch import Batch
from streams.committer import StreamCommitter
from streams.journal import IDS_SCHEMA, ONLY_TABLE, PULLED_IDS_SCHEMA, EntryState, Journal
from streams.journal_mark import ask_to_learn
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
    def extended(self, _):
        yield

    def acknowledge(self, ids):
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
    def stream(self, home: str):
        """Run a stream in a home, as its process does: a committer under its lease, after recovery."""
        folder = self.folder / home
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


@pytest.fixture(params=[BackupWorld, PipelineWorld], ids=["backup", "pipeline"])
def kind(request):
    return request.param


@pytest.fixture(params=["lake", "bigquery", "memory"])
def world(request, kind, tmp_path, shared_standin):
    return open_world(kind, request.param, tmp_path, shared_standin)


def test_a_stream_in_a_new_home_writes_nothing_again_of_what_its_predecessor_committed_and_did_not_acknowledge(
    world,
):
    with world.stream("old") as stream:
        stream.commit(1, 2)
        stream.commit(3, 4)
    with world.stream("new") as stream:
        stream.commit(1, 2, 3, 4, 5, 6)
        # A part that is taken whole or not at all comes again without the rows that are known.
        stream.commit(5)
        stream.commit(6)
    assert world.rows() == Counter(map(str, range(1, 7)))


@pytest.mark.parametrize("warehouse", ["lake", "bigquery", "memory"])
def test_a_source_that_was_renamed_has_the_dead_letters_of_its_old_name(warehouse, tmp_path, shared_standin):
    world = open_world(PipelineWorld, warehouse, tmp_path, shared_standin)
    with world.stream("old") as stream:
        stream.commit(1, 2)
    world.source, world.mapping = "sales", {"orders": "sales"}
    with world.stream("new") as stream:
        stream.commit(1, 2)
        stream.commit(3)
    assert world.rows() == Counter("123")


def test_a_stream_that_starts_where_it_ended_reads_nothing(world):
    with world.stream("one") as stream:
        stream.commit(1, 2)
    assert world.read == []
    for _ in range(2):
        with world.stream("one") as stream:
            stream.commit(1, 2)
        assert world.read == []
    assert world.rows() == Counter("12")


def test_a_home_that_another_one_took_over_from_learns_when_it_comes_back(world):
    with world.stream("one") as stream:
        stream.commit(1, 2)
    with world.stream("two") as stream:
        stream.commit(3, 4)
    with world.stream("one") as stream:
        stream.commit(1, 2, 3, 4)
    assert set(world.read) == set(world.names())
    assert world.rows() == Counter("1234")


@pytest.fixture
def lake(kind, tmp_path, shared_standin):
    return open_world(kind, "lake", tmp_path, shared_standin)


def test_a_journal_that_was_lost_alone_is_learned_again(lake):
    with lake.stream("one") as stream:
        stream.commit(1, 2)
    for file in (lake.folder / "one/journal").iterdir():
        file.unlink()
    with lake.stream("one") as stream:
        stream.commit(1, 2)
    assert lake.rows() == Counter("12")


def copy_of(folder):
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def put_back(folder, files) -> None:
    for path in folder.iterdir():
        path.unlink()
    for path, content in files.items():
        path.write_bytes(content)


def test_a_journal_that_was_put_back_from_a_copy_is_learned_again(lake):
    journal = lake.folder / "one/journal"
    with lake.stream("one") as stream:
        stream.commit(1, 2)
        kept = copy_of(journal)
        stream.commit(3, 4)
    put_back(journal, kept)
    with lake.stream("one") as stream:
        stream.commit(1, 2, 3, 4)
    assert lake.rows() == Counter("1234")


def test_a_copy_from_before_another_start_is_told_by_its_mark_and_its_open_attempt_is_not_believed(lake):
    journal = lake.folder / "one/journal"
    with lake.stream("one") as stream:
        stream.commit(1, 2)
        held = lake.part(lake.names()[-1], None, [8]).ids
        stream.journal.write(stream.journal.last_attempt() + 1, held)
        number = stream.journal.last_attempt()
        kept = copy_of(journal)
    with lake.stream("one"):
        """The attempt was not committed, and is forgotten: its number is free at the next start."""
    with lake.stream("one") as stream:
        stream.commit(4)
        assert stream.journal.last_attempt() == number
    put_back(journal, kept)
    with lake.stream("one") as stream:
        stream.commit(4, 8)
    assert lake.rows() == Counter("1248")


def test_a_start_that_died_while_it_learned_learns_all_again(lake, monkeypatch):
    with lake.stream("old") as stream:
        stream.commit(1, 2)

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Journal, "_adopt", die)
        with pytest.raises(KeyboardInterrupt), lake.stream("new"):
            pass
    with lake.stream("new") as stream:
        stream.commit(1, 2)
    assert lake.rows() == Counter("12")


def test_a_stream_does_not_start_where_there_is_no_room_for_the_ids_and_leaves_nothing_behind(lake, monkeypatch):
    with lake.stream("old") as stream:
        stream.commit(1, 2)
    lake.min_free_bytes = 2**62
    # As on a disk that is full but for its last tenth.
    usage = shutil.disk_usage(lake.folder)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=usage.total // 10))
    with pytest.raises(StorageFullError, match="REFEED_MIN_FREE_DISK_BYTES"), lake.stream("new"):
        pass
    assert list((lake.folder / "new/journal").glob("**/*.arrow")) == []
    monkeypatch.undo()
    lake.min_free_bytes = 0
    with lake.stream("new") as stream:
        stream.commit(1, 2)
    assert lake.rows() == Counter("12")


def test_a_message_that_was_acknowledged_a_moment_ago_is_learned_however_old_it_is(tmp_path, shared_standin):
    world = open_world(BackupWorld, "lake", tmp_path, shared_standin)
    with world.stream("old") as stream:
        stream.commit(2, age=WEEK)
    world.oldest = datetime.now(UTC)
    with world.stream("new") as stream:
        stream.commit(2, age=WEEK)
    assert world.rows() == Counter("2")


def test_what_cannot_come_again_is_not_learned(tmp_path, shared_standin, monkeypatch):
    world = open_world(BackupWorld, "lake", tmp_path, shared_standin)
    with world.stream("old") as stream:
        stream.commit(2)
    world.oldest = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setattr("streams.learning.datetime", Later)
    with world.stream("new") as stream:
        assert stream.journal.entries(EntryState.RECOVERED) == []


class Later(datetime):
    """An hour from now: what was ingested is out of the window of ids that stay known."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(hours=1)


def test_a_stream_that_was_asked_to_learn_does_so_once_and_since_then(lake):
    with lake.stream("one") as stream:
        stream.commit(1, 2)
    ask_to_learn(lake.folder / "one/journal", datetime.now(UTC) - timedelta(days=3))
    with lake.stream("one"):
        assert set(lake.read) == set(lake.names())
    with lake.stream("one"):
        assert lake.read == []


def test_a_lease_of_an_earlier_refeed_counts_for_the_same_stream_and_for_no_other(lake):
    with lake.stream("one") as stream:
        stream.commit(1, 2)
    forget_marks(lake)
    with lake.stream("one"):
        assert lake.read == []
    forget_marks(lake)
    with lake.stream("two") as stream:
        stream.commit(1, 2)
    assert set(lake.read) == set(lake.names())
    assert lake.rows() == Counter("12")


def forget_marks(world) -> None:
    """Make lease and journals what they were before there were marks."""
    for path in world.folder.glob("home/lake/*/_leases/*.json"):
        fields = json.loads(path.read_text())
        del fields["journal"]
        path.write_text(json.dumps(fields))
    for path in world.folder.glob("*/journal/mark.json"):
        path.unlink()


def test_a_replay_in_staging_does_not_make_its_original_known(tmp_path, shared_standin):
    world = open_world(PipelineWorld, "lake", tmp_path, shared_standin)
    with world.stream("old") as stream:
        stream.commit(2, backfill="bf_1")
    with world.stream("new") as stream:
        stream.commit(2)
    assert world.rows() == Counter({"2": 2})


def test_a_replay_that_comes_again_after_a_move_is_written_once(pipeline):
    with pipeline.stream("old") as stream:
        stream.commit(1, 2, backfill="bf_1")
    pipeline.oldest = datetime.now(UTC)
    with pipeline.stream("new") as stream:
        stream.commit(1, 2, 4, backfill="bf_1")
        # A part that is taken whole or not at all.
        stream.commit(4, backfill="bf_1")
        stream.commit(1, 2, backfill="bf_1", source="audit")
        stream.commit(2, backfill="bf_2")
        stream.commit(1)
    # Those of the first backfill, the dead letter of another source, another backfill's, and the original.
    assert pipeline.rows() == Counter({"1": 3, "2": 2, "4": 1})


def test_a_dead_letter_of_another_group_is_not_this_ones(tmp_path, shared_standin):
    world = open_world(PipelineWorld, "lake", tmp_path, shared_standin)
    with world.stream("old") as stream:
        stream.commit(1, source="elsewhere")
    with world.stream("new") as stream:
        stream.commit(1)
    assert world.rows() == Counter({"1": 2})


@pytest.fixture(params=["lake", "bigquery", "memory"])
def pipeline(request, tmp_path, shared_standin):
    return open_world(PipelineWorld, request.param, tmp_path, shared_standin)


def test_a_message_that_two_sources_refuse_is_a_dead_letter_of_each_once(pipeline):
    with pipeline.stream("old") as stream:
        stream.commit(1)
        stream.commit(1, source="audit")
        both = [pipeline.parts(stream.tables, [3], source=source) for source in ("orders", "audit")]
        pipeline.commit_parts(stream.committer, [part for parts in both for part in parts])
        for source in ("orders", "audit"):
            stream.commit(1, 3, source=source)
    assert pipeline.rows() == Counter({"1": 2, "3": 2})
    with pipeline.stream("new") as stream:
        stream.commit(1, 3)
        stream.commit(1, 3, source="audit")
        stream.commit(5, source="audit")
        stream.commit(5)
    assert pipeline.rows() == Counter({"1": 2, "3": 2, "5": 2})


def test_a_dead_letter_that_one_source_has_makes_it_known_for_no_other_after_a_move(pipeline):
    with pipeline.stream("old") as stream:
        stream.commit(1)
    with pipeline.stream("new") as stream:
        stream.commit(1)
        stream.commit(1, source="audit")
    assert pipeline.rows() == Counter({"1": 2})
