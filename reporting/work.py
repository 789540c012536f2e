"""What the tasks of a merge do, one partition each: picklable, and the same here and on a cluster."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date

from connectors.lake.merge_statements import MergeStatements
from connectors.lake.merging import Dealt, MergeLimits
from connectors.lake.rewriting import Rewritten, rewrite_partition


@dataclass(frozen=True, slots=True)
class MergeWork:
    """All that a task needs: statements, the table's files by partition, the rows that the driver dealt out."""

    statements: MergeStatements
    table_uri: str
    current: Mapping[date | None, Sequence[str]]
    dealt: Dealt
    limits: MergeLimits

    def rewrite(self, partition: date | None) -> Rewritten:
        """Rewrite a partition."""
        # Two tasks of one machine must not spill into the same files.
        limits = replace(self.limits, temp_folder=self.limits.temp_folder / f"spill-{partition or 'none'}")
        current = self.current.get(partition, ())
        return rewrite_partition(
            self.statements, self.table_uri, partition, current, dealt=self.dealt, limits=limits
        )


class LocalTasks:
    """Runs the tasks in threads of this process."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads

    def rewrite(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Rewritten]:
        """Write each partition anew and return its files."""
        with ThreadPoolExecutor(self._threads, thread_name_prefix="merge") as pool:
            return list(pool.map(work.rewrite, partitions))
