"""The port: all that the use cases ask of where tables live, whichever warehouse it is."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from warehouse.archive import Archive, ArchiveWriter
from warehouse.merges import Merger, MergeSource, UnionViews
from warehouse.rows import RowTables, RowWriter
from warehouse.staging import Staging


class Warehouse(Protocol):
    """One warehouse of one deployment; cheap to make, and nothing is opened before it is asked for.

    :func:`warehouse.open.open_warehouse` gives the one that the settings choose, and
    :func:`warehouse.open.warehouse_from_json` gives it to a driver or a task on another machine.
    """

    @property
    def name(self) -> str:
        """The word for it in REFEED_WAREHOUSE, to be shown; nothing is decided by it."""

    def to_json(self) -> dict[str, Any]:
        """Return what :func:`warehouse.open.warehouse_from_json` takes; it holds no secret."""

    def open_archive(self) -> Archive:
        """Return the archive of raw messages; nothing is created or read yet."""

    def archive_writer(self, fields: Mapping[str, Any]) -> ArchiveWriter:
        """Return the archive's writer that its ``as_json`` described, in a task."""

    def open_row_tables(self, *, stream: str, lease: str) -> RowTables:
        """Return the tables of rows that ``stream`` commits to under ``lease``; nothing is read yet."""

    def row_writer(self, fields: Mapping[str, Any]) -> RowWriter:
        """Return the writer of a table of rows that its ``as_json`` described, in a task."""

    def open_staging(self, tables: Sequence[str], reporting: str) -> Staging:
        """Return the staging ``tables`` of one source, asked about backfills; nothing is read yet."""

    @property
    def has_merge_tasks(self) -> bool:
        """Whether a merge rewrites its partitions as tasks, for which a Spark session is of use."""

    def open_merger(self, folder: Path, spark: Any = None) -> Merger:
        """Return the reporting tables; nothing is created or read yet.

        ``folder`` is this machine's, for the files of a merge under way. With ``spark``, a session whose executors
        see the tables and ``folder``, tasks run there, else as threads here.
        """

    def open_views(self, sources: Iterable[MergeSource]) -> UnionViews:
        """Return the union views of ``sources``; nothing is read yet."""
