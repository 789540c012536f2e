"""Functions of GoogleSQL that the lake's engine lacks, written in Python and registered with a connection.

Translated queries call them for what the engine does differently, mostly behind a test that keeps plain values
with the engine: a call here costs a few microseconds a value. One that raises ``ValueError`` fails the query;
inside of TRY it gives NULL.
"""

import base64
import json
import math
import re
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal, localcontext
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

from connectors.lake.lenient_json import AS_WRITTEN, Number, Pairs, looked_up, without_halves

# (name, function, types of its parameters with blanks between, type of its result), in the engine's words
Function = tuple[str, Callable[..., Any], str, str]
NUMERIC: Final = "DECIMAL(38,9)"
_LARGEST_NUMERIC: Final = Decimal("99999999999999999999999999999.999999999")
_PLACES: Final = Decimal("1e-9")
_DIGITS: Final = Context(prec=80)
BLANKS: Final = " \t\n\v\f\r"
_FLOAT: Final = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
_HEX: Final = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?\d+)?")
_EXACT: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_MOMENT: Final = re.compile(
    # An offset may follow the date at once.
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[ Tt](?:(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?|(?=[+-]))(.*))?",
    re.ASCII | re.DOTALL,
)
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?", re.ASCII)
_OFFSET: Final = re.compile(r"([+-])(\d{1,2})(?::?(\d{2}))?", re.ASCII)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONG_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip


# --- numbers -----------------------------------------------------------------------------------------------------


def float_of(text: str) -> float:
    """Return the FLOAT64 that a text writes."""
    bare = text.strip(BLANKS)
    if _HEX.fullmatch(bare):
        try:
            return float.fromhex(bare)
        except OverflowError:
            return -math.inf if bare.startswith("-") else math.inf
    if not _FLOAT.fullmatch(bare):
        raise ValueError(f"Bad double value: {text[:40]}")
    return float(bare)


def numeric_of(text: str) -> Decimal:
    """Return the NUMERIC that a text writes, halves away from zero."""
    bare = text.strip(BLANKS)
    if not _EXACT.fullmatch(bare):
        raise ValueError(f"Invalid NUMERIC value: {text[:40]}")
    return _numeric(Decimal(bare))


def _numeric(value: Decimal) -> Decimal:
    if value.is_finite() and value.adjusted() > 29:  # noqa: PLR2004 - the digits before the point
        raise ValueError("numeric overflow")
    rounded = value.quantize(_PLACES, rounding=ROUND_HALF_UP, context=_DIGITS)
    if rounded.copy_abs() > _LARGEST_NUMERIC:
        raise ValueError("numeric overflow")
    return rounded


def numeric_of_float(value: float) -> Decimal:
    """Return a FLOAT64 as NUMERIC."""
    if not math.isfinite(value):
        raise ValueError(f"Illegal conversion of {value} to NUMERIC")
    return _numeric(Decimal(value))


def numeric_product(left: Decimal, right: Decimal) -> Decimal:
    """Return the product of two NUMERIC."""
    return _numeric(_DIGITS.multiply(left, right))


def numeric_quotient(left: Decimal, right: Decimal) -> Decimal:
    """Return the quotient of two NUMERIC."""
    if not right:
        raise ValueError("division by zero")
    return _numeric(_DIGITS.divide(left, right))


def numeric_whole_quotient(left: Decimal, right: Decimal) -> Decimal:
    """Return the quotient of two NUMERIC cut to a whole number."""
    if not right:
        raise ValueError("division by zero")
    with localcontext(_DIGITS):
        return _numeric((left / right).to_integral_value(ROUND_DOWN))


