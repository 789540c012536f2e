"""Tables beside the archive: what a deployment declares of them, and their types as the gate knows them."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from model.errors import InputError
from model.table import PARTITION_DATE, PARTITION_TIME, Partitioning, TableSchema
from sql.datatypes import SCALARS, UNKNOWN, SqlType, array_of

_DECLARATION: Final = re.compile(r"\s*(?P<table>[^\s()]+)\s*\((?P<columns>.*)\)\s*", re.DOTALL)
_TOKEN: Final = re.compile(r"\s*(\w+|[<>,])")
_PSEUDO: Final = (PARTITION_TIME, PARTITION_DATE)
MAX_COLUMNS: Final = 10_000


@lru_cache(1024)
def read_type(text: str) -> SqlType:
    """Return the type that ``text`` writes; UNKNOWN for one that the gate has no use for.

    Example:
        >>> str(read_type("ARRAY<STRUCT<key STRING, value STRING>>")), read_type("GEOGRAPHY").is_known
        ('ARRAY<STRUCT<key STRING, value STRING>>', False)
    """
    tokens = [match[1] for match in _TOKEN.finditer(text)]
    kind, rest = _read(tokens)
    return UNKNOWN if rest else kind


def parse_table_schema(text: str) -> TableSchema:
    """Return the table that ``text`` declares, as in ``ops.dead(data BYTES, _PARTITIONTIME TIMESTAMP)``.

    A declaration that names ``_PARTITIONTIME`` is of a table partitioned by ingestion time.

    Raises:
        InputError: it declares no table, or a column of a type that the gate does not know.

    Example:
        >>> parse_table_schema("ops.dead(data BYTES, n INT64)")
        TableSchema(table='ops.dead', columns=(('data', 'BYTES'), ('n', 'INT64')), partitioning=None)
    """
    match = _DECLARATION.fullmatch(text)
    if match is None:
        raise InputError(f"{text[:100]!r} does not declare a table. Write dataset.table(column TYPE, ...).")
    partitioning: Partitioning | None = None
    columns: list[tuple[str, str]] = []
    for part in _split(match["columns"]):
        name, _, kind = part.strip().partition(" ")
        if name.upper() in _PSEUDO:
            partitioning = "day"
            continue
        if not re.fullmatch(r"\w+", name) or not read_type(kind.upper()).is_known:
            raise InputError(
                f"{part.strip()[:100]!r} is not a valid column of {match['table']}. Write column TYPE."
            )
        columns.append((name, str(read_type(_with_types_upper(kind)))))
    if not columns or len(columns) > MAX_COLUMNS:
        raise InputError(f"{match['table']} needs between 1 and {MAX_COLUMNS} columns.")
    return TableSchema(match["table"].strip("`"), tuple(columns), partitioning)


def _with_types_upper(text: str) -> str:
    """Return ``text`` with its types in capitals and the names of fields as they are."""
    return re.sub(r"\w+(?=\s*(?:[<>,]|$))", lambda match: match[0].upper(), text)


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas that stand outside of angle brackets."""
    depth = start = 0
    for at, char in enumerate(text):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _read(tokens: list[str]) -> tuple[SqlType, list[str]]:
    """Return the type at the beginning of ``tokens`` and what follows it."""
    name, rest = (tokens[0], tokens[1:]) if tokens else ("", [])
    if name == "ARRAY" and rest[:1] == ["<"]:
        element, rest = _read(rest[1:])
        known = element.is_known and rest[:1] == [">"]
        return (array_of(element) if known else UNKNOWN), rest[1:]
    if name == "STRUCT" and rest[:1] == ["<"]:
        return _read_struct(rest[1:])
    return SCALARS.get(name, UNKNOWN), rest


def _read_struct(tokens: list[str]) -> tuple[SqlType, list[str]]:
    fields: list[tuple[str | None, SqlType]] = []
    while tokens:
        # A field without a name is a type alone: INT64, or ARRAY<...>.
        name = None if tokens[1:2] in ([","], [">"], ["<"]) else tokens[0]
        kind, tokens = _read(tokens if name is None else tokens[1:])
        fields.append((name, kind))
        if tokens[:1] != [","]:
            break
        tokens = tokens[1:]
    known = tokens[:1] == [">"] and all(kind.is_known for _, kind in fields)
    return (SqlType("STRUCT", fields=tuple(fields)) if known else UNKNOWN), tokens[1:]
