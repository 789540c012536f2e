"""GoogleSQL's types: names, how they combine, and what the lake's engine calls them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type; ``element`` is set for ARRAY, ``fields`` for STRUCT.

    ``is_message_id`` marks the values of a message_id column, untouched. It goes along through structs, arrays and
    queries, and does not count when types are compared.

    Example:
        >>> str(ATTRIBUTES)
        'ARRAY<STRUCT<key STRING, value STRING>>'
        >>> MESSAGE_ID == STRING, computed(MESSAGE_ID).is_message_id
        (True, False)
    """

    name: str
    element: "SqlType | None" = None
    fields: tuple[tuple[str | None, "SqlType"], ...] = ()
    is_message_id: bool = field(default=False, compare=False, repr=False)

    def __str__(self) -> str:
        if self.element is not None:
            return f"ARRAY<{self.element}>"
        if self.name == "STRUCT":
            inner = ", ".join(f"{name} {kind}" if name else str(kind) for name, kind in self.fields)
            return f"STRUCT<{inner}>"
        return self.name

    @property
    def is_known(self) -> bool:
        """Whether the gate can say what it is; what follows from an error is not."""
        return self.name != "UNKNOWN"

    @property
    def is_number(self) -> bool:
        """Whether it is one of the four numeric types."""
        return self.name in _NUMBERS

    @property
    def is_groupable(self) -> bool:
        """Whether DISTINCT, GROUP BY and set operations may compare it."""
        if self.element is not None:
            return self.element.is_groupable
        return self.name not in {"JSON", "GEOGRAPHY"} and all(kind.is_groupable for _, kind in self.fields)

    @property
    def is_orderable(self) -> bool:
        """Whether ORDER BY, MIN and MAX may compare it."""
        return self.name not in {"JSON", "GEOGRAPHY", "ARRAY", "STRUCT"}

    @property
    def lake_names(self) -> tuple[str, ...]:
        """What the lake's engine calls the fields, which need names of their own there."""
        keys = [name.lower() if name else "" for name, _ in self.fields]
        return tuple(
            name if name and keys.count(name.lower()) == 1 else f"_f{index}"
            for index, (name, _) in enumerate(self.fields)
        )

    def field(self, key: str) -> "SqlType | None":
        """Return the type of the one field that ``key`` (lower case) names."""
        found = [kind for name, kind in self.fields if name is not None and name.lower() == key]
        return found[0] if len(found) == 1 else None


BOOL: Final = SqlType("BOOL")
INT64: Final = SqlType("INT64")
FLOAT64: Final = SqlType("FLOAT64")
NUMERIC: Final = SqlType("NUMERIC")
BIGNUMERIC: Final = SqlType("BIGNUMERIC")
STRING: Final = SqlType("STRING")
MESSAGE_ID: Final = SqlType("STRING", is_message_id=True)
BYTES: Final = SqlType("BYTES")
DATE: Final = SqlType("DATE")
DATETIME: Final = SqlType("DATETIME")
TIME: Final = SqlType("TIME")
TIMESTAMP: Final = SqlType("TIMESTAMP")
INTERVAL: Final = SqlType("INTERVAL")
JSON: Final = SqlType("JSON")
NULL: Final = SqlType("NULL")
UNKNOWN: Final = SqlType("UNKNOWN")
ATTRIBUTE: Final = SqlType("STRUCT", fields=(("key", STRING), ("value", STRING)))
ATTRIBUTES: Final = SqlType("ARRAY", ATTRIBUTE)

SCALARS: Final = {
    **{t.name: t for t in (BOOL, INT64, FLOAT64, NUMERIC, BIGNUMERIC, STRING, BYTES, DATE, DATETIME, TIME)},
    **{t.name: t for t in (TIMESTAMP, INTERVAL, JSON)},
    "BOOLEAN": BOOL, "INT": INT64, "SMALLINT": INT64, "INTEGER": INT64, "BIGINT": INT64, "TINYINT": INT64,
    "BYTEINT": INT64, "DECIMAL": NUMERIC, "BIGDECIMAL": BIGNUMERIC,
}  # fmt: skip
_NUMBERS: Final = ("INT64", "NUMERIC", "BIGNUMERIC", "FLOAT64")
_LAKE: Final = {
    "BOOL": "BOOLEAN", "INT64": "BIGINT", "FLOAT64": "DOUBLE", "NUMERIC": "DECIMAL(38, 9)", "STRING": "VARCHAR",
    "BYTES": "BLOB", "DATE": "DATE", "DATETIME": "TIMESTAMP", "TIME": "TIME", "TIMESTAMP": "TIMESTAMPTZ",
    "INTERVAL": "INTERVAL", "JSON": "JSON", "NULL": "BIGINT",
}  # fmt: skip


def array_of(element: SqlType) -> SqlType:
    """Return the array type of ``element``."""
    return SqlType("ARRAY", element)


def message_ids(kind: SqlType) -> tuple[bool, ...]:
    """Return, for each scalar of ``kind`` from the left, whether it is an untouched message_id."""
    if kind.element is not None:
        return message_ids(kind.element)
    if kind.fields:
        return tuple(mark for _, inner in kind.fields for mark in message_ids(inner))
    return (kind.is_message_id,)


