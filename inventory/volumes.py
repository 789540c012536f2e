"""The volume of every topic by hour or day, and the hours in which fewer messages came than on other days."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from backfill.plan.plan import TimeWindow
from model.errors import RequestInvalidError
from model.volume import HourVolumes, Volume
from model.window import Window
from warehouse.counts import STEPS, Counts, floor

VolumeStep = Literal["hour", "day"]

# 300 topics with this many steps are half a million numbers.
MAX_STEPS: Final = 1000
# The window without bounds, and the days that a step is compared with.
USUAL_DAYS: Final = 14
# A step is a gap with less than a tenth of the median of the same hour on the other days. A median of a few
# messages shows nothing, and neither do two days.
GAP_SHARE: Final = 0.1
GAP_MEDIAN_MESSAGES: Final = 10
GAP_DAYS: Final = 3
# A step is a surge with twice the median of the same hour on the other days, and this many messages more.
SURGE_TIMES: Final = 2
SURGE_MESSAGES: Final = 10
_DAY: Final = timedelta(days=1)
_NOTHING: Final = Volume(0, 0)


class SurgeOut(BaseModel):
    """A step with far more messages than usual."""

    start: datetime = Field(description="Start of the step.")
    usual: int = Field(description="The usual number of messages in this step.")


class TopicSeriesOut(BaseModel):
    """The messages and payload bytes of a topic in each step. `starts` lists the steps. Null means unknown."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "topic": "orders",
                    "total_messages": 36_200,
                    "total_bytes": 7_500_000,
                    "messages": [18_000, 200, 18_000],
                    "bytes": [3_700_000, 40_000, 3_760_000],
                    "gaps": ["2026-01-03T03:00:00Z"],
                    "surges": [],
                }
            ]
        }
    )

    topic: str = Field(description="The topic.")
    total_messages: int | None = Field(description="The sum of messages. Null if a step is unknown.")
    total_bytes: int | None = Field(description="The sum of bytes. Null if a step is unknown.")
    messages: list[int | None] = Field(description="Number of messages by step.")
    bytes: list[int | None] = Field(description="Bytes of the published payloads.")
    gaps: list[datetime] = Field(
        description="The starts of steps with far fewer messages than usual. Such a step has less than a tenth "
        "of the median of the same hour on other days. If this median is below 10 messages, the step is never a "
        "gap."
    )
    surges: list[SurgeOut] = Field(
        description="Steps with far more messages than usual. Such a step has at least twice the median of the "
        "same hour on other days, and at least 10 messages more than this median."
    )


class VolumesOut(BaseModel):
    """The volumes of all topics that have messages in the window."""

    step: VolumeStep = Field(description="The length of a step.")
    window: TimeWindow = Field(description="The window, widened to whole steps.")
    starts: list[datetime] = Field(description="The start of each step.")
    topics: list[TopicSeriesOut] = Field(description="The topics with their volumes.")


@dataclass(frozen=True, slots=True)
class Gap:
    """Hours one after the other in which a topic had less than a tenth of what is usual, and how much it had."""

    topic: str
    start: datetime
    end: datetime
    messages: int


def read_gaps(counts: Counts, now: datetime) -> list[Gap]:
    """Return the gaps of the last day, by topic and time: those that :func:`read_volumes` marks, hour by hour.

    A topic without a message on that day is there too, while that is not usual by the days before.

    Raises:
        WarehouseError: the archive can't be read.
    """
    window = _whole_steps(now - _DAY, now, "hour", now)
    compared = _with_usual(window)
    grid = _Grid(counts.hours(compared), compared, "hour")
    first = grid.starts.index(window.start)
    gaps: list[Gap] = []
    for topic in sorted({name for table in grid.tables for name in table}):
        column = grid.column(topic)
        for place in _find_gaps(grid, column, now):
            if place >= first:
                volume = column[place] or _NOTHING
                _add_gap(gaps, Gap(topic, grid.starts[place], grid.starts[place] + grid.width, volume.messages))
    return gaps


