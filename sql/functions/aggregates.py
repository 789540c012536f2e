"""Functions over many rows: aggregates and what needs OVER."""

from collections.abc import Sequence
from itertools import product
from typing import Final

from sql.datatypes import FLOAT64, INT64, SqlType
from sql.functions.registry import DISTINCT, ORDER, OVER, Render, Table
from sql.values import LakeGapError, Value

TABLE = Table()
_a = TABLE.aggregate
_w = TABLE.window
# A power of two: only the last digits of the least numbers get lost.
_SMALL: Final = 2.0**-100
# Beyond this a product of two numbers may be too much, and below its inverse too little.
_FAR: Final = 2.0**400
_NEARER: Final = 2.0**600


def _mean(args: Sequence[Value]) -> SqlType:
    return FLOAT64 if args[0].type == INT64 else args[0].type


def _average(args: Sequence[Value]) -> str:
    if args[0].type.name not in {"INT64", "FLOAT64"}:
        raise LakeGapError(f"AVG of {args[0].type}")
    if args[0].type == INT64:
        return f"avg({DISTINCT}{args[0].lake})"
    return _overflowing("avg", args[0].lake, "{small}")


def _sum(args: Sequence[Value]) -> str:
    text = args[0].lake
    if args[0].type != FLOAT64:
        return f"sum({DISTINCT}{text})"
    return _overflowing(
        "sum", text, "CASE WHEN isinf({small}) THEN error('Floating point overflow') ELSE {small} END"
    )


def _overflowing(name: str, text: str, otherwise: str) -> str:
    """Return an aggregate of FLOAT64 that is computed with small numbers where only its way leads beyond them."""
    whole = f"{name}({DISTINCT}{text}){OVER}"
    small = f"({name}({DISTINCT}{text} * {_SMALL!r}){OVER} / {_SMALL!r})"
    finite = f"coalesce(bool_and(isfinite({text})){OVER}, TRUE)"
    return f"CASE WHEN NOT isfinite({whole}) AND {finite} THEN {otherwise.format(small=small)} ELSE {whole} END"


def _least(args: Sequence[Value]) -> str:
    # The engine holds NaN for the greatest number; here it wins.
    return f"-max(-{args[0].lake})" if args[0].type == FLOAT64 else f"min({args[0].lake})"


def _in_reach(call: str, args: Sequence[Value], *, is_scaled: bool = True) -> str:
    """Return an aggregate whose squares of FLOAT64 may overflow or vanish, over numbers that a power of two mends.

    Where ``is_scaled``, the aggregate is brought back by the same powers.
    """

    def ways(arg: Value) -> list[tuple[str, str, str]]:
        if arg.type != FLOAT64:
            return [("", arg.lake, "")]
        most = f"max(abs({arg.lake})){OVER}"
        near = [(f"{most} > {_FAR!r}", 1 / _NEARER), (f"{most} < {1 / _FAR!r}", _NEARER)]
        return [*((when, f"{arg.lake} * {by!r}", f" / {by!r}") for when, by in near), ("", arg.lake, "")]

    cases = []
    for chosen in product(*map(ways, args)):
        whole = call.format(*(text for _, text, _ in chosen))
        back = "".join(by for _, _, by in chosen) if is_scaled else ""
        when = " AND ".join(filter(None, (condition for condition, _, _ in chosen)))
        cases.append(f"WHEN {when} THEN {whole}{back}" if when else f"ELSE {whole}")
    return f"CASE {' '.join(cases)} END" if len(cases) > 1 else cases[0].removeprefix("ELSE ")


