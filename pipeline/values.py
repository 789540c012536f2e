"""One JSON value to one cell: protobuf's JSON mapping, BigQuery's texts of times and numbers."""

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from model.schema import FieldType
from model.widening import EXACT_FLOAT

NUMERIC_SCALE: Final = 9
_NUMERIC_LIMIT: Final = Decimal(10) ** 29
_NUMERIC_STEP: Final = Decimal(1).scaleb(-NUMERIC_SCALE)
# 38 digits and one more that rounds; half goes away from zero, as in BigQuery.
EXACT: Final = Context(prec=80, rounding=ROUND_HALF_UP)
_WHOLE: Final = re.compile(r"-?[0-9]{1,40}")
_JSON_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# More digits than any integer has that a column holds.
_MOST_DIGITS: Final = 40
_BEYOND: Final = 10**_MOST_DIGITS
NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NON_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_MAX_DURATION_SECONDS: Final = 315_576_000_000
_DURATION: Final = re.compile(r"(-?[0-9]{1,12}(?:\.[0-9]{1,9})?)s")
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-]\d\d:\d\d))", re.ASCII
)
# BigQuery's canonical texts: 2024-3-1 22:05:00.5 Europe/Stockholm.
_DATE: Final = r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
_TIME: Final = r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{1,9}))?)?"
_ZONE: Final = r"(?P<zone> ?[Zz]|[+-]\d{1,2}(?::?\d{2})?| ?(?:UTC|[A-Za-z_]+/[A-Za-z_+\-0-9/]+))"
_DATE_TEXT: Final = re.compile(_DATE, re.ASCII)
_TIME_TEXT: Final = re.compile(_TIME, re.ASCII)
_DATETIME_TEXT: Final = re.compile(rf"{_DATE}(?:[Tt ]{_TIME})?", re.ASCII)
_TIMESTAMP_TEXT: Final = re.compile(rf"{_DATE}(?:[Tt ]{_TIME})?{_ZONE}?", re.ASCII)
_OFFSET: Final = re.compile(r"([+-])(\d{1,2}):?(\d{2})?", re.ASCII)
# RFC 3339, 5.6: time-hour is 00 to 23 and time-minute 00 to 59, in an offset too.
# https://www.rfc-editor.org/rfc/rfc3339#section-5.6
_MOST_HOURS: Final = 23
_MOST_MINUTES: Final = 59

Convert = Callable[[Any], Any]
Numbers = Literal["float", "exact", "written"]


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if number in (_INFINITY, -_INFINITY):
        raise ValueError(f"{text[:60]} is too large for a FLOAT64")
    return number


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of ``pairs``; the second of two values would take the place of the first, unseen."""
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name {twice[:60]!r} occurs twice in an object")
    return found


class WrittenNumber(float):
    """A number with the text that it has in its message."""

    __slots__ = ("text",)
    text: str


def _as_written(text: str) -> WrittenNumber:
    number = WrittenNumber(_finite(text))
    number.text = text
    return number


def _exact(text: str) -> float:
    """Return the number, with its text where a FLOAT64 may be another integer than the one that is written."""
    number = _finite(text)
    return number if abs(number) < EXACT_FLOAT else _as_written(text)


def _whole_as_written(text: str) -> int | WrittenNumber:
    # An integer has one text, but for the zero that is no integer of Python's.
    return _as_written(text) if text == "-0" else int(text)


_INFINITY: Final = float("inf")
_decode_json: Final = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_each_once
).decode
_decode_exact: Final = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_exact, object_pairs_hook=_each_once
).decode
_decode_as_written: Final = json.JSONDecoder(
    parse_constant=_refuse_constant,
    parse_float=_as_written,
    parse_int=_whole_as_written,
    object_pairs_hook=_each_once,
).decode

_DECODERS: Final = {"float": _decode_json, "exact": _decode_exact, "written": _decode_as_written}


class UnknownValueError(Exception):
    """An enum's name that the schema does not know: kept beside the row, as an unknown field is."""


def to_text(value: Any) -> str:
    """Return a JSON string."""
    if type(value) is not str:
        raise ValueError(f"is {name_of(value)}, not a string")
    return value


def scalar_to_text(value: Any) -> str:
    """Return a JSON string, or the text of a number or boolean as it was written.

    protobuf's reader for Java (JsonFormat.java, parseString) takes ``json.getAsString()`` of any scalar, which is
    a number's own text (Gson, LazilyParsedNumber): 1.0 is "1.0", 1e3 is "1e3". It takes a list of one as well.
    """
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    return value.text if type(value) is WrittenNumber else to_text(value)


def to_bool(value: Any) -> bool:
    """Return a JSON boolean; the strings "true" and "false" are taken too."""
    if value is True or value is False:
        return bool(value)
    if value in ("true", "false"):
        return bool(value == "true")
    raise ValueError(f"is {name_of(value)}, not a boolean")


