"""Volumes by step, their gaps and what is unknown, over counts that a test gives."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inventory.volumes import Gap, VolumesOut, read_gaps, read_volumes
from model.errors import RequestInvalidError
from model.volume import HourVolumes, Volume
from model.window import Window

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MIDNIGHT = datetime(2026, 1, 31, tzinfo=UTC)
NOW = MIDNIGHT + timedelta(hours=12, minutes=30)


class Fixed:
    """Counts that stay the same; a caller gets the hours of its window."""

    def __init__(self, by_hour: dict[datetime, dict[str, Volume]], unknown: tuple[Window, ...] = ()) -> None:
        self.by_hour = by_hour
        self.unknown = unknown

    def hours(self, window: Window) -> HourVolumes:
        found = {hour: topics for hour, topics in self.by_hour.items() if window.contains(hour)}
        return HourVolumes(found, tuple(one for one in self.unknown if one.overlaps(window)))


def steady(topic: str = "orders", *, messages: int = 100, days: int = 30) -> dict[datetime, dict[str, Volume]]:
    """A topic with as many messages in each hour of the last days."""
    first = MIDNIGHT - days * DAY
    hours = int((NOW - first) / HOUR) + 1
    return {first + number * HOUR: {topic: Volume(messages, messages * 10)} for number in range(hours)}


def ask(counts: Fixed, **options: Any) -> VolumesOut:
    wanted = {"step": "hour", "start": None, "end": None, "now": NOW, **options}
    return read_volumes(counts, **wanted)  # type: ignore[arg-type]


def test_without_bounds_it_is_fourteen_days_of_whole_hours() -> None:
    found = ask(Fixed(steady()))
    (orders,) = found.topics
    assert (len(found.starts), len(orders.messages), len(orders.bytes)) == (336, 336, 336)
    assert found.window.end == MIDNIGHT + 13 * HOUR
    assert found.starts[-1] == MIDNIGHT + 12 * HOUR
    assert (orders.total_messages, orders.total_bytes, orders.gaps) == (33_600, 336_000, [])


def test_an_hour_with_less_than_a_tenth_of_the_other_days_is_a_gap() -> None:
    counts = steady()
    hole, thin, enough = MIDNIGHT - 30 * HOUR, MIDNIGHT + 2 * HOUR, MIDNIGHT + 3 * HOUR
    del counts[hole]
    counts[thin] = {"orders": Volume(9, 90)}
    counts[enough] = {"orders": Volume(10, 100)}
    (orders,) = ask(Fixed(counts)).topics
    assert orders.gaps == [hole, thin]
    assert orders.messages[orders.messages.index(0)] == 0
    # A window of one day is compared with the days before it.
    (alone,) = ask(Fixed(counts), start=MIDNIGHT).topics
    assert (alone.gaps, len(alone.messages)) == ([thin], 13)


def test_the_hour_that_is_not_over_is_no_gap() -> None:
    counts = steady()
    del counts[MIDNIGHT + 12 * HOUR]
    assert ask(Fixed(counts)).topics[0].gaps == []
    assert ask(Fixed(counts), now=NOW + HOUR).topics[0].gaps == [MIDNIGHT + 12 * HOUR]


def test_a_quiet_hour_of_every_day_is_no_gap() -> None:
    counts = {hour: topics for hour, topics in steady().items() if hour.hour != 4}
    assert ask(Fixed(counts)).topics[0].gaps == []


def test_few_messages_and_few_days_say_nothing() -> None:
    few = steady(messages=9)
    del few[MIDNIGHT]
    assert ask(Fixed(few)).topics[0].gaps == []
    young = steady(days=2)
    del young[MIDNIGHT]
    assert ask(Fixed(young)).topics[0].gaps == []
    # What was before its first message is no gap of a topic, and compared with nothing.
    assert ask(Fixed(steady(days=9))).topics[0].gaps == []


def test_a_day_is_compared_with_the_other_days() -> None:
    hole = MIDNIGHT - 3 * DAY
    counts = {hour: topics for hour, topics in steady().items() if not hole <= hour < hole + DAY}
    found = ask(Fixed(counts), step="day")
    (orders,) = found.topics
    assert (len(found.starts), orders.messages[-2], orders.gaps) == (14, 2400, [hole])


def test_what_nobody_has_counted_is_null_and_never_a_gap() -> None:
    counts = steady()
    hour = MIDNIGHT - 5 * HOUR
    del counts[hour]
    found = ask(Fixed(counts, (Window(hour, hour + HOUR),)), topics=["orders", "quiet"])
    orders, quiet = found.topics
    place = found.starts.index(hour)
    assert (orders.messages[place], orders.bytes[place], orders.total_messages) == (None, None, None)
    assert (quiet.messages[place], quiet.messages[place + 1], quiet.total_bytes) == (None, 0, None)
    assert orders.gaps == []
    by_day = ask(Fixed(counts, (Window(hour, hour + HOUR),)), step="day").topics[0]
    assert by_day.messages.count(None) == 1


def test_topics_that_are_asked_for_are_there_also_without_a_message() -> None:
    found = ask(Fixed(steady()), topics=["quiet", "quiet"])
    assert [(one.topic, one.total_messages, one.total_bytes) for one in found.topics] == [("quiet", 0, 0)]
    assert ask(Fixed({})).topics == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"start": NOW + DAY}, "window_invalid"),
        ({"start": NOW, "end": NOW - DAY}, "window_invalid"),
        ({"start": NOW - 42 * DAY}, "too_many_buckets"),
        ({"end": datetime(1, 1, 2, tzinfo=UTC)}, "window_invalid"),
        ({"end": datetime.max.replace(tzinfo=UTC)}, "window_invalid"),
    ],
)
def test_bounds_that_are_no_window_are_refused(options: dict[str, Any], code: str) -> None:
    with pytest.raises(RequestInvalidError) as refused:
        ask(Fixed({}), **options)
    assert [error["code"] for error in refused.value.details["errors"]] == [code]


def strayed(counts: dict[datetime, dict[str, Volume]], hour: datetime, messages: int = 60) -> None:
    counts[hour] = {**counts[hour], "orders-next": Volume(messages, messages)}


def surges(found: VolumesOut) -> dict[str, list[dict[str, Any]]]:
    return {each.topic: [surge.model_dump() for surge in each.surges] for each in found.topics}


def test_an_hour_with_twice_what_is_usual_is_a_surge() -> None:
    counts = steady()
    hour = MIDNIGHT - 30 * HOUR
    strayed(counts, hour)
    counts[hour] |= {"orders": Volume(200, 1)}
    counts[hour + HOUR] = {"orders": Volume(199, 1)}
    wanted = {
        # A topic that had nothing on the other days is compared with these zeros.
        "orders-next": [{"start": hour, "usual": 0}],
        "orders": [{"start": hour, "usual": 100}],
    }
    assert surges(ask(Fixed(counts))) == wanted
    # A window of this hour alone is compared with the days before it.
    assert surges(ask(Fixed(counts), start=hour, end=hour + HOUR)) == wanted


def test_few_messages_and_steady_topics_are_no_surge() -> None:
    counts = steady()
    strayed(counts, MIDNIGHT, 9)
    assert surges(ask(Fixed(counts))) == {"orders": [], "orders-next": []}
    strayed(counts, MIDNIGHT, 10)
    assert len(surges(ask(Fixed(counts)))["orders-next"]) == 1


def test_a_young_archive_compares_an_hour_with_its_other_hours() -> None:
    counts = {hour: topics for hour, topics in steady(days=1).items() if hour >= MIDNIGHT}
    strayed(counts, MIDNIGHT + 4 * HOUR)
    wanted = {"orders": [], "orders-next": [{"start": MIDNIGHT + 4 * HOUR, "usual": 0}]}
    assert surges(ask(Fixed(counts))) == wanted
    hour = {"start": MIDNIGHT + 4 * HOUR, "end": MIDNIGHT + 5 * HOUR}
    assert surges(ask(Fixed(counts), **hour)) == wanted
    # Its first hour has nothing to be compared with.
    first = ask(Fixed(counts), start=MIDNIGHT, end=MIDNIGHT + HOUR)
    assert surges(first) == {"orders": []}


def test_what_nobody_has_counted_is_neither_a_surge_nor_usual() -> None:
    counts = steady()
    strayed(counts, MIDNIGHT)
    assert surges(ask(Fixed(counts, (Window(MIDNIGHT, MIDNIGHT + HOUR),))))["orders-next"] == []
    strayed(counts, MIDNIGHT + HOUR)
    days = tuple(Window(MIDNIGHT - day * DAY, MIDNIGHT - day * DAY + 12 * HOUR) for day in range(1, 27))
    found = surges(ask(Fixed(counts, days)))["orders-next"]
    assert [each["start"] for each in found] == [MIDNIGHT, MIDNIGHT + HOUR]


def test_300_topics_of_14_days_take_less_than_a_second() -> None:
    volume = Volume(1_000, 100_000)
    topics = {f"topic-{number:03d}": volume for number in range(300)}
    counts = Fixed({MIDNIGHT - number * HOUR: topics for number in range(27 * 24)})
    began = time.process_time()
    found = ask(counts)
    assert (len(found.topics), len(found.starts)) == (300, 336)
    assert time.process_time() - began < 1.0


def test_gaps_of_the_last_day_are_hours_that_follow_each_other() -> None:
    counts = steady()
    for hours in (20, 19, 15):
        counts[MIDNIGHT - (hours - 12) * HOUR] = {"orders": Volume(1, 10)}
    old = MIDNIGHT - 14 * HOUR
    del counts[old]
    noon = MIDNIGHT + 12 * HOUR
    assert read_gaps(Fixed(counts), NOW) == [
        Gap("orders", noon - 20 * HOUR, noon - 18 * HOUR, 2),
        Gap("orders", noon - 15 * HOUR, noon - 14 * HOUR, 1),
    ]
    assert old in ask(Fixed(counts)).topics[0].gaps, "it is one, and of the day before"


def test_a_topic_that_fell_silent_is_a_gap_until_that_is_usual() -> None:
    day = [Gap("orders", MIDNIGHT - 12 * HOUR, MIDNIGHT + 12 * HOUR, 0)]
    for days, gaps in ((2, day), (5, day), (8, [])):
        counts = {hour: topics for hour, topics in steady().items() if hour < MIDNIGHT - days * DAY}
        assert read_gaps(Fixed(counts), NOW) == gaps, days


def test_hours_that_nobody_has_counted_are_no_gaps() -> None:
    counts = steady()
    hole = MIDNIGHT + 2 * HOUR
    del counts[hole]
    unknown = (Window(hole, hole + HOUR),)
    assert len(read_gaps(Fixed(counts), NOW)) == 1
    assert read_gaps(Fixed(counts, unknown), NOW) == []
