"""The rows that one backfill brought into staging tables of a lake: counted, and taken out again."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from connectors.lake.entities import EntityTable
from connectors.lake.rows import RowTable
from connectors.lake.tables import our_errors
from model.errors import AlreadyMergedError, RevertIncompleteError, WarehouseError
from model.job import created_at
from model.window import Window

_ID: Final = "_backfill_id"
_ROW: Final = "_backfill_row"
# Clocks of two machines may differ by minutes.
_SKEW: Final = timedelta(minutes=10)
_DELETE_TRIES: Final = 3


class LakeStaging:
    """What of a backfill is in the staging tables ``tables`` of one source, and in its reporting table.

    A backfill's rows are younger than the backfill, so only those partitions are read.
    """

    def __init__(self, root: str, tables: Sequence[str], reporting: str) -> None:
        self._root = root
        self._tables = tuple(tables)
        self._reporting = reporting

    def landed_rows(self, backfill_id: str) -> Iterator[Any]:
        """Yield arrays of the ``refeed_row`` of every row that landed, in any order, repeats included."""
        for rows, _ in self._rows(backfill_id):
            yield rows

    def merged_rows(self, backfill_id: str) -> int:
        """Return how many different rows a merge has taken: those that were written before its watermark."""
        reporting = EntityTable(self._root, self._reporting)
        watermark_us = reporting.snapshot().watermark_us if reporting.exists() else 0
        if not watermark_us:
            return 0
        merged = [rows[times <= watermark_us] for rows, times in self._rows(backfill_id)]
        return len(np.unique(np.concatenate(merged))) if merged else 0

    def delete_rows(self, backfill_id: str) -> int:
        """Delete the backfill's rows and return how many there were; a merge under way fails and begins again.

        A lake commits to one table at a time: where one of several fails, those before it are done already.

        Raises:
            AlreadyMergedError: a merge was quicker; rows that it took may be in reporting.
            RevertIncompleteError: some tables are done, and one failed; called again it goes on with that.
            WarehouseError: the lake failed, and nothing was deleted.
        """
        reporting = EntityTable(self._root, self._reporting)
        before = reporting.snapshot().watermark_us if reporting.exists() else 0
        if self.merged_rows(backfill_id):
            raise AlreadyMergedError(f"Rows of {backfill_id} are in the reporting table already.", id=backfill_id)
        deleted, failure = 0, None
        left = list(self._tables)
        try:
            while left:
                deleted += self._delete_from(left[0], backfill_id)
                left.pop(0)
        except WarehouseError as exc:
            if not deleted:
                raise
            failure = exc
        # After the rows are gone: who has read them before can't commit them any more.
        if deleted and reporting.exists() and reporting.overtake() != before:
            raise AlreadyMergedError(
                f"A merge ran while {deleted} rows of {backfill_id} were deleted from staging; reporting may have "
                "them: repair it by another backfill.",
                id=backfill_id,
                deleted=deleted,
            )
        if failure is not None:
            raise RevertIncompleteError(
                f"{deleted} rows of {backfill_id} are deleted from staging; {', '.join(left)} may have more, as "
                f"the lake failed: {failure.message} Revert it again.",
                id=backfill_id,
                deleted=deleted,
                left=left,
            ) from failure
        return deleted

    def _delete_from(self, name: str, backfill_id: str) -> int:
        table = RowTable(self._root, name)
        if not table.exists():
            return 0
        for _ in range(_DELETE_TRIES - 1):
            # A stream that commits at the same moment makes it fail, and nothing is deleted.
            with suppress(WarehouseError):
                return table.delete_where(_ID, backfill_id, since=created_at(backfill_id) - _SKEW)
        return table.delete_where(_ID, backfill_id, since=created_at(backfill_id) - _SKEW)

    def _rows(self, backfill_id: str) -> Iterator[tuple[Any, Any]]:
        """Yield (row numbers, ingest times in microseconds) of the backfill, a file at a time."""
        window = Window(created_at(backfill_id) - _SKEW, datetime.now(UTC) + timedelta(days=1))
        for name in self._tables:
            table = RowTable(self._root, name)
            if not table.exists():
                continue
            for file in table.data_files(window):
                with our_errors(f"reading {file.path}"):
                    found = pq.read_table(
                        file.path, columns=[_ROW, "ingest_time"], filters=pc.field(_ID) == backfill_id
                    )
                found = found.filter(found.column(_ROW).is_valid())
                if found.num_rows:
                    times = found.column("ingest_time").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
                    yield found.column(_ROW).to_numpy(), times.to_numpy()
