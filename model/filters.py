"""Pub/Sub's subscription filters: text to a predicate over a message's attributes."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

MAX_FILTER_BYTES: Final = 256

Attributes = Mapping[str, str]
Predicate = Callable[[Attributes], bool]

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<word>[A-Za-z0-9_][A-Za-z0-9_\-]*)
      | (?P<symbol>!=|[=:.,()\-])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x(?P<hex>[0-9A-Fa-f]{2})|u(?P<short>[0-9A-Fa-f]{4})|U(?P<long>[0-9A-Fa-f]{8})"
    r"|(?P<octal>[0-3][0-7]{2})|(?P<plain>.))",
    re.DOTALL,
)
_PLAIN_ESCAPES: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", '"': '"', "'": "'", "`": "`", "?": "?",
}  # fmt: skip
_LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT"})


class FilterError(ValueError):
    """A text is no subscription filter; the message is in the words of Pub/Sub."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter.

    ``keys`` are the attribute keys that it looks at, as UTF-8: a message in which none of these byte strings
    occurs has none of the attributes, so that ``matches_without_keys`` is its answer and nothing need be decoded.
    """

    text: str
    matches: Predicate
    keys: tuple[bytes, ...]
    matches_without_keys: bool


def parse_filter(text: str) -> Filter:
    """Return the filter that ``text`` describes; an empty text lets everything through.

    Raises:
        FilterError: the text is no filter, or is longer than 256 bytes.

    Example:
        >>> parse_filter('attributes.shop = "se" AND NOT attributes:test').matches({"shop": "se"})
        True
        >>> parse_filter('NOT attributes.replay = "t"').matches_without_keys
        True
    """
    if len(text.encode()) > MAX_FILTER_BYTES:
        raise FilterError(f"Filter expression is too long; the maximum length is {MAX_FILTER_BYTES} bytes.")
    if not text.strip():
        return Filter(text, lambda _attributes: True, (), matches_without_keys=True)
    parser = _Parser(text)
    predicate = parser.parse()
    keys = tuple(sorted({key.encode() for key in parser.keys}))
    return Filter(text, predicate, keys, matches_without_keys=predicate({}))


class _Parser:
    """Recursive descent over the tokens; depth is bounded by the 256 bytes a filter may have."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._read_tokens()
        self._at = 0
        self.keys: set[str] = set()

    def parse(self) -> Predicate:
        predicate = self._expression()
        if self._at < len(self._tokens):
            self._fail()
        return predicate

    def _read_tokens(self) -> list[tuple[str, str, int]]:
        tokens: list[tuple[str, str, int]] = []
        position = 0
        end = len(self._text.rstrip())
        while position < end:
            found = _TOKEN.match(self._text, position)
            if found is None:
                self._fail(position)
            kind = str(found.lastgroup)
            tokens.append((kind, found[kind], found.start(kind)))
            position = found.end()
        return tokens

    def _fail(self, position: int | None = None) -> NoReturn:
        if position is None:
            position = self._tokens[self._at][2] if self._at < len(self._tokens) else len(self._text)
        raise FilterError(f"Invalid filter expression {self._text!r}: syntax error at position {position}.")

    def _peek(self) -> tuple[str, str]:
        if self._at < len(self._tokens):
            return self._tokens[self._at][:2]
        return "end", ""

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        if token[0] == "end":
            self._fail()
        self._at += 1
        return token

    def _expect(self, symbol: str) -> None:
        if self._peek() != ("symbol", symbol):
            self._fail()
        self._at += 1

    def _expression(self) -> Predicate:
        terms = [self._term()]
        operator = None
        while self._peek() in {("word", "AND"), ("word", "OR")}:
            word = self._peek()[1]
            if operator is not None and word != operator:
                raise FilterError(
                    f"Invalid filter expression {self._text!r}: AND and OR can't be mixed without parentheses."
                )
            operator = word
            self._at += 1
            terms.append(self._term())
        if len(terms) == 1:
            return terms[0]
        if operator == "AND":
            return lambda attributes: all(term(attributes) for term in terms)
        return lambda attributes: any(term(attributes) for term in terms)

    def _term(self) -> Predicate:
        if self._peek() in {("word", "NOT"), ("symbol", "-")}:
            self._at += 1
            inner = self._term()
            return lambda attributes: not inner(attributes)
        if self._peek() == ("symbol", "("):
            self._at += 1
            inner = self._expression()
            self._expect(")")
            return inner
        return self._comparison()

    def _comparison(self) -> Predicate:
        if self._peek() == ("word", "hasPrefix"):
            self._at += 1
            self._expect("(")
            self._attributes_word()
            self._expect(".")
            key = self._key()
            self._expect(",")
            prefix = self._string()
            self._expect(")")
            return lambda attributes: key in attributes and attributes[key].startswith(prefix)
        self._attributes_word()
        symbol = self._next()
        if symbol == ("symbol", ":"):
            key = self._key()
            return lambda attributes: key in attributes
        if symbol != ("symbol", "."):
            self._at -= 1
            self._fail()
        key = self._key()
        operator = self._next()
        if operator not in {("symbol", "="), ("symbol", "!=")}:
            self._at -= 1
            self._fail()
        value = self._string()
        if operator[1] == "=":
            return lambda attributes: attributes.get(key) == value
        # A message without the key matches too, as in Google's own fake (cloud.google.com/go/pubsub/pstest).
        return lambda attributes: attributes.get(key) != value

    def _attributes_word(self) -> None:
        if self._peek() != ("word", "attributes"):
            self._fail()
        self._at += 1

    def _key(self) -> str:
        kind, text = self._next()
        if kind == "string":
            key = self._unescape(text)
        elif kind == "word" and text not in _KEYWORDS:
            key = text
        else:
            self._at -= 1
            self._fail()
        self.keys.add(key)
        return key

    def _string(self) -> str:
        kind, text = self._next()
        if kind != "string":
            self._at -= 1
            self._fail()
        return self._unescape(text)

    def _unescape(self, quoted: str) -> str:
        def replace(found: re.Match[str]) -> str:
            if found["plain"] is not None:
                if found["plain"] not in _PLAIN_ESCAPES:
                    raise FilterError(f"Invalid filter expression {self._text!r}: unknown escape {found[0]}.")
                return _PLAIN_ESCAPES[found["plain"]]
            number = (
                int(found["octal"], 8)
                if found["octal"]
                else int(found["hex"] or found["short"] or found["long"], 16)
            )
            if number > _LAST_CHARACTER or number in _SURROGATES:
                raise FilterError(f"Invalid filter expression {self._text!r}: no such character {found[0]}.")
            return chr(number)

        return _ESCAPE.sub(replace, quoted[1:-1])
