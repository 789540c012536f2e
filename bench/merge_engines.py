"""The merge beside ``DeltaTable.merge`` of the same changes: turn about, a process each, seconds and peak memory.

Both get the newest version of each key from staging by the same query. ``DeltaTable.merge`` then does its work in
one call: no audit before its commit, no index of keys, nothing flushed to disk.
"""

import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from deltalake import DeltaTable

from bench import merge
from bench.comparison import Goal
from connectors.columns import arrow_schema
from connectors.lake.engine import EngineLimits, quote_text
from connectors.lake.merge_statements import FILE, ROW, MergeStatements
from connectors.lake.merging import open_duckdb
from connectors.lake.rows import LakeRowTable
from model.entity import PARTITION_DATE
from warehouse.merges import reporting_schema

GOAL = 1.5
FIRST_GOAL = 1.0
ROUNDS = 3
_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
_STAGED_AT_ONCE = 500_000


@dataclass(frozen=True)
class Case:
    """How large reporting is, and how many changes are spread over how many of its days; none: a first merge."""

    days: int
    rows_a_day: int
    changed_days: int = 0
    changes: int = 0
    goal: float = GOAL


CASES = {
    "11 of 100 days": Case(100, 10_000, 11, 18_000),
    "all of 101 days": Case(101, 10_000, 101, 18_000),
    "all of 401 days": Case(401, 2_500, 401, 18_000),
    "first merge": Case(50, 20_000, goal=FIRST_GOAL),
}


def run() -> list[dict[str, Any]]:
    return [result for name in CASES for result in measure(name)]


def measure(name: str) -> list[dict[str, Any]]:
    """Return the medians of a case, and the median of the rounds' ratios."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        prepare(CASES[name], lake)
        runs: dict[str, list[dict[str, float]]] = {"refeed": [], "delta": []}
        for number in range(ROUNDS):
            for engine, found in runs.items():
                copy = Path(folder) / "copy"
                shutil.copytree(lake, copy)
                command = [sys.executable, "-m", "bench.merge_engines", engine, str(copy)]
                found.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
                shutil.rmtree(copy)
            shown = (
                f"{engine} {found[-1]['s']:.1f} s {found[-1]['CPU s']:.1f} CPU s {found[-1]['peak MB']:.0f} MB"
                for engine, found in runs.items()
            )
            print(f"  {name}, round {number + 1}: {', '.join(shown)}", flush=True)
    results = []
    for unit in ("s", "CPU s", "peak MB"):
        pairs = [(ours[unit], theirs[unit]) for ours, theirs in zip(runs["refeed"], runs["delta"], strict=True)]
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        results.append(
            {
                "name": f"merge, {name}, beside DeltaTable.merge",
                "unit": unit,
                "refeed": statistics.median(ours for ours, _ in pairs),
                "limit": statistics.median(theirs for _, theirs in pairs),
                "ratio": ratio,
                "goals": [Goal(f"{unit} / DeltaTable.merge", CASES[name].goal, is_most=True).judge(ratio)],
            }
        )
    return results


def prepare(case: Case, lake: Path) -> None:
    """Stage the rows of all days, merge them by both, and stage the changes; of a first merge stage only."""
    rows = case.days * case.rows_a_day
    for first in range(0, rows, _STAGED_AT_ONCE):
        merge.stage(str(lake), range(first, min(rows, first + _STAGED_AT_ONCE)), _MOMENT, case.days)
    taken: list[str] = []
    if case.changes:
        merge.merge(str(lake), lake, _MOMENT)
        merge_by_delta(lake, taken)
        taken = [Path(path).name for path in staged(lake)]
        dice = random.Random(1)
        first_day = case.days - case.changed_days
        changed = {
            dice.randrange(case.rows_a_day) * case.days + first_day + number % case.changed_days
            for number in range(case.changes)
        }
        merge.stage(str(lake), sorted(changed), _MOMENT + timedelta(hours=6), case.days)
    (lake / "taken.json").write_text(json.dumps(taken))


def merge_by_delta(lake: Path, taken: list[str]) -> None:
    """Merge what is staged and not taken into a Delta table of its own."""
    statements = MergeStatements(reporting_schema(merge.SCHEMA), merge.SOURCE.rules)
    paths = [path for path in staged(lake) if Path(path).name not in taken]
    changes = lake / "changes.parquet"
    with open_duckdb(EngineLimits("1GB", lake / "spill")) as connection:
        connection.execute(
            f"CREATE TABLE chosen AS SELECT {FILE}, {ROW} FROM ({statements.newest(statements.versions(paths))})"
        )
        sql = statements.changed_rows(paths, "chosen")
        connection.execute(f"COPY ({sql}) TO {quote_text(str(changes))} (FORMAT parquet, COMPRESSION zstd)")
    uri = str(lake / "delta")
    schema = arrow_schema(statements.schema).append(pa.field(PARTITION_DATE, pa.date32()))
    DeltaTable.create(uri, schema=schema, partition_by=[PARTITION_DATE], mode="ignore")
    same, newer = "", "FALSE"
    for column in merge.SOURCE.rules.order:
        newer += f" OR ({same}s.{column} > t.{column})"
        same += f"s.{column} = t.{column} AND "
    columns = {name: f"s.{name}" for name in schema.names}
    source = pq.read_table(changes, columns=schema.names)
    # A stream of changes can't be told to be a few days' alone: without it, only those days are read.
    (
        DeltaTable(uri)
        .merge(source, "s.number = t.number", source_alias="s", target_alias="t", streamed_exec=False)
        .when_matched_update(columns, predicate=newer)
        .when_not_matched_insert(columns)
        .execute()
    )


def staged(lake: Path) -> list[str]:
    return [file.path for file in LakeRowTable(str(lake), merge.SOURCE.staging).data_files()]


def main(engine: str, lake: Path) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    taken = json.loads((lake / "taken.json").read_text())
    started, cpu = time.perf_counter(), time.process_time()
    if engine == "refeed":
        merge.merge(str(lake), lake, _MOMENT + timedelta(hours=7))
    else:
        merge_by_delta(lake, taken)
    found = {"s": time.perf_counter() - started, "CPU s": time.process_time() - cpu}
    # Not ru_maxrss: that begins with the parent's.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(json.dumps({**found, "peak MB": int(status["VmHWM"].split()[0]) / 1024}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
