"""``refeed init``: create the tables, or show what differs."""

from contextlib import closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from cli.invocation import command_settings, make_home, open_deployment
from cli.options import JsonObjectOption
from cli.terminal import ExitCode, out, print_json
from model.errors import InputError

if TYPE_CHECKING:
    from model.archive import Change
    from model.settings import Settings


def init(
    project: Annotated[str | None, typer.Option(help="The Google Cloud project. Default: REFEED_PROJECT.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Dataset of the archive. Default: the dataset in REFEED_ARCHIVE_TABLE.")
    ] = None,
    location: Annotated[
        str | None, typer.Option(help="Location of the dataset. Default: REFEED_BIGQUERY_LOCATION.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing, and print what would change.")
    ] = False,
    as_json: JsonObjectOption = False,
) -> None:
    """Create the archive and Refeed's other tables in the warehouse that REFEED_WAREHOUSE names.

    If a table exists, the command changes columns, descriptions, labels, clustering, expiration and keys in place.
    If a difference can't be removed in place, the command prints the difference and changes nothing. You can run
    the command again at any time.
    """
    settings = _choose(command_settings(), project, dataset, location)
    warehouse = open_deployment(settings).warehouse
    if warehouse.is_embedded and not dry_run:
        make_home(settings.home)
    with closing(warehouse.open_archive()) as archive:
        changes = archive.differences()
        if not as_json:
            _print_changes(changes)
        is_possible = all(change.is_compatible for change in changes)
        if not dry_run:
            archive.create()
    if as_json:
        print_json({"archive": archive.uri, "dry_run": dry_run, "changes": [asdict(change) for change in changes]})
    elif not changes:
        out.print(f"{archive.uri} is up to date")
    else:
        out.print(f"{len(changes)} differences; {'nothing was changed' if dry_run else 'all were changed'}")
    if not warehouse.is_embedded and not dry_run and not as_json:
        _print_exports(settings)
    raise typer.Exit(ExitCode.OK if is_possible else ExitCode.FAILED)


def _choose(settings: "Settings", project: str | None, dataset: str | None, location: str | None) -> "Settings":
    """Return ``settings`` with what the command line names, checked by the rules of the variables."""
    if (dataset or location) and open_deployment(settings).warehouse.is_embedded:
        raise InputError("--dataset and --location work only with BigQuery. Set REFEED_WAREHOUSE=bigquery.")
    from model.settings import read_settings

    checked = read_settings(
        {
            "REFEED_PROJECT": project or settings.project,
            "REFEED_BIGQUERY_LOCATION": location or settings.bigquery.location,
        },
        home=settings.home,
    )
    *_, found_dataset, table = settings.archive_table.split(".")
    prefix = settings.archive_table.removesuffix(f"{found_dataset}.{table}")
    chosen = f"{'' if project else prefix}{dataset or found_dataset}.{table}"
    return replace(
        settings,
        project=checked.project,
        archive_table=read_settings({"REFEED_ARCHIVE_TABLE": chosen}, home=settings.home).archive_table,
        bigquery=replace(settings.bigquery, location=checked.bigquery.location),
    )


def _print_changes(changes: "list[Change]") -> None:
    for change in changes:
        mark = "+" if change.found == "missing" else "~"
        mark = mark if change.is_compatible else "!"
        text = f"{mark} {change.resource}  {change.field}: {change.found or 'none'} -> {change.wanted or 'none'}"
        out.print(text if change.is_compatible else f"{text}  (can't be changed)")


def _print_exports(settings: "Settings") -> None:
    """Print what every other command has to know, ready to be copied."""
    for name, value in (
        ("REFEED_WAREHOUSE", settings.warehouse),
        ("REFEED_PROJECT", settings.project),
        ("REFEED_ARCHIVE_TABLE", settings.archive_table),
        ("REFEED_BIGQUERY_LOCATION", settings.bigquery.location),
    ):
        out.print(f"export {name}={value}")
