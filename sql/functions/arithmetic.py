"""Arithmetic, conditions, arrays and the rest of the scalars."""

from collections.abc import Sequence

from sql.datatypes import FLOAT64, INT64, UNKNOWN, SqlType, common_type
from sql.functions.registry import Render, Table
from sql.values import LakeGapError, Value

TABLE = Table()
_s = TABLE.scalar


def _common(args: Sequence[Value]) -> SqlType:
    return common_type([(arg.type, arg.is_literal) for arg in args]) or UNKNOWN


def _real(args: Sequence[Value]) -> SqlType:
    """Return what rounding and division give: integers become FLOAT64."""
    kind = _common(args)
    return FLOAT64 if kind == INT64 else kind


def _no_null(name: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        # The engine's own skips NULLs; GoogleSQL gives NULL when one is.
        nulls = " OR ".join(f"{arg.lake} IS NULL" for arg in args)
        return f"CASE WHEN {nulls} THEN NULL ELSE {name}({', '.join(arg.lake for arg in args)}) END"

    return render


def _rounded(name: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        if not all(arg.type.name in {"INT64", "FLOAT64"} for arg in args):
            raise LakeGapError(f"{name.upper()} of {args[0].type}")
        if len(args) > 1 and (name != "round" or not isinstance(args[1].constant, int)):
            raise LakeGapError(f"{name.upper()} with that many arguments")
        digits = f", {args[1].constant}" if len(args) > 1 else ""
        return f"{name}(CAST({args[0].lake} AS DOUBLE){digits})"

    return render


def _double(template: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        return template.format(*(f"CAST({arg.lake} AS DOUBLE)" for arg in args))

    return render


def _divided(args: Sequence[Value]) -> str:
    return f"CASE WHEN {args[1].lake} <> 0 THEN {args[0].lake} / {args[1].lake} END"


def _slice(args: Sequence[Value]) -> str:
    if not all(isinstance(arg.constant, int) and arg.constant >= 0 for arg in args[1:]):
        raise LakeGapError("ARRAY_SLICE with negative or computed offsets")
    return f"list_slice({args[0].lake}, {args[1].constant + 1}, {args[2].constant + 1})"


def _bits(args: Sequence[Value]) -> str:
    if args[0].type != INT64:
        raise LakeGapError(f"BIT_COUNT of {args[0].type}")
    return f"CAST(bit_count({args[0].lake}) AS BIGINT)"


def _joined(args: Sequence[Value]) -> str:
    if args[1].type.name != "STRING":
        raise LakeGapError("it has no counterpart for BYTES")
    array = args[0].lake
    if len(args) > 2:
        array = f"list_transform({array}, lambda x: coalesce(x, {args[2].lake}))"
    return f"array_to_string({array}, {args[1].lake})"


_s("IF", "BOOL T T", lambda args: _common(args[1:]), "CASE WHEN {0} THEN {1} ELSE {2} END")
_s("IFNULL", "T T", _common, "coalesce({0}, {1})")
_s("COALESCE", "T *T", _common, "coalesce({*})")
_s("NULLIF", "T T", "T0", "nullif({0}, {1})")
# It has whatever type is wanted of it.
_s("ERROR", "STRING", "NULL", "error({0})")
_s("GENERATE_UUID", "", "STRING", "CAST(gen_random_uuid() AS VARCHAR)")

_s("ABS", "NUM", "T0", "abs({0})")
_s(
    "SIGN",
    "NUM",
    "T0",
    lambda args: f"CAST(sign({args[0].lake}) AS {'DOUBLE' if args[0].type == FLOAT64 else 'BIGINT'})",
)
_s("MOD", "T T", _common, "({0} % {1})")
_s("DIV", "T T", _common, "({0} // {1})")
_s("ROUND", "NUM ?INT64 ?STRING", _real, _rounded("round"))
_s("TRUNC", "NUM ?INT64", _real, _rounded("trunc"))
_s("CEIL", "NUM", _real, _rounded("ceil"))
_s("CEILING", "NUM", _real, _rounded("ceil"))
_s("FLOOR", "NUM", _real, _rounded("floor"))
_s("SAFE_DIVIDE", "NUM NUM", _real, _divided)
_s("IEEE_DIVIDE", "NUM NUM", "FLOAT64")
_s("SAFE_ADD", "T T", _common, "TRY({0} + {1})")
_s("SAFE_SUBTRACT", "T T", _common, "TRY({0} - {1})")
_s("SAFE_MULTIPLY", "T T", _common, "TRY({0} * {1})")
_s("SAFE_NEGATE", "NUM", "T0", "TRY(-{0})")
_s("POW", "NUM NUM", _real, _double("pow({0}, {1})"))
_s("POWER", "NUM NUM", _real, _double("pow({0}, {1})"))
_s("EXP", "NUM", "FLOAT64", _double("exp({0})"))
_s(
    "SQRT",
    "NUM",
    "FLOAT64",
    _double("CASE WHEN {0} < 0 THEN error('SQRT of a negative number') ELSE sqrt({0}) END"),
)
_s("CBRT", "NUM", "FLOAT64", _double("cbrt({0})"))
_s("LN", "NUM", "FLOAT64", _double("CASE WHEN {0} <= 0 THEN error('LN of a number below zero') ELSE ln({0}) END"))
_s("LOG", "NUM ?NUM", "FLOAT64")
_s(
    "LOG10",
    "NUM",
    "FLOAT64",
    _double("CASE WHEN {0} <= 0 THEN error('LOG10 of a number below zero') ELSE log10({0}) END"),
)
for _name in (
    "SIN",
    "COS",
    "TAN",
    "ASIN",
    "ACOS",
    "ATAN",
    "SINH",
    "COSH",
    "TANH",
    "ASINH",
    "ACOSH",
    "ATANH",
    "COT",
    "CSC",
    "SEC",
):
    _s(_name, "NUM", "FLOAT64", _double(_name.lower() + "({0})") if _name not in {"CSC", "SEC"} else None)
_s("ATAN2", "NUM NUM", "FLOAT64", _double("atan2({0}, {1})"))
_s("IS_NAN", "FLOAT64", "BOOL", "isnan({0})")
_s("IS_INF", "FLOAT64", "BOOL", "isinf({0})")
_s("GREATEST", "T *T", _common, _no_null("greatest"))
_s("LEAST", "T *T", _common, _no_null("least"))
_s("RAND", "", "FLOAT64", "random()")
_s("RANGE_BUCKET", "ANY ARRAY", "INT64")
_s("BIT_COUNT", "ANY", "INT64", _bits)
_s("PARSE_NUMERIC", "STRING", "NUMERIC")
_s("PARSE_BIGNUMERIC", "STRING", "BIGNUMERIC")

_s("ARRAY_LENGTH", "ARRAY", "INT64", "len({0})")
_s("ARRAY_CONCAT", "T *T", _common, lambda args: "(" + " || ".join(arg.lake for arg in args) + ")")
_s("ARRAY_REVERSE", "ARRAY", "T0", "list_reverse({0})")
_s(
    "ARRAY_FIRST",
    "ARRAY",
    "ELEMENT",
    "CASE WHEN len({0}) = 0 THEN error('ARRAY_FIRST of an empty array') ELSE ({0})[1] END",
)
_s(
    "ARRAY_LAST",
    "ARRAY",
    "ELEMENT",
    "CASE WHEN len({0}) = 0 THEN error('ARRAY_LAST of an empty array') ELSE ({0})[-1] END",
)
_s("ARRAY_SLICE", "ARRAY INT64 INT64", "T0", _slice)
_s("ARRAY_TO_STRING", "TEXTS STR ?STR", "T1", _joined)
_s(
    "GENERATE_ARRAY",
    "NUM NUM ?NUM",
    lambda args: SqlType("ARRAY", _common(args)),
    {2: "generate_series({0}, {1})", 3: "generate_series({0}, {1}, {2})"},
)
