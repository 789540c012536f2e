import json
from datetime import UTC, datetime

import pytest

from connectors.lake.columns import arrow_schema
from pipeline.decode import Decoder
from pipeline.mapping import map_message
from pipeline.schema import message_schema
from tests.pipeline.conftest import messages

MESSAGE = """
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  string customer_name = 2;
  repeated Line lines = 3;
  google.protobuf.Timestamp at = 4;
  map<string, int32> stock = 5;
  oneof way { string by_mail = 6; string by_phone = 7; }
}
message Line { string sku = 1; int32 count = 2; }
"""


@pytest.fixture
def open_decoder(describe):
    def make(text: str = MESSAGE, name: str = "Order", **options) -> Decoder:
        message = describe(text).message(name)
        columns = arrow_schema(message_schema(message, variant=options.get("variant", "plain")))
        return Decoder(map_message(message), columns, version="v1", topic="orders", token="token", **options)

    return make


@pytest.fixture
def decoder(open_decoder):
    return open_decoder()


@pytest.mark.parametrize(
    ("payload", "code", "says"),
    [
        (b"", "not_json", "no JSON"),
        (b"{", "not_json", "no JSON"),
        (b"\xff{}", "not_json", "no UTF-8"),
        (b'{"id": NaN}', "not_json", "NaN"),
        (b"[" * 100_000, "not_json", "no JSON"),
        (b'{"id": ' + b"9" * 5_000 + b"}", "not_json", "no JSON"),
        (b"[1]", "wrong_type", "is a list, not an object"),
        (b'{"id": "x"}', "wrong_type", "id: is the string 'x'"),
        (b'{"id": 1.5}', "wrong_type", "id: is a number, not an integer"),
        (b'{"id": true}', "wrong_type", "id: is a boolean"),
        (b'{"id": 9223372036854775808}', "wrong_type", "is not from"),
        (b'{"customerName": 5}', "wrong_type", "customerName: is a number, not a string"),
        (b'{"customerName": "a", "customer_name": "b"}', "wrong_type", "comes as"),
        (b'{"customerName": "\\ud800"}', "wrong_type", "surrogates"),
        (b'{"lines": {}}', "wrong_type", "lines: is an object, not a list"),
        (b'{"lines": [{}, {"count": []}]}', "wrong_type", "lines[1].count: is a list"),
        (b'{"stock": {"a": null}}', "wrong_type", "stock.a: is null"),
        (b'{"at": "yesterday"}', "wrong_type", "at: 'yesterday' is no RFC 3339"),
        (b'{"at": "2024-02-30T00:00:00Z"}', "wrong_type", "at: day"),
        (b'{"customerName": "' + b"x" * 2_000 + b'"}', "too_large", "more than 1000"),
    ],
)
def test_what_is_no_row_is_refused_with_a_code_and_its_place_and_nothing_else_is(
    open_decoder, payload, code, says
):
    decoded = open_decoder(max_bytes=1000 if code == "too_large" else 10_000_000).decode(
        messages(b'{"id": 1}', payload, b'{"id": 3}')
    )
    (refusal,) = decoded.refused
    assert (refusal.index, refusal.code) == (1, code)
    assert says in refusal.message
    assert decoded.rows.column("id").to_pylist() == [1, 3]
    assert decoded.rows.column("_message_id").to_pylist() == ["1", "3"]
    assert decoded.indices == [0, 2]


def test_unknown_fields_are_kept_by_their_path_and_counted_without_places_in_lists(decoder):
    body = {"id": 1, "lines": [{"sku": "a", "new": 1}, {"new": [2]}], "nested": {"x": None}}
    decoded = decoder.decode(messages(json.dumps(body).encode(), json.dumps(body).encode()))
    (kept, _) = decoded.rows.column("_unknown").to_pylist()
    assert json.loads(kept) == {"lines[0].new": 1, "lines[1].new": [2], "nested": {"x": None}}
    assert decoded.unknown == {"lines[].new": 4, "nested": 2}


