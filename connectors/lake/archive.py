"""The archive as a table of the lake: every raw message, its own writer, what a backup asks of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from connectors.lake.data_files import DataFile
from connectors.lake.errors import our_errors
from connectors.lake.files import FILE_SCHEMA, PARTITION_COLUMNS, WrittenFile
from connectors.lake.tables import CONFIGURATION, LakeTable
from model.archive import ID_COLUMNS, Attempt, Change, IdSpan
from model.errors import WarehouseError
from model.read_budget import ReadBudget
from model.table import Partitioning
from model.volume import HourVolumes
from model.window import Window

if TYPE_CHECKING:
    from connectors.lake.volumes import LakeVolumes

__all__ = ["Attempt", "DataFile", "LakeArchive"]


class LakeArchive(LakeTable):
    """The archive in a lake; one object per thread, because it holds a snapshot that its calls move on."""

    def __init__(self, root: str, table: str, partitioning: Partitioning = "day") -> None:
        super().__init__(root, table, partitioning)
        self._volumes: LakeVolumes | None = None

    def another(self) -> "LakeArchive":
        """Return another object for the same table, for another thread."""
        root, dataset, name = self.uri.rsplit("/", 2)
        return LakeArchive(root, f"{dataset}.{name}", self.partitioning)

    def create(self) -> None:
        """Create the table; one that exists is left as it is.

        Raises:
            WarehouseError: it can't be created, or exists with another partitioning.
        """
        partition = PARTITION_COLUMNS[self.partitioning]
        with our_errors("creating the archive"):
            if not self.exists():
                DeltaTable.create(
                    self.uri,
                    schema=Schema.from_arrow(FILE_SCHEMA.append(partition)),
                    mode="ignore",
                    partition_by=[partition.name],
                    name="messages",
                    description="Every raw Pub/Sub message, untouched.",
                    configuration=CONFIGURATION,
                )
            self._log.sync(self._table())
        found = self._table().metadata().partition_columns
        if found != [partition.name]:
            raise WarehouseError(
                f"The archive {self.uri} is partitioned by {found}, not by {partition.name}: "
                "set REFEED_ARCHIVE_PARTITIONING to what it is."
            )

    def differences(self) -> list[Change]:
        """Return what :meth:`create` would do, and what it can't: change the partitioning."""
        if not self.exists():
            return [Change(self.uri, "table", "missing", "created")]
        found, wanted = self._table().metadata().partition_columns, PARTITION_COLUMNS[self.partitioning].name
        if found != [wanted]:
            return [Change(self.uri, "partitioning", ", ".join(found), wanted, is_compatible=False)]
        return []

    def check(self) -> None:
        """Create the table when it is missing: a folder needs nobody's leave."""
        self.create()

    def parse_part(self, fields: Mapping[str, Any]) -> WrittenFile:
        """Return the file that its ``as_json`` described."""
        return WrittenFile.from_json(fields)

    def without(self, part: WrittenFile, is_unwanted: pa.BooleanArray) -> WrittenFile | None:
        """Write a file again without some of its rows and return it instead; None when none are left."""
        writer = self.writer()
        kept = writer.write_without(part, is_unwanted)
        writer.delete(part)
        return kept

    def drop(self, part: WrittenFile) -> None:
        """Delete a file that will not be committed."""
        self.writer().delete(part)

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
        for file in self.data_files():
            yield from pq.read_table(file.path, columns=list(columns), partitioning=None).to_batches()

    def volumes(self, window: Window) -> HourVolumes:
        """Return the volumes of the newest snapshot, from the ends of its files."""
        return self._kept_volumes().read(window)

    def uncounted(self) -> tuple[int, int]:
        """Return how many files, which an earlier Refeed wrote, have no volumes, and their bytes."""
        files = self._kept_volumes().uncounted()
        return len(files), sum(file.size_bytes for file in files)

    def count(self) -> int:
        """Count those files, each by reading its payloads once, and return how many they were."""
        volumes = self._kept_volumes()
        files = volumes.uncounted()
        for file in files:
            volumes.count(file)
        return len(files)

    def _kept_volumes(self) -> "LakeVolumes":
        from connectors.lake.volumes import LakeVolumes

        if self._volumes is None:
            self._volumes = LakeVolumes(self)
        return self._volumes

    def batch_seconds(self, wanted_seconds: float, slots: int) -> float:  # noqa: ARG002
        """Return ``wanted_seconds``: a disk has no quota of files."""
        return wanted_seconds

    def leases(self) -> Any:
        """Return the leases beside the table (:class:`connectors.lake.leases.LakeLeases`)."""
        from connectors.lake.leases import LakeLeases

        return LakeLeases(self)

    def close(self) -> None:
        """Do nothing: there is no connection."""
