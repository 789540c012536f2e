"""How fast a backfill went: what was published in each interval, against its limit."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from pydantic import BaseModel, Field

from jobs.store import Job
from jobs.store.figures import FigurePoint

MAX_INTERVALS: Final = 240


class BackfillRate(BaseModel):
    """The figures of a backfill in one interval. Null means unknown."""

    start: datetime = Field(description="Start of the interval.")
    end: datetime = Field(description="End of the interval.")
    over_seconds: float = Field(description="Length of the interval in seconds.")
    published: int | None = Field(
        description="Messages published in the interval. Null if dead letters were sent again in the interval."
    )
    failed: int | None = Field(
        description="Messages that failed in the interval. Null if dead letters were sent again in the interval."
    )
    rate_messages_per_second: float | None = Field(description="The mean rate of the interval.")
    rate_limit_messages_per_second: float | None = Field(
        description="The rate limit at the end of the interval. Null if there was no limit, or if the limit "
        "is unknown."
    )
    event_time: datetime | None = Field(
        description="The latest `publish_time` of the messages that the backfill had replayed when the "
        "interval ended."
    )
    state: str | None = Field(description="The backfill's state at the end of the interval.")


def rate_intervals(job: Job, points: Sequence[FigurePoint], now: datetime | None = None) -> list[BackfillRate]:
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


def _interval(before: FigurePoint, after: FigurePoint) -> BackfillRate:
    seconds = (after.at - before.at).total_seconds()
    published, failed = (_growth(before, after, name) for name in ("published", "failed"))
    return BackfillRate(
        start=before.at,
        end=after.at,
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
