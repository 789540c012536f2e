"""The DuckDB SQL that orders the texts of a column: times as times, numbers as numbers (decision 0033)."""

from typing import Final

# RFC 3339 5.6, date-time and full-date; a space for the T by its note ("for the sake of readability"). A time
# without an offset is another kind: https://www.rfc-editor.org/rfc/rfc3339#section-5.6
_TIME: Final = (
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?"
    "([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])?)?$"
)
_ZONE: Final = "([Zz]|[+-][0-9]{2}:[0-9]{2})$"
_NUMBER: Final = "^-?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?$"


def sort_parts(text: str) -> list[str]:
    """Return expressions that order the texts of one kind, the first one first; of other kinds they are null.

    Texts that the last one alone tells apart are neither times nor numbers.
    """
    is_time, is_number = _is_time(text), _is_number(text)
    return [
        f"CASE WHEN {is_time} THEN {_seconds(text)} END",
        # Without trailing zeros, the digits of a fraction sort correctly as text.
        f"CASE WHEN {is_time} THEN rtrim(regexp_extract({text}, '[.]([0-9]+)', 1), '0') END",
        # -0 is 0.
        f"CASE WHEN {is_number} THEN TRY_CAST({text} AS DOUBLE) + 0 END",
        f"CASE WHEN {is_number} THEN TRY_CAST({text} AS DECIMAL(38, 9)) END",
        f"CASE WHEN NOT {is_time} AND NOT {is_number} THEN {text} END",
    ]


def kind_of(text: str, *, is_moment: bool) -> str:
    """Return an expression for the kind of a text; only texts of one kind can be ordered.

    Texts that are neither times nor numbers are ordered where they have one length, as ULIDs have, and never as
    moments: there each is a kind of its own.
    """
    other = f"'text ' || {text}" if is_moment else f"'text of ' || length({text})"
    return (
        f"CASE WHEN {text} IS NULL THEN NULL WHEN {_is_time(text)} THEN "
        f"CASE WHEN regexp_matches({text}, '{_ZONE}') THEN 'time' ELSE 'time without an offset' END "
        f"WHEN {_is_number(text)} THEN 'number' ELSE {other} END"
    )


def _local(text: str) -> str:
    """Return the day and the clock as they are written."""
    clock = f"coalesce(nullif(substr({text}, 12, 8), ''), '00:00:00')"
    return f"TRY_CAST(substr({text}, 1, 10) || ' ' || {clock} AS TIMESTAMP)"


def _is_time(text: str) -> str:
    # DuckDB takes the year 0000, which GoogleSQL has not.
    matches = f"regexp_matches({text}, '{_TIME}') AND {text} >= '0001'"
    return f"coalesce({matches} AND {_local(text)} IS NOT NULL, FALSE)"


def _is_number(text: str) -> str:
    is_finite = f"isfinite(TRY_CAST({text} AS DOUBLE))"
    return f"coalesce(regexp_matches({text}, '{_NUMBER}') AND {is_finite}, FALSE)"


def _seconds(text: str) -> str:
    """Return the whole seconds since 1970, by the offset, which may leave the calendar."""
    offset = f"regexp_extract({text}, '[+-][0-9]{{2}}:[0-9]{{2}}$')"
    sign = f"CASE WHEN starts_with({offset}, '-') THEN -1 ELSE 1 END"
    hours = f"coalesce(TRY_CAST(substr({offset}, 2, 2) AS BIGINT), 0)"
    minutes = f"coalesce(TRY_CAST(substr({offset}, 5, 2) AS BIGINT), 0)"
    return f"CAST(epoch({_local(text)}) AS BIGINT) - ({sign}) * ({hours} * 3600 + {minutes} * 60)"
