"""``refeed schedule``: schedules with their next slots and last runs, through the HTTP API."""

from typing import Annotated, Any

import typer

from cli.api import open_api
from cli.invocation import HomeGroup
from cli.jobs import EXIT_CODES, JsonOption
from cli.moments import render_minute
from cli.terminal import out, print_json, print_table

app = typer.Typer(
    cls=HomeGroup,
    help="List, show, pause and resume schedules; 'refeed apply' makes them (through the API at REFEED_API_URL).",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)]


@app.command("list", epilog=EXIT_CODES)
def list_(as_json: JsonOption = False) -> None:
    """List all schedules, each with its next slot and how its last run went."""
    with open_api() as api:
        found = api.list_schedules()
    if as_json:
        print_json(found)
        return
    rows = []
    for each in found:
        last = each["runs"][0] if each["runs"] else None
        rows.append(
            (
                each["name"],
                each["job"],
                f"{each['cron']} {each['time_zone']}",
                "paused" if each["paused"] else _minute(next(iter(each["next_slots"]), None)),
                "" if last is None else f"{last['state']} {_minute(last['slot'])}",
            )
        )
    print_table(("schedule", "job", "cron", "next", "last"), rows)


@app.command("show", epilog=EXIT_CODES)
def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show a schedule: its next slots, and its last runs with their jobs."""
    with open_api() as api:
        _print_schedule(api.read_schedule(name), as_json=as_json)


@app.command("pause", epilog=EXIT_CODES)
def pause(name: NameArgument, as_json: JsonOption = False) -> None:
    """Let no slot be due until it is resumed; what runs goes on."""
    with open_api() as api:
        _print_schedule(api.act_on_schedule(name, "pause"), as_json=as_json)


@app.command("resume", epilog=EXIT_CODES)
def resume(name: NameArgument, as_json: JsonOption = False) -> None:
    """Let slots be due from now on; those of the pause are not made up for."""
    with open_api() as api:
        _print_schedule(api.act_on_schedule(name, "resume"), as_json=as_json)


def _print_schedule(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out.print(f"{found['name']}, a {found['job']} at {found['cron']} {found['time_zone']}", markup=False)
    if found["paused"]:
        out.print(f"  paused: {found['paused']}", markup=False, soft_wrap=True)
    for slot in found["next_slots"]:
        out.print(f"  next: {_minute(slot)}", markup=False)
    rows = [(_minute(run["slot"]), run["state"], run["job_id"] or "", run["why"] or "") for run in found["runs"]]
    if rows:
        print_table(("slot", "state", "job", "why"), rows)


def _minute(moment: str | None) -> str:
    return "" if moment is None else render_minute(moment)
