"""Columns that became wider: each wider type has a column of its own, and readers see one for each name."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from model.schema import Field, FieldMode, FieldType, RowSchema
from model.widening import is_wider

# No field of a message gets such a name: pipeline.mapping.REFUSED_PREFIXES has its beginning.
PREFIX: Final = "_refeed_"
# In this order a type becomes another, at most once each, so the name says which of them is the newest.
_ORDER: Final[Sequence[FieldType]] = ("FLOAT64", "STRING", "JSON")
_SUCCESSOR: Final = re.compile(rf"{PREFIX}({'|'.join(_ORDER)})_(.+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NamedColumns:
    """The columns that hold what rows call by one name, the oldest first; a row has its cell in one of them."""

    columns: tuple[Field, ...]

    @property
    def name(self) -> str:
        """The name that rows have for it."""
        return self.columns[0].name

    @property
    def newest(self) -> Field:
        """The column of the widest type, which new rows are written to."""
        return self.columns[-1]

    @property
    def field(self) -> Field:
        """The column that readers see: the newest type under the oldest name."""
        first, last = self.columns[0], self.newest
        children = tuple(place.field for place in places(last.fields))
        return Field(first.name, last.type, last.mode, first.description, first.policy_tags, children)


def places(fields: Sequence[Field]) -> list[NamedColumns]:
    """Return the places of a table or a record, in the order of their oldest columns.

    Example:
        >>> found = places([Field("n", "INT64"), Field("m", "BOOL"), Field("_refeed_string_n", "STRING")])
        >>> [(place.name, place.field.type, place.newest.name) for place in found]
        [('n', 'STRING', '_refeed_string_n'), ('m', 'BOOL', 'm')]
    """
    by_name = {field.name.lower(): field for field in fields}
    found = []
    for field in fields:
        if _predecessor(field, by_name) is None:
            names = (successor_name(field.name, kind).lower() for kind in _ORDER)
            found.append(NamedColumns((field, *(by_name[name] for name in names if name in by_name))))
    return found


def successor_name(name: str, kind: FieldType) -> str:
    """Return the name of the column for the cells of ``name`` that are of a wider type."""
    return f"{PREFIX}{kind.lower()}_{name}"


def read_schema(columns: RowSchema) -> RowSchema:
    """Return the schema that readers of a table with these columns see."""
    return replace(columns, fields=tuple(place.field for place in places(columns.fields)))


def spread(columns: Sequence[Field], wanted: Sequence[Field], *, may_widen: bool) -> list[Field]:
    """Return the columns that hold rows of ``wanted`` where ``columns`` are: the same ones, and new ones.

    With ``may_widen`` a field that became wider gets a successor. A field that can't become what is wanted stands
    under the name of its newest column, so that a comparison with ``columns`` refuses it.
    """
    known = {place.name.lower(): place for place in places(columns)}
    found: list[Field] = []
    for field in wanted:
        place = known.get(field.name.lower())
        found += [field] if place is None else _spread_place(place, field, may_widen=may_widen)
    return found


def successor_paths(columns: Sequence[Field], wanted: Sequence[Field], prefix: str = "") -> list[tuple[str, str]]:
    """Return the dotted path of each field of ``wanted`` that is written to a successor, and that one's name.

    A writer that does not know the newest type yet goes on with the column of its own.
    """
    known = {place.name.lower(): place for place in places(columns)}
    found: list[tuple[str, str]] = []
    for field in wanted:
        place = known.get(field.name.lower())
        if place is None:
            continue
        path = f"{prefix}{field.name}"
        column = next((c for c in reversed(place.columns) if _is_same_type(c, field)), place.newest)
        if column is not place.columns[0]:
            found.append((path, column.name))
        else:
            found += successor_paths(column.fields, field.fields, f"{path}.")
    return found


def to_successors(batches: Sequence[pa.RecordBatch], paths: Sequence[tuple[str, str]]) -> list[pa.RecordBatch]:
    """Return ``batches`` with the fields at ``paths`` under their other names."""
    if not paths or not batches:
        return list(batches)
    names = dict(paths)
    schema = pa.schema([_renamed(field, field.name, names) for field in batches[0].schema])
    # Names are no part of a serialised batch: read with another schema it has others, however deep they are.
    return [pa.ipc.read_record_batch(batch.serialize(), schema) for batch in batches]


def _predecessor(field: Field, by_name: Mapping[str, Field]) -> Field | None:
    """Return the column that ``field`` succeeds, None for one that holds what its own name says."""
    found = _SUCCESSOR.fullmatch(field.name)
    return by_name.get(found[2].lower()) if found else None


def _spread_place(place: NamedColumns, wanted: Field, *, may_widen: bool) -> list[Field]:
    *older, newest = place.columns
    name = place.name
    if _is_same_type(newest, wanted):
        children = tuple(spread(newest.fields, wanted.fields, may_widen=may_widen))
        newest = replace(wanted, name=newest.name, fields=children)
    elif may_widen and is_wider(place.field, wanted):
        older.append(newest)
        newest = replace(wanted, name=successor_name(name, wanted.type), mode=_lackable(wanted))
    else:
        newest = replace(wanted, name=newest.name)
    first, *later = [*(replace(column, mode=_lackable(column)) for column in older), newest]
    return [
        replace(first, description=wanted.description, policy_tags=wanted.policy_tags),
        *(
            replace(
                column,
                description=f"The values of {name} in rows that were written after the type changed to "
                f"{column.type}.",
                policy_tags=wanted.policy_tags,
            )
            for column in later
        ),
    ]


def _is_same_type(one: Field, other: Field) -> bool:
    return (one.type, one.mode == "REPEATED") == (other.type, other.mode == "REPEATED")


def _lackable(column: Field) -> FieldMode:
    return "REPEATED" if column.mode == "REPEATED" else "NULLABLE"


def _renamed(field: Any, path: str, names: Mapping[str, str]) -> Any:
    return field.with_name(names.get(path, field.name)).with_type(_renamed_type(field.type, path, names))


def _renamed_type(kind: pa.DataType, path: str, names: Mapping[str, str]) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_renamed_type(kind.value_type, path, names)))
    if pa.types.is_struct(kind):
        return pa.struct([_renamed(child, f"{path}.{child.name}", names) for child in kind])
    return kind
