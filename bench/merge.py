"""The merge as reporting grows, and beside ``DeltaTable.merge``.

It grows to 1, 10 and 100 times as many days, and the change set stays the same.

The cost has to follow the changes: a table of a year may take hardly longer than one of four days. Ratios are
over the figure at 1x, so that below 2 is good and 100 would be a merge that reads everything. CPU time is measured
beside the clock, because it is the same on a busy machine.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog

from bench.comparison import Goal
from connectors.columns import arrow_schema
from connectors.lake.engine import EngineLimits
from connectors.lake.rows import LakeRowTable
from model.archive import Attempt
from model.entity import EntityRules, version_order
from model.schema import Field, RowSchema
from warehouse.lake.merger import LakeMerger
from warehouse.lake.tasks import LocalTasks
from warehouse.merges import MergeReport, MergeSource

GROWTH = (1, 10, 100)
DAYS = 4
ROWS_A_DAY = 1_000
CHANGED_DAYS = 3
UPDATES_A_DAY = 200
ROUNDS = 3
GOAL = 2.0
FIRST = date(2020, 1, 1)
SCHEMA = RowSchema(
    (
        Field("number", "INT64"),
        Field("changed_at", "TIMESTAMP"),
        Field("ordered_on", "DATE"),
        Field("customer", "STRING"),
        Field("note", "STRING"),
        Field("_message_id", "STRING"),
        Field("_publish_time", "TIMESTAMP"),
        Field("ingest_time", "TIMESTAMP"),
    ),
    "orders",
)
SOURCE = MergeSource(
    "orders",
    "staging.orders",
    "reporting.orders",
    EntityRules(("number",), version_order((), "changed_at"), "ordered_on"),
)


def run() -> list[dict[str, Any]]:
    found = {growth: measure(growth) for growth in GROWTH}
    # It measures by what is here.
    from bench import merge_engines

    return [
        *merge_engines.run(),
        *(
            {
                "name": f"merge, reporting {growth}x ({growth * DAYS * ROWS_A_DAY:,} rows)",
                "unit": unit,
                "refeed": found[growth][place],
                "limit": found[1][place],
                "ratio": found[growth][place] / found[1][place],
                "goals": [
                    Goal("cost / cost at 1x", GOAL, is_most=True).judge(found[growth][place] / found[1][place])
                ],
            }
            for place, unit in enumerate(("s", "CPU s"))
            for growth in GROWTH
        ),
    ]


def measure(growth: int, lake: str | None = None) -> tuple[float, float]:
    """Return the median seconds and CPU seconds of merging the changes into ``growth`` times the days."""
    # A line a merge would be among the table's.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lake = lake or name
        moment = datetime(2026, 1, 1, tzinfo=UTC)
        days = growth * DAYS
        numbers = range(days * ROWS_A_DAY)
        stage(lake, numbers, moment, days)
        merge(lake, folder, moment)
        dice = random.Random(1)
        found = []
        for _ in range(ROUNDS):
            moment += timedelta(hours=6)
            # Of the newest days, as in life.
            changed = [
                dice.randrange(ROWS_A_DAY) * days + day
                for day in range(days - CHANGED_DAYS, days)
                for _ in range(UPDATES_A_DAY)
            ]
            stage(lake, sorted(set(changed)), moment, days)
            started, cpu = time.perf_counter(), time.process_time()
            report = merge(lake, folder, moment)
            found.append((time.perf_counter() - started, time.process_time() - cpu))
            assert report.newer == len(set(changed))
            assert len(report.partitions) == CHANGED_DAYS
        seconds, cpu_seconds = zip(*found, strict=True)
        return statistics.median(seconds), statistics.median(cpu_seconds)


def merge(lake: str, folder: Path, moment: datetime) -> MergeReport:
    limits = EngineLimits("1GB", folder / "spill")
    warehouse = LakeMerger(
        lake, "backup.merge_audits", folder=folder / "merges", tasks=LocalTasks(), limits=limits
    )
    return warehouse.merge(SOURCE, now=moment, since=None, is_dry_run=False)


def stage(lake: str, numbers: Sequence[int], moment: datetime, days: int) -> None:
    """Stage a version of each of ``numbers``; an order's day is its number modulo the table's days."""
    table = LakeRowTable(lake, SOURCE.staging)
    table.evolve(SCHEMA)
    epoch = table.take_lease("bench")
    count = len(numbers)
    first = (FIRST - date(1970, 1, 1)).days
    rows = pa.table(
        {
            "number": pa.array(numbers, pa.int64()),
            "changed_at": pa.repeat(moment, count),
            "ordered_on": pa.array([first + n % days for n in numbers], pa.int32()),
            "customer": pa.array([f"customer-{n % 9973}" for n in numbers]),
            "note": pa.array([f"note {n * 7919 % 1_000_003}" * 3 for n in numbers]),
            "_message_id": pa.array([str(n) for n in numbers]),
            "_publish_time": pa.repeat(moment, count),
            "ingest_time": pa.repeat(moment, count),
        }
    ).cast(arrow_schema(SCHEMA))
    # As write_rows does, but at a moment of the benchmark's own: merges lie hours apart.
    file = table.writer()._write(rows, moment)  # noqa: SLF001
    number = table.committed_attempt("bench") + 1
    table.commit([file], Attempt("bench", number, "bench", epoch))
