"""Schedules with their next slots and last runs, as commands show them; and ``refeed run-now``."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import uuid4
from zoneinfo import ZoneInfo

from cli.api import open_api, poll
from cli.completion import name_argument
from cli.moments import render_minute
from cli.objects import ObjectKind
from cli.options import JsonOption, key_option
from cli.terminal import Columns, print_found, render_table, tabulate
from client.runs import split_runs
from model.naming import counted

# A replica looks every second for runs to start.
_START_SECONDS: Final = 10.0


def run_now(
    name: Annotated[str, name_argument("schedule")],
    idempotency_key: Annotated[str | None, key_option("make only one run")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a schedule's job now, for the newest slot that has ended, with your own permissions.

    If the previous run has not ended, the schedule's field overlap decides whether the new run waits or is
    skipped. The command waits a few seconds until the job is created, and prints its id.
    """
    name = name.removeprefix("schedule/")
    with open_api() as api:
        run = api.run_schedule(name, idempotency_key=idempotency_key or str(uuid4()))

        def look() -> dict[str, Any]:
            return next((each for each in api.read_schedule(name)["runs"] if each["slot"] == run["slot"]), run)

        found = poll(run, look, lambda it: it["state"] != "STARTING", seconds=_START_SECONDS)
    print_found(found, _run_lines, as_json=as_json)


def _last(found: Mapping[str, Any]) -> str:
    ran, skipped = split_runs(found["runs"])
    last = "no run yet" if ran is None else f"{ran['state']} {_minute(ran['slot_end'])}"
    return f"{last}, then {counted(len(skipped), 'slot')} skipped" if skipped else last


def _table(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of schedules, and below it why the newest slots were skipped or failed."""
    yield from tabulate(_COLUMNS, found["schedules"])
    for each in found["schedules"]:
        for run in each["runs"][:1]:
            if run["why"] is not None:
                yield f"{each['name']}: {run['state']} {_minute(run['slot_end'])}: {run['why']}"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['name']}, a {found['job']} at {found['cron']} {found['time_zone']}"
    if found["paused"]:
        yield f"  paused: {found['paused']}"
    for slot in found["next_slots"]:
        yield f"  next: {_minute(slot)} UTC{_local(slot, found['time_zone'])}"
    yield f"  last: {_last(found)}"
    if found["runs"]:
        yield from _run_lines(*found["runs"])


def _run_lines(*runs: Mapping[str, Any]) -> list[str]:
    rows = []
    for run in runs:
        # A merge takes what is new, whenever that was staged.
        covered = f"for {_minute(run['slot_start'])} to {_minute(run['slot_end'])}"
        what = "of all rows that are not merged yet" if run["job_kind"] == "merge" else covered
        at = _minute(run["slot"])
        asked = "" if run["asked_by"] is None else f"requested by {run['asked_by']} at {at}, {what}"
        # The end of a slot identifies it; the API calls the time of a request its slot.
        rows.append((_minute(run["slot_end"]), run["state"], run["job_id"] or "", run["why"] or asked))
    return render_table(("slot (UTC)", "state", "job", "why"), rows)


def _local(moment: str, zone: str) -> str:
    """Return a moment's time in its schedule's zone, to stand behind the one in UTC; nothing of UTC itself."""
    if zone == "UTC":
        return ""
    return f" ({datetime.fromisoformat(moment).astimezone(ZoneInfo(zone)):%m-%d %H:%M} in {zone})"


def _minute(moment: str | None) -> str:
    return "" if moment is None else render_minute(moment)


_COLUMNS: Final[Columns] = {
    "schedule": "name",
    "job": "job",
    "cron": lambda it: f"{it['cron']} {it['time_zone']}",
    "next slot (UTC)": lambda it: "paused" if it["paused"] else _minute(next(iter(it["next_slots"]), None)),
    "last slot (UTC)": _last,
}
SCHEDULE: Final = ObjectKind(
    name="schedule",
    plural="schedules",
    fetch=lambda api, _: {"schedules": api.list_schedules()},
    table=_table,
    read=lambda api, name: api.read_schedule(name),
    lines=_lines,
    next=lambda found: f"refeed {'resume schedule/' if found['paused'] else 'run-now '}{found['name']}",
    acts={
        "pause": lambda api, name, _: api.act_on_schedule(name, "pause"),
        "resume": lambda api, name, _: api.act_on_schedule(name, "resume"),
    },
)
