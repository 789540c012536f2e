"""Rows of the archive in BigQuery's write buffer: whether a window reaches them, and what a plan says of them."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from sql.validate import ValidatedQuery
from warehouse.figures import QueryNote

# tables.get says how old the buffer's oldest row is, where it says anything. A partition may begin up to a day
# before its rows came in, and clocks differ.
_MARGIN: Final = timedelta(days=2)


def with_write_buffer(query: ValidatedQuery, table: Any, now: datetime) -> tuple[ValidatedQuery, list[QueryNote]]:
    """Return the query that is to run, and the notes about the write buffer.

    ``table`` is the archive as BigQuery describes it. Rows in the buffer have a NULL _PARTITIONTIME, for how long
    nobody promises: a query whose window reaches them is run as the gate has written it with them.
    """
    if query.unbuffered_until is None or not _is_reached(query.unbuffered_until, table, now):
        return query, []
    if query.buffered_text is not None:
        message = (
            f"The window reaches into BigQuery's write buffer ({_rows_text(table)}), whose rows have no "
            "_PARTITIONTIME yet: the query runs with those of them whose ingest_time lies in the window."
        )
        return replace(query, text=query.buffered_text), [QueryNote("write_buffer_added", message)]
    message = (
        f"The window reaches into BigQuery's write buffer ({_rows_text(table)}), whose rows have no "
        "_PARTITIONTIME yet, and the query may leave them out. Add them: "
        "WHERE (_PARTITIONTIME >= @from AND _PARTITIONTIME < @to OR _PARTITIONTIME IS NULL) "
        "AND (_PARTITIONTIME IS NOT NULL OR ingest_time >= @from AND ingest_time < @to)."
    )
    return query, [QueryNote("write_buffer_left_out", message)]


def _is_reached(end: datetime, table: Any, now: datetime) -> bool:
    buffer = None if table is None else table.streaming_buffer
    oldest = now if buffer is None or buffer.oldest_entry_time is None else min(now, buffer.oldest_entry_time)
    return end > oldest - _MARGIN


def _rows_text(table: Any) -> str:
    buffer = None if table is None else table.streaming_buffer
    if buffer is None or buffer.estimated_rows is None:
        return "BigQuery reports no rows in it at the moment"
    return f"about {int(buffer.estimated_rows)} rows in all"
