"""Columns that become wider: altered in place where BigQuery can, else the table is written again by one job."""

import hashlib
import json
import time
from typing import Any, Final

from connectors.bigquery.client import Clients
from connectors.bigquery.errors import JOB_ROLE, call_bigquery
from connectors.bigquery.queries.job import QueryJob, wait_until_done
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.cells import widened
from connectors.bigquery.tables.schema import from_bigquery
from connectors.bigquery.tables.successors import NamedColumns, places
from model.errors import WarehouseError
from model.schema import Evolution, Field, RowSchema
from model.widening import plan_widening

_JOB_SECONDS: Final = 600.0


def alter_columns(clients: Clients, target: TableId, table: Any, wanted: RowSchema, *, use: str) -> None:
    """Give the columns of ``table`` that BigQuery itself can widen (INT64 to FLOAT64) the type of ``wanted``.

    It is done at once, whatever is in the write buffer, and changes no other column. ``use`` labels the jobs.
    Their ids are made of the table's version: after a crash the next call finds the same job, or nothing to do.

    Raises:
        WarehouseUnavailableError: a job has not ended in time; call it again.
        WarehouseError: a job failed.
    """
    by_name = {field.name.lower(): field for field in wanted.fields}
    for place in places(from_bigquery(table).fields):
        new = by_name.get(place.name.lower())
        if new is not None and is_assignable(place, new):
            sql = f"ALTER TABLE `{target}` ALTER COLUMN `{place.name}` SET DATA TYPE {new.type}"
            _run(clients, table, sql, use=use)


def widen_table(
    clients: Clients, target: TableId, table: Any, wanted: RowSchema, evolution: Evolution, *, use: str
) -> None:
    """Give the columns of ``table`` that become wider the type of ``wanted``; new columns are not its work.

    Where BigQuery can't alter them one query job reads the table and takes its place (Google's "Modifying table
    schemas", *Change a column's data type*), all at once for every reader. No stream may write to the table: rows
    that come within minutes of such a job may be dropped
    (https://cloud.google.com/bigquery/docs/error-messages#metadata-errors-for-streaming-inserts, *Table
    truncation*). ``use`` labels the job, whose id is made of the table's version.

    Raises:
        EvolutionRefusedError: a column would be dropped or become narrower; nothing was changed.
        WarehouseUnavailableError: the job has not ended in time; call it again.
        WarehouseError: the job failed; nothing was changed.
    """
    current = from_bigquery(table)
    widened_schema = plan_widening(str(target), current, wanted, evolution)
    changed = [
        (old, new)
        for old, new in zip(current.fields, widened_schema.fields, strict=True)
        if old.type != new.type or old.fields != new.fields or old.mode != new.mode
    ]
    if all(is_assignable(NamedColumns((old,)), new) for old, new in changed):
        alter_columns(clients, target, table, wanted, use=use)
        return
    columns = [
        f"{widened(f'`{old.name}`', old, new)} AS `{old.name}`"
        for old, new in zip(current.fields, widened_schema.fields, strict=True)
    ]
    sql = f"SELECT {', '.join(columns)} FROM `{target}`"  # noqa: S608  names are checked ones
    _run(
        clients,
        table,
        sql,
        use=use,
        destination=str(target),
        write_disposition="WRITE_TRUNCATE",
        create_disposition="CREATE_NEVER",
        time_partitioning=table.time_partitioning,
        clustering_fields=table.clustering_fields,
    )


def is_assignable(place: NamedColumns, new: Field) -> bool:
    """Whether ALTER COLUMN SET DATA TYPE makes this change: the old type coerces to the new one.

    Of the wider types of :mod:`model.widening` that is FLOAT64 alone
    (https://cloud.google.com/bigquery/docs/reference/standard-sql/conversion_rules).
    """
    old = place.newest
    is_plain = len(place.columns) == 1 and old.mode == new.mode != "REPEATED"
    return is_plain and (old.type, new.type) == ("INT64", "FLOAT64")


def _run(clients: Clients, table: Any, sql: str, *, use: str, **options: Any) -> None:
    target = f"{table.project}.{table.dataset_id}.{table.table_id}"
    digest = hashlib.sha256(json.dumps([target, table.etag, sql]).encode()).hexdigest()
    query = QueryJob(clients, sql, use, id=f"refeed-widen-{digest[:40]}", options=options)
    what = f"making columns of {target} wider"
    ends_at = time.monotonic() + _JOB_SECONDS

    def call() -> Any:
        job = query.begin()
        wait_until_done(job, what, ends_at=ends_at)
        return job

    job = call_bigquery(call, what, seconds=_JOB_SECONDS, role=JOB_ROLE)
    if job.error_result is not None:
        raise WarehouseError(f"{what}: {job.error_result.get('message')}", reason=job.error_result.get("reason"))
