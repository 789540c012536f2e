"""The page of SQL functions: the registry of functions that a query may call."""

from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Final

from sql.datatypes import UNKNOWN
from sql.functions import aggregates, arithmetic, geography, jsons, repairs, texts, times
from sql.functions.catalog import FUNCTIONS
from sql.functions.registry import Function
from sql.values import Value
from tests.guards.reference.markdown import page, prose, table

THEMES: Final[Mapping[str, ModuleType]] = {
    "Strings, bytes and regular expressions": texts,
    "JSON": jsons,
    "More JSON, formats and hashes": repairs,
    "Dates and times": times,
    "Arithmetic, conditions and arrays": arithmetic,
    "Aggregates and window functions": aggregates,
    "Geography and distances": geography,
}
INTRODUCTION: Final = """\
A query may call these functions. They have the same names and meanings as in GoogleSQL. Every other function is
refused with `function_not_allowed`. [The SQL gate](../sql.md) says what else a query may contain.

Parameters in brackets may be left out. `...` means that the last parameter may be repeated. `STR` is STRING or
BYTES, `JSONISH` is STRING or JSON, `NUM` is a number, `MOMENT` is DATE, DATETIME or TIMESTAMP, `WHEN` is
`MOMENT` or STRING, `TEXTS` is an array of STRING or BYTES, `ORDERED` is a type that can be sorted, `ITEM` is
every type except an array, and `ANY` is every type. `PART` is a part of a date such as `DAY`. `T` is the same
type wherever it occurs in one function. If the result's type depends on the arguments, the column *result* is
empty.

A function without "yes" under *lake* runs on BigQuery only. If a query over a lake calls such a function, it is
refused with `lake_unsupported`."""


def render_functions() -> str:
    parts, seen = [INTRODUCTION], set()
    for title, theme in THEMES.items():
        rows = []
        for name, function in sorted(theme.TABLE.functions.items()):
            seen.add(name)
            rows.append([f"`{_signature(function)}`", _result(function), "yes" if function.render else ""])
        parts.append(f"## {title}\n\n{table(['function', 'result', 'lake'], rows)}")
    assert seen == {*FUNCTIONS}, "a theme of sql/functions/catalog.py is missing here"
    return page("SQL functions", "sql/functions", *parts)


def _signature(function: Function) -> str:
    needed = list(function.parameters[: function.required])
    optional = list(function.parameters[function.required :])
    repeated = f"{optional.pop()}..." if function.is_variadic else ""
    text = ", ".join(needed)
    for each in [*optional, *([repeated] if repeated else [])]:
        text += f"[, {each}]" if text else f"[{each}]"
    for name in function.named:
        text += f"[, {name} => ...]"
    over = " OVER (...)" if function.kind == "window" else ""
    return f"{function.name}({text}){over}"


def _result(function: Function) -> str:
    """Return the type of the result where it is the same for all arguments."""
    unknown = [Value(UNKNOWN, "x")] * max(1, len(function.parameters))
    with suppress(Exception):
        found = str(function.result(unknown))
        return "" if "UNKNOWN" in found or "?" in found else prose(found)
    return ""
