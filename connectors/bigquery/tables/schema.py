"""The schema of a table of rows as BigQuery has it, and rows as the Storage Write API takes them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import time
from typing import Any, Final

import pyarrow as pa
from google.cloud import bigquery

from model.schema import Field, FieldMode, FieldType, RowSchema

# The API answers with the older of two names ("REST Resource: tables", TableFieldSchema.type).
_OLDER_NAMES: Final[Mapping[str, FieldType]] = {
    "INTEGER": "INT64",
    "FLOAT": "FLOAT64",
    "BOOLEAN": "BOOL",
    "STRUCT": "RECORD",
}
_TIME: Final = pa.time64("us")


def to_bigquery(schema: RowSchema) -> list[Any]:
    """Return the columns of ``schema`` as Google's client takes them."""
    return [_to_bigquery(field) for field in schema.fields]


def from_bigquery(table: Any) -> RowSchema:
    """Return the schema that a table of Google's client has; types under the names that GoogleSQL uses."""
    return RowSchema(tuple(_from_bigquery(field) for field in table.schema), table.description or "")


def tagged(columns: Sequence[Any], like: Sequence[Field], others: Mapping[str, tuple[str, ...]]) -> list[Any]:
    """Return a query's ``columns`` with the policy tags that the columns of these names have in ``like``.

    ``others`` are the tags of columns that ``like`` does not have.
    """
    by_name = {field.name.lower(): field for field in like}
    found = []
    for column in columns:
        source = by_name.get(column.name.lower())
        tags = source.policy_tags if source is not None else others.get(column.name, ())
        children = tagged(column.fields, source.fields if source is not None else (), {})
        found.append(
            bigquery.SchemaField(
                column.name,
                column.field_type,
                mode=column.mode or "NULLABLE",
                policy_tags=bigquery.PolicyTagList(names=tags) if tags else None,
                fields=children,
            )
        )
    return found


def has_tags(fields: Sequence[Field]) -> bool:
    """Whether any of ``fields``, or of their own fields, carries a policy tag."""
    return any(field.policy_tags or has_tags(field.fields) for field in fields)


def _to_bigquery(field: Field) -> Any:
    return bigquery.SchemaField(
        field.name,
        field.type,
        mode=field.mode,
        # Given even when empty: what is left out would stay as it was.
        description=field.description,
        policy_tags=bigquery.PolicyTagList(names=field.policy_tags) if field.policy_tags else None,
        fields=tuple(_to_bigquery(child) for child in field.fields),
    )


def _from_bigquery(field: Any) -> Field:
    kind: FieldType = _OLDER_NAMES.get(field.field_type, field.field_type)
    mode: FieldMode = field.mode or "NULLABLE"
    tags = tuple(sorted(field.policy_tags.names)) if field.policy_tags else ()
    children = tuple(_from_bigquery(child) for child in field.fields)
    return Field(field.name, kind, mode, field.description or "", tags, children)


def time_paths(fields: Sequence[Field], prefix: str = "") -> tuple[str, ...]:
    """Return the dotted paths of every TIME: the one type whose text the Storage Write API does not take."""
    found: list[str] = []
    for field in fields:
        path = f"{prefix}{field.name}"
        if field.type == "TIME":
            found.append(path)
        found += time_paths(field.fields, f"{path}.")
    return tuple(found)


def with_times(table: pa.Table, paths: Sequence[str]) -> pa.Table:
    """Return ``table`` with the texts at ``paths`` (such as 12:30:00.500000) as times."""
    for place, field in enumerate(table.schema):
        own = [path for path in paths if path == field.name or path.startswith(f"{field.name}.")]
        if own:
            kind = _with_times(field.type, field.name, own)
            convert = _cell_converter(kind)
            cells = [convert(cell) for cell in table.column(place).to_pylist()]
            table = table.set_column(place, pa.field(field.name, kind), pa.array(cells, kind))
    return table


def _with_times(kind: pa.DataType, path: str, paths: Sequence[str]) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_with_times(kind.value_type, path, paths))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(c.name, _with_times(c.type, f"{path}.{c.name}", paths)) for c in kind])
    return _TIME if path in paths else kind


def _cell_converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return what makes a cell of ``kind`` of one that has texts for times."""
    if kind == _TIME:
        return lambda cell: None if cell is None else time.fromisoformat(cell)
    if pa.types.is_list(kind):
        one = _cell_converter(kind.value_type)
        return lambda cell: None if cell is None else [one(element) for element in cell]
    if pa.types.is_struct(kind):
        children = {child.name: _cell_converter(child.type) for child in kind}
        return lambda cell: None if cell is None else {name: read(cell[name]) for name, read in children.items()}
    return lambda cell: cell
