"""``refeed schedule``: schedules with their next slots and last runs, through the HTTP API."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any
from uuid import uuid4

import typer

from cli.api import print_answer
from cli.invocation import HomeGroup
from cli.moments import render_minute
from cli.options import EXIT_CODES, JsonOption
from cli.terminal import render_table

app = typer.Typer(
    cls=HomeGroup,
    help="List, show, run, pause and resume schedules. The commands call the API at REFEED_API_URL. 'refeed "
    "apply' creates schedules.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)]


@app.command("list", epilog=EXIT_CODES)
def list_(as_json: JsonOption = False) -> None:
    """List all schedules, with the time of the next run and the result of the last run."""
    print_answer(lambda api: api.list_schedules(), _table, as_json=as_json)


@app.command("show", epilog=EXIT_CODES)
def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show a schedule: the times of its next runs, and its last runs with the jobs that they started."""
    print_answer(lambda api: api.read_schedule(name), _lines, as_json=as_json)


@app.command("pause", epilog=EXIT_CODES)
def pause(name: NameArgument, as_json: JsonOption = False) -> None:
    """Pause a schedule. A paused schedule starts no jobs. Running jobs continue."""
    print_answer(lambda api: api.act_on_schedule(name, "pause"), _lines, as_json=as_json)


@app.command("resume", epilog=EXIT_CODES)
def resume(name: NameArgument, as_json: JsonOption = False) -> None:
    """Resume a schedule. Runs that were due during the pause are skipped."""
    print_answer(lambda api: api.act_on_schedule(name, "resume"), _lines, as_json=as_json)


@app.command("run", epilog=EXIT_CODES)
def run(
    name: NameArgument,
    idempotency_key: Annotated[
        str | None, typer.Option(help="A second call with the same key runs nothing again.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a schedule's job now, for the newest slot that has ended, with your own permissions.

    If the previous run has not ended, the schedule's overlap decides whether the run waits or is skipped.
    """
    key = idempotency_key or str(uuid4())
    print_answer(lambda api: api.run_schedule(name, idempotency_key=key), _run_lines, as_json=as_json)


def _table(found: Sequence[Mapping[str, Any]]) -> list[str]:
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
    return render_table(("schedule", "job", "cron", "next", "last"), rows)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['name']}, a {found['job']} at {found['cron']} {found['time_zone']}"
    if found["paused"]:
        yield f"  paused: {found['paused']}"
    for slot in found["next_slots"]:
        yield f"  next: {_minute(slot)}"
    if found["runs"]:
        yield from _run_lines(*found["runs"])


def _run_lines(*runs: Mapping[str, Any]) -> list[str]:
    rows = []
    for run in runs:
        covered = f"{_minute(run['slot_start'])} to {_minute(run['slot_end'])}"
        asked = "" if run["asked_by"] is None else f"requested by {run['asked_by']}, for {covered}"
        rows.append((_minute(run["slot"]), run["state"], run["job_id"] or "", run["why"] or asked))
    return render_table(("slot", "state", "job", "why"), rows)


def _minute(moment: str | None) -> str:
    return "" if moment is None else render_minute(moment)
