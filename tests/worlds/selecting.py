"""The rows that a backfill of a request would publish: by the API's reading, the gate and the lake."""

import json
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app.backfills import open_queries
from backfill.job import select
from backfill.plan.create import BackfillCreate
from backfill.plan.creation import render_specification
from backfill.plan.options import RunOptions
from backfill.plan.planner import Planner
from backfill.plan.settings import BackfillSettings
from backfill.run.folder import BackfillFolder
from backfill.run.selection import read_slice
from jobs.folder import Control, Order
from model.settings import read_settings
from warehouse.open import open_warehouse

NOBODY: Any = SimpleNamespace(topic_path=lambda topic: f"projects/shop/topics/{topic}")


def select_rows(
    wanted: BackfillCreate, environment: dict[str, str], home: Path, now: datetime | None = None
) -> list[dict[str, Any]]:
    """Return the rows of the selection, made in ``home``."""
    settings = read_settings({**environment, "REFEED_HOME": str(home)})
    backfills = BackfillSettings.from_settings(settings, open_warehouse(settings))
    queries = open_queries(backfills)
    planner = Planner(backfills, NOBODY, NOBODY, queries)
    try:
        request = wanted.write(backfills.warehouse.archive_table, now)
        source = planner.source(request, planner.validate(request), None)
        specification = json.loads(json.dumps(render_specification("bf_1", request, source, backfills, NOBODY)))
    finally:
        queries.close()
    folder = BackfillFolder(home / "job")
    folder.path.mkdir(parents=True)
    folder.write_control(Control(1, Order.RUN))
    selection = select(folder, 1, specification, RunOptions())
    return [row for part in selection.slices for row in read_slice(folder.selection, part).to_pylist()]
