"""Rows too large for an append request: loaded beside the table, inserted when their attempt is committed."""

import base64
import io
import json
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from time import monotonic, sleep
from typing import Any, Final

import pyarrow as pa
from google.api_core import exceptions as api
from google.cloud import bigquery

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import JOB_ROLE, SDK_ERRORS, call_bigquery, error_from
from connectors.bigquery.queries.job import QueryJob, find_job, wait_until_done
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import read_table
from connectors.bigquery.writes.batches import RefusedRow
from model.errors import CommitOutcomeUnknownError, TableNotFoundError, WarehouseError, WarehouseUnavailableError

# Longer than an attempt can wait for its commit: BigQuery itself drops pending streams after a day.
_KEEP: Final = timedelta(days=2)
_LOAD_SECONDS: Final = 120.0
_MOST_TRIES: Final = 20
# "Error messages" of Google's documentation: what a job may be sent again for, under another id.
_PASSING_REASONS: Final = frozenset(
    {
        "backendError",
        "internalError",
        "jobBackendError",
        "jobInternalError",
        "jobRateLimitExceeded",
        "quotaExceeded",
        "rateLimitExceeded",
        "resourcesExceeded",
        "tableUnavailable",
    }
)
_NOT_FINITE: Final[Mapping[float, str]] = {math.inf: "Infinity", -math.inf: "-Infinity"}


@dataclass(frozen=True, slots=True)
class LargeRows:
    """Rows in a table of their own that nobody reads; it expires by itself."""

    table: str
    rows: int


def load_large_rows(
    clients: Clients, target: TableId, rows: Sequence[pa.RecordBatch]
) -> tuple[LargeRows | None, list[RefusedRow]]:
    """Load ``rows`` into a new table beside ``target``; return it, and the rows that BigQuery refuses.

    Raises:
        WarehouseUnavailableError, WarehouseError: it can't be done now, or not at all; nothing is visible.
    """
    staged = target.companion(f"large_{uuid.uuid4().hex}")
    fields = _create(clients, staged, target)
    refusals = _load(clients, staged, list(rows), fields)
    count = len(rows) - len(refusals)
    if not count:
        drop_large_rows(clients, str(staged))
        return None, refusals
    return LargeRows(str(staged), count), refusals


def insert_large_rows(clients: Clients, target: TableId, staged: LargeRows, *, job: str, seconds: float) -> None:
    """Insert staged rows into ``target`` once, however many processes call this.

    The job's id is derived from the attempt: BigQuery runs an id once, and a second caller waits for the
    same job. A job that failed has inserted nothing; the next id is tried then.

    Raises:
        CommitOutcomeUnknownError: BigQuery did not say within the time; call it again.
        WarehouseError: the rows can't be inserted.
    """
    ends_at = monotonic() + seconds
    for number in range(1, _MOST_TRIES + 1):
        failed = _run_insert(clients, target, staged, f"{job}-{number}", ends_at)
        if failed is None:
            drop_large_rows(clients, staged.table)
            return
        if failed.details.get("reason") not in _PASSING_REASONS:
            raise failed
        sleep(min(0.1 * 2**number, 10.0))
    raise CommitOutcomeUnknownError(f"Inserting {staged.table} failed {_MOST_TRIES} times.")


def drop_large_rows(clients: Clients, table: str) -> None:
    """Delete a table of staged rows; where that fails it expires."""
    try:
        clients.rest().delete_table(table, not_found_ok=True, **ONCE)
    except SDK_ERRORS:
        return


def _create(clients: Clients, staged: TableId, target: TableId) -> Sequence[Any]:
    """Create the table with the columns of ``target``, and return them."""
    found = read_table(clients, target)
    if found is None:
        raise TableNotFoundError(f"There is no table {target}.")
    table = bigquery.Table(str(staged), schema=found.schema)
    table.description = (
        "Rows that are too large for one append request. Refeed copies them from this table to their own "
        "table. The table expires by itself."
    )
    table.expires = datetime.now(UTC) + _KEEP
    table.labels = clients.connection.labels_for("large_rows")
    table.encryption_configuration = found.encryption_configuration
    call_bigquery(
        lambda: clients.rest().create_table(table, exists_ok=True, **ONCE),
        f"creating table {staged}",
        seconds=_LOAD_SECONDS,
    )
    return tuple(found.schema)