def _add_gap(gaps: list[Gap], hour: Gap) -> None:
    last = gaps[-1] if gaps else None
    if last is not None and (last.topic, last.end) == (hour.topic, hour.start):
        gaps[-1] = Gap(last.topic, last.start, hour.end, last.messages + hour.messages)
    else:
        gaps.append(hour)


def read_volumes(
    counts: Counts,
    *,
    step: VolumeStep,
    start: datetime | None,
    end: datetime | None,
    topics: Sequence[str] = (),
    now: datetime | None = None,
) -> VolumesOut:
    """Return the volumes of ``topics``, or of all, in [start, end); without bounds of the last 14 days.

    Raises:
        RequestInvalidError: the bounds are no window, or one with too many steps.
        WarehouseError: the archive can't be read.
    """
    now = datetime.now(UTC) if now is None else now
    window = _whole_steps(start, end, step, now)
    compared = _with_usual(window)
    grid = _Grid(counts.hours(compared), compared, step)
    first = grid.starts.index(window.start)
    names = sorted(topics or {name for table in grid.tables[first:] for name in table})
    return VolumesOut(
        step=step,
        window=TimeWindow.of(window),
        starts=grid.starts[first:],
        topics=[_series(grid, name, first, now) for name in dict.fromkeys(names)],
    )


