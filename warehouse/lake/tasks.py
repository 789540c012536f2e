"""The tasks of a merge, one partition each: threads of this process, or tasks of a Spark job."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa

from connectors.lake.engine import EngineLimits
from connectors.lake.merge_statements import MergeStatements
from connectors.lake.merging import Dealt
from connectors.lake.rewriting import Rewritten, rewrite_partition

_RESULT: Final = pa.schema([("result", pa.string())])
_RESULT_DDL: Final = "result string"
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class MergeWork:
    """All that a task needs, picklable: statements, the table's files by partition, the rows dealt out to it."""

    statements: MergeStatements
    table_uri: str
    current: Mapping[date | None, Sequence[str]]
    dealt: Dealt
    limits: EngineLimits

    def rewrite(self, partition: date | None) -> Rewritten:
        """Rewrite a partition."""
        # Two tasks of one machine must not spill into the same files.
        limits = replace(self.limits, temp_folder=self.limits.temp_folder / f"spill-{partition or 'none'}")
        current = self.current.get(partition, ())
        return rewrite_partition(
            self.statements, self.table_uri, partition, current, dealt=self.dealt, limits=limits
        )


class Tasks(Protocol):
    """Rewrites the partitions of a merge: here, or as tasks of a Spark job."""

    def rewrite(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Rewritten]:
        """Write each partition again and return its files."""


class LocalTasks:
    """Runs the tasks in threads of this process: more than it has cores, because each also waits for its disk."""

    def rewrite(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Rewritten]:
        """Write each partition again and return its files."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="merge") as pool:
            return list(pool.map(work.rewrite, partitions))


class SparkTasks:
    """Runs the tasks on a Spark session; every executor must see the lake and the merge's folder."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def rewrite(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Rewritten]:
        """Write each partition again and return its files."""
        if not partitions:
            return []
        count = len(partitions)
        task = partial(run_rewrites, work=work, partitions=tuple(partitions))
        rows = self._spark.range(0, count, 1, count).mapInArrow(task, _RESULT_DDL).collect()
        found = sorted((json.loads(row.result) for row in rows), key=lambda each: int(each["place"]))
        return [Rewritten.from_json(each["found"]) for each in found]


def run_rewrites(
    batches: Iterator[pa.RecordBatch], *, work: MergeWork, partitions: tuple[date | None, ...]
) -> Iterator[pa.RecordBatch]:
    """Rewrite the partitions whose places arrive as column ``id``; Spark calls it in a task."""
    for batch in batches:
        for place in batch.column("id").to_pylist():
            found = work.rewrite(partitions[place]).as_json()
            yield pa.RecordBatch.from_pylist(
                [{"result": json.dumps({"place": place, "found": found})}], schema=_RESULT
            )
