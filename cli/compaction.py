"""``refeed compaction``: compactions that schedules create, as jobs of the service."""

from collections.abc import Mapping
from typing import Any, Final

import typer

from cli.invocation import HomeGroup
from cli.job_commands import JobCommands
from cli.jobs import EXIT_CODES, finish
from cli.terminal import out, print_json, print_table
from client.api import RefeedApi

_NOUN: Final = "compaction"
_PENDING: Final = "-"

app = typer.Typer(
    cls=HomeGroup,
    help="Compactions, which schedules create; 'refeed lake compact' compacts one table here and now.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)


def _finish(api: RefeedApi, found: dict[str, Any], *, watch: bool, as_json: bool) -> None:
    def show(found: Mapping[str, Any]) -> None:
        _print_compaction(found, as_json=as_json)

    finish(api.compactions, found, noun=_NOUN, watch=watch, describe=_progress, show=show)


def _progress(found: Mapping[str, Any]) -> str:
    return f"{len(found['files_removed'])} of {len(found['tables'])} tables"


def _print_compaction(found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out.print(f"{found['id']}  {found['state']}", markup=False)
    rows = [[table, str(found["files_removed"].get(table, _PENDING))] for table in found["tables"]]
    print_table(["table", "files fewer"], rows)
    if found["error"]:
        out.print(f"  {found['error']['code']}: {found['error']['message']}", markup=False)


_commands = JobCommands(app=app, noun=_NOUN, id_prefix="cp", calls=lambda api: api.compactions, finish=_finish)
_commands.add_list(
    ("compacted / tables", "files fewer"),
    lambda found: (
        f"{len(found['files_removed'])} / {len(found['tables'])}",
        f"{sum(found['files_removed'].values()):,}",
    ),
)
_commands.add_show("Show one compaction, table by table.")
_commands.add_watch()
_commands.add_action("cancel", "Cancel a compaction; what is compacted stays so, and no row changes.")
_commands.add_action(
    "retry", "Continue a failed or cancelled compaction with the tables that are not compacted.", can_watch=True
)
_commands.add_events()
_commands.add_logs()
