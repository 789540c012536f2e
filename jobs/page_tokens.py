"""Tokens of next pages (AIP-158): where a page ended, and of which list it was one."""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from jobs.store import JobFilter, SortOrder
from jobs.store.changes import ChangeCursor, is_change_place
from model.errors import RequestInvalidError

_TIME_FIELDS: Final = frozenset({"created_at"})
_ID_TOKEN: Final = re.compile(r"id ([a-z]{2,3}_[0-9A-Z]{26})")
_ROW_TOKEN: Final = re.compile(r"row ([0-9]{1,18})")


def render_page_token(where: JobFilter, order: Sequence[SortOrder], last: Sequence[Any]) -> str:
    """Return the token of the page after the one whose last job has the values ``last`` in the list's order."""
    content = json.dumps([_digest(where, order), list(last)], separators=(",", ":"), default=_plain)
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def parse_page_token(token: str, where: JobFilter, order: Sequence[SortOrder]) -> tuple[Any, ...]:
    """Return the values that :func:`render_page_token` was given for a page of the same list.

    Raises:
        RequestInvalidError: the token is not one that a page gave, or was given for another filter or order.
    """
    try:
        digest, last = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        is_same = digest == _digest(where, order)
        values = tuple(_typed(part.field, value) for part, value in zip(order, last, strict=is_same))
    except (binascii.Error, ValueError, TypeError, RecursionError):
        _refuse("The page_token is not one that a page of this list gave.")
    if not is_same:
        _refuse("The page_token was given for another filter or order_by; start at the first page.")
    return values


def render_change_token(cursor: ChangeCursor) -> str:
    """Return the token of the page after the one that ended with a change."""
    content = json.dumps([cursor.at.isoformat(), *cursor.place], separators=(",", ":"))
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")


def parse_change_token(token: str | None) -> ChangeCursor | None:
    """Return what :func:`render_change_token` was given; None without a token.

    Raises:
        RequestInvalidError: the token is not one that a page gave.
    """
    if not token:
        return None
    try:
        at, rank, key = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        cursor = ChangeCursor(datetime.fromisoformat(at).astimezone(UTC), (int(rank), str(key)))
    except (binascii.Error, ValueError, TypeError, OverflowError, RecursionError):
        _refuse("The page_token is not one that a page of this list gave.")
    if not is_change_place(*cursor.place):
        _refuse("The page_token is not one that a page of this list gave.")
    return cursor


def render_row_token(row: int) -> str:
    """Return the token of the page after the one that ended with a row of a selection."""
    return base64.urlsafe_b64encode(f"row {row}".encode()).decode().rstrip("=")


def parse_row_token(token: str | None) -> int:
    """Return the row that :func:`render_row_token` was given; -1, before all rows, without a token.

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
        _refuse("The page_token is not one that a page gave.")
    return int(match[1])


def render_id_token(last_id: str) -> str:
    """Return the token of the page after the one that ended with ``last_id``."""
    return base64.urlsafe_b64encode(f"id {last_id}".encode()).decode().rstrip("=")


def parse_id_token(token: str | None) -> str | None:
    """Return the id that :func:`render_id_token` was given; None without a token.

    Raises:
        RequestInvalidError: the token is not one that a page gave.

    Example:
        >>> parse_id_token(render_id_token("sn_01M7Z1H20HKNZ6PGKRYCX6J210")), parse_id_token(None)
        ('sn_01M7Z1H20HKNZ6PGKRYCX6J210', None)
    """
    if not token:
        return None
    try:
        match = _ID_TOKEN.fullmatch(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("ascii"))
    except (binascii.Error, ValueError):
        match = None
    if match is None:
        _refuse("The page_token is not one that a page gave.")
    return match[1]


def _digest(where: JobFilter, order: Sequence[SortOrder]) -> str:
    """Return a digest of the list: a token is good for the list that gave it alone."""
    parts = [asdict(where), [[part.field, part.descending] for part in order]]
    return hashlib.sha256(json.dumps(parts, default=_plain).encode()).hexdigest()[:16]


def _refuse(message: str) -> NoReturn:
    error = {"code": "page_token_invalid", "message": message, "pointer": "/page_token"}
    raise RequestInvalidError(message, errors=[error])


def _typed(field: str, value: Any) -> Any:
    if not isinstance(value, str):
        raise TypeError(f"{field} is a text in a token")
    return datetime.fromisoformat(value) if field in _TIME_FIELDS else value


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"a token holds no {type(value).__name__}")