def test_a_required_field_that_is_missing_is_counted_and_its_row_is_written(open_decoder):
    text = """
    import "google/api/field_behavior.proto";
    message M { int64 id = 1 [(google.api.field_behavior) = REQUIRED]; repeated N n = 2; }
    message N { string a = 1 [(google.api.field_behavior) = OUTPUT_ONLY, (google.api.field_behavior) = REQUIRED]; }
    """
    decoded = open_decoder(text, "M").decode(messages(b'{"n": [{"a": "x"}, {}]}', b'{"id": 0}'))
    assert decoded.rows.num_rows == 2
    assert decoded.missing == {"id": 1, "n[].a": 1}


def test_a_replay_s_row_says_what_the_original_s_said_and_which_backfill_sent_it(decoder):
    tags = {
        "refeed_replay": "token",
        "refeed_backfill_id": "bf_1",
        "refeed_row": "7",
        "refeed_topic": "orders-old",
        "refeed_message_id": "original",
        "refeed_publish_time": "2023-01-01T00:00:00.000001Z",
    }
    row = decoder.decode(messages(b"{}", attributes={"own": "1", **tags})).rows.to_pylist()[0]
    assert (row["_topic"], row["_message_id"]) == ("orders-old", "original")
    assert row["_publish_time"] == datetime(2023, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert (row["_backfill_id"], row["_backfill_row"]) == ("bf_1", 7)
    assert row["_ATTRIBUTES"] == [{"key": "own", "value": "1"}]


def test_another_topic_s_token_and_a_producer_s_own_tags_make_no_replay(decoder):
    tags = {"refeed_replay": "other", "refeed_backfill_id": "bf_1", "refeed_message_id": "forged"}
    row = decoder.decode(messages(b"{}", attributes=tags)).rows.to_pylist()[0]
    assert (row["_message_id"], row["_backfill_id"], row["_backfill_row"]) == ("1", None, None)
    assert len(row["_ATTRIBUTES"]) == 3


def test_a_damaged_tag_of_a_replay_ends_nothing(decoder):
    tags = {"refeed_replay": "token", "refeed_row": "x", "refeed_publish_time": "never"}
    row = decoder.decode(messages(b"{}", attributes=tags)).rows.to_pylist()[0]
    assert row["_backfill_row"] is None
    assert row["_publish_time"] == datetime(2024, 3, 1, 12, tzinfo=UTC)


def test_a_change_is_the_row_of_the_image_that_counts(open_decoder):
    decoder = open_decoder("message M { int64 Id = 1; string Name = 2; }", "M", variant="change_data", keys=["Id"])
    old, new = {"Id": 1, "Name": "old"}, {"Id": 1, "Name": "new"}
    changes = [
        {"NewImage": new, "OldImage": None, "Published": "2024-03-01T12:00:00Z", "EventId": "e1"},
        {"NewImage": new, "OldImage": {"Name": "without a key"}},
        {"NewImage": new, "OldImage": old, "Published": 1709294400},
        {"NewImage": {}, "OldImage": old, "Published": 1709294400000, "Source": "db"},
        {"OldImage": old, "Published": "soon"},
        {"Published": "2024-03-01T12:00:00Z"},
        {"NewImage": 5},
    ]
    decoded = decoder.decode(messages(*[json.dumps(change).encode() for change in changes]))
    rows = decoded.rows.to_pylist()
    assert [(row["Name"], row["_operation"]) for row in rows] == [
        ("new", "INSERT"),
        ("new", "INSERT"),
        ("new", "MODIFY"),
        ("old", "REMOVE"),
        ("old", "REMOVE"),
    ]
    noon = datetime(2024, 3, 1, 12, tzinfo=UTC)
    assert [row["_stream_time"] for row in rows] == [noon, None, noon, noon, None]
    assert rows[0]["_stream_event_id"] == "e1"
    assert [row["_unknown"] for row in rows[3:]] == ['{"Source":"db"}', '{"Published":"soon"}']
    assert [(refusal.index, refusal.code) for refusal in decoded.refused] == [(5, "wrong_type"), (6, "wrong_type")]


def test_a_batch_without_a_row_has_the_table_s_columns(decoder):
    decoded = decoder.decode(messages(b"nope"))
    assert decoded.rows.num_rows == 0
    assert decoded.rows.schema.names[:2] == ["id", "customer_name"]
    assert decoder.decode(messages()).rows.num_rows == 0
