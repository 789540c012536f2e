"""Every benchmark, or those named by ONLY: a table of ratios, and bench/results/latest.json."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from bench.report import show, write_results

BENCHMARKS = (
    "local_pubsub",
    "backup",
    "backup_bigquery",
    "backfill",
    "bucket",
    "decoder",
    "pipeline",
    "merge",
    "scale",
    "service",
    "sql_gate",
    "collector",
    "latency",
    "update",
)
RESULTS = Path(__file__).parent / "results" / "latest.json"


def main() -> int:
    wanted = [name for name in os.environ.get("ONLY", "").split(",") if name] or list(BENCHMARKS)
    unknown = sorted(set(wanted) - set(BENCHMARKS))
    if unknown:
        print(f"There is no benchmark {', '.join(unknown)}; ONLY takes some of {', '.join(BENCHMARKS)}.")
        return 2
    results: list[dict[str, Any]] = []
    for name in wanted:
        print(f"{name}: {(importlib.import_module(f'bench.{name}').__doc__ or '').splitlines()[0]}", flush=True)
        found = importlib.import_module(f"bench.{name}").run()
        results += found if isinstance(found, list) else [found]
        # What has been measured is kept when a later one fails.
        write_results(results, RESULTS)
    show(results)
    print(f"Written to {RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
