import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from cli.lines import read_messages
from model.errors import InputError
from model.message import Message


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_line_is_a_message(tmp_path: Path) -> None:
    file = write(
        tmp_path / "m.ndjson",
        {"topic": "orders", "attributes": {"a": "ü", "empty": ""}, "data": {"b": [1, 2.5, None, "ö"]}},
        "",
        {"topic": "blobs", "data_base64": "AP8=", "ordering_key": "k"},
        {"topic": "empty", "attributes": {"a": "b"}},
        {"topic": "texts", "data": '{"b": 1}'},
    )
    assert list(read_messages(file)) == [
        ("orders", Message('{"b":[1,2.5,null,"ö"]}'.encode(), {"a": "ü", "empty": ""})),
        ("blobs", Message(b"\x00\xff", {}, ordering_key="k")),
        ("empty", Message(b"", {"a": "b"})),
        ("texts", Message(b'{"b": 1}')),
    ]


def test_the_given_topic_wins_over_the_lines(tmp_path: Path) -> None:
    file = write(tmp_path / "m", {"topic": "orders", "data": 1}, {"data": 2})
    assert [topic for topic, _ in read_messages(file, topic="all")] == ["all", "all"]


def test_gzip_is_found_by_its_bytes_not_its_name(tmp_path: Path) -> None:
    file = tmp_path / "m.ndjson"
    file.write_bytes(gzip.compress(b'{"topic":"orders","data":"x"}\n'))
    assert list(read_messages(file)) == [("orders", Message(b"x"))]


@pytest.mark.parametrize(
    "content",
    # By name: gzip writes the time into its bytes, and two processes that collect would find different tests.
    [b'{"topic":"orders","data":1}', gzip.compress(b'{"topic":"orders","data":1}')],
    ids=["plain", "gzip"],
)
def test_a_dash_is_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(content)))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert list(read_messages(Path("-"))) == [("orders", Message(b"1"))]


def test_half_of_a_surrogate_pair_stays_the_json_it_was(tmp_path: Path) -> None:
    file = write(tmp_path / "m", r'{"topic":"orders","data":["\ud800"]}')
    assert list(read_messages(file)) == [("orders", Message(rb'["\ud800"]'))]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"topic": "orders", "data": NaN}', "not JSON"),
        ("[1]", "not a JSON object"),
        ({"data": 1}, "no topic"),
        ({"topic": "goog.x", "data": 1}, "is not a valid topic id"),
        ({"topic": "orders"}, "data or an attribute"),
        ({"topic": "orders", "data_base64": ""}, "data or an attribute"),
        ({"topic": "orders", "data": ""}, "data or an attribute"),
        (r'{"topic": "orders", "data": "\ud800"}', "half of a surrogate pair"),
        ({"topic": "orders", "payload": 1}, "unknown fields payload"),
        ({"topic": "orders", "data": 1, "data_base64": "AA=="}, "not both"),
        ({"topic": "orders", "data_base64": "A"}, "not valid base64"),
        ({"topic": "orders", "data_base64": 7}, "not valid base64"),
        ({"topic": "orders", "data": 1, "attributes": {"n": 1}}, "strings as values"),
        ({"topic": "orders", "data": 1, "attributes": ["a"]}, "strings as values"),
        ({"topic": "orders", "data": 1, "ordering_key": 3}, "ordering_key"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: object, what: str) -> None:
    file = write(tmp_path / "m", {"topic": "orders", "data": 1}, line)
    messages = read_messages(file)
    assert next(messages)[0] == "orders"
    with pytest.raises(InputError, match="line 2") as raised:
        next(messages)
    assert what in raised.value.message


def test_a_file_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be opened"):
        list(read_messages(tmp_path / "none"))


def test_a_gzip_that_breaks_off_is_an_input_error(tmp_path: Path) -> None:
    file = tmp_path / "m.gz"
    file.write_bytes(gzip.compress(b'{"topic":"orders","data":1}\n' * 1000)[:-20])
    with pytest.raises(InputError, match="completely"):
        list(read_messages(file))