def _load(
    clients: Clients, staged: TableId, rows: list[pa.RecordBatch], fields: Sequence[Any]
) -> list[RefusedRow]:
    """Load ``rows`` in one job; when it is refused find out by loading them one by one which of them it is."""
    error = _run_load(clients, staged, rows, fields)
    if error is None:
        return []
    if len(rows) == 1:
        return [RefusedRow(rows[0], error.message)]
    return [refusal for row in rows for refusal in _load(clients, staged, [row], fields)]


def _run_load(
    clients: Clients, staged: TableId, rows: Sequence[pa.RecordBatch], fields: Sequence[Any]
) -> WarehouseError | None:
    """Return None when the rows are in, the error when BigQuery refuses them; what passes is tried again."""
    # Parquet can't fill a JSON column ("Work with JSON data in GoogleSQL", Limitations); a row of JSON may have
    # 100 MB ("Quotas and limits", Load jobs).
    file = io.BytesIO(_encode_lines(rows, fields))
    config = bigquery.LoadJobConfig(
        source_format="NEWLINE_DELIMITED_JSON",
        write_disposition="WRITE_APPEND",
        create_disposition="CREATE_NEVER",
        labels=clients.connection.labels_for("large_rows"),
    )
    job_id = f"refeed-load-{uuid.uuid4().hex}"
    what = f"loading {len(rows)} large rows into {staged}"
    number = 1

    def call() -> WarehouseError | None:
        nonlocal number
        own_id, job = f"{job_id}-{number}", None
        file.seek(0)
        try:
            try:
                job = clients.rest().load_table_from_file(
                    file, str(staged), job_id=own_id, job_config=config, timeout=_LOAD_SECONDS
                )
            except api.Conflict:
                # BigQuery runs an id once: the answer to an earlier try was lost, or that came late.
                job = clients.rest().get_job(own_id, **ONCE)
            job.result(retry=None, timeout=_LOAD_SECONDS)
        except SDK_ERRORS as exc:
            error = error_from(exc, what, JOB_ROLE)
            # "BigQuery error messages": invalid is what the data itself is refused with.
            if isinstance(exc, api.BadRequest) and not isinstance(error, WarehouseUnavailableError):
                return error
            number += job is not None and job.error_result is not None
            raise
        return None

    return call_bigquery(call, what, seconds=_LOAD_SECONDS, role=JOB_ROLE)


def _run_insert(
    clients: Clients, target: TableId, staged: LargeRows, job_id: str, ends_at: float
) -> WarehouseError | None:
    """Run or join the job ``job_id``; return None when it inserted, its error when it failed for sure."""
    what = f"inserting {staged.rows} large rows into {target}"

    def call() -> WarehouseError | None:
        job = find_job(clients, job_id, what, seconds=0.0)
        if job is None:
            columns = ", ".join(f"`{field.name}`" for field in _fields(clients, staged.table))
            # Table ids are checked names, column names are the table's own.
            sql = f"INSERT INTO `{target}` ({columns}) SELECT {columns} FROM `{staged.table}`"  # noqa: S608
            job = QueryJob(clients, sql, "large_rows", id=job_id).begin()
        wait_until_done(job, what, ends_at=ends_at)
        if job.error_result is None:
            return None
        reason, message = job.error_result.get("reason"), job.error_result.get("message")
        return WarehouseError(f"{what}: {message}", reason=reason)

    try:
        return call_bigquery(call, what, seconds=ends_at - monotonic(), role=JOB_ROLE)
    except WarehouseUnavailableError as exc:
        raise CommitOutcomeUnknownError(exc.message) from exc


def _fields(clients: Clients, staged: str) -> Sequence[Any]:
    found = read_table(clients, TableId.parse(staged, ""))
    if found is None:
        raise WarehouseError(f"The large rows in {staged} are gone, and no job has inserted them.")
    return tuple(found.schema)


def _encode_lines(rows: Iterable[pa.RecordBatch], fields: Sequence[Any]) -> bytes:
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
    if isinstance(cell, date | time):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return format(cell, "f")
    if isinstance(cell, float) and not math.isfinite(cell):
        return _NOT_FINITE.get(cell, "NaN")
    return cell
