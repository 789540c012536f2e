"""Where a topic's messages may have gone: topics with more than usual in the hours in which it had none."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from console.view import parse_time, render_utc
from console.visit import Visit
from console.volumes import WIDTHS

# The API counts 1,000 steps at most.
_MOST_HOURS: Final = 1000
_MOST_TOPICS: Final = 5


def read_elsewhere(
    visit: Visit, topic: str, start: datetime, end: datetime, *, excluded: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the topics with more messages than usual in the hours of the range in which ``topic`` had too few.

    They come out of the counts that the archive keeps: nothing is scanned or billed. There are none where the API
    does not say.
    """
    step = "hour" if end - start < _MOST_HOURS * timedelta(hours=1) else "day"
    window = {"start": render_utc(start), "end": render_utc(end)}
    found = visit.read(f"volumes {step} {window}", lambda: visit.api.read_volumes(step=step, **window))
    if found.problem is not None:
        return []
    named = find_elsewhere(found.data, topic, excluded=excluded)
    return [
        {**each, "start": render_utc(max(each["start"], start)), "end": render_utc(min(each["end"], end))}
        for each in named
    ]


def find_elsewhere(
    volumes: Mapping[str, Any], topic: str, *, excluded: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the topics that surge in a hole of ``topic``, with what they had there, the largest surplus first.

    Example:
        >>> starts = [f"2026-01-01T0{hour}:00:00Z" for hour in range(3)]
        >>> orders = {"topic": "orders", "messages": [9, 0, 9], "gaps": [], "surges": []}
        >>> surges = [{"start": starts[1], "usual": 1}]
        >>> other = {"topic": "orders-next", "messages": [1, 9, 1], "gaps": [], "surges": surges}
        >>> (found,) = find_elsewhere({"starts": starts, "step": "hour", "topics": [orders, other]}, "orders")
        >>> found["topic"], found["messages"], found["usual"], found["start"].hour, found["end"].hour
        ('orders-next', 9, 1, 1, 2)
    """
    starts, width = volumes["starts"], WIDTHS[volumes["step"]]
    own = next((each for each in volumes["topics"] if each["topic"] == topic), None)
    holes = set(starts) if own is None else _holes(own, starts)
    found = []
    for each in volumes["topics"]:
        surges = [surge for surge in each["surges"] if surge["start"] in holes]
        if not surges or each["topic"] == topic or each["topic"] in excluded:
            continue
        counted = dict(zip(starts, each["messages"], strict=True))
        moments = [parse_time(surge["start"]) for surge in surges]
        found.append(
            {
                "topic": each["topic"],
                "messages": sum(counted[surge["start"]] for surge in surges),
                "usual": sum(surge["usual"] for surge in surges),
                "start": min(moments),
                "end": max(moments) + width,
            }
        )
    found.sort(key=lambda one: one["usual"] - one["messages"])
    return found[:_MOST_TOPICS]


def _holes(own: Mapping[str, Any], starts: list[str]) -> set[str]:
    """Return the steps that are gaps, or have nothing between others that have; all of them where none has."""
    counts = own["messages"]
    full = [place for place, count in enumerate(counts) if count]
    if not full:
        return {start for start, count in zip(starts, counts, strict=True) if count == 0}
    between = {starts[place] for place in range(full[0], full[-1]) if counts[place] == 0}
    return between | set(own["gaps"])
