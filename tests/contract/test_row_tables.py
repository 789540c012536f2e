"""What the pipeline needs of its tables: the same in the lake, in BigQuery (the stand-in) and in memory."""

import json
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from connectors.columns import arrow_schema
from model.archive import IdSpan
from model.errors import EvolutionRefusedError, LeaseLostError, WarehouseUnavailableError
from model.read_budget import ReadBudget
from model.schema import Field, RowSchema
from model.window import Window
from pipeline.inferred import EventType, Variation
from pipeline.repository import SchemaRepository, read_versions
from pipeline.shapes import Shape
from tests.worlds.tables import NOON, WORLDS, World, ids_of, open_world

INGEST_TIME = Field("ingest_time", "TIMESTAMP", description="When the row was written.")
ORDERS = RowSchema(
    (
        Field("id", "INT64", description="The order."),
        Field("lines", "RECORD", "REPEATED", fields=(Field("sku", "STRING"), Field("count", "INT64"))),
        Field("raw", "JSON"),
        Field("at", "TIME"),
        Field("body", "BYTES"),
        Field("_message_id", "STRING"),
        INGEST_TIME,
    ),
    "Orders as they came.",
)


class RowWorld(World):
    """One warehouse's tables of one stream, and a way to read them that is not their own."""

    def __init__(self, kind, home, standin, lake: str | None = None) -> None:
        super().__init__(kind, home, standin, lake)
        self.orders, self.members = self.name("orders"), self.name("members")
        self.tables = self.start()

    def name(self, table: str) -> str:
        return f"{self.dataset}.{table}"

    def start(self, stream: str = "s"):
        """Return the tables of a stream that holds the lease; an older one has lost it."""
        tables = self.keep(self.opened.open_row_tables(stream=stream, lease="l"))
        tables.create()
        tables.open(self.settings.dead_letter_table).evolve(RowSchema((INGEST_TIME,)))
        tables.leases().take_lease("l")
        for name in (self.orders, self.members):
            tables.open(name).evolve(ORDERS)
            tables.take(name)
        return tables

    def write(self, name: str, *ids: int, schema: RowSchema = ORDERS, batch: pa.RecordBatch | None = None):
        """Write a part as a task does: with a writer that came as JSON."""
        writer = self.elsewhere().row_writer(self.tables.open(name).writer(schema).as_json())
        return self.tables.parse_part(writer.write_rows([rows(*ids) if batch is None else batch]).as_json())

    def commit(self, number: int, *ids: int, name: str = "", **part):
        """Commit rows that a task wrote to a table, the orders' unless ``name`` says which."""
        name = name or self.orders
        found = self.tables.commit({name: [self.write(name, *ids, **part)]}, number, ids_of(*ids, table=name))
        assert found == ({name}, None)

    def rows(self, name: str) -> list[dict]:
        if self.kind == "memory":
            return self.read(name)
        if self.is_lake:
            table = DeltaTable(self.tables.open(name).uri).to_pyarrow_table().to_pylist()
            return sorted(table, key=lambda row: row["id"])
        return self.query(f"SELECT * FROM `{name}` WHERE _PARTITIONTIME IS NOT NULL ORDER BY id")

    def read(self, name: str) -> list[dict]:
        """Return the rows as the table itself reads them: types as they are now, JSON as text."""
        return sorted(self.tables.open(name).read_rows(), key=lambda row: row["id"])

    def ids(self, name: str) -> list[int]:
        return [row["id"] for row in self.rows(name)]


def rows(*ids: int) -> pa.RecordBatch:
    found = [
        {
            "id": number,
            "lines": [{"sku": "ключ", "count": n} for n in range(number % 3)],
            "raw": '{"a":[1,null]}',
            "at": "12:30:00.500000",
            "body": b"\x00\xff",
            "_message_id": str(number),
            "ingest_time": NOON,
        }
        for number in ids
    ]
    return pa.RecordBatch.from_pylist(found, schema=arrow_schema(ORDERS))


