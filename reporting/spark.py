"""The tasks of a merge as tasks of a Spark job: each partition's step runs where an executor is free."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date
from functools import partial
from typing import Any, Final

import pyarrow as pa

from connectors.lake.merging import Compared, Rewritten
from reporting.work import MergeWork

_RESULT: Final = pa.schema([("result", pa.string())])
_RESULT_DDL: Final = "result string"


class SparkTasks:
    """Runs the tasks on a Spark session; every executor must see the lake and the merge's folder."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def compare(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Compared]:
        """Return the comparison of each partition."""
        found = self._run(work, partitions, "compare")
        return [Compared(tuple(each["newer"]), tuple(each["older"])) for each in found]

    def rewrite(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Rewritten]:
        """Write each partition anew and return its files."""
        return [Rewritten.from_json(each) for each in self._run(work, partitions, "rewrite")]

    def _run(self, work: MergeWork, partitions: Sequence[date | None], step: str) -> list[dict[str, Any]]:
        if not partitions:
            return []
        count = len(partitions)
        task = partial(run_steps, work=work, partitions=tuple(partitions), step=step)
        rows = self._spark.range(0, count, 1, count).mapInArrow(task, _RESULT_DDL).collect()
        found = sorted((json.loads(row.result) for row in rows), key=lambda each: int(each["place"]))
        return [each["found"] for each in found]


def run_steps(
    batches: Iterator[pa.RecordBatch], *, work: MergeWork, partitions: tuple[date | None, ...], step: str
) -> Iterator[pa.RecordBatch]:
    """Run the step for the partitions whose places arrive as column ``id``; what Spark calls in a task."""
    for batch in batches:
        for place in batch.column("id").to_pylist():
            found = asdict(getattr(work, step)(partitions[place]))
            yield pa.RecordBatch.from_pylist(
                [{"result": json.dumps({"place": place, "found": found})}], schema=_RESULT
            )