def _together(name: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        _check_numbers(name.upper(), args)
        return _in_reach(f"{name}({{0}}, {{1}}){OVER}", args, is_scaled=name != "corr")

    return render


def _check_numbers(name: str, args: Sequence[Value]) -> None:
    # "If the input is NUMERIC or BIGNUMERIC then the internal aggregation is stable":
    # https://github.com/google/googlesql/blob/master/docs/statistical_aggregate_functions.md
    # The engine converts it to FLOAT64 before it aggregates.
    if any(arg.type.name not in {"INT64", "FLOAT64"} for arg in args):
        raise LakeGapError(f"{name} of NUMERIC")


def _correlated(args: Sequence[Value]) -> str:
    found = _together("corr")(args)
    return f"CASE WHEN regr_count({args[0].lake}, {args[1].lake}){OVER} > 1 THEN {found} END"


def _spread(name: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        _check_numbers(name.upper(), args)
        spread = f"{name}({DISTINCT}{{0}}){OVER}"
        # A variance overflows at Google too.
        spread = _in_reach(spread, args) if "std" in name else spread.format(args[0].lake)
        if args[0].type != FLOAT64 or "pop" not in name:
            return spread
        finite = f"coalesce(bool_and(isfinite({args[0].lake})){OVER}, TRUE)"
        return f"CASE WHEN {finite} THEN {spread} ELSE CAST('nan' AS DOUBLE) END"

    return render


def _texts(args: Sequence[Value]) -> str:
    if args[0].type.name == "BYTES":
        raise LakeGapError("STRING_AGG of BYTES")
    separator = args[1].lake if len(args) > 1 else "','"
    return f"string_agg({DISTINCT}{args[0].lake}, {separator}{ORDER})"


_a("COUNT", "ANY", "INT64", "count({!}{0})")
_a("COUNTIF", "BOOL", "INT64", "count({!}CASE WHEN {0} THEN 1 END)")
_a("SUM", "NUM", "T0", _sum)
_a("AVG", "NUM", _mean, _average)
_a("MIN", "ORDERED", "T0", _least)
_a("MAX", "ORDERED", "T0", "max({0})")
_a("MIN_BY", "ANY ORDERED", "T0", "min_by({0}, {1})")
_a("MAX_BY", "ANY ORDERED", "T0", "max_by({0}, {1})")
_a("ANY_VALUE", "ANY", "T0", "any_value({0})")
_a("ARRAY_AGG", "ITEM", "ARRAY<T0>", "list({!}{0}{^})")
_a("ARRAY_CONCAT_AGG", "ARRAY", "T0", "flatten(list({0}{^}))")
_a("STRING_AGG", "STR ?STR", "T0", _texts)
_a("LOGICAL_AND", "BOOL", "BOOL", "bool_and({0})")
_a("LOGICAL_OR", "BOOL", "BOOL", "bool_or({0})")
_a("BIT_AND", "INT64", "INT64", "bit_and({0})")
_a("BIT_OR", "INT64", "INT64", "bit_or({0})")
_a("BIT_XOR", "INT64", "INT64", "bit_xor({!}{0})")
for _name, _lake in (
    ("STDDEV", "stddev_samp"), ("STDDEV_SAMP", "stddev_samp"), ("STDDEV_POP", "stddev_pop"),
    ("VARIANCE", "var_samp"), ("VAR_SAMP", "var_samp"), ("VAR_POP", "var_pop"),
):  # fmt: skip
    _a(_name, "NUM", "FLOAT64", _spread(_lake))
_a("CORR", "NUM NUM", "FLOAT64", _correlated)
_a("COVAR_POP", "NUM NUM", "FLOAT64", _together("covar_pop"))
_a("COVAR_SAMP", "NUM NUM", "FLOAT64", _together("covar_samp"))
_a("APPROX_COUNT_DISTINCT", "ANY", "INT64", "approx_count_distinct({0})")
_a("APPROX_QUANTILES", "ANY INT64", "ARRAY<T0>")
_a("APPROX_TOP_COUNT", "ANY INT64", "UNKNOWN")
_a("APPROX_TOP_SUM", "ANY NUM INT64", "UNKNOWN")
_a("HLL_COUNT.INIT", "ANY ?INT64", "BYTES")
_a("HLL_COUNT.MERGE", "BYTES", "INT64")
_a("HLL_COUNT.MERGE_PARTIAL", "BYTES", "BYTES")
TABLE.scalar("HLL_COUNT.EXTRACT", "BYTES", "INT64")

_w("ROW_NUMBER", "", "INT64", "row_number()")
_w("RANK", "", "INT64", "rank()")
_w("DENSE_RANK", "", "INT64", "dense_rank()")
_w("PERCENT_RANK", "", "FLOAT64", "percent_rank()")
_w("CUME_DIST", "", "FLOAT64", "cume_dist()")
_w("NTILE", "INT64", "INT64", "ntile({0})")
_w("LAG", "ANY ?INT64 ?ANY", "T0", "lag({*}{~})")
_w("LEAD", "ANY ?INT64 ?ANY", "T0", "lead({*}{~})")
_w("FIRST_VALUE", "ANY", "T0", "first_value({0}{~})")
_w("LAST_VALUE", "ANY", "T0", "last_value({0}{~})")
_w("NTH_VALUE", "ANY INT64", "T0", "nth_value({0}, {1}{~})")
_w("PERCENTILE_CONT", "NUM FLOAT64", "FLOAT64")
_w("PERCENTILE_DISC", "ANY FLOAT64", "T0")