@pytest.fixture(params=WORLDS)
def world(request, tmp_path, shared_standin):
    with open_world(RowWorld, request, tmp_path / "home", shared_standin) as found:
        yield found


def columns(world) -> dict[str, str]:
    schema = world.tables.open(world.orders).schema()
    return {field.name: f"{field.type} {field.mode}" for field in schema.fields}


def test_a_table_has_the_schema_that_it_was_given_and_nothing_changes_the_second_time(world):
    table = world.tables.open(world.orders)
    assert table.exists()
    assert table.schema() == ORDERS
    assert table.evolve(ORDERS).changes == ()
    assert not world.tables.open(world.name("nothing")).exists()
    assert world.tables.open(world.name("nothing")).schema() is None


def test_columns_are_added_at_the_end_and_rows_of_before_and_after_are_read_together(world):
    line = Field("lines", "RECORD", "REPEATED", fields=(*ORDERS.fields[1].fields, Field("price", "NUMERIC")))
    described = Field("id", "INT64", description="The order's number.")
    more = (Field("more", "STRING", "REPEATED"), Field("local", "DATETIME"), Field("day", "DATE"))
    wanted = RowSchema((described, line, *ORDERS.fields[2:], *more), "New.")
    table = world.tables.open(world.orders)
    world.commit(1, 1)
    before = world.write(world.orders, 2)
    changes = {change.path for change in table.evolve(wanted).changes}
    assert changes == {"", "id", "lines.price", "more", "local", "day"}
    assert table.schema() == wanted
    world.tables.commit({world.orders: [before]}, 2, ids_of(2, table=world.orders))
    new = {
        "id": 3,
        "lines": [{"sku": "b", "count": 3, "price": Decimal("1.50")}],
        "more": ["ü"],
        "local": datetime.fromisoformat("2024-03-01T12:00:00.000001"),
        "day": date(2024, 3, 1),
        "ingest_time": NOON,
    }
    batch = pa.RecordBatch.from_pylist([new], schema=arrow_schema(wanted))
    world.commit(3, 3, schema=wanted, batch=batch)
    found = world.read(world.orders)
    assert [[line["price"] for line in row["lines"]] for row in found] == [[None], [None, None], [Decimal("1.5")]]
    assert [list(row["more"] or ()) for row in found] == [[], [], ["ü"]]
    assert [(row["local"], row["day"]) for row in found] == [*[(None, None)] * 2, (new["local"], new["day"])]


def test_rows_are_found_by_either_time_and_by_the_publication_of_their_messages(world):
    table = world.tables.open(world.members)
    table.evolve(RowSchema((*ORDERS.fields, Field("_publish_time", "TIMESTAMP")), ORDERS.description))
    columns, day = ["_message_id", "_publish_time"], timedelta(days=1)
    before = datetime.now(UTC)
    times = pa.array([NOON + day, NOON + 2 * day], pa.timestamp("us", tz="UTC"))
    batch = rows(1, 2).append_column("_publish_time", times)
    world.commit(1, 1, 2, name=world.members, schema=table.schema(), batch=batch)

    def read(name, published, ingested):
        found = list(world.tables.read_since(name, columns, "_publish_time", IdSpan(published, ingested)))
        assert all(batch.schema.names == columns for batch in found)
        return sorted(one for batch in found for one in batch.column("_message_id").to_pylist())

    def published(name, start, end):
        window = Window(start, end)
        found = world.tables.read_published(name, columns, "_publish_time", window, ReadBudget(10**12))
        return sorted(one for batch in found for one in batch.column("_message_id").to_pylist())

    tomorrow = before + day
    assert read(world.members, tomorrow, before) == ["1", "2"]
    assert read(world.members, NOON + 2 * day, tomorrow)[-1:] == ["2"]
    assert read(world.members, tomorrow, tomorrow) == []
    assert published(world.members, NOON + day, NOON + 2 * day) == ["1"]
    assert read(world.name("none"), NOON, NOON) == published(world.name("none"), NOON, tomorrow) == []


