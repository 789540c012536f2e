"""The Spark job of a merge: one source after the other, each all or nothing, each with its report."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from connectors.spark.session import starting_spark
from jobs.driver import run_driver
from jobs.folder import JobFolder, Outcome
from model import failpoint
from model.errors import MergeOvertakenError, RefeedError
from model.job import JobState
from model.settings import read_settings
from reporting.specification import read_sources, read_warehouse
from reporting.view import MergedSource, describe_failure, describe_report
from warehouse.merges import Merger, MergeReport, MergeSource

_LOG: Final = structlog.get_logger()
# Somebody else's merge of the same source took what this one had read; the next look finds the rest.
_TRIES: Final = 5
_RETRY_SECONDS: Final = 1.0


def run_merge(folder: JobFolder, epoch: int, open_merger: Callable[[dict[str, Any]], Merger]) -> Outcome:
    """Run attempt ``epoch`` of the merge job in ``folder`` and return how it ended.

    Sources that an attempt before has merged are left alone, those that failed or were cut short come again; one
    that fails keeps none of the others from being merged. A driver that dies between a source's commit and
    its note merges that source again, which changes nothing, and its report then says so.
    """
    specification = folder.read_specification()
    findings = folder.read_findings()
    sources = [source for source in read_sources(specification) if not _is_merged(findings, source)]
    if not sources:
        return _outcome(epoch, findings)
    merger = open_merger(specification)
    try:
        for source in sources:
            findings[source.name] = MergedSource(source=source.name, state="merging").model_dump(mode="json")
            folder.write_findings(findings)
            findings[source.name] = _merge(source, specification, merger)
            folder.write_findings(findings)
            failpoint.hit("merge.noted")
    finally:
        merger.close()
    return _outcome(epoch, findings)


def _merge(source: MergeSource, specification: dict[str, Any], merger: Merger) -> dict[str, Any]:
    """Merge one source and return what came of it."""
    try:
        report = _merge_despite_others(source, specification, merger)
    except RefeedError as exc:
        _LOG.exception("not merged", source=source.name, code=exc.code)
        return describe_failure(source.name, exc.code, exc.message, exc.details.get("audits", []))
    except Exception as exc:  # noqa: BLE001 - the other sources have nothing to do with it
        _LOG.exception("not merged", source=source.name)
        message = f"The merge failed with {type(exc).__name__}. The job's log shows where it failed."
        return describe_failure(source.name, "driver_failed", message, [])
    return describe_report(report)


def _merge_despite_others(source: MergeSource, specification: dict[str, Any], merger: Merger) -> MergeReport:
    since = specification["since"]
    for left in reversed(range(_TRIES)):
        try:
            return merger.merge(
                source,
                now=datetime.now(UTC),
                since=None if since is None else datetime.fromisoformat(since),
                is_dry_run=specification["dry_run"],
            )
        except MergeOvertakenError:
            if not left:
                raise
            time.sleep(_RETRY_SECONDS)
    raise AssertionError("the last try returns or raises")


def _is_merged(findings: dict[str, Any], source: MergeSource) -> bool:
    return bool(findings.get(source.name, {}).get("state") == "merged")


def _outcome(epoch: int, findings: dict[str, Any]) -> Outcome:
    """Return SUCCEEDED when every source is merged, else FAILED with the first one's code and all their names."""
    failed = {name: found["error"] for name, found in findings.items() if found["state"] == "failed"}
    if not failed:
        return Outcome(epoch, JobState.SUCCEEDED)
    first = next(iter(failed.values()))
    message = "; ".join(f"{name}: {error['message']}" for name, error in failed.items())
    return Outcome(epoch, JobState.FAILED, {"code": first["code"], "message": message[:2000]})


def main(argument: str) -> int:
    """Run the attempt that ``argument`` ({"folder", "epoch"} as JSON) names; 0 when every source is merged."""

    def run(folder: JobFolder, epoch: int) -> Outcome:
        with ExitStack() as stack:

            def open_merger(specification: dict[str, Any]) -> Merger:
                warehouse = read_warehouse(specification, read_settings(os.environ))
                scratch = stack.enter_context(folder.scratch())
                # Executors see the job's folder only where it has a path.
                has_tasks = warehouse.has_merge_tasks and folder.path is not None
                spark = stack.enter_context(starting_spark(folder.name))() if has_tasks else None
                return warehouse.open_merger(scratch, spark)

            return run_merge(folder, epoch, open_merger)

    return run_driver(argument, run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