def float_text(value: float) -> str:
    """Return a FLOAT64 as CAST to STRING writes it: 15 digits where they are enough, else 17."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    text = f"{value:.15g}"
    return text if float(text) == value else f"{value:.17g}"


def int64_of(text: str) -> int:
    """Return the INT64 that a text writes, in decimal or hexadecimal."""
    bare = text.strip(BLANKS)
    if not re.fullmatch(r"[+-]?(?:\d+|0[xX][0-9a-fA-F]+)", bare, re.ASCII):
        raise ValueError(f"Bad int64 value: {text[:40]}")
    number = int(bare, 16) if "x" in bare.lower() else int(bare[:5000])
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"Bad int64 value: {text[:40]}")
    return number


# More digits than a FLOAT64 has behind its point, and than it has before it.
_FINEST: Final = 1074
_COARSEST: Final = -309
_LONGEST: Final = Context(prec=2000)


def rounded(value: float, digits: int) -> float:
    """Return a FLOAT64 with so many digits behind its point: of its exact value, halves away from zero."""
    return _cut(value, digits, ROUND_HALF_UP)


def truncated(value: float, digits: int) -> float:
    """Return a FLOAT64 without the digits behind these."""
    return _cut(value, digits, ROUND_DOWN)


def _cut(value: float, digits: int, rounding: str) -> float:
    if not math.isfinite(value) or digits >= _FINEST:
        return value
    if digits < _COARSEST:
        return 0.0
    cut = float(Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding, _LONGEST))
    if math.isinf(cut):
        raise ValueError("Floating point overflow in function: ROUND")
    return cut


def shifted(number: int, places: int) -> int:
    """Return the 64 bits of a number moved to the left, for negative ``places`` to the right, zeros coming in."""
    bits = number % 2**64
    moved = bits << min(places, 64) if places >= 0 else bits >> min(-places, 64)
    return (moved + 2**63) % 2**64 - 2**63


# --- texts -------------------------------------------------------------------------------------------------------


def edit_distance(left: str, right: str) -> int:
    """Return how many code points have to change."""
    row = list(range(len(right) + 1))
    for number, a in enumerate(left, start=1):
        above, row[0] = row[0], number
        for place, b in enumerate(right, start=1):
            above, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, above + (a != b))
    return row[-1]


def bytes_of_base64(text: str) -> bytes:
    """Return the bytes that a text encodes; blanks and missing padding are no fault."""
    bare = re.sub(r"[ \t\n\v\f\r]", "", text)
    if not re.fullmatch(r"[A-Za-z0-9+/]*={0,2}", bare):
        raise ValueError("Failed to decode invalid base64 string")
    digits = bare.rstrip("=")
    if len(digits) % 4 == 1 or (len(digits) < len(bare) and len(bare) % 4):
        raise ValueError("Failed to decode invalid base64 string")
    return base64.b64decode(digits + "=" * (-len(digits) % 4))


def translated(text: str, characters: str, others: str) -> str:
    """Return a text with each of ``characters`` made the one at its place in ``others``, or taken out."""
    if len(set(characters)) < len(characters):
        raise ValueError("Duplicate character in TRANSLATE source characters")
    return text.translate({ord(a): others[n : n + 1] for n, a in enumerate(characters)})


# --- moments -----------------------------------------------------------------------------------------------------


def _naive(parts: tuple[str | None, ...]) -> datetime:
    year, month, day, hour, minute, second = (int(part or 0) for part in parts[:6])
    micros = int((parts[6] or "0").ljust(6, "0"))
    # The second of a leap is the next one.
    leap = second == 60  # noqa: PLR2004
    moment = datetime(year, month, day, hour, minute, 59 if leap else second, 0 if leap else micros)  # noqa: DTZ001
    try:
        return moment + timedelta(seconds=leap)
    except OverflowError as exc:
        raise ValueError("out of the calendar") from exc


def datetime_of(text: str) -> datetime:
    """Return the DATETIME that a text writes."""
    match = _MOMENT.fullmatch(text)
    if match is None or match[8]:
        raise ValueError(f"Invalid datetime string {text[:40]!r}")
    return _naive(match.groups()[:7])


def timestamp_of(text: str) -> datetime:
    """Return the TIMESTAMP that a text writes, in UTC where it names no zone."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"Invalid timestamp: {text[:40]!r}")
    suffix = match[8] or ""
    named = suffix[1:] if suffix[:1] == " " else suffix
    # A name stands after a blank, an offset and Z do not.
    if suffix and (suffix[0] == " ") == bool(_OFFSET.fullmatch(named) or named in {"Z", "z"}):
        raise ValueError(f"Invalid timestamp: {text[:40]!r}")
    place = _zone("UTC" if named in {"", "Z", "z"} else named)
    return _utc(_naive(match.groups()[:7]), place)


