"""``refeed compaction``: compactions that schedules create, as jobs of the service."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final

import typer

from cli.api import open_api
from cli.invocation import HomeGroup
from cli.jobs import (
    DEFAULT_TAIL_BYTES,
    EXIT_CODES,
    AfterOption,
    CreatedSinceOption,
    FollowOption,
    JsonOption,
    PageSizeOption,
    PageTokenOption,
    StateOption,
    TailOption,
    WatchOption,
    finish,
    print_events,
    print_log,
    print_more,
)
from cli.moments import parse_moment
from cli.terminal import out, print_json, print_table
from client.api import RefeedApi

_PENDING: Final = "-"

app = typer.Typer(
    cls=HomeGroup,
    help="Compactions, which schedules create; 'refeed lake compact' compacts one table here and now.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="A compaction's id, cp_...", show_default=False)]


@app.command("list", epilog=EXIT_CODES)
def list_(
    *,
    state: StateOption = None,
    since: CreatedSinceOption = None,
    order_by: Annotated[str | None, typer.Option(help="Such as: state, created_at desc")] = None,
    page_size: PageSizeOption = 50,
    page_token: PageTokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List compactions, the newest first."""
    begin = parse_moment(since, "--since")
    with open_api() as api:
        page = api.compactions.list(
            page_size=page_size, page_token=page_token, order_by=order_by, state=state, since=begin
        )
    if as_json:
        print_json(page)
        return
    rows = [
        [
            found["id"],
            found["state"],
            f"{len(found['files_removed'])} / {len(found['tables'])}",
            _files(found),
            found["created_by"],
            found["created_at"],
        ]
        for found in page["compactions"]
    ]
    print_table(["id", "state", "compacted / tables", "files fewer", "by", "created"], rows)
    print_more(page, since=begin)


@app.command("show", epilog=EXIT_CODES)
def show(compaction_id: IdArgument, as_json: JsonOption = False) -> None:
    """Show one compaction, table by table."""
    with open_api() as api:
        _print_compaction(api.compactions.read(compaction_id), as_json=as_json)


@app.command("watch", epilog=EXIT_CODES)
def watch(compaction_id: IdArgument, as_json: JsonOption = False) -> None:
    """Watch a compaction until it has ended; exit 0 only if it SUCCEEDED."""
    with open_api() as api:
        _finish(api, api.compactions.read(compaction_id), True, as_json)


@app.command("cancel", epilog=EXIT_CODES)
def cancel(compaction_id: IdArgument, as_json: JsonOption = False) -> None:
    """Cancel a compaction; what is compacted stays so, and no row changes."""
    with open_api() as api:
        _print_compaction(api.compactions.act(compaction_id, "cancel"), as_json=as_json)


@app.command("retry", epilog=EXIT_CODES)
def retry(compaction_id: IdArgument, watch: WatchOption = False, as_json: JsonOption = False) -> None:
    """Continue a failed or cancelled compaction with the tables that are not compacted."""
    with open_api() as api:
        _finish(api, api.compactions.act(compaction_id, "retry"), watch, as_json)


@app.command("events", epilog=EXIT_CODES)
def events(compaction_id: IdArgument, after: AfterOption = 0, as_json: JsonOption = False) -> None:
    """Show its history: each change with its author and reason."""
    with open_api() as api:
        print_events(api.compactions.read_part(compaction_id, "events", after=str(after)), as_json=as_json)


@app.command("logs", epilog=EXIT_CODES)
def logs(
    compaction_id: IdArgument,
    tail: TailOption = DEFAULT_TAIL_BYTES,
    follow: FollowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the driver's log; with --json as a list of lines."""
    with open_api() as api:
        print_log(api.compactions.read_log(compaction_id, tail_bytes=tail, follow=follow), as_json=as_json)


def _finish(api: RefeedApi, found: dict[str, Any], watch: bool, as_json: bool) -> None:
    show = partial(_print_compaction, as_json=as_json)
    finish(api.compactions, found, noun="compaction", watch=watch, describe=_progress, show=show)


def _print_compaction(found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out.print(f"{found['id']}  {found['state']}", markup=False)
    rows = [[table, str(found["files_removed"].get(table, _PENDING))] for table in found["tables"]]
    print_table(["table", "files fewer"], rows)
    if found["error"]:
        out.print(f"  {found['error']['code']}: {found['error']['message']}", markup=False)


def _progress(found: Mapping[str, Any]) -> str:
    return f"{len(found['files_removed'])} of {len(found['tables'])} tables"


def _files(found: Mapping[str, Any]) -> str:
    return f"{sum(found['files_removed'].values()):,}"
