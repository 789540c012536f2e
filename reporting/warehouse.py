"""The reporting tables that the settings choose."""

from pathlib import Path

from model.audit import AUDITS_TABLE
from model.settings import Settings
from reporting.merge import Merger


def open_merger(settings: Settings, *, folder: Path | None = None, spark: object | None = None) -> Merger:
    """Return the reporting tables of REFEED_WAREHOUSE; nothing is created or read yet.

    ``folder`` holds what a lake's merge has on the way; with ``spark``, a session whose executors see lake and
    folder, each partition is a task of it, else they are merged by threads here.
    """
    audits = f"{settings.archive_table.split('.')[-2]}.{AUDITS_TABLE}"
    if settings.warehouse == "bigquery":
        from reporting.bigquery import BigQueryMerger

        return BigQueryMerger(settings.project, audits, settings.bigquery)
    from connectors.lake.merging import MergeLimits
    from reporting.lake import LakeMerger
    from reporting.spark import SparkTasks
    from reporting.work import LocalTasks

    work = folder or settings.home / "merges"
    return LakeMerger(
        settings.lake,
        audits,
        folder=work,
        tasks=LocalTasks() if spark is None else SparkTasks(spark),
        limits=MergeLimits(settings.query_memory, work / "spill"),
    )
