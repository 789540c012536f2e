"""What the tasks of a merge do, one partition each: picklable, and the same here and on a cluster."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from connectors.lake.merging import Compared, MergeLimits, MergeStatements, Rewritten


@dataclass(frozen=True, slots=True)
class MergeWork:
    """All that a task needs: statements, the table's files by partition, the files that the driver wrote."""

    statements: MergeStatements
    table_uri: str
    current: Mapping[date | None, Sequence[str]]
    changes: Path
    winners: Path
    limits: MergeLimits

    def compare(self, partition: date | None) -> Compared:
        """Compare the changes with what lies in a partition."""
        return self.statements.compare(self.current.get(partition, ()), self.changes, self._limits_of(partition))

    def rewrite(self, partition: date | None) -> Rewritten:
        """Write a partition anew."""
        return self.statements.rewrite(
            self.table_uri,
            partition,
            self.current.get(partition, ()),
            self.winners,
            self._limits_of(partition),
        )

    def _limits_of(self, partition: date | None) -> MergeLimits:
        # Two tasks of one machine must not spill into the same files.
        return replace(self.limits, temp_folder=self.limits.temp_folder / f"spill-{partition or 'none'}")


class LocalTasks:
    """Runs the tasks in threads of this process."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads

    def compare(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Compared]:
        """Return the comparison of each partition."""
        with ThreadPoolExecutor(self._threads, thread_name_prefix="merge") as pool:
            return list(pool.map(work.compare, partitions))

    def rewrite(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Rewritten]:
        """Write each partition anew and return its files."""
        with ThreadPoolExecutor(self._threads, thread_name_prefix="merge") as pool:
            return list(pool.map(work.rewrite, partitions))
