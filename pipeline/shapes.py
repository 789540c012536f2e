"""Shapes of JSON objects, which are read off messages, joined, and never become narrower."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self

from model.schema import Field, FieldType
from model.widening import EXACT_FLOAT, describe_name, json_value, scalar_text, to_json
from pipeline.mapping import REFUSED_PREFIXES
from pipeline.paths import field_name

# BIGINT are integers that a FLOAT64 can't hold exactly. TEXT is the text of any scalar, JSON that of any value.
ShapeKind = Literal["INT", "BIGINT", "FLOAT", "BOOL", "TEXT", "RECORD", "JSON"]

_COLUMN_TYPES: Final[Mapping[ShapeKind, FieldType]] = {
    "INT": "INT64",
    "BIGINT": "INT64",
    "FLOAT": "FLOAT64",
    "BOOL": "BOOL",
    "TEXT": "STRING",
    "RECORD": "RECORD",
    "JSON": "JSON",
}
_INT64: Final = 1 << 63
# A record of more fields has keys for names: its fields are data, and would be as many columns.
MAX_FIELDS: Final = 500
# A table of more fields, those in records among them, grows no more: BigQuery takes 10,000, and each is rewritten.
MAX_COLUMNS: Final = 5000
MAX_DEPTH: Final = 14
# A longer name is data. BigQuery's descriptions, which keep the names that columns can't have, end at 1,024.
_MAX_NAME_CHARACTERS: Final = 300
_NAME_CHARACTERS: Final = 120
_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9_]")
# A prototype is an example to look at.
_PROTOTYPE_CHARACTERS: Final = 100_000
_PROTOTYPE_DEPTH: Final = 100
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_RESERVED: Final = {"ingest_time", "ingest_date", "ingest_hour"}


class UnfitError(Exception):
    """A message has a field or a value that its table has no place for yet."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The kind of the values of one place; ``fields`` are a record's, by their JSON names.

    ``column`` is the place's name in the table; a shape that was only read off a message has none. The shape of a
    whole table ``is_closed`` when no field may be added: new ones stand beside the row then.
    """

    kind: ShapeKind
    is_repeated: bool = False
    column: str = ""
    fields: Mapping[str, "Shape"] = field(default_factory=dict)
    is_closed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        found: dict[str, Any] = {"kind": self.kind}
        if self.is_repeated:
            found["repeated"] = True
        if self.column:
            found["column"] = self.column
        if self.fields:
            found["fields"] = {name: shape.to_json() for name, shape in self.fields.items()}
        if self.is_closed:
            found["closed"] = True
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the shape that :meth:`to_json` described."""
        fields = {name: cls.from_json(shape) for name, shape in found.get("fields", {}).items()}
        is_closed = found.get("closed", False)
        return cls(found["kind"], found.get("repeated", False), found.get("column", ""), fields, is_closed)


EMPTY: Final = Shape("RECORD")


def read_shape(value: Any, depth: int = 0) -> Shape | None:
    """Return the shape of a JSON value, None for one that says nothing: null, an empty list or object.

    Example:
        >>> sorted(attributes(read_shape({"id": 1, "tags": ["a", None], "at": {"x": 0.5}})))
        ['at RECORD', 'at.x FLOAT', 'id INT', 'tags JSON']
    """
    if isinstance(value, dict):
        return _read_record(value, depth)
    if isinstance(value, list):
        return _read_list(value, depth)
    if value is None:
        return None
    if isinstance(value, bool):
        return Shape("BOOL")
    if isinstance(value, int):
        return Shape("INT" if abs(value) <= EXACT_FLOAT else "BIGINT" if -_INT64 <= value < _INT64 else "TEXT")
    return Shape("FLOAT" if isinstance(value, float) else "TEXT")


def join(one: Shape, other: Shape) -> Shape:
    """Return the shape that holds what either holds; columns are those of ``one``.

    INT widens to FLOAT, scalars to TEXT, and everything to JSON.

    Example:
        >>> join(Shape("INT"), Shape("FLOAT")).kind, join(Shape("INT"), Shape("TEXT")).kind
        ('FLOAT', 'TEXT')
        >>> join(Shape("TEXT"), Shape("TEXT", is_repeated=True)).kind
        'JSON'
    """
    if one.is_repeated != other.is_repeated or "JSON" in (one.kind, other.kind):
        return Shape("JSON", column=one.column)
    if one.kind == other.kind == "RECORD":
        fields = dict(one.fields)
        for name, shape in other.fields.items():
            fields[name] = join(fields[name], shape) if name in fields else shape
        if len(fields) > MAX_FIELDS and one.column:
            return Shape("JSON", column=one.column)
        return replace(one, fields=fields)
    if "RECORD" in (one.kind, other.kind):
        return Shape("JSON", column=one.column)
    return replace(one, kind=_wider(one.kind, other.kind))


