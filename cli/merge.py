"""``refeed merge``: make reporting tables what staging says by now."""

from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.invocation import command_settings
from cli.services import configure_logging
from cli.terminal import out, print_json, print_table
from model.entity import EntityRules, version_order
from model.errors import InputError

if TYPE_CHECKING:
    from pipeline.registry import Source
    from reporting.merge import MergeReport, MergeSource


def merge(
    source: Annotated[
        list[str] | None, typer.Option(help="A source of the registry; again for another one. Default: all.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, say what would be merged.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Merge what staging tables have since their last merge into reporting, one source after the other.

    Running it twice, late, or again after it died changes nothing more. It reads and writes only the partitions
    of reporting that change, and commits each source at once or not at all.
    """
    from reporting.merge import merge_source
    from reporting.warehouse import open_merger

    settings = command_settings()
    configure_logging()
    with closing(open_merger(settings)) as warehouse:
        reports = [
            merge_source(found, warehouse=warehouse, is_dry_run=dry_run)
            for found in _mergeable(settings.registry, source)
        ]
    if as_json:
        print_json([_to_json(report) for report in reports])
        return
    rows = [[r.source, str(r.changed), str(r.newer), str(len(r.partitions))] for r in reports]
    print_table(("source", "keys in staging", "newer", "partitions"), rows)
    if dry_run:
        out.print("nothing was changed")


def _mergeable(registry: str, names: list[str] | None) -> "list[MergeSource]":
    """Return the sources to merge: those with a key and a reporting table."""
    from pipeline.registry import Registry

    sources = Registry(registry).read().sources
    unknown = sorted(set(names or ()) - {found.name for found in sources})
    if unknown:
        raise InputError(f"The registry {registry} has no source {', '.join(unknown)}.")
    wanted = [found for found in sources if names is None or found.name in names]
    without = [found.name for found in wanted if names is not None and not (found.key and found.reporting)]
    if without:
        raise InputError(f"{', '.join(without)}: a source without key or reporting table in sources.yaml.")
    return [_merge_source(found) for found in wanted if found.key and found.reporting]


def _merge_source(found: "Source") -> "MergeSource":
    from reporting.merge import MergeSource

    rules = EntityRules(
        key=found.key,
        order=version_order(found.dedup_order, found.event_time),
        partition_field=found.partition,
        has_operation=found.variant == "change_data",
        is_soft_delete=found.is_soft_delete,
    )
    return MergeSource(found.name, found.staging, found.reporting, rules)


def _to_json(report: "MergeReport") -> dict[str, Any]:
    times = {"since": report.since and report.since.isoformat(), "until": report.until.isoformat()}
    return {**asdict(report), **times}
