"""What a backup needs of an archive, the same in the lake, in BigQuery (against the stand-in) and in memory."""

import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.pubsub.pull import PULLED_SCHEMA
from model.archive import Attempt
from model.errors import LeaseLostError
from model.settings import read_settings
from model.volume import hour_key
from model.window import Window
from tests.memory.warehouse import MemoryWarehouse
from warehouse.open import open_warehouse, warehouse_from_json

NOON = datetime(2024, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
EXTREMES = [b"", b"\x00\xff", bytes(range(256)) * 40]


class World:
    """One warehouse's archive, and a way to read it that is not the archive's own."""

    def __init__(self, warehouse, settings, standin) -> None:
        self.warehouse = warehouse
        self.settings = settings
        self.standin = standin
        self.opened = MemoryWarehouse.new(settings) if warehouse == "memory" else open_warehouse(settings)
        self.archive = self.opened.open_archive()
        self.archive.create()
        self._opened = [self.archive]

    def another(self):
        found = self.archive.another()
        self._opened.append(found)
        return found

    def rows(self) -> list[dict]:
        if self.warehouse == "memory":
            return list(self.archive.rows)
        if self.warehouse == "lake":
            return [
                row for file in self.archive.data_files() for row in pq.ParquetFile(file.path).read().to_pylist()
            ]
        sql = f"SELECT * FROM `{self.settings.archive_table}` WHERE _PARTITIONTIME IS NOT NULL"
        return [dict(row.items()) for row in self.standin.client().query_and_wait(sql)]

    def ids(self) -> list[str]:
        return sorted(row["message_id"] for row in self.rows())

    def write(self, *payloads: bytes, first: int = 1):
        """Write a part as a task does: with a writer that came as JSON."""
        writer = warehouse_from_json(self.opened.to_json()).archive_writer(self.archive.writer().as_json())
        part = writer.write([("orders", "refeed-backup.orders", messages(*payloads, first=first))])
        return self.archive.parse_part(part.as_json())

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
        """Return the volumes of the rows themselves."""
        messages, sizes = Counter(), Counter()
        for row in self.rows():
            key = hour_key(row["ingest_time"]), row["topic"]
            messages[key] += 1
            sizes[key] += len(row["data"])
        return {key: (messages[key], sizes[key]) for key in messages}

    def close(self) -> None:
        for archive in self._opened:
            archive.close()


def messages(*payloads: bytes, first: int = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "data": payload,
                "attributes": [{"key": "ключ", "value": "вäl🙂"}, {"key": "", "value": ""}],
                "message_id": str(number),
                "publish_time": NOON,
                "ordering_key": "k",
                "ack_id": "a",
            }
            for number, payload in enumerate(payloads, first)
        ],
        schema=PULLED_SCHEMA,
    )


def ids_of(*message_ids: str) -> pa.Table:
    count = len(message_ids)
    return pa.table(
        {
            "topic": ["orders"] * count,
            "message_id": list(message_ids),
            "publish_time": pa.array([NOON] * count, pa.timestamp("us", tz="UTC")),
        }
    )


@pytest.fixture(params=["lake", "bigquery", "memory"])
def world(request, tmp_path, shared_standin):
    settings = read_settings(
        {
            **shared_standin.environment,
            "REFEED_WAREHOUSE": "lake" if request.param == "memory" else request.param,
            "REFEED_PROJECT": "shop",
            "REFEED_ARCHIVE_TABLE": f"d{uuid.uuid4().hex[:12]}.messages",
        },
        home=tmp_path / "home",
    )
    found = World(request.param, settings, shared_standin)
    yield found
    found.close()


def test_nothing_differs_once_it_is_created_and_a_stream_may_begin(world):
    assert world.archive.differences() == []
    world.archive.check()


def test_a_part_is_seen_only_once_it_is_committed_and_then_bit_for_bit(world):
    epoch = world.archive.take_lease("l")
    part = world.write(*EXTREMES)
    assert (part.rows, part.dead_letters) == (3, 0)
    assert part.size_bytes > 0
    assert world.rows() == []
    before = datetime.now(UTC)
    world.archive.commit([part], Attempt("s", 1, "l", epoch), ids_of("1", "2", "3"))
    rows = sorted(world.rows(), key=lambda row: row["message_id"])
    assert [row["data"] for row in rows] == EXTREMES
    first = rows[0]
    assert [dict(pair) for pair in first["attributes"]] == [
        {"key": "ключ", "value": "вäl🙂"},
        {"key": "", "value": ""},
    ]
    assert (first["topic"], first["subscription"]) == ("orders", "refeed-backup.orders")
    assert (first["publish_time"], first["ordering_key"]) == (NOON, "k")
    assert (before - first["ingest_time"]).total_seconds() < 60


def test_parts_of_several_tasks_are_one_commit(world):
    epoch = world.archive.take_lease("l")
    parts = [world.write(b"a"), world.write(b"b", first=2), world.write(b"c", first=3)]
    world.archive.commit(parts, Attempt("s", 1, "l", epoch), ids_of("1", "2", "3"))
    assert world.ids() == ["1", "2", "3"]


