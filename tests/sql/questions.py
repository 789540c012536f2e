# ruff: noqa: E501 - pools of values, each in one piece
"""Questions to Google's engine and the lake that are made from the registry of functions itself.

Each scalar function that the lake answers is called with edge values of its parameters' types, or with calls that
give such types, to a depth of two; each call is asked with literals and with columns, and both under ``SAFE.``.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from sql.datatypes import INTERVAL, SCALARS, STRING, SqlType, array_of
from sql.functions.catalog import FUNCTIONS
from sql.functions.registry import PARTS, Function
from sql.values import Value
from tests.sql import grid

FORMS: Final = 4
_LETTERS: Final = {kind: letter for letter, kind in grid.TYPES.items()}
_ZONES: Final = (
    "UTC", "Europe/Stockholm", "America/New_York", "America/Havana", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia", "America/Sao_Paulo",
    "+05:30", "-08:00", "Nowhere", "",
)  # fmt: skip
_PATHS: Final = (
    "$", "$.a", "$.a[0]", "$[0]", "$.0", "$.b[1]", "$.a.b", '$."c d"', "$.a.b.c", "$.a[1].b", "$[1]", "$.a.b[1].c", "$.a.0",
)  # fmt: skip
_FORMATS: Final = ("%Y-%m-%d", "%F %T", "%d/%m/%y", "%H:%M:%S", "%b %d %Y", "%j", "%%", "")
_REGEXES: Final = ("a", "(a)", "", "^.", r"\\d+", "(a)|b", "[^a]", "(", "(?i)A")
_CLASSES: Final = {
    "STR": ("STRING", "BYTES"),
    "NUM": ("INT64", "FLOAT64", "NUMERIC"),
    "JSONISH": ("STRING", "JSON"),
    "MOMENT": ("DATE", "DATETIME", "TIMESTAMP"),
    "WHEN": ("DATE", "DATETIME", "TIMESTAMP", "STRING"),
    "ARRAY": ("ARRAY<STRING>", "ARRAY<INT64>"),
    "TEXTS": ("ARRAY<STRING>",),
}
# Those that have the same of all types, and those of which the engine knows none.
_ANY: Final = (
    "STRING", "INT64", "FLOAT64", "NUMERIC", "BOOL", "DATE", "DATETIME", "TIMESTAMP", "BYTES", "JSON", "TIME",
)  # fmt: skip
# What makes something else at each look, or what stands for no value.
_LEFT_OUT: Final = frozenset({"ERROR", "GENERATE_UUID", "RAND", "COLLATE"})
# Any call is rarely a year or an hour.
_OF_PARTS: Final = frozenset({"DATE", "DATETIME", "TIME"})
_PARTS_OF_MOMENTS: Final = (
    *("1", "0", "-1", "2", "12", "13", "23", "24", "29", "31", "59", "60", "2024", "9999", "10000"),
    "CAST(NULL AS INT64)",
)
_CODE_POINTS: Final = (
    "0", "1", "-1", "97", "8232", "55296", "65533", "1114111", "1114112", "4294967297", "CAST(NULL AS INT64)",
)  # fmt: skip
# And neither is any number, nor a code point.
_SMALL_NUMBERS: Final = {**dict.fromkeys(_OF_PARTS, _PARTS_OF_MOMENTS), "CHR": _CODE_POINTS}
_ZONE_OF: Final = {
    "DATE": 1, "DATETIME": 1, "TIMESTAMP": 1, "DATE_TRUNC": 2, "TIMESTAMP_TRUNC": 2, "FORMAT_TIMESTAMP": 2, "PARSE_TIMESTAMP": 2,
}  # fmt: skip


@dataclass(frozen=True)
class _Part:
    """A piece of a question: as literals, and with places for columns."""

    literal: str
    body: str
    columns: tuple[tuple[str, str], ...] = ()


def _constant(text: str) -> _Part:
    return _Part(text, text)


def _kind(name: str) -> SqlType:
    return array_of(SCALARS[name[6:-1]]) if name.startswith("ARRAY") else SCALARS[name]


class Questions:
    """Makes the questions of one seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"registry {seed}")

    def cases(self, calls: int) -> Iterator[grid.Case]:
        """Yield ``calls`` calls in their two forms, plain and under SAFE."""
        names = sorted(_callable())
        seen: set[str] = set()
        while len(seen) < calls:
            part = self._call(FUNCTIONS[self._chance.choice(names)], 2)
            if part is None or part.literal in seen:
                continue
            seen.add(part.literal)
            yield from (_case(part, prefix) for prefix in ("", "SAFE."))

    def _call(self, function: Function, depth: int) -> _Part | None:
        chance = self._chance
        count = chance.randint(function.required, len(function.parameters) + (2 if function.is_variadic else 0))
        shared = chance.choice(_ANY)
        parts = [self._argument(function, index, shared, depth) for index in range(count)]
        columns, places = [], []
        for part in parts:
            body = part.body
            for number in reversed(range(len(part.columns))):
                body = body.replace(f"{{{number}}}", f"{{{len(columns) + number}}}")
            places.append(body)
            columns.extend(part.columns)
        literal = ", ".join(part.literal for part in parts)
        return _Part(f"{function.name}({literal})", f"{function.name}({', '.join(places)})", tuple(columns))

    def _argument(self, function: Function, index: int, shared: str, depth: int) -> _Part:  # noqa: PLR0911 - a kind each
        chance, wanted, name = self._chance, function.parameter(index), function.name
        if wanted == "PART":
            return _constant(chance.choice(sorted(PARTS)))
        if wanted == "INTERVAL":
            amount = self._value("INT64")
            unit = chance.choice(["MICROSECOND", "SECOND", "HOUR", "DAY", "WEEK", "MONTH", "YEAR"])
            return _Part(f"INTERVAL {amount.literal} {unit}", f"INTERVAL {amount.body} {unit}", amount.columns)
        if _ZONE_OF.get(name) == index and wanted in {"STRING", "ANY"} and chance.random() < 0.9:
            return _constant(f"'{chance.choice(_ZONES)}'")
        if name.startswith("JSON_") and index == 1 and wanted == "STRING":
            return _constant(f"'{chance.choice(_PATHS)}'")
        if name.startswith(("FORMAT_", "PARSE_")) and index == 0 and name != "PARSE_JSON":
            return _constant(f"'{chance.choice(_FORMATS)}'")
        if name.startswith("REGEXP_") and index == 1:
            return _constant(f"'{chance.choice(_REGEXES)}'")
        kind = (
            shared if wanted in {"T", "ANY", "ORDERED", "ITEM"} else chance.choice(_CLASSES.get(wanted, (wanted,)))
        )
        inner = _by_result().get(kind, [])
        if depth > 1 and inner and name not in _OF_PARTS and chance.random() < 0.4:
            found = self._call(FUNCTIONS[chance.choice(inner)], depth - 1)
            if found is not None:
                return found
        if name in _SMALL_NUMBERS and kind == "INT64" and chance.random() < 0.8:
            return self._value(kind, _SMALL_NUMBERS[name])
        return self._value(kind)

    def _value(self, kind: str, values: Sequence[str] = ()) -> _Part:
        letter = _LETTERS.get(kind)
        values = values or [*grid.VALUES.get(letter or "", []), *grid.MORE.get(kind, []), f"CAST(NULL AS {kind})"]
        literal = self._chance.choice(values)
        return _Part(literal, "{0}", ((literal, kind),))


