"""The lexical gate: GoogleSQL text to tokens, read exactly as Google reads it, before any parser sees it."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from sql.violation import Fault, Violation

MAX_QUERY_BYTES: Final = 64 * 1024
MAX_TOKENS: Final = 4_000
MAX_NESTING: Final = 30

TokenKind = Literal["name", "quoted", "string", "bytes", "integer", "float", "parameter", "symbol", "bad", "end"]


@dataclass(frozen=True, slots=True)
class Token:
    """One token; ``upper`` is set for unquoted names only, ``value`` is the decoded text of a literal or name."""

    kind: TokenKind
    value: str | bytes
    upper: str
    start: int
    end: int
    fault: Fault | None = None


class SourceText:
    """A query's text with the way from offsets to lines and columns, both counted from 1."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def locate(self, offset: int) -> tuple[int, int]:
        r"""Return line and column of ``offset``.

        Example:
            >>> SourceText("SELECT 1\nFROM x").locate(9)
            (2, 1)
        """
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def offset(self, line: int, column: int) -> int:
        r"""Return the offset of a line and a column, at most the text's end.

        Example:
            >>> SourceText("SELECT 1\nFROM x").offset(2, 1)
            9
        """
        return min(self._starts[min(line, len(self._starts)) - 1] + column - 1, len(self.text))

    def violation(self, fault: Fault) -> Violation:
        """Return ``fault`` with its place."""
        line, column = self.locate(min(fault.at, len(self.text)))
        return Violation(fault.code, fault.message, line, column, fault.rewrite)


_SPACE = re.compile(r"[ \t\n]+|\r\n")
_LINE_COMMENT = re.compile(r"(?:--|#)[^\n]*")
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEX = re.compile(r"0[xX][0-9A-Fa-f]+")
_FLOAT = re.compile(r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+")
_INTEGER = re.compile(r"\d+")
_STRING = re.compile(r"(?P<prefix>[rR][bB]?|[bB][rR]?)?(?P<quote>\"\"\"|'''|\"|')")
# Where a string may end, or what hides an end, by its quotes: searched for, so that a string without an end costs
# one walk. Possessive quantifiers would do as well, but Python before 3.11.4 reads several of them wrongly.
_STOPS: Final = {
    "'": re.compile(r"\\.|['\n\r]", re.DOTALL),
    '"': re.compile(r'\\.|["\n\r]', re.DOTALL),
    "'''": re.compile(r"\\.|'''", re.DOTALL),
    '"""': re.compile(r'\\.|"""', re.DOTALL),
}
_PARAMETER = re.compile(r"@([A-Za-z_][A-Za-z0-9_]*)")
_SYMBOL = re.compile(r"\|>|\|\||<=|>=|!=|<>|=>|->|<<|[()\[\],.;*+\-/=<>|&^~:]")
_LEGACY = re.compile(r"#\s*legacy\s*sql", re.IGNORECASE)
_SIMPLE_ESCAPES: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", '"': '"', "'": "'", "`": "`",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\?\"'`])|[xX]([0-9A-Fa-f]{2})|([0-3][0-7]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|)"
)


