"""What backfills and plans look like in the terminal, and the live bar of one that is watched."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.client import RefeedApi
from cli.terminal import err, out, print_json
from model.job import JobState

_MAX_TOPICS: Final = 10
_MAX_SAMPLES: Final = 3
_SAMPLE_CHARACTERS: Final = 120


def print_backfill(backfill: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one backfill: its state and figures, and whatever somebody has to do about it."""
    if as_json:
        print_json(backfill)
        return
    out.print(f"{backfill['id']}  {backfill['state']}  -> {backfill['topic']}", markup=False)
    for line in _lines(backfill):
        out.print(f"  {line}", markup=False)


def print_plan(plan: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what a backfill would do, and the id that a create may quote."""
    if as_json:
        print_json(plan)
        return
    rows = "unknown" if plan["rows"] is None else f"{plan['rows']:,}"
    out.print(f"{plan['plan_id']}  {rows} messages -> {plan['topic']}", markup=False)
    for line in _plan_lines(plan):
        out.print(f"  {line}", markup=False)


def watch_live(api: RefeedApi, backfill_id: str) -> dict[str, Any]:
    """Return the backfill once it has ended; a bar on stderr shows rate, time left and event time meanwhile."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
        TimeElapsedColumn(),
    )
    found: dict[str, Any] = {}
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(backfill_id, total=None, pace="")
        was_paused = False
        warned: set[str] = set()
        for found in api.watch_backfill(backfill_id):
            for warning in found.get("warnings") or ():
                if warning["code"] not in warned:
                    bar.console.print(_warning_line(warning), markup=False)
                warned.add(warning["code"])
            progress = found.get("progress") or {}
            bar.update(
                task,
                description=f"{backfill_id} {found['state']}",
                total=progress.get("selected"),
                completed=progress.get("published") or 0,
                pace=render_pace(found),
            )
            is_paused = found["state"] == JobState.PAUSED
            if is_paused and not was_paused:
                bar.console.print(_paused_line(found), markup=False)
            was_paused = is_paused
    return found


def render_pace(backfill: Mapping[str, Any]) -> str:
    """Return the rate, the time left and the event time that a backfill has reached, as far as they are known.

    Example:
        >>> progress = {"rate_messages_per_second": 1234.5, "eta_seconds": 95.0}
        >>> progress["event_time"] = "2026-01-01T06:00:00Z"
        >>> render_pace({"state": "RUNNING", "progress": progress})
        '1,234/s, 1:35 left, at 2026-01-01T06:00:00Z'
    """
    progress = backfill.get("progress") or {}
    parts = []
    if backfill["state"] == JobState.RUNNING:
        if progress.get("rate_messages_per_second") is not None:
            parts.append(f"{progress['rate_messages_per_second']:,.0f}/s")
        if progress.get("eta_seconds") is not None:
            parts.append(f"{_render_seconds(progress['eta_seconds'])} left")
    if progress.get("event_time"):
        parts.append(f"at {progress['event_time']}")
    return ", ".join(parts)


def _render_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _lines(backfill: Mapping[str, Any]) -> Iterator[str]:
    progress = backfill.get("progress") or {}
    counts = ", ".join(
        f"{progress[key]} {key}" for key in ("selected", "published", "failed") if progress.get(key) is not None
    )
    if counts:
        yield counts
    if backfill.get("restarts"):
        yield f"its driver died {backfill['restarts']} times: see 'refeed backfill events {backfill['id']}'"
    if progress.get("repeated_at_most"):
        yield f"{progress['repeated_at_most']} repeated at most"
    if backfill.get("in_flight_at_most"):
        yield f"{backfill['in_flight_at_most']} may still go out at most"
    if backfill["state"] == JobState.RUNNING and render_pace(backfill):
        yield render_pace(backfill)
    if limits := _render_limits(backfill):
        yield limits
    verification = backfill.get("verification") or {}
    if JobState(backfill["state"]).is_final and verification:
        landed = "" if verification.get("landed") is None else f", {verification['landed']} landed"
        missing = f", {verification['missing']} missing" if verification.get("missing") else ""
        yield f"verification {verification['state']}{landed}{missing}"
    yield from map(_warning_line, backfill.get("warnings") or ())
    yield from _what_to_do(backfill)


