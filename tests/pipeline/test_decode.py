import json
from datetime import UTC, datetime, timedelta

import pytest

from connectors.columns import arrow_schema
from pipeline.decode import Decoder
from pipeline.descriptors import DescriptorSet
from pipeline.mapping import map_message
from pipeline.schema import message_schema
from tests.pipeline.conftest import TAGS, compile_protos, messages


def open_proto2(folder, text: str) -> Decoder:
    (folder / "old.proto").write_text(f'syntax = "proto2";\n{text}')
    message = DescriptorSet([compile_protos(folder, "old.proto")]).message("M")
    columns = arrow_schema(message_schema(message))
    return Decoder(map_message(message), columns, version="v1", topic="orders", token="token")


@pytest.fixture
def open_decoder(describe):
    def make(text: str = "plain.proto", name: str = "Order", **options) -> Decoder:
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
        (b"", "not_json", "not JSON"),
        (b"{", "not_json", "not JSON"),
        (b"\xff{}", "not_json", "not UTF-8"),
        (b"\x08\x01\x12\x03ann", "not_json", "does not read binary protobuf messages"),
        (b"\x08\xff\x01", "not_json", "does not read binary protobuf messages"),
        (b'{"id": NaN}', "not_json", "NaN"),
        (b"[" * 100_000, "not_json", "not JSON"),
        (b'{"id": ' + b"9" * 5_000 + b"}", "not_json", "not JSON"),
        (b"[1]", "wrong_type", "is a list, not an object"),
        (b'{"id": "x"}', "wrong_type", "id: is the string 'x'"),
        (b'{"id": 1.5}', "wrong_type", "id: is a number, not an integer"),
        (b'{"id": true}', "wrong_type", "id: is a boolean"),
        (b'{"id": 9223372036854775808}', "wrong_type", "is not from"),
        (b'{"customerName": 5}', "wrong_type", "customerName: is a number, not a string"),
        (b'{"customerName": "a", "customer_name": "b"}', "wrong_type", "also has this field as"),
        (b'{"customerName": "\\ud800"}', "wrong_type", "surrogates"),
        (b'{"lines": {}}', "wrong_type", "lines: is an object, not a list"),
        (b'{"lines": [{}, {"count": []}]}', "wrong_type", "lines[1].count: is a list"),
        (b'{"stock": {"a": null}}', "wrong_type", 'stock["a"]: is null'),
        (b'{"id": 1, "id": 2}', "not_json", "'id' occurs twice"),
        (b'{"lines": [{"sku": "a", "sku": "b"}]}', "not_json", "'sku' occurs twice"),
        (b'{"new": 1e400}', "not_json", "1e400 is too large"),
        (b'\xef\xbb\xbf{"id": 1}', "not_json", "not JSON"),
        (b'{"at": "yesterday"}', "wrong_type", "at: 'yesterday' is not an RFC 3339"),
        (b'{"at": "2024-02-30T00:00:00Z"}', "wrong_type", "at: day"),
        (b'{"customerName": "' + b"x" * 2_000 + b'"}', "too_large", "At most 1000"),
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


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"9007199254740993.0", 9007199254740993),
        (b"-9007199254740993.00", -9007199254740993),
        (b"9.007199254740993e15", 9007199254740993),
        (b"9223372036854775807.0", 9223372036854775807),
        (b"1e18", 10**18),
    ],
)
def test_an_integer_with_a_fraction_of_zeros_is_that_integer(open_decoder, text, number):
    decoded = open_decoder("texts.proto", "T").decode(
        messages(b'{"n": %b, "d": %b, "new": %b}' % (text, text, text))
    )
    assert not decoded.refused
    (row,) = decoded.rows.to_pylist()
    assert (row["n"], row["d"]) == (number, float(number))
    assert json.loads(row["_unknown"])["new"] == float(number)


@pytest.mark.parametrize("text", [b"9007199254740993.5", b"9223372036854775808.0", b"1e300"])
def test_a_large_number_that_is_no_integer_of_64_bits_is_refused(decoder, text):
    (refusal,) = decoder.decode(messages(b'{"id": %b}' % text)).refused
    assert refusal.code == "wrong_type"