def check_size(text: str) -> Fault | None:
    """Return what is wrong with the text as a whole: too big, or nothing that UTF-8 can carry."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as exc:
        return Fault(
            "character_not_allowed",
            "The query contains an unpaired surrogate, so it is not valid Unicode.",
            exc.start,
        )
    if size > MAX_QUERY_BYTES:
        return Fault(
            "query_too_long",
            f"The query has {size:,} bytes, but at most {MAX_QUERY_BYTES:,} bytes are allowed.",
            0,
        )
    return None


def read_tokens(source: SourceText) -> tuple[list[Token], list[Fault]]:
    r"""Return the tokens of a text that passed ``check_size``, ended by one "end" token, and the faults found.

    A fault that only makes one token wrong travels in that token (kind "bad"), because a dashed project name
    may yet swallow it; the others stop the query by themselves.

    Example:
        >>> tokens, faults = read_tokens(SourceText("SELECT 'a\\x41'"))
        >>> [t.value for t in tokens], faults
        (['SELECT', 'aA', ''], [])
    """
    tokens: list[Token] = []
    faults: list[Fault] = []
    depth = 0
    text = source.text
    position = 0
    while True:
        token, fault = _next(text, position)
        if fault is not None:
            faults.append(fault)
            break
        if token is None:
            break
        position = token.end
        if token.kind == "end":
            continue
        tokens.append(token)
        if len(tokens) > MAX_TOKENS:
            faults.append(Fault("query_too_long", f"The query has more than {MAX_TOKENS:,} tokens.", token.start))
            break
        if token.kind == "symbol" and token.value in {"(", "["}:
            depth += 1
            if depth > MAX_NESTING:
                faults.append(_too_deep(token.start))
                break
        elif token.kind == "symbol" and token.value in {")", "]"}:
            depth -= 1
    tokens.append(Token("end", "", "", position, position))
    return tokens, faults


def _too_deep(at: int) -> Fault:
    return Fault(
        "query_too_deep",
        f"The query nests deeper than {MAX_NESTING} levels.",
        at,
        "Move inner parts to a WITH clause.",
    )


def _next(text: str, position: int) -> tuple[Token | None, Fault | None]:
    """Return the token at ``position``; blanks and comments come as an "end" token that is skipped."""
    if position >= len(text):
        return None, None
    char = text[position]
    if match := _SPACE.match(text, position):
        return Token("end", "", "", position, match.end()), None
    if text.startswith(("--", "#"), position):
        return _comment(_LINE_COMMENT.match(text, position), text, position)
    if text.startswith("/*", position):
        return _comment(_BLOCK_COMMENT.match(text, position), text, position)
    if match := _STRING.match(text, position):
        return _literal(text, match)
    if match := _NAME.match(text, position):
        word = match.group()
        return Token("name", word, word.upper(), position, match.end()), None
    if char == "`":
        return _quoted(text, position)
    if char.isascii() and (char.isdigit() or (char == "." and text[position + 1 : position + 2].isdigit())):
        return _number(text, position), None
    if char == "@":
        return _parameter(text, position)
    if match := _SYMBOL.match(text, position):
        return Token("symbol", match.group(), "", position, match.end()), None
    return None, _stranger(char, position)


def _comment(match: re.Match[str] | None, text: str, position: int) -> tuple[Token | None, Fault | None]:
    if match is None:
        return None, Fault("comment_open", "The comment that starts here has no end.", position)
    comment = match.group()
    for index, char in enumerate(comment):
        if not char.isprintable() and char not in "\t\n" and not comment[index:].startswith("\r\n"):
            if char == "\r" and text.startswith("\r\n", position + index):
                continue
            # What ends a line for one reader and not for another would hide text from one of them.
            return None, _stranger(char, position + index)
    if _LEGACY.match(comment):
        return None, Fault("legacy_sql", "Legacy SQL is not allowed. Write GoogleSQL.", position)
    return Token("end", "", "", position, match.end()), None


def _stranger(char: str, at: int) -> Fault:
    name = unicodedata.name(char, "a control character")
    plain = unicodedata.normalize("NFKC", char)
    if char == "?":
        return Fault("parameter_positional", "Parameters need names, such as @from.", at, "@name")
    rewrite = f"Write {plain} instead." if plain != char and plain.isascii() and plain.isprintable() else None
    return Fault(
        "character_not_allowed",
        f"The character U+{ord(char):04X} ({name.lower()}) is not allowed outside of strings.",
        at,
        rewrite,
    )


def _literal(text: str, opening: re.Match[str]) -> tuple[Token | None, Fault | None]:
    prefix = (opening.group("prefix") or "").lower()
    quote = opening.group("quote")
    start = opening.start()
    body = opening.end()
    end = _end_of_body(text, quote, body)
    if end is None:
        line = " on its line" if len(quote) == 1 else ""
        return None, Fault("string_open", f"The string that starts here has no end{line}.", start)
    raw = text[body : end - len(quote)].replace("\r\n", "\n").replace("\r", "\n")
    is_bytes = "b" in prefix
    if "\0" in raw:
        return None, _stranger("\0", start)
    try:
        value = raw if "r" in prefix else _unescape(raw, is_bytes=is_bytes)
    except ValueError as exc:
        return None, Fault(
            "string_escape", f"The string has an escape that GoogleSQL does not know: {exc}.", start
        )
    if isinstance(value, str) and is_bytes:
        value = value.encode()
    return Token("bytes" if isinstance(value, bytes) else "string", value, "", start, end), None


def _end_of_body(text: str, quote: str, body: int) -> int | None:
    """Return where the string whose text begins at ``body`` ends, behind its quotes, or None when it does not."""
    for stop in _STOPS[quote].finditer(text, body):
        if stop.group() == quote:
            return stop.end()
        if not stop.group().startswith("\\"):
            return None
    return None


def _unescape(raw: str, *, is_bytes: bool) -> str | bytes:
    def pieces() -> Iterator[str | bytes]:
        last = 0
        for match in _ESCAPE.finditer(raw):
            yield raw[last : match.start()]
            last = match.end()
            simple, hexa, octal, short, long = match.groups()
            if simple:
                yield _SIMPLE_ESCAPES[simple]
            elif hexa or octal:
                code = int(hexa, 16) if hexa else int(octal, 8)
                if code > 0x7F and not is_bytes:
                    # A string's \x and octal escapes name code points in GoogleSQL.
                    yield chr(code)
                else:
                    yield bytes([code])
            elif short or long:
                if is_bytes:
                    raise ValueError("\\u in bytes")
                code = int(short or long, 16)
                if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
                    raise ValueError(f"U+{code:X} is not a character")
                yield chr(code)
            else:
                raise ValueError(raw[match.start() : match.start() + 2])
        yield raw[last:]

    if is_bytes:
        return b"".join(p.encode() if isinstance(p, str) else p for p in pieces())
    return "".join(p if isinstance(p, str) else p.decode("latin-1") for p in pieces())


def _quoted(text: str, start: int) -> tuple[Token | None, Fault | None]:
    end = text.find("`", start + 1)
    if end < 0 or "\n" in text[start:end] or "\r" in text[start:end]:
        return None, Fault("identifier_open", "The quoted name that starts here has no end.", start)
    name = text[start + 1 : end]
    if not name:
        return None, Fault("identifier_invalid", "A quoted name can't be empty.", start)
    if "\\" in name:
        return None, Fault(
            "identifier_escape", "Escapes in quoted names are not allowed.", start, "Write the name itself."
        )
    for char in name:
        if not char.isprintable():
            return None, _stranger(char, start)
    if not name.isascii() and unicodedata.normalize("NFKC", name).casefold().isascii():
        return None, Fault(
            "identifier_lookalike",
            "The name has characters that only look like plain letters. A reader could mistake the name for "
            "another name.",
            start,
            f"`{unicodedata.normalize('NFKC', name).casefold()}`",
        )
    return Token("quoted", name, "", start, end + 1), None


def _number(text: str, start: int) -> Token:
    kind: TokenKind = "integer"
    match = _HEX.match(text, start)
    if match is None:
        match = _FLOAT.match(text, start)
        kind = "float" if match else "integer"
    if match is None:
        match = _INTEGER.match(text, start)
    assert match is not None  # the caller saw a digit
    if _NAME.match(text, match.end()) or text.startswith("`", match.end()):
        fault = Fault("number_invalid", "A blank or an operator must follow a number.", start)
        return Token("bad", match.group(), "", start, match.end(), fault)
    return Token(kind, match.group(), "", start, match.end())


def _parameter(text: str, start: int) -> tuple[Token | None, Fault | None]:
    if text.startswith("@@", start):
        return None, Fault("system_variable", "System variables (@@...) are not allowed.", start)
    match = _PARAMETER.match(text, start)
    if match is None:
        return None, Fault(
            "parameter_invalid", "The name of a parameter must follow @. Hints are not allowed.", start
        )
    return Token("parameter", match.group(1), "", start, match.end()), None
