"""Tables that the Storage Write API does not know yet, or not as they are: new ones, and new columns."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from google.cloud.bigquery_storage_v1 import types

from connectors.bigquery.client import Clients
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import read_table
from model.errors import TableNotFoundError, TableNotReadyError, WarehouseError

# How long after its creation or change a table may be unknown. Google's people have named ten minutes for a table
# that is made again (https://github.com/googleapis/google-cloud-go/issues/876).
_PASSES_AFTER: Final = timedelta(minutes=10)
_EXTRA_FIELDS: Final = types.StorageError.StorageErrorCode.SCHEMA_MISMATCH_EXTRA_FIELDS.name


def not_ready(
    clients: Clients, table: TableId, schema: pa.Schema | None, failure: WarehouseError
) -> TableNotReadyError | None:
    """Return what ``failure`` of a write means when it passes by itself, None when it does not.

    A write that finds no table passes while tables.get knows one that is young, one with columns too many while
    tables.get knows all columns of ``schema`` and the table was changed a while ago.
    """
    is_missing = isinstance(failure, TableNotFoundError)
    is_extra = failure.details.get("storage_code") == _EXTRA_FIELDS
    if not is_missing and not is_extra:
        return None
    found = read_table(clients, table)
    if found is None or (is_extra and schema is not None and not _has_fields(found.schema, schema)):
        return None
    since = found.created if is_missing else found.modified
    if since is None or datetime.now(UTC) - since > _PASSES_AFTER:
        return None
    what = "the table is" if is_missing else "its new columns are"
    return TableNotReadyError(f"BigQuery can't write {table} yet, because {what} unknown: {failure.message}")


def _has_fields(known: Iterable[Any], wanted: Iterable[Any]) -> bool:
    by_name = {field.name.lower(): field for field in known}
    for field in wanted:
        found = by_name.get(field.name.lower())
        if found is None or not _has_fields(found.fields, _children(field.type)):
            return False
    return True


def _children(kind: pa.DataType) -> list[Any]:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _children(kind.value_type)
    return list(kind) if pa.types.is_struct(kind) else []
