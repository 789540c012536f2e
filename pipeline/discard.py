"""Deletes the rows of staging tables that came in since a snapshot, before their messages come again."""

from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from model.archive import ID_COLUMNS, IdSpan
from streams.journal import Journal
from warehouse.rows import RowTables

_COLUMNS: Final = ("_topic", "_message_id", "_publish_time", "_backfill_id", "ingest_time")
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


def discard_staged(tables: RowTables, name: str, journal: Journal, since: datetime) -> int:
    """Delete the rows of the staging table ``name`` that came in since the snapshot; return how many there were.

    The caller holds the lease, and the subscriptions are back at the snapshot, so that every message of these
    rows comes again. ``journal`` is the snapshot's, and ``since`` is when it was taken: a row whose message it
    knows was there before and does not come again, so that with a task's clock ahead of the agent's rows stay
    rather than go. A second call goes on where a crash ended the first.

    Raises:
        WarehouseError: the warehouse failed; the rows are all there still.
    """
    if not tables.open(name).exists():
        return 0
    tables.take(name)
    return tables.delete_since(name, _find_start(tables, name, journal, since))


def _find_start(tables: RowTables, name: str, journal: Journal, since: datetime) -> datetime:
    """Return ``since``, or a moment after the last row from then on that the snapshot knows."""
    start = since
    for batch in tables.read_since(name, _COLUMNS, "_publish_time", IdSpan(_NEVER, since)):
        is_later = pc.greater_equal(batch.column("ingest_time"), since)
        rows = batch.filter(pc.and_(is_later, pc.is_null(batch.column("_backfill_id"))))
        if not rows.num_rows:
            continue
        ids = rows.select(list(_COLUMNS[: len(ID_COLUMNS)])).rename_columns(list(ID_COLUMNS))
        is_known = journal.find_known(pa.table(ids.append_column("table", pa.repeat(name, rows.num_rows))))
        before = rows.column("ingest_time").filter(is_known)
        if len(before):
            start = max(start, pc.max(before).as_py() + timedelta(microseconds=1))
    return start