def computed(kind: SqlType) -> SqlType:
    """Return ``kind`` for values that an expression makes: none of them is an untouched message_id."""
    if not any(message_ids(kind)):
        return kind
    return replace(
        kind,
        element=None if kind.element is None else computed(kind.element),
        fields=tuple((name, computed(inner)) for name, inner in kind.fields),
        is_message_id=False,
    )


def settled(kind: SqlType) -> SqlType:
    """Return what a bare NULL's type becomes where nothing beside it says better: INT64, as in GoogleSQL.

    Example:
        >>> settled(array_of(NULL)) == array_of(INT64)
        True
    """
    return INT64 if kind == NULL else array_of(INT64) if kind.element == NULL else kind


def lake_type(kind: SqlType) -> str | None:
    """Return what the lake's engine calls ``kind``, or None when it has no such type.

    Example:
        >>> lake_type(ATTRIBUTES)
        'STRUCT("key" VARCHAR, "value" VARCHAR)[]'
    """
    if kind.element is not None:
        element = lake_type(kind.element)
        return None if element is None else f"{element}[]"
    if kind.name == "STRUCT":
        parts = []
        for name, (_, inner) in zip(kind.lake_names, kind.fields, strict=True):
            text = lake_type(inner)
            if text is None:
                return None
            quoted = name.replace('"', '""')
            parts.append(f'"{quoted}" {text}')
        return f"STRUCT({', '.join(parts)})"
    return _LAKE.get(kind.name)


def fits(have: SqlType, want: SqlType, *, is_literal: bool) -> bool:
    """Say whether a value of type ``have`` may stand where ``want`` is asked for.

    Literals and parameters bend further than columns: ``'2024-01-01'`` is a DATE where one is needed.

    Example:
        >>> fits(STRING, DATE, is_literal=True), fits(STRING, DATE, is_literal=False)
        (True, False)
    """
    if have == want or "UNKNOWN" in {have.name, want.name} or have.name == "NULL":
        return True
    if have.element is not None and want.element is not None:
        if have.element.name == "NULL":
            return True
        return fits(have.element, want.element, is_literal=is_literal)
    if have.name == "STRUCT" and want.name == "STRUCT" and len(have.fields) == len(want.fields):
        pairs = zip(have.fields, want.fields, strict=True)
        return all(fits(a, b, is_literal=is_literal) for (_, a), (_, b) in pairs)
    if have.name in _NUMBERS and want.name in _NUMBERS:
        if have.name == "FLOAT64":
            return is_literal and want.name != "INT64"
        return _NUMBERS.index(have.name) < _NUMBERS.index(want.name)
    if have == DATE and want == DATETIME:
        return True
    return is_literal and have == STRING and want.name in {"DATE", "DATETIME", "TIME", "TIMESTAMP"}


_CASTS: Final = {
    "INT64": "BOOL FLOAT64 NUMERIC BIGNUMERIC STRING",
    "FLOAT64": "INT64 NUMERIC BIGNUMERIC STRING",
    "NUMERIC": "INT64 FLOAT64 BIGNUMERIC STRING",
    "BIGNUMERIC": "INT64 FLOAT64 NUMERIC STRING",
    "BOOL": "INT64 STRING",
    "STRING": "BOOL INT64 FLOAT64 NUMERIC BIGNUMERIC BYTES DATE DATETIME TIME TIMESTAMP INTERVAL",
    "BYTES": "STRING",
    "DATE": "DATETIME TIMESTAMP STRING",
    "DATETIME": "DATE TIME TIMESTAMP STRING",
    "TIME": "STRING",
    "TIMESTAMP": "DATE DATETIME TIME STRING",
    "INTERVAL": "STRING",
}


def is_castable(have: SqlType, want: SqlType) -> bool:
    """Say whether CAST knows the way from ``have`` to ``want``.

    Example:
        >>> is_castable(STRING, BYTES), is_castable(JSON, STRING)
        (True, False)
    """
    if have == want or have.name == "NULL":
        return True
    if have.element is not None and want.element is not None:
        return is_castable(have.element, want.element)
    if have.name == "STRUCT" and want.name == "STRUCT" and len(have.fields) == len(want.fields):
        return all(is_castable(a, b) for (_, a), (_, b) in zip(have.fields, want.fields, strict=True))
    return want.name in _CASTS.get(have.name, "").split()


def common_type(kinds: Sequence[tuple[SqlType, bool]]) -> SqlType | None:
    """Return the type that values of all ``kinds`` (type, is_literal) take together, None when there is none.

    Example:
        >>> common_type([(NULL, True), (INT64, True), (FLOAT64, False)])
        SqlType(name='FLOAT64', element=None, fields=())
    """
    real = [(kind, literal) for kind, literal in kinds if kind.name != "NULL"]
    if not real:
        return INT64 if kinds else None
    if any(not kind.is_known for kind, _ in real):
        return UNKNOWN
    # A column's type goes before a literal's.
    candidates = [kind for kind, literal in real if not literal] + [kind for kind, literal in real if literal]
    for target in (*candidates, *(SCALARS[name] for name in _NUMBERS if any(k.is_number for k, _ in real))):
        if all(fits(kind, target, is_literal=literal) for kind, literal in real):
            return target
    return None
