"""Rows as newline-delimited JSON, the one format of a load job that fills columns of every type."""

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

_NOT_FINITE: Final[Mapping[float, str]] = {math.inf: "Infinity", -math.inf: "-Infinity"}


def encode_lines(rows: Iterable[pa.RecordBatch], fields: Sequence[Any]) -> bytes:
    """Return ``rows`` as JSON lines for a table of these ``fields`` (Google's SchemaField).

    The texts of JSON columns go in as they are, so that no number in them is rounded and no name left out.
    """
    lines = [_record(row, fields) for batch in rows for row in batch.to_pylist()]
    return "".join(f"{line}\n" for line in lines).encode()


def _record(row: Mapping[str, Any], fields: Sequence[Any]) -> str:
    known = {field.name.lower(): field for field in fields}
    cells = (
        f"{json.dumps(name)}:{_cell(cell, known[name.lower()])}" for name, cell in row.items() if cell is not None
    )
    return f"{{{','.join(cells)}}}"


def _cell(cell: Any, field: Any) -> str:
    if field.mode == "REPEATED":
        return f"[{','.join(_single(element, field) for element in cell)}]"
    return _single(cell, field)


def _single(cell: Any, field: Any) -> str:
    if cell is None:
        return "null"
    if field.field_type in ("RECORD", "STRUCT"):
        return _record(cell, field.fields)
    if field.field_type == "JSON":
        # A line is a row; between the tokens of a JSON text any white space is the same.
        return str(cell).replace("\n", " ").replace("\r", " ")
    return json.dumps(_scalar(cell), ensure_ascii=False)


def _scalar(cell: Any) -> Any:
    """Return a cell as "Load JSON data from Cloud Storage" (Google) wants it."""
    if isinstance(cell, bytes):
        return base64.b64encode(cell).decode()
    if isinstance(cell, date | datetime | time):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return format(cell, "f")
    if isinstance(cell, float) and not math.isfinite(cell):
        return _NOT_FINITE.get(cell, "NaN")
    return cell
