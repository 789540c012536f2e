"""JSON messages of some fields, and others with odd values, names, blanks, orders and bytes."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Texts of any value: what readers of JSON, and columns, are known to differ about.
ODD = (
    *("null", "true", "false", "0", "-0", "1", "-1", "1.0", "-0.0", "1e2", "1E-2", "1.5", "0.1", "1e22", "5e-324"),
    *("9007199254740991", "9007199254740992", "9007199254740993", "-9007199254740993", "9007199254740993.0"),
    *("2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("-9223372036854775809", "18446744073709551615", "18446744073709551616", "123456789012345678901234567890"),
    *("9" * 400, "9" * 5000, "1e400", "-1e400", "3.5e38", "1.7976931348623157e308", "0.1234567890123456789"),
    *("2.2250738585072011e-308", "NaN", "Infinity", "-Infinity", "01", "+1", "1.", ".5", "-", "0x1F", "1e", "tru"),
    *('""', '"x"', '"5"', '"-5"', '"007"', '"1e2"', '"1.50"', '" 5"', '"NaN"', '"true"', '"RED"', '"Nope"'),
    '"-0"',
    *('"9223372036854775808"', '"2024-03-01T12:00:00Z"', '"2024-03-01T12:00:00.123456789+02:00"', '"1.5s"'),
    *('"2024-02-30T00:00:00Z"', '"2024-03-01 12:00"', '"AAE="', '"AAE"', '"_-8"', '"A"', '"é😀"', '"\\u00e9\\/"'),
    *('"\\ud800"', '"\\udc00"', '"\\ud800\\u0041"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\u0000"', '"\\x"', '"\t"'),
    *('":a"', '"a\\":1"', '"a\\" :1"', '"a :)"', '"a\\\\"', '"{\\"id\\":1,\\"id\\":2}"', '"\x7f\u2028"'),
    *('"', "'x'"),
    *("[]", "{}", "[null]", "[[]]", "[{}]", "[1,2]", '["a","b"]', "[1,2.5]", '[1,"a"]', "[true]", '[":a"]'),
    "[1,]",
    *('{"a":1}', '{"x":1,"x":2}', '{"x":null}', '[{"x":1},{"x":1.5}]', '{"":1}', '{"a" :1}', "{,}", '{"a":}'),
    *("[" * 100 + "]" * 100, "[" * 100_000, '{"a":' * 40 + "1" + "}" * 40),
)
WHOLE = (
    *(b"", b"null", b"1", b"[]", b"{}", b" {}\n", b"{}{}", b"{} x", b"{}\x00", b"\xef\xbb\xbf{}", b"\xff"),
    *(b"{", b"}"),
    *(b'"x"', b"{" * 100_000, b"[" * 100_000, "{}".encode("utf-16"), b"[{}]", b'{"\xed\xa0\x80":1}', b"\x0b{}"),
)
_BLANKS = ("", "", " ", "\n", "  ", "\t", "\r\n", "\x0b", "\u00a0")

Fields = Mapping[str, Any]


def messages_of(dice: random.Random, fields: Fields, count: int, *, odd: float) -> list[bytes]:
    """Return ``count`` messages of ``fields``, a share ``odd`` of which may be anything.

    A field has the texts of its values, or the fields of its objects, which are a list's within a list.
    """
    return [
        _odd_one(dice, fields) if dice.random() < odd else _object(dice, fields).encode() for _ in range(count)
    ]


def each_odd(fields: Fields) -> Iterator[list[bytes]]:
    """Yield for each odd text the messages that have it at one place, and are fine elsewhere.

    A field's other values are of one kind, so that no odd value but this one changes how its column is made.
    """
    shapes = list(_with_place(fields))
    for text in ODD:
        yield [shape.replace(_PLACE, text).encode("utf-8", "surrogatepass") for shape in shapes]


_PLACE = "@"


def _with_place(kind: Any) -> Iterator[str]:
    yield _PLACE
    if isinstance(kind, list):
        yield from (f"[{text}]" for text in _with_place(kind[0]))
    elif isinstance(kind, Mapping):
        for name, one in kind.items():
            for text in _with_place(one):
                pairs = {key: _fine(other) for key, other in kind.items()} | {name: text}
                yield "{" + ",".join(f'"{key}":{value}' for key, value in pairs.items()) + "}"


def _fine(kind: Any) -> str:
    """Return the first text of each value."""
    if isinstance(kind, list):
        return f"[{_fine(kind[0])}]"
    if isinstance(kind, Mapping):
        return "{" + ",".join(f'"{name}":{_fine(one)}' for name, one in kind.items()) + "}"
    return kind[0]


def _odd_one(dice: random.Random, fields: Fields) -> bytes:
    if dice.random() < 0.1:
        return dice.choice(WHOLE)
    text = _object(dice, fields, odd=dice.choice((0, 0.03, 0.03, 0.1, 0.4)), blank=dice.choice(_BLANKS))
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(dice.choice((0, 0, 0, 1, 1, 2))):
        at, begin = (dice.randrange(len(data) + 1) for _ in range(2))
        data[at : at + dice.randrange(2)] = dice.choice(
            (
                *(b"", b'"', b":", b",", b"{", b"}", b"[", b"]", b"\\", b"0", b"e", b".", b" ", b"\xff"),
                *(b"\xc3", b"\x00", bytes(data[begin : begin + 30])),
            )
        )
    return bytes(data)


def _object(dice: random.Random, fields: Fields, *, odd: float = 0, blank: str = "") -> str:
    pairs = [
        (name, _value(dice, kind, odd=odd, blank=blank)) for name, kind in fields.items() if dice.random() < 0.85
    ]
    if not pairs and not odd:
        name, kind = dice.choice(list(fields.items()))
        pairs.append((name, _value(dice, kind, odd=odd, blank=blank)))
    if odd:
        if dice.random() < odd:
            dice.shuffle(pairs)
        if pairs and dice.random() < odd:
            pairs.insert(dice.randrange(len(pairs)), dice.choice(pairs))
        if dice.random() < odd:
            pairs.insert(
                dice.randrange(len(pairs) + 1), (dice.choice(("new", "a.b", "", "x\\u0079")), dice.choice(ODD))
            )
    colon = f"{blank}:{blank}"
    return "{" + ",".join(f'{blank}"{name}"{colon}{text}' for name, text in pairs) + "}"


def _value(dice: random.Random, kind: Any, *, odd: float, blank: str) -> str:
    if dice.random() < odd:
        return dice.choice(ODD)
    if isinstance(kind, list):
        elements = [_value(dice, kind[0], odd=odd, blank=blank) for _ in range(dice.randrange(4))]
        return f"[{','.join(elements)}]"
    if isinstance(kind, Mapping):
        return _object(dice, kind, odd=odd, blank=blank)
    texts: Sequence[str] = kind
    return dice.choice(texts)
