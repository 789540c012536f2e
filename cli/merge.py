"""``refeed merge``: make reporting tables what staging says by now, here or as a job of the service."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from cli.api import open_api, print_answer
from cli.flags import read_given, takes_fields
from cli.invocation import HomeGroup, open_deployment
from cli.jobs import MERGE, render_without_key
from cli.moments import parse_moment, render_minute
from cli.options import (
    EXIT_CODES,
    WATCH_EXIT_CODES,
    CreatedSinceOption,
    JsonArrayOption,
    JsonOption,
    WatchOption,
    key_option,
)
from cli.services import service_settings
from cli.terminal import Columns, print_found, render_table, tabulate
from model.errors import InputError, RefeedError
from model.moment import render_moment
from reporting.request import MergeCreate

if TYPE_CHECKING:
    from warehouse.merges import MergeReport

_COLUMNS: Final = ("source", "keys read", "keys changed", "partitions")

app = typer.Typer(
    cls=HomeGroup,
    help="Merge staging tables into reporting tables. Without a subcommand, the command runs the merge in its "
    "own process. The subcommands start merges that the API at REFEED_API_URL runs, and show their audits.",
    epilog=EXIT_CODES,
    invoke_without_command=True,
)


@app.callback()
@takes_fields(MergeCreate, ("source", "since", "date", "dry_run"))
def merge(
    context: typer.Context,
    *,
    source: Annotated[
        list[str] | None, typer.Option(help="A source of the registry. May be repeated. Default: all.")
    ] = None,
    as_json: JsonArrayOption = False,
    **given: Any,
) -> None:
    """Merge what staging tables have since their last merge into reporting, one source after the other.

    KEYS READ counts the keys in the rows that the merge read, and KEYS CHANGED the keys whose row in reporting it
    changed. A merge may read merged rows again, for example after a compaction. That changes nothing.
    Running it twice, late, or again after it died changes nothing more. It reads and writes only the partitions
    of reporting that change, and commits each source at once or not at all. A source that can't be merged keeps
    no other from being merged; the exit code says so. 'refeed merge create' leaves it to the service instead.
    """
    if context.invoked_subcommand is not None:
        if source or as_json or any(given.values()):
            raise InputError(
                f"Write the options after the subcommand: refeed merge {context.invoked_subcommand} ..."
            )
        return
    from pipeline.registry import Registry
    from reporting.request import choose_sources

    # The command prints its result itself.
    settings = service_settings(log_level="WARNING")
    wanted = MergeCreate(**read_given(MergeCreate, given)).parse()
    sources = choose_sources(source, Registry(settings.registry).read_valid().merge_sources())
    reports: list[MergeReport] = []
    failed: dict[str, RefeedError] = {}
    with closing(open_deployment(settings).warehouse.open_merger(settings.home / "merges")) as merger:
        for found in sources:
            try:
                reports.append(
                    merger.merge(found, now=datetime.now(UTC), is_dry_run=wanted.is_dry_run, since=wanted.since)
                )
            except RefeedError as exc:
                failed[found.name] = exc
    rows = [[r.source, str(r.changed), str(r.newer), str(len(r.partitions))] for r in reports]
    note = [render_without_key(r.source, r.without_key) for r in reports if r.without_key]
    note += ["nothing was changed"] if wanted.is_dry_run else []
    print_found(
        [_to_json(report) for report in reports], lambda _: render_table(_COLUMNS, rows) + note, as_json=as_json
    )
    if failed:
        raise _together(failed, len(sources))


@app.command("create", epilog=WATCH_EXIT_CODES)
@takes_fields(MergeCreate)
def create(
    *,
    idempotency_key: Annotated[str | None, key_option("create only one merge")] = None,
    watch: WatchOption = False,
    as_json: JsonOption = False,
    **given: Any,
) -> None:
    """Start a merge that the API runs. The merge continues if you close the terminal.

    With --dry-run, the command waits for the result.
    """
    request = read_given(MergeCreate, given)
    with open_api() as api:
        made = api.merges.create(request, idempotency_key=idempotency_key or str(uuid4()))
        # The result of a dry run is what it would do.
        MERGE.finish(api, made, watch=watch or bool(request.get("dry_run")), as_json=as_json)


@app.command("audits", epilog=EXIT_CODES)
def audits(
    source: Annotated[
        str | None, typer.Argument(help="Show only this source. Default: all.", show_default=False)
    ] = None,
    since: CreatedSinceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the keys, rows and audits (checks) of each source in each merge of the last 14 days.

    KEYS READ counts the keys with new rows in staging, and KEYS CHANGED the keys whose row in the reporting table
    changed. ROWS is how many rows the reporting table has gained or lost.
    """
    begin = parse_moment(since, "--since")
    print_answer(lambda api: api.list_merge_audits(source, begin), _audit_lines, as_json=as_json)


def _audit_lines(found: Mapping[str, Any]) -> list[str]:
    columns: Columns = {
        "ended (UTC)": lambda it: render_minute(it["finished_at"]),
        "source": "source",
        "state": "state",
        "keys read": lambda it: f"{it['changed']:,}",
        "keys changed": lambda it: f"{it['newer']:,}",
        "rows": lambda it: f"{it['rows_after'] - it['rows_before']:+,}",
        "failed audits": lambda it: ", ".join(e["name"] for e in it["audits"] if not e["is_passed"]) or "-",
    }
    return tabulate(columns, found["nights"])


def _together(failed: Mapping[str, RefeedError], count: int) -> RefeedError:
    """Return the error that names every source that was not merged; its code is the first one's."""
    first = next(iter(failed.values()))
    errors = [
        {"pointer": source, "message": exc.message.removeprefix(f"{source}: "), "code": exc.code}
        for source, exc in failed.items()
    ]
    return type(first)(f"{len(failed)} of {count} sources were not merged.", errors=errors)


def _to_json(report: "MergeReport") -> dict[str, Any]:
    return {**asdict(report), "since": render_moment(report.since), "until": render_moment(report.until)}
