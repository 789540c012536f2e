"""Write streams: created, flushed, finalized; and tables that the Storage Write API does not know yet."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from google.api_core import exceptions as api
from google.cloud.bigquery_storage_v1 import types

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import call_bigquery, find_in_bigquery, our_errors
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import read_table
from connectors.patience import retry_passing
from model.errors import TableNotFoundError, TableNotReadyError, WarehouseError

PENDING: Final = types.WriteStream.Type.PENDING
COMMITTED: Final = types.WriteStream.Type.COMMITTED
BUFFERED: Final = types.WriteStream.Type.BUFFERED
# How long a task tries before its batch is given up; its messages come again then.
APPEND_SECONDS: Final = 30.0
# How long a start waits for a table that was created just before, which takes a minute as a rule.
NEW_TABLE_SECONDS: Final = 300.0
# How long after its creation or change a table may be unknown. Google's people have named ten minutes for a table
# that is made again (https://github.com/googleapis/google-cloud-go/issues/876).
_PASSES_AFTER: Final = timedelta(minutes=10)
_EXTRA_FIELDS: Final = types.StorageError.StorageErrorCode.SCHEMA_MISMATCH_EXTRA_FIELDS.name


def create_stream(clients: Clients, table: TableId, kind: Any, *, seconds: float = APPEND_SECONDS) -> str:
    """Create a write stream of ``kind`` and return its name.

    Raises:
        QuotaExceededError: too many were created within the hour.
        TableNotFoundError, WarehousePermissionError, WarehouseUnavailableError, WarehouseError: as they say.
    """
    stream = call_bigquery(
        lambda: clients.write().create_write_stream(
            parent=table.path, write_stream=types.WriteStream(type_=kind), **ONCE
        ),
        f"creating a write stream of {table}",
        seconds=seconds,
    )
    return str(stream.name)


def create_fence_stream(clients: Clients, table: TableId) -> str:
    """Create a COMMITTED stream of a table that may have been created a moment ago, and return its name.

    Raises:
        QuotaExceededError, TableNotFoundError, WarehousePermissionError, WarehouseUnavailableError,
        WarehouseError: as they say.
    """

    def call() -> str:
        try:
            return create_stream(clients, table, COMMITTED)
        except TableNotFoundError as exc:
            raise not_ready(clients, table, None, exc) or exc from exc

    return retry_passing(call, seconds=NEW_TABLE_SECONDS)


def finalize_stream(clients: Clients, stream: str, *, seconds: float = APPEND_SECONDS) -> int | None:
    """Let nothing more into ``stream`` and return how many rows it holds; None when there is no such stream.

    Doing it twice is doing it once.
    """
    answer = find_in_bigquery(
        lambda: clients.write().finalize_write_stream(name=stream, **ONCE),
        f"finalizing {stream}",
        seconds=seconds,
    )
    return None if answer is None else int(answer.row_count)


def is_committed(clients: Clients, streams: Sequence[str]) -> bool | None:
    """Whether PENDING ``streams``, which one commit names, are committed; None when BigQuery has dropped them.

    They are committed all at once, so that the first one speaks for all.
    """
    found = find_in_bigquery(
        lambda: clients.write().get_write_stream(name=streams[0], **ONCE), f"looking up {streams[0]}", seconds=0.0
    )
    return None if found is None else "commit_time" in found


def may_be_gone(refusal: WarehouseError) -> bool:
    """Whether an append may have been refused because its stream is gone, or takes nothing more.

    "A committed stream has a TTL of four days if there is no traffic" (Storage Write API). Which code it has is
    not documented: Beam takes NOT_FOUND, INVALID_ARGUMENT and FAILED_PRECONDITION for it
    (https://github.com/apache/beam/pull/16906). A refusal for another reason is refused again.
    """
    return isinstance(refusal, TableNotFoundError) or bool(refusal.details.get("is_bad_request"))


def flush_stream(clients: Clients, stream: str, end: int) -> bool:
    """Make the rows of the BUFFERED ``stream`` before ``end`` visible, and return True; again is fine.

    False means that they can't be made visible any more, if they were not before: the stream is finalized,
    forgotten, or shorter. A stream's rows become visible in their order: none before ``end`` can be left out.

    Raises:
        WarehouseUnavailableError: not now; whether it was done is not known.
        WarehouseError: BigQuery refuses it.
    """
    with our_errors(f"flushing {stream}"):
        try:
            clients.write().flush_rows(types.FlushRowsRequest(write_stream=stream, offset=end - 1), **ONCE)
        except api.AlreadyExists:
            return True
        except (api.InvalidArgument, api.NotFound, api.OutOfRange, api.FailedPrecondition):
            # Apache Beam takes them so, "the stream was finalized or truncated" (StorageApiFlushAndFinalizeDoFn).
            return False
    return True


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
