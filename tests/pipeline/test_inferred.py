import gzip
import itertools
import json
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from connectors.lake.rows import LakeRowTable
from connectors.pubsub.client import PubSub
from local.server import PubSubServer
from model.errors import EvolutionRefusedError, StorageFullError
from streams.commit_worker import CommitWorker
from streams.status import StatusFile
from tests.pipeline.inferred_stream import SOURCES, BigQueryStream, Stream

WEBHOOKS = Path(__file__).parents[3] / "shared" / "data" / "github_webhooks.ndjson.gz"


@pytest.fixture
def stream(tmp_path):
    with PubSubServer(tmp_path / "pubsub") as server, PubSub("shop", server.emulator_host) as pubsub:
        yield Stream(tmp_path, pubsub)


@pytest.fixture(params=["lake", "bigquery"])
def either(request, tmp_path):
    """A stream in each warehouse: the same messages have to become the same rows."""
    with PubSubServer(tmp_path / "pubsub") as server, PubSub("shop", server.emulator_host) as pubsub:
        if request.param == "lake":
            yield Stream(tmp_path, pubsub)
            return
        found = BigQueryStream(tmp_path, pubsub, request.getfixturevalue("shared_standin"))
        with closing(found):
            yield found


def test_a_new_type_of_event_gets_its_table_and_its_messages_are_rows_of_the_next_batch(stream):
    stream.send("order.paid", {"id": 1, "customer": {"name": "Ann"}, "tags": ["a"], "price": 1.5, "none": None})
    stream.send("member", {"id": "x"})
    stream.drain(batches=2)
    assert stream.types("staging.hooks_order_paid") == {
        "id": "INT64",
        "customer": "RECORD",
        "tags": "STRING[]",
        "price": "FLOAT64",
    }
    (row,) = stream.rows("staging.hooks_order_paid")
    assert (row["customer"], row["tags"], json.loads(row["_unknown"])) == ({"name": "Ann"}, ["a"], {"none": None})
    assert stream.types("staging.hooks_member") == {"id": "STRING"}


def test_tables_stay_partitioned_by_the_day_when_new_ones_are_to_be_by_the_hour(stream):
    stream.send("paid", {"id": 1})
    stream.drain(batches=2)
    stream.warehouse = replace(stream.warehouse, partitioning="hour")
    stream.start()
    stream.send("paid", {"id": 2}, {"id": 3, "tags": ["a"]})
    stream.send("member", {"id": "x"})
    stream.drain(batches=2)
    assert sorted(row["id"] for row in stream.rows("staging.hooks_paid")) == [1, 2, 3]
    assert [row["id"] for row in stream.rows("staging.hooks_member")] == ["x"]
    partitions = [DeltaTable(stream.open(f"staging.hooks_{name}").uri).metadata() for name in ("paid", "member")]
    assert [found.partition_columns for found in partitions] == [["ingest_date"], ["ingest_hour"]]


RENAMED = (
    b"sources:\n"
    b"  calls: {topic: hooks, schema: inferred, event_type_attribute: event, staging: staging.hooks}\n"
    b"  hooks: {topic: others, schema: inferred, event_type_attribute: event, staging: staging.others}\n"
)


def test_a_source_that_was_renamed_goes_on_with_its_types_and_its_known_ids(either):
    either.send("push", {"n": 1})
    again = dict(either.backlog.waiting)
    either.drain(batches=2)
    either.send("push", {"n": 0.5})
    again |= either.backlog.waiting
    either.drain(batches=2)
    before = either.types("staging.hooks_push")
    assert before == {"n": "FLOAT64"}
    # Another source has got the old name meanwhile.
    either.registry.publish({"sources.yaml": RENAMED})
    either.mapping = {"hooks": "calls"}
    for _ in range(2):
        either.start()
        plan = either.plan_file.read()
        kinds = {found.source.name: [(kind.name, kind.number) for kind in found.types] for found in plan.sources}
        assert kinds["calls"] == [("push", 2)]
    either.backlog.waiting |= again
    either.drain(batches=1)
    either.send("push", {"n": 2})
    # At the first try: it fits what is known.
    either.drain(batches=1)
    assert either.types("staging.hooks_push") == before
    assert sorted(row["n"] for row in either.rows("staging.hooks_push")) == [0.5, 1.0, 2.0]
    assert StatusFile.read(either.folder / "status.json")["alerts"] == []
    # What it learns from now on it learns under its new name, with no mapping needed any more.
    either.send("push", {"n": 3, "more": "x"})
    either.drain(batches=2)
    either.mapping = {}
    either.plan_file.path.unlink()
    either.start()
    either.send("push", {"n": 4, "more": "y"})
    either.drain(batches=1)
    assert len(either.rows("staging.hooks_push")) == 5


