"""Literals, parameters, casts and intervals: typed values and their text for the lake."""

import base64
import re
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from sql.constants import ConstantError, fold, parse_date, parse_datetime, parse_timestamp
from sql.datatypes import DATE, DATETIME, INT64, INTERVAL, SCALARS, STRING, TIMESTAMP, SqlType, array_of, lake_type
from sql.parameters import Parameter
from sql.syntax import Constant
from sql.values import NOT_CONSTANT, LakeGapError, Value, checked, quote_bytes, quote_name, quote_text

MAX_DIGITS: Final = 25
_READ: Final = {"JSON", "TIME"}
_FLOAT: Final = re.compile(r"CAST\('([^']*)' AS DOUBLE\)")
_INT64: Final = range(-(2**63), 2**63)
# A literal beyond it is no NUMERIC, however many of its digits a float has lost.
_NUMERIC_END: Final = Decimal("1e29")
_LARGEST: Final = {
    "FLOAT64": Decimal("1.7976931348623158e308"),
    "NUMERIC": Decimal("99999999999999999999999999999.999999999"),
}


def constant(node: Constant) -> Value:
    """Return a literal.

    Raises:
        ConstantError: it is none of its type.
    """
    if node.value is None:
        return Value(SqlType("NULL"), "NULL", constant=None, is_literal=True)
    if isinstance(node.value, bool):
        return Value(SCALARS["BOOL"], str(node.value).upper(), constant=node.value, is_literal=True)
    if isinstance(node.value, bytes):
        return Value(SCALARS["BYTES"], quote_bytes(node.value), constant=node.value, is_literal=True)
    if node.type == "STRING":
        return Value(STRING, _text(node.value), constant=node.value, is_literal=True)
    return typed(SCALARS[node.type], node.value)


def _text(text: str) -> str:
    return f"decode({quote_bytes(text.encode())})" if "\0" in text else quote_text(text)


def typed(kind: SqlType, text: str) -> Value:
    """Return the literal of ``kind`` that ``text`` writes.

    Example:
        >>> typed(DATE, "2024-1-2").lake
        "DATE '2024-01-02'"
    """
    if kind == INT64:
        if len(text) > MAX_DIGITS:
            raise ConstantError("an integer that INT64 can't hold")
        number = int(text, 16) if text.lower().lstrip("-").startswith("0x") else int(text)
        if number not in _INT64:
            raise ConstantError("an integer that INT64 can't hold")
        return Value(kind, f"CAST({number} AS BIGINT)", constant=number, is_literal=True)
    if kind == DATE:
        return moment(parse_date(text))
    if kind == TIMESTAMP:
        return moment(parse_timestamp(text))
    if kind == DATETIME:
        return moment(parse_datetime(text))
    if kind.name in _LARGEST and not _is_number(text, _LARGEST[kind.name]):
        raise ConstantError(f"no {kind} {text[:40]!r}")
    lake = lake_type(kind)
    if lake is None:
        raise LakeGapError(f"the type {kind}")
    if kind.name in _READ:
        # A literal of JSON rounds its numbers, where PARSE_JSON refuses those that FLOAT64 can't hold.
        reader = "refeed_json_rounded" if kind.name == "JSON" else "refeed_time"
        return Value(kind, f"CAST({reader}({_text(text)}) AS {lake})")
    return Value(kind, f"CAST({quote_text(text)} AS {lake})", is_literal=kind.name == "FLOAT64")


def _is_number(text: str, largest: Decimal) -> bool:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return False
    return not number.is_finite() or number.copy_abs() <= largest


def moment(value: date | datetime) -> Value:
    """Return a date or time that is known as a literal of its type."""
    if not isinstance(value, datetime):
        return Value(DATE, f"DATE '{value.isoformat()}'", constant=value)
    text = value.isoformat(" ")
    if value.tzinfo is None:
        return Value(DATETIME, f"TIMESTAMP '{text}'", constant=value)
    return Value(TIMESTAMP, f"TIMESTAMPTZ '{text}'", constant=value)


