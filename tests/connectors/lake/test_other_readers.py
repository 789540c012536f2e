"""Tables of a lake as programs of others read them: Polars has a Parquet reader and clients of its own."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from connectors.columns import arrow_schema
from connectors.lake.row_tables import LakeRowTables
from model.schema import Field, RowSchema
from tests.connectors.lake.bucket_archive import append, ids
from tests.worlds.pypi import install

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(300)]

POLARS = "polars==1.35.2"
# Its provider of credentials asks Google itself; its reader takes them from the environment.
SCRIPT = """
import json, sys
import polars as pl
frame = pl.scan_delta(sys.argv[1], credential_provider=None).select(sys.argv[2:]).collect()
show = lambda value: value.hex() if isinstance(value, bytes) else str(value)
print(json.dumps(frame.sort(frame.columns[0]).to_dicts(), default=show))
"""


@pytest.fixture(scope="module")
def polars():
    return install(POLARS)


@pytest.fixture
def read(polars):
    def read(uri, *columns):
        environment = {**os.environ, "PYTHONPATH": str(polars)}
        command = [sys.executable, "-c", SCRIPT, uri, *columns]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return read


def test_the_archive_is_read_by_polars_while_it_is_written_and_after_a_compaction(archive, uri, read):
    for number in range(2, 6):
        append(archive, number)
    columns = ("message_id", "topic", "data", "attributes")
    before = read(f"{uri}/backup/messages", *columns)
    assert sorted(row["message_id"] for row in before) == ids(archive)
    assert {(row["topic"], row["data"]) for row in before} == {("orders", b"x".hex())}
    assert archive.another().compact() == 4
    assert read(f"{uri}/backup/messages", *columns) == before


def test_rows_of_every_type_are_read_by_polars(bucket_lake, read):
    types = ("INT64", "FLOAT64", "BOOL", "STRING", "BYTES", "NUMERIC", "TIMESTAMP", "DATE", "JSON")
    fields = tuple(Field(name.lower(), name) for name in types)
    tables = LakeRowTables(bucket_lake, "backup.anchor", stream="s", lease="l")
    table = tables.open("shop.orders")
    schema = RowSchema((*fields, Field("ingest_time", "TIMESTAMP")))
    table.evolve(schema)
    noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    row = [2**53 + 1, 0.1, True, "å", b"\x00", Decimal("1.5"), noon, noon.date(), '{"a": 1}', noon]
    columns = arrow_schema(schema)
    cells = [pa.array([value], column.type) for value, column in zip(row, columns, strict=True)]
    tables.append(table.name, pa.record_batch(cells, schema=columns))
    [found] = read(f"{bucket_lake}/shop/orders", *(field.name for field in fields))
    assert found == {
        "int64": 2**53 + 1,
        "float64": 0.1,
        "bool": True,
        "string": "å",
        "bytes": "00",
        "numeric": "1.500000000",
        "timestamp": "2026-03-02 12:00:00+00:00",
        "date": "2026-03-02",
        "json": '{"a": 1}',
    }


def test_who_reads_needs_no_feature_of_delta(archive, uri):
    """Whoever reads Delta can read a table of reader version 1: https://docs.delta.io/latest/versioning.html."""
    protocol = DeltaTable(f"{uri}/backup/messages").protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert not protocol.reader_features
