"""Jobs of every kind: their list, the page of each, and what a job's state allows now."""

from collections.abc import Mapping
from typing import Any, Final

from client.reverting import find_revert_obstacle
from console.backfill import ENDED, awaits_approval, read_backfill
from console.fields import describe_fields
from console.visit import Visit
from model.job import JobState
from model.principal import APPROVE, PLAN, ROLLOUTS_APPLY, RUN, STREAMS_OPERATE

LOG_LINES: Final = 200
EVENTS: Final = 1000
_PAGE_SIZE: Final = 50
_KINDS: Final = ("backfill", "merge", "compaction", "update", "restore", "change")
# Agents carry them out, and write to the log of the stream.
_OF_STREAMS: Final = {"update": "Update of", "restore": "Rollback of"}
_WITHOUT_LOG: Final = frozenset({*_OF_STREAMS, "change"})
_GOES_BACK: Final = frozenset({"ROLLING_BACK", "HANDING_BACK"})
_STATES: Final = tuple(state.value for state in JobState)
_FEW: Final = 3
# What an action is called on its button; the button of one that loses something is red.
VERBS: Final[Mapping[str, str]] = {
    "approve": "Approve",
    "reject": "Reject",
    "pause": "Pause",
    "resume": "Resume",
    "rate": "Change the rate",
    "cancel": "Cancel",
    "retry": "Retry",
    "rerun": "Run again",
    "revert": "Revert",
}
# Fields that every job has; the rest is what its kind wants and has done.
_OF_EVERY_JOB: Final = frozenset(
    {"id", "kind", "state", "description", "error", "etag", "restarts"}
    | {"created_by", "created_at", "started_at", "finished_at", "what"}
)


def read_jobs(visit: Visit) -> dict[str, Any]:
    """Return what the list of jobs shows: a page of those that the filters in the URL let through."""
    names = ("kind", "state", "topic", "label", "since", "page_token")
    filters: dict[str, Any] = {name: visit.params.get(name) or None for name in names}
    for name, options in (("kind", _KINDS), ("state", _STATES)):
        if filters[name]:
            visit.choose(name, options, options[0])
    found = visit.read(
        f"jobs {sorted(filters.items(), key=str)}",
        lambda: visit.api.jobs.list(page_size=_PAGE_SIZE, **filters),
    )
    return {
        "title": "Jobs",
        "found": found,
        "http_status": 200 if found.problem is None else found.problem.get("status", 200),
        "jobs": () if found.problem else [sum_up(job) for job in found.data["jobs"]],
        "filters": filters,
        "kinds": _KINDS,
        "states": _STATES,
    }


def read_job(visit: Visit) -> dict[str, Any]:
    """Return what a job's page shows. The page of a backfill has its own parts instead of a table of fields."""
    name, api = visit.path_params["id"], visit.api
    found = visit.read(f"job {name}", lambda: api.jobs.read(name))
    context: dict[str, Any] = {"title": name, "id": name, "found": found, "job": found.data}
    if found.problem is not None:
        return context
    job = found.data
    return {
        **context,
        "title": describe_job(job),
        "done": find_done(job),
        "is_over": job["finished_at"] is not None or job["state"] in ENDED,
        "verbs": {verb: VERBS[verb] for verb in find_verbs(job)},
        "scopes": {verb: scope_of(job, verb) for verb in VERBS},
        "events": visit.read(f"events {name}", lambda: api.list_events(name, page_size=EVENTS)["events"]),
        "log": None
        if job["kind"] in _WITHOUT_LOG
        else visit.read(
            f"log {name}", lambda: "".join(api.jobs.read_log(name, tail_lines=LOG_LINES, follow=False))
        ),
        **(
            read_backfill(visit, job)
            if job["kind"] == "backfill"
            else {"described": describe_fields(job, _OF_EVERY_JOB)}
        ),
    }


