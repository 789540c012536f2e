"""A table's columns as the Storage Write API's TableSchema."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.cloud.bigquery_storage_v1 import types

_TYPES: Final = {"INTEGER": "INT64", "FLOAT": "DOUBLE", "BOOLEAN": "BOOL", "RECORD": "STRUCT"}


def table_schema(fields: Sequence[Mapping[str, Any]]) -> types.TableSchema:
    """Return ``fields`` as the proto."""
    return types.TableSchema(fields=[_field(field) for field in fields])


def _field(field: Mapping[str, Any]) -> types.TableFieldSchema:
    return types.TableFieldSchema(
        name=field["name"],
        type_=types.TableFieldSchema.Type[_TYPES.get(field["type"], field["type"])],
        mode=types.TableFieldSchema.Mode[field["mode"]],
        fields=[_field(child) for child in field.get("fields", ())],
        description=field.get("description") or "",
    )
