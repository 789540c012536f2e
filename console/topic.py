"""Topics: what is backed up, when a topic's messages came in, and its archived messages."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from console.elsewhere import read_elsewhere
from console.forms import form_fault, read_time
from console.messages import FILTERS, read_messages
from console.view import make_url, parse_time, render_utc
from console.visit import PagePart, Visit
from console.volumes import read_heat
from model.errors import RequestRefusedError
from model.principal import MESSAGES

_STEPS: Final = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
# What a page shows of a step before anybody chose: the API's own defaults.
_SPANS: Final = {"minute": timedelta(hours=1), "hour": timedelta(days=1), "day": timedelta(days=30)}
_PREVIEW_CHARACTERS: Final = 1024


def read_topics(visit: Visit) -> dict[str, Any]:
    """Return what the list of topics shows."""
    return {"title": "Topics", "topics": visit.read("topics", visit.api.list_topics), **read_heat(visit)}


def read_topic(visit: Visit) -> dict[str, Any]:
    """Return what a topic's page shows: its histogram and, where the caller may, its messages."""
    topic = visit.path_params["topic"]
    step = visit.choose("step", tuple(_STEPS), "hour")
    filters = {name: visit.params.get(name, "") for name in FILTERS}
    context = {"title": topic, "topic": topic, "step": step, "steps": tuple(_STEPS), "filters": filters}
    try:
        start, end = find_range(visit.params, step, datetime.now(visit.zone))
    except RequestRefusedError as refused:
        return {**context, **_refuse_range(visit, {"step": step, **filters}, refused)}
    text = {"start": render_utc(start), "end": render_utc(end)}
    found = visit.read(
        f"histogram {topic} {step} {text}", lambda: visit.api.read_histogram(topic, step=step, **text)
    )
    chart = None if found.problem is not None else draw_histogram(found.data["buckets"], _STEPS[step])
    topics = visit.read("topics", visit.api.list_topics)
    known = [each for each in ([] if topics.problem else topics.data["topics"]) if each["topic"] == topic]
    bounds = {name: moment.astimezone(visit.zone).isoformat() for name, moment in (("from", start), ("to", end))}
    return {
        **context,
        "start": start,
        "end": end,
        "start_text": bounds["from"],
        "end_text": bounds["to"],
        "here": {"step": step, **bounds, **filters},
        "found": found,
        "chart": chart,
        "elsewhere": [{**each, "query": None} for each in read_elsewhere(visit, topic, start, end)],
        "topics": topics,
        "known": known[0] if known else None,
        "messages": _read_messages(visit, topic, text),
        "scan": _scan_address(visit, topic, text),
    }


def _refuse_range(visit: Visit, here: Mapping[str, str], refused: RequestRefusedError) -> dict[str, Any]:
    """Return what a page shows of what was written, and why it is no range: nothing is read."""
    problem = {"code": "range_invalid", "errors": [], **refused.details}
    written = {name: visit.params.get(name, "") for name in ("from", "to")}
    return {
        "http_status": problem["status"],
        "start_text": written["from"],
        "end_text": written["to"],
        "here": {**here, **written},
        "found": PagePart(problem=problem),
        **dict.fromkeys(("topics", "messages", "scan")),
    }


def _read_messages(visit: Visit, topic: str, text: Mapping[str, str]) -> PagePart | None:
    """Return a page of messages when they were asked for; no page reads them by itself, because it is audited.

    A page with a script searches by itself, and this is for one without, and for callers that are refused.
    """
    shown = visit.params.get("show")
    if shown != "page" and not (shown == "messages" and not visit.may(MESSAGES)):
        return None
    return read_messages(visit, topic, text["start"], text["end"], visit.params.get("page_token"))


def _scan_address(visit: Visit, topic: str, text: Mapping[str, str]) -> str | None:
    if visit.params.get("show") != "messages" or not visit.may(MESSAGES):
        return None
    filters = {name: visit.params.get(name) for name in FILTERS}
    bounds = {"from": text["start"], "to": text["end"]}
    return make_url(f"/scan/{quote(topic, safe='')}", visit.zone, **filters, **bounds)


def preview(message: Mapping[str, Any]) -> str:
    """Return the beginning of a message's data as text.

    Example:
        >>> preview({"encoding": "json", "data": {"id": 9007199254740993}})
        '{"id": 9007199254740993}'
    """
    data = message["data"]
    text = json.dumps(data, ensure_ascii=False) if message["encoding"] == "json" else str(data)
    return text if len(text) <= _PREVIEW_CHARACTERS else text[:_PREVIEW_CHARACTERS] + " ..."


def find_range(params: Mapping[str, str], step: str, now: datetime) -> tuple[datetime, datetime]:
    """Return the absolute range of the URL, else the latest one that the step is good for.

    A time without an offset is of the zone of ``now``.

    Raises:
        RequestRefusedError: a time is none, or the range is empty.

    Example:
        >>> find_range({"from": "2026-01-01T00:00", "to": ""}, "hour", datetime(2026, 1, 1, 9, 30, tzinfo=UTC))[1]
        datetime.datetime(2026, 1, 1, 10, 0, tzinfo=datetime.timezone.utc)
    """
    width = _STEPS[step]
    zone = now.tzinfo or UTC
    end = read_time(params, "to", zone) or _ceiling(now, width)
    start = read_time(params, "from", zone) or end - _SPANS[step]
    if start >= end:
        raise form_fault(f"from ({start.isoformat()}) must be earlier than to ({end.isoformat()}).")
    return start, end


def draw_histogram(buckets: Sequence[Mapping[str, Any]], width: timedelta) -> dict[str, Any]:
    """Return a histogram's bars in percent of its height; a step without messages between others is a gap.

    A minute is none: most topics have minutes without a message.

    Example:
        >>> times = (f"2026-01-01T0{hour}:00:00Z" for hour in range(3))
        >>> rows = [{"start": start, "messages": count} for start, count in zip(times, (4, 0, 2))]
        >>> [(bar["height"], bar["is_gap"]) for bar in draw_histogram(rows, timedelta(hours=1))["bars"]]
        [(100.0, False), (0.0, True), (50.0, False)]
    """
    counts = [each["messages"] for each in buckets]
    most = max(counts, default=0)
    full = [number for number, count in enumerate(counts) if count]
    bars = [
        {
            "start": each["start"],
            "end": render_utc(parse_time(each["start"]) + width),
            "messages": each["messages"],
            "height": 100.0 * each["messages"] / most if most else 0.0,
            "is_gap": width >= _STEPS["hour"]
            and bool(full)
            and each["messages"] == 0
            and full[0] < number < full[-1],
        }
        for number, each in enumerate(buckets)
    ]
    return {"bars": bars, "most": most, "gaps": [bar for bar in bars if bar["is_gap"]]}


def _ceiling(moment: datetime, width: timedelta) -> datetime:
    whole = datetime.min.replace(tzinfo=UTC)
    return moment + (whole - moment) % width
