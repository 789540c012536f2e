"""Queries whose rows somebody waits for: capped, cancelled when they take too long, a few rows at most."""

import time
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from google.cloud import bigquery

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import JOB_ROLE, our_errors, retry_passing
from connectors.bigquery.selection import QueryParameter, job_error, parameter_of, query_errors
from model.errors import QueryTooLargeError

_RETRY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.1


def read_answer(
    clients: Clients,
    sql: str,
    parameters: Mapping[str, QueryParameter],
    *,
    maximum_bytes_billed: int,
    max_rows: int,
    seconds: float,
) -> tuple[pa.Table, bool]:
    """Return up to ``max_rows`` rows of a query, and whether there are more.

    A query that would read more than ``maximum_bytes_billed`` fails without reading or costing anything.

    Raises:
        QueryTooLargeError: it would read more, or takes longer than ``seconds``; then it is cancelled.
        QueryError: BigQuery refuses the query.
        WarehousePermissionError, WarehouseUnavailableError, QuotaExceededError: as they say.
    """
    config = bigquery.QueryJobConfig(
        query_parameters=[parameter_of(name, given) for name, given in parameters.items()],
        maximum_bytes_billed=maximum_bytes_billed,
        labels=clients.connection.labels_for("query"),
    )

    def start() -> Any:
        with query_errors("starting the query"):
            return clients.rest().query(sql, job_config=config, job_retry=None, **ONCE)

    job = retry_passing(start, seconds=_RETRY_SECONDS)
    _wait(job, seconds)
    if job.error_result is not None:
        raise job_error(job, "The query failed")

    def read() -> pa.Table:
        with our_errors("reading the query's rows", JOB_ROLE):
            rows = job.result(max_results=max_rows + 1, retry=None, timeout=_RETRY_SECONDS)
            return rows.to_arrow(create_bqstorage_client=False)

    table = retry_passing(read, seconds=_RETRY_SECONDS)
    return table.slice(0, max_rows), table.num_rows > max_rows


def _wait(job: Any, seconds: float) -> None:
    ends_at = time.monotonic() + seconds

    def reload() -> None:
        with our_errors("asking for the query", JOB_ROLE):
            job.reload(**ONCE)

    while job.state != "DONE":
        if time.monotonic() > ends_at:
            with our_errors("cancelling the query", JOB_ROLE):
                job.cancel(**ONCE)
            raise QueryTooLargeError(f"The query took longer than {seconds:g} s and was cancelled.")
        time.sleep(_POLL_SECONDS)
        retry_passing(reload, seconds=_RETRY_SECONDS)