def sum_up(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job with its title and how far it is, as a row of a list."""
    return {**job, "title": describe_job(job), "done": find_done(job)}


def describe_job(job: Mapping[str, Any]) -> str:
    """Return what a job is for: the description that it was given, or what its kind works on.

    Example:
        >>> describe_job({"kind": "merge", "source": None, "dry_run": True})
        'Dry run of a merge of all sources'
        >>> describe_job({"kind": "compaction", "tables": ["archive", "a.b", "a.c", "a.d"]})
        'Compaction of archive, a.b, a.c and 1 more'
    """
    if job.get("description"):
        return str(job["description"])
    if job["kind"] == "backfill":
        return f"Backfill to {job['topic']}"
    if job["kind"] == "merge":
        of = job["source"] or "all sources"
        return f"Dry run of a merge of {of}" if job["dry_run"] else f"Merge of {of}"
    if job["kind"] == "change":
        return f"{job['verb']} {job['resource']} {job['name']}".capitalize()
    if job["kind"] in _OF_STREAMS:
        release = f" to {job['release']}" if job.get("release") else ""
        return f"{_OF_STREAMS[job['kind']]} {job['stream']}{release}"
    tables = job["tables"]
    more = f" and {len(tables) - _FEW} more" if len(tables) > _FEW else ""
    return f"Compaction of {', '.join(tables[:_FEW])}{more}"


def find_done(job: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how much of a job is done, of how much, and of what; None for a job that counts nothing.

    Example:
        >>> find_done({"kind": "compaction", "tables": ["archive", "a.b"], "files_removed": {"archive": 9}})
        {'done': 1, 'whole': 2, 'of': 'tables compacted', 'failed': 0}
    """
    if job["kind"] in _WITHOUT_LOG:
        return None
    if job["kind"] == "compaction":
        done, whole = len(job["files_removed"]), len(job["tables"])
        return {"done": done, "whole": whole, "of": "tables compacted", "failed": 0}
    progress = job["progress"]
    if job["kind"] == "merge":
        done, whole, of = progress["merged"], progress["sources"], "sources merged"
    else:
        done, whole, of = progress["published"], progress["selected"], "messages published"
    return {"done": done, "whole": whole, "of": of, "failed": progress["failed"]}


def find_verbs(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what may be done to a job as it is now.

    Example:
        >>> find_verbs({"kind": "merge", "state": "RUNNING"}), find_verbs({"kind": "merge", "state": "SUCCEEDED"})
        (('cancel',), ('rerun',))
    """
    state, is_over = job["state"], job["state"] in ENDED
    if job["kind"] == "change":
        return () if is_over else ("approve", "reject")
    if job["kind"] in _OF_STREAMS:
        goes_on = job["finished_at"] is None and state not in _GOES_BACK
        possible = {"revert": job["kind"] == "update" and (goes_on or state == "STABLE")}
    elif job["kind"] != "backfill":
        possible = {
            "cancel": not is_over and state != "CANCELLING",
            "retry": state in {"FAILED", "CANCELLED"},
            "rerun": is_over,
        }
    else:
        waits = awaits_approval(job)
        possible = {
            "approve": waits,
            "pause": state in {"PENDING", "RUNNING"},
            "resume": state == "PAUSED" and not waits,
            "rate": not is_over,
            "cancel": not is_over,
            "retry": is_over,
            "rerun": is_over,
            "revert": is_over and not job["revert"] and find_revert_obstacle(job) is None,
        }
    return tuple(verb for verb, is_possible in possible.items() if is_possible)


def scope_of(job: Mapping[str, Any], verb: str) -> str:
    """Return the scope that a verb needs; a merge that changes nothing may be steered by who may plan it."""
    if job["kind"] == "change":
        return str(job["scope"])
    if verb == "approve":
        return APPROVE
    if job["kind"] in _OF_STREAMS:
        return ROLLOUTS_APPLY if job.get("manifest") else STREAMS_OPERATE
    return PLAN if job.get("dry_run") else RUN
