"""The first page: what is wrong, what waits for a person, every topic's volume, and what changed lately."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from console.jobs import sum_up
from console.view import parse_time, render_utc
from console.visit import PagePart, Visit
from model.job import is_job_id

_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
# Volumes change with the backup's commits; every topic's are too much to read with each look at the page.
_VOLUMES_SECONDS: Final = 30.0
_CHANGES_SECONDS: Final = 10.0
_MOST_TOPICS: Final = 20
_FEW_CHANGES: Final = 15
_MANY_CHANGES: Final = 500
# Things that have a page here; a manifest and a key have none.
_COLLECTIONS: Final = {
    **dict.fromkeys(("backfill", "merge", "compaction", "restore", "update", "change"), "jobs"),
    "schedule": "schedules",
    "manifest": "manifests",
    "stream": "streams",
    "topic": "topics",
    "source": "sources",
}
# What an alert is about when it is about no source.
_REGISTRY: Final = "registry"


def read_home(visit: Visit) -> dict[str, Any]:
    """Return what the first page shows."""
    status = visit.read("status", visit.api.read_status)
    start = render_utc(_floor(datetime.now(UTC)) - _DAY)
    volumes = visit.read(
        f"volumes since {start}",
        lambda: visit.api.read_volumes(step="hour", start=start),
        for_seconds=_VOLUMES_SECONDS,
    )
    running = _list_running(status)
    has_all = visit.params.get("changes") == "all"
    size = _MANY_CHANGES if has_all else _FEW_CHANGES
    changes = visit.read(
        f"changes {size}", lambda: visit.api.list_events(page_size=size), for_seconds=_CHANGES_SECONDS
    )
    return {
        "title": "Home",
        "status": status,
        "volumes": volumes,
        "topics": _draw_topics(volumes),
        "jobs": running,
        "titles": _name_jobs(status, running),
        "changes": changes,
        "path_of": path_of,
        "path_of_problem": path_of_problem,
        **read_lines(visit),
    }


def _name_jobs(status: PagePart, running: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return by id what jobs do that run or wait for a person; another one has its id as its name."""
    items = [] if status.problem else [item for item in status.data["inbox"] if is_job_id(item["id"])]
    to = {item["id"]: f" to {item['topic']}" if item["topic"] else "" for item in items}
    waiting = {item["id"]: item["resource"].capitalize() + to[item["id"]] for item in items}
    return waiting | {job["id"]: job["title"] for job in running}


def _list_running(status: PagePart) -> list[dict[str, Any]]:
    """Return the jobs of every kind that have not ended, as rows of a list."""
    kinds = ("backfills", "merges", "compactions", "updates", "restores")
    return [] if status.problem else [sum_up(job) for kind in kinds for job in status.data.get(kind, ())]


def read_lines(visit: Visit) -> dict[str, Any]:
    """Return the rates of every stream over the last hour, as lines that a page draws."""
    found = visit.read("stream histories", lambda: visit.api.list_stream_histories("hour"))
    if found.problem is not None:
        return {"lines": {}}
    streams = found.data["streams"]
    return {
        "lines": {
            each["name"]: draw_line([at["rate_messages_per_second"] for at in each["points"]]) for each in streams
        }
    }


def draw_line(values: Sequence[float | None]) -> str:
    """Return an SVG path of 100 by 20 through the known values; it is broken where nobody measured.

    Example:
        >>> draw_line([0, 5, None, 10])
        'M0.0 20.0 L33.3 10.0 M100.0 0.0'
    """
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    step = 100.0 / max(1, len(values) - 1)
    parts, is_down = [], False
    for number, value in enumerate(values):
        if value is not None:
            parts.append(f"{'L' if is_down else 'M'}{number * step:.1f} {20 - 20 * value / most:.1f}")
        is_down = value is not None
    return " ".join(parts)


def path_of(resource: str, name: str, since: str | None = None) -> str | None:
    """Return the page where somebody sees to a thing, None where there is none; a topic's shows the hours around.

    Example:
        >>> path_of("stream", "a b"), path_of("topic", "orders", "2026-01-02T03:00:00Z"), path_of("key", "ci")
        ('/streams/a%20b', '/topics/orders?from=2026-01-01T15:00:00Z&to=2026-01-02T15:00:00Z', None)
    """
    collection = _COLLECTIONS.get(resource)
    if collection is None:
        return None
    path = f"/{collection}/{quote(name, safe='')}"
    if resource != "topic" or since is None:
        return path
    middle = parse_time(since)
    return f"{path}?from={render_utc(middle - _DAY / 2)}&to={render_utc(middle + _DAY / 2)}"


def path_of_problem(problem: Mapping[str, Any], streams: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the page of the job, source or stream that is wrong, None where there is none."""
    name = problem["name"]
    if is_job_id(name):
        return path_of("backfill", name)
    stream = next((each for each in streams if each["name"] == name), None)
    if stream is None:
        return None
    if problem["code"] == "source_alert":
        abouts = (alert["about"] for alert in stream["alerts"] or ())
        about = next((each for each in abouts if problem["message"].startswith(f"{each}: ")), _REGISTRY)
        if about != _REGISTRY:
            # Behind a blank stands the type of event.
            return path_of("source", about.partition(" ")[0])
    return path_of("stream", name)


def _draw_topics(found: PagePart) -> dict[str, Any] | None:
    """Return the topics with a gap and the largest ones as lines of whole hours; None without volumes."""
    if found.problem is not None:
        return None
    starts = found.data["starts"]
    # The hour under way would end every line with a fall.
    whole = [start for start in starts if parse_time(start) + _HOUR <= datetime.now(UTC)]
    topics = sorted(found.data["topics"], key=lambda each: (not each["gaps"], -(each["total_messages"] or 0)))
    rows = [
        {
            "topic": each["topic"],
            "line": draw_line(each["messages"][: len(whole)]),
            "messages": each["total_messages"],
            "bytes": each["total_bytes"],
            "last_hour": each["messages"][len(whole) - 1] if whole else None,
            "gaps": len(each["gaps"]),
        }
        for each in topics[:_MOST_TOPICS]
    ]
    return {
        "rows": rows,
        "hidden": max(0, len(topics) - _MOST_TOPICS),
        "start": starts[0] if starts else None,
        "whole_until": render_utc(parse_time(whole[-1]) + _HOUR) if whole else None,
    }


def _floor(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