def whole_number(low: int, high: int) -> Convert:
    """Return a reader of integers from ``low`` to ``high``, as a number or as a string that writes one.

    "Exponent notation (such as 1e2) is accepted in both quoted and unquoted forms":
    https://protobuf.dev/programming-guides/json/. A fraction of zeros is none: protobuf's reader for Java takes
    the exact number (JsonFormat.java, parseInt64, ``toBigIntegerExact``).
    """

    def convert(value: Any) -> int:
        number = value
        if type(value) is WrittenNumber:
            number = _whole(value.text)
        elif type(value) is str and value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS:
            number = int(value)
        elif type(value) is str:
            number = _whole(value) if _JSON_NUMBER.fullmatch(value) else None
        elif isinstance(value, float) and value.is_integer():
            number = int(value)
        if type(number) is not int:
            raise ValueError(f"is {name_of(value)}, not an integer")
        if not low <= number <= high:
            raise ValueError(f"{str(value)[:60]} is not from {low} to {high}")
        return number

    return convert


def _whole(text: str) -> int | None:
    """Return the integer that a number's text writes, one beyond every column's for more digits, else None."""
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        exact = Decimal(text)
    except InvalidOperation:
        return None
    if exact and exact.adjusted() >= _MOST_DIGITS:
        # 1e536870000 would not fit into memory.
        return -_BEYOND if exact < 0 else _BEYOND
    return int(exact) if exact == exact.to_integral_value() else None


def to_float(value: Any) -> float:
    """Return a number, or one of the strings "NaN", "Infinity", "-Infinity", or a number in a string."""
    kind = type(value)
    if isinstance(value, float) or kind is int:
        return float(value)
    if kind is str:
        if value in _NON_FINITE:
            return _NON_FINITE[value]
        number = float(value) if NUMBER.fullmatch(value) else float("inf")
        if abs(number) != float("inf"):
            return number
    raise ValueError(f"is {name_of(value)}, not a number")


def float_within(limit: float) -> Convert:
    """Return a reader of numbers from ``-limit`` to ``limit``, and of those that are not finite."""

    def convert(value: Any) -> float:
        number = to_float(value)
        if limit < abs(number) < _INFINITY:
            raise ValueError(f"{number} is too large for its field")
        return number

    return convert


def to_bytes(value: Any) -> bytes:
    """Return the bytes of a base64 text, of either alphabet, padded or not."""
    text = to_text(value).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error as exc:
        raise ValueError(f"is not base64: {exc}") from exc


def enum_number(numbers: Mapping[str, int]) -> Convert:
    """Return a reader of an enum's name or number as its number."""

    def convert(value: Any) -> int:
        if type(value) is int:
            return value
        number = numbers.get(to_text(value))
        if number is not None:
            return number
        if _WHOLE.fullmatch(value):
            return int(value)
        raise UnknownValueError

    return convert


def enum_name(numbers: Mapping[str, int]) -> Convert:
    """Return a reader of an enum's name or number as its name."""
    names = {number: name for name, number in reversed(list(numbers.items()))}

    def convert(value: Any) -> str:
        name = names.get(value) if type(value) is int else to_text(value)
        if name not in numbers and type(value) is str and _WHOLE.fullmatch(value):
            name = names.get(int(value))
        if name is None or name not in numbers:
            raise UnknownValueError
        return name

    return convert


def to_timestamp(value: Any) -> datetime:
    """Return the instant of an RFC 3339 text; digits beyond microseconds are cut off."""
    match = _RFC_3339.fullmatch(to_text(value))
    if match is None:
        raise ValueError(f"{value[:60]!r} is not an RFC 3339 time")
    day, clock, fraction, offset = match.groups()
    moment = datetime.fromisoformat(f"{day}T{clock}").replace(
        microsecond=int(fraction.ljust(6, "0")[:6]) if fraction else 0, tzinfo=UTC
    )
    return moment - _offset(offset) if offset else moment


def exact_number(value: Any) -> Decimal:
    """Return a number as it is written, or one in a string; as a float it may have lost its last digits."""
    if type(value) is WrittenNumber:
        return Decimal(value.text)
    if type(value) is int or isinstance(value, float) or (type(value) is str and NUMBER.fullmatch(value)):
        return Decimal(str(value))
    raise ValueError(f"is {name_of(value)}, not a number")


def to_seconds(value: Any) -> Decimal:
    """Return the seconds of a Duration's text, such as "1.5s"."""
    match = _DURATION.fullmatch(to_text(value))
    # The largest has a fraction: 315576000000.999999999s.
    if match is None or int(abs(Decimal(match[1]))) > _MAX_DURATION_SECONDS:
        raise ValueError(f"{value[:60]!r} is not a duration in seconds, such as '1.5s'")
    return Decimal(match[1])


def parse_json(text: str, *, numbers: Numbers = "float") -> Any:
    """Return the value of a JSON text.

    With ``exact`` large numbers know their text, for :func:`whole_number`; with ``written`` all that are no
    integers do, for :func:`scalar_to_text`.

    Raises:
        ValueError: it is none, names a field twice, or has a number that no FLOAT64 holds.
        RecursionError: it is nested too deep.
    """
    return _DECODERS[numbers](text)


