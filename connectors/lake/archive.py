"""The archive as a table of the lake: every raw message, its own writer, what a backup asks of it."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from connectors.lake.data_files import FileStatistics, list_statistics, touches
from connectors.lake.errors import our_errors
from connectors.lake.files import FILE_SCHEMA
from connectors.lake.tables import CONFIGURATION, LakeTable
from connectors.lake.volumes import LakeVolumes
from model.archive import ID_COLUMNS, Change, IdSpan
from model.errors import WarehouseError
from model.read_budget import ReadBudget
from model.volume import HourVolumes
from model.window import Window


class LakeArchive(LakeTable):
    """The archive in a lake; one object per thread."""

    def create(self) -> None:
        """Create the table; one that exists is left as it is.

        Raises:
            WarehouseError: it can't be created, or exists with another partitioning.
        """
        if not self.exists():
            description = "Every raw Pub/Sub message, unchanged."
            self._create(FILE_SCHEMA, CONFIGURATION, name="messages", description=description)
        with our_errors(f"opening {self.name}"):
            self._log.sync(self._table())
        found = self._table().metadata().partition_columns
        if found != [self._partition.name]:
            raise WarehouseError(
                f"The archive {self.uri} is partitioned by {found}, not by {self._partition.name}. "
                "Correct REFEED_ARCHIVE_PARTITIONING."
            )

    def differences(self) -> list[Change]:
        """Return what :meth:`create` would do, and what it can't: change the partitioning."""
        if not self.exists():
            return [Change(self.uri, "table", "missing", "created")]
        found, wanted = self._table().metadata().partition_columns, self._partition.name
        if found != [wanted]:
            return [Change(self.uri, "partitioning", ", ".join(found), wanted, is_compatible=False)]
        return []

    def check(self) -> None:
        """Create the table when it is missing: a folder needs no permission."""
        self.create()

    def read_ids(self, span: IdSpan) -> Iterator[pa.RecordBatch]:
        """Yield topic, message_id and publish_time of the rows of the newest snapshot that are in ``span``."""
        return self.read_since(ID_COLUMNS, "publish_time", span)

    def read_messages(
        self,
        topics: Sequence[str],
        window: Window,
        budget: ReadBudget,  # noqa: ARG002  nobody is billed
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ``topics`` that were ingested in ``window``, the oldest files first."""
        wanted = pa.array(topics, pa.string())
        for batch in self.read_between(FILE_SCHEMA.names, "ingest_time", window):
            kept = batch.filter(pc.is_in(batch.column("topic").cast(pa.string()), value_set=wanted))
            if kept.num_rows:
                yield kept

    def count_rows(self) -> int:
        """Return how many rows the newest snapshot holds, by its log."""
        return sum(file.rows for file in self.data_files())

    def scan(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of every row of the newest snapshot, from its files."""
        yield from self.writer().read_columns([self._name(file) for file in self.data_files()], columns)

    def volumes(self, window: Window) -> HourVolumes:
        """Return the volumes of the newest snapshot, from the ends of its files."""
        return self._volumes.read(window)

    def statistics(self, window: Window) -> list[FileStatistics]:
        """Return what the newest snapshot's log says of the files whose partitions touch ``window``."""
        if not self.exists():
            return []
        with our_errors("reading the archive's log"):
            found = list_statistics(self._table(), self.uri, self.partitioning)
        return [each for each in found if touches(each.file.partition, self.partitioning, window)]

    def uncounted(self) -> tuple[int, int]:
        """Return how many files, which an earlier Refeed wrote, have no volumes, and their bytes."""
        files = self._volumes.uncounted()
        return len(files), sum(file.size_bytes for file in files)

    def count(self) -> int:
        """Count those files, each by reading its payloads once, and return how many they were."""
        files = self._volumes.uncounted()
        for file in files:
            self._volumes.count(file)
        return len(files)

    @cached_property
    def _volumes(self) -> LakeVolumes:
        return LakeVolumes(self)

    def batch_seconds(self, wanted_seconds: float, slots: int) -> float:  # noqa: ARG002
        """Return ``wanted_seconds``: a disk has no quota of files."""
        return wanted_seconds

    def close(self) -> None:
        """Do nothing: there is no connection."""