class _Grid:
    """Volumes by step: a table of topics for each, and whether everything of it is counted."""

    def __init__(self, found: HourVolumes, window: Window, step: VolumeStep) -> None:
        width = STEPS[step]
        self.width = width
        self.starts = [window.start + width * place for place in range(window.width // width)]
        self.tables: list[dict[str, Volume]] = [{} for _ in self.starts]
        for hour, topics in found.by_hour.items():
            place = (hour - window.start) // width
            if self.tables[place]:
                self._add(self.tables[place], topics)
            else:
                self.tables[place] = dict(topics)
        # The archive's first message in it; what lies before that was not archived.
        self.begins = next((place for place, table in enumerate(self.tables) if table), len(self.tables))
        self.is_known = [True] * len(self.starts)
        for unknown in found.unknown:
            self._forget(unknown, window)

    @staticmethod
    def _add(table: dict[str, Volume], topics: Mapping[str, Volume]) -> None:
        for topic, volume in topics.items():
            known = table.get(topic, _NOTHING)
            table[topic] = Volume(known.messages + volume.messages, known.bytes + volume.bytes)

    def _forget(self, unknown: Window, window: Window) -> None:
        first = max(0, (unknown.start - window.start) // self.width)
        last = -(-(min(unknown.end, window.end) - window.start) // self.width)
        for place in range(first, max(first, last)):
            self.is_known[place] = False

    def column(self, topic: str) -> list[Volume | None]:
        """Return a topic's volume of each step; None is unknown."""
        return [
            table.get(topic, _NOTHING) if is_known else None
            for table, is_known in zip(self.tables, self.is_known, strict=True)
        ]


def _series(grid: _Grid, topic: str, first: int, now: datetime) -> TopicSeriesOut:
    column = grid.column(topic)
    shown = column[first:]
    messages = [None if one is None else one.messages for one in shown]
    sizes = [None if one is None else one.bytes for one in shown]
    return TopicSeriesOut(
        topic=topic,
        total_messages=_sum(messages),
        total_bytes=_sum(sizes),
        messages=messages,
        bytes=sizes,
        gaps=[grid.starts[place] for place in _find_gaps(grid, column, now) if place >= first],
        surges=[
            SurgeOut(start=grid.starts[place], usual=usual)
            for place, usual in _find_surges(grid, column)
            if place >= first
        ],
    )


def _find_surges(grid: _Grid, column: Sequence[Volume | None]) -> list[tuple[int, int]]:
    """Return the places of steps with twice of what is usual, and that.

    Usual is the median of the same hour on the other days since the archive's first message: a topic that had none
    then is new, and its messages may be another one's. While there are too few days, it is the median of all other
    steps.
    """
    known = [(place, one.messages) for place, one in enumerate(column) if place >= grid.begins and one is not None]
    in_a_day = _DAY // grid.width
    by_hour: dict[int, list[tuple[int, int]]] = {}
    for place, messages in known:
        by_hour.setdefault(place % in_a_day, []).append((place, messages))
    surges: list[tuple[int, int]] = []
    for same in by_hour.values():
        surges += _high_places(same, same if len(same) > GAP_DAYS else known)
    return sorted(surges)


def _high_places(same: Sequence[tuple[int, int]], compared: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    if len(compared) == 1:
        return []
    ordered = sorted(messages for _, messages in compared)
    # Without one of its larger numbers the median is this at least, which rules a surge out for nearly every step.
    least = ordered[(len(ordered) - 2) // 2]
    found: list[tuple[int, int]] = []
    for place, messages in same:
        if _is_high(messages, least):
            others = list(ordered)
            others.remove(messages)
            usual = round(median(others))
            if _is_high(messages, usual):
                found.append((place, usual))
    return found


def _is_high(messages: int, usual: int) -> bool:
    return messages >= max(SURGE_TIMES * usual, usual + SURGE_MESSAGES)


def _find_gaps(grid: _Grid, column: Sequence[Volume | None], now: datetime) -> list[int]:
    """Return the places of steps that are over and have less than a tenth of the same hour's median.

    What was before a topic's first message is not compared, and is no gap.
    """
    begins = next((place for place, one in enumerate(column) if one is not None and one.messages), None)
    if begins is None:
        return []
    in_a_day = _DAY // grid.width
    # Steps that are not over yet are the last ones.
    ended = sum(start + grid.width <= now for start in grid.starts)
    gaps: list[int] = []
    for first in range(begins, min(begins + in_a_day, ended)):
        same = enumerate(column[first:ended:in_a_day])
        gaps += _low_places([(first + day * in_a_day, one.messages) for day, one in same if one is not None])
    return sorted(gaps)


def _low_places(known: Sequence[tuple[int, int]]) -> list[int]:
    if len(known) <= GAP_DAYS:
        return []
    ordered = sorted(messages for _, messages in known)
    most = max(GAP_MEDIAN_MESSAGES, ordered[-1])
    return [
        place
        for place, messages in known
        # The largest one alone rules a gap out for nearly every step.
        if messages < GAP_SHARE * most and _is_low(messages, ordered)
    ]


def _is_low(messages: int, ordered: Sequence[int]) -> bool:
    others = list(ordered)
    others.remove(messages)
    usual = median(others)
    return usual >= GAP_MEDIAN_MESSAGES and messages < GAP_SHARE * usual


def _whole_steps(start: datetime | None, end: datetime | None, step: VolumeStep, now: datetime) -> Window:
    width = STEPS[step]
    try:
        last = floor((end or now) - timedelta(microseconds=1), step) + width
        first = last - USUAL_DAYS * _DAY if start is None else floor(start, step)
        window = Window(first, last)
        # The days before it are read too.
        first - USUAL_DAYS * _DAY
    except OverflowError:
        raise RequestInvalidError.of(
            "window_invalid", "`from` or `to` is outside of the calendar.", "query:from"
        ) from None
    except ValueError:
        raise RequestInvalidError.of("window_invalid", "from must be before to.", "query:from") from None
    if (steps := (last - first) // width) > MAX_STEPS:
        message = f"The window has {steps:,} steps of one {step}, but at most {MAX_STEPS:,} are allowed."
        raise RequestInvalidError.of("too_many_buckets", message, "query:step")
    return window


def _with_usual(window: Window) -> Window:
    """Return the window with the days before it, which show how much is usual in it."""
    return Window(window.start - (USUAL_DAYS - 1) * _DAY, window.end)


def _sum(numbers: Sequence[int | None]) -> int | None:
    return None if None in numbers else sum(number for number in numbers if number is not None)