def number_text(value: float | Decimal) -> str:
    """Return the text of a number, as protobuf's JSON mapping writes those that JSON has not."""
    texts = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
    return texts.get(str(value), str(value))


def numeric_text(value: Decimal) -> str:
    """Return the text of a NUMERIC, as BigQuery's API writes it: no exponent, no zeros after its last digit.

    Example:
        >>> numeric_text(Decimal("1234.100000000")), numeric_text(Decimal("1E+3")), numeric_text(Decimal("0E-9"))
        ('1234.1', '1000', '0')
    """
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def from_text(wanted: FieldType) -> Convert | None:
    """Return a function from a text to a cell of type ``wanted``, None where the text is the cell.

    An empty text is null for every type but STRING.
    """
    readers: Mapping[str, Convert] = {
        "BYTES": to_bytes,
        "INT64": whole_number(-(1 << 63), (1 << 63) - 1),
        "FLOAT64": to_float,
        "NUMERIC": to_numeric,
        "BOOL": lambda text: to_bool(text.lower()),
        "DATE": _date_of,
        "TIME": _time_of,
        "DATETIME": _datetime_of,
        "TIMESTAMP": _timestamp_of,
        "JSON": _checked_json,
        "GEOGRAPHY": str,
    }
    reader = readers.get(wanted)
    if reader is None:
        return None
    return lambda text: None if text == "" else reader(text)


def to_numeric(value: Any) -> Decimal:
    """Return a NUMERIC: 29 digits before the point, 9 after it."""
    number = None
    is_number = isinstance(value, float | Decimal) or type(value) is int
    if is_number or (type(value) is str and NUMBER.fullmatch(value.strip())):
        with suppress(InvalidOperation):
            number = Decimal(str(value))
    if number is None:
        raise ValueError(f"is {name_of(value)}, not a number")
    if not number.is_finite():
        raise ValueError(f"{number_text(value)} is not a NUMERIC")
    # Compared without arithmetic, which fails for very large exponents.
    if number.copy_abs() >= _NUMERIC_LIMIT:
        raise ValueError(f"{str(value)[:60]} has more than 29 digits before the point")
    if not number:
        return Decimal(0)
    if -number.as_tuple().exponent <= NUMERIC_SCALE:  # type: ignore[operator]
        return number
    return number.quantize(_NUMERIC_STEP, context=EXACT)


def name_of(value: Any) -> str:
    """Return the kind of a JSON value, for a message to people."""
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if isinstance(value, float):
        return "a number"
    names = {dict: "an object", list: "a list", bool: "a boolean", int: "a number"}
    return names.get(type(value), "null")


def _date_of(text: str) -> date:
    parts = _parts(_DATE_TEXT, text, "date")
    return date(int(parts["year"]), int(parts["month"]), int(parts["day"]))


def _time_of(text: str) -> str:
    parts = _parts(_TIME_TEXT, text, "time")
    return time(*_clock(parts)).isoformat(timespec="microseconds")


def _datetime_of(text: str) -> datetime:
    parts = _parts(_DATETIME_TEXT, text, "date and time")
    day = (int(parts["year"]), int(parts["month"]), int(parts["day"]))
    return datetime(*day, *_clock(parts))  # noqa: DTZ001  DATETIME has no zone


def _timestamp_of(text: str) -> datetime:
    parts = _parts(_TIMESTAMP_TEXT, text, "time")
    day = (int(parts["year"]), int(parts["month"]), int(parts["day"]))
    zone = time_zone((parts["zone"] or "UTC").strip())
    return datetime(*day, *_clock(parts), tzinfo=zone).astimezone(UTC)


def _parts(pattern: re.Pattern[str], text: str, what: str) -> dict[str, str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:60]!r} is not a valid {what}")
    return match.groupdict()


def _clock(parts: Mapping[str, str]) -> tuple[int, int, int, int]:
    return (
        int(parts["hour"] or 0),
        int(parts["minute"] or 0),
        int(parts["second"] or 0),
        int((parts["fraction"] or "0").ljust(6, "0")[:6]),
    )


@lru_cache(maxsize=1000)
def time_zone(text: str) -> ZoneInfo | timezone:
    """Return the zone of a name or an offset: "Europe/Stockholm", "Z", "+02:00".

    Raises:
        ValueError: there is none.
    """
    if text in ("Z", "z", "UTC"):
        return UTC
    if _OFFSET.fullmatch(text):
        return timezone(_offset(text))
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, OSError) as exc:
        raise ValueError(f"{text!r} is not a time zone") from exc


def _offset(text: str) -> timedelta:
    match = _OFFSET.fullmatch(text)
    hours, minutes = (0, 0) if match is None else (int(match[2]), int(match[3] or 0))
    if match is None or hours > _MOST_HOURS or minutes > _MOST_MINUTES:
        raise ValueError(f"{text!r} is not an offset from UTC")
    offset = timedelta(hours=hours, minutes=minutes)
    return offset if match[1] == "+" else -offset


def _checked_json(text: str) -> str:
    parse_json(text)
    return text
