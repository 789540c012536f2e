"""Rows that came in since a time: a stream that has moved learns its ids from them, a rollback discards them."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import structlog

from connectors.bigquery.client import Clients
from connectors.bigquery.errors import JOB_ROLE, PATIENCE_SECONDS, our_errors
from connectors.bigquery.queries.job import QueryJob, job_error, typed, wait_until_done
from connectors.bigquery.table_id import TableId
from model.errors import QueryTooLargeError
from model.read_budget import ReadBudget
from model.window import Window

_log = structlog.get_logger(__name__)

_PAGE_ROWS: Final = 50_000
# A partition begins before the rows in it came; a day is the longest one.
_PARTITION: Final = timedelta(days=1)
# The partitions that a time may be in, and the write buffer.
_RECENT: Final = "(_PARTITIONTIME >= @first OR _PARTITIONTIME IS NULL)"
_TOO_MUCH: Final = "Compare fewer hours, or raise REFEED_BIGQUERY_MERGE_MAX_BYTES_BILLED."
_MOVED: Final = (
    "The stream runs in a new home. It must read the ids of all messages that Pub/Sub may deliver again. Raise "
    "REFEED_BIGQUERY_MERGE_MAX_BYTES_BILLED."
)


def read_since(
    clients: Clients,
    table: TableId,
    columns: Sequence[str],
    starts: Mapping[str, datetime],
    *,
    maximum_bytes_billed: int,
) -> Iterator[pa.RecordBatch]:
    """Yield ``columns`` of the rows where a column of ``starts`` is at or after its time, a page at a time.

    One query reads these columns of the partitions since the earliest start, and of the write buffer. It runs when
    the first row is read, and its bytes are logged.

    Raises:
        QueryTooLargeError: it would be billed for more than ``maximum_bytes_billed``; then it reads nothing.
        QueryError, WarehouseError: BigQuery refuses it, there being no such table among others, or failed.
    """
    condition = " OR ".join(f"`{name}` >= @start_{place}" for place, name in enumerate(starts))
    names = ", ".join(f"`{name}`" for name in columns)
    sql = f"SELECT {names} FROM `{table}` WHERE {_RECENT} AND ({condition})"  # noqa: S608  our own names
    values = {
        "first": min(starts.values()) - _PARTITION,
        **{f"start_{place}": start for place, start in enumerate(starts.values())},
    }
    limit = {"maximum_bytes_billed": maximum_bytes_billed}
    job = _run(QueryJob(clients, sql, "learn", typed(values), options=limit), table)
    _log.info(
        "ids_queried",
        table=str(table),
        bytes_processed=int(job.total_bytes_processed or 0),
        bytes_billed=int(job.total_bytes_billed or 0),
    )
    yield from _read_pages(job, f"reading the ids of {table}")


def read_between(
    clients: Clients,
    table: TableId,
    columns: Mapping[str, str],
    window: tuple[str, Window],
    budget: ReadBudget,
    *,
    topics: Sequence[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield ``columns``, names with their expressions over ``t``, of the rows whose time column lies in a window.

    ``window`` is the column's name and the window. Only partitions that began a day before it or later are read,
    and the write buffer. With ``topics`` only their rows are given. The query runs when the first row is read.

    Raises:
        QueryTooLargeError: it would be billed for more than ``budget`` has left; then it reads nothing.
        QueryError, WarehouseError: BigQuery refuses it, there being no such table among others, or failed.
    """
    column, times = window
    selected = ", ".join(f"{sql} AS `{name}`" for name, sql in columns.items())
    of_topics = " OR ".join(f"t.`topic` = @topic_{place}" for place in range(len(topics)))
    sql = (
        f"SELECT {selected} FROM `{table}` AS t WHERE {_RECENT} "  # noqa: S608  our own names
        f"AND t.`{column}` >= @start AND t.`{column}` < @end{f' AND ({of_topics})' if topics else ''}"
    )
    values: dict[str, str | int | datetime] = {
        "first": times.start - _PARTITION,
        "start": times.start,
        "end": times.end,
        **{f"topic_{place}": topic for place, topic in enumerate(topics)},
    }
    # BigQuery takes no limit of 0; one of a byte refuses every query that is billed.
    limit = {"maximum_bytes_billed": max(1, budget.left_bytes)}
    job = _run(QueryJob(clients, sql, "shadow", typed(values), options=limit), table, _TOO_MUCH)
    billed = int(job.total_bytes_billed or 0)
    budget.spend(billed)
    _log.info("rows_queried", table=str(table), bytes_billed=billed)
    yield from _read_pages(job, f"reading rows of {table}")


def delete_since(clients: Clients, table: TableId, since: datetime, *, maximum_bytes_billed: int) -> int:
    """Delete the rows whose ``ingest_time`` is at or after ``since``, and return how many there were.

    "Rows that were recently written using the Storage Write API can be modified using UPDATE, DELETE, or MERGE
    statements": https://cloud.google.com/bigquery/docs/data-manipulation-language#limitations

    Raises:
        QueryTooLargeError: it would be billed for more than ``maximum_bytes_billed``; nothing is deleted.
        QueryError, WarehouseError: BigQuery refuses it, or failed; nothing is deleted.
    """
    sql = f"DELETE FROM `{table}` WHERE {_RECENT} AND ingest_time >= @since"  # noqa: S608  our own name
    values = {"first": since - _PARTITION, "since": since}
    limit = {"maximum_bytes_billed": maximum_bytes_billed}
    job = _run(QueryJob(clients, sql, "rollback", typed(values), options=limit), table)
    return int(job.num_dml_affected_rows or 0)


def _run(query: QueryJob, table: TableId, advice: str = _MOVED) -> Any:
    what = f"querying rows of {table}"
    job = query.start(what)
    wait_until_done(job, what, patience_seconds=PATIENCE_SECONDS)
    if job.error_result is not None:
        failure = job_error(job, what)
        if isinstance(failure, QueryTooLargeError):
            raise QueryTooLargeError(f"{failure.message} {advice}")
        raise failure
    return job


def _read_pages(job: Any, what: str) -> Iterator[pa.RecordBatch]:
    with our_errors(what, JOB_ROLE):
        # The client's own retries: a page that is fetched again is the same page.
        yield from job.result(page_size=_PAGE_ROWS).to_arrow_iterable(bqstorage_client=None)
