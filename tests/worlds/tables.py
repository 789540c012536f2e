"""Archives and tables of rows for tests: messages as a Pull brings them, and one world over every warehouse."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from connectors.pubsub.pull import PULLED_SCHEMA
from model import failpoint
from model.settings import read_settings
from model.table import ARCHIVE_COLUMNS
from model.volume import hour_key
from model.window import Window
from tests.memory.warehouse import MemoryWarehouse
from tests.worlds.bucket import bucket_lake_of
from warehouse.open import open_warehouse, warehouse_from_json

NOON = datetime(2024, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
COLUMNS = [column.name for column in ARCHIVE_COLUMNS]
WORLDS = (
    "lake",
    "lake by the hour",
    *(pytest.param(f"lake in unkind {scheme}", marks=pytest.mark.cloud) for scheme in ("s3", "gs")),
    "bigquery",
    "memory",
)


def pulled(*payloads: bytes, first: int = 1, attributes=None, ordering_key: str = "") -> pa.RecordBatch:
    """Return messages with these payloads; ids count up from ``first``, and each has its number as attribute n."""
    rows = [
        {
            "data": payload,
            "attributes": [{"key": "n", "value": str(number)}] if attributes is None else attributes,
            "message_id": str(number),
            "publish_time": NOON,
            "ordering_key": ordering_key,
            "ack_id": f"a-{number}",
        }
        for number, payload in enumerate(payloads, first)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=PULLED_SCHEMA)


def ids_of(*ids: str | int, table: str | None = None) -> pa.Table:
    """Return the ids of messages; with ``table`` it is named as where their rows belong."""
    columns = {
        "topic": ["orders"] * len(ids),
        "message_id": [str(one) for one in ids],
        "publish_time": pa.array([NOON] * len(ids), pa.timestamp("us", tz="UTC")),
    }
    return pa.table(columns if table is None else {**columns, "table": [table] * len(ids)})


def dataset_name() -> str:
    """Return the name of a dataset that no other test uses: tests share one stand-in."""
    return f"d{uuid.uuid4().hex[:12]}"


def interrupt(monkeypatch, table, *acts: Callable[[], object], after: bool = False) -> None:
    """Run the next of ``acts`` before (or after) each of the lake table's next commits to its log.

    An act that raises fails that commit. Other objects of the table are left alone.
    """
    commit, left = type(table)._commit, list(acts)

    def meddled(self, *arguments, **options):
        act = left.pop(0) if self is table and left else None
        if act is not None and not after:
            act()
        commit(self, *arguments, **options)
        if act is not None and after:
            act()

    monkeypatch.setattr(type(table), "_commit", meddled)


def raising(error: Exception) -> Callable[..., object]:
    """Return what raises ``error`` when it is called."""

    def fail(*_: object, **__: object):
        raise error

    return fail


@contextmanager
def at_failpoint(monkeypatch, place: str, act: Callable[[], object] | None = None) -> Iterator[None]:
    """Call ``act`` each time that ``place`` is reached within the block; without one the process dies there."""

    def hit(name: str) -> None:
        if name == place:
            if act is None:
                raise SystemExit(name)
            act()

    with monkeypatch.context() as patched, pytest.raises(SystemExit) if act is None else nullcontext():
        patched.setattr(failpoint, "hit", hit)
        yield


class World:
    """One warehouse, opened as its settings say; ``kind`` is one of :data:`WORLDS`, ``lake`` a URI in a bucket."""

    def __init__(self, kind: str, home, standin, lake: str | None = None) -> None:
        self.kind, self.standin, self.dataset = kind, standin, dataset_name()
        self.is_lake = kind.startswith("lake")
        self.settings = read_settings(
            {
                **standin.environment,
                **({} if lake is None else {"REFEED_LAKE": lake}),
                "REFEED_WAREHOUSE": "bigquery" if kind == "bigquery" else "lake",
                "REFEED_ARCHIVE_PARTITIONING": "hour" if kind == "lake by the hour" else "day",
                "REFEED_PROJECT": "shop",
                "REFEED_ARCHIVE_TABLE": f"{self.dataset}.messages",
                "REFEED_DEAD_LETTER_TABLE": f"{self.dataset}.dead_letters",
            },
            home=home,
        )
        is_memory = kind == "memory"
        self.opened = MemoryWarehouse.new(self.settings) if is_memory else open_warehouse(self.settings)
        self._closes: list[Callable[[], None]] = []

    def elsewhere(self):
        return warehouse_from_json(self.opened.to_json())

    def keep(self, opened):
        self._closes.append(opened.close)
        return opened

    def close(self) -> None:
        for close in self._closes:
            close()

    def query(self, sql: str) -> list[dict]:
        return [dict(row.items()) for row in self.standin.client().query_and_wait(sql)]


@contextmanager
def open_world(make, request: pytest.FixtureRequest, home, standin) -> Iterator:
    """Give the world of the class ``make`` that a fixture's parameter, one of :data:`WORLDS`, names."""
    kind: str = request.param
    is_bucket = kind.startswith("lake in ")
    with bucket_lake_of(kind.removeprefix("lake in "), request) if is_bucket else nullcontext() as lake:
        found = make(kind, home, standin, lake)
        yield found
        found.close()


class ArchiveWorld(World):
    """The archive of one warehouse, and a way to read it that is not the archive's own."""

    def __init__(self, kind: str, home, standin, lake: str | None = None) -> None:
        super().__init__(kind, home, standin, lake)
        self.archive = self.keep(self.opened.open_archive())
        self.archive.create()

    def another(self):
        return self.keep(self.archive.another())

    def rows(self) -> list[dict]:
        if self.kind == "bigquery":
            return self.query(f"SELECT * FROM `{self.settings.archive_table}` WHERE _PARTITIONTIME IS NOT NULL")
        return [row for batch in self.another().scan(COLUMNS) for row in batch.to_pylist()]

    def ids(self) -> list[str]:
        return sorted(row["message_id"] for row in self.rows())

    def write(self, *payloads: bytes, first: int = 1, topic: str = "orders"):
        """Write a part as a task does: with a writer that came as JSON."""
        writer = self.elsewhere().archive_writer(self.archive.writer().as_json())
        odd = [{"key": "ключ", "value": "вäl🙂"}, {"key": "", "value": ""}]
        rows = pulled(*payloads, first=first, attributes=odd, ordering_key="k")
        return self.archive.parse_part(writer.write([(topic, "refeed-backup.orders", rows)]).as_json())

    def lose_commit(self, monkeypatch, when: str) -> None:
        """Let the next commit fail: ``before`` it is made, or ``after``, so that only its answer is lost."""
        if self.is_lake:
            interrupt(monkeypatch, self.archive, raising(OSError("connection reset")), after=when == "after")
        elif self.kind == "bigquery":
            self.standin.fault("BatchCommitWriteStreams", "drop", when=when)
        else:
            self.opened.memory.lost = when

    def volumes(self) -> dict:
        """Return the archive's own volumes, as somebody asks who has seen nothing of it before."""
        now = datetime.now(UTC)
        found = self.another().volumes(Window(now - timedelta(days=2), now + timedelta(days=1)))
        assert found.unknown == ()
        return {
            (hour_key(hour), topic): tuple(volume)
            for hour, topics in found.by_hour.items()
            for topic, volume in topics.items()
        }

    def counted(self) -> dict:
        messages, sizes = Counter(), Counter()
        for row in self.rows():
            key = hour_key(row["ingest_time"]), row["topic"]
            messages[key] += 1
            sizes[key] += len(row["data"])
        return {key: (messages[key], sizes[key]) for key in messages}
