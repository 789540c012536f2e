"""BigQuery behind the port."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from connectors.bigquery.archive import BigQueryArchive
from connectors.bigquery.row_tables import BigQueryRowTables
from connectors.bigquery.row_writer import BigQueryRowWriter
from connectors.bigquery.writer import BigQueryWriter
from model.audit import audits_table
from model.settings import BigQuerySettings, Settings
from model.table import Partitioning
from warehouse.merges import MergeSource

if TYPE_CHECKING:
    from connectors.bigquery.staging import BigQueryStaging
    from warehouse.bigquery.merger import BigQueryMerger
    from warehouse.bigquery.views import BigQueryViews

NAME: Final = "bigquery"


@dataclass(frozen=True, slots=True)
class BigQueryWarehouse:
    """Tables in BigQuery; a name without a project is in ``project``."""

    project: str
    settings: BigQuerySettings
    archive_table: str
    dead_letter_table: str
    partitioning: Partitioning

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the BigQuery that ``settings`` name.

        Raises:
            SettingsError: they name half of a stand-in.
        """
        settings.bigquery.check_hosts()
        return cls(
            settings.project,
            settings.bigquery,
            settings.archive_table,
            settings.dead_letter_table,
            settings.archive_partitioning,
        )

    @property
    def name(self) -> str:
        """``bigquery``."""
        return NAME

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return {"warehouse": NAME, **asdict(self)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the warehouse that :meth:`to_json` described."""
        given = fields["settings"]
        labels = tuple((key, value) for key, value in given["labels"])
        settings = BigQuerySettings(**{**given, "labels": labels})
        rest = {name: value for name, value in fields.items() if name not in {"warehouse", "settings"}}
        return cls(settings=settings, **rest)

    def open_archive(self) -> BigQueryArchive:
        """Return the archive."""
        return BigQueryArchive(self.project, self.archive_table, self.settings, self.partitioning)

    def archive_writer(self, fields: Mapping[str, Any]) -> BigQueryWriter:
        """Return the archive's writer."""
        return BigQueryWriter.from_json(fields)

    def open_row_tables(self, *, stream: str, lease: str) -> BigQueryRowTables:
        """Return the tables of rows; their leases lie beside the dead letters."""
        return BigQueryRowTables(
            self.project, self.dead_letter_table, self.settings, self.partitioning, stream=stream, lease=lease
        )

    def row_writer(self, fields: Mapping[str, Any]) -> BigQueryRowWriter:
        """Return the writer of a table of rows."""
        return BigQueryRowWriter.from_json(fields)

    def open_staging(self, tables: Sequence[str], reporting: str) -> "BigQueryStaging":
        """Return the staging tables of one source, over clients that the whole process shares."""
        from connectors.bigquery.client import Connection, process_clients
        from connectors.bigquery.entity_table import BigQueryEntityTable
        from connectors.bigquery.staging import BigQueryStaging, StagingTexts
        from connectors.bigquery.tables import TableId
        from sql.staged import render_landed, render_merged, render_revert

        texts = [
            StagingTexts(table, render_landed(str(table)), render_merged(str(table)), render_revert(str(table)))
            for table in (TableId.parse(name, self.project) for name in tables)
        ]
        clients = process_clients(Connection.of(self.project, self.settings))
        return BigQueryStaging(clients, texts, BigQueryEntityTable(clients, reporting, self.settings))

    @property
    def has_merge_tasks(self) -> bool:
        """No: BigQuery merges by itself."""
        return False

    def open_merger(self, folder: Path, spark: Any = None) -> "BigQueryMerger":  # noqa: ARG002  needs neither
        """Return the reporting tables."""
        from warehouse.bigquery.merger import BigQueryMerger

        return BigQueryMerger(self.project, audits_table(self.archive_table), self.settings)

    def open_views(self, sources: Iterable[MergeSource]) -> "BigQueryViews":
        """Return the union views."""
        from warehouse.bigquery.views import BigQueryViews

        return BigQueryViews(self.project, self.settings, sources)
