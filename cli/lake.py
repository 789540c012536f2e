"""``refeed archive``: upkeep of the embedded warehouse."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.invocation import HomeGroup, open_deployment
from cli.options import JsonObjectOption, YesOption
from cli.terminal import confirm, print_found
from model.errors import SettingsError, TableNotFoundError
from model.naming import counted

if TYPE_CHECKING:
    from warehouse.port import Upkeep

app = typer.Typer(
    cls=HomeGroup,
    help="Vacuum and expire the archive, or a staging or reporting table, and count its messages.",
    no_args_is_help=True,
)

TableOption = Annotated[
    str | None,
    typer.Option(
        "--table", help="A staging or reporting table, as dataset.table. Default: the archive.", show_default=False
    ),
]


def compact(table: TableOption = None, as_json: JsonObjectOption = False) -> None:
    """Combine small files of a table into large files. A running backup and running queries continue.

    Streams also compact their tables by themselves.
    """
    removed = _open(table).compact()
    said = f"{counted(removed, 'file')} fewer; 'refeed archive vacuum' frees their space later"
    print_found({"files_removed": removed}, lambda _: [said], as_json=as_json)


@app.command("vacuum")
def vacuum(
    keep_hours: Annotated[
        int,
        typer.Option(
            min=2,
            help="Keep all files that a table used in the last N hours. Files of reporting tables are kept for "
            "at least 24 hours.",
        ),
    ] = 24,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing, and print what would be deleted.")
    ] = False,
    table: Annotated[
        str | None, typer.Option("--table", help="Vacuum only this table, as dataset.table.", show_default=False)
    ] = None,
    as_json: JsonObjectOption = False,
) -> None:
    """Delete data files that only old versions of a table use.

    The command cleans the archive, and the staging and reporting tables of the registry's sources.
    """
    opened = _open_all() if table is None else [(table, _open(table))]
    paths = {name: upkeep.vacuum(keep_hours=keep_hours, dry_run=dry_run) for name, upkeep in opened}
    done = f"files {'would be' if dry_run else 'were'} deleted"
    said = [f"{name}: {len(found)} {done}" for name, found in paths.items() if found and len(paths) > 1]
    flat = [path for found in paths.values() for path in found]
    print_found(
        {"files": flat, "dry_run": dry_run, "tables": {name: len(found) for name, found in paths.items()}},
        lambda _: [*said, f"{len(flat)} {done}"],
        as_json=as_json,
    )


@app.command("expire")
def expire(
    before: Annotated[
        datetime,
        typer.Option(formats=["%Y-%m-%d"], metavar="DAY", help="The first day (UTC) whose messages are kept."),
    ],
    yes: YesOption = False,
    table: TableOption = None,
    as_json: JsonObjectOption = False,
) -> None:
    """Delete the archive's messages that were archived before a day. 'refeed archive vacuum' then frees the disk.

    With --table, the command deletes the rows of that table instead. The command does not check whether the rows
    of a staging table are merged: choose a day before which all rows are merged.
    """
    found = _open(table)
    if not yes:
        confirm(f"Delete all rows of {table or 'the archive'} that were ingested before {before:%Y-%m-%d}?")
    removed = found.expire(before=before.date())
    said = f"{counted(removed, 'file')} removed; 'refeed archive vacuum' frees their space later"
    print_found({"files_removed": removed}, lambda _: [said], as_json=as_json)


@app.command("count")
def count(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count nothing, and print what would be read.")
    ] = False,
    as_json: JsonObjectOption = False,
) -> None:
    """Count the messages in archive files that an older Refeed wrote. 'refeed volumes' needs the counts.

    The command reads each of these files once, and writes the counts into new files in the archive's folder.
    For newer files, Refeed already has the counts. A running backup continues.
    """
    found = _open(None)
    files, size = found.uncounted()
    if not dry_run:
        files = found.count()
    said = f"{files} files {'would be' if dry_run else 'were'} read, {size:,} bytes"
    print_found({"files": files, "bytes": size, "dry_run": dry_run}, lambda _: [said], as_json=as_json)


def _open_all() -> "Iterator[tuple[str, Upkeep]]":
    """Yield the upkeep of each table that is there: the archive's first, which needs no registry.

    Raises:
        SettingsError: the archive is not in a lake.
    """
    from model.audit import audits_table

    yield "archive", _open(None)
    deployment = open_deployment()
    settings = deployment.settings
    own = (settings.dead_letter_table, audits_table(settings.archive_table))
    for name in (*own, *deployment.staged.tables()):
        with suppress(TableNotFoundError):
            yield name, _open(name)


def _open(table: str | None) -> "Upkeep":
    """Return the upkeep of the archive, or of the table of rows that is named.

    Raises:
        SettingsError: the archive is not in a lake.
        TableNotFoundError: there is no such table.
    """
    warehouse = open_deployment().warehouse
    found = warehouse.open_upkeep(table)
    if found is None:
        raise SettingsError(f"'refeed archive' works only with a lake, but REFEED_WAREHOUSE is {warehouse.name}.")
    return found
