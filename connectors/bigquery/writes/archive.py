"""The archive in BigQuery: commits that happen once, under a lease, over any crash."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import structlog

from connectors.bigquery.client import Clients, Connection
from connectors.bigquery.queries.reader import open_session, read_stream
from connectors.bigquery.queries.since import read_between, read_since
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import apply, check_tables, differences
from connectors.bigquery.tables.specs import ATTEMPTS, DEAD_LETTERS, TableSpec, archive_specs, audits_spec
from connectors.bigquery.writes.archive_writer import BigQueryArchiveWriter, WrittenPart
from connectors.bigquery.writes.attempt_notes import AttemptNotes
from connectors.bigquery.writes.attempts import Attempts
from connectors.bigquery.writes.leases import BigQueryLeases
from connectors.bigquery.writes.stream_commit import WriteStreamCommitter, document_of
from connectors.bigquery.writes.volumes import NotedVolumes
from model.archive import ID_COLUMNS, Attempt, Change, IdSpan
from model.errors import WarehouseUnavailableError
from model.read_budget import ReadBudget
from model.settings import BigQuerySettings
from model.table import ARCHIVE_COLUMNS, Partitioning
from model.volume import HourVolumes
from model.window import Window

_log = structlog.get_logger(__name__)
# The table may ask for a filter on its partitions.
_EVERY_PARTITION: Final = "_PARTITIONTIME IS NOT NULL"


class BigQueryArchive:
    """The archive as an ingestion-time partitioned table; one object per thread.

    It keeps what :class:`warehouse.archive.Archive` promises. How a commit happens once is explained in
    :mod:`connectors.bigquery.writes.attempts`.
    """

    def __init__(
        self, project: str, table: str, settings: BigQuerySettings, partitioning: Partitioning = "day"
    ) -> None:
        self.table = TableId.parse(table, project)
        self.uri = f"bigquery://{self.table}"
        self.partitioning = partitioning
        self._settings = settings
        self._clients = Clients(Connection.of(project, settings))
        notes = AttemptNotes(self._clients, self.table.companion(ATTEMPTS))
        self._volumes = NotedVolumes(self._clients, self.table, expiration_days=settings.partition_expiration_days)
        self._attempts = Attempts(self._clients, self.table, notes, WriteStreamCommitter(self._clients))

    def another(self) -> "BigQueryArchive":
        """Return another object for the same table, for another thread."""
        return BigQueryArchive(
            self._clients.connection.project, str(self.table), self._settings, self.partitioning
        )

    def create(self) -> None:
        """Create what is missing of dataset and tables and change what may be changed; again is fine.

        Raises:
            TableMismatchError: something differs that can't be changed; nothing was changed.
        """
        apply(self._clients, self._specs())

    def differences(self) -> list[Change]:
        """Return what :meth:`create` would create or change, and what it can't."""
        return differences(self._clients, self._specs())

    def check(self) -> None:
        """Raise TableNotFoundError or TableMismatchError where 'refeed init' is the next thing to do."""
        check_tables(self._clients, archive_specs(self.table, self.partitioning, self._settings))

    def _specs(self) -> list[TableSpec]:
        archive = archive_specs(self.table, self.partitioning, self._settings)
        return [*archive, audits_spec(self.table, self._settings)]

    def writer(self) -> BigQueryArchiveWriter:
        """Return what appends the parts that :meth:`commit` takes."""
        return BigQueryArchiveWriter(
            self._clients.connection,
            str(self.table),
            self._settings.append_bytes,
            self._settings.streams_per_task,
        )

    def parse_part(self, fields: Mapping[str, Any]) -> WrittenPart:
        """Return the part that its ``as_json`` described."""
        return WrittenPart.from_json(fields)

    def without(self, part: WrittenPart, is_unwanted: pa.BooleanArray) -> WrittenPart | None:  # noqa: ARG002
        """Return None: a stream is committed whole or not at all, and can't be read before."""
        return None

    def drop(self, part: WrittenPart) -> None:
        """Give up a part that will not be committed."""
        self.writer().drop(part)

    def take_lease(self, lease: str) -> int:
        """Take the lease, as :meth:`BigQueryLeases.take_lease` does."""
        return self._attempts.leases.take_lease(lease)

    def lease_epoch(self, lease: str) -> int:
        """Return how many times the lease has been taken."""
        return self._attempts.leases.epoch(lease)

    def leases(self) -> BigQueryLeases:
        """Return the leases beside the archive; taking one also settles what its last holder left."""
        return self._attempts.leases

    def committed_attempt(self, stream: str) -> int:
        """Return the number of the stream's newest attempt that was noted, 0 when there is none."""
        return self._attempts.last_noted(stream)

    def settle(self, attempt: Attempt) -> bool:
        """Return for good whether an attempt that a crash left open is in the archive.

        One that was noted is committed now if it was not; one that was not noted never will be.
        """
        return self._attempts.settle(attempt) is not None

    def read_ids(self, span: IdSpan) -> Iterator[pa.RecordBatch]:
        """Yield topic, message_id and publish_time of the rows in ``span``, and of every dead letter since then.

        Each of the two queries may be billed for REFEED_BIGQUERY_MERGE_MAX_BYTES_BILLED.
        """
        starts = {"publish_time": span.published_since, "ingest_time": span.ingested_since}
        yield from self._read_since(self.table, ID_COLUMNS, starts)
        refused = {"failed_at": min(starts.values())}
        for batch in self._read_since(self.table.companion(DEAD_LETTERS), ["row"], refused):
            for encoded in batch.column("row").to_pylist():
                for row in pa.ipc.open_stream(encoded):
                    yield row.select(list(ID_COLUMNS))

    def read_messages(self, topics: Sequence[str], window: Window, budget: ReadBudget) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ``topics`` that were ingested in ``window``; ``budget`` pays for the query."""
        columns = {column.name: f"t.`{column.name}`" for column in ARCHIVE_COLUMNS}
        during = ("ingest_time", window)
        yield from read_between(self._clients, self.table, columns, during, budget, topics=topics)

    def _read_since(
        self, table: TableId, columns: Sequence[str], starts: Mapping[str, datetime]
    ) -> Iterator[pa.RecordBatch]:
        limit = self._settings.merge_max_bytes_billed
        return read_since(self._clients, table, columns, starts, maximum_bytes_billed=limit)

    def commit(self, parts: Sequence[WrittenPart], attempt: Attempt, ids: pa.Table | None = None) -> None:
        """Add ``parts``: all of them, however long it takes to find out, or nothing.

        ``ids`` (topic, message_id, publish_time) are kept for an earlier Refeed that takes over.

        Raises:
            LeaseLostError: another stream holds the lease; nothing was added and nothing ever will be.
            WarehouseError: nothing was added.
            CommitOutcomeUnknownError: it was noted and not yet seen to its end; :meth:`settle` goes on with it.
        """
        if self._attempts.commit(document_of(parts), attempt, ids) is None:
            raise WarehouseUnavailableError("BigQuery dropped the batch's streams before they were committed.")

    def compact(self, *, max_small_files: int = 0) -> int:  # noqa: ARG002
        """Return 0: BigQuery looks after its own storage."""
        return 0

    def count_rows(self) -> int:
        """Return how many rows the table holds, those of its write buffer left out."""
        return sum(batch.num_rows for batch in self.scan(["topic"]))

    def scan(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of every row by the Storage Read API, those of the write buffer left out."""
        session = open_session(
            self._clients, self.table, max_streams=1, columns=columns, condition=_EVERY_PARTITION
        )
        for stream in session.streams:
            for _, batch in read_stream(self._clients, session, stream):
                yield batch

    def volumes(self, window: Window) -> HourVolumes:
        """Return the volumes of the last 30 days, half a minute old at most, from the notes of the attempts."""
        return self._volumes.read(window)

    def batch_seconds(self, wanted_seconds: float, slots: int) -> float:
        """Return how long batches have to be, that ``slots`` tasks stay within the quota of write streams.

        Each task of a batch creates ``streams_per_task`` streams at most, and one more where rows were refused.
        """
        least = slots * self._settings.streams_per_task * 3600 / self._settings.streams_per_hour
        if least > wanted_seconds:
            _log.warning(
                "batches_made_longer",
                wanted_seconds=wanted_seconds,
                seconds=least,
                why="write streams an hour (REFEED_BIGQUERY_STREAMS_PER_HOUR)",
            )
        return max(wanted_seconds, least)

    def close(self) -> None:
        """End this object's connections."""
        self._clients.close()
