"""Arithmetic, conditions, arrays and the rest of the scalars."""

from collections.abc import Sequence

from sql.datatypes import UNKNOWN, SqlType, common_type
from sql.functions.registry import Render, Table
from sql.values import Value

TABLE = Table()
_s = TABLE.scalar


def _common(args: Sequence[Value]) -> SqlType:
    return common_type([(arg.type, arg.is_literal) for arg in args]) or UNKNOWN


def _no_null(name: str) -> Render:
    def render(args: Sequence[Value]) -> str:
        # The engine's own skips NULLs; GoogleSQL gives NULL when one is.
        nulls = " OR ".join(f"{arg.lake} IS NULL" for arg in args)
        return f"CASE WHEN {nulls} THEN NULL ELSE {name}({', '.join(arg.lake for arg in args)}) END"

    return render


_s("IF", "BOOL T T", lambda args: _common(args[1:]), "CASE WHEN {0} THEN {1} ELSE {2} END")
_s("IFNULL", "T T", _common, "coalesce({0}, {1})")
_s("COALESCE", "T *T", _common, "coalesce({*})")
_s("NULLIF", "T T", "T0", "nullif({0}, {1})")
_s("ABS", "NUM", "T0", "abs({0})")
_s("MOD", "INT64 INT64", "INT64", "({0} % {1})")
_s("GREATEST", "T *T", _common, _no_null("greatest"))
_s("LEAST", "T *T", _common, _no_null("least"))
_s("RAND", "", "FLOAT64", "random()")
_s("FARM_FINGERPRINT", "STR", "INT64")
_s("ARRAY_LENGTH", "ARRAY", "INT64", "len({0})")
_s("ARRAY_CONCAT", "T *T", _common, lambda args: "(" + " || ".join(arg.lake for arg in args) + ")")
_s(
    "GENERATE_ARRAY",
    "NUM NUM ?NUM",
    "ARRAY<T0>",
    {2: "generate_series({0}, {1})", 3: "generate_series({0}, {1}, {2})"},
)