def test_a_batch_that_teaches_something_has_changed_the_plan_before_spark_plans_the_next(stream):
    stream.send("push", {"id": 1})
    with CommitWorker(stream.committer) as worker:
        worker.take_batch(stream.results(), 0)
        plan = stream.plan_file.read()
    assert [kind.name for source in plan.sources for kind in source.types] == ["push"]


def test_a_type_that_a_full_disk_kept_out_of_the_plan_is_in_it_as_soon_as_there_is_room(stream):
    in_the_way = stream.folder / "plan.tmp"
    in_the_way.mkdir()
    stream.send("push", {"id": 1})
    with pytest.raises(StorageFullError):
        stream.batch()
    in_the_way.rmdir()
    stream.drain(batches=2)
    assert [row["id"] for row in stream.rows("staging.hooks_push")] == [1]


def test_a_later_run_with_more_fields_and_other_types_widens_and_keeps_every_message(either):
    either.send("a", *[{"id": 1, "n": 5, "many": [1], "one": True, "deep": {"x": 1}} for _ in range(3)])
    either.drain(batches=2)
    either.start()
    either.send("a", {"id": 2, "n": 0.5, "many": 7, "one": "yes", "deep": {"x": {"y": 1}, "z": 1}, "new": "field"})
    either.send("a", {"id": 1 << 60, "n": 1 << 60})
    either.drain(batches=2)
    assert either.types("staging.hooks_a") == {
        "id": "INT64",
        "n": "STRING",
        "many": "JSON",
        "one": "STRING",
        "deep": "RECORD",
        "new": "STRING",
    }
    rows = either.rows("staging.hooks_a")
    assert Counter(row["n"] for row in rows) == {"5": 3, "0.5": 1, str(1 << 60): 1}
    assert sorted(str(value(row["many"])) for row in rows) == ["7", "None", "[1]", "[1]", "[1]"]
    assert {row["one"] for row in rows} == {"true", "yes", None}
    assert sorted(str(value(row["deep"]["x"])) for row in rows if row["deep"]) == ["1"] * 3 + ["{'y': 1}"]


def test_a_field_within_records_becomes_wider_again_and_again_and_keeps_every_message(either):
    """Each time the rows that are there and those that come are one column, as deep as the field lies."""
    bodies = [
        {"r": {"a": 1, "b": [1, 2], "c": {"x": True}}, "s": [{"k": 1}, {"k": 2}]},
        {"r": {"a": 0.5, "b": ["x"], "c": {"x": 7}}, "s": [{"k": "y"}]},
        {"r": {"a": "z", "b": 5, "c": {"x": {"y": 1}}}, "s": [{"k": [1]}, {"new": 1}]},
        {"r": {"a": {"q": 1}, "d": 1}, "s": {"k": 1}},
        {"r": [], "s": 3},
        {"r": "text"},
    ]
    for number, body in enumerate(bodies):
        either.send("a", {"id": number, **body})
        either.drain(batches=2)
        if number == 2:
            either.start()
    rows = {row["id"]: row for row in either.rows("staging.hooks_a")}
    found = [{name: value(row[name]) for name in ("r", "s")} for _, row in sorted(rows.items())]
    assert [without_nulls(row) for row in found] == [
        {"r": {"a": 1, "b": [1, 2], "c": {"x": True}}, "s": [{"k": 1}, {"k": 2}]},
        {"r": {"a": 0.5, "b": ["x"], "c": {"x": 7}}, "s": [{"k": "y"}]},
        {"r": {"a": "z", "b": 5, "c": {"x": {"y": 1}}}, "s": [{"k": [1]}, {"new": 1}]},
        {"r": {"a": {"q": 1}, "d": 1}, "s": {"k": 1}},
        {"s": 3},
        {"r": "text"},
    ]


