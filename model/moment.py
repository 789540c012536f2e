"""Times as people and programs write and read them, and how far clocks are believed."""

import re
from datetime import UTC, datetime, time, timedelta
from typing import Final, overload

# Clocks of machines that work together differ by so much at most: of streams, the API, Pub/Sub and the warehouse.
CLOCK_SKEW: Final = timedelta(minutes=2)
_AGE: Final = re.compile(r"(\d{1,6})(s|m|h|d)", re.ASCII)
_CLOCK: Final = re.compile(r"\d\d:\d\d(:\d\d)?", re.ASCII)
_DAY: Final = timedelta(days=1)
_UNITS: Final = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1), "d": _DAY}
_DAYS_AGO: Final = {"today": 0, "yesterday": 1}
TIME_FORMS: Final = (
    "2026-01-02T03:04:05Z, 2026-01-02, today, yesterday, a time of day such as 02:00, or an age such as 2h"
)


def parse_moment(text: str, now: datetime | None = None, *, after: datetime | None = None) -> datetime:
    """Return the time that a person wrote, in UTC; a time without an offset is in UTC.

    ``2h`` is two hours ago, ``02:00`` the last time that it was two o'clock, and a day its midnight. The end of a
    range is ``after`` the range's start.

    Raises:
        ValueError: it is no time, or a time of day that has not come since ``after``.

    Example:
        >>> now = datetime(2026, 1, 2, 12, tzinfo=UTC)
        >>> for text in ("2026-01-02T03:04+01:00", "90m", "02:00", "23:00", "yesterday"):
        ...     print(render_moment(parse_moment(text, now)))
        2026-01-02T02:04:00Z
        2026-01-02T10:30:00Z
        2026-01-02T02:00:00Z
        2026-01-01T23:00:00Z
        2026-01-01T00:00:00Z
    """
    text, now = text.strip(), (now or datetime.now(UTC)).astimezone(UTC)
    try:
        if (age := _AGE.fullmatch(text)) is not None:
            return now - int(age[1]) * _UNITS[age[2]]
        if text in _DAYS_AGO:
            return datetime.combine(now.date() - _DAYS_AGO[text] * _DAY, time(), UTC)
        if _CLOCK.fullmatch(text):
            today = datetime.combine(now.date(), time.fromisoformat(text), UTC)
            found = today if today <= now else today - _DAY
        else:
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise ValueError(f"{text[:40]!r} is not a time. Write it like this: {TIME_FORMS}") from exc
    if after is not None and found <= after:
        raise ValueError(f"{text} has not come yet since {render_moment(after)}")
    return found


@overload
def render_moment(moment: datetime) -> str: ...
@overload
def render_moment(moment: None) -> None: ...
@overload
def render_moment(moment: datetime | None) -> str | None: ...
def render_moment(moment: datetime | None) -> str | None:
    """Return ``moment`` as RFC 3339 with Z.

    Example:
        >>> render_moment(datetime(2026, 1, 1, tzinfo=UTC))
        '2026-01-01T00:00:00Z'
    """
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def render_time(moment: datetime | None) -> str | None:
    """Return ``moment``, which is in UTC, as RFC 3339 with microseconds and Z, also where they are 0.

    Example:
        >>> render_time(datetime(2026, 1, 1, tzinfo=UTC))
        '2026-01-01T00:00:00.000000Z'
        >>> render_time(datetime(236, 1, 1, tzinfo=UTC))
        '0236-01-01T00:00:00.000000Z'
    """
    # strftime's %Y has as many digits as the year.
    return None if moment is None else f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
