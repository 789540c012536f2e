"""The repository of schemas: each variation of an inferred type of event, noted once."""

import json

import pytest

from connectors.lake.row_tables import LakeRowTables
from connectors.pubsub.client import PubSub
from local.server import PubSubServer
from model.errors import WarehouseError
from tests.pipeline.inferred_stream import Stream


@pytest.fixture
def stream(tmp_path):
    with PubSubServer(tmp_path / "pubsub") as server, PubSub("shop", server.emulator_host) as pubsub:
        yield Stream(tmp_path, pubsub)


def test_the_repository_has_every_variation_with_its_version_and_schema(stream):
    stream.send("a", {"id": 1})
    stream.drain(batches=2)
    stream.send("a", {"id": 1, "b": 2}, {"id": 1.5})
    stream.drain(batches=2)
    stream.send("a", {"id": 3})
    stream.drain(batches=1)
    rows = sorted(stream.rows("backup.schemas"), key=lambda row: (row["version"], row["attributes"]))
    found = [(row["event_type"], row["version"], json.loads(row["attributes"])) for row in rows]
    # Two variations that came in one batch made the table wider once.
    assert found == [("a", 1, ["id INT"]), ("a", 2, ["b INT", "id INT"]), ("a", 2, ["id FLOAT"])]
    assert len({row["hash"] for row in rows}) == 3
    assert [column["name"] for column in json.loads(rows[-1]["schema"])["fields"]][:2] == ["id", "b"]


def test_a_variation_that_fits_is_noted_once_with_the_first_message_of_it(stream):
    stream.send("a", {"id": 1, "b": {"x": [1]}, "c": 1 << 60})
    stream.drain(batches=2)
    shapes = len(stream.rows("backup.schemas"))
    assert shapes == 1
    for _ in range(2):
        stream.send("a", {"id": 2}, {"id": 3}, {"id": 4, "b": {"x": [2, 3]}}, {"id": 5, "b": {"x": []}}, {"c": 5})
        stream.drain(batches=1)
        stream.start()
    rows = sorted(stream.rows("backup.schemas"), key=lambda row: row["attributes"])
    assert [(row["version"], json.loads(row["attributes"]), json.loads(row["prototype"])) for row in rows] == [
        (1, ["b RECORD", "b.x[] INT", "c BIGINT", "id INT"], {"id": 1, "b": {"x": [1]}, "c": 1 << 60}),
        (1, ["b RECORD", "b.x[] INT", "id INT"], {"id": 4, "b": {"x": [2, 3]}}),
        (1, ["c INT"], {"c": 5}),
        (1, ["id INT"], {"id": 2}),
    ]
    # What a table looks like is there once a version.
    assert [row["shape"] is None for row in rows] == [False, True, True, True]
    assert stream.types("staging.hooks_a") == {"id": "INT64", "b": "RECORD", "c": "INT64"}
    assert len(stream.rows("staging.hooks_a")) == 11


def test_a_type_with_a_variation_a_message_is_noted_no_more_than_a_thousand_times(stream, monkeypatch):
    monkeypatch.setattr("pipeline.inferred.MAX_VARIATIONS", 3)
    monkeypatch.setattr("pipeline.repository.MAX_VARIATIONS", 3)
    stream.send("a", {f"k{number}": 1 for number in range(6)})
    stream.drain(batches=2)
    for number in range(6):
        stream.send("a", {f"k{number}": number})
        stream.drain(batches=1)
    assert len(stream.rows("backup.schemas")) == 3
    stream.send("a", {"k1": "wider"})
    stream.drain(batches=2)
    assert len(stream.rows("backup.schemas")) == 4
    assert len(stream.rows("staging.hooks_a")) == 8


def test_a_variation_that_can_not_be_noted_keeps_no_message_and_is_noted_later(stream, monkeypatch):
    stream.send("a", {"id": 1, "b": 2})
    stream.drain(batches=2)

    def fail(*_):
        raise WarehouseError("The disk is full.")

    stream.send("a", {"id": 2})
    with monkeypatch.context() as patched:
        patched.setattr(LakeRowTables, "append", fail)
        stream.drain(batches=1)
    assert len(stream.rows("backup.schemas")) == 1
    stream.send("a", {"b": 2})
    stream.drain(batches=1)
    assert len(stream.rows("backup.schemas")) == 3


@pytest.mark.parametrize(
    "body",
    [
        b'{"id": "\\ud800"}',
        b'{"id": 1, "n": 99999999999999999999999}',
        b'{"id": ' + b"[" * 200 + b"]" * 200 + b"}",
    ],
)
def test_a_message_that_no_json_column_holds_is_no_prototype(stream, body):
    stream.send("a", body)
    stream.drain(batches=3)
    rows = stream.rows("backup.schemas")
    assert [row["prototype"] for row in rows] == [None] * len(rows)
    assert len(stream.rows("staging.hooks_a")) + len(stream.rows("backup.dead_letters")) == 1