def _case(part: _Part, prefix: str) -> grid.Case:
    names = [f"c{number}" for number in range(len(part.columns))]
    body = part.body
    for number in reversed(range(len(names))):
        body = body.replace(f"{{{number}}}", names[number])
    values, kinds = zip(*part.columns, strict=True) if part.columns else ((), ())
    body = f"{prefix}{body}"
    # Cases of one template share the types of their columns.
    return grid.Case(f"{body} {kinds}", f"{prefix}{part.literal}", body, tuple(values), tuple(kinds))


@cache
def _callable() -> frozenset[str]:
    scalars = (f for f in FUNCTIONS.values() if f.kind == "scalar" and f.render is not None)
    return frozenset(f.name for f in scalars if f.name not in _LEFT_OUT and not f.name.startswith("ST_"))


@cache
def _by_result() -> dict[str, list[str]]:
    """Return the functions by the types that they give."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in sorted(_callable()):
        function = FUNCTIONS[name]
        for kind in {_result(function, chosen) for chosen in _ANY} & {*_ANY}:
            found[kind].append(name)
    return found


def _result(function: Function, shared: str) -> str:
    values = [Value(_sample(parameter, shared), "NULL") for parameter in function.parameters]
    try:
        return function.result(values).name
    except (IndexError, KeyError, ValueError):
        return ""


def _sample(parameter: str, shared: str) -> SqlType:
    if parameter == "PART":
        return STRING
    if parameter == "INTERVAL":
        return INTERVAL
    return _kind(
        shared if parameter in {"T", "ANY", "ORDERED", "ITEM"} else _CLASSES.get(parameter, (parameter,))[0]
    )


def kind_of(question: str) -> str:
    """Return the function that a question is about, for counting."""
    return question.removeprefix("SELECT ").removeprefix("SAFE.").partition("(")[0]


def in_batches(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), size):
        yield texts[start : start + size]
