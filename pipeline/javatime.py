"""Java's time patterns (java.time.format.DateTimeFormatter), as far as data uses them: parsed once, then fast."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from model.errors import DescriptorError
from pipeline.values import time_zone

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_HALF_DAY_HOURS: Final = 12
_SHORT_YEAR: Final = 2
_SHORT_MONTH: Final = 3
_YEARS_OF_SHORT: Final = 2000

# letter -> the part of a time it is, as a group of a regular expression; {n} is how often the letter stands.
_NUMBERS: Final = {"y": "year", "u": "year", "M": "month", "d": "day", "H": "hour", "h": "half_hour"} | {
    "m": "minute",
    "s": "second",
}
_OFFSETS: Final = {"X", "x", "Z"}
# How often a letter may stand; more of it means something else, such as a month's whole name.
_MOST: Final = {"y": 4, "u": 4, "M": 3, "S": 9, "X": 3, "x": 3, "Z": 3, "a": 1} | dict.fromkeys("dHhmsV", 2)
_TOKEN: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|([\[\]])|([^A-Za-z'\[\]])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Token:
    """A run of one letter, a literal text, or a bracket of an optional part."""

    letter: str
    count: int
    text: str


class TimePattern:
    """One pattern, to parse local times with and to write UTC with.

    Raises:
        DescriptorError: it has a letter that is not supported, or one part twice.

    Example:
        >>> TimePattern("yyyy-MM-dd'T'HH:mm:ss[.SSS]").parse("2024-03-01T22:05:00.5")
        Traceback (most recent call last):
        ValueError: '2024-03-01T22:05:00.5' does not fit the pattern yyyy-MM-dd'T'HH:mm:ss[.SSS]
        >>> TimePattern("d/M/yy HH:mm").parse("1/3/24 22:05")
        datetime.datetime(2024, 3, 1, 22, 5)
        >>> TimePattern("yyyy-MM-dd'T'HH:mm:ssXXX").format(datetime(2024, 3, 1, tzinfo=UTC))
        '2024-03-01T00:00:00Z'
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._tokens = list(_tokens(pattern))
        for token in self._tokens:
            if token.count > _MOST.get(token.letter, token.count):
                raise _unsupported(token, pattern)
        try:
            self._regex = re.compile("".join(_regex_of(token, pattern) for token in self._tokens), re.ASCII)
        except re.error as exc:
            raise DescriptorError(f"The time pattern {pattern!r} can't be used: {exc}.") from exc
        parts = self._regex.groupindex
        self.has_year = "year" in parts
        self.lacks_half_day = "half_hour" in parts and "half_day" not in parts
        self._writers = [_writer_of(token) for token in self._tokens if token.letter not in ("[", "]")]

    def parse(self, text: str) -> datetime:
        """Return the local time that ``text`` names, naive; parts that the pattern lacks are midnight's.

        An offset or zone in the text is passed over, as Java's LocalDateTime does.

        Raises:
            ValueError: the text is not of this pattern.
        """
        match = self._regex.fullmatch(text)
        parts = {} if match is None else match.groupdict()
        hour = _hour_of(parts)
        if parts.get("year") is None or hour is None:
            raise ValueError(f"{text[:100]!r} does not fit the pattern {self._pattern}")
        year = int(parts["year"])
        if len(parts["year"]) == _SHORT_YEAR:
            year += _YEARS_OF_SHORT
        month = parts.get("month") or "1"
        return datetime(  # noqa: DTZ001  a local time, which the zone makes an instant of
            year,
            int(month) if month.isdigit() else _MONTHS.index(month.title()) + 1,
            int(parts.get("day") or 1),
            hour,
            int(parts.get("minute") or 0),
            int(parts.get("second") or 0),
            int((parts.get("fraction") or "0").ljust(6, "0")[:6]),
        )

    def format(self, moment: datetime) -> str:
        """Return ``moment``, aware UTC, as the pattern writes it; optional parts are written."""
        return "".join(write(moment) for write in self._writers)


class LocalToUtc:
    """A local time's way to UTC: "zone", or "zone, local pattern, UTC pattern".

    A time that comes twice, when clocks go back, is the first; one that never comes is as late as if the clock
    had not been put forward. So does Java.

    Raises:
        DescriptorError: the zone or a pattern is unknown.

    Example:
        >>> LocalToUtc("Europe/Stockholm, yyyy-MM-dd HH:mm, yyyy-MM-dd'T'HH:mm:ssXXX").convert("2024-07-01 12:00")
        '2024-07-01T10:00:00Z'
        >>> LocalToUtc("Europe/Stockholm").convert("2024-01-01T12:00:00")
        '2024-01-01T11:00:00Z'
    """

    def __init__(self, setting: str) -> None:
        zone, *patterns = (part.strip() for part in setting.split(","))
        if len(patterns) not in (0, 2):
            raise DescriptorError(f"{setting!r} must be 'zone' or 'zone, local pattern, UTC pattern'.")
        try:
            self._zone = time_zone(zone)
        except ValueError as exc:
            raise DescriptorError(f"{zone!r} is not a time zone.") from exc
        self._patterns = (time_pattern(patterns[0]), time_pattern(patterns[1])) if patterns else None
        if self._patterns is not None and not self._patterns[0].has_year:
            raise DescriptorError(f"The time pattern {patterns[0]!r} has no year. A local time needs its date.")
        if self._patterns is not None and self._patterns[0].lacks_half_day:
            raise DescriptorError(f"The time pattern {patterns[0]!r} has `h` without `a`. Write `H` or add `a`.")

    def convert(self, text: str) -> str:
        """Return the instant of the local time ``text``, in UTC.

        Raises:
            ValueError: the text is no such time.
        """
        local = datetime.fromisoformat(text) if self._patterns is None else self._patterns[0].parse(text)
        if self._patterns is None and (local.tzinfo is not None or "T" not in text):
            raise ValueError(f"{text[:100]!r} is not a local ISO time")
        moment = local.replace(tzinfo=self._zone).astimezone(UTC)
        if self._patterns is None:
            return moment.isoformat().replace("+00:00", "Z")
        return self._patterns[1].format(moment)


