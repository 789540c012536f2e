"""Times as people and programs read them, and how far clocks are believed."""

from datetime import UTC, datetime, timedelta
from typing import Final, overload

# Clocks of machines that work together differ by so much at most: of streams, the API, Pub/Sub and the warehouse.
CLOCK_SKEW: Final = timedelta(minutes=2)


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
