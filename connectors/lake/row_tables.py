"""The tables of rows that one stream writes in a lake: a lease and a commit for each of them."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from connectors.lake.files import WrittenFile
from connectors.lake.leases import LakeLeases
from connectors.lake.rows import LakeRowTable
from model.archive import Attempt, IdSpan
from model.errors import CommitOutcomeUnknownError, RefeedError, WarehouseError
from model.read_budget import ReadBudget
from model.table import Partitioning
from model.window import Window

_COMMITS_AT_ONCE: Final = 4
_DELETE_TRIES: Final = 3


class LakeRowTables:
    """The tables that the stream ``stream`` writes under the lease ``lease``, each with an epoch of its own.

    Who holds the lease stands beside the table ``anchor``; the epochs stand in the tables' logs, so that a commit
    and its check are one transaction of the table.
    """

    def __init__(
        self, root: str, anchor: str, partitioning: Partitioning = "day", *, stream: str, lease: str
    ) -> None:
        self._root = root
        self._anchor = anchor
        self._partitioning = partitioning
        self._stream = stream
        self._lease = lease
        self._taken: dict[str, tuple[LakeRowTable, int]] = {}

    def create(self) -> None:
        """Do nothing: a lake needs nothing beside its tables."""

    def open(self, name: str) -> LakeRowTable:
        """Return the table ``name``, which need not exist yet."""
        return LakeRowTable(self._root, name, self._partitioning)

    def leases(self) -> LakeLeases:
        """Return the leases beside the table ``anchor``."""
        return self.open(self._anchor).leases()

    def take(self, name: str) -> int:
        """Let no older stream commit to the table ``name`` any more; return this stream's newest attempt in it."""
        return self._take(name)[0].committed_attempt(self._stream)

    def _take(self, name: str) -> tuple[LakeRowTable, int]:
        """Return the table and the epoch under which it is taken."""
        if name not in self._taken:
            table = self.open(name)
            self._taken[name] = (table, table.take_lease(self._lease))
        return self._taken[name]

    def settle(self, number: int, names: Sequence[str], commit_id: int | None = None) -> frozenset[str]:
        """Return which of ``names`` have the rows of the attempt ``number``, for good."""
        known = [name for name in names if name in self._taken or self.open(name).exists()]
        taken = [(name, *self._take(name)) for name in known]
        return frozenset(
            name
            for name, table, epoch in taken
            if table.settle(Attempt(self._stream, number, self._lease, epoch, commit_id))
        )

    def read_since(
        self, name: str, columns: Sequence[str], publish_column: str, span: IdSpan
    ) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of the rows of the table ``name`` in ``span``; none while there is no table."""
        table = self.open(name)
        if table.exists():
            yield from table.read_since(columns, publish_column, span)

    def read_published(
        self,
        name: str,
        columns: Sequence[str],
        publish_column: str,
        window: Window,
        budget: ReadBudget,  # noqa: ARG002  nobody is billed
    ) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of the rows whose messages were published in ``window``; none without a table."""
        table = self.open(name)
        if table.exists():
            yield from table.read_between(columns, publish_column, window)

    def delete_since(self, name: str, since: datetime) -> int:
        """Delete the rows that came in at or after ``since``, unless upkeep comes between three times."""
        table = self.open(name)
        if not table.exists():
            return 0
        for _ in range(_DELETE_TRIES - 1):
            # Compaction at the same moment makes it fail.
            with suppress(WarehouseError):
                return table.delete_since(since)
        return table.delete_since(since)

    def commit(
        self,
        parts: Mapping[str, Sequence[WrittenFile]],
        number: int,
        ids: pa.Table,  # noqa: ARG002
        commit_id: int | None = None,
    ) -> tuple[frozenset[str], RefeedError | None]:
        """Add each table's ``parts`` by itself; an unknown outcome, if any, is the failure returned."""
        failures: list[RefeedError] = []

        def commit(name: str) -> bool:
            table, epoch = self._take(name)
            try:
                table.commit(parts[name], Attempt(self._stream, number, self._lease, epoch, commit_id))
            except RefeedError as exc:
                failures.append(exc)
                return False
            return True

        names = sorted(parts)
        with ThreadPoolExecutor(_COMMITS_AT_ONCE) as pool:
            committed = [name for name, is_in in zip(names, pool.map(commit, names), strict=True) if is_in]
        unknown = [failure for failure in failures if isinstance(failure, CommitOutcomeUnknownError)]
        return frozenset(committed), next(iter(unknown or failures), None)

    def append(self, name: str, batch: pa.RecordBatch) -> None:
        """Append rows of the driver's own to a table that nothing else writes, in one commit."""
        number = self.take(name) + 1
        table, epoch = self._taken[name]
        file = table.writer().write_rows([batch])
        table.commit([file], Attempt(self._stream, number, self._lease, epoch))

    def parse_part(self, fields: Mapping[str, Any]) -> WrittenFile:
        """Return the part that its ``as_json`` described."""
        return WrittenFile(**fields)

    def without(self, name: str, part: WrittenFile, is_unwanted: pa.BooleanArray) -> WrittenFile | None:
        """Write the part again without the rows where ``is_unwanted`` holds; None when none are left."""
        return self.open(name).without(part, is_unwanted)

    def drop(self, name: str, part: WrittenFile) -> None:
        """Delete a part that will not be committed."""
        self.open(name).drop(part)

    def which_follow(self, parts: Sequence[WrittenFile]) -> list[bool]:
        """Return True for each: a file depends on no other."""
        return [True] * len(parts)

    def quota_seconds(self, parts: Sequence[WrittenFile]) -> float:  # noqa: ARG002
        """Return 0: a lake has no quotas."""
        return 0.0

    def close(self) -> None:
        """Do nothing: a lake has no connections."""
