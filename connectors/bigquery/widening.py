"""Columns that become wider: a table written again by one query job, in the place of what it was."""

import hashlib
import json
import time
from dataclasses import replace
from typing import Any, Final

from google.cloud import bigquery

from connectors.bigquery.client import Clients
from connectors.bigquery.errors import JOB_ROLE, our_errors, retry_passing
from connectors.bigquery.query_jobs import begin_query, wait_until_done
from connectors.bigquery.row_schema import from_bigquery
from connectors.bigquery.tables import TableId
from model.errors import EvolutionRefusedError, WarehouseError
from model.schema import Evolution, Field, RowSchema, evolution_error

_JOB_SECONDS: Final = 600.0


def widen_table(clients: Clients, target: TableId, table: Any, wanted: RowSchema, evolution: Evolution) -> None:
    """Give the columns of ``table`` that change their type the one of ``wanted``; new columns are not its work.

    One query job reads the table and takes its place (Google's "Modifying table schemas", *Change a column's
    data type*), all at once for every reader. Its id is made of the table's version: whoever comes after a
    crash finds the same job, or a table that needs none. All rows lie in the partition of the rewriting then;
    ``ingest_time`` stays what it was.

    Raises:
        EvolutionRefusedError: a column would be dropped, or rows are in the write buffer still, which the job
            would not replace; nothing was changed.
        WarehouseUnavailableError: the job has not ended in time; call it again.
        WarehouseError: the job failed; nothing was changed.
    """
    by_name = {field.name.lower(): field for field in wanted.fields}
    changed = {fault.path.split(".")[0].lower() for fault in evolution.refused}
    if not changed <= by_name.keys():
        raise evolution_error(str(target), evolution)
    if table.streaming_buffer is not None:
        raise EvolutionRefusedError(
            f"{target} has rows in BigQuery's write buffer; its columns become wider when that is empty.",
            table=str(target),
        )
    columns = [
        f"{_wider(f'`{field.name}`', field, by_name[field.name.lower()])} AS `{field.name}`"
        for field in from_bigquery(table).fields
    ]
    sql = f"SELECT {', '.join(columns)} FROM `{target}`"  # noqa: S608  names are checked ones
    digest = hashlib.sha256(json.dumps([str(target), table.etag, sql]).encode()).hexdigest()
    _run(clients, target, table, sql, f"refeed-widen-{digest[:40]}")


def _run(clients: Clients, target: TableId, table: Any, sql: str, job_id: str) -> None:
    config = bigquery.QueryJobConfig(
        destination=str(target),
        write_disposition="WRITE_TRUNCATE",
        create_disposition="CREATE_NEVER",
        time_partitioning=table.time_partitioning,
        use_query_cache=False,
        labels=clients.connection.labels_for("pipeline"),
    )
    what = f"making columns of {target} wider"
    ends_at = time.monotonic() + _JOB_SECONDS

    def call() -> Any:
        with our_errors(what, JOB_ROLE):
            job = begin_query(clients, sql, config, job_id)
            wait_until_done(job, what, ends_at=ends_at)
            return job

    job = retry_passing(call, seconds=_JOB_SECONDS)
    if job.error_result is not None:
        raise WarehouseError(f"{what}: {job.error_result.get('message')}", reason=job.error_result.get("reason"))


def _wider(sql: str, old: Field, new: Field, depth: int = 0) -> str:
    """Return the expression that makes of ``sql``, which is ``old``, a cell of ``new``."""
    if (old.type, old.mode, old.fields) == (new.type, new.mode, new.fields):
        return sql
    if new.type == "JSON" and new.mode != "REPEATED":
        return sql if old.type == "JSON" and old.mode != "REPEATED" else f"TO_JSON({_named(sql, old, depth)})"
    if old.mode == "REPEATED":
        one = _wider(f"e{depth}", replace(old, mode="NULLABLE"), replace(new, mode="NULLABLE"), depth + 1)
        return _each(sql, one, depth)
    if new.type == "RECORD":
        wider = {child.name.lower(): child for child in new.fields}
        cells = [
            f"{_wider(f'{sql}.`{child.name}`', child, wider[child.name.lower()], depth)} AS `{child.name}`"
            for child in old.fields
        ]
        return f"IF({sql} IS NULL, NULL, STRUCT({', '.join(cells)}))"
    return f"CAST({sql} AS FLOAT64)" if new.type == "FLOAT64" else f"TO_JSON_STRING({sql})"


def _named(sql: str, old: Field, depth: int) -> str:
    """Return ``sql`` with the fields of records under their JSON names, which are their descriptions."""
    if old.type != "RECORD":
        return sql
    if old.mode == "REPEATED":
        return _each(sql, _named(f"e{depth}", replace(old, mode="NULLABLE"), depth + 1), depth)
    cells = [
        f"{_named(f'{sql}.`{child.name}`', child, depth)} AS `{_quoted(child.description or child.name)}`"
        for child in old.fields
    ]
    return f"IF({sql} IS NULL, NULL, STRUCT({', '.join(cells)}))"


def _each(sql: str, one: str, depth: int) -> str:
    rows = f"UNNEST({sql}) AS e{depth} WITH OFFSET AS o{depth} ORDER BY o{depth}"
    return f"ARRAY(SELECT {one} FROM {rows})"  # noqa: S608  names are checked ones


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace("`", "\\`")
