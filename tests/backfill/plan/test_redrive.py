"""The pipeline's dead letters, counted by reason, and the request that sends those again that are not repaired."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from app.backfills import open_queries
from backfill.job import select
from backfill.plan.creation import render_specification
from backfill.plan.options import RunOptions
from backfill.plan.planner import Planner
from backfill.plan.redrive import LetterChoice, LetterCounter
from backfill.plan.request import BackfillRequest
from backfill.plan.settings import BackfillSettings
from backfill.run.folder import BackfillFolder
from backfill.run.selection import read_slice
from jobs.folder import Control, Order
from model.settings import read_settings
from sql.violation import QueryRefusedError
from tests.archive import write_letters, write_table
from warehouse.open import open_warehouse

DAY = datetime(2026, 1, 10, tzinfo=UTC)
NAMES = [("_topic", pa.string()), ("_message_id", pa.string())]
STAGED = pa.schema([*NAMES, ("ingest_time", pa.timestamp("us", "UTC"))])
NOBODY: Any = SimpleNamespace(topic_path=lambda topic: f"projects/shop/topics/{topic}")


def fail(lake, message_id, code, hours, *, topic="orders", source="orders", says=None):
    row = {"data": b"x", "message_id": message_id, "publish_time": DAY, "topic": topic, "ordering_key": ""}
    row |= {"source": source, "error_code": code, "error_message": says or f"{code} at {hours}"}
    write_letters(lake, [{**row, "ingest_time": DAY + timedelta(hours=hours)}])


def land(lake, *message_ids, topic="orders"):
    at = DAY + timedelta(hours=50)
    rows = [{"_topic": topic, "_message_id": message_id, "ingest_time": at} for message_id in message_ids]
    write_table(lake, "staging.orders", rows, STAGED)


class Desk:
    """A lake's dead letters as an operator sees them."""

    def __init__(self, folder):
        self.folder = folder
        settings = read_settings({"REFEED_HOME": str(folder)})
        self.settings = BackfillSettings.from_settings(settings, open_warehouse(settings))
        self.lake = Path(self.settings.warehouse.lake)
        self.queries = open_queries(self.settings)
        self.planner = Planner(self.settings, NOBODY, NOBODY, self.queries)
        places = {"orders": ("orders", ["staging.orders"])}
        table = self.settings.dead_letter_table
        self.changed_at = None
        self.asked = []
        self.counter = LetterCounter(
            table, self.planner.answer, self.planner.find_staging, places.get, self.find_changes
        )

    def find_changes(self, sources):
        self.asked.append(sorted(sources))
        return {} if self.changed_at is None else dict.fromkeys(sources, self.changed_at)

    def counts(self):
        return {(one.source, one.topic, one.code): (one.messages, one.repaired) for one in self.counter.count(DAY)}

    def request(self, code, **lists):
        (found,) = [one for one in self.counter.count(DAY) if (one.source, one.code) == ("orders", code)]
        for name, values in lists.items():
            found.request["parameters"][name]["value"] = values
        return found.request

    def selected(self, request, name):
        wanted = BackfillRequest(**request)
        tables = self.counter.staging_of(wanted.query, wanted.parameters)
        source = self.planner.source(wanted, self.planner.validate(wanted, tables=tables), None)
        specification = render_specification("bf_1", wanted, source, self.settings, NOBODY)
        folder = BackfillFolder(self.folder / name)
        folder.path.mkdir()
        folder.write_control(Control(1, Order.RUN))
        selection = select(folder, 1, json.loads(json.dumps(specification)), RunOptions())
        rows = [row for part in selection.slices for row in read_slice(folder.selection, part).to_pylist()]
        assert len(rows) == len({row["message_id"] for row in rows})
        return {row["message_id"] for row in rows}


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path)
    land(desk.lake)
    yield desk
    desk.queries.close()


def test_where_no_pipeline_ever_ran_there_are_none(tmp_path):
    desk = Desk(tmp_path)
    try:
        assert desk.counter.count(DAY) == []
    finally:
        desk.queries.close()


