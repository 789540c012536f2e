"""Requests with a topic and a range: the query that is written of one, through the gate, and run on a lake."""

import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import TypeAdapter, ValidationError

from backfill.plan.create import BackfillCreate
from model.errors import RequestInvalidError
from model.window import Window
from sql.lexer import SourceText, read_tokens
from sql.range_query import write_range_query
from sql.validate import Policy, QueryRefusedError, validate_query
from tests.archive import entries, write_archived
from tests.worlds.selecting import select_rows

START, END = datetime(2026, 1, 10, 2, tzinfo=UTC), datetime(2026, 1, 10, 3, tzinfo=UTC)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)
HOUR = {"source_topic": "orders", "from": "2026-01-10T02:00:00Z", "to": "2026-01-10T03:00:00Z"}
# Everything that ends a string, a comment or a line for some reader of SQL.
EVIL = "it's \"a\" \\ `b` \n\r\t -- # /* */ ; @x ${y} {{ z }} \x01 é \u2028 🦆 \\' ''' \"\"\" $1 %s \\x27"


@dataclass(frozen=True)
class Message:
    """An archived message; ``attributes`` None is a NULL."""

    id: str
    topic: str = "orders"
    published: datetime = START
    later: timedelta = timedelta(seconds=2)
    attributes: dict[str, str | None] | None = field(default_factory=dict)