def grow(table: Shape, other: Shape) -> Shape:
    """Return the named shape of a table that holds ``other`` too.

    Where that would be more than MAX_COLUMNS the table is closed: what it has may become wider, nothing is added.
    """
    joined = join(table, other)
    if not table.is_closed and count_fields(joined) <= MAX_COLUMNS:
        return name_columns(joined)
    return replace(name_columns(join(table, _known_part(other, table))), is_closed=True)


def count_fields(shape: Shape) -> int:
    """Return how many fields a record has, those in its records among them."""
    return sum(1 + count_fields(child) for child in shape.fields.values())


def _known_part(shape: Shape, table: Shape) -> Shape:
    """Return ``shape`` without the fields that ``table`` has not."""
    fields = {
        name: _known_part(child, table.fields[name])
        for name, child in shape.fields.items()
        if name in table.fields
    }
    return replace(shape, fields=fields)


def _wider(one: ShapeKind, other: ShapeKind) -> ShapeKind:
    if one == other:
        return one
    kinds = {one, other}
    if kinds == {"INT", "BIGINT"}:
        return "BIGINT"
    return "FLOAT" if kinds == {"INT", "FLOAT"} else "TEXT"


def attributes(shape: Shape | None, prefix: str = "") -> list[str]:
    """Return every attribute of a record with its type, in no order: ``a.b TEXT``; a list's end in ``[]``."""
    found: list[str] = []
    for name, child in ({} if shape is None else shape.fields).items():
        path = f"{prefix}{name}{'[]' if child.is_repeated else ''}"
        found.append(f"{path} {child.kind}")
        found += attributes(child, f"{path}.")
    return found


def variation_hash(shape: Shape) -> str:
    """Return a hash over the sorted attributes of a record: the same for all messages that look alike."""
    return hashlib.sha256("\n".join(sorted(attributes(shape))).encode()).hexdigest()[:16]


def structure_of(value: Any) -> Any:
    """Return a value's structure, hashable and quickly made: two values of one structure have one shape.

    Example:
        >>> structure_of({"a": [1, 2]}) == structure_of({"a": [3]}), structure_of(1) == structure_of(1 << 60)
        (True, False)
    """
    kind = type(value)
    if kind is dict:
        return tuple([(name, structure_of(child)) for name, child in value.items()])
    if kind is list:
        return (list, frozenset([structure_of(element) for element in value]))
    if kind is int and abs(value) > EXACT_FLOAT:
        return "BIGINT" if -_INT64 <= value < _INT64 else "TEXT"
    return kind


def prototype_of(value: Any) -> str | None:
    """Return the JSON text of a message as an example, None where it is too long or no JSON column may hold it."""
    if not _is_plain(value, _PROTOTYPE_DEPTH):
        return None
    text = to_json(value)
    return text if len(text) <= _PROTOTYPE_CHARACTERS and not _SURROGATE.search(text) else None


def _is_plain(value: Any, depth: int) -> bool:
    """Whether any JSON column takes a value: BigQuery's refuses 500 levels and integers that lose digits."""
    if isinstance(value, dict | list):
        children = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_is_plain(child, depth - 1) for child in children)
    return type(value) is not int or -_INT64 <= value < _INT64


def name_columns(shape: Shape, *, is_top: bool = True) -> Shape:
    """Return the record with a column's name for every field; names that it has stay.

    A name in JSON may be anything; a column's is letters, digits and ``_``, and differs from others by more than
    case. At the top ``_`` in front is for the columns that every row has.
    """
    taken = {child.column.lower() for child in shape.fields.values() if child.column} | (
        _RESERVED if is_top else set()
    )
    fields = {}
    for name, child in shape.fields.items():
        column = child.column or _free_name(name, taken, is_top=is_top)
        taken.add(column.lower())
        fields[name] = name_columns(replace(child, column=column), is_top=False)
    return replace(shape, fields=fields)


def columns(shape: Shape) -> tuple[Field, ...]:
    """Return the columns of a record whose fields are named."""
    return tuple(_column(name, child) for name, child in shape.fields.items())


def compile_fit(
    shape: Shape, *, is_closed: bool = False
) -> Callable[[Mapping[str, Any], str, dict[str, Any]], dict[str, Any]]:
    """Return a function from an object that fits ``shape`` to its cells, by column.

    What says nothing, what has a name that is none, and with ``is_closed`` every field that is new, goes beside.

    Raises:
        UnfitError: (the returned function) the object has what the shape has no place for.
    """
    readers = {
        name: (child.column, field_name(name), _fit(child, is_closed=is_closed))
        for name, child in shape.fields.items()
    }
    template: dict[str, Any] = {child.column: [] if child.is_repeated else None for child in shape.fields.values()}

    def fit(source: Mapping[str, Any], prefix: str, beside: dict[str, Any]) -> dict[str, Any]:
        cells = template.copy()
        for name, value in source.items():
            if name in readers:
                if value is None:
                    continue
                column, place, read = readers[name]
                try:
                    cells[column] = read(value, prefix + place, beside)
                except UnfitError:
                    # An empty list where a number stood says nothing that a table could become wider by.
                    if read_shape(value, 1) is not None:
                        raise
                    beside[prefix + place] = value
            elif is_closed or not _is_name(name) or read_shape(value, 1) is None:
                beside[f"{prefix}{field_name(name)}"] = value
            else:
                raise UnfitError(f"{prefix}{name}")
        return cells

    return fit