def _utc(naive: datetime, place: tzinfo) -> datetime:
    try:
        return naive.replace(tzinfo=place).astimezone(UTC)
    except OverflowError as exc:
        raise ValueError("out of the calendar") from exc


@lru_cache(256)
def _zone(name: str) -> tzinfo:
    if match := _OFFSET.fullmatch(name):
        hours, minutes = int(match[2]), int(match[3] or 0)
        if hours * 60 + minutes > 14 * 60 or minutes > 59:  # noqa: PLR2004 - the offsets there are
            raise ValueError(f"Invalid time zone: {name}")
        delta = timedelta(hours=hours, minutes=minutes)
        return timezone(-delta if match[1] == "-" else delta)
    try:
        return ZoneInfo(name)
    except (OSError, KeyError, ValueError) as exc:
        raise ValueError(f"Invalid time zone: {name[:40]}") from exc


def time_of(text: str) -> Any:
    """Return the TIME that a text writes."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(f"Invalid time string {text[:40]!r}")
    return _naive(("2000", "1", "1", *match.groups())).time()


def parsed(text: str, pattern: str) -> datetime:
    """Return the moment that a text writes after a format of PARSE_TIMESTAMP and its kin, without a zone."""
    place, found = 0, {"Y": 1970, "m": 1, "d": 1, "H": 0, "M": 0, "S": 0}
    # Google's engine takes a NUL at the end of a text for the end of the text.
    text = text.removesuffix("\0").strip(BLANKS)
    for blank, element, literal in _elements(pattern.strip(BLANKS)):
        if blank:
            while place < len(text) and text[place] in BLANKS:
                place += 1
        elif element:
            place = _read_element(element, text, place, found)
        elif text[place : place + 1] == literal:
            place += 1
        else:
            raise ValueError(f"Failed to parse input string {text[:40]!r}")
    if place != len(text):
        raise ValueError(f"Failed to parse input string {text[:40]!r}: trailing data")
    values = ("Y", "m", "d", "H", "M", "S")
    return _naive((*(str(found[name]) for name in values), None))


@lru_cache(64)
def _elements(pattern: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((m[1] or "", m[2] or "", m[3] or "") for m in re.finditer(r"(\s+)|%(.)|(.)", pattern, re.DOTALL))


_WIDTHS: Final = {"Y": (4, 1, 9999), "m": (2, 1, 12), "d": (2, 1, 31), "H": (2, 0, 23), "M": (2, 0, 59),
                  "S": (2, 0, 60), "y": (2, 0, 99)}  # fmt: skip


def _read_element(element: str, text: str, place: int, found: dict[str, int]) -> int:  # noqa: C901 - one branch an element
    if element == "T":
        for inner in "H:M:S":
            place = _read_element(inner, text, place, found)
        return place
    if element in _WIDTHS:
        width, low, high = _WIDTHS[element]
        while place < len(text) and text[place] in BLANKS:
            place += 1
        match = re.compile(rf"\d{{1,{width}}}", re.ASCII).match(text, place)
        if match is None or not low <= int(match[0]) <= high:
            raise ValueError(f"Failed to parse input string {text[:40]!r}")
        number = int(match[0])
        if element == "y":
            element, number = "Y", number + (1900 if number > 68 else 2000)  # noqa: PLR2004 - as POSIX has it
        found[element] = number
        return match.end()
    if element in {"b", "B"}:
        for names in (_LONG_MONTHS, _MONTHS):
            for number, name in enumerate(names, start=1):
                if text[place : place + len(name)].lower() == name:
                    found["m"] = number
                    return place + len(name)
    if text[place : place + 1] == element and element in "%:":
        return place + 1
    raise ValueError(f"Failed to parse input string {text[:40]!r}")


# --- JSON --------------------------------------------------------------------------------------------------------


# From here on Google writes a number of JSON with an exponent.
_LONG: Final = 1e15


def json_of(text: str, *, rounds: bool = False) -> str:
    """Return JSON as Google keeps it: members in order of their names, of two of a name the first.

    As there, a byte order mark may stand before it, and it ends at a NUL. A number that FLOAT64 can't hold exactly
    is none unless ``rounds``.
    """
    bare = text.removeprefix("\ufeff").lstrip(" \t\n\r")
    if without_halves(bare) != bare:
        raise ValueError("half a surrogate pair in JSON")
    try:
        value, end = AS_WRITTEN.raw_decode(bare)
        if bare[end:].lstrip(" \t\n\r")[:1] not in {"", "\0"}:
            raise ValueError("more than one value of JSON")
        return _canonical(value, rounds=rounds)
    except RecursionError as exc:
        raise ValueError("JSON nests too deep") from exc


def rounded_json_of(text: str) -> str:
    """Return JSON as Google keeps that of a literal."""
    return json_of(text, rounds=True)


def _canonical(value: Any, *, rounds: bool) -> str:
    if isinstance(value, Pairs):
        members: dict[str, Any] = {}
        for name, member in value:
            members.setdefault(name, member)
        ordered = sorted(members.items(), key=lambda item: item[0].encode("utf-8", "surrogatepass"))
        return (
            "{"
            + ",".join(f"{quote_json(name)}:{_canonical(member, rounds=rounds)}" for name, member in ordered)
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(_canonical(item, rounds=rounds) for item in value) + "]"
    if isinstance(value, Number):
        return _canonical_number(value, rounds=rounds)
    return quote_json(value) if isinstance(value, str) else json.dumps(value)


def _canonical_number(text: str, *, rounds: bool) -> str:
    if text.lstrip("-").isdigit() and -(2**63) <= int(text) < 2**64:
        return str(int(text))
    number = float(text)
    if math.isinf(number) or (not rounds and Decimal(repr(number)) != Decimal(text)):
        raise ValueError(f"Input number: {text[:40]} cannot round-trip through string representation")
    return json_float_text(number)


def json_float_text(number: float) -> str:
    """Return a finite number with a fraction as Google writes it in JSON."""
    text = repr(number)
    if "e" not in text and abs(number) < _LONG:
        return text
    exact = Decimal(text).normalize()
    digits = "".join(map(str, exact.as_tuple().digits))
    mantissa = f"{digits[0]}.{digits[1:]}" if digits[1:] else digits
    return f"{'-' if number < 0 else ''}{mantissa}e{exact.adjusted():+03d}"


def quote_json(text: str) -> str:
    """Return a text as JSON has it."""
    return json.dumps(text, ensure_ascii=False)


# Google escapes these where JSON is a STRING, and leaves them where it is of type JSON.
_SEPARATORS: Final = {0x2028: "\\u2028", 0x2029: "\\u2029"}


def quote_json_text(text: str) -> str:
    """Return a text as JSON that is a STRING has it."""
    return quote_json(text).translate(_SEPARATORS)


def _written(value: Any) -> str:
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{quote_json_text(name)}:{_written(member)}" for name, member in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, Number):
        return str(value)
    return quote_json_text(value) if isinstance(value, str) else json.dumps(value)


def json_again(text: str, is_text: bool) -> str:
    """Return JSON that the engine wrote as Google writes it, a STRING of it where ``is_text``."""
    return _rewritten(AS_WRITTEN.decode(without_halves(text)), quote_json_text if is_text else quote_json)


def _rewritten(value: Any, quote: Callable[[str], str]) -> str:
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{quote(name)}:{_rewritten(member, quote)}" for name, member in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_rewritten(item, quote) for item in value) + "]"
    if isinstance(value, Number):
        return json_float_text(float(value)) if set(".eE") & set(value) else str(value)
    return quote(value) if isinstance(value, str) else json.dumps(value)


def _scalar_text(value: Any) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


def json_text_value(text: str, path: str) -> str | None:
    """Return the scalar at a path of a JSON text, numbers as they are written."""
    value = looked_up(text, path)
    return None if isinstance(value, list) else _scalar_text(value)


def json_text_query(text: str, path: str) -> str | None:
    """Return the JSON at a path of a JSON text, numbers as they are written."""
    value = looked_up(text, path)
    return None if value is None else _written(value)


def json_text_query_array(text: str, path: str) -> list[str] | None:
    """Return the elements of the array at a path of a JSON text."""
    value = looked_up(text, path)
    if isinstance(value, Pairs) or not isinstance(value, list):
        return None
    return [_written(item) for item in value]


def json_text_value_array(text: str, path: str) -> list[str | None] | None:
    """Return the scalars of the array at a path of a JSON text."""
    value = looked_up(text, path)
    if isinstance(value, Pairs) or not isinstance(value, list):
        return None
    if any(isinstance(item, list) for item in value):
        return None
    return [_scalar_text(item) for item in value]


# --- what is registered -----------------------------------------------------------------------------------------

# Name, function, parameters, result. Each gives NULL for NULL and has a twin, ``refeed_safe_...``, that gives NULL
# where it would fail (connectors/lake/udfs.py).
FUNCTIONS: Final[tuple[Function, ...]] = (
    ("refeed_float64", float_of, "VARCHAR", "DOUBLE"),
    ("refeed_numeric", numeric_of, "VARCHAR", NUMERIC),
    ("refeed_numeric_of_float", numeric_of_float, "DOUBLE", NUMERIC),
    ("refeed_numeric_product", numeric_product, f"{NUMERIC} {NUMERIC}", NUMERIC),
    ("refeed_numeric_quotient", numeric_quotient, f"{NUMERIC} {NUMERIC}", NUMERIC),
    ("refeed_numeric_div", numeric_whole_quotient, f"{NUMERIC} {NUMERIC}", NUMERIC),
    ("refeed_float_text", float_text, "DOUBLE", "VARCHAR"),
    ("refeed_int64", int64_of, "VARCHAR", "BIGINT"),
    ("refeed_round", rounded, "DOUBLE BIGINT", "DOUBLE"),
    ("refeed_trunc", truncated, "DOUBLE BIGINT", "DOUBLE"),
    ("refeed_shift", shifted, "BIGINT BIGINT", "BIGINT"),
    ("refeed_translate", translated, "VARCHAR VARCHAR VARCHAR", "VARCHAR"),
    ("refeed_reverse", lambda text: text[::-1], "VARCHAR", "VARCHAR"),
    ("refeed_upper", str.upper, "VARCHAR", "VARCHAR"),
    ("refeed_lower", str.lower, "VARCHAR", "VARCHAR"),
    ("refeed_edit_distance", edit_distance, "VARCHAR VARCHAR", "BIGINT"),
    ("refeed_from_base64", bytes_of_base64, "VARCHAR", "BLOB"),
    ("refeed_normalize", lambda text, form: unicodedata.normalize(form, text), "VARCHAR VARCHAR", "VARCHAR"),
    ("refeed_datetime", datetime_of, "VARCHAR", "TIMESTAMP"),
    ("refeed_timestamp", timestamp_of, "VARCHAR", "TIMESTAMPTZ"),
    ("refeed_time", time_of, "VARCHAR", "TIME"),
    ("refeed_parsed", parsed, "VARCHAR VARCHAR", "TIMESTAMP"),
    ("refeed_json", json_of, "VARCHAR", "VARCHAR"),
    ("refeed_json_rounded", rounded_json_of, "VARCHAR", "VARCHAR"),
    ("refeed_json_again", json_again, "VARCHAR BOOLEAN", "VARCHAR"),
    ("refeed_json_value", json_text_value, "VARCHAR VARCHAR", "VARCHAR"),
    ("refeed_json_query", json_text_query, "VARCHAR VARCHAR", "VARCHAR"),
    ("refeed_json_query_array", json_text_query_array, "VARCHAR VARCHAR", "VARCHAR[]"),
    ("refeed_json_value_array", json_text_value_array, "VARCHAR VARCHAR", "VARCHAR[]"),
)
