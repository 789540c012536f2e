"""Cron expressions and time zones: when a schedule is due."""

import re
from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest

from rollout.manifests.cron import Cron, Timing, instant_of, parse_zone


def due(cron: str, since: str, count: int = 3, zone: str = "UTC", **bounds: datetime) -> list[str]:
    timing = Timing(Cron.parse(cron), parse_zone(zone), **bounds)
    return [f"{each:%Y-%m-%dT%H:%M}" for each in islice(timing.after(datetime.fromisoformat(since)), count)]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("15 0 * * *", ["2026-03-02T00:15", "2026-03-03T00:15", "2026-03-04T00:15"]),
        ("*/30 8-9 * * *", ["2026-03-02T08:00", "2026-03-02T08:30", "2026-03-02T09:00"]),
        ("0 0 1 jan,jul *", ["2026-07-01T00:00", "2027-01-01T00:00", "2027-07-01T00:00"]),
        ("0 12 * * 7", ["2026-03-08T12:00", "2026-03-15T12:00", "2026-03-22T12:00"]),
        ("0 12 * * SUN", ["2026-03-08T12:00", "2026-03-15T12:00", "2026-03-22T12:00"]),
        # By either field where both are restricted: a 13th, or a Friday.
        ("0 0 13 * 5", ["2026-03-06T00:00", "2026-03-13T00:00", "2026-03-20T00:00"]),
        ("5/20 0 * * *", ["2026-03-02T00:05", "2026-03-02T00:25", "2026-03-02T00:45"]),
        ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00", "2036-02-29T00:00"]),
    ],
)
def test_an_expression_is_due_at_these_times(cron: str, expected: list[str]) -> None:
    assert due(cron, "2026-03-02T00:00:00Z") == expected


def test_a_leap_day_is_found_over_a_century_without_one() -> None:
    assert due("0 0 29 2 *", "2096-03-01T00:00:00Z", 1) == ["2104-02-29T00:00"]


@pytest.mark.parametrize(
    ("cron", "fault"),
    [
        ("* * * *", "must have five fields"),
        ("0 0 0 * * *", "must have five fields"),
        ("@daily", "must have five fields"),
        ("60 24 0 13 8", "minute: '60' is not from 0 to 59; hour: '24' is not from 0 to 23; day of month: '0'"),
        ("9-5 * * * *", "minute: '9-5' ends before it begins"),
        ("*/0 * * * *", "has a step of 0"),
        ("0 0 L * *", "day of month: 'l' is not from 1 to 31"),
        ("0 0 ? * *", "'?' is not a number, range or step"),
        ("1,,2 * * * *", "'' is not a number"),
        ("jan * * * *", "minute: 'jan'"),
    ],
)
def test_every_fault_of_an_expression_is_named(cron: str, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        Cron.parse(cron)


def test_a_local_time_that_is_missing_is_due_once_right_after_the_gap() -> None:
    # Berlin goes from 02:00 to 03:00 at 01:00 UTC on 29 March 2026.
    assert due("30 2 * * *", "2026-03-28T00:00:00Z", 3, "Europe/Berlin") == [
        "2026-03-28T01:30",
        "2026-03-29T01:00",
        "2026-03-30T00:30",
    ]
    assert due("*/20 * * * *", "2026-03-29T00:39:00Z", 3, "Europe/Berlin") == [
        "2026-03-29T00:40",
        "2026-03-29T01:00",
        "2026-03-29T01:20",
    ], "the four local times of the gap, and 03:00, are one instant"


def test_a_local_time_that_comes_twice_is_due_at_the_first() -> None:
    # Berlin goes from 03:00 back to 02:00 at 01:00 UTC on 25 October 2026.
    assert due("30 2 * * *", "2026-10-24T12:00:00Z", 2, "Europe/Berlin") == [
        "2026-10-25T00:30",
        "2026-10-26T01:30",
    ]
    assert due("30 2 * * *", "2026-10-25T00:45:00Z", 1, "Europe/Berlin") == ["2026-10-26T01:30"]
    assert due("30 2 * * *", "2026-10-25T01:15:00Z", 1, "Europe/Berlin") == ["2026-10-26T01:30"]


def test_a_zone_that_leaves_a_day_out_is_due_at_the_end_of_it() -> None:
    # Samoa went from the 29th to the 31st of December 2011.
    assert due("0 12 * * *", "2011-12-28T23:00:00Z", 3, "Pacific/Apia") == [
        "2011-12-29T22:00",
        "2011-12-30T10:00",
        "2011-12-30T22:00",
    ]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Africa/Casablanca"])
def test_over_years_of_a_zone_every_local_day_is_due_once_and_in_order(zone: str) -> None:
    timing = Timing(Cron.parse("15 2 * * *"), parse_zone(zone))
    until = datetime(2030, 1, 1, tzinfo=UTC)
    found = list(takewhile(lambda each: each < until, timing.after(datetime(2024, 1, 1, 12, tzinfo=UTC))))
    assert found == sorted(set(found))
    days = [each.astimezone(ZoneInfo(zone)).date() for each in found]
    assert days == [days[0] + timedelta(days=number) for number in range(len(found))]
    assert days[-1] >= date(2029, 12, 31)


def test_nothing_is_due_before_start_or_from_end_on() -> None:
    bounds = {"start": datetime(2026, 3, 3, 0, 15, tzinfo=UTC), "end": datetime(2026, 3, 5, 0, 15, tzinfo=UTC)}
    assert due("15 0 * * *", "2026-01-01T00:00:00Z", 9, **bounds) == ["2026-03-03T00:15", "2026-03-04T00:15"]


def test_no_slot_is_named_that_the_end_of_a_schedule_leaves_out() -> None:
    noon = Timing(Cron.parse("0 12 * * *"), ZoneInfo("UTC"), end=datetime(2026, 3, 3, 12, tzinfo=UTC))
    since, until = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 9, tzinfo=UTC)
    assert noon.name_slots(since, until) == "the slots from 2026-03-01T12:00Z to 2026-03-02T12:00Z"
    assert noon.name_slots(datetime(2026, 3, 4, tzinfo=UTC), until) is None


def test_the_instant_before_is_found_near_and_far() -> None:
    for cron, before in [
        ("* * * * *", "2026-03-01T00:14"),
        ("15 0 * * *", "2026-02-28T00:15"),
        ("15 0 1 1 *", "2026-01-01T00:15"),
        ("15 0 29 2 *", "2024-02-29T00:15"),
    ]:
        timing = Timing(Cron.parse(cron), ZoneInfo("UTC"), start=datetime(2026, 3, 1, tzinfo=UTC))
        assert f"{timing.before(datetime(2026, 3, 1, 0, 15, tzinfo=UTC)):%Y-%m-%dT%H:%M}" == before


def test_the_end_of_a_gap_is_exact() -> None:
    # Troll station's clock jumps by two hours.
    local = datetime(2026, 3, 29, 2, 1)  # noqa: DTZ001 - a wall's clock
    assert instant_of(local, ZoneInfo("Antarctica/Troll")) == datetime(2026, 3, 29, 1, tzinfo=UTC)


def test_a_zone_that_does_not_exist_is_named() -> None:
    for name in ("Europe/Berln", "../etc/passwd", ""):
        with pytest.raises(ValueError, match="there is no time zone"):
            parse_zone(name)