def placeholder(parameter: Parameter, key: str) -> Value:
    """Return a parameter, handed to the lake's engine as JSON-ready value named ``key``."""
    if parameter.type.startswith("ARRAY"):
        element = SCALARS[parameter.type[6:-1]]
        kind = array_of(element)
        text = f"CAST(${key} AS VARCHAR[])" if element.name == "BYTES" else f"CAST(${key} AS {lake_type(kind)})"
        if element.name == "BYTES":
            text = f"list_transform({text}, lambda b: from_base64(b))"
        assert isinstance(parameter.value, tuple)  # parse_parameter made it
        return Value(kind, text, constant=list(parameter.value), is_literal=True)
    kind = SCALARS[parameter.type]
    text = f"from_base64(${key})" if kind.name == "BYTES" else f"CAST(${key} AS {lake_type(kind)})"
    return Value(kind, text, constant=parameter.value, is_literal=True)


def parameter_value(parameter: Parameter) -> object:
    """Return what the lake's engine gets for ``parameter``: plain JSON values."""

    def plain(value: Any) -> object:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        return value.isoformat() if isinstance(value, date) else value

    return (
        [plain(item) for item in parameter.value] if isinstance(parameter.value, tuple) else plain(parameter.value)
    )


def coerce(value: Value, kind: SqlType) -> Value:
    """Return ``value`` as ``kind``, which it is known to fit.

    Raises:
        ConstantError: it is a literal that is none of ``kind``.
    """
    if value.type == kind or not kind.is_known or not value.type.is_known:
        return value
    known = value.constant
    if value.type == STRING and isinstance(known, str) and kind.name in {"DATE", "TIMESTAMP", "DATETIME"}:
        parsed = typed(kind, known)
        return Value(kind, parsed.lake, constant=parsed.constant, is_literal=True)
    if value.type == DATE and kind == DATETIME and isinstance(known, date):
        return moment(datetime(known.year, known.month, known.day))  # noqa: DTZ001 - DATETIME has no zone
    if value.type.element is not None or value.type.name == "STRUCT":
        return Value(kind, reshaped(value.lake, value.type, kind), is_literal=value.is_literal)
    lake = lake_type(kind)
    if lake is None:
        raise LakeGapError(f"the type {kind}")
    number = known if kind.is_number or known is None else NOT_CONSTANT
    if value.is_literal and kind.name == "NUMERIC" and (written := _FLOAT.fullmatch(value.lake)):
        if abs(Decimal(written[1])) > _NUMERIC_END:
            raise ConstantError(f"{written[1]} is not a NUMERIC: it can have at most 29 digits before the point")
        return Value(kind, _numeric_of_literal(value), is_literal=True)
    return Value(kind, f"CAST({value.lake} AS {lake})", constant=number, is_literal=value.is_literal)


def _numeric_of_literal(value: Value) -> str:
    """Return a FLOAT64 literal as NUMERIC: it keeps every digit that is written."""
    written = _FLOAT.fullmatch(value.lake)
    if written is None or not _is_number(written[1], _LARGEST["NUMERIC"]):
        return f"refeed_numeric_of_float({value.lake})"
    return f"refeed_numeric('{written[1]}')"


def as_bytes(value: Value) -> Value:
    """Return a STRING that is known, or NULL, as BYTES."""
    known = value.constant.encode() if isinstance(value.constant, str) else None
    text = "CAST(NULL AS BLOB)" if known is None else quote_bytes(known)
    return Value(SCALARS["BYTES"], text, constant=known, is_literal=True)


def bent(value: Value, kind: SqlType) -> Value:
    """Return ``value`` as ``kind`` where the two differ only as a literal may, arrays of literals included."""
    if value.type.element is not None and kind.element is not None and isinstance(value.constant, list):
        if value.type == kind:
            return value
        items = [coerce(Value(value.type.element, "NULL", constant=item), kind.element) for item in value.constant]
        lake = reshaped(value.lake, value.type, kind)
        return Value(kind, lake, constant=[item.constant for item in items], is_literal=value.is_literal)
    return coerce(value, kind)


