"""``refeed merge``: make reporting tables what staging says by now, here or as a job of the service."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from cli.api import open_api
from cli.flags import read_given, takes_fields
from cli.invocation import HomeGroup, command_settings
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
from cli.moments import parse_moment, render_minute
from cli.services import configure_logging
from cli.terminal import out, print_json, print_table
from client.api import RefeedApi
from model.declaration import declared_fields
from model.errors import InputError
from model.moment import render_moment
from reporting.request import MergeCreate

if TYPE_CHECKING:
    from warehouse.merges import MergeReport

_COLUMNS: Final = ("source", "keys in staging", "newer", "partitions")

app = typer.Typer(
    cls=HomeGroup,
    help="Merge staging into reporting: here and now without a command, or as a job of the service at "
    "REFEED_API_URL.",
    epilog=EXIT_CODES,
    invoke_without_command=True,
)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="A merge's id, mg_...", show_default=False)]


@app.callback()
@takes_fields(MergeCreate, ("source", "since", "date", "dry_run"))
def merge(
    context: typer.Context,
    *,
    source: Annotated[
        list[str] | None, typer.Option(help="A source of the registry; again for another one. Default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    **given: Any,
) -> None:
    """Merge what staging tables have since their last merge into reporting, one source after the other.

    Running it twice, late, or again after it died changes nothing more. It reads and writes only the partitions
    of reporting that change, and commits each source at once or not at all. 'refeed merge create' leaves it to
    the service instead.
    """
    if context.invoked_subcommand is not None:
        if source or as_json or any(given.values()):
            raise InputError(f"Options stand behind the command: refeed merge {context.invoked_subcommand} ...")
        return
    from app.deployment import Deployment
    from pipeline.registry import Registry
    from reporting.merge import merge_source
    from reporting.sources import choose_sources

    settings = command_settings()
    configure_logging()
    wanted = MergeCreate(**read_given(MergeCreate, given)).parse()
    sources = choose_sources(source, Registry(settings.registry).read_valid().valid_sources())
    with closing(Deployment(settings).warehouse.open_merger(settings.home / "merges")) as merger:
        reports = [
            merge_source(found, warehouse=merger, is_dry_run=wanted.is_dry_run, since=wanted.since)
            for found in sources
        ]
    if as_json:
        print_json([_to_json(report) for report in reports])
        return
    print_table(_COLUMNS, [[r.source, str(r.changed), str(r.newer), str(len(r.partitions))] for r in reports])
    if wanted.is_dry_run:
        out.print("nothing was changed")


@app.command("create", epilog=EXIT_CODES)
@takes_fields(MergeCreate, [field.name for field in declared_fields(MergeCreate)])
def create(
    *,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeated calls with the same key create one merge.")
    ] = None,
    watch: WatchOption = False,
    as_json: JsonOption = False,
    **given: Any,
) -> None:
    """Have the service merge: a job that outlives this terminal and is restarted when it dies."""
    request = read_given(MergeCreate, given)
    with open_api() as api:
        _finish(api, api.merges.create(request, idempotency_key=idempotency_key or str(uuid4())), watch, as_json)


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
    """List merges, the newest first."""
    begin = parse_moment(since, "--since")
    with open_api() as api:
        page = api.merges.list(
            page_size=page_size, page_token=page_token, order_by=order_by, state=state, since=begin
        )
    if as_json:
        print_json(page)
        return
    rows = [
        [
            found["id"],
            found["state"],
            found["source"] or "all",
            f"{found['progress']['merged']} / {found['progress']['sources']}",
            found["created_by"],
            found["created_at"],
        ]
        for found in page["merges"]
    ]
    print_table(["id", "state", "source", "merged / sources", "by", "created"], rows)
    print_more(page, since=begin)


@app.command("show", epilog=EXIT_CODES)
def show(merge_id: IdArgument, as_json: JsonOption = False) -> None:
    """Show one merge, source by source."""
    with open_api() as api:
        _print_merge(api.merges.read(merge_id), as_json=as_json)


@app.command("audits", epilog=EXIT_CODES)
def audits(
    source: Annotated[
        str | None, typer.Argument(help="This source alone; all without it.", show_default=False)
    ] = None,
    since: CreatedSinceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each merge found, source by source: keys, rows and audits; without --since of 14 days."""
    with open_api() as api:
        found = api.list_merge_audits(source, parse_moment(since, "--since"))
    if as_json:
        print_json(found)
        return
    rows = [
        [
            render_minute(night["finished_at"]),
            night["source"],
            night["state"],
            f"{night['changed']:,}",
            f"{night['newer']:,}",
            f"{night['rows_after'] - night['rows_before']:+,}",
            ", ".join(each["name"] for each in night["audits"] if not each["is_passed"]) or "-",
        ]
        for night in found["nights"]
    ]
    print_table(["ended (UTC)", "source", "state", "keys", "newer", "rows", "failed audits"], rows)


