"""The archive of a warehouse: every raw message, committed once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from model.archive import Attempt, Change, IdSpan
from model.read_budget import ReadBudget
from model.volume import HourVolumes
from model.window import Window


class LeaseStore(Protocol):
    """Where leases are kept: with the tables, so that streams of other homes and machines see them."""

    def read_lease(self, name: str) -> bytes | None:
        """Return what the holder of the highest epoch wrote last, None before anything was written."""

    def write_lease(self, name: str, epoch: int, content: bytes) -> None:
        """Replace what the holder of ``epoch`` wrote, or raise LeaseLostError where a higher one was taken."""

    def take_lease(self, name: str) -> int:
        """Return a new epoch; commits under an older one are refused from now on."""

    def now(self) -> float:
        """Return the time by which leases run out, in Unix seconds: the same for all machines, where it can be."""


class ArchivePart(Protocol):
    """What one task wrote and no reader sees yet, small and JSON-ready; ``rows`` include ``dead_letters``."""

    @property
    def rows(self) -> int:
        """How many messages it holds."""

    @property
    def size_bytes(self) -> int:
        """How many bytes it takes, as the warehouse counts them."""

    @property
    def dead_letters(self) -> int:
        """How many of its messages the warehouse refuses for good; they wait with their reason."""

    def as_json(self) -> dict[str, Any]:
        """Return what the archive's ``parse_part`` takes."""


class ArchiveWriter(Protocol):
    """What a task writes with; picklable."""

    @property
    def is_by_topic(self) -> bool:
        """Whether a part holds its rows by topic and subscription, and not in the order in which they came."""

    def as_json(self) -> dict[str, Any]:
        """Return what the warehouse's ``archive_writer`` takes."""

    def write(self, parts: Iterable[tuple[str, str, pa.RecordBatch]]) -> ArchivePart:
        """Write (topic, subscription, rows) durably and invisibly, while they come where that is possible.

        Raises:
            WarehouseError: it can't; nothing of it will ever be seen.
        """


class Archive(Protocol):
    """Where messages are kept: parts are committed once, all or none, by the holder of the lease.

    One object per thread. An attempt is its stream, its number and its lease's epoch; ``commit`` of one raises
    before anything is added, or CommitOutcomeUnknownError, and then only :meth:`settle` decides.
    Once :meth:`take_lease` has returned nothing is committed under an older epoch any more.
    """

    uri: str

    def another(self) -> "Archive":
        """Return another object for the same table, for another thread."""

    def create(self) -> None:
        """Create what is missing and change what may be changed."""

    def differences(self) -> list[Change]:
        """Return what :meth:`create` would do."""

    def check(self) -> None:
        """Raise what keeps a stream from beginning."""

    def writer(self) -> ArchiveWriter:
        """Return what tasks write with."""

    def parse_part(self, fields: Mapping[str, Any]) -> Any:
        """Return the part that its ``as_json`` described."""

    def without(self, part: Any, is_unwanted: pa.BooleanArray) -> Any | None:
        """Return ``part`` without some of its rows; None when it has none left, or is taken whole or not at all.

        In both cases the part as it was may not be committed any more.
        """

    def drop(self, part: Any) -> None:
        """Give up a part that will not be committed."""

    def take_lease(self, lease: str) -> int:
        """Take the lease, settle what the stream before it left, and return the new epoch."""

    def lease_epoch(self, lease: str) -> int:
        """Return how many times the lease has been taken."""

    def committed_attempt(self, stream: str) -> int:
        """Return the number of the newest attempt that is in the archive, 0 when there is none."""

    def settle(self, attempt: Attempt) -> bool:
        """Return for good whether an attempt that a crash left open is in the archive."""

    def read_ids(self, span: IdSpan) -> Iterator[pa.RecordBatch]:
        """Yield topic, message_id and publish_time of every row in ``span``, and perhaps of others, in any order.

        Rows that the warehouse refused, and keeps with their reason, are among them. Little is in memory at once.

        Raises:
            QueryTooLargeError: it would cost more than the warehouse may spend on it.
        """

    def read_messages(self, topics: Sequence[str], window: Window, budget: ReadBudget) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ``topics`` that were ingested in ``window``, in the archive's columns.

        Only partitions that the window touches are read. Rows that the warehouse refused are not among them.
        Little is in memory at once.

        Raises:
            QueryTooLargeError: it would be billed for more than ``budget`` has left; then it reads nothing.
        """

    def commit(self, parts: Sequence[Any], attempt: Attempt, ids: pa.Table | None = None) -> None:
        """Add ``parts``, all or none."""

    def compact(self, *, max_small_files: int = 0) -> int:
        """Merge small files where there are any, and return how many went away."""

    def leases(self) -> LeaseStore:
        """Return the leases that lie beside the tables."""

    def count_rows(self) -> int:
        """Return how many rows it holds, past every query."""

    def scan(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of every row as they are now, past every query, in any order."""

    def volumes(self, window: Window) -> HourVolumes:
        """Return how much of which topic came in in the hours that begin in ``window``, without reading a row.

        It is counted from the commits, so it is true of the archive whatever became of a stream.

        Raises:
            WarehouseError: the archive can't be read.
        """

    def batch_seconds(self, wanted_seconds: float, slots: int) -> float:
        """Return how long a batch has to be for ``slots`` tasks to stay within the warehouse's quotas."""

    def close(self) -> None:
        """End its connections."""
