"""Columns that become wider: altered in place where BigQuery can, else the table is written again by one job."""

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
from model.schema import Evolution, Field, RowSchema
from model.widening import EXACT_FLOAT, json_name, plan_widening

_JOB_SECONDS: Final = 600.0


def widen_table(
    clients: Clients, target: TableId, table: Any, wanted: RowSchema, evolution: Evolution, *, use: str
) -> None:
    """Give the columns of ``table`` that become wider the type of ``wanted``; new columns are not its work.

    Columns that BigQuery itself can widen (INT64 to FLOAT64) are altered in place, whatever is in the write
    buffer. For all others one query job reads the table and takes its place (Google's "Modifying table schemas",
    *Change a column's data type*), all at once for every reader. Its id is made of the table's version: whoever
    comes after a crash finds the same job, or a table that needs none. All rows lie in the partition of the
    rewriting then; ``ingest_time`` stays what it was. ``use`` labels the job.

    Raises:
        EvolutionRefusedError: a column would be dropped or become narrower, or rows are in the write buffer
            still, which the job would not replace; nothing was changed.
        WarehouseUnavailableError: the job has not ended in time; call it again.
        WarehouseError: the job failed; nothing was changed.
    """
    current = from_bigquery(table)
    widened = plan_widening(str(target), current, wanted, evolution)
    changed = [
        (old, new)
        for old, new in zip(current.fields, widened.fields, strict=True)
        if old.type != new.type or old.fields != new.fields or old.mode != new.mode
    ]
    if all(map(_is_assignable, changed)):
        for old, new in changed:
            sql = f"ALTER TABLE `{target}` ALTER COLUMN `{old.name}` SET DATA TYPE {new.type}"
            _run(clients, table, sql, use=use)
        return
    if table.streaming_buffer is not None:
        raise EvolutionRefusedError(
            f"{target} has rows in BigQuery's write buffer; its columns become wider when that is empty.",
            table=str(target),
        )
    columns = [
        f"{_wider(f'`{old.name}`', old, new)} AS `{old.name}`"
        for old, new in zip(current.fields, widened.fields, strict=True)
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
        use_query_cache=False,
    )


def _is_assignable(change: tuple[Field, Field]) -> bool:
    """Whether ALTER COLUMN SET DATA TYPE makes this change: the old type coerces to the new one.

    Of the wider types of :mod:`model.widening` that is FLOAT64 alone
    (https://cloud.google.com/bigquery/docs/reference/standard-sql/conversion_rules).
    """
    old, new = change
    return (old.type, new.type) == ("INT64", "FLOAT64") and old.mode == new.mode != "REPEATED"


def _run(clients: Clients, table: Any, sql: str, *, use: str, **options: Any) -> None:
    target = f"{table.project}.{table.dataset_id}.{table.table_id}"
    digest = hashlib.sha256(json.dumps([target, table.etag, sql]).encode()).hexdigest()
    job_id = f"refeed-widen-{digest[:40]}"
    config = bigquery.QueryJobConfig(labels=clients.connection.labels_for(use), **options)
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
    """Return the expression that makes of ``sql``, which is ``old``, the cell that ``widen_value`` makes."""
    if (old.type, old.mode, old.fields) == (new.type, new.mode, new.fields):
        return sql
    if new.type == "JSON" and new.mode != "REPEATED":
        return _json(sql, old, depth)
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
    return f"CAST({sql} AS FLOAT64)" if new.type == "FLOAT64" else _text(sql, old)


def _text(sql: str, old: Field) -> str:
    """Return a scalar as a text; of a null TO_JSON_STRING would make the text "null"."""
    text = f"TO_JSON_STRING({sql})"
    if old.type == "FLOAT64":
        text = f"IF({_is_whole(sql)}, CAST(CAST({sql} AS INT64) AS STRING), {text})"
    return f"IF({sql} IS NULL, NULL, {text})"


def _json(sql: str, old: Field, depth: int) -> str:
    """Return ``sql`` as JSON, null where it is null; the fields of records have their JSON names."""
    if old.mode == "REPEATED":
        one = _json(f"e{depth}", replace(old, mode="NULLABLE"), depth + 1)
        return f"IF(ARRAY_LENGTH({sql}) = 0, NULL, TO_JSON({_each(sql, one, depth)}))"
    if old.type == "JSON":
        return sql
    if old.type == "RECORD":
        # Unlike a STRUCT's, the names of a JSON_OBJECT may be any text, the empty one too.
        cells = [
            f"{_literal(json_name(child))}, {_json(f'{sql}.`{child.name}`', child, depth)}" for child in old.fields
        ]
        return f"IF({sql} IS NULL, NULL, JSON_OBJECT({', '.join(cells)}))"
    if old.type == "FLOAT64":
        return f"IF({sql} IS NULL, NULL, IF({_is_whole(sql)}, TO_JSON(CAST({sql} AS INT64)), TO_JSON({sql})))"
    return f"IF({sql} IS NULL, NULL, TO_JSON({sql}))"


def _is_whole(sql: str) -> str:
    return f"ABS({sql}) <= {EXACT_FLOAT} AND {sql} = TRUNC({sql})"


def _each(sql: str, one: str, depth: int) -> str:
    rows = f"UNNEST({sql}) AS e{depth} WITH OFFSET AS o{depth} ORDER BY o{depth}"
    return f"ARRAY(SELECT {one} FROM {rows})"  # noqa: S608  names are checked ones


def _literal(text: str) -> str:
    """Return a text as a GoogleSQL literal, whose escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False)
