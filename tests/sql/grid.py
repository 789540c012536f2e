"""The grid of expressions whose answers Google's engine gave: every function the lake answers x edge values.

A template is an expression with holes. ``{s}`` takes every edge value of its type, one hole at a time, the others
at their first value, then NULL, then a few at random together; ``{s:'a'|'b'}`` takes these values instead. In
``{=1|2}`` stand constants. A case is asked twice: with its values as literals, and with its values in columns.
"""

import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TYPES: Final = {
    "s": "STRING", "b": "BYTES", "i": "INT64", "f": "FLOAT64", "n": "NUMERIC", "o": "BOOL", "d": "DATE",
    "t": "TIMESTAMP", "e": "DATETIME", "c": "TIME", "j": "JSON", "x": "ANY",
    "as": "ARRAY<STRING>", "ai": "ARRAY<INT64>", "ad": "ARRAY<DATE>",
}  # fmt: skip


def _read_tables() -> dict[str, dict[str, list[str]]]:
    """Return the entries of each section of grid.txt, by the first word of its name and by the rest."""
    tables: dict[str, dict[str, list[str]]] = defaultdict(dict)
    entries: list[str] = []
    for line in (Path(__file__).parent / "grid.txt").read_text().split("\n"):
        if line.startswith("## "):
            table, _, name = line[3:].partition(" ")
            entries = tables[table].setdefault(name, [])
        elif line and not line.startswith("# "):
            for name, text in tables["text"].items():
                line = line.replace(f"<{name}>", "".join(text))  # noqa: PLW2901
            entries.append("" if line == "(none)" else line)
    return dict(tables)


_TABLES: Final = _read_tables()
VALUES: Final = _TABLES["values"]
TEMPLATES: Final = _TABLES["templates"][""]
# Relations of one column ``x`` beside a number ``n``, for what goes over rows.
RELATIONS: Final = _TABLES["relations"]
AGGREGATES: Final = _TABLES["aggregates"]
WINDOWS: Final = _TABLES["windows"]
QUERIES: Final = _TABLES["queries"]
# Of a type's name: values for the questions that tests/sql/questions.py makes.
MORE: Final = _TABLES["more"]

_HOLE: Final = re.compile(r"\{(=|[a-z]{1,2})(?::?((?:[^{}'\"]|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")*))?\}")


@dataclass(frozen=True)
class Case:
    """An expression of a template; ``columns`` holds the values that may stand in columns, of types ``kinds``."""

    template: str
    literal: str
    body: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    fails: bool = False

    @property
    def by_columns(self) -> str:
        row = ", ".join(f"{value} AS c{place}" for place, value in enumerate(self.columns))
        return f"SELECT {self.body} FROM (SELECT {row})"


def cases(seed: int | None = None, per_template: int = 2) -> Iterator[Case]:
    """Yield the grid; with a ``seed`` only combinations at random, of values that may be random too."""
    seen = set()
    for number, template in enumerate(TEMPLATES):
        holes = [(match[1], _choices(match, seed, number)) for match in _HOLE.finditer(template)]
        chance = random.Random(f"{seed}-{template}")
        picks: list[tuple[str, ...]] = []
        if seed is None:
            first = tuple(values[0] for _, values in holes)
            picks.append(first)
            for place, (_, values) in enumerate(holes):
                picks += [(*first[:place], value, *first[place + 1 :]) for value in values[1:]]
        wanted = per_template if len(holes) > 1 or seed is not None else 0
        picks += [tuple(chance.choice(values) for _, values in holes) for _ in range(wanted)]
        for pick in picks:
            case = _fill(template, holes, pick)
            if case.literal not in seen:
                seen.add(case.literal)
                yield case


def row_queries(seed: int | None = None) -> Iterator[str]:
    """Yield the queries over rows: aggregates, windows, ordering with NULLs, sets and joins.

    With a ``seed`` they are over two relations of each type whose values are at random.
    """
    for kind, relations in RELATIONS.items():
        chosen = relations if seed is None else [_random_values(kind, f"{seed}-{kind}-{n}") for n in range(2)]
        for values in chosen:
            rows = _relation(kind, values)
            for kinds, calls in AGGREGATES.items():
                for call in calls if kind in kinds else []:
                    yield f"SELECT {call} FROM {rows}" + (" ORDER BY n" if " OVER " in call else "")
            for kinds, calls in WINDOWS.items():
                for call in calls if kind in kinds else []:
                    yield f"SELECT n, {call} FROM {rows} ORDER BY n"
            for kinds, queries in QUERIES.items():
                for query in queries if kind in kinds else []:
                    yield query.replace("{r}", rows)


