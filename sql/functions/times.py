"""Dates, times and timestamps."""

import re
from collections.abc import Sequence
from dataclasses import replace

from sql import literals
from sql.constants import BELOW_DAY, ConstantError, parse_timestamp
from sql.datatypes import DATE, DATETIME, STRING, TIMESTAMP, SqlType
from sql.functions.registry import Render, Table, fill
from sql.literals import in_zone, read_timestamp
from sql.values import NOT_CONSTANT, LakeGapError, Value, checked, quote_text

TABLE = Table()
_s = TABLE.scalar


def part_of(value: Value) -> str:
    """Return the date part that an argument of kind PART names."""
    return str(value.constant)


def truncation(text: str, unit: str) -> str:
    """Return the lake's text for the start of the ``unit`` that ``text`` lies in, of the same type."""
    if unit == "WEEK" or unit.startswith("WEEK("):
        first = "SUNDAY" if unit == "WEEK" else unit[5:-1]
        names = ("SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY")
        back = (8 - names.index(first)) % 7
        # The engine's weeks begin on Monday: move there, cut, move back.
        move = f"INTERVAL {back} DAY"
        return f"(date_trunc('week', {text} + {move}) - {move})"
    if unit == "ISOYEAR":
        raise LakeGapError(f"the date part {unit}")
    return f"date_trunc('{'week' if unit == 'ISOWEEK' else unit.lower()}', {text})"


_PER_DAY = {
    "MICROSECOND": 86_400_000_000, "MILLISECOND": 86_400_000, "SECOND": 86_400, "MINUTE": 1_440, "HOUR": 24,
}  # fmt: skip