MESSAGES = [
    Message("a microsecond early", published=START - TICK),
    Message("at the start"),
    Message("a microsecond after", published=START + TICK),
    Message("at the last microsecond", published=END - TICK),
    Message("at the end", published=END),
    Message("of another topic", "order"),
    Message("of a topic in capitals", "Orders"),
    Message("archived before midnight", later=-timedelta(hours=2, minutes=1)),
    Message("archived two days later", later=timedelta(days=2)),
    Message("archived as late as can be", published=END - TICK, later=timedelta(days=31)),
    Message("eu", attributes={"region": "eu", "n": "1"}),
    Message("eu of another hour", published=END, attributes={"region": "eu"}),
    Message("us", attributes={"region": "us", "n": "1"}),
    Message("a key of another case", attributes={"Region": "eu"}),
    Message("a value that is NULL", attributes={"region": None}),
    Message("attributes that are NULL", attributes=None),
    Message("evil", EVIL, attributes={EVIL: EVIL}),
    Message("nearly evil", EVIL, attributes={EVIL: EVIL.replace("\\", "")}),
    Message("of an evil topic alone", EVIL),
    Message("evil of another topic", attributes={EVIL: EVIL}),
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    lake = tmp_path_factory.mktemp("lake")
    rows = [
        {
            "data": each.id.encode(),
            "attributes": None if each.attributes is None else entries(each.attributes),
            "message_id": each.id,
            "publish_time": each.published,
            "topic": each.topic,
            "ordering_key": f"key of {each.id}",
            "ingest_time": each.published + each.later,
        }
        for each in MESSAGES
    ]
    write_archived(lake, rows)
    return lake


@pytest.fixture
def selected(lake, tmp_path):
    def run(**asked):
        wanted = TypeAdapter(BackfillCreate).validate_json(json.dumps({**HOUR, **asked}))
        return select_rows(wanted, {"REFEED_LAKE": str(lake)}, tmp_path / "home", NOW)

    return run


def expected(keep, topic="orders"):
    """Return the ids of the messages of the hour that are to be replayed, as plain Python finds them."""
    return sorted(
        each.id for each in MESSAGES if each.topic == topic and START <= each.published < END and keep(each)
    )


def ids(rows):
    return sorted(row["message_id"] for row in rows)


def attributes_of(message):
    return message.attributes or {}


def test_a_range_is_replayed_to_the_microsecond_however_late_its_messages_were_archived(selected):
    rows = selected()
    assert ids(rows) == expected(lambda each: True)
    assert {"at the start", "at the last microsecond", "archived as late as can be"} <= set(ids(rows))
    for row in rows:
        each = next(each for each in MESSAGES if each.id == row["message_id"])
        assert (row["data"], row["topic"], row["publish_time"]) == (each.id.encode(), "orders", each.published)
        assert row["ordering_key"] == f"key of {each.id}"


def test_a_range_of_two_microseconds_has_the_messages_of_both(selected):
    rows = selected(**{"from": "2026-01-10T02:00:00Z", "to": "2026-01-10T02:00:00.000002Z"})
    ends = START + 2 * TICK
    assert ids(rows) == expected(lambda each: each.published < ends)
    assert "a microsecond after" in ids(rows)


@pytest.mark.parametrize("wanted", [{"region": "eu"}, {"region": "eu", "n": "1"}, {"region": "us", "n": "2"}])
def test_only_messages_with_all_attributes_are_replayed_and_a_null_is_none(selected, wanted):
    rows = selected(source_attributes=wanted)
    assert ids(rows) == expected(lambda each: wanted.items() <= attributes_of(each).items())


def test_topics_and_attributes_are_texts_whatever_they_contain(selected):
    rows = selected(source_topic=EVIL, topic="orders", source_attributes={EVIL: EVIL})
    assert ids(rows) == ["evil"]


def test_a_condition_with_or_narrows_the_range_and_nothing_else(selected):
    rows = selected(where="message_id = 'us' OR message_id = 'at the end' OR topic = 'order' -- )")
    assert ids(rows) == ["us"]


def test_a_condition_may_use_parameters_and_read_the_archive_within_bounds_of_its_own(selected):
    rows = selected(
        where="message_id IN (\n"
        "  SELECT message_id FROM backup.messages WHERE _PARTITIONDATE = @day AND topic = @topic)",
        parameters={
            "day": {"type": "DATE", "value": "2026-01-12"},
            "topic": {"type": "STRING", "value": "orders"},
        },
    )
    assert ids(rows) == ["archived two days later"]


BREAKS = [
    *("TRUE) OR (TRUE", "TRUE) OR (_PARTITIONDATE = '2026-01-10'"),
    *("TRUE) OR (_PARTITIONDATE = '2026-01-10' AND TRUE", "[1) OR (1]", "TRUE)", "(TRUE"),
    "TRUE)) UNION ALL (SELECT * FROM backup.messages WHERE (_PARTITIONDATE = '2026-01-10'",
    *("TRUE; DROP TABLE backup.messages", "TRUE;", "TRUE /*", "'", "TRUE '''", "`", "-- nothing", "/**/", "  "),
    *("TRUE) LIMIT 5 -- ", "TRUE) -- \n OR (TRUE", "\ud800", "TRUE \x00"),
]
WRONG = [
    *("TRUE LIMIT 5", "TRUE */", "1", "TRUE, FALSE", "TRUE ORDER BY topic", "nothing = 1"),
    *("SESSION_USER() = 'a'", "message_id IN (SELECT message_id FROM ops.secrets)"),
    *("EXISTS (SELECT 1 FROM backup.messages)", "a.key = 'region'", "AND TRUE", "TRUE UNION ALL SELECT 1"),
    *("TRUE |> WHERE TRUE", "topic = 'orders' AND"),
]


@pytest.mark.parametrize("where", [*BREAKS, *WRONG])
def test_a_condition_can_not_leave_its_brackets_and_passes_the_gate_like_any_query(where):
    wanted = BackfillCreate(source_topic="orders", from_=HOUR["from"], to=HOUR["to"], where=where)
    policy = Policy("backup.messages", None, NOW)
    with pytest.raises((RequestInvalidError, QueryRefusedError)) as refused:
        validate_query(wanted.write("backup.messages", NOW).query, {}, policy)
    # The first are refused before they are put into a query: of some of them the gate would take the whole.
    assert isinstance(refused.value, RequestInvalidError) == (where in BREAKS)
    fault = refused.value
    if isinstance(fault, QueryRefusedError):
        fault = wanted.explain(wanted.write("backup.messages", NOW).query, fault)
    assert isinstance(fault, RequestInvalidError)
    assert {each["pointer"] for each in fault.details["errors"]} == {"/where"}
    assert "In where, line " in fault.message


def test_a_fault_of_a_condition_has_its_line_and_column_there():
    wanted = BackfillCreate(source_topic="orders", from_=HOUR["from"], to=HOUR["to"], where="TRUE\n  AND nix = 1")
    query = wanted.write("backup.messages", NOW).query
    with pytest.raises(QueryRefusedError) as refused:
        validate_query(query, {}, Policy("backup.messages", None, NOW))
    assert "In where, line 2, column 7: " in wanted.explain(query, refused.value).message


def test_the_gate_sees_the_range_and_reads_no_partition_that_can_have_none_of_it():
    query = write_range_query("backup.messages", "orders", START, END)
    found = validate_query(query, {}, Policy("backup.messages", None, NOW))
    column, times = found.replayed_times
    assert (column, times.start, times.end) == ("publish_time", START, END)
    assert found.window == Window(datetime(2026, 1, 9, tzinfo=UTC), datetime(2026, 2, 11, tzinfo=UTC))
    assert found.missing_columns == ()
    assert not found.rewrites_data


@pytest.mark.parametrize("table", ["shop-1.backup.messages", "shop.select.messages"])
def test_a_table_of_any_name_is_read(table):
    query = write_range_query(table, "orders", START, END)
    assert validate_query(query, {}, Policy(table, None, NOW)).tables == (table,)


@pytest.mark.parametrize(
    ("asked", "pointers"),
    [
        ({}, ["/query", "/topic"]),
        ({"topic": "orders"}, ["/query"]),
        ({"query": "SELECT 1"}, ["/topic"]),
        ({"query": "SELECT 1", "topic": "a", "from": "2h"}, ["/from"]),
        (
            {"query": "SELECT 1", "topic": "a", **HOUR, "where": "TRUE"},
            ["/source_topic", "/from", "/to", "/where"],
        ),
        ({"query": "SELECT 1", "topic": "a", "source_attributes": {"a": "b"}}, ["/source_attributes"]),
        ({"source_topic": "orders"}, ["/from", "/to"]),
        ({"from": "2h", "to": "1h"}, ["/source_topic"]),
        ({"where": "TRUE"}, ["/source_topic", "/from", "/to"]),
        ({**HOUR, "to": HOUR["from"]}, ["/to"]),
        ({**HOUR, "from": "2026-01-11", "to": "2026-01-10"}, ["/to"]),
        ({**HOUR, "to": "2026-03-01T12:02:01Z"}, ["/to"]),
        ({**HOUR, "from": "2026-03-02", "to": "2026-03-03"}, ["/from", "/to"]),
        ({**HOUR, "from": "soon", "to": "2026-13-01"}, ["/from", "/to"]),
        ({**HOUR, "from": "1999-12-31"}, ["/from"]),
        ({**HOUR, "from": "0001-01-01T00:00:00+10:00"}, ["/from"]),
    ],
)
def test_a_request_has_a_query_or_a_range_and_every_fault_has_its_place(asked, pointers):
    wanted = TypeAdapter(BackfillCreate).validate_json(json.dumps(asked))
    with pytest.raises(RequestInvalidError) as refused:
        wanted.write("backup.messages", NOW)
    assert [each["pointer"] for each in refused.value.details["errors"]] == pointers


def test_a_query_passes_as_it_is_with_every_other_field():
    after = {"subscription": "live", "max_oldest_unacked_seconds": 1.0}
    document = {"query": "SELECT 1", "topic": "orders", "max_rows": 3, "yield_to": after, "ordering": "by_key"}
    found = TypeAdapter(BackfillCreate).validate_json(json.dumps(document)).write("backup.messages", NOW)
    assert {name: value for name, value in found.to_json().items() if value} == document


def test_a_range_goes_back_to_its_topic_unless_another_is_named():
    wanted = TypeAdapter(BackfillCreate)
    assert wanted.validate_json(json.dumps(HOUR)).write("backup.messages", NOW).topic == "orders"
    asked = {**HOUR, "topic": "trial", "attributes": {"a": "b"}, "max_rows": 5}
    found = wanted.validate_json(json.dumps(asked)).write("backup.messages", NOW)
    assert (found.topic, found.attributes, found.max_rows) == ("trial", {"a": "b"}, 5)


def test_times_are_those_of_the_terminal_and_the_name_in_python_is_no_field():
    wanted = TypeAdapter(BackfillCreate)
    asked = {**HOUR, "from": "yesterday", "to": "02:00"}
    assert wanted.validate_json(json.dumps(asked)).write("backup.messages", NOW).query == write_range_query(
        "backup.messages", "orders", datetime(2026, 2, 28, tzinfo=UTC), datetime(2026, 3, 1, 2, tzinfo=UTC)
    )
    with pytest.raises(ValidationError):
        wanted.validate_json(json.dumps({"from_": "2h"}))


def test_random_texts_come_back_from_the_gate_s_lexer_as_they_went_in():
    for number in range(200):
        text = (
            random.Random(number).randbytes(24).decode("utf-16-le", errors="ignore") + EVIL[number % len(EVIL) :]
        )
        query = write_range_query("backup.messages", text, START, END, attributes={text: text})
        tokens, faults = read_tokens(SourceText(query))
        assert faults == []
        assert [each.fault for each in tokens if each.fault] == []
        assert sum(each.kind == "string" and each.value == text for each in tokens) == 3
