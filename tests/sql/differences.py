"""The answers of Google's engine that the lake need not give: ``accepted_differences.txt``, read and applied."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

ACCEPTED: Final = Path(__file__).parent / "accepted_differences.txt"
_QUOTED: Final = r"'(?:\\.|[^'\\])*'"
# The rule that a difference is compared with, as it stands in the file.
_HIDDEN: Final = "f(NULL, error) may be NULL"
_CALL: Final = re.compile(rf"SELECT [A-Z_0-9]+\(((?:{_QUOTED}|[^'])*?)\)((?: FROM \(SELECT .*\))?)", re.DOTALL)


def read_accepted() -> set[str]:
    """Return the questions that the lake may answer otherwise."""
    return {line for line in _lines() if line.startswith("SELECT ")}


def as_documented(sql: str) -> str:
    """Return a question with the functions that the engine answers otherwise written as BigQuery documents them.

    Example:
        >>> as_documented("CONCAT(SAFE.CHR(LENGTH(')')), 'CHR(0)')")
        "CONCAT(IF(CAST(LENGTH(')') AS INT64) = 0, '', SAFE.CHR(LENGTH(')'))), 'CHR(0)')"
    """
    names = "|".join(_documented())
    found = re.search(rf"^(?:{_QUOTED}|[^'])*?\b((?:SAFE\.)?({names})\()", sql)
    if found is None:
        return sql
    depth, end = 1, found.end()
    for mark in re.finditer(rf"{_QUOTED}|[()]", sql[found.end() :]):
        depth += {"(": 1, ")": -1}.get(mark.group(), 0)
        if depth == 0:
            end += mark.start()
            break
    argument = as_documented(sql[found.end() : end])
    places = {"x": argument, f"{found[2]}(": found[1]}
    meaning = re.sub(rf"\bx\b|\b{found[2]}\(", lambda place: places[place.group()], _documented()[found[2]])
    return f"{sql[: found.start(1)]}{meaning}{as_documented(sql[end + 1 :])}"


def is_hidden(question: str, theirs: str, mine: str, lake: Callable[[str], str]) -> bool:
    """Whether the lake may answer NULL where Google's engine fails, as a NULL argument hides a failing one.

    ``lake`` answers a query. Asked alone, one argument has to be NULL there, and another one has to fail.
    """
    found = _CALL.fullmatch(question)
    if (theirs, mine) != ("error", "NULL") or found is None or _HIDDEN not in _lines():
        return False
    alone = {lake(f"SELECT {argument}{found[2]}") for argument in _arguments(found[1])}
    return {"NULL", "error"} <= alone


def _arguments(text: str) -> Iterator[str]:
    """Yield the arguments of a call; of an interval its amount."""
    depth, start = 0, 0
    for mark in re.finditer(rf"{_QUOTED}|[(\[\])]|,|$", text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(mark.group(), 0)
        if depth == 0 and mark.group() in {",", ""}:
            yield re.sub(r"^INTERVAL (.*) [A-Z]+$", r"\1", text[start : mark.start()].strip(), flags=re.DOTALL)
            start = mark.end()


@cache
def _lines() -> tuple[str, ...]:
    return tuple(line for line in ACCEPTED.read_text().splitlines() if not line.startswith("#"))


@cache
def _documented() -> dict[str, str]:
    """Return what BigQuery's documentation says of functions that Google's engine answers otherwise."""
    parts = [line.partition("(x) means ") for line in _lines()]
    return {name: meaning for name, sign, meaning in parts if sign}
