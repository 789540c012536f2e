"""Charts of messages per second over time."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from console.view import parse_time

_HEIGHT: Final = 100.0


def draw_rates(intervals: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return bars of what was published a second, as wide as their time, and the limit as a line; None of none.

    An interval with an unknown rate is drawn as unknown, never as a bar without height.

    Example:
        >>> interval = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T00:00:10Z", "over_seconds": 10.0,
        ...     "rate_messages_per_second": 50.0, "rate_limit_messages_per_second": 100.0, "state": "RUNNING"}
        >>> drawn = draw_rates([interval])
        >>> (drawn["bars"][0]["width"], drawn["bars"][0]["height"], drawn["limit"], drawn["most"])
        (100.0, 50.0, 'M0.00 0.00H100.00', 100.0)
    """
    if not intervals:
        return None
    first = parse_time(intervals[0]["start"])
    whole = (parse_time(intervals[-1]["end"]) - first).total_seconds() or 1.0
    rates = [each["rate_messages_per_second"] for each in intervals]
    limits = [each["rate_limit_messages_per_second"] for each in intervals]
    fastest = max((rate for rate in rates if rate is not None), default=0.0)
    # A limit far above what it came to would leave the bars without height.
    most = max([fastest, *(limit for limit in limits if limit is not None and limit <= 4 * fastest)]) or 1.0
    bars, limit = [], []
    for each, rate, bound in zip(intervals, rates, limits, strict=True):
        x = 100.0 * (parse_time(each["start"]) - first).total_seconds() / whole
        width = 100.0 * each["over_seconds"] / whole
        height = _HEIGHT if rate is None else _HEIGHT * rate / most
        bars.append({**each, "x": x, "width": width, "height": height, "is_known": rate is not None})
        if bound is not None and bound <= most:
            limit.append(f"M{x:.2f} {_HEIGHT - _HEIGHT * bound / most:.2f}H{x + width:.2f}")
    return {
        "bars": bars,
        "limit": " ".join(limit),
        "is_limit_above": any(bound is not None and bound > most for bound in limits),
        "most": most,
        "start": intervals[0]["start"],
        "end": intervals[-1]["end"],
    }