def test_those_since_a_moment_of_a_day_are_those_that_were_written_later_that_day(desk):
    fail(desk.lake, "before", "wrong_type", 13)
    fail(desk.lake, "after", "wrong_type", 15)
    (found,) = desk.counter.count(DAY + timedelta(hours=14))
    assert found.messages == 1
    assert desk.selected(found.request, "since") == {"after"}
    listed = desk.counter.list_messages(LetterChoice("orders", DAY + timedelta(hours=14)), limit=5)
    assert [one["message_id"] for one in listed] == ["after"]


def test_dead_letters_are_counted_by_source_and_their_latest_reason(desk):
    fail(desk.lake, "a", "wrong_type", 1)
    fail(desk.lake, "b", "wrong_type", 1)
    fail(desk.lake, "b", "wrong_type", 2)
    fail(desk.lake, "c", "wrong_type", 1)
    fail(desk.lake, "c", "not_json", 2)
    fail(desk.lake, "a", "wrong_type", 3, source="billing")
    fail(desk.lake, "old", "wrong_type", -30)
    assert desk.counts() == {
        ("orders", "orders", "wrong_type"): (2, 0),
        ("orders", "orders", "not_json"): (1, 0),
        # Nobody knows where this source writes.
        ("billing", "orders", "wrong_type"): (1, None),
    }
    first = desk.counter.count(DAY)[0]
    assert (first.example_message_ids[0], len(first.example_message_ids)) == ("b", first.messages)
    assert (first.example_message_id, first.example_reason) == ("b", "wrong_type at 2")
    assert first.first_ingest_time == datetime(2026, 1, 10, 1, tzinfo=UTC)
    assert first.last_ingest_time == datetime(2026, 1, 10, 2, tzinfo=UTC)


def test_a_message_that_failed_again_has_been_a_dead_letter_since_the_first_time(desk):
    for name in ("a", "b"):
        fail(desk.lake, name, "wrong_type", 1)
        fail(desk.lake, name, "not_json", 5)
    (found,) = desk.counter.count(DAY)
    assert (found.code, found.messages) == ("not_json", 2)
    assert found.first_ingest_time == datetime(2026, 1, 10, 1, tzinfo=UTC)
    assert found.last_ingest_time == datetime(2026, 1, 10, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changed", "code", "unchanged"),
    [
        (1, "wrong_type", True),
        (3, "wrong_type", False),
        (None, "wrong_type", None),
        # It may be permissions that were repaired.
        (1, "publish_refused", None),
    ],
)
def test_messages_that_would_fail_again_are_told_with_how_to_repair_them(desk, changed, code, unchanged):
    fail(desk.lake, "a", code, 2)
    desk.changed_at = None if changed is None else DAY + timedelta(hours=changed)
    (found,) = desk.counter.count(DAY)
    assert found.is_unchanged is unchanged
    assert found.advice.startswith("Neither the registry nor the pipeline has changed") == (unchanged is True)
    assert "refeed " in found.advice
    assert desk.asked == [["orders"]], "asked once, however many sources there are"


def test_what_has_become_a_row_is_repaired_and_not_sent_again_until_that_is_reverted(desk):
    for name in ("a", "b", "c"):
        fail(desk.lake, name, "wrong_type", 1)
    fail(desk.lake, "n", "not_json", 1)
    land(desk.lake, "a")
    # The same id in another topic is another message.
    land(desk.lake, "b", topic="members")
    assert desk.counts()["orders", "orders", "wrong_type"] == (3, 1)
    request = desk.request("wrong_type")
    assert request["topic"] == "orders"
    assert desk.selected(request, "some") == {"b", "c"}
    assert desk.selected(desk.request("wrong_type", codes=[]), "all") == {"b", "c", "n"}
    assert desk.selected(desk.request("wrong_type", message_ids=["c", "a"]), "one") == {"c"}
    DeltaTable(str(desk.lake / "staging" / "orders")).delete("_message_id = 'a'")
    assert desk.counts()["orders", "orders", "wrong_type"] == (3, 0)
    assert desk.selected(request, "reverted") == {"a", "b", "c"}


