"""The backup as work of the stream engine: the archive is its one table, and these are its counts."""

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
        """Return the stream's newest attempt in the archive; who took the lease has taken the archive."""
        return self._archive.committed_attempt(self._stream)

    def settle(self, number: int, names: Sequence[str], commit_id: int | None = None) -> frozenset[str]:
        """Return ``names`` when the archive has the attempt ``number``, for good."""
        return frozenset(names) if self._archive.settle(self._attempt(number, commit_id)) else frozenset()

    def without(self, name: str, part: Any, is_unwanted: pa.BooleanArray) -> Any | None:
        """Return the part without the rows where ``is_unwanted`` holds; None, and the part dropped, if not."""
        kept = self._archive.without(part, is_unwanted)
        if kept is None:
            try:
                self.drop(name, part)
            except RefeedError as exc:
                _log.warning("part_not_dropped", error=exc.message)
        return kept

    def which_follow(self, parts: Sequence[Any]) -> list[bool]:
        """Return True for each: a part depends on no other."""
        return [True] * len(parts)

    def commit(
        self, parts: Mapping[str, Sequence[Any]], number: int, ids: pa.Table, commit_id: int | None = None
    ) -> tuple[frozenset[str], RefeedError | None]:
        """Add the archive's ``parts``, all or none.

        Raises:
            RefeedError: nothing was added, but for a CommitOutcomeUnknownError.
        """
        for found in parts.values():
            self._archive.commit(found, self._attempt(number, commit_id), ids)
        return frozenset(parts), None

    def drop(self, name: str, part: Any) -> None:  # noqa: ARG002
        """Give up a part that will not be committed."""
        self._archive.drop(part)

    def quota_seconds(self, parts: Sequence[Any]) -> float:  # noqa: ARG002
        """Return 0: the batches of a backup are made long enough for the warehouse's quotas."""
        return 0.0

    def _attempt(self, number: int, commit_id: int | None) -> Attempt:
        return Attempt(self._stream, number, self._lease, self._epoch, commit_id)


class Archiving:
    """Reads the results of a backup's tasks, and counts them; ``parse_part`` is the archive's."""

    name: Final = "backup"
    counted: Final = ("dead_letters", "replays")

    def __init__(self, parse_part: Callable[[Mapping[str, Any]], Any]) -> None:
        self._parse_part = parse_part

    def read_output(self, encoded: bytes) -> TaskOutput:
        """Return the work of one task: a part at most, and replays that are acknowledged only."""
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
        """Return nothing: the totals say all."""
        return {}
