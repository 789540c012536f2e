"""The nightly merge: one job a night, however many replicas there are, and one that was missed is made up for."""

import time as clock
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from typing import Final

import structlog

from model.errors import RefeedError

_LOG: Final = structlog.get_logger()
# After a night that could not be started: the registry or the store does not answer.
_RETRY_SECONDS: Final = 60.0

# Makes the merge of a night, by an idempotency key that every replica makes the same; of nothing it makes none.
CreateNightly = Callable[[str], None]


def latest_night(now: datetime, at: time) -> datetime:
    """Return the last moment, not behind ``now``, at which a nightly merge was due; all in UTC.

    Example:
        >>> latest_night(datetime(2026, 3, 29, 0, 14, tzinfo=UTC), time(0, 15))
        datetime.datetime(2026, 3, 28, 0, 15, tzinfo=datetime.timezone.utc)
    """
    due = datetime.combine(now.astimezone(UTC).date(), at, UTC)
    return due if due <= now else due - timedelta(days=1)


def night_key(due: datetime) -> str:
    """Return the idempotency key of a night's merge.

    Example:
        >>> night_key(datetime(2026, 3, 29, 0, 15, tzinfo=UTC))
        'merge-2026-03-29'
    """
    return f"merge-{due:%Y-%m-%d}"


class Nightly:
    """Creates each night's merge; :meth:`tick` may be called as often as one likes.

    A merge takes everything since the last one, so of several nights that were missed only the last is made up
    for. ``at`` is a time of day in UTC, which knows no daylight saving; None is never.
    """

    def __init__(
        self,
        create: CreateNightly,
        at: time | None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        steady: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._create = create
        self._at = at
        self._now = now
        self._steady = steady
        self._done: str | None = None
        self._tried_at: float | None = None

    def tick(self) -> None:
        """Create the merge of the last night, unless this replica has seen to it."""
        if self._at is None or (key := night_key(latest_night(self._now(), self._at))) == self._done:
            return
        if self._tried_at is not None and self._steady() - self._tried_at < _RETRY_SECONDS:
            return
        self._tried_at = self._steady()
        try:
            self._create(key)
        except RefeedError as exc:
            _LOG.warning("the nightly merge could not be created; trying again", key=key, problem=exc.message)
            return
        self._done, self._tried_at = key, None