def test_a_change_that_can_t_be_made_is_refused_whole_with_every_difference_named(world):
    wanted = RowSchema((Field("id", "STRING"), Field("lines", "STRING"), *ORDERS.fields[3:], Field("new", "BOOL")))
    with pytest.raises(EvolutionRefusedError) as refused:
        world.tables.open(world.orders).evolve(wanted)
    differences = {found["path"]: found["text"] for found in refused.value.details["differences"]}
    assert differences["id"] == "is INT64, but must be STRING"
    assert differences["raw"] == "was JSON and is gone"
    assert {"lines", "lines.sku", "lines.count"} <= differences.keys()
    assert world.tables.open(world.orders).schema() == ORDERS


def test_what_is_written_is_seen_once_it_is_committed_and_then_as_it_was(world):
    part = world.write(world.orders, 1, 2)
    assert (part.rows, part.refused) == (2, ())
    assert world.rows(world.orders) == []
    assert world.tables.commit({world.orders: [part]}, 1, ids_of(1, 2, table=world.orders)) == (
        {world.orders},
        None,
    )
    first, second = world.rows(world.orders)
    assert first["ingest_time"] == second["ingest_time"] > NOON
    assert [[dict(line) for line in row["lines"]] for row in (first, second)] == [
        [{"sku": "ключ", "count": 0}],
        [{"sku": "ключ", "count": 0}, {"sku": "ключ", "count": 1}],
    ]
    assert (first["body"], first["_message_id"]) == (b"\x00\xff", "1")
    assert first["at"] in ("12:30:00.500000", time(12, 30, 0, 500000))


def test_an_attempt_over_several_tables_and_tasks_is_in_each_of_them(world):
    parts = {
        world.orders: [world.write(world.orders, 1), world.write(world.orders, 2)],
        world.members: [world.write(world.members, 3)],
    }
    committed, failure = world.tables.commit(parts, 7, ids_of(1, 2, table=world.orders))
    assert (committed, failure) == ({world.orders, world.members}, None)
    assert (world.ids(world.orders), world.ids(world.members)) == ([1, 2], [3])
    again = world.start()
    assert again.settle(7, [world.orders, world.members]) == {world.orders, world.members}
    assert again.take(world.orders) == 7
    assert (world.ids(world.orders), world.ids(world.members)) == ([1, 2], [3])


def test_an_attempt_is_told_by_its_commit_from_another_owner_s_of_the_same_number(world):
    parts = {world.orders: [world.write(world.orders, 1)]}
    world.tables.commit(parts, 1, ids_of(1, table=world.orders), 2)
    again, names = world.start(), [world.orders, world.members]
    assert again.settle(1, names, 1) == frozenset()
    assert again.settle(1, names, 2) == again.settle(1, names) == {world.orders}
    assert world.ids(world.orders) == [1]


def test_a_stream_that_lost_its_lease_commits_to_no_table(world):
    part = world.write(world.orders, 1)
    successor = world.start("t")
    try:
        committed, failure = world.tables.commit({world.orders: [part]}, 1, ids_of(1, table=world.orders))
    except LeaseLostError as exc:
        committed, failure = frozenset(), exc
    assert (committed, type(failure)) == (frozenset(), LeaseLostError)
    assert world.rows(world.orders) == []
    world.tables = successor
    successor.commit({world.orders: [world.write(world.orders, 2)]}, 1, ids_of(2, table=world.orders))
    assert world.ids(world.orders) == [2]


def test_rows_that_are_unwanted_are_left_out_or_the_whole_part_is(world):
    part = world.tables.without(world.orders, world.write(world.orders, 1, 2), pa.array([True, False]))
    if part is not None:
        world.tables.commit({world.orders: [part]}, 1, ids_of(2, table=world.orders))
    assert world.ids(world.orders) == ([] if part is None else [2])
    assert world.tables.without(world.orders, world.write(world.orders, 1), pa.array([True])) is None