def reshaped(lake: str, have: SqlType, want: SqlType) -> str:
    """Return a value of type ``have`` as ``want``; fields match by position, as in GoogleSQL, not by name.

    Raises:
        LakeGapError: the lake's engine has no such type.
    """
    if have == want:
        return lake
    kind = lake_type(want)
    if kind is None:
        raise LakeGapError(f"the type {want}")
    if have.element is not None and want.element is not None:
        if have.element.name == "NULL":
            return f"CAST({lake} AS {kind})"
        return f"list_transform({lake}, lambda e: {reshaped('e', have.element, want.element)})"
    if have.name != "STRUCT":
        return cast(Value(have, lake), want, is_safe=False).lake
    parts = zip(want.lake_names, have.lake_names, have.fields, want.fields, strict=True)
    inner = ", ".join(
        f"{quote_name(new)} := {reshaped(f'({lake}).{quote_name(old)}', a, b)}"
        for new, old, (_, a), (_, b) in parts
    )
    return f"CASE WHEN {lake} IS NOT NULL THEN struct_pack({inner}) END"


def moved(constant_value: Any, operator: str, amount: tuple[int, str] | None) -> Any:
    """Return a known moment moved by a known interval, else NOT_CONSTANT."""
    if constant_value is NOT_CONSTANT or amount is None:
        return NOT_CONSTANT
    return fold("DATE_ADD" if operator == "+" else "DATE_SUB", [constant_value, amount])