def value(text):
    return text and json.loads(text)


def without_nulls(found):
    """Return a value without the nulls that BigQuery's objects have where the lake's have nothing."""
    if isinstance(found, list):
        return [without_nulls(element) for element in found]
    if not isinstance(found, dict):
        return found
    return {name: without_nulls(cell) for name, cell in found.items() if cell is not None}


@pytest.mark.parametrize(("last", "text"), [("x", "x"), ({"y": 2.0}, '{"y":2}')])
def test_a_number_has_one_text_in_whatever_order_messages_came(stream, last, text):
    orders = list(itertools.permutations([1, 0.5, last]))
    for place in range(3):
        for number, order in enumerate(orders):
            stream.send(f"t{number}", {"n": order[place]})
        stream.drain(batches=2)
    for number in range(len(orders)):
        assert {row["n"] for row in stream.rows(f"staging.hooks_t{number}")} == {"1", "0.5", text}


# Kinds of value of one field, of which two are texts together and all are JSON; "7" is the text of a number.
KINDS = ((7, "x", {"y": "7"}), (0.5, True, [1, "b"]))


def test_the_order_of_the_kinds_of_a_field_s_values_does_not_matter(either):
    """Each order is a field, so that a message has the next value of every order."""
    orders = [order for kinds in KINDS for order in itertools.permutations(kinds)]
    for place in range(3):
        either.send("a", {"id": place, **{f"f{number}": order[place] for number, order in enumerate(orders)}})
        either.drain(batches=2)
    types = either.types("staging.hooks_a")
    rows = sorted(either.rows("staging.hooks_a"), key=lambda row: row["id"])
    found = {
        (repr(kind), json.dumps(without_nulls(value(row[f"f{number}"]))))
        for number, order in enumerate(orders)
        for kind, row in zip(order, rows, strict=True)
    }
    assert {types[f"f{number}"] for number in range(len(orders))} == {"JSON"}
    sent = itertools.chain(*KINDS)
    assert found == {(repr(kind), json.dumps(kind).replace('"7"', "7")) for kind in sent}


def test_a_message_without_an_array_has_none_when_the_column_becomes_wider(either):
    first = {"id": 1, "tags": ["a"], "deep": {"tags": ["a"], "x": 1}}
    either.send("a", first, {"id": 2, "tags": None, "deep": {"x": 2}})
    either.drain(batches=2)
    either.send("a", {"id": 3, "tags": "text", "deep": "text"})
    either.drain(batches=2)
    rows = {
        row["id"]: (value(row["tags"]), without_nulls(value(row["deep"])))
        for row in either.rows("staging.hooks_a")
    }
    assert rows == {1: (["a"], {"tags": ["a"], "x": 1}), 2: (None, {"x": 2}), 3: ("text", "text")}


def test_a_name_that_is_empty_is_its_own_when_its_record_becomes_wider(either):
    bodies = [{"": 1, "_": 2, '"': 3, '""': 4}, {"": 5}]
    either.send("a", *[{"id": 1, "deep": body} for body in bodies])
    either.drain(batches=2)
    assert either.types("staging.hooks_a")["deep"] == "RECORD"
    either.send("a", {"id": 2, "deep": "text"})
    either.drain(batches=2)
    found = [without_nulls(value(row["deep"])) for row in either.rows("staging.hooks_a")]
    assert sorted(found, key=str) == sorted([*bodies, "text"], key=str)


def test_names_that_no_column_can_have_get_one_and_keep_their_own_beside(stream):
    stream.send("a", {"+1": 1, "-1": 2, "_topic": 3, "url": "a", "URL": "b", "": 4, "ingest_time": "x"})
    stream.drain(batches=2)
    assert {f.description or f.name: f.name for f in stream.open("staging.hooks_a").schema().fields[:7]} == {
        "+1": "x_1",
        "-1": "x_1_2",
        "_topic": "x_topic",
        "url": "url",
        "URL": "URL_2",
        '""': "x",
        "ingest_time": "ingest_time_2",
    }


