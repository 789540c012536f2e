"""Values known before a query runs: the date arithmetic that window bounds are made of."""

import calendar
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo

from sql.values import NOT_CONSTANT

_OFFSET = re.compile(r"(?:UTC)?([+-])(\d{1,2})(?::?(\d{2}))?")
_TIMESTAMP = re.compile(
    r"(?P<date>\d{4}-\d{1,2}-\d{1,2})"
    # An offset may follow the date at once.
    r"(?:[ Tt](?:(?P<clock>\d{1,2}:\d{1,2}:\d{1,2}(?:\.\d{1,6})?)|(?=[+-]))"
    # A blank stands before a zone's name, and none before an offset:
    # https://cloud.google.com/bigquery/docs/reference/standard-sql/data-types#time_zones
    r"(?P<zone>[Zz]|[+-]\d{1,2}(?::?\d{2})?|\s[A-Z][A-Za-z]+(?:/[A-Za-z_+\-0-9]+)*)?)?"
)
# "Cannot generate arrays with more than 16000 elements", says Google's engine.
MAX_ARRAY: Final = 16_000
# The parts of a day.
BELOW_DAY: Final = frozenset({"MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR"})
# Before it, tables of zones differ: some know of each place, Google's and the engine's of each region.
_FIRST_SURE_YEAR: Final = 1970


class ConstantError(ValueError):
    """The value is not one of its type."""


def parse_zone(text: str) -> tzinfo:
    """Return a time zone as BigQuery names them: an IANA name or an offset from UTC.

    Example:
        >>> parse_zone("+05:30")
        datetime.timezone(datetime.timedelta(seconds=19800))
    """
    if match := _OFFSET.fullmatch(text):
        sign, hours, minutes = match.groups()
        delta = timedelta(hours=int(hours), minutes=int(minutes or 0))
        if delta > timedelta(hours=14):
            raise ConstantError(f"no time zone {text!r}")
        return timezone(-delta if sign == "-" else delta)
    if text in {"Z", "z", "UTC"}:
        return UTC
    try:
        return ZoneInfo(text)
    except (ValueError, OSError, KeyError) as exc:
        raise ConstantError(f"no time zone {text!r}") from exc


def _zone_of(text: str | None, value: date | datetime) -> tzinfo:
    """Return the zone in which ``value`` is to be read or shown.

    Raises:
        ConstantError: there is none, or the engine's table may know another offset for that time.
    """
    place = parse_zone(text) if text else UTC
    if isinstance(place, ZoneInfo) and value.year <= _FIRST_SURE_YEAR:
        raise ConstantError(f"an offset of {text} before {_FIRST_SURE_YEAR}")
    return place


def parse_date(text: str) -> date:
    """Return the date of a GoogleSQL literal, YYYY-[M]M-[D]D."""
    match = re.fullmatch(r"(\d{4})-(\d{1,2})-(\d{1,2})", text)
    if match is None:
        raise ConstantError(f"no date {text!r}")
    try:
        return date(*map(int, match.groups()))
    except ValueError as exc:
        raise ConstantError(f"no date {text!r}") from exc


def parse_timestamp(text: str, zone: tzinfo = UTC) -> datetime:
    """Return the moment of a GoogleSQL literal, to the microsecond.

    Example:
        >>> parse_timestamp("2024-01-01 10:00:00+02").isoformat()
        '2024-01-01T08:00:00+00:00'
    """
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ConstantError(f"no timestamp {text!r}")
    day = parse_date(match["date"])
    parts = (match["clock"] or "0:0:0").split(":")
    whole, _, fraction = (parts[2] if len(parts) > 2 else "0").partition(".")
    try:
        naive = datetime(day.year, day.month, day.day, int(parts[0]), int(parts[1]), int(whole))  # noqa: DTZ001 - the zone follows
        naive = naive.replace(microsecond=int(fraction[:6].ljust(6, "0")))
        return naive.replace(tzinfo=parse_zone(match["zone"].strip()) if match["zone"] else zone).astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise ConstantError(f"no timestamp {text!r}") from exc


def parse_datetime(text: str) -> datetime:
    """Return the time of a DATETIME's literal, which names no zone."""
    match = _TIMESTAMP.fullmatch(text)
    if match is not None and match["zone"]:
        raise ConstantError(f"no datetime {text!r}")
    return parse_timestamp(text).replace(tzinfo=None)