@lru_cache(maxsize=1000)
def time_pattern(pattern: str) -> TimePattern:
    """Return the pattern, parsed once a process.

    Raises:
        DescriptorError: it is not supported.
    """
    return TimePattern(pattern)


def _tokens(pattern: str) -> Iterator[_Token]:
    at = 0
    while at < len(pattern):
        match = _TOKEN.match(pattern, at)
        if match is None:
            raise DescriptorError(f"The time pattern {pattern!r} has a quote without an end.")
        at = match.end()
        quoted, letter, bracket, _ = match.groups()
        if letter:
            yield _Token(letter, len(match[0]), match[0])
        elif bracket:
            yield _Token(bracket, 1, bracket)
        else:
            yield _Token("", 1, match[0] if quoted is None else (quoted.replace("''", "'") or "'"))


def _hour_of(parts: Mapping[str, str | None]) -> int | None:
    """Return the hour, None where it does not fit its half of the day, or where that is missing, as in Java."""
    hour, half_hour, half_day = (parts.get(name) for name in ("hour", "half_hour", "half_day"))
    start = _HALF_DAY_HOURS if half_day is not None and half_day.upper() == "PM" else 0
    if half_hour is not None:
        is_known = half_day is not None and int(half_hour) <= _HALF_DAY_HOURS
        return start + int(half_hour) % _HALF_DAY_HOURS if is_known else None
    if hour is not None and half_day is not None and not start <= int(hour) < start + _HALF_DAY_HOURS:
        return None
    return int(hour or 0)


def _regex_of(token: _Token, pattern: str) -> str:  # noqa: PLR0911  as many as there are kinds of letters
    letter, count = token.letter, token.count
    if letter == "":
        return re.escape(token.text)
    if letter in ("[", "]"):
        return "(?:" if letter == "[" else ")?"
    if letter == "M" and count == _SHORT_MONTH:
        return f"(?P<month>(?i:{'|'.join(_MONTHS)}))"
    if letter in _NUMBERS:
        name = _NUMBERS[letter]
        if name == "year":
            return r"(?P<year>\d{2})" if count == _SHORT_YEAR else r"(?P<year>\d{4})"
        return rf"(?P<{name}>\d{{2}})" if count > 1 else rf"(?P<{name}>\d{{1,2}})"
    if letter == "S":
        return rf"(?P<fraction>\d{{{count}}})"
    if letter == "a":
        return "(?P<half_day>(?i:AM|PM))"
    if letter in _OFFSETS:
        return r"(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)"
    if letter == "V" and count == 2:  # noqa: PLR2004  VV is Java's way to write a zone's id
        return r"[A-Za-z_]+(?:/[A-Za-z_+\-0-9]+)*"
    raise _unsupported(token, pattern)


def _unsupported(token: _Token, pattern: str) -> DescriptorError:
    return DescriptorError(f"The time pattern {pattern!r} contains {token.text!r}, which is not supported.")


def _writer_of(token: _Token) -> Callable[[datetime], str]:  # noqa: PLR0911  the same
    letter, count = token.letter, token.count
    if letter in ("y", "u"):
        return lambda t: f"{t.year % 100:02d}" if count == _SHORT_YEAR else f"{t.year:04d}"
    if letter == "M":
        return lambda t: _MONTHS[t.month - 1] if count == _SHORT_MONTH else f"{t.month:0{count}d}"
    simple: dict[str, Callable[[datetime], int]] = {
        "d": lambda t: t.day,
        "H": lambda t: t.hour,
        "h": lambda t: t.hour % _HALF_DAY_HOURS or _HALF_DAY_HOURS,
        "m": lambda t: t.minute,
        "s": lambda t: t.second,
    }
    if letter in simple:
        read = simple[letter]
        return lambda t: f"{read(t):0{count}d}"
    if letter == "S":
        return lambda t: f"{t.microsecond:06d}000"[:count]
    if letter == "a":
        return lambda t: "AM" if t.hour < _HALF_DAY_HOURS else "PM"
    if letter in _OFFSETS:
        # Java writes X for UTC as Z, x and Z as digits.
        digits = "+00:00" if letter == "x" and count == 3 else "+00" if letter == "x" and count == 1 else "+0000"  # noqa: PLR2004
        return lambda _: "Z" if letter == "X" else digits
    if letter == "V":
        return lambda _: "UTC"
    return lambda _: token.text
