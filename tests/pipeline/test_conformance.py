"""protobuf's own JSON conformance suite as the judge of the decoder.

``conformance.jsonl`` has the suite's cases with JSON as their input, one a line: name, input, and the right end,
which is ``"refused"``, the cells that differ from those of ``{}``, or a list where several are right. They are the
cases for proto3 of binary_json_conformance_suite.cc. A case that ends otherwise here is in a table of
docs/pipeline.md, with the reason.

https://github.com/protocolbuffers/protobuf/tree/e712d276bcead35cad45e305463f5e542246351e/conformance
"""

import base64
import json
import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from connectors.columns import arrow_schema
from pipeline.decode import DecodedBatch, Decoder
from pipeline.mapping import map_message
from pipeline.schema import message_schema
from pipeline.values import numeric_text
from tests.pipeline.conftest import messages

CASES = [json.loads(line) for line in Path(__file__).with_name("conformance.jsonl").read_text().splitlines()]
PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
# A table's row: names of cases in code, what they are here, and why.
ROW = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| (refused|read) \| .+ \|$", re.MULTILINE)


def shown(cell: Any, type_name: str = "") -> Any:
    """Return a cell as the cases have it."""
    if isinstance(cell, list):
        return [shown(value, type_name) for value in cell]
    if isinstance(cell, dict):
        return {name: shown(value) for name, value in cell.items()}
    if isinstance(cell, datetime):
        whole, _, fraction = cell.astimezone(UTC).isoformat().removesuffix("+00:00").partition(".")
        return f"{whole}.{fraction.rstrip('0')}Z" if fraction else f"{whole}Z"
    if isinstance(cell, float) and not math.isfinite(cell):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(cell)]
    if type_name == "JSON" and cell is not None:
        return json.dumps(json.loads(cell), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    kinds = {bytes: lambda: base64.b64encode(cell).decode(), Decimal: lambda: numeric_text(cell)}
    return kinds.get(type(cell), lambda: cell)()


def ends_of(decoded: DecodedBatch, types: dict[str, str], count: int) -> list[Any]:
    """Return "refused", or the cells that differ from those of the first message, for each message after it."""
    rows = dict(zip(decoded.indices, decoded.rows.to_pylist(), strict=True))
    own = {name for name in types if name in decoded.rows.schema.names}
    ends: list[Any] = []
    for place in range(1, count):
        row = rows.get(place)
        ends.append(
            "refused"
            if row is None
            else {name: shown(row[name], types[name]) for name in own if row[name] != rows[0][name]}
        )
    return ends


def ordered(end: Any) -> Any:
    """Return an end with the pairs of its maps in one order."""
    if isinstance(end, list) and end and isinstance(end[0], dict):
        return sorted((ordered(entry) for entry in end), key=repr)
    return {name: ordered(cell) for name, cell in sorted(end.items())} if isinstance(end, dict) else end


def test_the_suite_s_cases_end_as_they_have_to_or_as_the_page_says(describe: Any) -> None:
    message = describe("conformance.proto").message("Conformance")
    plans, schema = map_message(message), message_schema(message)
    decoder = Decoder(plans, arrow_schema(schema), version="v", topic="orders", token="t")
    own = {plan.column for plan in plans}
    types = {field.name: field.type for field in schema.fields if field.name in own}
    decoded = decoder.decode(messages(b"{}", *[text.encode() for _, text, _ in CASES]))
    deviating = {}
    for (name, _, verdict), end in zip(CASES, ends_of(decoded, types, len(CASES) + 1), strict=True):
        allowed = verdict if isinstance(verdict, list) else [verdict]
        if ordered(end) not in [ordered(right) for right in allowed]:
            deviating[name.removesuffix(".Validator")] = "refused" if end == "refused" else "read"
    told = {name: here for names, here in ROW.findall(PAGE) for name in re.findall(r"\w+", names)}
    assert deviating == told
    assert len(CASES) > 340


@pytest.fixture
def decode(describe: Any) -> Any:
    message = describe("oneofs.proto").message("Order")
    columns = arrow_schema(message_schema(message))
    decoder = Decoder(map_message(message), columns, version="v", topic="orders", token="t")
    return lambda *texts: decoder.decode(messages(*[text.encode() for text in texts]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '{"by_mail": "a", "phone": 1}',
            ("by_mail: the message also has by_phone, another member of the oneof way"),
        ),
        (
            '{"by_phone": 0, "byMail": ""}',
            ("by_mail: the message also has by_phone, another member of the oneof way"),
        ),
        (
            '{"byHand": {}, "by_mail": "a"}',
            ("by_mail: the message also has by_hand, another member of the oneof way"),
        ),
        ('{"part": {"a": "x", "b": "y"}}', "part.a: the message also has b, another member of the oneof way"),
        # Null is a value of these two.
        ('{"any": null, "none": null}', "any: the message also has none, another member of the oneof holding"),
        ('{"by_number": {"1": "a", "01": "b"}}', "by_number: a map contains a key twice"),
        ('{"by_number": {"100": "a", "1e2": "b"}}', "by_number: a map contains a key twice"),
        ('{"nothing": 1}', "nothing: is a number, not an object"),
        ('{"single": 3.5e38}', "single: 3.5e+38 is too large for its field"),
        ('{"id": "1.5"}', "id: is the string '1.5', not an integer"),
        ('{"id": "1e19"}', "id: 1e19 is not from"),
        ('{"id": "-1e999999999999999999999"}', "id: is the string"),
        ('{"at": "2024-01-01T00:00:00+24:00"}', "at: '+24:00' is not an offset from UTC"),
        ('{"at": "2024-01-01T00:00:00-00:60"}', "at: '-00:60' is not an offset from UTC"),
        ('{"at_text": "2024-01-01 00:00:00+24"}', "at_text: '+24' is not an offset from UTC"),
        ('{"at_text": "2024-01-01 00:00:00+01:60"}', "at_text: '+01:60' is not an offset from UTC"),
        # Digits of another script.
        (r'{"at": "\u0662024-01-01T00:00:00Z"}', "is not an RFC 3339 time"),
        (r'{"at_text": "\u0662024-01-01 00:00:00"}', "is not a valid time"),
    ],
)
def test_what_protobuf_does_not_read_is_a_dead_letter_that_says_so(decode: Any, text: str, says: str) -> None:
    (refused,) = decode(text).refused
    assert (refused.code, says in refused.message) == ("wrong_type", True), refused.message


