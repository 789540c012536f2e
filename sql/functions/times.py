"""Dates, times and timestamps."""

from collections.abc import Sequence

from sql.functions.registry import Render, Table
from sql.values import LakeGapError, Value

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
    if unit in {"ISOYEAR"}:
        raise LakeGapError(f"the date part {unit}")
    return f"date_trunc('{'week' if unit == 'ISOWEEK' else unit.lower()}', {text})"


def interval(value: Value) -> str:
    """Return an INTERVAL argument in the lake's words."""
    return value.lake


def _moved(sign: str, kind: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        return f"CAST(({args[0].lake} {sign} {args[1].lake}) AS {kind})"

    return render


def _truncated(kind: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        unit = part_of(args[1]) if len(args) > 1 else "DAY"
        if len(args) > 2:
            zone = args[2].lake
            return f"timezone({zone}, {truncation(f'timezone({zone}, {args[0].lake})', unit)})"
        return f"CAST({truncation(args[0].lake, unit)} AS {kind})"

    return render


def _date(args: Sequence[Value]) -> str:
    if len(args) == 3:
        return f"make_date({args[0].lake}, {args[1].lake}, {args[2].lake})"
    if len(args) == 2:
        return f"CAST(timezone({args[1].lake}, {args[0].lake}) AS DATE)"
    return f"CAST({args[0].lake} AS DATE)"


def _timestamp(args: Sequence[Value]) -> str:
    if len(args) == 1:
        return f"CAST({args[0].lake} AS TIMESTAMPTZ)"
    if args[0].type.name == "STRING":
        raise LakeGapError("TIMESTAMP(string, zone)")
    return f"timezone({args[1].lake}, CAST({args[0].lake} AS TIMESTAMP))"


_s("DATE", "ANY ?ANY ?INT64", "DATE", _date)
_s("TIMESTAMP", "ANY ?STRING", "TIMESTAMP", _timestamp)
_s("DATE_ADD", "DATE INTERVAL", "DATE", _moved("+", "DATE"))
_s("DATE_SUB", "DATE INTERVAL", "DATE", _moved("-", "DATE"))
_s("TIMESTAMP_ADD", "TIMESTAMP INTERVAL", "TIMESTAMP", _moved("+", "TIMESTAMPTZ"))
_s("TIMESTAMP_SUB", "TIMESTAMP INTERVAL", "TIMESTAMP", _moved("-", "TIMESTAMPTZ"))
_s("DATE_TRUNC", "ANY PART", "T0", lambda args: _truncated({"DATE": "DATE", "DATETIME": "TIMESTAMP"}.get(args[0].type.name, "TIMESTAMPTZ"))(args))  # fmt: skip
_s("TIMESTAMP_TRUNC", "TIMESTAMP PART ?STRING", "TIMESTAMP", _truncated("TIMESTAMPTZ"))
_s("TIMESTAMP_MICROS", "INT64", "TIMESTAMP", "CAST(make_timestamp({0}) AS TIMESTAMPTZ)")
_s("TIMESTAMP_MILLIS", "INT64", "TIMESTAMP", "CAST(make_timestamp({0} * 1000) AS TIMESTAMPTZ)")
_s("TIMESTAMP_SECONDS", "INT64", "TIMESTAMP", "CAST(make_timestamp({0} * 1000000) AS TIMESTAMPTZ)")
_s("UNIX_MICROS", "TIMESTAMP", "INT64", "epoch_us({0})")
_s("UNIX_MILLIS", "TIMESTAMP", "INT64", "CAST(floor(epoch_us({0}) / 1000) AS BIGINT)")
_s("UNIX_SECONDS", "TIMESTAMP", "INT64", "CAST(floor(epoch_us({0}) / 1000000) AS BIGINT)")
_s("LAST_DAY", "DATE ?PART", "DATE", {1: "last_day({0})"})
_s("GENERATE_DATE_ARRAY", "DATE DATE ?INTERVAL", "ARRAY<DATE>", {2: "CAST(generate_series({0}, {1}, INTERVAL 1 DAY) AS DATE[])", 3: "CAST(generate_series({0}, {1}, {2}) AS DATE[])"})  # fmt: skip