def truncate(moment: datetime, unit: str) -> datetime:
    """Return the start of the ``unit`` that ``moment`` lies in.

    Example:
        >>> truncate(datetime(2024, 5, 17, 13, tzinfo=UTC), "MONTH").isoformat()
        '2024-05-01T00:00:00+00:00'
    """
    if unit in BELOW_DAY:
        step = {
            "MICROSECOND": 1,
            "MILLISECOND": 1000,
            "SECOND": 10**6,
            "MINUTE": 60 * 10**6,
            "HOUR": 3600 * 10**6,
        }[unit]
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        micros = (moment - midnight) // timedelta(microseconds=1)
        return midnight + timedelta(microseconds=micros - micros % step)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "DAY":
        return day
    if unit == "WEEK" or unit.startswith("WEEK(") or unit == "ISOWEEK":
        first = {"WEEK": "SUNDAY", "ISOWEEK": "MONDAY"}.get(unit) or unit[5:-1]
        names = ("MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY")
        if first not in names:
            raise ConstantError(f"no date part {unit}")
        return day - timedelta(days=(day.weekday() - names.index(first)) % 7)
    if unit == "MONTH":
        return day.replace(day=1)
    if unit == "QUARTER":
        return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
    if unit == "YEAR":
        return day.replace(month=1, day=1)
    raise ConstantError(f"no date part {unit}")


def next_start(moment: datetime, unit: str) -> datetime:
    """Return the start of the unit after the one that ``moment`` lies in."""
    start = truncate(moment, unit)
    if unit == "MONTH":
        return shift(start, 1, "MONTH")
    if unit in {"QUARTER", "YEAR"}:
        return shift(start, 1, unit)
    return start + {"HOUR": timedelta(hours=1), "DAY": timedelta(days=1)}.get(
        unit, timedelta(days=7) if "WEEK" in unit else timedelta(seconds=_SECONDS.get(unit, 0) or 1)
    )


_SECONDS: Final = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400}


def shift(moment: datetime, amount: int, unit: str) -> datetime:
    """Return ``moment`` moved by ``amount`` units; months keep the day or take their last one."""
    months = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}.get(unit)
    try:
        if months is not None:
            total = moment.year * 12 + moment.month - 1 + amount * months
            year, month = divmod(total, 12)
            last = calendar.monthrange(year, month + 1)[1]
            return moment.replace(year=year, month=month + 1, day=min(moment.day, last))
        if unit in {"MICROSECOND", "MILLISECOND"}:
            return moment + timedelta(microseconds=amount * (1000 if unit == "MILLISECOND" else 1))
        return moment + timedelta(seconds=amount * _SECONDS[unit])
    except (OverflowError, ValueError, KeyError) as exc:
        raise ConstantError(f"{amount} {unit} leads out of the calendar") from exc


