"""The heat map of topics by hour or day: rows of cells, each as dark as it had messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from console.forms import read_time
from console.view import parse_time, plain_time, render_bytes, render_utc
from console.visit import PagePart, Visit

LEVELS: Final = 6
# A page of more rows is neither read nor quick; the largest come first.
_MOST_TOPICS: Final = 100
_MOST_GAPS: Final = 20
_DATES: Final = 7
WIDTHS: Final = {"hour": timedelta(hours=1), "day": timedelta(days=1)}


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A topic's cells as SVG paths by their level, 0 for none, and those that nobody knows or that are gaps."""

    topic: str
    total: int | None
    levels: Mapping[int, str]
    unknown: str
    gaps: str
    # The middles of the gaps: lines of a width that does not shrink with the cells.
    gap_lines: str


def read_heat(visit: Visit) -> dict[str, Any]:
    """Return the heat map of all topics over the last 14 days."""
    measure = visit.choose("of", ("messages", "bytes"), "messages")
    step = visit.choose("by", ("hour", "day"), "hour")
    found = visit.read(f"volumes {step}", lambda: visit.api.read_volumes(step=step))
    return {"volumes": found, "heat": draw_heat(found, measure), "of": measure, "by": step}


def read_cells(visit: Visit) -> dict[str, list[str]]:
    """Return a sentence for each cell of one topic's row: when it was, and how much came in."""
    topic = visit.path_params["topic"]
    measure = visit.choose("of", ("messages", "bytes"), "messages")
    step = visit.choose("by", ("hour", "day"), "hour")
    bounds = [read_time(visit.params, name) for name in ("from", "to")]
    start, end = (None if moment is None else render_utc(moment) for moment in bounds)
    found = visit.api.read_volumes(step=step, topics=(topic,), start=start, end=end)
    (series,) = found["topics"]
    counts = series[measure]
    return {
        "cells": [
            f"{topic}, {step} from {plain_time(at, visit.zone)}: {_say(count, measure)}"
            for at, count in zip(found["starts"], counts, strict=True)
        ]
    }


def _say(count: int | None, measure: str) -> str:
    if count is None:
        return "unknown"
    return (
        str(render_bytes(count)) if measure == "bytes" else f"{count:,} {'message' if count == 1 else 'messages'}"
    )


def draw_heat(found: PagePart, measure: str) -> dict[str, Any] | None:
    """Return the rows of a heat map, the largest topic first, and the newest gaps; None without volumes.

    A cell's level is its share of the topic's own largest one: what is sparse in a large topic is a hole there.
    """
    if found.problem is not None or not found.data["topics"]:
        return None
    starts, width = found.data["starts"], WIDTHS[found.data["step"]]
    topics = sorted(found.data["topics"], key=lambda each: -(each[f"total_{measure}"] or 0))
    places = {start: number for number, start in enumerate(starts)}
    rows = [_draw_row(each, measure, places) for each in topics[:_MOST_TOPICS]]
    gaps = [
        {"topic": each["topic"], "start": start, "end": render_utc(parse_time(start) + width)}
        for each in topics
        for start in each["gaps"]
    ]
    gaps.sort(key=lambda gap: gap["start"], reverse=True)
    # Each stands at the begin of its share of the width.
    days = [starts[len(starts) * number // _DATES] for number in range(_DATES)] if len(starts) >= _DATES else []
    more = {
        "days": days,
        "seconds": int(width.total_seconds()),
        "hidden": max(0, len(topics) - _MOST_TOPICS),
        "more_gaps": max(0, len(gaps) - _MOST_GAPS),
    }
    return {"rows": rows, "columns": len(starts), "starts": starts, "gaps": gaps[:_MOST_GAPS], **more}


def level_of(count: int, most: int) -> int:
    """Return how dark a cell is: 0 for none at all, and never 0 for some.

    Example:
        >>> [level_of(count, 100) for count in (0, 1, 50, 100)]
        [0, 1, 3, 6]
    """
    return 0 if count <= 0 else max(1, -(-count * LEVELS // max(1, most)))


def draw_cells(numbers: Sequence[int]) -> str:
    """Return an SVG path of cells of one by one in a row; neighbours are one rectangle.

    Example:
        >>> draw_cells([0, 1, 2, 5])
        'M0 0h3v1h-3zM5 0h1v1h-1z'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][0] + runs[-1][1] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return "".join(f"M{first} 0h{count}v1h-{count}z" for first, count in runs)


def _draw_row(series: Mapping[str, Any], measure: str, places: Mapping[str, int]) -> HeatRow:
    counts = series[measure]
    most = max((count for count in counts if count is not None), default=0)
    by_level: dict[int, list[int]] = {}
    for number, count in enumerate(counts):
        if count:
            by_level.setdefault(level_of(count, most), []).append(number)
    gaps = sorted(places[start] for start in series["gaps"] if start in places)
    return HeatRow(
        topic=series["topic"],
        total=series[f"total_{measure}"],
        levels={level: draw_cells(numbers) for level, numbers in sorted(by_level.items())},
        unknown=draw_cells([number for number, count in enumerate(counts) if count is None]),
        gaps=draw_cells(gaps),
        gap_lines="".join(f"M{place}.5 0v1" for place in gaps),
    )
