"""The tables of rows of a warehouse, staging above all: what one stream writes under one lease."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa

from model.archive import IdSpan
from model.errors import RefeedError
from model.read_budget import ReadBudget
from model.schema import Evolution, RowSchema
from model.window import Window
from warehouse.archive import LeaseStore


class RowPart(Protocol):
    """Rows for one table that one task wrote and no reader sees yet; small, and JSON-ready."""

    @property
    def rows(self) -> int:
        """How many rows wait for their commit."""

    @property
    def refused(self) -> tuple[tuple[int, str], ...]:
        """The places of rows that the warehouse refuses for good, and why; they are not among ``rows``."""

    def as_json(self) -> dict[str, Any]:
        """Return what the tables' ``parse_part`` takes."""


class RowWriter(Protocol):
    """What a task writes one table's rows with; picklable."""

    def as_json(self) -> dict[str, Any]:
        """Return what the warehouse's ``row_writer`` takes."""

    def write_rows(self, batches: Sequence[pa.RecordBatch]) -> RowPart:
        """Write the rows of ``batches``, which have one schema and an ``ingest_time``, durably and unseen.

        ``ingest_time`` becomes now, the same for every row.

        Raises:
            TableNotReadyError: this table can't be written yet; others can.
        """


class RowTable(Protocol):
    """A table of rows, partitioned by when they came in; ``ingest_time`` is one of its columns."""

    name: str

    def exists(self) -> bool:
        """Whether the table has been created."""

    def schema(self) -> RowSchema | None:
        """Return the schema of the table, None when there is no table yet."""

    def plan(self, wanted: RowSchema) -> Evolution:
        """Return the changes that let the table hold rows of ``wanted``; nothing is touched."""

    def evolve(self, wanted: RowSchema) -> Evolution:
        """Create the table, or change it so that it holds rows of ``wanted``, and return what was done.

        Raises:
            EvolutionRefusedError: it can't; ``details["differences"]`` says why, and nothing was changed.
        """

    def widen(self, wanted: RowSchema) -> None:
        """Make the table what is wanted even where types become wider, with the rows that are there.

        Read again, cells are what :func:`model.widening.widen_value` makes of them. Nobody commits to the table
        meanwhile.

        Raises:
            EvolutionRefusedError: it can't hold rows of ``wanted`` even so; nothing was changed.
        """

    def writer(self, schema: RowSchema) -> RowWriter:
        """Return what writes rows of ``schema``, which is the table's or has fewer columns."""

    def read_rows(self, columns: list[str] | None = None) -> list[dict[str, Any]]:
        """Return every row, with some of its columns or all, JSON as text; for small tables only."""

    def compact(self, *, max_small_files: int = 0) -> int:
        """Merge small files, and return how many went away."""


class RowTables(Protocol):
    """The tables that one stream writes under one lease; a stream without it can't commit to any of them."""

    def create(self) -> None:
        """Create what the tables need beside themselves; again is fine."""

    def open(self, name: str) -> RowTable:
        """Return the table ``name``, which need not exist yet."""

    def leases(self) -> LeaseStore:
        """Return the leases that lie beside the tables."""

    def take(self, name: str) -> int:
        """Let no older stream commit to the table ``name`` any more; return this stream's newest attempt in it."""

    def settle(self, number: int, names: Sequence[str], commit_id: int | None = None) -> frozenset[str]:
        """Return which of ``names`` have the rows of the attempt ``number``, for good.

        Another owner's attempt of this number, as :class:`model.archive.Attempt` says, has another ``commit_id``.
        """

    def read_since(
        self, name: str, columns: Sequence[str], publish_column: str, span: IdSpan
    ) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of the rows of the table ``name`` in ``span``, and perhaps of others, in any order.

        ``publish_column``, one of them, has the time at which a row's message was published. There is nothing to
        yield while there is no table. Little is in memory at once.

        Raises:
            QueryTooLargeError: it would cost more than the warehouse may spend on it.
        """

    def read_published(
        self, name: str, columns: Sequence[str], publish_column: str, window: Window, budget: ReadBudget
    ) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of the rows of the table ``name`` whose messages were published in ``window``.

        Cells have the types that the table's columns have now; JSON is text. A column that a part of the table
        lacks is null there. There is nothing to yield while there is no table. Little is in memory at once.

        Raises:
            QueryTooLargeError: it would be billed for more than ``budget`` has left; then it reads nothing.
        """

    def delete_since(self, name: str, since: datetime) -> int:
        """Delete the rows of the table ``name`` that came in at or after ``since``; return how many there were.

        The caller holds the lease and has taken the table, so that no stream commits to it meanwhile. There is
        nothing to delete while there is no table.

        Raises:
            QueryTooLargeError: it would cost more than the warehouse may spend on it.
            WarehouseError: the warehouse failed, and nothing was deleted.
        """

    def commit(
        self, parts: Mapping[str, Sequence[Any]], number: int, ids: pa.Table, commit_id: int | None = None
    ) -> tuple[frozenset[str], RefeedError | None]:
        """Add each table's ``parts`` once; return the tables that have theirs, and what kept another.

        ``ids`` are those of the messages; a warehouse may keep them for an earlier Refeed. An unknown
        outcome is raised or returned as a CommitOutcomeUnknownError.
        """

    def append(self, name: str, batch: pa.RecordBatch) -> None:
        """Append rows of the driver's own to a table that no task writes, once."""

    def parse_part(self, fields: Mapping[str, Any]) -> RowPart:
        """Return the part that its ``as_json`` described."""

    def without(self, name: str, part: Any, is_unwanted: pa.BooleanArray) -> RowPart | None:
        """Return the part without the rows where ``is_unwanted`` holds, the old one dropped.

        None: nothing is left of it, or a part is taken whole here or not at all.
        """

    def which_follow(self, parts: Sequence[Any]) -> list[bool]:
        """Return of each of ``parts``, in their order, whether it can be committed with the others that can.

        A part may depend on one that was given up; then it has to be dropped too.
        """

    def drop(self, name: str, part: Any) -> None:
        """Give up a part that will not be committed."""

    def quota_seconds(self, parts: Sequence[Any]) -> float:
        """Return how long to wait after a batch, whose ``parts`` these are, for the warehouse's quotas."""

    def close(self) -> None:
        """End the connections."""