def test_messages_that_became_dead_letters_since_a_time_have_their_latest_reason(desk):
    fail(desk.lake, "a", "not_json", 2)
    fail(desk.lake, "a", "wrong_type", 1)
    fail(desk.lake, "b", "not_json", 1, topic="members")
    fail(desk.lake, "old", "not_json", -30)
    asked = {("orders", message_id) for message_id in ("a", "b", "old", "landed")}
    assert desk.counter.find_reasons(asked, DAY) == {("orders", "a"): ("not_json", "not_json at 2")}


def test_a_source_without_a_staging_table_yet_has_repaired_none(tmp_path):
    desk = Desk(tmp_path)
    try:
        fail(desk.lake, "a", "wrong_type", 1, topic="orders-next")
        assert desk.counts() == {("orders", "orders-next", "wrong_type"): (1, 0)}
        request = desk.request("wrong_type")
        # To where the source reads, wherever the message was published first.
        assert request["topic"] == "orders"
        land(desk.lake, "a", topic="orders-next")
        assert desk.selected(request, "as_it_was_counted") == {"a"}
        assert desk.selected(desk.request("wrong_type"), "now") == set()
    finally:
        desk.queries.close()


def test_only_the_redrive_of_its_source_reads_staging_tables_that_queries_may_not(desk):
    fail(desk.lake, "a", "wrong_type", 1)
    request = desk.request("wrong_type")
    query, parameters = request["query"], request["parameters"]
    assert desk.counter.staging_of(query, parameters) == ["staging.orders"]
    other = {**parameters, "source": {"type": "STRING", "value": "billing"}}
    for changed, given in ((query.replace("NOT EXISTS", "EXISTS"), parameters), (query, other), (query, {})):
        assert desk.counter.staging_of(changed, given) == ()
        wanted = BackfillRequest(**{**request, "query": changed, "parameters": given})
        with pytest.raises(QueryRefusedError):
            desk.planner.validate(wanted)


def test_one_fault_is_one_group_wherever_in_a_list_it_stands_and_is_sent_again_alone(desk):
    reasons = {
        "a": "lines[1].count: is a list, not a number.",
        "b": "lines[17].count: is the string ': x', not a number.",
        "c": 'stock["a b"]: is null.',
        "d": "The message is a list, not an object.",
        "e": "A value has no cell: too large.",
        "f": "first name: is a number, not a string.",
    }
    for name, says in reasons.items():
        fail(desk.lake, name, "wrong_type", 1, says=says)
    fail(desk.lake, "g", "not_json", 1, says="It is no JSON: lines[1].count: x.")
    found = {(one.code, one.path): one for one in desk.counter.count(DAY)}
    assert {key: one.messages for key, one in found.items()} == {
        ("wrong_type", "lines[].count"): 2,
        ("wrong_type", "stock[]"): 1,
        ("wrong_type", "first name"): 1,
        ("wrong_type", None): 2,
        ("not_json", None): 1,
    }
    assert desk.selected(found["wrong_type", "lines[].count"].request, "path") == {"a", "b"}
    assert desk.selected(found["wrong_type", None].request, "none") == {"d", "e"}
    whole = dict(found["wrong_type", None].request)
    whole["parameters"] = {**whole["parameters"], "paths": {"type": "ARRAY<STRING>", "value": []}}
    assert desk.selected(whole, "whole") == set("abcdef")


def test_messages_are_listed_by_their_latest_reason_to_be_chosen_by_id(desk):
    fail(desk.lake, "a", "not_json", 1)
    fail(desk.lake, "a", "wrong_type", 3, says="n[3]: is null.")
    fail(desk.lake, "b", "wrong_type", 2, says="m: is null.")
    fail(desk.lake, "x", "wrong_type", 4, source="billing")

    def listed(limit=10, **chosen):
        found = desk.counter.list_messages(LetterChoice("orders", DAY, **chosen), limit=limit)
        return [(one["message_id"], one["code"], one["path"]) for one in found]

    assert listed() == [("a", "wrong_type", "n[]"), ("b", "wrong_type", "m")]
    assert listed(code="not_json") == []
    assert listed(path="m") == [("b", "wrong_type", "m")]
    assert listed(limit=1) == [("a", "wrong_type", "n[]")]
    (one,) = desk.counter.list_messages(LetterChoice("orders", DAY, path="m"), limit=9)
    assert (one["reason"], one["at"]) == ("m: is null.", "2026-01-10T02:00:00.000000Z")
