"""Payloads as people read them: their own text laid out, their bytes in hex, and what differs between two."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

# Strings, the marks that lay a document out, and everything else: numbers, true, false, null.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_INDENT: Final = "  "
_MOST_TOKENS: Final = 200_000
_HEX_COLUMNS: Final = 16
# Finding what differs takes time that grows with the square of the lines.
_MOST_DIFFED: Final = 400
_FIRST_PRINTABLE, _LAST_PRINTABLE = 0x20, 0x7E


def lay_out_json(text: str) -> str | None:
    """Return a JSON text with a line for each value; None of what is no JSON, or has too many values.

    No value is parsed to be written again: each number, key and string is the payload's own text.

    Example:
        >>> print(lay_out_json('{"id": 9007199254740993, "n":[1.10, {}]}'))
        {
          "id": 9007199254740993,
          "n": [
            1.10,
            {}
          ]
        }
    """
    if not _is_json(text):
        return None
    marks = _TOKEN.findall(text)
    if len(marks) > _MOST_TOKENS:
        return None
    parts: list[str] = []
    depth = 0
    for number, mark in enumerate(marks):
        following = marks[number + 1] if number + 1 < len(marks) else ""
        if mark in "{[":
            is_empty = following in ("}", "]")
            depth += 1
            parts.append(mark if is_empty else mark + "\n" + _INDENT * depth)
        elif mark in "}]":
            depth -= 1
            is_empty = number > 0 and marks[number - 1] in ("{", "[")
            parts.append(mark if is_empty else "\n" + _INDENT * depth + mark)
        elif mark == ",":
            parts.append(",\n" + _INDENT * depth)
        else:
            parts.append(": " if mark == ":" else mark)
    return "".join(parts)


def render_hex(data: bytes) -> str:
    r"""Return bytes in hex, sixteen a line, with their places and what is printable of them.

    Example:
        >>> print(render_hex(b"AB\xff"))
        00000000  41 42 ff                                         |AB.|
    """
    lines = []
    for start in range(0, len(data), _HEX_COLUMNS):
        part = data[start : start + _HEX_COLUMNS]
        shown = "".join(chr(byte) if _FIRST_PRINTABLE <= byte <= _LAST_PRINTABLE else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * _HEX_COLUMNS}} |{shown}|")
    return "\n".join(lines)


def compare_sides(archived: Mapping[str, Any], published: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lines in which a message differs before and after, and whether anything does.

    Payloads are compared as the texts they are, and laid out where both are whole and JSON: a line is a value.
    """
    before, after = str(archived["data"]), str(published["data"])
    laid_out = [None if side["is_cut"] else lay_out_json(str(side["data"])) for side in (archived, published)]
    # Texts that differ in their blanks alone would lay out alike.
    use_layout = None not in laid_out and (before == after or laid_out[0] != laid_out[1])
    texts = [text or "" for text in laid_out] if use_layout else [before, after]
    return {
        "data": _diff(*(text.splitlines() for text in texts)),
        "attributes": _diff(*(_lines(side["attributes"]) for side in (archived, published))),
        "is_data_same": before == after and archived["encoding"] == published["encoding"],
        "are_attributes_same": archived["attributes"] == published["attributes"],
        "is_cut": bool(archived["is_cut"] or published["is_cut"]),
    }


def _is_json(text: str) -> bool:
    with suppress(ValueError, RecursionError):
        # Values are dropped: no number has to fit anything.
        json.loads(text, parse_float=str, parse_int=str, parse_constant=_refuse)
        return True
    return False


def _refuse(name: str) -> None:
    raise ValueError(name)


def _lines(attributes: Mapping[str, str | None]) -> list[str]:
    return [f"{name}={'(none)' if value is None else value}" for name, value in sorted(attributes.items())]


def _diff(before: Sequence[str], after: Sequence[str]) -> list[tuple[str, str]]:
    """Return lines with a sign: "-" went, "+" came, " " stays."""
    if max(len(before), len(after)) > _MOST_DIFFED:
        return [*(("-", line) for line in before), *(("+", line) for line in after)]
    return [(line[0], line[2:]) for line in difflib.ndiff(before, after) if not line.startswith("?")]
