"""BigQuery behind the port."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from connectors.bigquery.client import Connection
from connectors.bigquery.table_id import TableId
from connectors.bigquery.writes.archive import BigQueryArchive
from connectors.bigquery.writes.archive_writer import BigQueryArchiveWriter
from connectors.bigquery.writes.attempt_notes import ATTEMPT_NOTES_FORMAT
from connectors.bigquery.writes.part_writer import BIGQUERY_PART_FORMAT
from connectors.bigquery.writes.row_writer import BigQueryRowWriter
from connectors.bigquery.writes.stream_tables import BigQueryRowTables
from model.audit import audits_table
from model.format import Format
from model.settings import BigQuerySettings, Settings, read_settings
from model.table import DEFAULT_DEAD_LETTER_TABLE, Partitioning
from warehouse.merges import MergeSource
from warehouse.queries import QuerySpace

if TYPE_CHECKING:
    from connectors.bigquery.probes import BigQueryProbes
    from warehouse.bigquery.merger import BigQueryMerger
    from warehouse.bigquery.queries import BigQueryQueries
    from warehouse.bigquery.staging import BigQueryStaging
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
    name = NAME
    is_embedded = False
    # BigQuery merges by itself.
    has_merge_tasks = False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the BigQuery that ``settings`` name; half of a stand-in is a SettingsError."""
        settings.bigquery.check_hosts()
        return cls(
            settings.project,
            settings.bigquery,
            settings.archive_table,
            settings.dead_letter_table,
            settings.archive_partitioning,
        )

    @classmethod
    def formats(cls) -> Mapping[str, Format]:
        """Return the formats of what a stream keeps of its attempts there."""
        return {"parts": BIGQUERY_PART_FORMAT, "attempts": ATTEMPT_NOTES_FORMAT}

    def check_store(self) -> None:
        """Return None: BigQuery keeps writers apart."""

    def wrong_clock(self) -> None:
        """Return None: there is no bucket."""

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

    @classmethod
    def from_place(cls, place: Mapping[str, Any]) -> Self:
        """Return the BigQuery that a specification of an earlier Refeed names: a connection, and the archive."""
        connection = Connection.from_json(place["connection"])
        given = {name: value for name, value in asdict(connection).items() if name != "project"}
        settings = replace(read_settings({}, home=Path()).bigquery, **given)
        return cls(connection.project, settings, place["table"], DEFAULT_DEAD_LETTER_TABLE, "day")

    @property
    def connection(self) -> Connection:
        """The connection of every client."""
        return Connection.of(self.project, self.settings)

    @property
    def archive(self) -> TableId:
        """The archive, whose dataset keeps selections too."""
        return TableId.parse(self.archive_table, self.project)

    def open_archive(self) -> BigQueryArchive:
        """Return the archive."""
        return BigQueryArchive(self.project, self.archive_table, self.settings, self.partitioning)

    def archive_writer(self, fields: Mapping[str, Any]) -> BigQueryArchiveWriter:
        """Return the archive's writer."""
        return BigQueryArchiveWriter.from_json(fields)

    def open_queries(self, space: QuerySpace) -> "BigQueryQueries":
        """Return queries that BigQuery runs and bills."""
        from warehouse.bigquery.queries import BigQueryQueries

        return BigQueryQueries(self, space)

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
        from connectors.bigquery.client import process_clients
        from connectors.bigquery.tables.entity_table import BigQueryEntityTable
        from warehouse.bigquery.staging import BigQueryStaging

        clients = process_clients(self.connection)
        ids = [TableId.parse(name, self.project) for name in tables]
        return BigQueryStaging(clients, ids, BigQueryEntityTable(clients, reporting, self.settings))

    def open_merger(self, folder: Path, spark: Any = None) -> "BigQueryMerger":  # noqa: ARG002  needs neither
        """Return the reporting tables."""
        from warehouse.bigquery.merger import BigQueryMerger

        return BigQueryMerger(self.project, audits_table(self.archive_table), self.settings)

    def open_views(self, sources: Iterable[MergeSource]) -> "BigQueryViews":
        """Return the union views."""
        from warehouse.bigquery.views import BigQueryViews

        return BigQueryViews(self.project, self.settings, sources)

    def open_upkeep(self, table: str | None) -> None:
        """Return None: BigQuery looks after its tables."""

    def open_probes(self, name: str, *, patience_seconds: float) -> "BigQueryProbes":
        """Return questions to BigQuery that its documentation leaves open, asked in the dataset ``name``."""
        from connectors.bigquery.probes import BigQueryProbes

        return BigQueryProbes(self.connection, name, patience_seconds=patience_seconds)
