"""The backup's part of the stream engine: the archive as its only table, and its counts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import structlog

from backup.source import PulledPart
from model.archive import Attempt
from model.errors import RefeedError
from streams.ids import IDS_SCHEMA, ONLY_TABLE
from streams.targets import TableKeeper, TargetPart, TaskOutput
from warehouse.archive import Archive

_log = structlog.get_logger(__name__)

_NONE: Final = IDS_SCHEMA.empty_table()


class ArchiveTarget:
    """The archive as the only table of the stream ``stream``, which holds ``lease`` in its ``epoch``."""

    def __init__(self, archive: Archive, *, stream: str, lease: str, epoch: int) -> None:
        self._archive = archive
        self._stream = stream
        self._lease = lease
        self._epoch = epoch

    def open(self, name: str) -> Archive:  # noqa: ARG002  there is one
        """Return another object for the archive, for another thread."""
        return self._archive.another()

    def take(self, name: str) -> int:  # noqa: ARG002
        """Return the stream's newest attempt in the archive, which was taken with the lease."""
        return self._archive.committed_attempt(self._stream)

    def settle(self, number: int, names: Sequence[str], commit_id: int | None = None) -> frozenset[str]:
        """Return ``names`` if the archive has the attempt ``number``; the answer is final."""
        return frozenset(names) if self._archive.settle(self._attempt(number, commit_id)) else frozenset()

    def without(self, name: str, part: Any, is_unwanted: pa.BooleanArray) -> Any | None:
        """Return the part without the rows where ``is_unwanted`` is true, or drop the part and return None."""
        kept = self._archive.without(part, is_unwanted)
        if kept is None:
            try:
                self.drop(name, part)
            except RefeedError as exc:
                _log.warning("part_not_dropped", error=exc.message)
        return kept

    def which_follow(self, parts: Sequence[Any]) -> list[bool]:
        """Return True for each part: no part depends on another."""
        return [True] * len(parts)

    def commit(
        self, parts: Mapping[str, Sequence[Any]], number: int, ids: pa.Table, commit_id: int | None = None
    ) -> tuple[frozenset[str], RefeedError | None]:
        """Add the archive's ``parts`` in one commit.

        Raises:
            RefeedError: nothing was added, except after a CommitOutcomeUnknownError.
        """
        for found in parts.values():
            self._archive.commit(found, self._attempt(number, commit_id), ids)
        return frozenset(parts), None

    def drop(self, name: str, part: Any) -> None:  # noqa: ARG002
        """Give up a part that will not be committed."""
        self._archive.drop(part)

    def quota_seconds(self, parts: Sequence[Any]) -> float:  # noqa: ARG002
        """Return 0, because the batches of a backup are long enough for the warehouse's quotas."""
        return 0.0

    def _attempt(self, number: int, commit_id: int | None) -> Attempt:
        return Attempt(self._stream, number, self._lease, self._epoch, commit_id)


class Archiving:
    """Reads the results of a backup's tasks, and counts them; ``parse_part`` is the archive's method."""

    name: Final = "backup"
    counted: Final = ("dead_letters", "replays")

    def __init__(self, parse_part: Callable[[Mapping[str, Any]], Any]) -> None:
        self._parse_part = parse_part

    def read_output(self, encoded: bytes) -> TaskOutput:
        """Decode the work of one task: at most one part, and replays that are only acknowledged."""
        found = PulledPart.decode(encoded)
        part = () if found.part is None else (TargetPart(ONLY_TABLE, self._parse_part(found.part), found.ids),)
        return TaskOutput(part, settled=found.replays, unfit=_NONE, found=None)

    def count(
        self,
        totals: Counter[str],
        outputs: Sequence[TaskOutput],
        parts: Mapping[str, Sequence[Any]],
        is_written: Sequence[pa.BooleanArray],  # noqa: ARG002 - the parts have the rows that are committed alone
    ) -> None:
        """Count the bytes and dead letters of ``parts``, and the replays."""
        totals["replays"] += sum(output.settled.num_rows for output in outputs)
        for part in (part for found in parts.values() for part in found):
            totals["file_bytes"] += part.size_bytes
            totals["dead_letters"] += part.dead_letters

    def learn(self, keeper: TableKeeper, outputs: Sequence[TaskOutput]) -> bool:  # noqa: ARG002
        """Return True: every message fits the archive."""
        return True

    def status(self) -> dict[str, Any]:
        """Return no fields: the totals have all figures."""
        return {}
