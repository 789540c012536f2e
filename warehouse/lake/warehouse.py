"""The lake as a warehouse: Delta tables under a path."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from connectors.lake.archive import LakeArchive
from connectors.lake.files import LAKE_PART_FORMAT, LakeArchiveWriter
from connectors.lake.objects import check_conditions, is_bucket, wrong_clock_at
from connectors.lake.row_tables import LakeRowTables
from connectors.lake.rows import LakeRowTable, LakeRowWriter
from connectors.lake.tables import LakeTable
from model.audit import audits_table
from model.errors import TableNotFoundError
from model.format import Format
from model.settings import Settings, read_settings
from model.table import DEFAULT_DEAD_LETTER_TABLE, Partitioning
from warehouse.merges import MergeSource
from warehouse.queries import QuerySpace

if TYPE_CHECKING:
    from warehouse.lake.merger import LakeMerger
    from warehouse.lake.queries import LakeQueries
    from warehouse.lake.staging import LakeStaging
    from warehouse.lake.views import LakeViews

NAME: Final = "lake"


@dataclass(frozen=True, slots=True)
class LakeWarehouse:
    """Delta tables under the path or URL ``lake``; ``query_memory`` is the most that reading them may take."""

    lake: str
    archive_table: str
    dead_letter_table: str
    partitioning: Partitioning
    query_memory: str

    name: ClassVar[str] = NAME
    is_embedded: ClassVar[bool] = True
    # Each partition is one.
    has_merge_tasks: ClassVar[bool] = True

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the lake that ``settings`` name."""
        return cls(
            settings.lake,
            settings.archive_table,
            settings.dead_letter_table,
            settings.archive_partitioning,
            settings.query_memory,
        )

    @classmethod
    def formats(cls) -> Mapping[str, Format]:
        """Return the formats of what a stream keeps of its attempts there."""
        return {"parts": LAKE_PART_FORMAT}

    def check_store(self) -> str | None:
        """Return the lake's URI where it is in a bucket, which refuses a second writer."""
        check_conditions(self.lake)
        return self.lake if is_bucket(self.lake) else None

    def wrong_clock(self) -> str | None:
        """Return what is wrong with this machine's clock by that of the lake's bucket."""
        return wrong_clock_at(self.lake)

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return {"warehouse": NAME, **asdict(self)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the lake that :meth:`to_json` described."""
        return cls(**{name: value for name, value in fields.items() if name != "warehouse"})

    @classmethod
    def from_place(cls, place: Mapping[str, Any]) -> Self:
        """Return the lake that a specification of an earlier Refeed names; it has the archive's place only."""
        memory = read_settings({}, home=Path()).query_memory
        return cls(place["lake"], place["table"], DEFAULT_DEAD_LETTER_TABLE, place["partitioning"], memory)

    def open_archive(self) -> LakeArchive:
        """Return the archive."""
        return LakeArchive(self.lake, self.archive_table, self.partitioning)

    def archive_writer(self, fields: Mapping[str, Any]) -> LakeArchiveWriter:
        """Return the archive's writer."""
        return LakeArchiveWriter(**fields)

    def open_queries(self, space: QuerySpace) -> "LakeQueries":
        """Return queries by the lake's own engine, on this machine."""
        from warehouse.lake.queries import LakeQueries

        return LakeQueries(self, space)

    def open_row_tables(self, *, stream: str, lease: str) -> LakeRowTables:
        """Return the tables of rows; their leases lie beside the dead letters."""
        return LakeRowTables(self.lake, self.dead_letter_table, self.partitioning, stream=stream, lease=lease)

    def row_writer(self, fields: Mapping[str, Any]) -> LakeRowWriter:
        """Return the writer of a table of rows."""
        return LakeRowWriter(**fields)

    def open_staging(self, tables: Sequence[str], reporting: str) -> "LakeStaging":
        """Return the staging tables of one source."""
        from warehouse.lake.staging import LakeStaging

        return LakeStaging(self.lake, tables, reporting)

    def open_merger(self, folder: Path, spark: Any = None) -> "LakeMerger":
        """Return the reporting tables."""
        from connectors.lake.engine import EngineLimits
        from warehouse.lake.merger import LakeMerger
        from warehouse.lake.tasks import LocalTasks, SparkTasks

        return LakeMerger(
            self.lake,
            audits_table(self.archive_table),
            folder=folder,
            tasks=LocalTasks() if spark is None else SparkTasks(spark),
            limits=EngineLimits(self.query_memory, folder / "spill"),
        )

    def open_views(self, sources: Iterable[MergeSource]) -> "LakeViews":
        """Return the union views."""
        from warehouse.lake.views import LakeViews

        return LakeViews(self.lake, sources)

    def open_upkeep(self, table: str | None) -> LakeTable:
        """Return the archive, or the upkeep of the table that is named: one of rows, or a reporting table.

        Raises:
            TableNotFoundError: there is no such table.
        """
        from connectors.lake.entities import EntityTable, ReportingUpkeep

        if table is None:
            return self.open_archive()
        found = LakeRowTable(self.lake, table, self.partitioning)
        if not re.fullmatch(r"\w+\.\w+", table) or not found.exists():
            raise TableNotFoundError(f"There is no table {table} in {self.lake}.")
        if EntityTable(self.lake, table).is_reporting():
            return ReportingUpkeep(self.lake, table, self.partitioning)
        return found

    def open_probes(self, name: str, *, patience_seconds: float) -> None:
        """Return None: tests ask a folder all that there is to ask."""