# How many of a unit an interval of the engine holds: days and months in an INTEGER, smaller units in microseconds.
_MOST: Final = {"DAY": 2**31 - 1, "MONTH": 2**31 - 1, "YEAR": (2**31 - 1) // 12}
_MICROS: Final = {
    "MICROSECOND": 1,
    "MILLISECOND": 10**3,
    "SECOND": 10**6,
    "MINUTE": 60 * 10**6,
    "HOUR": 3600 * 10**6,
}


def within(value: Value, most: int) -> str:
    """Return the text for a number, an error for a constant beyond ``most``.

    The engine computes constants when it plans the query, and would fail where nothing looks at the result.
    """
    is_beyond = isinstance(value.constant, int) and abs(value.constant) > most
    return "CAST(error('A number that is out of range') AS BIGINT)" if is_beyond else value.lake


def interval(amount: Value, unit: str) -> Value:
    """Return ``INTERVAL amount unit``."""
    known = (amount.constant, unit) if isinstance(amount.constant, int) else NOT_CONSTANT
    scale, name = {"QUARTER": (3, "MONTH"), "WEEK": (7, "DAY")}.get(unit, (1, unit))
    if name not in _MOST and name not in _MICROS:
        raise LakeGapError(f"an interval of {unit}")
    function = {"MICROSECOND": "to_microseconds", "MILLISECOND": "to_milliseconds"}.get(
        name, f"to_{name.lower()}s"
    )
    held = within(amount, _MOST[name] // scale if name in _MOST else (2**63 - 1) // _MICROS[name])
    count = held if scale == 1 else f"({held} * {scale})"
    if name in _MOST:
        count = f"CAST({count} AS INTEGER)"
    return Value(INTERVAL, f"{function}({count})", constant=known, amount=(amount, unit))


def cast(value: Value, kind: SqlType, *, is_safe: bool) -> Value:
    """Return CAST or SAFE_CAST of a value to another type."""
    lake = lake_type(kind)
    if lake is None:
        raise LakeGapError(f"the type {kind}")
    word = "TRY_CAST" if is_safe else "CAST"
    pair = (value.type.name, kind.name)
    known: Any = NOT_CONSTANT
    if isinstance(value.constant, str) and kind.name in {"DATE", "TIMESTAMP", "DATETIME"}:
        try:
            known = typed(kind, value.constant).constant
        except ConstantError:
            known = NOT_CONSTANT
    elif value.constant is not NOT_CONSTANT and pair in {("DATE", "TIMESTAMP"), ("TIMESTAMP", "DATE")}:
        known = fold(kind.name, [value.constant])
    if pair == ("BYTES", "STRING"):
        text = f"TRY(decode({value.lake}, 'strict'))" if is_safe else f"decode({value.lake})"
    elif pair == ("STRING", "BYTES"):
        text = f"encode({value.lake})"
    elif value.type == STRING and kind.name in _WRITTEN:
        text = _read(value.lake, kind, is_safe=is_safe)
    elif pair == ("FLOAT64", "INT64"):
        # Halves go away from zero in GoogleSQL.
        text = f"{word}(round({value.lake}) AS BIGINT)"
    elif pair == ("FLOAT64", "NUMERIC") and value.is_literal:
        exact = _numeric_of_literal(value)
        text = exact.replace("refeed_", "refeed_safe_") if is_safe else exact
    elif pair == ("FLOAT64", "NUMERIC"):
        text = f"refeed_{'safe_' if is_safe else ''}numeric_of_float({value.lake})"
    elif pair == ("FLOAT64", "STRING"):
        plain = f"{value.lake} = trunc({value.lake}) AND abs({value.lake}) < 1e15"
        whole = f"CAST(CAST({value.lake} AS BIGINT) AS VARCHAR)"
        text = f"CASE WHEN {plain} THEN {whole} ELSE refeed_float_text({value.lake}) END"
    elif pair == ("NUMERIC", "STRING"):
        text = f"regexp_replace(CAST({value.lake} AS VARCHAR), '\\.?0+$', '')"
    elif pair == ("BOOL", "STRING"):
        text = f"CAST({value.lake} AS VARCHAR)"
    elif pair == ("TIMESTAMP", "STRING"):
        moment = f"timezone('UTC', {value.lake})"
        text = f"({clock_text(moment, '%Y-%m-%d %H:%M:%S')} || '+00')"
    elif pair == ("DATETIME", "STRING"):
        text = clock_text(value.lake, "%Y-%m-%d %H:%M:%S")
    elif pair == ("TIME", "STRING"):
        text = clock_text(f"(DATE '1970-01-01' + {value.lake})", "%H:%M:%S")
    elif pair == ("TIMESTAMP", "TIME"):
        text = f"CAST(timezone('UTC', {value.lake}) AS TIME)"
    elif value.type.element is not None or value.type.name == "STRUCT":
        if is_safe:
            raise LakeGapError(f"SAFE_CAST of {value.type}")
        text = reshaped(value.lake, value.type, kind)
    else:
        text = f"{word}({value.lake} AS {lake})"
    return Value(kind, text, constant=known)


def clock_text(moment: str, form: str) -> str:
    """Return a moment without zone as GoogleSQL writes it: in milliseconds where they are enough."""
    micros = f"(epoch_us({moment}) % 1000000 + 1000000) % 1000000"
    fraction = (
        f"CASE WHEN {micros} = 0 THEN '' WHEN {micros} % 1000 = 0 THEN printf('.%03d', {micros} // 1000) "
        f"ELSE printf('.%06d', {micros}) END"
    )
    return f"(strftime({moment}, '{form}') || {fraction})"


# What a text looks like that both engines read alike; any other goes to a function of ours, slower and exact.
_YEAR: Final = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAY: Final = f"{_YEAR}-[0-9]{{1,2}}-[0-9]{{1,2}}"
_CLOCK: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_WRITTEN: Final = {
    "BOOL": "",
    "INT64": "[+-]?[0-9]{1,18}",
    "FLOAT64": r"-?[0-9]+(?:\.[0-9]+)?",
    "NUMERIC": r"-?[0-9]{1,28}(?:\.[0-9]{1,9})?",
    "DATE": _DAY,
    "DATETIME": f"{_DAY}(?:[ T]{_CLOCK})?",
    "TIMESTAMP": f"{_DAY}(?:[ T]{_CLOCK}(?:Z|[+]00(?::00)?| UTC)?)?",
    "TIME": _CLOCK,
}


def _read(text: str, kind: SqlType, *, is_safe: bool) -> str:
    """Return the lake's text for a STRING read as ``kind``."""
    safe = "safe_" if is_safe else ""
    if kind.name == "BOOL":
        wrong = "NULL" if is_safe else f"CASE WHEN {text} IS NOT NULL THEN error('Bad bool value') END"
        return f"CASE lower({text}) WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE ELSE {wrong} END"
    native = f"{'TRY_CAST' if is_safe else 'CAST'}({text} AS {lake_type(kind)})"
    other = f"refeed_{safe}{kind.name.lower()}({text})"
    if kind == DATE:
        other = "NULL" if is_safe else f"CASE WHEN {text} IS NOT NULL THEN error('Invalid date') END"
    return f"CASE WHEN regexp_full_match({text}, '{_WRITTEN[kind.name]}') THEN {native} ELSE {other} END"


def in_zone(local: str, zone: str) -> str:
    """Return the moment of a local time: the first of one that the clock shows twice.

    One that it skips has the offset from before, as Google has it.
    """
    if zone == "'UTC'":
        return f"timezone('UTC', {local})"
    # The engine chooses the second. The first has the offset of the day before; where a transition lies between,
    # that one is none of the clock's.
    day_before = "(one - INTERVAL 24 HOUR)"
    offset = f"(timezone({zone}, {day_before}) - timezone('UTC', {day_before}))"
    first = f"timezone('UTC', shown - {offset})"
    is_one = f"timezone({zone}, first) <> shown AND timezone({zone}, one) = shown"
    chosen = f"list_transform([{first}], lambda first: CASE WHEN {is_one} THEN one ELSE first END)[1]"
    # Each name is computed once.
    found = f"list_transform([timezone({zone}, shown)], lambda one: {chosen})[1]"
    return f"list_transform([{local}], lambda shown: {found})[1]"


def read_timestamp(text: str, zone: str | None) -> str:
    """Return the lake's text for a STRING read as TIMESTAMP; one that is read in a ``zone`` names none itself."""
    if zone is None:
        return _read(text, TIMESTAMP, is_safe=False)
    return checked(in_zone(_read(text, DATETIME, is_safe=False), zone), TIMESTAMP)


def extract(part: str, value: Value, zone: Value | None) -> Value:
    """Return EXTRACT of ``part``."""
    text = (
        f"timezone({zone.lake if zone else quote_text('UTC')}, {value.lake})"
        if value.type == TIMESTAMP
        else value.lake
    )
    if part == "DATE":
        return Value(DATE, checked(f"CAST({text} AS DATE)", DATE) if zone else f"CAST({text} AS DATE)")
    plain = {
        "YEAR": "year",
        "QUARTER": "quarter",
        "MONTH": "month",
        "DAY": "day",
        "HOUR": "hour",
        "MINUTE": "minute",
        "ISOYEAR": "isoyear",
        "ISOWEEK": "week",
    }
    if part in plain:
        return Value(INT64, f"CAST(extract({plain[part]} FROM {text}) AS BIGINT)")
    if part == "DAYOFWEEK":
        return Value(INT64, f"CAST(extract(dow FROM {text}) + 1 AS BIGINT)")
    if part == "DAYOFYEAR":
        return Value(INT64, f"CAST(extract(doy FROM {text}) AS BIGINT)")
    if part == "SECOND":
        return Value(INT64, f"CAST(extract(second FROM {text}) AS BIGINT)")
    if part in {"MILLISECOND", "MICROSECOND"}:
        divisor = 1000 if part == "MILLISECOND" else 1
        return Value(INT64, f"CAST((extract(microsecond FROM {text}) % 1000000) // {divisor} AS BIGINT)")
    if part in {"WEEK", "WEEK(SUNDAY)", "WEEK(MONDAY)"}:
        letter = "W" if "MONDAY" in part else "U"
        return Value(INT64, f"CAST(strftime({text}, '%{letter}') AS BIGINT)")
    raise LakeGapError(f"EXTRACT({part} ...)")


def known_arguments(args: Sequence[Value]) -> list[Any] | None:
    """Return the constants of ``args`` when all are known."""
    constants = [arg.constant for arg in args]
    return None if any(c is NOT_CONSTANT for c in constants) else constants


def number_of(node: object, value: Value) -> float | None:
    """Return the number that is written at ``node`` or given by a parameter, None when it is none."""
    if isinstance(value.constant, int | float):
        return value.constant
    if isinstance(node, Constant) and node.type in {"INT64", "FLOAT64"}:
        return float(str(node.value))
    return None