def _random_values(kind: str, seed: str) -> str:
    chance = random.Random(seed)
    pool = [*VALUES[kind], *(_random_value(kind, chance) for _ in range(6)), "NULL"]
    return ",".join(chance.choices(pool, k=chance.randint(1, 6)))


def _relation(kind: str, values: str) -> str:
    if not values:
        return f"(SELECT 1 AS n, CAST(NULL AS {TYPES[kind]}) AS x FROM UNNEST(ARRAY<INT64>[]))"
    parts = [
        f"SELECT {n} AS n, CAST({value} AS {TYPES[kind]}) AS x"
        for n, value in enumerate(_split(values, ","), start=1)
    ]
    return f"({' UNION ALL '.join(parts)})"


def _choices(match: re.Match[str], seed: int | None, number: int) -> list[str]:
    kind, listed = match[1], match[2]
    values = _split(listed, "|") if listed or kind == "=" else list(VALUES[kind])
    if kind == "=":
        return values
    if seed is not None and not listed:
        values = values + [_random_value(kind, random.Random(f"{seed}-{number}-{n}")) for n in range(6)]
    return [*values, f"CAST(NULL AS {TYPES[kind]})"]


def _split(text: str, sign: str) -> list[str]:
    parts, start, quote, at = [], 0, "", 0
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char == sign:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [*parts, text[start:]]


def _fill(template: str, holes: list[tuple[str, list[str]]], pick: tuple[str, ...]) -> Case:
    literals, names, columns, kinds = iter(pick), itertools.count(), [], []
    body_parts, literal_parts, end = [], [], 0
    for (kind, _), match in zip(holes, _HOLE.finditer(template), strict=True):
        value = next(literals)
        for parts in (body_parts, literal_parts):
            parts.append(template[end : match.start()])
        literal_parts.append(value)
        if kind == "=":
            body_parts.append(value)
        else:
            body_parts.append(f"c{next(names)}")
            columns.append(value)
            kinds.append(TYPES[kind])
        end = match.end()
    rest = template[end:]
    return Case(template, "".join(literal_parts) + rest, "".join(body_parts) + rest, tuple(columns), tuple(kinds))


def _random_value(kind: str, chance: random.Random) -> str:  # noqa: C901, PLR0911, PLR0912 - one line a type
    number = chance.choice(
        [chance.randrange(-100, 100), chance.randrange(-(2**63), 2**63), chance.randrange(-(2**32), 2**32)]
    )
    # Before 1900 zones had local times that depend on the version of their table.
    first, last = (1, 10000) if kind == "d" else (1900, 2100)
    moment = f"{chance.randrange(first, last):04d}-{chance.randrange(1, 13):02d}-{chance.randrange(1, 29):02d}"
    clock = f"{chance.randrange(24):02d}:{chance.randrange(60):02d}:{chance.randrange(60):02d}"
    clock += chance.choice(["", f".{chance.randrange(10**6):06d}", ".5"])
    text = "".join(chance.choice("abAB ,%_09é\u00df\u0301\u2003\U0001f600z.-") for _ in range(chance.randrange(8)))
    match kind:
        case "s":
            return f"'{text}'"
        case "b":
            return "b'" + "".join(f"\\x{chance.randrange(256):02x}" for _ in range(chance.randrange(6))) + "'"
        case "i":
            return str(number)
        case "f":
            return chance.choice(
                [
                    repr(chance.uniform(-10, 10)),
                    repr(chance.uniform(-1, 1) * 10.0 ** chance.randrange(-300, 300)),
                    f"{number}.0",
                ]
            )
        case "n":
            whole = chance.randrange(-(10 ** chance.randrange(1, 29)), 10**20)
            return f"NUMERIC '{whole}.{chance.randrange(10**9):09d}'"
        case "d":
            return f"DATE '{moment}'"
        case "t":
            return f"TIMESTAMP '{moment} {clock}+00'"
        case "e":
            return f"DATETIME '{moment} {clock}'"
        case "c":
            return f"TIME '{clock}'"
        case "as":
            return f"['{text}', NULL, 'b']"
        case "ai":
            return f"[{number}, 3]"
        case "j":
            return f'JSON \'{{"a": {number % 10**15}, "b": ["{text}"]}}\''
        case _:
            return VALUES[kind][0]
