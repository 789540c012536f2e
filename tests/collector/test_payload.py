import contextlib
import gzip
import json
import time
import zlib
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector import payload
from collector.payload import MAX_BATCH_EVENTS, check_json, gunzip, split_array, split_lines
from model.errors import BodyTooLargeError, RequestInvalidError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def code_of(data: bytes) -> str:
    with pytest.raises(RequestInvalidError) as caught:
        check_json(data)
    return caught.value.details["errors"][0]["code"]


@settings(max_examples=100, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_whatever_python_writes_is_strict_json(value, ascii_only, indent):
    check_json(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:\\u01adef \n', max_size=60).map(str.encode))
def test_any_bytes_are_taken_or_refused_with_a_reason(data):
    try:
        check_json(data)
    except RequestInvalidError:
        return
    json.loads(data.decode())


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=6), st.sampled_from([None, 2]))
def test_an_array_falls_into_the_bytes_of_its_elements(values, indent):
    items = list(split_array(json.dumps(values, indent=indent, ensure_ascii=False).encode()))
    assert [json.loads(item.data) for item in items] == values
    assert [item.fault for item in items] == [None] * len(values)


@pytest.mark.parametrize("data", [b"[1", b"[1,]", b"[,1]", b"[1 2]", b"[1]]", b"[1],", b"[", b'["\xff"]', b"[]x"])
def test_a_broken_array_gives_nothing(data):
    with pytest.raises(RequestInvalidError):
        split_array(data)


def test_a_fault_names_line_and_column():
    with pytest.raises(RequestInvalidError) as caught:
        check_json(b'{"a": 1,\n "b" 2}')
    error = caught.value.details["errors"][0]
    assert (error["line"], error["column"]) == (2, 6)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 5_000_000,
        b'{"a":' * 1_000_000,
        b'"' + b'\\"' * 3_000_000,
        b"[" * 101 + b'"' + b'\\"' * 2_000_000,
        b"9" * 5_000_000,
        b"[" + b"1e999999999," * 300_000 + b"1]",
    ],
    ids=["arrays", "objects", "quotes", "quotes after brackets", "digits", "exponents"],
)
def test_what_is_huge_or_deep_is_judged_in_a_moment(data):
    began = time.process_time()
    with contextlib.suppress(RequestInvalidError):
        check_json(data)
    assert time.process_time() - began < 3


def test_an_array_of_millions_is_read_no_further_than_its_bound(monkeypatch):
    parse = Mock(wraps=payload._parse)
    monkeypatch.setattr(payload, "_parse", parse)
    with pytest.raises(BodyTooLargeError, match="at most 10000 events"):
        split_array(b"[" + b"1," * 1_000_000 + b"1]")
    assert parse.call_count == MAX_BATCH_EVENTS


def test_lines_end_at_the_bound_of_a_batch():
    lines = split_lines(b"1\n\n" * (MAX_BATCH_EVENTS + 1), check_json)
    assert len([next(lines) for _ in range(MAX_BATCH_EVENTS)]) == MAX_BATCH_EVENTS
    with pytest.raises(BodyTooLargeError, match="at most 10000 events"):
        next(lines)


def test_a_body_of_empty_lines_ends_at_a_bound():
    spaced = b"1\r\n\r\n" * MAX_BATCH_EVENTS
    assert sum(1 for _ in split_lines(spaced, check_json)) == MAX_BATCH_EVENTS
    began = time.process_time()
    with pytest.raises(BodyTooLargeError, match="at most 40000 lines"):
        list(split_lines(b"\n" * 10_000_000, check_json))
    assert time.process_time() - began < 0.2


def test_levels_end_at_a_hundred():
    check_json(b"[" * 100 + b"]" * 100)
    check_json(b'["' + b"[" * 500 + b'"]')
    assert code_of(b"[" * 101 + b"]" * 101) == "json_too_deep"


def test_a_gzip_bomb_is_unpacked_no_further_than_the_bound():
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join(packer.compress(bytes(1_000_000)) for _ in range(100)) + packer.flush()
    began = time.process_time()
    with pytest.raises(BodyTooLargeError):
        gunzip(bomb, 10_000)
    assert time.process_time() - began < 0.05


@pytest.mark.parametrize(
    "data",
    # Named, because a member holds the second at which it was packed, and each worker collects at another one.
    [
        pytest.param(b"{}", id="plain"),
        pytest.param(gzip.compress(b"{}")[:-3], id="cut"),
        pytest.param(gzip.compress(b"{}") + b"x", id="with a byte after it"),
        pytest.param(zlib.compress(b"{}"), id="zlib"),
    ],
)
def test_what_is_no_gzip_is_refused(data):
    with pytest.raises(RequestInvalidError) as caught:
        gunzip(data, 100)
    assert caught.value.details["errors"][0]["code"] == "gzip_invalid"


def test_a_million_empty_members_cost_nothing():
    began = time.process_time()
    with pytest.raises(RequestInvalidError):
        gunzip(gzip.compress(b"") * 500_000, 100)
    assert time.process_time() - began < 3