def test_what_is_no_object_is_a_dead_letter_and_keeps_nothing_else_from_its_table(stream):
    stream.send("a", b"nope", [1], {"id": 1})
    stream.drain(batches=2)
    assert len(stream.rows("backup.dead_letters")) == 2
    assert len(stream.rows("staging.hooks_a")) == 1


def test_a_crash_after_the_repository_and_before_the_table_is_mended_at_the_next_start(stream, monkeypatch):
    stream.send("a", {"id": 1})
    stream.drain(batches=2)
    stream.send("a", {"id": "text"})

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LakeRowTable, "widen", crash)
        with pytest.raises(KeyboardInterrupt):
            stream.batch()
    assert stream.types("staging.hooks_a") == {"id": "INT64"}
    stream.start()
    assert stream.types("staging.hooks_a") == {"id": "STRING"}
    stream.drain(batches=1)
    assert sorted(row["id"] for row in stream.rows("staging.hooks_a")) == ["1", "text"]


def test_a_type_whose_table_can_t_be_widened_yet_goes_on_as_it_was_and_is_noted_once(stream, monkeypatch):
    stream.send("a", {"id": 1})
    stream.drain(batches=2)

    def refuse(*_):
        raise EvolutionRefusedError("Rows are in the write buffer.")

    with monkeypatch.context() as patched:
        patched.setattr(LakeRowTable, "widen", refuse)
        stream.send("a", {"id": "text"})
        stream.batch()
        noted = len(stream.rows("backup.schemas"))
        for number in range(2, 5):
            stream.group.follow(stream.committer)
            stream.send("a", {"id": number})
            stream.batch()
            assert len(stream.backlog.waiting) == 1, "the one that does not fit"
        assert len(stream.rows("backup.schemas")) == noted
        stream.start()
        stream.send("a", {"id": 5})
        stream.batch()
        assert sorted(row["id"] for row in stream.rows("staging.hooks_a")) == [1, 2, 3, 4, 5]
    stream.drain(batches=2)
    assert sorted(row["id"] for row in stream.rows("staging.hooks_a")) == ["1", "2", "3", "4", "5", "text"]
    assert len(stream.rows("backup.schemas")) == noted


def test_a_table_that_somebody_else_made_is_an_alert_and_its_messages_wait(stream):
    stream.open("staging.hooks_a").evolve(stream.open("backup.dead_letters").schema())
    stream.send("a", {"id": 1})
    stream.send("b", {"id": 1})
    stream.batch()
    stream.batch()
    assert len(stream.backlog.waiting) == 1
    assert len(stream.rows("staging.hooks_b")) == 1
    status = StatusFile.read(stream.folder / "status.json")
    assert [alert["code"] for alert in status["alerts"]] == ["evolution_refused"]


