import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from connectors.columns import arrow_schema
from model.message import replay_token
from model.schema import Field, RowSchema
from pipeline.plan import SourcePlan
from pipeline.published import MAX_DATA_BYTES, encoder, find_unpublishable, render_messages
from pipeline.registry import Registry
from streams.topics import TOPIC_SCHEMA
from tests.pipeline.conftest import compile_protos, messages
from tests.pipeline.test_staging import replayed

ORDER = """{"id": 9007199254740993, "name": "a \\"b\\" \\u00e5\\n", "price": 0.1, "took": "1.000000001s",
 "at": "2024-03-01T12:00:00.000001+01:00", "raw": "AAE=", "paid": true,
 "lines": [{"sku": "x", "count": "9007199254740993"}], "free": {"n": 12345678901234567890}, "new": [1e2]}"""


@pytest.fixture
def source(tmp_path):
    def make(more: str = ""):
        yaml = f"sources:\n  orders: {{topic: orders, message: shop.Order, publish: rows{more}}}\n"
        files = {"shop.desc": compile_protos(tmp_path, "published.proto"), "sources.yaml": yaml.encode()}
        registry = Registry(str(tmp_path / "registry"))
        registry.publish(files)
        (found,) = registry.read().sources
        return found

    return make


def render(source, pulled: pa.RecordBatch) -> list[dict]:
    decoded = SourcePlan(source, None).open_decoder("secret", 10_000_000).decode(pulled)
    assert decoded.refused == []
    token = replay_token("secret", "orders")
    found = render_messages(source, source.row_schema.fields, decoded.rows, pulled, token=token)
    assert found.schema == TOPIC_SCHEMA
    return [{**row, "attributes": dict(row["attributes"])} for row in _pairs(found)]


def _pairs(found: pa.RecordBatch) -> list[dict]:
    rows = found.to_pylist()
    return [{**row, "attributes": [(pair["key"], pair["value"]) for pair in row["attributes"]]} for row in rows]


def test_a_row_is_published_with_its_columns_and_every_digit(source):
    (found,) = render(source(), messages(ORDER.encode(), attributes={"shop": "north"}))
    text = found["data"].decode()
    assert '"id":9007199254740993,' in text
    assert '"took":1.000000001,' in text
    assert '"count":9007199254740993}' in text
    assert '"free":{"n":12345678901234567890}' in text
    row = json.loads(text)
    assert row == {
        "id": 9007199254740993,
        "name": 'a "b" å\n',
        "price": 0.1,
        "took": 1.000000001,
        "at": "2024-03-01T11:00:00.000001Z",
        "raw": "AAE=",
        "paid": True,
        "lines": [{"sku": "x", "count": 9007199254740993}],
        "free": {"n": 12345678901234567890},
        "_ATTRIBUTES": [{"key": "shop", "value": "north"}],
        "_topic": "orders",
        "_message_id": "1",
        "_publish_time": "2024-03-01T12:00:00.000000Z",
        "_backfill_id": None,
        "_backfill_row": None,
        "_schema_version": source().version,
        "_unknown": {"new": [100.0]},
    }
    assert list(row) == [name for name in source().row_schema.names() if name != "ingest_time"]


def test_a_message_says_its_source_its_id_its_time_and_its_schema(source):
    first, again, other = (
        render(source(), messages(b"{}", first=number))[0]["attributes"] for number in (1, 1, 2)
    )
    assert first == again
    assert (first["source"], first["schema_version"]) == ("orders", source().version)
    assert first["timestamp"] == "2024-03-01T12:00:00.000000Z"
    assert first["uuid"] != other["uuid"]
    assert set(first) == {"source", "uuid", "timestamp", "schema_version"}


def test_an_event_s_own_id_and_time_go_along(source):
    own = {"uuid": "0190-own", "timestamp": "2024-02-29T00:00:00Z", "source": "a producer's", "other": "1"}
    (found,) = render(source(), messages(b"{}", attributes=own))
    assert found["attributes"]["uuid"] == "0190-own"
    assert found["attributes"]["timestamp"] == "2024-02-29T00:00:00Z"
    assert found["attributes"]["source"] == "orders"
    assert "other" not in found["attributes"]


