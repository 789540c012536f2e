"""Rows of two releases, column by column: which cells differ, whatever the warehouse made of their types."""

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from model.schema import Field, RowSchema
from pipeline.shadow_report import MAX_SHOWN_BYTES

# They say when and by which schema a row was written, and not what is in it.
NOT_COMPARED: Final = frozenset({"ingest_time", "_schema_version"})
_NUMBER: Final = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_EXACT: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class CellDifference:
    """A cell that differs: the row's place in the tables that were compared, and both values as texts."""

    place: int
    column: str
    running: str | None
    new: str | None


def compare_rows(
    running: pa.Table, new: pa.Table, schema: RowSchema, may_differ: Callable[[str], bool]
) -> Iterator[CellDifference]:
    """Yield each cell in which row N of ``running`` differs from row N of ``new``.

    ``schema`` has the columns of both; a column that one of the tables lacks is null there. Columns for which
    ``may_differ`` returns true are passed over, and those that say when a row was written. Names are compared
    without regard to case.
    """
    ours, theirs = ({name.lower(): name for name in table.column_names} for table in (new, running))
    for field in schema.fields:
        if field.name in NOT_COMPARED or may_differ(field.name):
            continue
        key = field.name.lower()
        left = running.column(theirs[key]) if key in theirs else None
        right = new.column(ours[key]) if key in ours else None
        if left is not None and right is not None and left.type == right.type and left.equals(right):
            continue
        cells = zip(_cells(left, running.num_rows), _cells(right, new.num_rows), strict=True)
        for place, (before, after) in enumerate(cells):
            if plain_cell(before, field) != plain_cell(after, field):
                yield CellDifference(place, field.name, shown_cell(before), shown_cell(after))


def joined_schema(running: RowSchema, new: RowSchema) -> RowSchema:
    """Return the columns of both, those of ``new`` first: types are the new release's where both have a column."""
    known = {field.name.lower() for field in new.fields}
    return RowSchema((*new.fields, *(field for field in running.fields if field.name.lower() not in known)))


def plain_cell(cell: Any, field: Field) -> Any:
    """Return ``cell`` as every warehouse and the decoder have it: JSON by its values, no list as an empty one.

    Example:
        >>> plain_cell('{"b": 1.0, "a": []}', Field("f", "JSON"))
        '{"a": [], "b": 1}'
    """
    if field.mode == "REPEATED":
        return [_plain_one(element, field) for element in cell or ()]
    return _plain_one(cell, field)


def _plain_one(cell: Any, field: Field) -> Any:
    if cell is None:
        return None
    if field.type == "RECORD" and isinstance(cell, Mapping):
        found = {name.lower(): value for name, value in cell.items()}
        known = {
            child.name.lower(): plain_cell(found.pop(child.name.lower(), None), child) for child in field.fields
        }
        # A field that the new release lacks is a difference where it has a value.
        return known | {name: value for name, value in found.items() if value is not None and value != []}
    if field.type in _PLAIN and isinstance(cell, str):
        try:
            return _PLAIN[field.type](cell)
        except ValueError:
            return cell
    return "NaN" if isinstance(cell, float) and math.isnan(cell) else cell


def _plain_json(text: str) -> str:
    """Return JSON as every warehouse keeps its values: names sorted, whole numbers exact up to 64 bits."""
    return json.dumps(json.loads(text, parse_int=_number, parse_float=_number), sort_keys=True)


def _number(text: str) -> int | float:
    if text.lstrip("-").isdigit() and abs(int(text)) < _EXACT:
        return int(text)
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < _EXACT else number


def _plain_geography(text: str) -> str:
    """Return well-known text as BigQuery writes it, as far as spaces and numbers go."""
    numbered = _NUMBER.sub(lambda found: repr(float(found.group())), text.upper())
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join(numbered.split()))


_PLAIN: Final[dict[str, Callable[[str], Any]]] = {
    "JSON": _plain_json,
    "TIME": time.fromisoformat,
    "GEOGRAPHY": _plain_geography,
}


def shown_cell(cell: Any) -> str | None:
    """Return ``cell`` for people, cut to 1 KiB; None for null.

    Example:
        >>> shown_cell({"at": datetime(2026, 1, 1), "sku": ["a"]})
        '{"at": "2026-01-01T00:00:00", "sku": ["a"]}'
    """
    if cell is None:
        return None
    plain = _shown(cell)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=str)
    return text.encode(errors="backslashreplace")[:MAX_SHOWN_BYTES].decode(errors="ignore")


def _shown(cell: Any) -> Any:
    if isinstance(cell, bytes):
        return base64.b64encode(cell).decode()
    if isinstance(cell, Mapping):
        return {name: _shown(value) for name, value in cell.items()}
    if isinstance(cell, list):
        return [_shown(value) for value in cell]
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    return str(cell) if isinstance(cell, Decimal) else cell


def _cells(column: pa.ChunkedArray | None, count: int) -> list[Any]:
    return [None] * count if column is None else column.to_pylist()
