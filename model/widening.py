"""Columns that become wider: which type may become which, and what a cell is then."""

import json
import math
import re
from dataclasses import replace
from typing import Any, Final

from model.schema import Evolution, Field, RowSchema, evolution_error

# Integers up to here are the same number as a FLOAT64.
EXACT_FLOAT: Final = 1 << 53
_SCALARS: Final = ("INT64", "FLOAT64", "BOOL")
_INT64: Final = 1 << 63
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_FRACTION: Final = re.compile(r"-?[0-9](?:[0-9]{0,20}\.[0-9]{1,20}|(?:\.[0-9]{1,20})?e[+-][0-9]{2,3})")

_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def to_json(value: Any) -> str:
    """Return the JSON text of any value."""
    return _encode(value)


def is_wider(old: Field, new: Field) -> bool:
    """Whether ``new`` holds every cell of ``old``: the same type, a wider one, or a record of such fields.

    Example:
        >>> number, text = Field("n", "INT64"), Field("n", "STRING")
        >>> is_wider(number, text), is_wider(text, number)
        (True, False)
    """
    if new.type == "JSON" and new.mode != "REPEATED":
        return True
    if (old.mode == "REPEATED") != (new.mode == "REPEATED"):
        return False
    if old.type == new.type == "RECORD":
        wider = {child.name.lower(): child for child in new.fields}
        return all(
            child.name.lower() in wider and is_wider(child, wider[child.name.lower()]) for child in old.fields
        )
    return old.type == new.type or (old.type, new.type) in {
        ("INT64", "FLOAT64"),
        *((scalar, "STRING") for scalar in _SCALARS),
    }


def plan_widening(table: str, current: RowSchema, wanted: RowSchema, evolution: Evolution) -> RowSchema:
    """Return the schema of ``current`` with the types of ``wanted`` where they are wider; no column is added.

    Raises:
        EvolutionRefusedError: ``evolution``, the plan from one to the other, drops a column or narrows one.
    """
    by_name = {field.name.lower(): field for field in wanted.fields}
    changed = {fault.path.split(".")[0].lower() for fault in evolution.refused}
    fields = []
    for field in current.fields:
        if field.name.lower() not in changed:
            fields.append(field)
            continue
        wider = by_name.get(field.name.lower())
        if wider is None or not is_wider(field, wider):
            raise evolution_error(table, evolution)
        fields.append(replace(wider, name=field.name))
    return replace(current, fields=tuple(fields))


def widen_value(value: Any, old: Field, new: Field) -> Any:
    """Return what the cell ``value`` of a column that was ``old`` is in the wider ``new``.

    It is what the same message makes of a column that was that wide from the beginning: a number has one text
    whether it stood as an integer or as a FLOAT64, and is a number again where its text becomes JSON
    (:func:`json_value`); an array without elements, the lack of one in a REPEATED column, is null.
    """
    if value is None or (old.type, old.mode, old.fields) == (new.type, new.mode, new.fields):
        return value
    if new.type == "JSON" and new.mode != "REPEATED":
        found = _unnamed(value, old)
        return None if found is None else to_json(found)
    if old.mode == "REPEATED" and isinstance(value, list):
        one, other = replace(old, mode="NULLABLE"), replace(new, mode="NULLABLE")
        return [widen_value(element, one, other) for element in value]
    if new.type == "RECORD":
        wider = {child.name: child for child in new.fields}
        return {child.name: widen_value(value.get(child.name), child, wider[child.name]) for child in old.fields}
    return float(value) if new.type == "FLOAT64" else scalar_text(value)


def scalar_text(value: Any) -> str:
    """Return the text of a scalar in a column of texts.

    Example:
        >>> scalar_text(1), scalar_text(1.0), scalar_text(0.5), scalar_text(True), scalar_text("1.0")
        ('1', '1', '0.5', 'true', '1.0')
    """
    return value if isinstance(value, str) else to_json(plain_number(value))


def plain_number(value: Any) -> Any:
    """Return a number that is an integer as one, so that it has one text; anything else as it is."""
    return int(value) if type(value) is float and value.is_integer() and abs(value) <= EXACT_FLOAT else value


def json_value(value: Any) -> Any:
    """Return a value as a JSON column has it, which is the same whatever its column was before.

    As texts a number and its own text were one, so they are here: "1" is 1, and "true" is true. An integer that
    INT64 can't hold is its text. A field that is null or an empty list is the lack of one.

    Example:
        >>> json_value({"a": "1", "b": "1.10", "c": [1.0, None], "d": None, "e": [], "f": 1 << 64})
        {'a': 1, 'b': '1.10', 'c': [1, None], 'f': '18446744073709551616'}
    """
    if isinstance(value, dict):
        return {name: json_value(child) for name, child in value.items() if child is not None and child != []}
    if isinstance(value, list):
        return [json_value(child) for child in value]
    if isinstance(value, str):
        return _scalar_of(value)
    return str(value) if type(value) is int and not -_INT64 <= value < _INT64 else plain_number(value)


def _scalar_of(text: str) -> Any:
    """Return the number or the boolean whose text this is, else the text."""
    if text in ("true", "false"):
        return text == "true"
    number: float
    if _WHOLE.fullmatch(text):
        number = int(text)
    elif _FRACTION.fullmatch(text):
        number = float(text)
    else:
        return text
    is_cell = -_INT64 <= number < _INT64 if type(number) is int else math.isfinite(number)
    return number if is_cell and scalar_text(number) == text else text


def describe_name(name: str, column: str) -> str:
    """Return the description that keeps the JSON name of a column, empty where the column has the same.

    Example:
        >>> describe_name("id", "id"), describe_name("+1", "x_1"), describe_name("", "x")
        ('', '+1', '""')
    """
    if name == column:
        return ""
    return json.dumps(name, ensure_ascii=False) if not name or name.startswith('"') else name


def json_name(column: Field) -> str:
    """Return the JSON name of a column whose description :func:`describe_name` gave."""
    text = column.description
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return text or column.name


def _unnamed(value: Any, old: Field) -> Any:
    """Return the JSON value that a cell was made of, None for one that a message lacked."""
    if old.mode == "REPEATED" and isinstance(value, list):
        return [_unnamed(element, replace(old, mode="NULLABLE")) for element in value] or None
    if old.type == "JSON":
        return None if value is None else json.loads(value)
    if old.type == "RECORD" and value is not None:
        found = {json_name(child): _unnamed(value.get(child.name), child) for child in old.fields}
        return {name: cell for name, cell in found.items() if cell is not None}
    return json_value(value)
