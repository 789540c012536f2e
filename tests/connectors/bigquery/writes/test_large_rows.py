"""Rows too large for an append request: they arrive as they are, whatever columns their table has."""

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest
import requests
from google.api_core.exceptions import BadRequest

from connectors.bigquery.client import Clients, Connection
from connectors.bigquery.writes.large_rows import insert_large_rows, load_large_rows
from connectors.bigquery.writes.row_table import BigQueryRowTable
from connectors.bigquery.writes.row_writer import BigQueryRowWriter
from model.schema import Field, RowSchema

SCHEMA = RowSchema(
    (
        Field("id", "INT64"),
        Field("price", "FLOAT64"),
        Field("exact", "NUMERIC"),
        Field("is_new", "BOOL"),
        Field("body", "BYTES"),
        Field("name", "STRING"),
        Field("day", "DATE"),
        Field("at", "TIME"),
        Field("seen", "DATETIME"),
        Field("raw", "JSON"),
        Field("raws", "JSON", "REPEATED"),
        Field("lines", "RECORD", "REPEATED", fields=(Field("sku", "STRING"), Field("more", "JSON"))),
        Field("ingest_time", "TIMESTAMP"),
    ),
    "Rows of every type.",
)
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.float64()),
        ("exact", pa.decimal128(38, 9)),
        ("is_new", pa.bool_()),
        ("body", pa.binary()),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("at", pa.time64("us")),
        ("seen", pa.timestamp("us")),
        ("raw", pa.string()),
        ("raws", pa.list_(pa.string())),
        ("lines", pa.list_(pa.struct([("sku", pa.string()), ("more", pa.string())]))),
        ("ingest_time", pa.timestamp("us", tz="UTC")),
    ]
)
ROW = {
    "id": 2**63 - 1,
    "price": 0.1,
    "exact": Decimal("12345678901234567890.123456789"),
    "is_new": True,
    "body": bytes(range(256)),
    "name": 'a "text"\nof two lines \u2028 \U0001f600',
    "day": date(2024, 2, 29),
    "at": time(23, 59, 59, 999999),
    "seen": datetime.fromisoformat("2024-03-01T12:00:00.000001"),
    "raw": '{"a": {"b": [1, 2.5, null, "x"]},\n "n": 9007199254740993}',
    "raws": ['"text"', "1", "true"],
    "lines": [{"sku": "s", "more": '{"k": "v"}'}, {"sku": None, "more": None}],
    "ingest_time": datetime(2024, 3, 1, 12, 0, 0, 123456, tzinfo=UTC),
}
EMPTY = {**dict.fromkeys(ROW), "id": 1, "raws": [], "lines": [], "ingest_time": ROW["ingest_time"]}


@pytest.fixture
def table(archive, settings):
    clients = Clients(Connection.of("shop", settings.bigquery))
    name = f"{archive.table.dataset}.rows"
    found = BigQueryRowTable(clients, name, settings.bigquery)
    found.evolve(SCHEMA)
    yield found
    clients.close()


def as_read(row):
    """Return a row as the table is read: JSON as its texts."""

    def text(cell):
        return None if cell is None else json.dumps(json.loads(cell))

    lines = [{**line, "more": text(line["more"])} for line in row["lines"]]
    return {**row, "raw": text(row["raw"]), "raws": list(map(text, row["raws"])), "lines": lines}


def test_large_rows_of_every_type_arrive_as_they_are(table, settings):
    clients = Clients(Connection.of("shop", settings.bigquery))
    rows = [pa.RecordBatch.from_pylist([row], schema=ARROW) for row in (ROW, EMPTY)]
    staged, refused = load_large_rows(clients, table.id, rows)
    assert (refused, staged.rows) == ([], 2)
    insert_large_rows(clients, table.id, staged, job="refeed-staged-test", seconds=30)
    found = sorted(table.read_rows(), key=lambda row: row["id"], reverse=True)
    assert found == [as_read(ROW), as_read(EMPTY)]
    clients.close()


def test_rows_whose_load_was_answered_to_nobody_and_can_not_be_looked_up_at_once_arrive_once(
    table, settings, shared_standin
):
    clients = Clients(Connection.of("shop", settings.bigquery))
    load = clients.rest().load_table_from_file

    def lose_the_answer(*given, **options):
        clients.rest().load_table_from_file = load
        load(*given, **options).result()
        shared_standin.fault("jobs.get", reason="backendError")
        raise requests.exceptions.ConnectionError

    clients.rest().load_table_from_file = lose_the_answer
    staged, _ = load_large_rows(clients, table.id, [pa.RecordBatch.from_pylist([ROW], schema=ARROW)])
    assert shared_standin.open_faults() == []
    insert_large_rows(clients, table.id, staged, job="refeed-staged-once", seconds=30)
    assert table.read_rows() == [as_read(ROW)]
    clients.close()


def test_rows_whose_load_fails_in_passing_are_not_refused(table, settings):
    clients = Clients(Connection.of("shop", settings.bigquery))
    rest = clients.rest()
    load = rest.load_table_from_file

    def fail_once(*_, **__):
        rest.load_table_from_file = load
        raise BadRequest("Try again.", errors=[{"reason": "backendError"}])

    rest.load_table_from_file = fail_once
    staged, refused = load_large_rows(clients, table.id, [pa.RecordBatch.from_pylist([ROW], schema=ARROW)])
    assert (staged.rows, list(refused)) == (1, [])
    clients.close()


def test_rows_whose_load_arrives_after_it_was_tried_again_arrive_once(table, settings):
    clients = Clients(Connection.of("shop", settings.bigquery))
    rest = clients.rest()
    load = rest.load_table_from_file

    def arrive_late(file, *given, **options):
        copy = io.BytesIO(file.getvalue())

        def arrive_before(*others, **other_options):
            rest.load_table_from_file = load
            load(copy, *given, **options).result()
            return load(*others, **other_options)

        rest.load_table_from_file = arrive_before
        raise requests.exceptions.Timeout

    rest.load_table_from_file = arrive_late
    staged, _ = load_large_rows(clients, table.id, [pa.RecordBatch.from_pylist([ROW], schema=ARROW)])
    insert_large_rows(clients, table.id, staged, job="refeed-staged-late", seconds=30)
    assert table.read_rows() == [as_read(ROW)]
    clients.close()


def test_a_row_with_json_larger_than_an_append_request_is_written(table, settings):
    text = json.dumps({"text": "x" * 200_000})
    batch = pa.RecordBatch.from_pylist([{**ROW, "at": None, "raw": text}, EMPTY], schema=ARROW)
    writer = BigQueryRowWriter(Connection.of("shop", settings.bigquery), str(table.id), 100_000)
    part = writer.write_rows([batch])
    assert part.refused == ()
    assert [found.staged is not None for found in part.tables] == [True]


def test_a_message_of_the_largest_size_fits_an_append_request(archive, messages, settings):
    assert settings.bigquery.append_bytes > 10_000_000
    part = archive.writer().write([("orders", "s", messages(bytes(10_000_000)))])
    assert (part.rows, part.tables[0].staged) == (1, None)
