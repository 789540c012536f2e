"""Every benchmark, or those named by ONLY: a table of ratios, and bench/results/latest.json."""

import importlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

BENCHMARKS = ("local_pubsub", "backup", "backup_bigquery", "backfill", "pipeline", "sql_gate", "latency")
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
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    RESULTS.write_text(json.dumps({"machine": machine, "results": results}, indent=2))
    show(results)
    print(f"Written to {RESULTS}")
    return 0


def show(results: list[dict[str, Any]]) -> None:
    table = Table("what", "unit", "Refeed", "limit", "ratio", "goal")
    for result in results:
        table.add_row(
            *(
                f"{value:,.2f}" if isinstance(value, float) else str(value if value is not None else "")
                for value in (
                    result["name"],
                    result["unit"],
                    result["refeed"],
                    result.get("limit"),
                    result.get("ratio"),
                    result.get("goal_ratio"),
                )
            )
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
