"""What a list is asked for: its filter (AIP-160), its order (AIP-132) and the token of its next page (AIP-158)."""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from jobs.store import Condition, SortOrder
from model.errors import RequestInvalidError
from model.job import JobState

TEXT_FIELDS: Final = ("id", "state", "topic", "created_by")
TIME_FIELDS: Final = ("created_at", "started_at", "finished_at")
# A time that a job does not have yet has no place in an order.
ORDER_FIELDS: Final = ("id", "state", "topic", "created_by", "created_at")
MAX_FILTER_CHARACTERS: Final = 2000
_MAX_RESTRICTIONS: Final = 50
_MAX_DEPTH: Final = 20
_NEGATED: Final[Mapping[str, str]] = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<sign><=|>=|!=|=|<|>|:|\(|\)|-(?=[A-Za-z(]))"
    r"|(?P<word>[^\s\"'()=<>!:]+))",
    re.DOTALL,
)
_ROW_TOKEN: Final = re.compile(r"row ([0-9]{1,18})")
_LABEL: Final = re.compile(r"labels\.([a-z][a-z0-9_-]{0,62})")


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A list's conditions, all of which hold for what it shows, and its order; the id decides between equals."""

    conditions: tuple[Condition, ...]
    order: tuple[SortOrder, ...]

    def digest(self) -> str:
        """Return what tells this list from others: a page token is good for one list only."""
        parts = [
            [[c.field, c.op, _plain(c.value)] for c in self.conditions],
            [[o.field, o.descending] for o in self.order],
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def parse_list_query(filter_text: str = "", order_text: str = "") -> ListQuery:
    """Return what a list is asked for.

    Without an order the newest come first.

    Raises:
        RequestInvalidError: one or both are wrong; ``details["errors"]`` says where.

    Example:
        >>> query = parse_list_query('state = RUNNING AND topic = "orders"')
        >>> [(c.field, c.op, c.value) for c in query.conditions]
        [('state', '=', 'RUNNING'), ('topic', '=', 'orders')]
        >>> [(o.field, o.descending) for o in query.order]
        [('id', True)]
    """
    errors: list[dict[str, Any]] = []
    conditions: tuple[Condition, ...] = ()
    order: tuple[SortOrder, ...] = ()
    try:
        conditions = _FilterParser(filter_text).parse()
    except _FaultError as exc:
        errors.append(exc.item("filter_invalid", "/filter"))
    try:
        order = _parse_order(order_text)
    except _FaultError as exc:
        errors.append(exc.item("order_by_invalid", "/order_by"))
    if errors:
        raise RequestInvalidError("; ".join(error["message"] for error in errors), errors=errors)
    return ListQuery(conditions, order)


def render_page_token(query: ListQuery, last: Sequence[Any]) -> str:
    """Return the token of the page behind the one whose last job has the values ``last`` in the list's order."""
    content = json.dumps([query.digest(), [_plain(value) for value in last]], separators=(",", ":"))
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def parse_page_token(token: str, query: ListQuery) -> tuple[Any, ...]:
    """Return the values that :func:`render_page_token` was given for a page of the same list.

    Raises:
        RequestInvalidError: the token is not one that a page gave, or was given for another filter or order.
    """
    try:
        digest, last = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        values = tuple(_typed(order.field, value) for order, value in zip(query.order, last, strict=True))
    except (binascii.Error, ValueError, TypeError):
        _refuse_token("The page_token is not one that a page of this list gave.")
    if digest != query.digest():
        _refuse_token("The page_token was given for another filter or order_by; start at the first page.")
    return values


def render_row_token(row: int) -> str:
    """Return the token of the page behind the one that ended with a row of a selection."""
    return base64.urlsafe_b64encode(f"row {row}".encode()).decode().rstrip("=")


def parse_row_token(token: str | None) -> int:
    """Return the row that :func:`render_row_token` was given; -1 without a token, in front of all rows.

    Raises:
        RequestInvalidError: the token is not one that a page gave.

    Example:
        >>> parse_row_token(render_row_token(41)), parse_row_token(None)
        (41, -1)
    """
    if not token:
        return -1
    try:
        match = _ROW_TOKEN.fullmatch(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("ascii"))
    except (binascii.Error, ValueError):
        match = None
    if match is None:
        _refuse_token("The page_token is not one that a page gave.")
    return int(match[1])


def _refuse_token(message: str) -> NoReturn:
    error = {"code": "page_token_invalid", "message": message, "pointer": "/page_token"}
    raise RequestInvalidError(message, errors=[error])


def _typed(field: str, value: Any) -> Any:
    if not isinstance(value, str):
        raise TypeError(f"{field} is a text in a token")
    return datetime.fromisoformat(value) if field in TIME_FIELDS else value


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


class _FaultError(Exception):
    """A fault at a character of a text, counted from 1."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column

    def item(self, code: str, pointer: str) -> dict[str, Any]:
        """Return it as one of a problem's errors."""
        message = f"{pointer.removeprefix('/')}, column {self.column}: {self}"
        return {"code": code, "message": message, "pointer": pointer, "line": 1, "column": self.column}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


@dataclass(frozen=True, slots=True)
class _Restriction:
    """A field, a sign and a value; ``values`` has several when any of them will do."""

    field: str
    sign: str
    values: tuple[Any, ...]
    column: int

    def condition(self) -> Condition:
        value = self.values[0] if len(self.values) == 1 else self.values
        return Condition(self.field, self.sign, value)


# All of them hold.
_Conjunction = tuple[_Restriction, ...]


class _FilterParser:
    """AIP-160's grammar: OR binds tighter than AND, NOT and ``-`` tighter than both.

    The store asks for conditions that hold together, so an OR is one between values of one field.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_FILTER_CHARACTERS:
            raise _FaultError(f"A filter has {MAX_FILTER_CHARACTERS} characters at most.", MAX_FILTER_CHARACTERS)
        self._text = text
        self._tokens = _read_tokens(text)
        self._place = 0
        self._depth = 0

    def parse(self) -> tuple[Condition, ...]:
        if self._peek().kind == "end":
            return ()
        found = self._expression()
        if self._peek().kind != "end":
            self._fail(f"{self._peek().text!r} is not expected here; AND, OR or the end is.")
        if len(found) > _MAX_RESTRICTIONS:
            raise _FaultError(f"A filter has {_MAX_RESTRICTIONS} conditions at most.", 1)
        return tuple(restriction.condition() for restriction in found)

    def _expression(self) -> _Conjunction:
        found = self._factor()
        while self._is_word("AND"):
            self._next()
            found += self._factor()
        return found

    def _factor(self) -> _Conjunction:
        column = self._peek().column
        terms = [self._term()]
        while self._is_word("OR"):
            self._next()
            terms.append(self._term())
        return terms[0] if len(terms) == 1 else (_either(terms, column),)

    def _term(self) -> _Conjunction:
        token = self._peek()
        if self._is_word("NOT") or token.text == "-":
            self._next()
            return _negate(self._simple(), token.column)
        return self._simple()

    def _simple(self) -> _Conjunction:
        if self._peek().kind == "sign" and self._peek().text == "(":
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                self._fail(f"Brackets lie {_MAX_DEPTH} deep at most.")
            self._next()
            found = self._expression()
            if self._peek().text != ")":
                self._fail("A ) is missing here.")
            self._next()
            self._depth -= 1
            return found
        return (self._restriction(),)

    def _restriction(self) -> _Restriction:
        field = self._next()
        if field.kind != "word" or field.text in {"AND", "OR", "NOT"}:
            self._fail(f"A field is missing here: one of {', '.join(_fields())}.", field.column)
        sign = self._next()
        if sign.kind != "sign" or sign.text in {"(", ")", "-"}:
            self._fail("A sign is missing here: one of = != < <= > >= :.", sign.column)
        value = self._next()
        if value.kind not in {"word", "text"}:
            self._fail("A value is missing here; quote it when it has blanks or signs.", value.column)
        # RFC 3339 has colons, which are signs where nothing is quoted.
        text, end = _unquote(value), value.column + len(value.text)
        while value.kind == "word" and self._continues(end):
            part = self._next()
            text, end = text + part.text, part.column + len(part.text)
        return _check(field, sign, text, value.column, is_quoted=value.kind == "text")

    def _continues(self, end: int) -> bool:
        token = self._peek()
        return token.column == end and (token.text == ":" or token.kind == "word")

    def _peek(self) -> _Token:
        return self._tokens[self._place]

    def _next(self) -> _Token:
        token = self._tokens[self._place]
        self._place = min(self._place + 1, len(self._tokens) - 1)
        return token

    def _is_word(self, word: str) -> bool:
        return (self._peek().kind, self._peek().text) == ("word", word)

    def _fail(self, message: str, column: int | None = None) -> NoReturn:
        raise _FaultError(message, self._peek().column if column is None else column)


def _read_tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    place, end = 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            start = place + len(text[place:]) - len(text[place:].lstrip())
            raise _FaultError(f"{text[start]!r} is not expected here; is a quote not closed?", start + 1)
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
        place = match.end()
    return [*tokens, _Token("end", "the end", len(text) + 1)]


def _unquote(token: _Token) -> str:
    return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL) if token.kind == "text" else token.text


def _fields() -> tuple[str, ...]:
    return (*TEXT_FIELDS, *TIME_FIELDS, "labels.KEY")


def _check(field: _Token, sign: _Token, text: str, column: int, *, is_quoted: bool) -> _Restriction:
    """Return the restriction when its field, sign and value go together."""
    name, restriction = field.text, _Restriction(field.text, sign.text, (text,), field.column)
    if _LABEL.fullmatch(name):
        if sign.text == ":" and (text != "*" or is_quoted):
            raise _FaultError(f"{name}:* asks whether the label is there; compare its value with =.", column)
        if sign.text not in {"=", "!=", ":"}:
            raise _FaultError("A label takes =, != or :*.", sign.column)
        return restriction
    if name not in {*TEXT_FIELDS, *TIME_FIELDS}:
        raise _FaultError(f"There is no field {name[:60]!r}; there are {', '.join(_fields())}.", field.column)
    if sign.text == ":":
        raise _FaultError(f"{name} takes =, !=, <, <=, > or >=; : is for labels.", sign.column)
    if name == "state" and text not in set(JobState):
        raise _FaultError(f"{text[:60]!r} is no state; there are {', '.join(JobState)}.", column)
    if name == "state" and sign.text not in {"=", "!="}:
        raise _FaultError("state takes = or !=.", sign.column)
    if name in TIME_FIELDS:
        return replace(restriction, values=(_parse_time(text, column),))
    return restriction


def _parse_time(text: str, column: int) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _FaultError(f"{text[:60]!r} is no RFC 3339 time, such as 2026-01-01T00:00:00Z.", column) from None
    try:
        # A date alone, or a time without a zone, is UTC like every time that the API shows.
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except OverflowError:
        raise _FaultError(f"{text[:60]!r} lies outside of the calendar.", column) from None


def _either(terms: Sequence[_Conjunction], column: int) -> _Restriction:
    first = terms[0][0]
    if any(len(term) != 1 or (term[0].field, term[0].sign) != (first.field, "=") for term in terms):
        raise _FaultError(
            "OR stands between values of one field only, as in state = PENDING OR state = RUNNING.",
            column,
        )
    return replace(first, values=tuple(value for (restriction,) in terms for value in restriction.values))


def _negate(found: _Conjunction, column: int) -> _Conjunction:
    if len(found) != 1:
        raise _FaultError("NOT stands before one condition; write one before each.", column)
    (restriction,) = found
    if restriction.sign == ":":
        raise _FaultError("NOT does not go with :*.", column)
    sign = _NEGATED[restriction.sign]
    # None of several values: a condition for each, which hold together.
    return tuple(replace(restriction, sign=sign, values=(value,)) for value in restriction.values)


def _parse_order(text: str) -> tuple[SortOrder, ...]:
    orders: list[SortOrder] = []
    column = 1
    for part in text.split(",") if text.strip() else ():
        words = part.split()
        at = column + len(part) - len(part.lstrip())
        if not words or len(words) > 2 or words[1:] not in ([], ["asc"], ["desc"]):  # noqa: PLR2004 - field, way
            raise _FaultError("An order is a field, or a field and desc, with commas between.", at)
        if words[0] not in ORDER_FIELDS:
            raise _FaultError(f"There is no order by {words[0][:60]!r}; by {', '.join(ORDER_FIELDS)}.", at)
        if any(order.field == words[0] for order in orders):
            raise _FaultError(f"{words[0]} stands in the order twice.", at)
        orders.append(SortOrder(words[0], words[1:] == ["desc"]))
        column += len(part) + 1
    if any(order.field == "id" for order in orders):
        return tuple(orders)
    # An id begins with the time it was made: the newest first, as without any order.
    return (*orders, SortOrder("id", descending=True))
