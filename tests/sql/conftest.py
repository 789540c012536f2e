"""A small archive in the lake's engine, and the cases: files of queries, each with what should come of it."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from connectors.lake.udfs import register_functions
from sql.validate import Policy

CASES = Path(__file__).parent / "cases"
NOW = datetime(2024, 1, 10, 12, tzinfo=UTC)
POLICY = Policy("backup.messages", "shop", NOW, extra_tables=("ops.wanted",))
DAY = timedelta(days=1)

MESSAGES: list[tuple[str, str, int, bytes, dict[str, str], str]] = [
    ("m1", "orders", 1, b'{"id":1,"total":10.5,"items":["a","b"]}', {"type": "order", "region": "eu"}, ""),
    ("m2", "orders", 1, b'{"id":2,"total":99,"items":[]}', {"type": "order", "region": "us"}, ""),
    ("m3", "orders", 2, b"\xff\x00z", {"type": "blob"}, ""),
    ("m4", "orders", 2, b"", {"kind": "empty"}, ""),
    ("m5", "members", 2, '{"id":5,"email":"å@x.se","tags":{"vip":true}}'.encode(), {"type": "member"}, ""),
    ("m6", "members", 3, b"not json", {}, ""),
    ("m7", "products", 3, b'{"id":7,"name":null}', {"type": "product", "region": "eu"}, "k7"),
    ("m8", "orders", 5, b'{"id": 1,"total":12}', {"type": "order", "region": "eu"}, "k1"),
]

ATTRIBUTES = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
MOMENT = pa.timestamp("us", "UTC")
ARCHIVE = pa.schema(
    [
        ("data", pa.binary()),
        ("attributes", ATTRIBUTES),
        ("message_id", pa.string()),
        ("publish_time", MOMENT),
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("ordering_key", pa.string()),
        ("ingest_time", MOMENT),
    ]
)


@dataclass(frozen=True)
class Case:
    """One query of a case file: ``rows`` are the message ids it gives back, ``codes`` why it is refused."""

    rule: str
    name: str
    text: str
    directives: dict[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(json.loads(self.directives.get("params", "{}")))

    def __str__(self) -> str:
        return f"{self.rule}: {self.name}"


def read_cases(verdict: str) -> list[Case]:
    cases = []
    for path in sorted(CASES.glob(f"*/{verdict}.sql")):
        for block in f"\n{path.read_text()}".split("\n--- ")[1:]:
            name, _, body = block.partition("\n")
            lines = body.split("\n")
            directives = {}
            while lines and lines[0].startswith("--: "):
                key, _, value = lines.pop(0)[4:].partition(" ")
                directives[key] = value
            cases.append(Case(path.parent.name, name, "\n".join(lines).strip("\n"), directives))
    return cases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that asks for ``accepted`` or ``refused`` each case of the files."""
    for fixture, verdict in (("accepted", "accept"), ("refused", "reject")):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, read_cases(verdict), ids=str)


@pytest.fixture(scope="session")
def all_cases():
    return {verdict: read_cases(verdict) for verdict in ("accept", "reject")}


@pytest.fixture(scope="session")
def policy():
    return POLICY


@pytest.fixture(scope="session")
def lake():
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    register_functions(connection)
    connection.execute(
        "CREATE TABLE archive (data BLOB, attributes STRUCT(key VARCHAR, value VARCHAR)[], message_id VARCHAR, "
        "publish_time TIMESTAMPTZ, topic VARCHAR, subscription VARCHAR, ordering_key VARCHAR, "
        "ingest_time TIMESTAMPTZ)"
    )
    rows = []
    for number, (message_id, topic, day, data, attributes, key) in enumerate(MESSAGES):
        published = datetime(2024, 1, day, 10, number, tzinfo=UTC)
        pairs = [{"key": k, "value": v} for k, v in attributes.items()]
        row = [
            data,
            pairs,
            message_id,
            published,
            topic,
            f"refeed-backup.{topic}",
            key,
            published + timedelta(seconds=1),
        ]
        rows.append(dict(zip(ARCHIVE.names, row, strict=True)))
    connection.register("rows", pa.Table.from_pylist(rows, ARCHIVE))
    connection.execute("INSERT INTO archive SELECT * FROM rows")
    connection.execute(
        "CREATE VIEW refeed_archive AS SELECT *, date_trunc('day', ingest_time) AS _PARTITIONTIME, "
        "CAST(ingest_time AS DATE) AS _PARTITIONDATE FROM archive"
    )
    yield connection
    connection.close()