def test_a_part_that_was_dropped_is_never_seen(world):
    dropped, kept = world.write(world.orders, 1), world.write(world.orders, 2)
    world.tables.drop(world.orders, dropped)
    # Where rows can only be seen in their order, what was written after them can't be committed either.
    (follows,) = world.tables.which_follow([kept])
    if not follows:
        with pytest.raises(WarehouseUnavailableError):
            world.tables.commit({world.orders: [kept]}, 1, ids_of(2, table=world.orders))
        world.tables.drop(world.orders, kept)
        kept = world.write(world.orders, 2)
        assert world.tables.which_follow([kept]) == [True]
    world.tables.commit({world.orders: [kept]}, 1, ids_of(2, table=world.orders))
    assert world.ids(world.orders) == [2]


def test_parts_of_one_batch_are_committed_together_and_the_next_batch_s_follow_them(world):
    for number in (1, 3):
        parts = [world.write(world.orders, number), world.write(world.orders, number + 1)]
        assert world.tables.which_follow(parts) == [True, True]
        outcome = world.tables.commit(
            {world.orders: parts}, number, ids_of(number, number + 1, table=world.orders)
        )
        assert outcome == ({world.orders}, None)
    assert world.ids(world.orders) == [1, 2, 3, 4]


def test_rows_of_an_attempt_that_failed_are_not_seen_with_those_of_the_next(world):
    world.write(world.orders, 1)  # its batch failed on the way to the commit, and nobody dropped it
    part = world.write(world.orders, 2)
    if world.tables.which_follow([part]) == [True]:
        world.tables.commit({world.orders: [part]}, 1, ids_of(2, table=world.orders))
    else:
        with pytest.raises(WarehouseUnavailableError):
            world.tables.commit({world.orders: [part]}, 1, ids_of(2, table=world.orders))
    assert 1 not in world.ids(world.orders)


def test_rows_of_the_driver_s_own_are_appended_between_the_attempts(world):
    world.tables.append(world.members, rows(1))
    world.commit(3, 5)
    world.tables.append(world.members, rows(2))
    found = world.tables.open(world.members).read_rows()
    assert Counter(row["id"] for row in found) == Counter([1, 2])
    assert {row["raw"].replace(" ", "") for row in found} == {'{"a":[1,null]}'}
    again = world.start()
    assert again.settle(3, [world.orders]) == {world.orders}


def test_rows_that_came_in_since_a_moment_are_deleted_and_the_others_stay_as_they_were(world):
    assert world.tables.delete_since(world.name("none"), NOON) == 0
    world.commit(1, 1, 2)
    since = datetime.now(UTC)
    before = world.rows(world.orders)
    assert all(row["ingest_time"] < since for row in before)
    world.commit(2, 3)
    world.commit(3, 4, name=world.members)
    if world.is_lake:
        # Compaction puts rows of before and after into one file.
        assert world.tables.open(world.orders).compact() == 1
    assert world.tables.delete_since(world.orders, since) == 1
    assert world.rows(world.orders) == before
    assert world.ids(world.members) == [4]
    assert world.tables.delete_since(world.orders, since) == 0
    # The stream goes on with the attempt after its last one.
    world.commit(4, 3)
    assert world.ids(world.orders) == [1, 2, 3]


def test_columns_become_wider_with_the_rows_that_are_there(world):
    world.commit(1, 1, 2)
    wider = RowSchema(
        (
            Field("id", "FLOAT64"),
            Field("lines", "RECORD", "REPEATED", fields=(Field("sku", "JSON"), Field("count", "STRING"))),
            *ORDERS.fields[2:],
            Field("more", "BOOL"),
        ),
        "Wider.",
    )
    world.tables.open(world.orders).widen(wider)
    assert world.tables.open(world.orders).schema() == wider
    first, second = world.read(world.orders)
    assert (first["id"], second["id"], first["more"]) == (1.0, 2.0, None)
    assert [line["count"] for line in second["lines"]] == ["0", "1"]
    assert all(value(line["sku"]) == "ключ" for line in second["lines"])
    world.tables.open(world.orders).widen(wider)
    assert [row["id"] for row in world.read(world.orders)] == [1.0, 2.0]
    assert world.tables.settle(1, [world.orders]) == {world.orders}