def as_moment(value: date | datetime) -> datetime:
    """Return a DATE, DATETIME or TIMESTAMP constant as an aware time; what has no zone is read as UTC."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return datetime(value.year, value.month, value.day, tzinfo=UTC)


def _like(model: date | datetime, moment: datetime) -> date | datetime:
    if not isinstance(model, datetime):
        return moment.date()
    return moment if model.tzinfo else moment.replace(tzinfo=None)


def _date(*args: Any) -> Any:
    if len(args) == 3:
        return date(*args)
    value, *zone = args
    if isinstance(value, str):
        return parse_timestamp(value).date() if not zone else NOT_CONSTANT
    if isinstance(value, datetime):
        return value.astimezone(_zone_of(zone[0], value)).date() if zone and value.tzinfo else value.date()
    return value if isinstance(value, date) else NOT_CONSTANT


def _timestamp(value: Any, zone: str | None = None) -> Any:
    if isinstance(value, str):
        if zone is None:
            return parse_timestamp(value)
        value = parse_datetime(value)
    if not isinstance(value, date):
        return NOT_CONSTANT
    place = _zone_of(zone, value)
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=place).astimezone(UTC)
    return datetime(value.year, value.month, value.day, tzinfo=place).astimezone(UTC)


def _datetime(*args: Any) -> Any:
    if len(args) == 6:
        return datetime(*args)  # noqa: DTZ001 - DATETIME has no zone
    value, *rest = args
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(_zone_of(rest[0] if rest else None, value)).replace(tzinfo=None)
    if isinstance(value, str) and not rest:
        return parse_datetime(value)
    if isinstance(value, date) and not rest:
        return as_moment(value).replace(tzinfo=None)
    return NOT_CONSTANT


def _parse(kind: str) -> Callable[..., Any]:
    def parse(pattern: str, text: str, zone: str | None = None) -> Any:
        plain = pattern.replace("%T", "%H:%M:%S")
        # Only what Python and Google read alike: a number for each element, nothing optional.
        if set(re.findall("%(.)", plain)) - set("YmdHMS") or re.search(r"\s", plain):
            return NOT_CONSTANT
        found = datetime.strptime(text, plain)  # noqa: DTZ007 - the zone follows
        if "%Y" not in plain:
            # Python's year is 1900 then. Neither it nor 1970 is a leap year.
            found = found.replace(year=1970)
        # Python shares digits out between elements that touch, Google takes as many as there are.
        if re.search(r"%[A-Za-z]%", plain) and found.strftime(plain) != text:
            return NOT_CONSTANT
        if kind == "DATE":
            return found.date()
        return found.replace(tzinfo=_zone_of(zone, found)).astimezone(UTC)

    return parse


def _extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(*args: Any) -> Any:
        # Values of one type only: a DATE and a TIMESTAMP never meet here.
        return (
            choose(args) if len({type(arg) for arg in args}) == 1 and isinstance(args[0], date) else NOT_CONSTANT
        )

    return extreme


def _add(value: Any, interval: tuple[int, str], sign: int = 1) -> Any:
    amount, unit = interval
    return _like(value, shift(as_moment(value), sign * amount, unit))


def _trunc(value: Any, unit: str, zone: str | None = None) -> Any:
    if zone is None:
        return _like(value, truncate(as_moment(value), unit))
    place = _zone_of(zone, value)
    shown = value.astimezone(place).replace(tzinfo=UTC)
    cut = truncate(shown, unit)
    if unit in BELOW_DAY:
        # The moment's own offset stays.
        return value - (shown - cut)
    # Of a midnight that the clock shows twice, the first.
    return cut.replace(tzinfo=place, fold=0).astimezone(UTC)


def _last_day(value: Any, unit: str = "MONTH") -> date:
    return (next_start(as_moment(value), unit) - timedelta(days=1)).date()


def _dates(low: date, high: date, interval: tuple[int, str] = (1, "DAY")) -> Any:
    out: list[date] = []
    moment = as_moment(low)
    while interval[0] > 0 and moment.date() <= high and len(out) < MAX_ARRAY:
        out.append(moment.date())
        moment = shift(as_moment(low), interval[0] * len(out), interval[1])
    return out if out and len(out) < MAX_ARRAY else NOT_CONSTANT


def _moments(low: datetime, high: datetime, interval: tuple[int, str]) -> Any:
    out = [low]
    while interval[0] > 0 and len(out) < MAX_ARRAY:
        following = shift(low, interval[0] * len(out), interval[1])
        if following > high:
            return out if low <= high else []
        out.append(following)
    return NOT_CONSTANT


def _numbers(low: int, high: int, step: int = 1) -> Any:
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in (low, high, step)) or step == 0:
        return NOT_CONSTANT
    numbers = range(low, high + (1 if step > 0 else -1), step)
    return list(numbers) if len(numbers) <= MAX_ARRAY else NOT_CONSTANT


_FOLDS: Final[Mapping[str, Callable[..., Any]]] = {
    "DATE": _date,
    "TIMESTAMP": _timestamp,
    "DATETIME": _datetime,
    "PARSE_DATE": _parse("DATE"),
    "PARSE_TIMESTAMP": _parse("TIMESTAMP"),
    "GREATEST": _extreme(max),
    "LEAST": _extreme(min),
    "DATE_ADD": _add,
    "DATE_SUB": lambda value, interval: _add(value, interval, -1),
    "DATETIME_ADD": _add,
    "DATETIME_SUB": lambda value, interval: _add(value, interval, -1),
    "TIMESTAMP_ADD": _add,
    "TIMESTAMP_SUB": lambda value, interval: _add(value, interval, -1),
    "DATE_TRUNC": _trunc,
    "TIMESTAMP_TRUNC": _trunc,
    "LAST_DAY": _last_day,
    "GENERATE_DATE_ARRAY": _dates,
    "GENERATE_TIMESTAMP_ARRAY": _moments,
    "GENERATE_ARRAY": _numbers,
    "TIMESTAMP_SECONDS": lambda n: datetime.fromtimestamp(n, UTC),
    "TIMESTAMP_MILLIS": lambda n: datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=n),
    "TIMESTAMP_MICROS": lambda n: datetime.fromtimestamp(0, UTC) + timedelta(microseconds=n),
}


def fold(name: str, args: list[Any]) -> Any:
    """Return the value of ``name(args)`` when the gate knows how to compute it, else NOT_CONSTANT.

    Example:
        >>> fold("DATE_SUB", [date(2024, 3, 31), (1, "MONTH")])
        datetime.date(2024, 2, 29)
        >>> fold("RAND", [])
        NOT_CONSTANT
    """
    compute = _FOLDS.get(name)
    if compute is None or any(arg is None for arg in args):
        return NOT_CONSTANT
    try:
        return compute(*args)
    except (ValueError, TypeError, OverflowError, OSError, AttributeError, KeyError, re.error):
        # Not a value that can be computed here: then it bounds nothing, and the engine says what is wrong with it.
        return NOT_CONSTANT
