"""Page tokens (AIP-158): where a page ended, and to which list it belongs."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, TypeVar

from jobs.store import JobFilter, SortOrder
from model.errors import RequestInvalidError

_TIME_FIELDS: Final = frozenset({"created_at"})
_Content = TypeVar("_Content")


def render_page_token(where: JobFilter, order: Sequence[SortOrder], last: Sequence[Any]) -> str:
    """Return the token of the next page; ``last`` has the last job's values of the order's fields."""
    return _render(json.dumps([_digest(where, order), list(last)], separators=(",", ":"), default=_plain))


def parse_page_token(token: str, where: JobFilter, order: Sequence[SortOrder]) -> tuple[Any, ...]:
    """Return the values that :func:`render_page_token` got for a page of the same list.

    Raises:
        RequestInvalidError: no page gave the token, or it belongs to another filter or order.
    """

    def read(content: str) -> tuple[bool, tuple[Any, ...]]:
        digest, last = json.loads(content)
        is_same = digest == _digest(where, order)
        return is_same, tuple(_typed(part.field, value) for part, value in zip(order, last, strict=is_same))

    is_same, values = _parse(token, read)
    if not is_same:
        _refuse("The page_token belongs to a list with another filter or order_by. Start at the first page.")
    return values


def render_event_token(at: datetime, number: int) -> str:
    """Return the token of the next page after an event's time and number."""
    return _render(f"event {at.isoformat()} {number}")


def parse_event_token(token: str | None) -> tuple[datetime, int] | None:
    """Return the time and number in a token of :func:`render_event_token`; None without a token.

    Raises:
        RequestInvalidError: the token is not one that a page gave.

    Example:
        >>> parse_event_token(render_event_token(datetime(2026, 1, 2, tzinfo=UTC), 7))
        (datetime.datetime(2026, 1, 2, 0, 0, tzinfo=datetime.timezone.utc), 7)
    """
    if not token:
        return None

    def read(content: str) -> tuple[datetime, int]:
        at, _, number = _matching(r"event (\S{1,40} [0-9]{1,18})")(content).partition(" ")
        return datetime.fromisoformat(at).astimezone(UTC), int(number)

    return _parse(token, read)


def render_row_token(row: int) -> str:
    """Return the token of the next page after a row of a selection or an entry of a log."""
    return _render(f"row {row}")


def parse_row_token(token: str | None) -> int:
    """Return the row in a token of :func:`render_row_token`; without a token -1, before all rows.

    Raises:
        RequestInvalidError: the token is not one that a page gave.

    Example:
        >>> parse_row_token(render_row_token(41)), parse_row_token(None)
        (41, -1)
    """
    return int(_parse(token, _matching(r"row ([0-9]{1,18})"))) if token else -1


def render_id_token(last_id: str) -> str:
    """Return the token of the next page after ``last_id``."""
    return _render(f"id {last_id}")


def parse_id_token(token: str | None) -> str | None:
    """Return the id in a token of :func:`render_id_token`; None without a token.

    Raises:
        RequestInvalidError: the token is not one that a page gave.

    Example:
        >>> parse_id_token(render_id_token("sn_01M7Z1H20HKNZ6PGKRYCX6J210")), parse_id_token(None)
        ('sn_01M7Z1H20HKNZ6PGKRYCX6J210', None)
    """
    return _parse(token, _matching(r"id ([a-z]{2,3}_[0-9A-Z]{26})")) if token else None


def _render(content: str) -> str:
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def _parse(token: str, read: Callable[[str], _Content]) -> _Content:
    """Decode a token and parse it with ``read``; tokens come from callers and may hold anything."""
    try:
        return read(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    except (ValueError, TypeError, OverflowError, RecursionError):
        _refuse("The page_token belongs to another list.")


def _matching(pattern: str) -> Callable[[str], str]:
    def read(content: str) -> str:
        match = re.fullmatch(pattern, content, re.ASCII)
        if match is None:
            raise ValueError("the text is of another list")
        return match[1]

    return read


def _digest(where: JobFilter, order: Sequence[SortOrder]) -> str:
    """Return a digest of the list: a token is valid only for the list that gave it."""
    parts = [asdict(where), [[part.field, part.descending] for part in order]]
    return hashlib.sha256(json.dumps(parts, default=_plain).encode()).hexdigest()[:16]


def _refuse(message: str) -> NoReturn:
    raise RequestInvalidError.of("page_token_invalid", message, "/page_token")


def _typed(field: str, value: Any) -> Any:
    if not isinstance(value, str):
        raise TypeError(f"{field} is a text in a token")
    return datetime.fromisoformat(value).astimezone(UTC) if field in _TIME_FIELDS else value


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"a token holds no {type(value).__name__}")