def _moved(sign: str, kind: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        if kind == "TIME" and args[1].amount is not None:
            # A TIME goes round the day.
            amount, unit = args[1].amount
            rest = replace(amount, lake=f"({amount.lake} % {_PER_DAY[unit]})", constant=NOT_CONSTANT)
            return f"({args[0].lake} {sign} {literals.interval(rest, unit).lake})"
        moved = checked(f"CAST(({args[0].lake} {sign} {args[1].lake}) AS {kind})", args[0].type)
        # An interval that is too long is no error beside NULL.
        is_known = isinstance(args[1].constant, tuple)
        return moved if is_known else f"CASE WHEN {args[0].lake} IS NOT NULL THEN {moved} END"

    return render


def _truncated(kind: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        unit = part_of(args[1]) if len(args) > 1 else "DAY"
        zone = args[2].lake if len(args) > 2 else "'UTC'"
        if zone == "'UTC'":
            cut = f"CAST({truncation(args[0].lake, unit)} AS {kind})"
            # Only a week may begin before the year 1.
            return checked(cut, args[0].type) if "WEEK" in unit else cut
        if unit in BELOW_DAY:
            # The row's own offset stays.
            shown = f"timezone({zone}, moment)"
            past = f"({shown} - {truncation(shown, unit)})"
            cut = f"list_transform([{args[0].lake}], lambda moment: moment - {past})[1]"
        else:
            cut = in_zone(truncation(f"timezone({zone}, {args[0].lake})", unit), zone)
        return checked(cut, args[0].type)

    return render


def _in_32_bits(args: Sequence[Value]) -> list[Value]:
    """Return the parts of a moment as Google's engine reads them: of an INT64 the last 32 bits.

    https://pypi.org/project/zetasql answers so: TIME(7, 7, 4294967297) is 07:07:01.
    """
    return [replace(arg, lake=f"({arg.lake} & 4294967295)") for arg in args]


def _date(args: Sequence[Value]) -> str:
    if len(args) == 3:
        return checked(fill("make_date({0}, {1}, {2})", _in_32_bits(args)), DATE)
    if len(args) == 2:
        return checked(f"CAST(timezone({args[1].lake}, {args[0].lake}) AS DATE)", DATE)
    if isinstance(text := args[0].constant, str):
        # The day of the moment in UTC; Google refuses another text before it runs anything.
        try:
            return f"DATE '{parse_timestamp(text).date().isoformat()}'"
        except ConstantError as exc:
            raise LakeGapError("a text that is not a date") from exc
    return f"CAST({args[0].lake} AS DATE)"


def _timestamp(args: Sequence[Value]) -> str:
    if args[0].type.name == "STRING":
        return read_timestamp(args[0].lake, args[1].lake if len(args) > 1 else None)
    if len(args) == 1:
        return f"CAST({args[0].lake} AS TIMESTAMPTZ)"
    return checked(in_zone(f"CAST({args[0].lake} AS TIMESTAMP)", args[1].lake), TIMESTAMP)


_FORMATS = {
    "Y": "%Y", "m": "%m", "d": "%d", "H": "%H", "M": "%M", "S": "%S", "F": "%Y-%m-%d", "T": "%H:%M:%S", "j": "%j",
    "y": "%y", "p": "%p", "I": "%I", "R": "%H:%M", "D": "%m/%d/%y", "b": "%b", "B": "%B", "a": "%a", "A": "%A",
    "%": "%%",
}  # fmt: skip


# The elements that PARSE_DATE and its kin take on the lake.
_READ = set("YmdHMSybBT%")


def lake_format(value: Value) -> str:
    """Return a constant format string in the words of the lake's engine.

    Raises:
        LakeGapError: it is computed, or has an element that the engine writes differently.
    """
    text = value.constant
    if not isinstance(text, str):
        raise LakeGapError("a format that is not a constant")
    out = []
    position = 0
    while position < len(text):
        if text[position] != "%":
            out.append(text[position])
            position += 1
            continue
        element = text[position + 1 : position + 2]
        if element not in _FORMATS:
            raise LakeGapError(f"the format element %{text[position + 1 : position + 4]}")
        out.append(_FORMATS[element])
        position += 2
    return quote_text("".join(out))


def _plain_time(args: Sequence[Value]) -> str:
    """Return the first argument without a zone: what a format or a part is read from."""
    if args[0].type.name != "TIMESTAMP":
        return f"CAST({args[0].lake} AS TIMESTAMP)"
    if len(args) == 1 or args[1].constant == "UTC":
        return f"timezone('UTC', {args[0].lake})"
    # A format knows offsets in whole minutes: zones had seconds until 1972.
    plain = "timezone('UTC', moment)"
    offset = f"epoch(timezone({args[1].lake}, moment) - {plain})"
    shown = f"{plain} + to_minutes(CAST(trunc({offset} / 60) AS BIGINT))"
    return f"list_transform([{args[0].lake}], lambda moment: {shown})[1]"


def _formatted(args: Sequence[Value]) -> str:
    if args[1].type == DATE and re.search("%[HMSTIRp]", str(args[0].constant).replace("%%", "")):
        # Google leaves such an element as it is written.
        raise LakeGapError("an element of the time of a DATE")
    moment, text = _plain_time(args[1:]), lake_format(args[0])
    if not args[0].constant:
        return f"CASE WHEN {moment} IS NOT NULL THEN '' END"
    written = f"strftime({moment}, {text})"
    parts = re.findall("%.|[^%]+", args[0].constant, re.DOTALL)
    if "%F" in parts and args[1].type == TIMESTAMP:
        # In a zone east of UTC the calendar ends in the year 10000, which %F writes with a sign.
        late = text.replace("%Y-%m-%d", "+%Y-%m-%d")
        written = (
            f"CASE WHEN extract(year FROM {moment}) > 9999 THEN strftime({moment}, {late}) ELSE {written} END"
        )
    if "%Y" not in parts:
        return written
    # Google writes a year below 1000 without zeros, in %F with them.
    year = f"CAST(extract(year FROM {moment}) AS VARCHAR)"
    pieces = [
        year if part == "%Y" else f"strftime({moment}, {lake_format(Value(STRING, '', constant=part))})"
        for part in parts
    ]
    early = f"extract(year FROM {moment}) < 1000"
    return f"CASE WHEN {early} THEN {' || '.join(pieces)} ELSE {written} END"


def _parsed(kind: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        zone = args[2].lake if len(args) > 2 else "'UTC'"
        text = args[0].constant
        if not isinstance(text, str):
            raise LakeGapError("a format that is not a constant")
        elements = set(re.findall("%(.?)", text, re.DOTALL))
        if elements - _READ or (kind == "DATE" and elements & set("HMST")):
            raise LakeGapError(f"the format {text[:40]!r}")
        moment = f"refeed_parsed({args[1].lake}, {quote_text(text)})"
        return checked(in_zone(moment, zone), TIMESTAMP) if kind == "TIMESTAMPTZ" else f"CAST({moment} AS {kind})"

    return render


def _difference(name: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        unit = part_of(args[2])
        # DATE_DIFF of two TIMESTAMP is TIMESTAMP_DIFF.
        of_timestamps = name == "TIMESTAMP_DIFF" or "TIMESTAMP" in {args[0].type.name, args[1].type.name}
        if unit in {"ISOYEAR", "NANOSECOND"}:
            raise LakeGapError(f"a difference in {unit}")
        # TIMESTAMP_DIFF counts whole units; the others count the borders between.
        call = "date_sub" if of_timestamps else "date_diff"
        low, high = (arg.lake for arg in (args[1], args[0]))
        if not of_timestamps:
            low, high = f"CAST({low} AS TIMESTAMP)", f"CAST({high} AS TIMESTAMP)"
        if "WEEK" in unit:
            low, high = truncation(low, unit), truncation(high, unit)
            return f"date_diff('day', {low}, {high}) // 7"
        return f"{call}('{unit.lower()}', {low}, {high})"

    return render


def _datetime(args: Sequence[Value]) -> str:
    if len(args) == 6:
        args = _in_32_bits(args)
        made = checked(fill("make_timestamp({*})", args), DATETIME)
        # The engine takes 24 for the next day's 0.
        is_late = f"{args[3].lake} = 24 AND {made} IS NOT NULL"
        return f"CASE WHEN {is_late} THEN error('Hour 24 of a DATETIME') ELSE {made} END"
    if len(args) == 2 and args[0].type.name == "TIMESTAMP":
        return checked(f"timezone({args[1].lake}, {args[0].lake})", DATETIME)
    if len(args) == 2 and args[0].type.name == "DATE":
        return f"({args[0].lake} + {args[1].lake})"
    if len(args) == 1 and args[0].type == STRING:
        return literals.cast(args[0], DATETIME, is_safe=False).lake
    if len(args) == 1:
        return (
            f"timezone('UTC', {args[0].lake})"
            if args[0].type.name == "TIMESTAMP"
            else f"CAST({args[0].lake} AS TIMESTAMP)"
        )
    raise LakeGapError("DATETIME of these arguments")


def _time(args: Sequence[Value]) -> str:
    if len(args) != 3:
        raise LakeGapError(f"it has no counterpart with {len(args)} arguments")
    args = _in_32_bits(args)
    made = fill("make_time({*})", args)
    # The engine knows a 24th hour, and the second after 23:59:59 is in it.
    last = f"WHEN {made} = TIME '24:00:00' THEN TIME '00:00:00'"
    is_late = f"{args[0].lake} = 24 AND {made} IS NOT NULL"
    return f"CASE WHEN {is_late} THEN error('Hour 24 of a TIME') {last} ELSE {made} END"


def _text(args: Sequence[Value]) -> str:
    if args[0].type.name == "JSON" and len(args) == 1:
        json = args[0].lake
        found = f"WHEN json_type({json}) = 'VARCHAR' THEN json_extract_string({json}, '$')"
        return f"CASE WHEN {json} IS NULL THEN NULL {found} ELSE error('The JSON value is not a string') END"
    if args[0].type.name == "DATE":
        return f"CAST({args[0].lake} AS VARCHAR)"
    raise LakeGapError("STRING of a time")


def _truncated_like(args: Sequence[Value]) -> str:
    kind = {"DATE": "DATE", "DATETIME": "TIMESTAMP"}.get(args[0].type.name, "TIMESTAMPTZ")
    return _truncated(kind)(args)


def _since_epoch(template: str, kind: SqlType, most: int) -> Render:
    """Return the moment that is a number of units after 1970; ``most`` is the last number in the year 9999."""
    return lambda args: checked(fill(template, [replace(args[0], lake=literals.within(args[0], most))]), kind)


def _floored(micros: int) -> Render:
    rest = f"(epoch_us({{0}}) % {micros} + {micros}) % {micros}"
    return lambda args: fill(f"((epoch_us({{0}}) - {rest}) // {micros})", args)


_s("DATE", "ANY ?ANY ?INT64", "DATE", _date)
_s("TIMESTAMP", "WHEN ?STRING", "TIMESTAMP", _timestamp)
_s("DATETIME", "ANY ?ANY ?INT64 ?INT64 ?INT64 ?INT64", "DATETIME", _datetime)
_s("TIME", "ANY ?ANY ?INT64", "TIME", _time)
_s("STRING", "ANY ?STRING", "STRING", _text)
_s("CURRENT_TIME", "?STRING", "TIME")
_s("DATE_ADD", "DATE INTERVAL", "DATE", _moved("+", "DATE"))
_s("DATE_SUB", "DATE INTERVAL", "DATE", _moved("-", "DATE"))
_s("DATETIME_ADD", "DATETIME INTERVAL", "DATETIME", _moved("+", "TIMESTAMP"))
_s("DATETIME_SUB", "DATETIME INTERVAL", "DATETIME", _moved("-", "TIMESTAMP"))
_s("TIMESTAMP_ADD", "TIMESTAMP INTERVAL", "TIMESTAMP", _moved("+", "TIMESTAMPTZ"))
_s("TIMESTAMP_SUB", "TIMESTAMP INTERVAL", "TIMESTAMP", _moved("-", "TIMESTAMPTZ"))
_s("TIME_ADD", "TIME INTERVAL", "TIME", _moved("+", "TIME"))
_s("TIME_SUB", "TIME INTERVAL", "TIME", _moved("-", "TIME"))
_s("DATE_DIFF", "MOMENT MOMENT PART", "INT64", _difference("DATE_DIFF"))
_s("DATETIME_DIFF", "DATETIME DATETIME PART", "INT64", _difference("DATETIME_DIFF"))
_s("TIMESTAMP_DIFF", "TIMESTAMP TIMESTAMP PART", "INT64", _difference("TIMESTAMP_DIFF"))
_s("TIME_DIFF", "TIME TIME PART", "INT64")
_s("DATE_TRUNC", "MOMENT PART ?STRING", "T0", _truncated_like)
_s("DATETIME_TRUNC", "DATETIME PART", "T0", _truncated_like)
_s("TIMESTAMP_TRUNC", "MOMENT PART ?STRING", "T0", _truncated_like)
_s("TIME_TRUNC", "TIME PART", "T0")
_s("LAST_DAY", "MOMENT ?PART", "DATE", {1: "last_day({0})"})
_s("UNIX_DATE", "DATE", "INT64", "date_diff('day', DATE '1970-01-01', {0})")
_s(
    "DATE_FROM_UNIX_DATE",
    "INT64",
    "DATE",
    _since_epoch("CAST(DATE '1970-01-01' + CAST({0} AS INTEGER) AS DATE)", DATE, 2_932_896),
)
_s(
    "TIMESTAMP_MICROS",
    "INT64",
    "TIMESTAMP",
    _since_epoch("timezone('UTC', make_timestamp({0}))", TIMESTAMP, 253_402_300_800 * 10**6),
)
_s(
    "TIMESTAMP_MILLIS",
    "INT64",
    "TIMESTAMP",
    _since_epoch("timezone('UTC', make_timestamp({0} * 1000))", TIMESTAMP, 253_402_300_800 * 10**3),
)
_s(
    "TIMESTAMP_SECONDS",
    "INT64",
    "TIMESTAMP",
    _since_epoch("timezone('UTC', make_timestamp({0} * 1000000))", TIMESTAMP, 253_402_300_800),
)
_s("UNIX_MICROS", "TIMESTAMP", "INT64", "epoch_us({0})")
_s("UNIX_MILLIS", "TIMESTAMP", "INT64", _floored(1000))
_s("UNIX_SECONDS", "TIMESTAMP", "INT64", _floored(1000000))
_s("FORMAT_DATE", "STRING MOMENT", "STRING", _formatted)
_s("FORMAT_DATETIME", "STRING MOMENT", "STRING", _formatted)
_s("FORMAT_TIMESTAMP", "STRING TIMESTAMP ?STRING", "STRING", _formatted)
_s("FORMAT_TIME", "STRING TIME", "STRING")
_s("PARSE_DATE", "STRING STRING", "DATE", _parsed("DATE"))
_s("PARSE_DATETIME", "STRING STRING", "DATETIME", _parsed("TIMESTAMP"))
_s("PARSE_TIMESTAMP", "STRING STRING ?STRING", "TIMESTAMP", _parsed("TIMESTAMPTZ"))
_s("PARSE_TIME", "STRING STRING", "TIME")
_s(
    "MAKE_INTERVAL",
    "?INT64 ?INT64 ?INT64 ?INT64 ?INT64 ?INT64",
    "INTERVAL",
    named="year month day hour minute second",
)
_s("JUSTIFY_DAYS", "INTERVAL", "INTERVAL")
_s("JUSTIFY_HOURS", "INTERVAL", "INTERVAL")
_s("JUSTIFY_INTERVAL", "INTERVAL", "INTERVAL")
_s("DATE_BUCKET", "DATE INTERVAL ?DATE", "DATE")
_s("DATETIME_BUCKET", "DATETIME INTERVAL ?DATETIME", "DATETIME")
_s("TIMESTAMP_BUCKET", "TIMESTAMP INTERVAL ?TIMESTAMP", "TIMESTAMP")
_DAYS = {
    2: "CAST(generate_series({0}, {1}, INTERVAL 1 DAY) AS DATE[])",
    3: "CAST(generate_series({0}, {1}, {2}) AS DATE[])",
}
_s("GENERATE_DATE_ARRAY", "DATE DATE ?INTERVAL", "ARRAY<DATE>", _DAYS)
_s(
    "GENERATE_TIMESTAMP_ARRAY",
    "TIMESTAMP TIMESTAMP INTERVAL",
    "ARRAY<TIMESTAMP>",
    "generate_series({0}, {1}, {2})",
)
