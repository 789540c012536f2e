"""The rows that one backfill brought into staging tables of a lake: counted, and taken out again."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from connectors.lake.entities import EntityTable
from connectors.lake.errors import our_errors
from connectors.lake.merged_files import MergedFileLists, MergedFiles
from connectors.lake.reading import OpenFiles, open_files
from connectors.lake.rows import LakeRowTable
from model.errors import AlreadyMergedError, WarehouseError
from model.job import created_at
from model.window import Window
from warehouse.staging import delete_in_turn

_ID: Final = "_backfill_id"
_ROW: Final = "_backfill_row"
_SCHEMA: Final = pa.schema([(_ID, pa.string()), (_ROW, pa.int64()), ("ingest_time", pa.timestamp("us", "UTC"))])
# What made the backfill and what wrote its rows have clocks of their own, which may be hours apart.
_SKEW: Final = timedelta(days=1)
_DELETE_TRIES: Final = 3


class LakeStaging:
    """What of a backfill is in the staging tables ``tables`` of one source, and in its reporting table.

    A backfill's rows are younger than the backfill, so only those partitions are read. A row is merged when a
    merge took the file that it was in, which compaction may have rewritten since: no clock says so.
    """

    def __init__(self, root: str, tables: Sequence[str], reporting: str) -> None:
        self._root = root
        self._tables = tuple(tables)
        self._reporting = reporting

    def landed_rows(self, backfill_id: str) -> Iterator[Any]:
        """Yield arrays of the ``refeed_row`` of every row that landed, a file at a time."""
        present = sorted(self._present(backfill_id))
        with open_files(present) as files:
            for path in present:
                yield _read(files, path, backfill_id)[0]

    def merged_rows(self, backfill_id: str) -> int:
        """Return how many different rows a merge has taken.

        They are rather too few than too many: those of files that compaction replaced and vacuum deleted before
        the next merge has seen the new ones are not known to have been taken.
        """
        return self._merged(backfill_id)[0]

    def delete_rows(self, backfill_id: str) -> int:
        """Delete the backfill's rows and return how many there were; a merge under way fails and begins again.

        A lake commits to one table at a time: where one of several fails, those before it are done already.
        """
        reporting = EntityTable(self._root, self._reporting)
        before = reporting.snapshot().taken_number
        merged, left_over = self._merged(backfill_id)
        if merged:
            raise AlreadyMergedError(f"Rows of {backfill_id} are already in the reporting table.", id=backfill_id)
        if left_over:
            raise AlreadyMergedError(
                f"Rows of {backfill_id} may already be in the reporting table. Refeed can't check this, "
                f"because files that the last merge read no longer exist. Run a merge, and try again.",
                id=backfill_id,
            )
        deletes = {name: partial(self._delete_from, name, backfill_id) for name in self._tables}
        return delete_in_turn(
            backfill_id,
            deletes,
            overtake=lambda: reporting.exists() and reporting.overtake() != before,
            place="the lake",
        )

    def _delete_from(self, name: str, backfill_id: str) -> int:
        table = LakeRowTable(self._root, name)
        if not table.exists():
            return 0
        for _ in range(_DELETE_TRIES - 1):
            # A stream that commits at the same moment makes it fail, and nothing is deleted.
            with suppress(WarehouseError):
                return table.delete_where(_ID, backfill_id, since=created_at(backfill_id) - _SKEW)
        return table.delete_where(_ID, backfill_id, since=created_at(backfill_id) - _SKEW)

    def _merged(self, backfill_id: str) -> tuple[int, bool]:
        """Return how many different rows are merged for sure, and whether more of them may be."""
        reporting = EntityTable(self._root, self._reporting)
        snapshot = reporting.snapshot()
        if not snapshot.watermark_us:
            return 0, False
        present = self._present(backfill_id)
        if not snapshot.taken_number:
            # Merged by a Refeed that kept no lists: the times of rows are all that there is.
            with open_files(sorted(present)) as files:
                found = [_read(files, path, backfill_id) for path in sorted(present)]
            return _count(rows[times <= snapshot.watermark_us] for rows, times in found), False
        taken = MergedFileLists(reporting.uri).read(snapshot.taken_number)
        if taken is None:
            return 0, _has_rows(present, backfill_id)
        wanted = self._taken_paths(backfill_id, taken)
        with open_files(wanted) as files:
            found_rows = {path: _read_if_there(files, path, backfill_id) for path in wanted}
        read = {path: rows for path, rows in found_rows.items() if rows is not None}
        others = frozenset[str]() if len(read) == len(wanted) else present - read.keys()
        return _count(read.values()), _has_rows(others, backfill_id)

    def _present(self, backfill_id: str) -> frozenset[str]:
        """Return the files that staging has now and that may have rows of the backfill."""
        window = Window(created_at(backfill_id) - _SKEW, datetime.max.replace(tzinfo=UTC))
        tables = [table for name in self._tables if (table := LakeRowTable(self._root, name)).exists()]
        return frozenset(file.path for table in tables for file in table.data_files(window))

    def _taken_paths(self, backfill_id: str, taken: MergedFiles) -> list[str]:
        """Return the files that the last merge took, as they were then."""
        first = created_at(backfill_id) - _SKEW
        root = self._root.rstrip("/")
        folders = tuple(f"{LakeRowTable(self._root, name).uri}/" for name in self._tables)
        paths = [f"{root}/{name}" for name, partition in taken.items() if first < partition + timedelta(days=1)]
        return [path for path in paths if path.startswith(folders)]


def _has_rows(paths: frozenset[str], backfill_id: str) -> bool:
    """Whether one of the files has rows of the backfill."""
    with open_files(sorted(paths)) as files:
        return any(len(_read(files, path, backfill_id)[0]) for path in sorted(paths))


def _read_if_there(files: OpenFiles, path: str, backfill_id: str) -> Any | None:
    """Return the row numbers of the backfill in a file, None when vacuum has taken it."""
    with our_errors(f"reading {path}"):
        try:
            return _select(files, path, backfill_id)[0]
        except FileNotFoundError:
            return None


def _read(files: OpenFiles, path: str, backfill_id: str) -> tuple[Any, Any]:
    """Return (row numbers, ingest times in microseconds) of the backfill in a file."""
    with our_errors(f"reading {path}"):
        return _select(files, path, backfill_id)


def _select(files: OpenFiles, path: str, backfill_id: str) -> tuple[Any, Any]:
    # Files that a revert has rewritten say of their texts that they are of a type that can't be compared.
    with files.source(path) as source:
        found = pq.read_table(
            source, columns=_SCHEMA.names[1:], schema=_SCHEMA, filters=pc.field(_ID) == backfill_id
        )
    found = found.filter(found.column(_ROW).is_valid())
    return found.column(_ROW).to_numpy(), found.column("ingest_time").cast(pa.int64()).to_numpy()


def _count(parts: Iterable[Any]) -> int:
    """Return how many different numbers there are in arrays."""
    found = [part for part in parts if len(part)]
    return len(np.unique(np.concatenate(found))) if found else 0
