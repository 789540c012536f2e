"""Times until which something waits or is held, and those that no clock that is right has set."""

from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

# Twice the longest lease and the longest wait of a webhook.
_LONGEST: Final = timedelta(hours=2)


def is_over(until: datetime, now: datetime) -> bool:
    """Whether what waits until then waits no more: the time has come, or a clock that was ahead has set it.

    Example:
        >>> now = datetime(2026, 3, 1)
        >>> [is_over(now + timedelta(hours=hours), now) for hours in (-1, 1, 24)]
        [True, False, True]
    """
    return not now < until <= now + _LONGEST


def has_passed(until: ColumnElement[datetime], now: datetime) -> ColumnElement[bool]:
    """Return :func:`is_over` of a column as a condition."""
    return sa.or_(until <= now, until > now + _LONGEST)
