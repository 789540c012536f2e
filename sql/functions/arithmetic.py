"""Arithmetic, conditions, arrays and the rest of the scalars."""

from collections.abc import Sequence

from sql.datatypes import FLOAT64, INT64, NUMERIC, UNKNOWN, SqlType, common_type, lake_type
from sql.functions.registry import Render, Table, fill
from sql.literals import coerce
from sql.safety import tried
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
        if _common(args).name == "JSON":
            raise LakeGapError("an order of JSON")
        # The engine's own skips NULLs; GoogleSQL gives NULL when one is. The list looks at all: one may fail.
        nulls = f"list_count([{', '.join(arg.lake for arg in args)}]) < {len(args)}"
        if _common(args) == FLOAT64:
            # NaN wins; the engine holds it for the greatest number.
            wins = " OR ".join(f"isnan(CAST({arg.lake} AS DOUBLE))" for arg in args if not arg.is_literal)
            nulls += f" THEN NULL WHEN {wins} THEN CAST('nan' AS DOUBLE) WHEN FALSE" if wins else ""
        return f"CASE WHEN {nulls} THEN NULL ELSE {name}({', '.join(arg.lake for arg in args)}) END"

    return render


def _rounded(name: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        if not all(arg.type.name in {"INT64", "FLOAT64", "NULL"} for arg in args[:2]):
            raise LakeGapError(f"{name.upper()} of {args[0].type}")
        if len(args) == 1:
            return f"{name}(CAST({args[0].lake} AS DOUBLE))"
        if len(args) > 2:
            raise LakeGapError(f"{name.upper()} with a mode")
        # The engine multiplies by a power of ten first, and 2.675 becomes 267.5.
        return f"refeed_{name}(CAST({args[0].lake} AS DOUBLE), CAST({args[1].lake} AS BIGINT))"

    return render


def _double(template: str, *, is_exact: bool = True) -> Render:
    """Return what computes in FLOAT64; where ``is_exact``, NUMERIC would give NUMERIC and is refused."""

    def render(args: Sequence[Value]) -> str:
        if is_exact and any(arg.type == NUMERIC for arg in args):
            raise LakeGapError("of NUMERIC")
        return template.format(*(f"CAST({arg.lake} AS DOUBLE)" for arg in args))

    return render


def _total(call: str, *, is_exact: bool = True) -> Render:
    """Return a function that fails where its result is no number and its arguments are, or where it overflows."""

    def render(args: Sequence[Value]) -> str:
        lake = _double(call, is_exact=is_exact)(args)
        finite = " AND ".join(f"isfinite(CAST({arg.lake} AS DOUBLE))" for arg in args)
        outside = f"NOT isfinite({lake}) AND {finite}"
        return f"CASE WHEN {outside} THEN error('Floating point error') ELSE {lake} END"

    return render


def _divided(args: Sequence[Value]) -> str:
    kind = _real(args)
    if kind == NUMERIC:
        return f"refeed_safe_numeric_quotient({coerce(args[0], kind).lake}, {coerce(args[1], kind).lake})"
    quotient = f"{args[0].lake} / {args[1].lake}"
    fits = f"(NOT isinf({quotient}) OR isinf(CAST({args[0].lake} AS DOUBLE)))"
    # The dividend first: what fails in it fails whatever the divisor is.
    is_zero = f"WHEN {args[1].lake} = 0 THEN NULL"
    return f"CASE WHEN {args[0].lake} IS NULL THEN NULL {is_zero} WHEN {fits} THEN {quotient} END"


def _whole_quotient(args: Sequence[Value]) -> str:
    _check_whole(args)
    call = "refeed_numeric_div({0}, {1})" if args[0].type == NUMERIC else "({0} // {1})"
    return fill(call, args)


def _check_whole(args: Sequence[Value]) -> None:
    """Refuse what Google takes no whole quotient and no remainder of.

    Raises:
        LakeGapError: it is neither INT64 nor NUMERIC.
    """
    if any(arg.type not in {INT64, NUMERIC} for arg in args):
        raise LakeGapError(f"of {args[0].type}")


def _remainder(args: Sequence[Value]) -> str:
    _check_whole(args)
    if args[0].type == INT64 and (not args[1].is_literal or args[1].constant == -1):
        # The engine fails for the least number by -1.
        return fill("CASE WHEN {1} = -1 THEN {0} - {0} ELSE {0} % {1} END", args)
    return fill("({0} % {1})", args)


def _sign(args: Sequence[Value]) -> str:
    if args[0].type == FLOAT64:
        return fill("CASE WHEN isnan({0}) THEN {0} ELSE CAST(sign({0}) AS DOUBLE) END", args)
    return f"CAST(sign({args[0].lake}) AS {lake_type(args[0].type)})"


def _times(args: Sequence[Value]) -> str:
    if NUMERIC in {args[0].type, args[1].type}:
        return fill("refeed_safe_numeric_product({0}, {1})", args)
    return _tried("*")(args)


def _tried(operator: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        if not all(arg.type.is_number for arg in args):
            raise LakeGapError(f"of {args[0].type}")
        if NUMERIC in {args[0].type, args[1].type}:
            return tried("", lambda inner: f"({inner[0].lake} {operator} {inner[1].lake})", args)
        if FLOAT64 not in {args[0].type, args[1].type}:
            return f"TRY_CAST(CAST({args[0].lake} AS HUGEINT) {operator} {args[1].lake} AS BIGINT)"
        text = f"({args[0].lake} {operator} {args[1].lake})"
        finite = " AND ".join(f"isfinite(CAST({arg.lake} AS DOUBLE))" for arg in args)
        return f"CASE WHEN isfinite({text}) OR NOT ({finite}) THEN {text} END"

    return render


def _negated(args: Sequence[Value]) -> str:
    wide = "HUGEINT" if args[0].type == INT64 else lake_type(args[0].type)
    return f"TRY_CAST(-CAST({args[0].lake} AS {wide}) AS {lake_type(args[0].type)})"


def _nullif(args: Sequence[Value]) -> str:
    if _common(args) == FLOAT64:
        # The engine holds NaN for equal to itself.
        return fill("CASE WHEN {0} = {1} AND NOT isnan(CAST({0} AS DOUBLE)) THEN NULL ELSE {0} END", args)
    return fill("nullif({0}, {1})", args)


def _slice(args: Sequence[Value]) -> str:
    if not all(isinstance(arg.constant, int) and arg.constant >= 0 for arg in args[1:]):
        raise LakeGapError("ARRAY_SLICE with negative or computed offsets")
    # No array is longer, and the engine has no place after INT64's last.
    first, last = (min(arg.constant, 2**31) + 1 for arg in args[1:])
    return f"list_slice({args[0].lake}, {first}, {last})"


def _chained(args: Sequence[Value]) -> str:
    if any(arg.type.element is None for arg in args):
        raise LakeGapError(f"of {args[0].type}")
    return "(" + " || ".join(arg.lake for arg in args) + ")"


def _bits(args: Sequence[Value]) -> str:
    if args[0].type != INT64:
        raise LakeGapError(f"BIT_COUNT of {args[0].type}")
    return f"CAST(bit_count({args[0].lake}) AS BIGINT)"


def _joined(args: Sequence[Value]) -> str:
    if args[1].type.name != "STRING":
        raise LakeGapError("it has no counterpart for BYTES")
    if any(not isinstance(arg.constant, str | None) for arg in args[1:]):
        raise LakeGapError("it takes constants there")
    array = args[0].lake
    if any(arg.constant is None for arg in args[1:]):
        return "CAST(NULL AS VARCHAR)"
    if len(args) > 2:
        array = f"list_transform({array}, lambda x: coalesce(x, {args[2].lake}))"
    return f"array_to_string({array}, {args[1].lake})"


def _logarithm(name: str) -> Render:
    wrong = f"error('{name.upper()} of a number that is not above zero')"
    infinite = "WHEN {0} = CAST('-inf' AS DOUBLE) THEN CAST('nan' AS DOUBLE)"
    return _double(f"CASE {infinite} WHEN {{0}} <= 0 THEN {wrong} ELSE {name}({{0}}) END")


_s("IF", "BOOL T T", lambda args: _common(args[1:]), "CASE WHEN {0} THEN {1} ELSE {2} END")
_s("IFNULL", "T T", _common, "coalesce({0}, {1})")
_s("COALESCE", "T *T", _common, "coalesce({*})")
_s("NULLIF", "T T", "T0", _nullif)
# It has whatever type is wanted of it.
_s("ERROR", "STRING", "NULL", "error({0})")
_s("GENERATE_UUID", "", "STRING", "CAST(gen_random_uuid() AS VARCHAR)")

_s("ABS", "NUM", "T0", "abs({0})")
_s("SIGN", "NUM", "T0", _sign)
_s("MOD", "T T", _common, _remainder)
_s("DIV", "T T", _common, _whole_quotient)
_s("ROUND", "NUM ?INT64 ?STRING", _real, _rounded("round"))
_s("TRUNC", "NUM ?INT64", _real, _rounded("trunc"))
_s("CEIL", "NUM", _real, _rounded("ceil"))
_s("CEILING", "NUM", _real, _rounded("ceil"))
_s("FLOOR", "NUM", _real, _rounded("floor"))
_s("SAFE_DIVIDE", "NUM NUM", _real, _divided)
_s("IEEE_DIVIDE", "NUM NUM", "FLOAT64")
_s("SAFE_ADD", "T T", _common, _tried("+"))
_s("SAFE_SUBTRACT", "T T", _common, _tried("-"))
_s("SAFE_MULTIPLY", "T T", _common, _times)
_s("SAFE_NEGATE", "NUM", "T0", _negated)
_s("POW", "NUM NUM", _real, _total("pow({0}, {1})"))
_s("POWER", "NUM NUM", _real, _total("pow({0}, {1})"))
_s("EXP", "NUM", "FLOAT64", _total("exp({0})"))
_s(
    "SQRT",
    "NUM",
    "FLOAT64",
    _double("CASE WHEN {0} < 0 THEN error('SQRT of a negative number') ELSE sqrt({0}) END"),
)
_s("CBRT", "NUM", "FLOAT64", _double("cbrt({0})"))
_s("LN", "NUM", "FLOAT64", _logarithm("ln"))
_s("LOG", "NUM ?NUM", "FLOAT64")
_s("LOG10", "NUM", "FLOAT64", _logarithm("log10"))
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
    _s(
        _name,
        "NUM",
        "FLOAT64",
        _total(_name.lower() + "({0})", is_exact=False) if _name not in {"CSC", "SEC"} else None,
    )
_s("ATAN2", "NUM NUM", "FLOAT64", _double("atan2({0}, {1})", is_exact=False))
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
_s("ARRAY_CONCAT", "T *T", _common, _chained)
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