def test_a_member_of_a_oneof_that_is_null_is_none(decode: Any) -> None:
    found = decode(
        '{"by_mail": null, "phone": 1, "byHand": null}',
        '{"any": 1, "part": null}',
        '{"none": null}',
        '{"alone": "a"}',
    )
    assert found.refused == []
    rows = found.rows.select(["by_mail", "by_phone", "any", "none", "alone"]).to_pylist()
    assert [list(row.values()) for row in rows] == [
        [None, 1, None, None, None],
        [None, None, "1", None, None],
        [None, None, None, 0, None],
        [None, None, None, None, "a"],
    ]


def test_a_message_without_fields_is_known_and_what_comes_in_it_is_not(decode: Any) -> None:
    found = decode(
        '{"nothing": {}, "nothings": [{}, {}], "seen": {"a": {}}, "byHand": {}, "hollow": {"inner": {}}}',
        '{"nothing": {"a": 1}, "nothings": [{}, {"b": 2}], "seen": {"a": {"c": 3}},'
        ' "hollow": {"inner": {"d": 4}}}',
    )
    assert found.refused == []
    assert [None if text is None else json.loads(text) for text in found.rows.column("_unknown").to_pylist()] == [
        None,
        {"nothing.a": 1, "nothings[1].b": 2, 'seen["a"].c': 3, "hollow.inner.d": 4},
    ]
    assert found.rows.column("seen").to_pylist() == [[{"key": "a"}]] * 2
    assert not {"nothing", "nothings", "by_hand", "hollow"} & set(found.rows.schema.names)


def test_a_map_s_keys_and_an_integer_s_text_are_numbers(decode: Any) -> None:
    found = decode('{"id": "1e5", "by_number": {"-1": "a", "1": "b"}, "by_flag": {"true": "a", "false": "b"}}')
    (row,) = found.rows.select(["id", "by_number"]).to_pylist()
    assert row == {"id": 100_000, "by_number": [{"key": -1, "value": "a"}, {"key": 1, "value": "b"}]}
