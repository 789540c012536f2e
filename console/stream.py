"""One stream: how it does, its past, its log, and what was kept of it."""

from datetime import timedelta
from typing import Any, Final

from console.jobs import EVENTS, LOG_LINES, sum_up
from console.rates import draw_rates
from console.view import parse_time, render_utc
from console.visit import PagePart, Visit

_JOBS: Final = 20


def read_stream(visit: Visit) -> dict[str, Any]:
    """Return what a stream's page shows; one that was started by hand has no history and no log."""
    name, api = visit.path_params["name"], visit.api
    # Also one that was started by hand, which has no record of its own.
    listed = visit.read("streams", api.list_streams)
    found = None
    if listed.problem is None:
        found = next((each for each in listed.data["streams"] if each["name"] == name), None)
        if found is None:
            detail = f"There is no stream {name!r}."
            listed = PagePart(problem={"code": "stream_not_found", "detail": detail, "errors": [], "status": 404})
    context: dict[str, Any] = {"title": name, "name": name, "found": listed, "stream": found, "is_managed": False}
    if found is None:
        return context
    over = visit.choose("over", ("hour", "day"), "hour")
    rates = visit.read(f"stream {name} rates {over}", lambda: _read_points(visit, name, over))
    context |= {"over": over, "rates": rates, "rate_chart": None if rates.problem else draw_rates(rates.data)}
    if found["generation"] is None:
        return context
    parts = {
        "events": lambda: api.list_events(f"stream/{name}", page_size=EVENTS)["events"],
        "log": lambda: api.read_stream_log(name, tail_lines=LOG_LINES),
        "snapshots": lambda: api.list_snapshots(stream=name),
        "jobs": lambda: [sum_up(job) for job in api.jobs.list(page_size=_JOBS, stream=name)["jobs"]],
    }
    read = {part: visit.read(f"stream {name} {part}", call) for part, call in parts.items()}
    starts = [] if read["events"].problem else [each for each in read["events"].data if each["type"] == "started"]
    return {**context, **read, "starts": starts, "is_managed": True}


def _read_points(visit: Visit, name: str, over: str) -> list[dict[str, Any]]:
    """Return the steps of the stream's last hour or day as intervals, none of them with a limit."""
    found = visit.api.list_stream_histories(over, name)
    seconds = float(found["step_seconds"])
    width = timedelta(seconds=seconds)
    return [
        {
            **each,
            "end": render_utc(parse_time(each["start"]) + width),
            "over_seconds": seconds,
            "rate_limit_messages_per_second": None,
        }
        for stream in found["streams"]
        for each in stream["points"]
    ]