def test_a_change_says_its_operation(source):
    body = b'{"NewImage": {"id": 1}, "EventId": "e"}'
    (found,) = render(source(", variant: change_data, key: id"), messages(body))
    assert found["attributes"]["operation"] == "INSERT"
    assert json.loads(found["data"])["_stream_event_id"] == "e"


def test_a_replay_is_published_with_its_tags_but_never_with_its_token(source):
    (live,) = render(source(), messages(b"{}"))
    (found,) = render(source(), replayed("orders", b"{}").rows)
    assert found["attributes"] | {"timestamp": ""} == {
        **live["attributes"],
        "timestamp": "",
        "refeed_backfill_id": "bf_1",
        "refeed_row": "1",
        "refeed_topic": "orders",
        "refeed_message_id": "1",
        "refeed_publish_time": "2024-01-01T00:00:00.000000Z",
    }
    assert found["attributes"]["timestamp"] == "2024-01-01T00:00:00.000000Z"
    (own,) = render(source(), messages(b"{}", attributes={"refeed_replay": "x", "refeed_row": "7"}))
    assert not [name for name in own["attributes"] if name.startswith("refeed")]


@pytest.mark.parametrize(
    ("key", "bodies", "keys"),
    [
        ("id", [b'{"id": 7}', b"{}"], ["7", "0"]),
        ("name", [b'{"name": "x"}', b'{"name": "%s"}' % (b"\xc3\xa5" * 600)], ["x", 64]),
        ("[id, name]", [b'{"id": 7, "name": "x"}'], ['[7,"x"]']),
        ("at", [b'{"at": "2024-03-01T12:00:00Z"}', b"{}"], ['"2024-03-01T12:00:00.000000Z"', ""]),
    ],
)
def test_rows_of_a_key_have_its_text_as_ordering_key(source, key, bodies, keys):
    found = render(source(f", key: {key}, publish_ordering: key"), messages(*bodies))
    for row, wanted in zip(found, keys, strict=True):
        assert wanted in (row["ordering_key"], len(row["ordering_key"]))
    assert [row["ordering_key"] for row in render(source(f", key: {key}"), messages(*bodies))] == [""] * len(
        bodies
    )


@pytest.mark.parametrize(
    ("kind", "cell", "text"),
    [
        ("NUMERIC", Decimal("-0.100000000"), "-0.1"),
        ("NUMERIC", Decimal(f"{10**29 - 1}.999999999"), f"{10**29 - 1}.999999999"),
        ("FLOAT64", float("nan"), '"NaN"'),
        ("FLOAT64", float("-inf"), '"-Infinity"'),
        ("FLOAT64", 1e300, "1e+300"),
        ("DATE", date(2024, 2, 29), '"2024-02-29"'),
        ("DATETIME", datetime(2024, 2, 29, 1), '"2024-02-29T01:00:00"'),  # noqa: DTZ001  a DATETIME has no zone
        ("TIMESTAMP", datetime(1, 1, 1, tzinfo=UTC), '"0001-01-01T00:00:00.000000Z"'),
        ("JSON", '{"n": 1.10}', '{"n": 1.10}'),
    ],
)
def test_a_cell_of_every_type_comes_through_arrow_as_json(kind, cell, text):
    field = Field("c", kind)
    column = pa.array([cell, None], arrow_schema(RowSchema((field,))).field("c").type)
    assert [encoder(field)(found) for found in column.to_pylist()] == [text, "null"]
    json.loads(text)


def test_what_is_too_large_or_was_refused_before_can_t_be_published():
    datas = [b"x", b"x" * (MAX_DATA_BYTES + 1), b"x" * MAX_DATA_BYTES]
    rows = [
        {"data": data, "attributes": [], "ordering_key": "", "message_id": str(number)}
        for number, data in enumerate(datas)
    ]
    found = find_unpublishable(pa.Table.from_pylist(rows, TOPIC_SCHEMA), {"0": "no such field", "9": "gone"})
    assert found.keys() == {0, 1}
    assert found[0] == "no such field"
    assert str(MAX_DATA_BYTES) in found[1]
