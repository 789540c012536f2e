"""The tasks of a merge as tasks of a Spark job: each partition's step runs where an executor is free."""

import json
from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial
from typing import Any, Final

import pyarrow as pa

from connectors.lake.rewriting import Rewritten
from reporting.work import MergeWork

_RESULT: Final = pa.schema([("result", pa.string())])
_RESULT_DDL: Final = "result string"


class SparkTasks:
    """Runs the tasks on a Spark session; every executor must see the lake and the merge's folder."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def rewrite(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Rewritten]:
        """Write each partition anew and return its files."""
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