def test_a_cell_of_a_wider_column_is_what_its_message_makes_of_that_column(world):
    name = world.name("shapes")
    a, b = Field("n", "FLOAT64"), Field("tags", "STRING", "REPEATED")
    names = (Field("x", "INT64", description='""'), Field("y", "FLOAT64", description="+1"))
    deep = Field("deep", "RECORD", fields=(*names, Field("many", "RECORD", "REPEATED", fields=names), b))
    narrow = RowSchema((Field("id", "INT64"), a, b, deep, Field("t", "BOOL"), INGEST_TIME))
    table = world.tables.open(name)
    table.evolve(narrow)
    world.tables.take(name)
    one = {"x": 7, "y": 2.0}
    cells = [
        {"id": 1, "n": 1.0, "tags": ["ü"], "deep": {**one, "many": [one], "tags": ["a"]}, "t": True},
        {"id": 2, "n": 0.5, "tags": [], "deep": {"x": None, "y": None, "many": [], "tags": []}, "t": None},
        {"id": 3, "n": None, "tags": [], "deep": None, "t": False},
    ]
    batch = pa.RecordBatch.from_pylist([{**row, "ingest_time": NOON} for row in cells], arrow_schema(narrow))
    world.commit(1, 1, 2, 3, name=name, schema=narrow, batch=batch)
    wider = (Field("id", "INT64"), Field("n", "STRING"), Field("tags", "JSON"), Field("deep", "JSON"))
    table.widen(RowSchema((*wider, Field("t", "STRING"), INGEST_TIME)))
    found = [[row["n"], row["t"], value(row["tags"]), stripped(value(row["deep"]))] for row in world.read(name)]
    one = {"": 7, "+1": 2}
    assert found == [
        ["1", "true", ["ü"], {**one, "many": [one], "tags": ["a"]}],
        ["0.5", None, None, {}],
        [None, "false", None, None],
    ]
    assert '"+1":2}' in str(world.read(name)[0]["deep"]).replace("'", '"').replace(" ", "")


def value(cell):
    """Return the value of a JSON column, which is a text in a lake."""
    return json.loads(cell) if isinstance(cell, str) else cell


def stripped(found):
    """Return an object without the nulls that BigQuery's has where the lake's has nothing."""
    return {name: cell for name, cell in found.items() if cell is not None} if found else found


def test_a_rewrite_drops_no_column(world):
    with pytest.raises(EvolutionRefusedError):
        world.tables.open(world.orders).widen(RowSchema(ORDERS.fields[1:]))
    assert "id" in columns(world)


def test_the_schema_repository_reads_what_it_noted_and_notes_nothing_twice(world):
    name = world.name("schemas")
    shape = Shape("RECORD", fields={"id": Shape("INT", column="id")})
    kinds = [EventType("a", world.name("t_a"), 1, shape)]
    wider, fitting = Variation("s", "a", "h1", shape, '{"id":1}'), Variation("s", "a", "h2", shape)
    repository = SchemaRepository(world.tables, name)
    repository.append(kinds, [wider])
    repository.note(kinds, [fitting])
    again = SchemaRepository(world.start("t"), name)
    assert again.read("s") == kinds
    again.note(kinds, [fitting, wider])
    rows = sorted(world.tables.open(name).read_rows(), key=lambda row: row["hash"])
    assert [(row["hash"], row["shape"] is None, value(row["prototype"])) for row in rows] == [
        ("h1", False, {"id": 1}),
        ("h2", True, None),
    ]
    (version,) = read_versions(world.tables.open(name))["s"]
    assert (version.event_type, version.number, version.table) == ("a", 1, world.name("t_a"))
    assert (version.schema, version.noted_at.utcoffset()) == (kinds[0].schema, timedelta(0))