def test_a_source_may_take_numbers_and_booleans_for_texts_as_protobufs_reader_for_java_does(describe):
    message = describe("texts.proto").message("T")
    plans, columns = map_message(message), arrow_schema(message_schema(message))
    found = {"version": "v1", "topic": "orders", "token": "token"}
    exact = Decoder(plans, columns, **found, scalars_as_text=True)
    texts = [b"1", b"1.0", b"1.10", b"1e3", b"-0", b"-0.0", b"true", b"false", b"123456789012345678901234567890"]
    payloads = [
        b'{"a": %b, "many": [%b, "x"], "by_name": {"k": %b}, "wrapped": %b, "deep": {"a": %b}}' % ((text,) * 5)
        for text in texts
    ]
    payloads += [b'{"moment": 17, "d": 1e3, "n": 2.0, "price": 0.10}', b'{"a": {}}', b'{"a": [1]}', b'{"d": "x"}']
    decoded = exact.decode(messages(*payloads))
    rows = decoded.rows.to_pylist()
    for text, row in zip(texts, rows, strict=False):
        own = text.decode()
        cells = (row["a"], row["many"], row["by_name"], row["wrapped"], row["deep"])
        assert cells == (own, [own, "x"], [{"key": "k", "value": own}], own, {"a": own})
    last = rows[-1]
    assert (last["moment"], last["d"], last["n"], str(last["price"])) == (17, 1000.0, 2, "0.100000000")
    assert [refusal.index for refusal in decoded.refused] == [10, 11, 12]
    plain = Decoder(plans, columns, **found).decode(messages(*payloads[: len(texts)]))
    assert len(plain.refused) == len(texts)


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
    row = decoder.decode(messages(b"{}", attributes={"own": "1", **TAGS})).rows.to_pylist()[0]
    assert (row["_topic"], row["_message_id"]) == ("orders-old", "original")
    assert row["_publish_time"] == datetime(2023, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert (row["_backfill_id"], row["_backfill_row"]) == ("bf_1", 7)
    assert row["_ATTRIBUTES"] == [{"key": "own", "value": "1"}]


def test_another_topic_s_token_and_a_producer_s_own_tags_make_no_replay(decoder):
    tags = {"refeed_replay": "other", "refeed_backfill_id": "bf_1", "refeed_message_id": "forged"}
    row = decoder.decode(messages(b"{}", attributes=tags)).rows.to_pylist()[0]
    assert (row["_message_id"], row["_backfill_id"], row["_backfill_row"]) == ("1", None, None)
    assert len(row["_ATTRIBUTES"]) == 3


def test_a_change_is_the_row_of_the_image_that_counts(open_decoder):
    decoder = open_decoder("message M { int64 Id = 1; string Name = 2; }", "M", variant="change_data", keys=["Id"])
    old, new = {"Id": 1, "Name": "old"}, {"Id": 1, "Name": "new"}
    changes = [
        {"NewImage": new, "OldImage": None, "Published": "2024-03-01T12:00:00Z", "EventId": "e1"},
        {"NewImage": new, "OldImage": {"Name": "without a key"}},
        {"NewImage": new, "OldImage": old, "Published": 1709294400},
        {"NewImage": {}, "OldImage": old, "Published": 1709294400000, "Source": "db"},
        {"OldImage": old},
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
    assert [row["_unknown"] for row in rows[3:]] == ['{"Source":"db"}', None]
    assert [(refusal.index, refusal.code) for refusal in decoded.refused] == [(5, "wrong_type"), (6, "wrong_type")]


def decode_published(open_decoder, texts):
    decoder = open_decoder("message M { int64 Id = 1; }", "M", variant="change_data", keys=["Id"])
    return decoder.decode(messages(*[f'{{"NewImage": {{"Id": 1}}, "Published": {t}}}'.encode() for t in texts]))


@pytest.mark.parametrize("quote", ["", '"'])
def test_the_time_of_a_change_is_read_by_its_magnitude(open_decoder, quote):
    numbers = {
        "1767225700": 0,
        "1767225700.25": 250_000,
        "1.7672257e9": 0,
        "1767225700123": 123_000,
        "1767225700123.5": 123_500,
        "1767225700123456": 123_456,
        "1767225700123456.0": 123_456,
        "1767225700123456789": 123_456,
        "1767225700123456789.0": 123_456,
    }
    decoded = decode_published(open_decoder, [f"{quote}{number}{quote}" for number in numbers])
    second = datetime(2026, 1, 1, 0, 1, 40, tzinfo=UTC)
    expected = [second.replace(microsecond=us) for us in numbers.values()]
    assert [row["_stream_time"] for row in decoded.rows.to_pylist()] == expected
    assert decoded.refused == []


@pytest.mark.parametrize("quote", ["", '"'])
def test_times_of_changes_before_1970_are_read_by_their_magnitude_too(open_decoder, quote):
    numbers = ["-1", "-1000000000000", "-1000000000000000", "-1000000000000000001", "0", "-0"]
    decoded = decode_published(open_decoder, [f"{quote}{number}{quote}" for number in numbers])
    epoch, early = datetime(1970, 1, 1, tzinfo=UTC), datetime(1938, 4, 24, 22, 13, 20, tzinfo=UTC)
    found = [row["_stream_time"] for row in decoded.rows.to_pylist()]
    moment = timedelta(microseconds=1)
    assert found == [epoch - timedelta(seconds=1), early, early, early - moment, epoch, epoch]


def test_a_change_at_what_is_no_time_is_a_dead_letter(open_decoder):
    texts = [
        '"soon"', '""', "true", "[]", "{}", "[1767225700]", '" 1767225700"', '"1767225700s"', '"NaN"', "1e300",
    ]  # fmt: skip
    texts += ['"1e400"', "10000000000000000000000", '"0001-01-01T00:00:00+01:00"', '"2026-02-30T00:00:00Z"']
    decoded = decode_published(open_decoder, texts)
    assert [refusal.code for refusal in decoded.refused] == ["wrong_type"] * len(texts)
    assert all(refusal.message.startswith("Published: ") for refusal in decoded.refused)
    assert [row["_stream_time"] for row in decode_published(open_decoder, ["null"]).rows.to_pylist()] == [None]


def test_a_batch_without_a_row_has_the_table_s_columns(decoder):
    decoded = decoder.decode(messages(b"nope"))
    assert decoded.rows.num_rows == 0
    assert decoded.rows.schema.names[:2] == ["id", "customer_name"]
    assert decoder.decode(messages()).rows.num_rows == 0


def test_a_wrong_element_beside_an_enum_s_unknown_name_is_a_dead_letter_and_not_the_stream_s_end(open_decoder):
    decoder = open_decoder("enum E { A = 0; }\nmessage M { repeated E e = 1; }", "M")
    decoded = decoder.decode(messages(b'{"e": ["B", {}]}', b'{"e": ["B", "A", "0"]}'))
    assert [(refusal.code, refusal.message) for refusal in decoded.refused] == [
        ("wrong_type", "e[1]: is an object, not a string.")
    ]
    assert decoded.rows.column("e").to_pylist() == [[0, 0]]
    assert decoded.rows.column("_unknown").to_pylist() == ['{"e[0]":"B"}']


def test_unknown_names_of_an_enum_are_counted_by_field_however_many_messages_have_them(open_decoder):
    decoder = open_decoder("enum E { A = 0; }\nmessage M { E e = 1; repeated E es = 2; }", "M")
    for _ in range(3):
        decoded = decoder.decode(
            messages(*[b'{"e": "B", "es": ["A"]}'] * 90, *[b'{"e": "A", "es": ["C", "D"]}'] * 10)
        )
        assert decoded.unknown["e"] == 90
        assert decoded.unknown["es[]"] == 20


def test_what_is_nested_as_deep_as_a_parser_goes_is_a_row_or_a_dead_letter(decoder):
    payloads = [b'{"new": ' + b"[" * depth + b"]" * depth + b"}" for depth in range(700, 1000)]
    decoded = decoder.decode(messages(*payloads))
    assert len(decoded.indices) + len(decoded.refused) == len(payloads)
    assert {refusal.code for refusal in decoded.refused} <= {"not_json", "wrong_type"}


def test_unknown_parts_whose_paths_look_alike_are_all_kept(decoder):
    body = {"lines": [{"new": 1}], "lines[0].new": 2, "a.b": 3, "": 4, "`": 5}
    (kept,) = decoder.decode(messages(json.dumps(body).encode())).rows.column("_unknown").to_pylist()
    assert json.loads(kept) == {"lines[0].new": 1, "`lines[0].new`": 2, "`a.b`": 3, "``": 4, "`\\``": 5}


def test_unknown_parts_in_a_map_are_counted_once_for_all_of_its_keys(open_decoder):
    decoder = open_decoder("message M { map<string, N> n = 1; }\nmessage N { int64 a = 1; }", "M")
    decoded = decoder.decode(messages(b'{"n": {"x.y": {"new": 1}, "z": {"new": 2}}}'))
    assert json.loads(decoded.rows.column("_unknown").to_pylist()[0]) == {'n["x.y"].new': 1, 'n["z"].new': 2}
    assert decoded.unknown == {"n[].new": 2}


def test_a_name_in_json_is_that_of_the_field_that_declares_it(tmp_path):
    # Only proto2 lets a field declare the name of another.
    decoder = open_proto2(
        tmp_path,
        """message M {
          optional string a = 1 [json_name = "b"];
          optional string b = 2 [json_name = "c"];
          optional string d = 3 [json_name = "a"];
        }""",
    )
    row = decoder.decode(messages(b'{"b": "1", "c": "2", "a": "3"}')).rows.to_pylist()[0]
    assert [row[name] for name in ("a", "b", "d")] == ["1", "2", "3"]


def test_what_is_hidden_is_nowhere_in_the_row_also_where_a_record_has_nothing_else(open_decoder):
    text = """
    message M { int64 id = 1; Card card = 2; repeated Card cards = 3; }
    message Card { string number = 1 [(refeed.hidden) = "true"]; }
    """
    body = {"card": {"number": "4711", "new": 1}, "cards": [{"number": "4712"}, {"newer": 2}]}
    decoded = open_decoder(text, "M").decode(messages(json.dumps(body).encode()))
    assert "471" not in str(decoded.rows.to_pylist())
    assert json.loads(decoded.rows.column("_unknown").to_pylist()[0]) == {"card.new": 1, "cards[1].newer": 2}


def test_null_is_a_value_where_a_field_holds_any_json(open_decoder):
    text = """
    import "google/protobuf/struct.proto";
    message M { google.protobuf.Value v = 1; google.protobuf.Struct s = 2; }
    """
    rows = open_decoder(text, "M").decode(messages(b'{"v": null, "s": null}', b"{}")).rows
    assert rows.column("v").to_pylist() == ["null", None]
    assert rows.column("s").to_pylist() == [None, None]


def test_a_default_that_proto2_declares_is_the_one_that_counts(tmp_path):
    decoder = open_proto2(
        tmp_path,
        """import "refeed/options.proto";
        enum E { A = 1; B = 2; }
        message M {
          optional int32 i = 1 [default = 5, (refeed.use_default_value) = "true"];
          optional string s = 2 [default = "x", (refeed.use_default_value) = "true"];
          optional bytes b = 3 [default = "\\001", (refeed.use_default_value) = "true"];
          optional E e = 4 [default = B, (refeed.use_default_value) = "true"];
          optional E n = 5 [(refeed.type) = "STRING", (refeed.use_default_value) = "true"];
          optional double d = 6 [default = inf, (refeed.use_default_value) = "true"];
          optional int32 none = 7 [default = 5];
          required int32 needed = 8;
          optional group Part = 9 { optional int32 x = 1; }
        }""",
    )
    decoded = decoder.decode(messages(b'{"part": {"x": 1}}'))
    row = decoded.rows.to_pylist()[0]
    found = [row[name] for name in ("i", "s", "b", "e", "n", "d", "none")]
    assert found == [5, "x", b"\x01", 2, "A", float("inf"), None]
    assert row["part"] == {"x": 1}
    assert decoded.missing == {"needed": 1}


def test_numbers_keep_every_digit_that_their_column_holds_and_nothing_else_is_a_number(open_decoder):
    text = """
    message M {
      string n = 1 [(refeed.type) = "NUMERIC"];
      string d = 2 [(refeed.type) = "NUMERIC", (refeed.divide) = "10"];
      string f = 3 [(refeed.type) = "FLOAT64"];
      string j = 4 [(refeed.type) = "JSON"];
    }
    """
    decoder = open_decoder(text, "M")
    long = "12345678901234567890123456789"
    decoded = decoder.decode(
        messages(json.dumps({"n": f"{long}.0000000005", "d": f"{long}"}).encode(), b'{"n": "-1e-9", "f": "-0.0"}')
    )
    assert [str(value) for value in decoded.rows.column("n").to_pylist()] == [f"{long}.000000001", "-1E-9"]
    assert str(decoded.rows.column("d").to_pylist()[0]) == "1234567890123456789012345678.900000000"
    assert str(decoded.rows.column("f").to_pylist()[1]) == "-0.0"
    wrong = [{"n": "1_000"}, {"f": "1_000"}, {"n": "nan"}, {"n": "1e29"}, {"f": "1e400"}, {"j": "[NaN]"}]
    refused = decoder.decode(messages(*[json.dumps(body).encode() for body in wrong])).refused
    assert [refusal.code for refusal in refused] == ["wrong_type"] * len(wrong)


def test_numbers_beyond_every_numeric_are_told_in_words(open_decoder):
    text = """
    message M {
      string n = 1 [(refeed.type) = "NUMERIC"];
      double d = 2 [(refeed.type) = "NUMERIC"];
    }
    """
    decoder = open_decoder(text, "M")
    decoded = decoder.decode(
        messages(
            b'{"n": "1e999999999"}',
            b'{"n": "%s"}' % (b"9" * 500),
            b'{"d": "NaN"}',
            b'{"d": "-Infinity"}',
            b'{"n": "0e999999999"}',
            b'{"n": "-1e-999999999"}',
        )
    )
    assert [refusal.message for refusal in decoded.refused] == [
        "n: 1e999999999 has more than 29 digits before the point.",
        f"n: {'9' * 60} has more than 29 digits before the point.",
        "d: NaN is not a NUMERIC.",
        "d: -Infinity is not a NUMERIC.",
    ]
    assert [float(value) for value in decoded.rows.column("n").to_pylist()] == [0, 0]


def test_a_replay_s_tags_that_no_column_can_hold_change_nothing(decoder):
    for tag, text in (
        ("refeed_row", str(1 << 63)),
        ("refeed_row", "-1"),
        ("refeed_row", "x"),
        ("refeed_publish_time", "never"),
        ("refeed_publish_time", "0001-01-01T00:00:00+01:00"),
    ):
        row = decoder.decode(messages(b"{}", attributes={"refeed_replay": "token", tag: text})).rows.to_pylist()[0]
        assert row["_backfill_row"] is None
        assert row["_publish_time"] == datetime(2024, 3, 1, 12, tzinfo=UTC)


def test_the_id_of_a_change_is_any_json_and_half_a_surrogate_pair_is_a_dead_letter(open_decoder):
    decoder = open_decoder("message M { int64 Id = 1; }", "M", variant="change_data", keys=["Id"])
    bodies = [b'{"NewImage": {"Id": 1}, "EventId": {"n": 1}}', b'{"NewImage": {"Id": 2}, "EventId": "\\ud800"}']
    decoded = decoder.decode(messages(*bodies))
    assert decoded.rows.column("_stream_event_id").to_pylist() == ['{"n":1}']
    assert [(refusal.index, refusal.code) for refusal in decoded.refused] == [(1, "wrong_type")]


def test_a_fault_in_the_decoder_itself_makes_one_dead_letter_and_ends_nothing(describe):
    message = describe("message M { int64 id = 1; }").message("M")

    def fail(source, _prefix, _findings):
        return [1 // source["id"]]

    columns = arrow_schema(message_schema(message))
    decoder = Decoder(map_message(message), columns, version="v1", topic="orders", token="token", record=fail)
    decoded = decoder.decode(messages(b'{"id": 1}', b'{"id": 0}'))
    assert decoded.rows.column("id").to_pylist() == [1]
    assert [(refusal.index, refusal.code) for refusal in decoded.refused] == [(1, "decoder_fault")]
    assert "ZeroDivisionError" in decoded.refused[0].message
