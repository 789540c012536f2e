"""Times and durations as the terminal takes and shows them, in UTC."""

from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from model.errors import InputError
from model.moment import parse_moment as parse_model_moment
from model.moment import render_moment
from model.naming import render_duration

UNKNOWN: Final = "unknown"

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        "--since",
        metavar="TIME",
        help="The start (UTC). Write an RFC 3339 time, a date such as 2026-01-02, today, yesterday, a time of day "
        "such as 02:00, or an age such as 90m, 2h or 3d.",
    ),
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", help="The end, exclusive. Default: now.")]


def parse_moment(text: str | None, option: str, *, now: datetime | None = None) -> str | None:
    """Return a time as the API takes it; the forms are those of :func:`model.moment.parse_moment`.

    Raises:
        InputError: it is no time.

    Example:
        >>> parse_moment("2026-01-02", "--from"), parse_moment("2026-01-02T03:04", "--from")
        ('2026-01-02T00:00:00Z', '2026-01-02T03:04:00Z')
    """
    if text is None:
        return None
    try:
        return render_moment(parse_model_moment(text, now))
    except ValueError as exc:
        raise InputError(f"{option}: {exc}") from exc


def parse_range(
    start: str | None, end: str | None, *, now: datetime | None = None
) -> tuple[str | None, str | None]:
    """Return ``--from`` and ``--to`` as the API takes them; a time of day of the end came after the start.

    Raises:
        InputError: one is no time, or the end has not come yet, or is not after the start.

    Example:
        >>> from datetime import UTC
        >>> parse_range("23:00", "01:00", now=datetime(2026, 1, 2, 3, tzinfo=UTC))
        ('2026-01-01T23:00:00Z', '2026-01-02T01:00:00Z')
    """
    now = now or datetime.now(UTC)
    first = parse_moment(start, "--from", now=now)
    if first is None or end is None:
        return first, parse_moment(end, "--to", now=now)
    begin = datetime.fromisoformat(first)
    try:
        last = parse_model_moment(end, now, after=begin)
    except ValueError as exc:
        hint = ". For a range that ends now, leave out --to." if "not come yet" in str(exc) else ""
        raise InputError(f"--to: {exc}{hint}") from exc
    if last <= begin:
        raise InputError(f"--to ({render_moment(last)}) is not after --from ({first}).")
    return first, render_moment(last)


def render_seconds(seconds: float | None) -> str:
    """Return a duration; None is unknown."""
    return UNKNOWN if seconds is None else render_duration(seconds)


def render_count(count: float | None) -> str:
    """Return a number of things; None is unknown.

    Example:
        >>> render_count(None), render_count(1234567)
        ('unknown', '1,234,567')
    """
    return UNKNOWN if count is None else f"{count:,.0f}"


def render_minute(text: str | None) -> str:
    """Return an RFC 3339 time without its seconds; None is unknown.

    Example:
        >>> render_minute("2026-01-02T03:04:05.000000Z")
        '2026-01-02 03:04'
    """
    return UNKNOWN if text is None else f"{text[:10]} {text[11:16]}"
