"""What an expression is once its names are known: its type, where it comes from and how the lake writes it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sql.datatypes import UNKNOWN, SqlType


class _Unknown:
    """No constant; None would be SQL's NULL."""

    def __repr__(self) -> str:
        return "NOT_CONSTANT"


NOT_CONSTANT: Final = _Unknown()


@dataclass(frozen=True, slots=True)
class Origin:
    """The column of the archive that a value is, bit for bit; ``scan`` numbers the scans of a query."""

    scan: int
    column: str


@dataclass(frozen=True, slots=True)
class Partition:
    """A time that bounds ``scan``, perhaps cut down to ``unit``: the pseudo column, or the table's ingest_time.

    The pseudo column is NULL for rows in BigQuery's write buffer; ingest_time bounds those.
    """

    scan: int
    unit: str | None = None
    is_ingest_time: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    """A typed expression; ``lake`` is its text for the lake's engine, safe to put anywhere.

    ``items`` is how many elements an array made of it may have; None for as many as a message's arrays have.
    ``is_key`` is whether it may tell one message from another: see ``amplification.is_key``.
    """

    type: SqlType
    lake: str
    origin: Origin | None = None
    partition: Partition | None = None
    constant: Any = field(default=NOT_CONSTANT)
    is_literal: bool = False
    items: int | None = None
    is_key: bool = False
    # The name of the argument that it is given as, where a call names it.
    named: str = ""
    # How much of which unit an INTERVAL is.
    amount: "tuple[Value, str] | None" = None


# How many elements an array has that holds something of every row of a table; and one that is still to be told how
# many rows its aggregate is over.
MANY_ITEMS: Final = 10**12
AGGREGATED_ITEMS: Final = -1

# What stands for an expression with a fault, so that the rest can still be checked.
BROKEN: Final = Value(UNKNOWN, "NULL")


class LakeGapError(Exception):
    """The lake's engine can't do this; the reason is the message."""


_TEXT_OR_NAME: Final = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")""")


def without_quotes(text: str) -> str:
    r"""Return a text for the lake with every string and every quoted name in it emptied.

    Example:
        >>> print(without_quotes("a = 'it''s t1.x' AND \"it's\" = $p0"))
        a = '' AND "" = $p0
    """
    return _TEXT_OR_NAME.sub(lambda match: match[0][0] * 2, text)


def map_code(change: Callable[[str], str], text: str) -> str:
    """Return a text for the lake with ``change`` made to what is outside of strings and quoted names.

    Example:
        >>> map_code(str.upper, "a = 'b' AND c")
        "A = 'b' AND C"
    """
    parts = _TEXT_OR_NAME.split(text)
    parts[::2] = [change(part) for part in parts[::2]]
    return "".join(parts)


def without_errors(text: str) -> str:
    """Return a text for the lake with NULL where it raises an error of its own; what is quoted stays as it is.

    Example:
        >>> without_errors("CASE WHEN a < 'error(' THEN error('it''s less') ELSE a END")
        "CASE WHEN a < 'error(' THEN NULL ELSE a END"
    """
    parts = _TEXT_OR_NAME.split(text)
    for place in range(1, len(parts), 2):
        before, after = parts[place - 1], parts[place + 1]
        if before.endswith("error(") and parts[place].startswith("'") and after.startswith(")"):
            parts[place - 1 : place + 2] = [before.removesuffix("error(") + "NULL", "", after.removeprefix(")")]
    return "".join(parts)


def checked(lake: str, kind: SqlType) -> str:
    """Return ``lake`` with an error where a computed DATE, DATETIME or TIMESTAMP leaves the years 1 to 9999."""
    low, high = {
        "DATE": ("DATE '0001-01-01'", "DATE '9999-12-31'"),
        "DATETIME": ("TIMESTAMP '0001-01-01 00:00:00'", "TIMESTAMP '9999-12-31 23:59:59.999999'"),
        "TIMESTAMP": ("TIMESTAMPTZ '0001-01-01 00:00:00+00'", "TIMESTAMPTZ '9999-12-31 23:59:59.999999+00'"),
    }[kind.name]
    wrong = f"error('A {kind.name} outside of the years 1 to 9999')"
    return f"CASE WHEN {lake} NOT BETWEEN {low} AND {high} THEN {wrong} ELSE {lake} END"


def quote_text(text: str) -> str:
    """Return ``text`` as a string of the lake's engine.

    Example:
        >>> quote_text("it's")
        "'it''s'"
    """
    if "\0" in text:
        raise LakeGapError("a string with a NUL character")
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """Return ``name`` as a quoted identifier of the lake's engine."""
    return '"' + name.replace('"', '""') + '"'


def quote_bytes(data: bytes) -> str:
    r"""Return ``data`` as a blob of the lake's engine.

    Example:
        >>> quote_bytes(b"a\x00")
        "from_hex('6100')"
    """
    return f"from_hex('{data.hex().upper()}')"
