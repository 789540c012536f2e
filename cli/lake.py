"""``refeed lake``: upkeep of the embedded warehouse."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.invocation import HomeGroup, command_settings
from cli.terminal import out, print_json

if TYPE_CHECKING:
    from connectors.lake.archive import LakeArchive

app = typer.Typer(cls=HomeGroup, help="Compact, vacuum and expire the archive.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("compact")
def compact(as_json: JsonOption = False) -> None:
    """Merge small files into large ones; a running backup and running queries go on.

    The backup stream does this by itself when small files pile up.
    """
    removed = _archive().compact()
    if as_json:
        print_json({"files_removed": removed})
    else:
        out.print(f"{removed} files fewer; 'refeed lake vacuum' frees their space later")


@app.command("vacuum")
def vacuum(
    keep_hours: Annotated[
        int, typer.Option(help="Keep what any snapshot of so many hours names; 2 at least.")
    ] = 24,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing, say what would go.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete files that no snapshot of the last hours names."""
    paths = _archive().vacuum(keep_hours=keep_hours, dry_run=dry_run)
    if as_json:
        print_json({"files": paths, "dry_run": dry_run})
    else:
        out.print(f"{len(paths)} files {'would be' if dry_run else 'were'} deleted")


@app.command("expire")
def expire(
    before: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"], help="First day to keep (UTC).")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Take every message ingested before a day out of the archive; vacuum then frees the space."""
    if not yes:
        typer.confirm(
            f"Remove every message ingested before {before:%Y-%m-%d} from the archive?", abort=True, err=True
        )
    removed = _archive().expire(before=before.date())
    if as_json:
        print_json({"files_removed": removed})
    else:
        out.print(f"{removed} files taken out; 'refeed lake vacuum' frees their space later")


def _archive() -> "LakeArchive":
    from connectors.lake.archive import LakeArchive

    settings = command_settings()
    settings.require_lake("'refeed lake' works")
    return LakeArchive(settings.lake, settings.archive_table, settings.archive_partitioning)