def test_a_part_that_was_dropped_is_never_seen(world):
    epoch = world.archive.take_lease("l")
    dropped, kept = world.write(b"a"), world.write(b"b", first=2)
    world.archive.drop(dropped)
    world.archive.commit([kept], Attempt("s", 1, "l", epoch), ids_of("2"))
    assert world.ids() == ["2"]


def test_rows_that_are_unwanted_are_left_out_or_the_whole_part_is(world):
    epoch = world.archive.take_lease("l")
    part = world.archive.without(world.write(b"a", b"b", b"c"), pa.array([False, True, False]))
    if part is not None:
        world.archive.commit([part], Attempt("s", 1, "l", epoch), ids_of("1", "3"))
        assert world.ids() == ["1", "3"]
    else:
        assert world.ids() == []
    # None are left of it in either warehouse.
    assert world.archive.without(world.write(b"a"), pa.array([True])) is None


def test_the_archive_says_which_attempt_of_a_stream_is_in(world):
    epoch = world.archive.take_lease("l")
    assert world.archive.committed_attempt("s") == 0
    world.archive.commit([world.write(b"a")], Attempt("s", 41, "l", epoch), ids_of("1"))
    assert world.another().committed_attempt("s") == 41
    assert world.another().committed_attempt("t") == 0


def test_an_open_attempt_is_decided_after_a_restart(world):
    epoch = world.archive.take_lease("l")
    world.archive.commit([world.write(b"a")], Attempt("s", 1, "l", epoch), ids_of("1"))
    world.write(b"b", first=2)  # its driver died before the commit
    restarted = world.another()
    epoch = restarted.take_lease("l")
    assert restarted.settle(Attempt("s", 1, "l", epoch))
    assert not restarted.settle(Attempt("s", 2, "l", epoch))
    assert world.ids() == ["1"]


def test_each_taking_of_a_lease_counts(world):
    assert world.archive.lease_epoch("l") == 0
    first = world.archive.take_lease("l")
    second = world.another().take_lease("l")
    assert second == first + 1
    assert world.archive.lease_epoch("l") == second
    assert world.archive.lease_epoch("other") == 0


def test_a_commit_under_a_lease_that_was_taken_over_is_refused_and_adds_nothing(world):
    old = world.archive.take_lease("l")
    part = world.write(b"late")
    successor = world.another()
    new = successor.take_lease("l")
    with pytest.raises(LeaseLostError):
        world.archive.commit([part], Attempt("s", 1, "l", old), ids_of("1"))
    assert world.rows() == []
    successor.commit([world.write(b"b", first=2)], Attempt("t", 1, "l", new), ids_of("2"))
    assert world.ids() == ["2"]


def test_a_lease_says_who_holds_it_to_every_other_home(world):
    leases = world.archive.leases()
    assert leases.read_lease("backup-p") is None
    epoch = leases.take_lease("backup-p")
    leases.write_lease("backup-p", epoch, b'{"one": 1}')
    leases.write_lease("backup-p", epoch, b'{"two": 2}')
    assert world.another().leases().read_lease("backup-p") == b'{"two": 2}'


def test_a_lease_that_was_lost_can_be_neither_renewed_nor_given_back(world):
    sleeper, successor = world.archive.leases(), world.another().leases()
    old, new = sleeper.take_lease("backup-p"), successor.take_lease("backup-p")
    successor.write_lease("backup-p", new, b'{"two": 2}')
    with pytest.raises(LeaseLostError):
        sleeper.write_lease("backup-p", old, b'{"one": 1}')
    assert world.another().leases().read_lease("backup-p") == b'{"two": 2}'


def test_two_leases_do_not_meet(world):
    one, two = world.archive, world.another()
    first, second = one.take_lease("one"), two.take_lease("two")
    one.commit([world.write(b"a")], Attempt("s", 1, "one", first), ids_of("1"))
    two.commit([world.write(b"b", first=2)], Attempt("t", 1, "two", second), ids_of("2"))
    assert world.ids() == ["1", "2"]


def test_the_volumes_are_those_of_the_rows_that_were_committed(world):
    epoch = world.archive.take_lease("l")
    writer = world.archive.writer()
    both = writer.write([("orders", "s", messages(*EXTREMES)), ("members", "s", messages(b"", b"22"))])
    world.archive.commit([both, world.write(b"x" * 7, first=9)], Attempt("s", 1, "l", epoch), ids_of("1"))
    part = world.archive.without(world.write(b"aa", b"b" * 9, b"c", first=20), pa.array([False, True, False]))
    if part is not None:
        world.archive.commit([part], Attempt("s", 2, "l", epoch), ids_of("20", "22"))
    world.archive.drop(world.write(b"never", first=30))
    assert world.volumes() == world.counted() != {}
    assert {topic for _, topic in world.volumes()} == {"orders", "members"}
    world.archive.commit([world.write(b"late", first=40)], Attempt("s", 3, "l", epoch), ids_of("40"))
    world.another().compact()
    assert world.volumes() == world.counted()


def test_an_archive_without_a_message_has_no_volumes(world):
    assert world.volumes() == {}


def test_upkeep_changes_no_row(world):
    epoch = world.archive.take_lease("l")
    for number in range(1, 4):
        world.archive.commit(
            [world.write(b"x", first=number)], Attempt("s", number, "l", epoch), ids_of(str(number))
        )
    world.another().compact()
    assert world.ids() == ["1", "2", "3"]
