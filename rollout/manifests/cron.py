"""Due times of a schedule: a cron expression, evaluated in the local time of a zone, as UTC instants."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import takewhile
from typing import Final, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_NAMES: Final = ("minute", "hour", "day of month", "month", "day of week")
# 7 is Sunday too.
_BOUNDS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_DAYS: Final = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_WORDS: Final[tuple[Mapping[str, int], ...]] = ({}, {}, {}, _MONTHS, _DAYS)
_PART: Final = re.compile(r"(?:(?P<all>\*)|(?P<first>[a-z0-9]+)(?:-(?P<last>[a-z0-9]+))?)(?:/(?P<step>[0-9]+))?")
# At most eight years pass between two 29 Februaries.
_MOST_DAYS: Final = 8 * 366 + 2
# Spans of the search for an earlier instant: an instant of each minute is found in the first, short one.
_SPANS_DAYS: Final = (0.1, 2, 40, 400, _MOST_DAYS)


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields of cron: minute, hour, day of month, month, day of week, each a set of numbers.

    As in POSIX, if neither of the two day fields is ``*``, a day is due if one of them matches:
    https://pubs.opengroup.org/onlinepubs/9799919799/utilities/crontab.html
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    week_days: frozenset[int]
    has_days: bool
    has_week_days: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an expression.

        Raises:
            ValueError: ``text`` is no cron expression; the error names every wrong field.

        Example:
            >>> Cron.parse("*/20 2 * * mon-fri").minutes
            (0, 20, 40)
        """
        fields = text.lower().split()
        if len(fields) != len(_NAMES):
            raise ValueError(f"must have five fields, {', '.join(_NAMES)}, but has {len(fields)}")
        found: list[frozenset[int]] = []
        faults = []
        for number, field in enumerate(fields):
            try:
                found.append(_parse_field(field, number))
            except ValueError as exc:
                faults.append(f"{_NAMES[number]}: {exc}")
        if faults:
            raise ValueError("; ".join(faults))
        minutes, hours, days, months, week_days = found
        return cls(
            tuple(sorted(minutes)),
            tuple(sorted(hours)),
            days,
            months,
            frozenset(day % 7 for day in week_days),
            fields[2] != "*",
            fields[4] != "*",
        )

    def local_times(self, since: datetime) -> Iterator[datetime]:
        """Yield all due times from ``since`` on, without a zone; end if there is none for eight years."""
        day, last_due = since.date(), since.date()
        while day - last_due < timedelta(days=_MOST_DAYS) and day < date.max:
            if self._is_due(day):
                last_due = day
                for hour in self.hours:
                    for minute in self.minutes:
                        found = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - a wall's clock
                        if found >= since:
                            yield found
            day += timedelta(days=1)

    def _is_due(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_week_day = day.day in self.days, day.isoweekday() % 7 in self.week_days
        if self.has_days and self.has_week_days:
            return by_day or by_week_day
        return by_day and by_week_day


@dataclass(frozen=True, slots=True)
class Timing:
    """A cron expression in a time zone, from ``start`` to before ``end``.

    A local time in a gap of the zone is due at the end of the gap; a local time that comes twice is due the first
    time. An instant is due only once, also if several local times lead to it.
    """

    cron: Cron
    zone: ZoneInfo
    start: datetime | None = None
    end: datetime | None = None

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the instants after ``moment`` in UTC, each once; without ``end`` the iterator does not end.

        Example:
            >>> timing = Timing(Cron.parse("30 2 * * *"), ZoneInfo("Europe/Berlin"))
            >>> [f"{due:%d %H:%M}" for due, _ in zip(timing.after(datetime(2026, 3, 28, tzinfo=UTC)), range(3))]
            ['28 01:30', '29 01:00', '30 00:30']
        """
        if self.start is not None and moment < self.start:
            moment = self.start - timedelta(microseconds=1)
        last = moment
        # Later instants never have earlier local times, so begin at the local time of the moment.
        for local in self.cron.local_times(
            moment.astimezone(self.zone).replace(tzinfo=None, second=0, microsecond=0)
        ):
            due = instant_of(local, self.zone)
            if self.end is not None and due >= self.end:
                return
            if due > last:
                yield due
                last = due

    def before(self, moment: datetime) -> datetime:
        """Return the last instant of the cron expression before ``moment``, even if it is before ``start``.

        Example:
            >>> timing = Timing(Cron.parse("15 0 1 * *"), ZoneInfo("UTC"))
            >>> f"{timing.before(datetime(2026, 3, 1, 0, 15, tzinfo=UTC)):%m-%d}"
            '02-01'
        """
        always = Timing(self.cron, self.zone)
        for days in _SPANS_DAYS:
            found = list(takewhile(lambda due: due < moment, always.after(moment - timedelta(days=days))))
            if found:
                return found[-1]
        return moment - timedelta(days=_SPANS_DAYS[-1])

    def name_slots(self, since: datetime, until: datetime) -> str | None:
        """Name the slots after ``since`` and before ``until``; return None if there are none.

        Example:
            >>> noon = Timing(Cron.parse("0 12 * * *"), ZoneInfo("UTC"))
            >>> noon.name_slots(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
            'the slot of 2026-03-01T12:00Z'
        """
        until = until if self.end is None else min(until, self.end)
        first = next(self.after(since), until)
        if first >= until:
            return None
        first_text, last_text = (f"{slot:%Y-%m-%dT%H:%MZ}" for slot in (first, self.before(until)))
        if first_text == last_text:
            return f"the slot of {first_text}"
        return f"the slots from {first_text} to {last_text}"


def parse_zone(name: str) -> ZoneInfo:
    """Return a time zone of the tz database.

    Raises:
        ValueError: the database has no zone with this name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ValueError(f"there is no time zone {name[:80]}; one is Europe/Berlin") from exc


def instant_of(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the UTC instant of a local time: the first of two instants, or the end of the gap that contains it.

    Example:
        >>> berlin = ZoneInfo("Europe/Berlin")
        >>> f"{instant_of(datetime(2026, 10, 25, 2, 30), berlin):%H:%M}"
        '00:30'
        >>> f"{instant_of(datetime(2026, 3, 29, 2, 30), berlin):%H:%M}"
        '01:00'
    """
    late = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if late.astimezone(zone).replace(tzinfo=None, fold=0) == local:
        return late
    # In a gap, fold 1 uses the later offset, which gives an instant before the change; fold 0 gives one after it:
    # https://peps.python.org/pep-0495/
    early = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    before = early.astimezone(zone).utcoffset()
    while late - early > timedelta(seconds=1):
        middle = early + (late - early) // 2
        if middle.astimezone(zone).utcoffset() == before:
            early = middle
        else:
            late = middle
    return late.replace(microsecond=0)


def _parse_field(text: str, number: int) -> frozenset[int]:
    least, most = _BOUNDS[number]
    found: set[int] = set()
    for part in text.split(","):
        parsed = _PART.fullmatch(part)
        if parsed is None:
            raise ValueError(f"{part[:40]!r} is not a number, range or step")
        step = 1 if parsed["step"] is None else int(parsed["step"])
        if step == 0:
            raise ValueError(f"{part[:40]!r} has a step of 0")
        if parsed["all"]:
            # Count Sunday once: both 0 and 7 mean Sunday.
            first, last = least, most - (number == len(_NAMES) - 1)
        else:
            first = _number(parsed["first"], number)
            end = parsed["last"]
            last = _number(end, number) if end else most if parsed["step"] else first
        if last < first:
            raise ValueError(f"{part[:40]!r} ends before it begins")
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, field: int) -> int:
    least, most = _BOUNDS[field]
    value = _WORDS[field].get(text)
    if value is None and text.isdecimal():
        value = int(text)
    if value is None or not least <= value <= most:
        raise ValueError(f"{text[:40]!r} is not from {least} to {most}")
    return value
