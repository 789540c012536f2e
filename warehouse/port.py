"""The port: all that the use cases need of a warehouse, whichever it is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import Any, Protocol

from warehouse.archive import Archive, ArchiveWriter
from warehouse.merges import Merger, MergeSource, UnionViews
from warehouse.queries import Queries, QuerySpace
from warehouse.rows import RowTables, RowWriter
from warehouse.staging import Staging


class Upkeep(Protocol):
    """Upkeep of one table by hand, where no service does it; running backups and queries go on."""

    def compact(self) -> int:
        """Merge small files, and return how many went away."""

    def vacuum(self, *, keep_hours: int, dry_run: bool) -> list[str]:
        """Delete files that no snapshot of the last hours names, and return them; a dry run deletes none."""

    def expire(self, *, before: date) -> int:
        """Take out what was ingested before a day, and return how many files went away."""

    def uncounted(self) -> tuple[int, int]:
        """Return how many files of the archive nobody has counted, and their bytes: those of an earlier Refeed."""

    def count(self) -> int:
        """Count those files by reading each of them once, and return how many they were."""


class Probes(Protocol):
    """Questions that only the real warehouse answers, in a place that is made for them alone."""

    def open(self) -> AbstractContextManager[None]:
        """Make that place for the length of the block, whose end takes it away with all that is in it."""

    def questions(self) -> Sequence[tuple[str, Callable[[], str]]]:
        """Return each question, and what asks it and returns the answer in words."""


class Warehouse(Protocol):
    """One warehouse of one deployment; cheap to make, and nothing is opened before it is asked for.

    :func:`warehouse.open.open_warehouse` gives the one that the settings choose, and
    :func:`warehouse.open.warehouse_from_json` gives it to a driver or a task on another machine.
    """

    @property
    def name(self) -> str:
        """Its name in REFEED_WAREHOUSE, to be shown; nothing is decided by it."""

    @property
    def is_embedded(self) -> bool:
        """Whether it is made of files that Refeed keeps itself, and no service has to be reached."""

    @property
    def archive_table(self) -> str:
        """The archive's name, as the settings give it."""

    def check_store(self) -> str | None:
        """Check that the bucket of the tables keeps two writers apart and return its URI; None without a bucket.

        Raises:
            WarehouseError: it does not, or does not answer.
        """

    def wrong_clock(self) -> str | None:
        """Return what is wrong with this machine's clock by that of the bucket of the tables, None if nothing is.

        Raises:
            WarehouseError: the bucket does not answer.
        """

    def to_json(self) -> dict[str, Any]:
        """Return what :func:`warehouse.open.warehouse_from_json` takes; it holds no secret."""

    def open_archive(self) -> Archive:
        """Return the archive of raw messages; nothing is created or read yet."""

    def archive_writer(self, fields: Mapping[str, Any]) -> ArchiveWriter:
        """Return the archive's writer that its ``as_json`` described, in a task."""

    def open_queries(self, space: QuerySpace) -> Queries:
        """Return what answers queries over the archive and the tables beside it; to be closed."""

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

    def open_upkeep(self, table: str | None) -> Upkeep | None:
        """Return the upkeep of a table of rows, or of the archive; None where the warehouse sees to it by itself.

        Raises:
            TableNotFoundError: there is no such table.
        """

    def open_probes(self, name: str, *, patience_seconds: float) -> Probes | None:
        """Return questions to be asked in a place called ``name``; None where there is nothing to be asked.

        ``patience_seconds`` is how long a question waits for something that may take minutes.
        """