def _read_record(value: Mapping[str, Any], depth: int) -> Shape | None:
    if depth >= MAX_DEPTH or (depth and len(value) > MAX_FIELDS):
        return Shape("JSON") if value else None
    found = {name: read_shape(child, depth + 1) for name, child in value.items() if _is_name(name)}
    fields = {name: shape for name, shape in found.items() if shape is not None}
    return Shape("RECORD", fields=fields) if fields or not depth else None


def _read_list(value: list[Any], depth: int) -> Shape | None:
    if not value:
        return None
    found: Shape | None = None
    for element in value:
        # A list in a table has neither null nor lists in it.
        if element is None or isinstance(element, list):
            return Shape("JSON")
        # Only an object can say nothing here, and an object it is.
        shape = read_shape(element, depth + 1) or EMPTY
        found = shape if found is None else join(found, shape)
    if found is None or found.kind == "JSON" or found == EMPTY:
        return Shape("JSON")
    return replace(found, is_repeated=True)


def _is_name(name: str) -> bool:
    """Whether a field in JSON may get a column; half a surrogate pair has no place in any text."""
    return len(name) <= _MAX_NAME_CHARACTERS and not _SURROGATE.search(name)


def _free_name(name: str, taken: set[str], *, is_top: bool) -> str:
    column = _NOT_A_NAME.sub("_", name)[:_NAME_CHARACTERS]
    is_reserved = column.lower().startswith(REFUSED_PREFIXES)
    if is_reserved or (is_top and (not column or column[0] == "_" or column[0].isdigit())):
        column = f"x{column}"
    elif not column or column[0].isdigit():
        column = f"_{column}"
    free, number = column, 2
    while free.lower() in taken:
        free, number = f"{column}_{number}", number + 1
    return free


def _column(name: str, shape: Shape) -> Field:
    mode: Literal["REPEATED", "NULLABLE"] = "REPEATED" if shape.is_repeated else "NULLABLE"
    description = describe_name(name, shape.column)
    return Field(shape.column, _COLUMN_TYPES[shape.kind], mode, description, (), columns(shape))


def _fit(shape: Shape, *, is_closed: bool) -> Callable[[Any, str, dict[str, Any]], Any]:
    if shape.kind == "JSON":
        return lambda value, _path, _beside: None if value == [] else to_json(json_value(value))
    if not shape.is_repeated:
        return _fit_one(shape, is_closed=is_closed)
    one = _fit_one(shape, is_closed=is_closed)

    def fit_all(value: Any, path: str, beside: dict[str, Any]) -> list[Any]:
        if not isinstance(value, list) or None in value:
            raise UnfitError(path)
        return [one(element, f"{path}[{at}]", beside) for at, element in enumerate(value)]

    return fit_all


def _fit_one(shape: Shape, *, is_closed: bool) -> Callable[[Any, str, dict[str, Any]], Any]:
    kind = shape.kind
    if kind == "RECORD":
        fit = compile_fit(shape, is_closed=is_closed)

        def fit_record(value: Any, path: str, beside: dict[str, Any]) -> dict[str, Any]:
            if type(value) is not dict:
                raise UnfitError(path)
            return fit(value, f"{path}.", beside)

        return fit_record
    if kind == "TEXT":
        return _fit_text
    low, high = {
        "INT": (-EXACT_FLOAT, EXACT_FLOAT),
        "BIGINT": (-_INT64, _INT64 - 1),
        "FLOAT": (-EXACT_FLOAT, EXACT_FLOAT),
    }.get(kind, (0, -1))

    def fit_scalar(value: Any, path: str, beside: dict[str, Any]) -> Any:  # noqa: ARG001  one signature for all
        found = type(value)
        if found is int and low <= value <= high:
            return float(value) if kind == "FLOAT" else value
        if (found is float and kind == "FLOAT") or (found is bool and kind == "BOOL"):
            return value
        raise UnfitError(path)

    return fit_scalar


def _fit_text(value: Any, path: str, beside: dict[str, Any]) -> Any:  # noqa: ARG001  one signature for all
    found = type(value)
    if found is str:
        return value
    if found in (dict, list):
        raise UnfitError(path)
    return scalar_text(value)
