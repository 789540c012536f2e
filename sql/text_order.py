"""The GoogleSQL that orders the texts of a column: times as times, numbers as numbers (decision 0033)."""

from functools import lru_cache
from typing import Final

import sqlglot
from sqlglot import exp

# RFC 3339 5.6, date-time and full-date; a space for the T by its note ("for the sake of readability"). A time
# without an offset is another kind: https://www.rfc-editor.org/rfc/rfc3339#section-5.6
_TIME: Final = (
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?"
    "([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])?)?$"
)
_NUMBER: Final = "^-?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?$"
# The day and the clock as they are written.
_LOCAL: Final = (
    "SAFE_CAST(CONCAT(SUBSTR(x, 1, 10), ' ', COALESCE(NULLIF(SUBSTR(x, 12, 8), ''), '00:00:00'), '+00:00')"
    " AS TIMESTAMP)"
)
_IS_TIME: Final = f"COALESCE(REGEXP_CONTAINS(x, '{_TIME}') AND x >= '0001' AND {_LOCAL} IS NOT NULL, FALSE)"
_IS_NUMBER: Final = (
    f"COALESCE(REGEXP_CONTAINS(x, '{_NUMBER}') AND ABS(SAFE_CAST(x AS FLOAT64)) <= 1.7976931348623157e308, FALSE)"
)
# In seconds; it may lead out of the calendar.
_OFFSET: Final = (
    "IF(REGEXP_CONTAINS(x, '-[0-9]{2}:[0-9]{2}$'), -1, 1) * ("
    "COALESCE(SAFE_CAST(REGEXP_EXTRACT(x, '[+-]([0-9]{2}):[0-9]{2}$') AS INT64), 0) * 3600"
    " + COALESCE(SAFE_CAST(REGEXP_EXTRACT(x, '[+-][0-9]{2}:([0-9]{2})$') AS INT64), 0) * 60)"
)
_PARTS: Final = (
    f"IF({_IS_TIME}, UNIX_SECONDS({_LOCAL}) - {_OFFSET}, NULL)",
    # Without trailing zeros, the digits of a fraction sort correctly as text.
    f"IF({_IS_TIME}, COALESCE(REGEXP_EXTRACT(x, '[.]([0-9]*[1-9])'), ''), NULL)",
    # -0 is 0.
    f"IF({_IS_NUMBER}, SAFE_CAST(x AS FLOAT64) + 0, NULL)",
    f"IF({_IS_NUMBER}, SAFE_CAST(x AS NUMERIC), NULL)",
    f"IF(NOT {_IS_TIME} AND NOT {_IS_NUMBER}, x, NULL)",
)
_KIND: Final = (
    f"CASE WHEN x IS NULL THEN NULL WHEN {_IS_TIME} THEN "
    "IF(REGEXP_CONTAINS(x, '([Zz]|[+-][0-9]{2}:[0-9]{2})$'), 'time', 'time without an offset') "
    f"WHEN {_IS_NUMBER} THEN 'number' ELSE "
)
_OTHER_KIND: Final = "CONCAT('text of ', CAST(LENGTH(x) AS STRING)) END"
_OTHER_MOMENT: Final = "CONCAT('text ', x) END"


def sort_parts(text: exp.Column) -> list[exp.Expr]:
    """Return expressions that order the texts of one kind, the first one first; of other kinds they are null.

    Texts that the last one alone tells apart are neither times nor numbers.
    """
    return [_filled(part, text.table, text.name).copy() for part in _PARTS]


def kind_of(text: exp.Column, *, is_moment: bool) -> exp.Expr:
    """Return an expression for the kind of a text; only texts of one kind can be ordered.

    Texts that are neither times nor numbers are ordered where they have one length, as ULIDs have, and never as
    moments: there each is a kind of its own.
    """
    return _filled(_KIND + (_OTHER_MOMENT if is_moment else _OTHER_KIND), text.table, text.name).copy()


@lru_cache
def _filled(template: str, table: str, name: str) -> exp.Expr:
    """Return an expression of this module with its column ``x`` replaced; names are never parsed."""
    column = exp.column(exp.to_identifier(name, quoted=True), table=table)

    def put(node: exp.Expr) -> exp.Expr:
        return column.copy() if isinstance(node, exp.Column) and node.name == "x" else node

    return sqlglot.parse_one(template, read="bigquery").transform(put, copy=False)