@app.command("watch", epilog=EXIT_CODES)
def watch(merge_id: IdArgument, as_json: JsonOption = False) -> None:
    """Watch a merge until it has ended; exit 0 only if it SUCCEEDED."""
    with open_api() as api:
        _finish(api, api.merges.read(merge_id), True, as_json)


@app.command("cancel", epilog=EXIT_CODES)
def cancel(merge_id: IdArgument, as_json: JsonOption = False) -> None:
    """Cancel a merge; sources that are merged stay merged."""
    with open_api() as api:
        _print_merge(api.merges.act(merge_id, "cancel"), as_json=as_json)


@app.command("retry", epilog=EXIT_CODES)
def retry(merge_id: IdArgument, watch: WatchOption = False, as_json: JsonOption = False) -> None:
    """Continue a failed or cancelled merge with the sources that are not merged."""
    with open_api() as api:
        _finish(api, api.merges.act(merge_id, "retry"), watch, as_json)


@app.command("events", epilog=EXIT_CODES)
def events(merge_id: IdArgument, after: AfterOption = 0, as_json: JsonOption = False) -> None:
    """Show its history: each change with its author and reason."""
    with open_api() as api:
        print_events(api.merges.read_part(merge_id, "events", after=str(after)), as_json=as_json)


@app.command("logs", epilog=EXIT_CODES)
def logs(
    merge_id: IdArgument,
    tail: TailOption = DEFAULT_TAIL_BYTES,
    follow: FollowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the driver's log; with --json as a list of lines."""
    with open_api() as api:
        print_log(api.merges.read_log(merge_id, tail_bytes=tail, follow=follow), as_json=as_json)


def _finish(api: RefeedApi, found: dict[str, Any], watch: bool, as_json: bool) -> None:
    show = partial(_print_merge, as_json=as_json)
    finish(api.merges, found, noun="merge", watch=watch, describe=_progress, show=show)


def _progress(found: Mapping[str, Any]) -> str:
    return f"{found['progress']['merged']} of {found['progress']['sources']} sources"


def _print_merge(found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    dry = ", a dry run" if found["dry_run"] else ""
    out.print(f"{found['id']}  {found['state']}{dry}", markup=False)
    rows = [
        [each["source"], each["state"], str(each["changed"]), str(each["newer"]), str(len(each["partitions"]))]
        for each in found["sources"]
    ]
    print_table([_COLUMNS[0], "state", *_COLUMNS[1:]], rows)
    for each in found["sources"]:
        if each["error"]:
            out.print(f"  {each['source']}  {each['error']['code']}: {each['error']['message']}", markup=False)
    if found["error"] and not any(each["error"] for each in found["sources"]):
        out.print(f"  {found['error']['code']}: {found['error']['message']}", markup=False)


def _to_json(report: "MergeReport") -> dict[str, Any]:
    return {**asdict(report), "since": render_moment(report.since), "until": render_moment(report.until)}