@pytest.mark.skipif(not WEBHOOKS.exists(), reason="the webhook payloads are not beside the project")
def test_real_webhooks_of_fifty_types_are_all_rows_of_typed_tables(stream):
    by_event = defaultdict(list)
    for line in gzip.decompress(WEBHOOKS.read_bytes()).splitlines():
        message = json.loads(line)
        by_event[message["attributes"]["event"]].append(message["data"])
        stream.send(message["attributes"]["event"], message["data"])
    assert (stream.sent, len(by_event)) == (216, 50)
    stream.drain(batches=2)
    found = {event: stream.rows(f"staging.hooks_{event}") for event in by_event}
    assert {event: len(rows) for event, rows in found.items()} == {e: len(b) for e, b in by_event.items()}
    assert len({row["_message_id"] for rows in found.values() for row in rows}) == 216
    assert stream.types("staging.hooks_push")["commits"] == "RECORD[]"
    assert stream.types("staging.hooks_issues")["issue"] == "RECORD"
    assert (
        sum(kind == "JSON" for event in by_event for kind in stream.types(f"staging.hooks_{event}").values()) < 5
    )
    stream.send("push", *[{**body, "added_field": {"at": 1}} for body in by_event["push"]])
    stream.drain(batches=2)
    rows = stream.rows("staging.hooks_push")
    assert Counter(row["added_field"] is None for row in rows) == {True: len(rows) // 2, False: len(rows) // 2}
    assert stream.backlog.given_back == 216 + len(by_event["push"])


def test_the_smallest_integer_has_a_place(stream):
    stream.send("a", {"id": -(1 << 63)}, {"id": (1 << 63) - 1}, {"id": 1})
    stream.drain(batches=2)
    assert {row["id"] for row in stream.rows("staging.hooks_a")} == {-(1 << 63), (1 << 63) - 1, 1}


def test_what_can_be_no_name_of_a_column_is_kept_beside_the_row_or_is_a_dead_letter(stream):
    long = "k" * 301
    stream.send("a", {"id": 1, long: 1, "deep": {long: [1], "_PARTITIONTIME": 1, "_Change_Type": 2}})
    stream.send("a", b'{"id": 2, "\\ud800": 1}', b'{"id": 3, "deep": ' + b'{"x":' * 985 + b"1" + b"}" * 986)
    stream.drain(batches=3)
    rows = stream.rows("staging.hooks_a")
    letters = stream.rows("backup.dead_letters")
    assert len(rows) + len(letters) == 3
    (row,) = [row for row in rows if row["id"] == 1]
    assert json.loads(row["_unknown"]) == {long: 1, f"deep.{long}": [1]}
    assert {name: row["deep"][name] for name in ("x_PARTITIONTIME", "x_Change_Type")} == {
        "x_PARTITIONTIME": 1,
        "x_Change_Type": 2,
    }
    assert [letter["error_code"] for letter in letters if b"ud800" in letter["data"]] == ["wrong_type"]


def test_a_producer_that_uses_ids_as_names_of_fields_fills_one_table_and_loses_nothing(stream, monkeypatch):
    monkeypatch.setattr("pipeline.shapes.MAX_COLUMNS", 20)
    stream.send("a", {"id": 1, "deep": {"x": 1}})
    stream.drain(batches=2)
    for batch in range(3):
        stream.send("a", *[{"id": 1, f"key_{batch}_{n}": n, "deep": {f"y{batch}_{n}": n}} for n in range(9)])
        stream.drain(batches=2)
    # What is there becomes wider still.
    stream.send("a", {"id": "text", "more": {"z": 1}})
    stream.drain(batches=2)
    assert len(stream.types("staging.hooks_a")) <= 20
    assert stream.types("staging.hooks_a")["id"] == "STRING"
    rows = stream.rows("staging.hooks_a")
    assert len(rows) == 29
    kept = [json.loads(row["_unknown"]) for row in rows if row["_unknown"]]
    assert {"key_2_8": 8, "deep.y2_8": 8} in kept
    assert {"more": {"z": 1}} in kept
    assert [alert["code"] for alert in StatusFile.read(stream.folder / "status.json")["alerts"]] == ["schema_full"]
    stream.start()
    stream.send("a", {"id": "text", "yet another": 1})
    stream.drain(batches=1)


def test_a_producer_that_uses_ids_as_types_of_events_makes_no_more_tables_than_a_source_may_have(
    stream, monkeypatch
):
    monkeypatch.setattr("pipeline.inferred.MAX_TYPES", 3)
    monkeypatch.setattr("pipeline.group.MAX_TYPES", 3)
    for number in range(5):
        stream.send(f"type-{number}", {"id": number})
    stream.drain(batches=2)
    assert len(list((stream.folder / "lake" / "staging").iterdir())) == 3
    letters = stream.rows("backup.dead_letters")
    assert [letter["error_code"] for letter in letters] == ["too_many_types"] * 2
    status = StatusFile.read(stream.folder / "status.json")
    assert [(alert["about"], alert["code"]) for alert in status["alerts"]] == [("hooks schemas", "schema_full")]


def test_types_of_two_sources_get_tables_of_their_own(stream):
    stream.registry.publish({"sources.yaml": SOURCES + b"  hooks_a: {topic: other, schema: inferred}\n"})
    stream.start()
    stream.send("a", {"id": 1})
    stream.drain(batches=2)
    assert stream.rows("staging.hooks_a_2")[0]["id"] == 1
    assert not stream.open("staging.hooks_a").exists()
