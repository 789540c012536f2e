"""Functions over many rows: aggregates and what needs OVER."""

from sql.functions.registry import Table

TABLE = Table()
_a = TABLE.aggregate
_w = TABLE.window

_a("COUNT", "ANY", "INT64", "count({!}{0})")
_a("COUNTIF", "BOOL", "INT64", "count({!}CASE WHEN {0} THEN 1 END)")
_a("SUM", "NUM", "T0", "sum({!}{0})")
_a("AVG", "NUM", "FLOAT64", "avg({!}{0})")
_a("MIN", "ANY", "T0", "min({0})")
_a("MAX", "ANY", "T0", "max({0})")
_a("ANY_VALUE", "ANY", "T0", "any_value({0})")
_a("ARRAY_AGG", "ANY", "ARRAY<T0>", "list({!}{0}{^})")
_a("STRING_AGG", "STR ?STR", "T0", {1: "string_agg({!}{0}, ','{^})", 2: "string_agg({!}{0}, {1}{^})"})
_a("LOGICAL_AND", "BOOL", "BOOL", "bool_and({0})")
_a("LOGICAL_OR", "BOOL", "BOOL", "bool_or({0})")

_w("ROW_NUMBER", "", "INT64", "row_number()")
_w("RANK", "", "INT64", "rank()")
_w("DENSE_RANK", "", "INT64", "dense_rank()")
_w("LAG", "ANY ?INT64 ?ANY", "T0", "lag({*})")
_w("LEAD", "ANY ?INT64 ?ANY", "T0", "lead({*})")
_w("FIRST_VALUE", "ANY", "T0", "first_value({0}{~})")
_w("LAST_VALUE", "ANY", "T0", "last_value({0}{~})")
