"""How streams went over the last hour or day: points at even steps, null where nobody measured."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from jobs.store.figures import FigurePoint
from model.moment import render_time

Over = Literal["hour", "day"]
# How far back, and the width of a point.
SPANS: Final[Mapping[Over, tuple[timedelta, timedelta]]] = {
    "hour": (timedelta(hours=1), timedelta(minutes=1)),
    "day": (timedelta(days=1), timedelta(minutes=10)),
}
_PROCESS: Final = ("instance_id", "started_at")
_WORST: Final = ("lag_seconds", "backlog_messages", "batch_seconds")
# A point is kept when the next minute has begun, and is about the minute before.
_MINUTE: Final = timedelta(minutes=1)


def history_start(over: Over, now: datetime) -> datetime:
    """Return when the first point of a history begins."""
    width, step = SPANS[over]
    return _floor(now - _MINUTE, step) - width + step


def render_history(points: Sequence[FigurePoint], over: Over, now: datetime) -> list[dict[str, Any]]:
    """Return one point a step, oldest first, up to the newest whole minute.

    Of several minutes in one step the rate is their mean, and lag, backlog and batch are their worst. A step that
    nobody recorded has nulls alone.
    """
    step = SPANS[over][1]
    start = history_start(over, now)
    buckets: dict[datetime, list[Mapping[str, Any]]] = {}
    for before, point in zip((None, *points), points, strict=False):
        figures = {**point.figures, "rate_messages_per_second": _rate(before, point)}
        buckets.setdefault(_floor(point.at - _MINUTE, step), []).append(figures)
    count = (_floor(now - _MINUTE, step) - start) // step + 1
    starts = [start + number * step for number in range(count)]
    return [{"start": render_time(each), **_sum_up(buckets.get(each, ()))} for each in starts]


def _sum_up(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rates = _known(found, "rate_messages_per_second")
    return {
        "state": found[-1]["state"] if found else None,
        "rate_messages_per_second": round(sum(rates) / len(rates), 3) if rates else None,
        **{name: max(_known(found, name), default=None) for name in _WORST},
    }


def _rate(before: FigurePoint | None, point: FigurePoint) -> float | None:
    """Return the messages a second of a point's minute, by the total of the minute before; a process begins at 0.

    Those of a process that ended in the minute are among them. If the total is unknown, return the stream's own
    rate, whose 60 seconds overlap the minutes beside.
    """
    rate: float | None = point.figures.get("rate_messages_per_second")
    minute, others = point.at - _MINUTE, point.figures.get("others", ())
    last = before.figures if before is not None and before.at == minute else {}
    grown = _growth(point.figures, last, minute)
    if grown is None and any(_is_same(each, last) for each in others):
        # It has followed that process since, and may have waited for that before.
        grown = float(point.figures.get("messages") or 0.0)
    if grown is None:
        return rate
    return (grown + sum(_growth(each, last, minute) or 0.0 for each in others)) / _MINUTE.total_seconds()


def _growth(process: Mapping[str, Any], last: Mapping[str, Any], minute: datetime) -> float | None:
    """Return how many messages a process has counted since the minute began; None is unknown."""
    total, started_at = process.get("messages"), process.get("started_at")
    if total is None:
        return None
    if started_at is not None and datetime.fromisoformat(started_at) >= minute:
        return float(total)
    return max(0.0, float(total - (last.get("messages") or 0.0))) if _is_same(process, last) else None


def _is_same(process: Mapping[str, Any], last: Mapping[str, Any]) -> bool:
    # A process that somebody started by hand has its home's id, as those before it had.
    is_by, was_by = ([each.get(name) for name in _PROCESS] for each in (process, last))
    return is_by == was_by != [None, None]


def _known(found: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [figures[name] for figures in found if figures.get(name) is not None]


def _floor(moment: datetime, step: timedelta) -> datetime:
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (moment - midnight) // step * step
