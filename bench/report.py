"""How results are shown: a table with ratios and goals, and bench/results/latest.json."""

import json
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

OTHERS = {"limit": "limit", "one_by_one": "one by one", "script": "script", "beam": "Beam"}
COLUMNS = (
    *("what", "unit", "Refeed", *OTHERS.values()),
    *(f"/{other}" for other in OTHERS.values()),
    *("p99", "CPU us", "goals"),
)
# Where there is no terminal, as in a file, nothing says how wide a line may be.
_FILE_WIDTH = 200
_MARKS = {True: "met", False: "NOT met", None: "not judged"}


def write_results(results: list[dict[str, Any]], path: Path) -> None:
    """Write results with the machine that they were measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    measured_at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    path.write_text(json.dumps({"machine": machine, "measured_at": measured_at, "results": results}, indent=2))


def show(results: list[dict[str, Any]], console: Console | None = None) -> None:
    """Print a line a result, without the columns that no result has, then each goal that is not met."""
    rows = [render_row(result) for result in results]
    kept = [place for place in range(len(COLUMNS)) if any(row[place] for row in rows)]
    table = Table(*(COLUMNS[place] for place in kept))
    for row in rows:
        table.add_row(*(row[place] for place in kept))
    out = console or open_console()
    out.print(table)
    for result in results:
        for goal in find_goals(result):
            if goal["met"] is False:
                out.print(
                    f"not met: {result['name']}, {goal['what']} {_number(goal['value'])}, goal {goal['goal']}"
                )


def open_console() -> Console:
    """Return the terminal, or where there is none a page that is wide enough for every column."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=_FILE_WIDTH)


def render_row(result: Mapping[str, Any]) -> list[str]:
    """Return one result's cells, in the order of ``COLUMNS``."""
    ratios = result.get("ratios") or {"limit": result.get("ratio")}
    cpu = result.get("cpu_us_per_message") or {}
    return [
        str(result["name"]),
        str(result["unit"]),
        *(_number(result.get(name)) for name in ("refeed", *OTHERS)),
        *(_number(ratios.get(name)) for name in OTHERS),
        _number(result.get("p99")),
        _number(cpu.get("refeed")),
        _render_goals(find_goals(result)),
    ]


def find_goals(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the goals of a result; a ``goal_ratio`` alone is the least that ``ratio`` is to be."""
    if "goals" in result:
        return list(result["goals"])
    ratio, least = result.get("ratio"), result.get("goal_ratio")
    if isinstance(ratio, int | float) and isinstance(least, int | float):
        return [{"what": "refeed / limit", "value": ratio, "goal": f">= {least:g}", "met": ratio >= least}]
    return []


def _render_goals(goals: Iterable[Mapping[str, Any]]) -> str:
    found = [goal["met"] for goal in goals]
    if not found:
        return ""
    if len(set(found)) == 1 and len(found) == 1:
        return _MARKS[found[0]]
    return f"{found.count(True)} of {len(found)} met"


def _number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
    return str(value)
