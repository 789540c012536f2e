"""``refeed compaction``: compactions that schedules create, as jobs of the service."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer

from cli.invocation import HomeGroup
from cli.jobs import JobCommands, watch_job
from cli.options import EXIT_CODES
from cli.terminal import render_table

_PENDING: Final = "-"

app = typer.Typer(
    cls=HomeGroup,
    help="Watch, cancel and retry compactions that schedules started. 'refeed lake compact' compacts a table "
    "directly.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['id']}  {found['state']}"
    rows = [[table, str(found["files_removed"].get(table, _PENDING))] for table in found["tables"]]
    yield from render_table(["table", "files fewer"], rows)
    if found["error"]:
        yield f"  {found['error']['code']}: {found['error']['message']}"


def _progress(found: Mapping[str, Any]) -> str:
    return f"{len(found['files_removed'])} of {len(found['tables'])} tables"


_commands = JobCommands(
    app=app,
    noun="compaction",
    id_prefix="cp",
    calls=lambda api: api.compactions,
    lines=_lines,
    watch=lambda api, found: watch_job(api.compactions, found, noun="compaction", progress=_progress),
)
_commands.add_list(
    ("compacted / tables", "files fewer"),
    lambda found: (
        f"{len(found['files_removed'])} / {len(found['tables'])}",
        f"{sum(found['files_removed'].values()):,}",
    ),
)
_commands.add_show("Show one compaction, with a line for each table.")
_commands.add_watch()
_commands.add_action("cancel", "Cancel a compaction. Compacted tables stay compacted, and no row changes.")
_commands.add_action(
    "retry",
    "Continue a failed or cancelled compaction with the tables that are not compacted yet.",
    can_watch=True,
)
_commands.add_logs()
