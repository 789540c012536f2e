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
_WORST: Final = ("lag_seconds", "backlog_messages", "batch_seconds")


def history_start(over: Over, now: datetime) -> datetime:
    """Return when the first point of a history begins."""
    width, step = SPANS[over]
    return _floor(now, step) - width + step


def render_history(points: Sequence[FigurePoint], over: Over, now: datetime) -> list[dict[str, Any]]:
    """Return one point a step, oldest first, the step that is under way among them.

    Of several minutes in one step the rate is their mean, and lag, backlog and batch are their worst. A step that
    nobody recorded has nulls alone.
    """
    step = SPANS[over][1]
    start = history_start(over, now)
    buckets: dict[datetime, list[Mapping[str, Any]]] = {}
    for point in points:
        buckets.setdefault(_floor(point.at, step), []).append(point.figures)
    count = (_floor(now, step) - start) // step + 1
    starts = [start + number * step for number in range(count)]
    return [{"start": render_time(each), **_sum_up(buckets.get(each, ()))} for each in starts]


def _sum_up(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rates = _known(found, "rate_messages_per_second")
    return {
        "state": found[-1]["state"] if found else None,
        "rate_messages_per_second": round(sum(rates) / len(rates), 3) if rates else None,
        **{name: max(_known(found, name), default=None) for name in _WORST},
    }


def _known(found: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [figures[name] for figures in found if figures.get(name) is not None]


def _floor(moment: datetime, step: timedelta) -> datetime:
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (moment - midnight) // step * step
