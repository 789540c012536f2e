import contextlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.filters import MAX_FILTER_BYTES, FilterError, parse_filter


def accepts(text: str, **attributes: str) -> bool:
    return parse_filter(text).matches(attributes)


@pytest.mark.parametrize(
    ("text", "attributes", "expected"),
    [
        ("", {}, True),
        ("  ", {"a": "1"}, True),
        ('attributes.a = "1"', {"a": "1"}, True),
        ('attributes.a="1"', {"a": "2"}, False),
        ('attributes.a = "1"', {}, False),
        ("attributes:a", {"a": ""}, True),
        ("attributes:a", {"b": "1"}, False),
        ('attributes.a != "1"', {"a": "2"}, True),
        ('attributes.a != "1"', {"a": "1"}, False),
        ('attributes.a != "1"', {}, True),
        ('attributes:a AND attributes.a != "1"', {}, False),
        ('NOT attributes.a = "1"', {}, True),
        ('hasPrefix(attributes.a, "se")', {"a": "sek"}, True),
        ('hasPrefix(attributes.a, "se")', {"a": "use"}, False),
        ('hasPrefix(attributes.a, "")', {}, False),
        ("NOT attributes:a", {}, True),
        ("-attributes:a", {"a": "1"}, False),
        ("NOT NOT attributes:a", {"a": "1"}, True),
        ("attributes:a AND attributes:b AND attributes:c", {"a": "", "b": "", "c": ""}, True),
        ("attributes:a AND attributes:b", {"a": ""}, False),
        ("attributes:a OR attributes:b", {"b": ""}, True),
        ("attributes:a AND (attributes:b OR attributes:c)", {"a": "", "c": ""}, True),
        ("NOT (attributes:a OR attributes:b)", {"b": ""}, False),
        ("NOT attributes:a AND attributes:b", {"b": ""}, True),
        ('attributes."iana.org/language_tag" = "en"', {"iana.org/language_tag": "en"}, True),
        ('attributes:"AND"', {"AND": "x"}, True),
        ("attributes:content-type", {"content-type": "x"}, True),
        ("attributes.a = 'single'", {"a": "single"}, True),
        (r'attributes.a = "q\"b\\s\n\t"', {"a": 'q"b\\s\n\t'}, True),
        (r'attributes.a = "\x41\u00e5\U0001F600\101"', {"a": "Aå😀A"}, True),
    ],
)
def test_a_filter_says_yes_to_the_right_messages(text: str, attributes: dict[str, str], expected: bool) -> None:
    assert parse_filter(text).matches(attributes) is expected


@pytest.mark.parametrize(
    "text",
    [
        *("attributes:a AND attributes:b OR attributes:c", "attributes:a OR attributes:b AND attributes:c"),
        *("attributes.a = 1", "attributes.a", "attributes", "attributes:", "attributes:a attributes:b"),
        *("attributes:a AND", "(attributes:a", "attributes:a)", "AND", "NOT", "attributes:NOT"),
        *('attributes.a > "1"', 'attributes.a = "open', 'data = "x"', 'hasPrefix(attributes:a, "x")'),
        *('hasPrefix(attributes.a "x")', 'hassuffix(attributes.a, "x")', r'attributes.a = "\q"'),
        *(r'attributes.a = "\ud800"', r'attributes.a = "\U00110000"', "attributes:a and attributes:b"),
        "attributes:a §",
    ],
)
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text)
    assert str(caught.value).startswith("Invalid filter expression")


def test_a_filter_has_at_most_256_bytes() -> None:
    longest = 'attributes.a = "' + "x" * (MAX_FILTER_BYTES - 17) + '"'
    assert len(longest) == MAX_FILTER_BYTES
    parse_filter(longest)
    with pytest.raises(FilterError, match="256 bytes"):
        parse_filter(longest + " ")


def test_the_deepest_nesting_that_fits_is_parsed() -> None:
    text = "(" * 122 + "attributes:a" + ")" * 122
    assert accepts(text, a="1")
    assert accepts("-" * 244 + "attributes:a", a="1")


keys = st.text(st.sampled_from(string.ascii_letters + "å .-"), min_size=1, max_size=4)
values = st.text(max_size=3)


def quote(text: str) -> str:
    return '"' + "".join(f"\\U{ord(c):08x}" if c in '"\\' or not c.isprintable() else c for c in text) + '"'


@st.composite
def expressions(draw: st.DrawFn, depth: int = 2) -> tuple[str, object]:
    """A filter's text, and the same as a Python function."""
    kind = draw(
        st.sampled_from(
            ["has", "eq", "ne", "prefix", "not", "and", "or"] if depth else ["has", "eq", "ne", "prefix"]
        )
    )
    if kind in {"has", "eq", "ne", "prefix"}:
        key, value = draw(keys), draw(values)
        return {
            "has": (f"attributes:{quote(key)}", lambda a: key in a),
            "eq": (f"attributes.{quote(key)}={quote(value)}", lambda a: a.get(key) == value),
            "ne": (f"attributes.{quote(key)} != {quote(value)}", lambda a: a.get(key) != value),
            "prefix": (
                f"hasPrefix(attributes.{quote(key)}, {quote(value)})",
                lambda a: a.get(key, "\0!").startswith(value) and key in a,
            ),
        }[kind]
    if kind == "not":
        text, inner = draw(expressions(depth=depth - 1))
        return f"{draw(st.sampled_from(['NOT ', '-']))}({text})", lambda a: not inner(a)
    parts = draw(st.lists(expressions(depth=depth - 1), min_size=2, max_size=3))
    join = all if kind == "and" else any
    return f" {kind.upper()} ".join(f"({t})" for t, _ in parts), lambda a: join(f(a) for _, f in parts)


@given(expressions(), st.dictionaries(keys, values, max_size=4))
def test_any_filter_means_what_its_parts_mean(expression: tuple[str, object], attributes: dict[str, str]) -> None:
    text, expected = expression
    if len(text.encode()) > MAX_FILTER_BYTES:
        with pytest.raises(FilterError):
            parse_filter(text)
        return
    parsed = parse_filter(text)
    assert parsed.matches(attributes) == expected(attributes)
    named = {key.decode() for key in parsed.keys}
    if not named & attributes.keys():
        assert parsed.matches(attributes) == parsed.matches_without_keys


@given(st.text(max_size=40))
def test_no_text_makes_the_parser_fail_in_another_way(text: str) -> None:
    with contextlib.suppress(FilterError):
        assert parse_filter(text).text == text
