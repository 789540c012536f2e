"""Reads JSON as Google's functions over STRING do: up to what is sought, and forgiving where others refuse.

What stands behind the value at the path is never read, so a payload that was cut off still gives what came before.
"""

import json
import re
from functools import lru_cache
from typing import Any, Final


class Number(str):
    """A number of JSON as it is written."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """The members of an object as they are written, some perhaps twice."""


def no_constant(text: str) -> Any:
    """Refuse what only Python takes for a number of JSON."""
    raise ValueError(f"{text} is not JSON")


AS_WRITTEN: Final = json.JSONDecoder(
    object_pairs_hook=Pairs, parse_int=Number, parse_float=Number, parse_constant=no_constant
)


_BLANKS: Final = " \t\n\r\v\f"
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_WORDS: Final = {"true": True, "false": False, "null": None}
_PLAIN: Final = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEX: Final = {"x": re.compile("[0-9a-fA-F]{2}"), "u": re.compile("[0-9a-fA-F]{4}")}


# An escape, both halves of a surrogate pair as one.
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL
)
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
_HALF_LENGTH: Final = len(r"\ud800")


def without_halves(text: str) -> str:
    """Return JSON in which an escape of half a surrogate pair is that of U+FFFD."""
    if not _HALF.search(text):
        return text
    return _ESCAPE.sub(lambda match: r"\ufffd" if len(match[0]) == _HALF_LENGTH else match[0], text)


class _FoundError(Exception):
    """What was sought is read."""


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.found: Any = None

    def _peek(self) -> str:
        while (char := self._text[self._at : self._at + 1]) and char in _BLANKS:
            self._at += 1
        return char

    def _take(self, char: str) -> bool:
        is_next = self._peek() == char
        self._at += is_next
        return is_next

    def read(self, steps: tuple[str, ...] | None) -> Any:
        """Return the next value; ``steps`` lead from it to what is sought, None where nothing is."""
        value = self._value(steps)
        if steps == ():
            self.found = value
            raise _FoundError
        return value

    def _value(self, steps: tuple[str, ...] | None) -> Any:
        char = self._peek()
        if char == "{":
            return self._object(steps)
        if char == "[":
            return self._array(steps)
        if char in _PLAIN:
            return self._string()
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            raise ValueError("no JSON")
        self._at = match.end()
        if self._text[self._at : self._at + 1] in {".", "e", "E"}:
            raise ValueError("no JSON")
        return Number(match[0])

    def _object(self, steps: tuple[str, ...] | None) -> Pairs:
        self._take("{")
        members = Pairs()
        while not self._take("}"):
            if self._peek() not in _PLAIN:
                raise ValueError("no JSON")
            name = self._string()
            if not self._take(":"):
                raise ValueError("no JSON")
            members.append((name, self.read(steps[1:] if steps and steps[0] == name else None)))
            self._go_on("}")
        return members

    def _array(self, steps: tuple[str, ...] | None) -> list[Any]:
        self._take("[")
        items: list[Any] = []
        wanted = int(steps[0]) if steps and steps[0].isdigit() else None
        while not self._take("]"):
            # Between two commas stands a null.
            is_empty = self._peek() == ","
            items.append(None if is_empty else self.read(steps[1:] if steps and len(items) == wanted else None))
            self._go_on("]")
        return items

    def _go_on(self, end: str) -> None:
        if not self._take(",") and self._peek() != end:
            raise ValueError("no JSON")

    def _string(self) -> str:
        quote = self._text[self._at]
        self._at += 1
        parts = []
        while True:
            match = _PLAIN[quote].match(self._text, self._at)
            assert match is not None  # it matches the empty text
            parts.append(match[0])
            self._at = match.end() + 1
            end = self._text[match.end() : self._at]
            if end == quote:
                return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            if not end:
                raise ValueError("no JSON")
            parts.append(self._escaped())

    def _escaped(self) -> str:
        char = self._text[self._at : self._at + 1]
        self._at += 1
        if char not in _HEX:
            return _ESCAPES.get(char, char)
        match = _HEX[char].match(self._text, self._at)
        if match is None:
            raise ValueError("no JSON")
        self._at = match.end()
        return chr(int(match[0], 16))


def sought(text: str, steps: tuple[str, ...]) -> Any:
    """Return what stands where ``steps`` lead: of members of one name the first that has it, None where none has.

    Example:
        >>> sought('{"a": 1, "b": [2, 3', ("b", "0"))
        '2'
    """
    reader = _Reader(text)
    try:
        reader.read(steps)
    except (_FoundError, ValueError, RecursionError):
        return reader.found
    return None


def looked_up(text: str, path: str) -> Any:
    """Return what stands at ``path`` (JSON, names and numbers) of a text, which may go on after it."""
    steps, text = _steps(path), without_halves(text)
    try:
        value = AS_WRITTEN.raw_decode(text.lstrip(_BLANKS))[0]
    except RecursionError:
        return None
    except ValueError:
        return sought(text, steps)
    found = _below(value, steps)
    return None if found is _MISSING else found


@lru_cache(256)
def _steps(path: str) -> tuple[str, ...]:
    return tuple(map(str, json.loads(path)))


_MISSING: Final = object()


def _below(value: Any, steps: tuple[str, ...]) -> Any:
    if not steps:
        return value
    if isinstance(value, Pairs):
        below = (_below(member, steps[1:]) for name, member in value if name == steps[0])
        return next((member for member in below if member is not _MISSING), _MISSING)
    if isinstance(value, list) and steps[0].isdigit() and int(steps[0]) < len(value):
        return _below(value[int(steps[0])], steps[1:])
    return _MISSING