def _warning_line(warning: Mapping[str, Any]) -> str:
    return f"warning: {warning['message']} ({warning['code']})"


def _what_to_do(backfill: Mapping[str, Any]) -> Iterator[str]:
    """Yield what somebody has to do about it; the last line is an error's, if there is one."""
    if backfill["state"] == JobState.PAUSED:
        yield _paused_line(backfill)
    elif _waits_for_approval(backfill):
        yield _approval_line(backfill)
    elif backfill["state"] in {JobState.FAILED, JobState.CANCELLED}:
        yield f"what is published stays so; go on with 'refeed backfill retry {backfill['id']}'"
    if backfill.get("error"):
        yield f"{backfill['error']['code']}: {backfill['error']['message']}"


def _render_limits(backfill: Mapping[str, Any]) -> str:
    """Return what may keep a backfill slow that has not ended: nobody should take that for a fault."""
    parts = []
    if backfill.get("rate_limit_messages_per_second") is not None:
        parts.append(f"at most {backfill['rate_limit_messages_per_second']:,g}/s")
    if backfill.get("canary_messages") is not None:
        parts.append(f"pauses after {backfill['canary_messages']:,} messages")
    if backfill.get("yield_to"):
        name, age = backfill["yield_to"]["subscription"], backfill["yield_to"]["max_oldest_unacked_seconds"]
        parts.append(f"yields while {name} has messages older than {age:,g} s")
    return "" if JobState(backfill["state"]).is_final else ", ".join(parts)


def _waits_for_approval(backfill: Mapping[str, Any]) -> bool:
    approval = backfill.get("approval") or {}
    return bool(approval.get("required")) and not approval.get("by") and not JobState(backfill["state"]).is_final


def _approval_line(backfill: Mapping[str, Any]) -> str:
    rows, above = backfill["approval"]["rows"], backfill["approval"]["above_rows"]
    return f"{rows} rows, more than {above}: somebody else runs 'refeed backfill approve {backfill['id']}'"


def _paused_line(backfill: Mapping[str, Any]) -> str:
    if _waits_for_approval(backfill):
        return _approval_line(backfill)
    return f"paused: go on with 'refeed backfill resume {backfill['id']}'"


def _plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    if plan.get("window"):
        yield f"ingested   {plan['window']['from']} to {plan['window']['to']}"
    if plan.get("first_publish_time"):
        yield f"published  {plan['first_publish_time']} to {plan['last_publish_time']}"
    price = "price unknown" if plan.get("price_usd") is None else f"about {plan['price_usd']:.2f} USD"
    scanned = "an unknown number of" if plan.get("bytes_scanned") is None else f"{plan['bytes_scanned']:,}"
    yield f"reads      {scanned} bytes, {price}"
    topics = list(plan["rows_by_topic"].items())
    for topic, rows in topics[:_MAX_TOPICS]:
        yield f"from       {topic}: {rows:,}"
    if len(topics) > _MAX_TOPICS:
        yield f"from       {len(topics) - _MAX_TOPICS} more topics"
    for subscription in plan["subscriptions"]:
        reach = "receives it" if subscription["receives_replay"] else "does not receive it"
        yield f"reaches    {subscription['name']}: {reach}"
    for sample in plan["samples"][:_MAX_SAMPLES]:
        data = sample["data"] if sample["encoding"] != "json" else json.dumps(sample["data"], ensure_ascii=False)
        yield f"sample     {sample['message_id']}: {data[:_SAMPLE_CHARACTERS]}"
    for warning in plan["warnings"]:
        yield f"warning    {warning['message']} ({warning['code']})"
    yield f"expires    {plan['expires_at']}; run it with --plan {plan['plan_id']}"
