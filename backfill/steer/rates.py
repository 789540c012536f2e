"""How fast a backfill went: what was published in each interval, against its limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from jobs.store import Job
from jobs.store.figures import FigurePoint
from model.moment import render_moment

MAX_INTERVALS: Final = 240


@dataclass(frozen=True, slots=True)
class RateInterval:
    """What a backfill did from ``start`` to ``end``; None is unknown.

    ``published`` and ``failed`` are of the interval alone, and None where the totals fell, as they do when dead
    letters are sent again. ``event_time`` was reached at its end, and the limit and the state held then.
    """

    start: str
    end: str
    over_seconds: float
    published: int | None
    failed: int | None
    rate_messages_per_second: float | None
    rate_limit_messages_per_second: float | None
    event_time: str | None
    state: str | None


def rate_intervals(job: Job, points: Sequence[FigurePoint], now: datetime | None = None) -> list[RateInterval]:
    """Return the intervals between the recorded points, from the job's start to its end or to ``now``.

    The start and what the store knows now are points too, so that a job of seconds has an interval. There are
    240 at most: of a long job several minutes make one.
    """
    if job.started_at is None:
        return []
    latest = job.finished_at or now or datetime.now(UTC)
    figures = {
        **job.progress,
        "state": job.state.value,
        "rate_limit_messages_per_second": job.options.get("rate_limit_messages_per_second"),
    }
    inner = [point for point in points if job.started_at < point.at < latest]
    inner = inner[:: max(1, -(-len(inner) // (MAX_INTERVALS - 1)))]
    known = [FigurePoint(job.started_at, {"published": 0, "failed": 0}), *inner, FigurePoint(latest, figures)]
    return [_interval(before, after) for before, after in pairwise(known) if after.at > before.at]


def _interval(before: FigurePoint, after: FigurePoint) -> RateInterval:
    seconds = (after.at - before.at).total_seconds()
    published, failed = (_growth(before, after, name) for name in ("published", "failed"))
    return RateInterval(
        start=render_moment(before.at),
        end=render_moment(after.at),
        over_seconds=round(seconds, 3),
        published=published,
        failed=failed,
        rate_messages_per_second=None if published is None else round(published / seconds, 3),
        rate_limit_messages_per_second=after.figures.get("rate_limit_messages_per_second"),
        event_time=after.figures.get("event_time"),
        state=after.figures.get("state"),
    )


def _growth(before: FigurePoint, after: FigurePoint, name: str) -> int | None:
    earlier, later = (point.figures.get(name) or 0 for point in (before, after))
    return later - earlier if later >= earlier else None
