"""Schedules: when each runs its job next, how its last runs ended, and what people do with it."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from client.runs import split_runs
from console.forms import Action, ActionPage, key_field, read_key
from console.home import path_of
from console.jobs import EVENTS
from console.visit import Visit
from model.principal import SCHEDULES_APPLY

_LIVING: Final = frozenset({"QUEUED", "STARTING", "RUNNING"})
_BUTTONS: Final = {"run": "Run now", "pause": "Pause", "resume": "Resume"}


def read_schedules(visit: Visit) -> dict[str, Any]:
    """Return what the list of schedules shows."""
    found = visit.read("schedules", visit.api.list_schedules)
    return {"title": "Schedules", "found": found, "path_of": path_of, "split_runs": split_runs}


def read_schedule(visit: Visit) -> dict[str, Any]:
    """Return what a schedule's page shows."""
    name, api = visit.path_params["name"], visit.api
    found = visit.read(f"schedule {name}", lambda: api.read_schedule(name))
    context: dict[str, Any] = {"title": name, "found": found, "schedule": found.data}
    if found.problem is not None:
        return context
    subject = f"schedule/{name}"
    return {
        **context,
        "path_of": path_of,
        "verbs": {verb: _BUTTONS[verb] for verb in _find_verbs(found.data)},
        "events": visit.read(subject, lambda: api.list_events(subject, page_size=EVENTS)["events"]),
    }


def _find_verbs(schedule: Mapping[str, Any]) -> tuple[str, ...]:
    return ("run", "pause" if schedule["paused"] is None else "resume")


def _run_effects(schedule: Mapping[str, Any]) -> tuple[str, ...]:
    living = [run for run in schedule["runs"] if run["state"] in _LIVING]
    waits = (
        "The previous run has not ended. The schedule decides whether this run waits or is skipped (overlap).",
    )
    return (
        f"The schedule runs its {schedule['job']} now, for the newest slot that has ended.",
        "The job runs with your own permissions, and you are its creator.",
        *(waits if living else ()),
        *(() if schedule["paused"] is None else ("The schedule stays paused after this run.",)),
    )


def _effects(schedule: Mapping[str, Any], verb: str) -> tuple[str, ...]:
    """Return what an action will do, in the words of the commands."""
    if verb not in _find_verbs(schedule):
        return (f"The schedule is {'not ' if verb == 'resume' else 'already '}paused.",)
    if verb == "run":
        return _run_effects(schedule)
    if verb == "pause":
        return ("A paused schedule starts no jobs, and running jobs continue.",)
    return (
        f"The schedule is paused: {schedule['paused']}",
        "The schedule starts jobs again. Runs that were due during the pause are skipped.",
    )


def _action(verb: str) -> Action:
    def describe(visit: Visit, given: Mapping[str, str]) -> ActionPage:
        schedule = visit.api.read_schedule(visit.path_params["name"])
        return ActionPage(
            title=f"{_BUTTONS[verb]}: {schedule['name']}",
            effects=_effects(schedule, verb),
            button=_BUTTONS[verb],
            back=_path(schedule["name"]),
            fields=(key_field(given),) if verb == "run" else (),
            is_possible=verb in _find_verbs(schedule),
        )

    def perform(visit: Visit, fields: Mapping[str, str]) -> str:
        name = visit.path_params["name"]
        if verb == "run":
            visit.api.run_schedule(name, idempotency_key=read_key(fields))
        else:
            visit.api.act_on_schedule(name, verb)
        return _path(name)

    return Action(f"/schedules/{{name}}/{verb}", SCHEDULES_APPLY, describe, perform)


def _path(name: str) -> str:
    return f"/schedules/{quote(name, safe='')}"


SCHEDULE_ACTIONS: Final = tuple(_action(verb) for verb in _BUTTONS)
