"""What backfills and plans look like in the terminal."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from cli.terminal import render_fault
from client.reverting import find_revert_obstacle
from model.job import JobState
from model.naming import counted

# A retry runs on the same selection, which these failures are about.
_FINAL_CODES: Final = frozenset({"nothing_selected", "query_failed", "query_too_large", "selection_too_large"})
_CANARIES: Final = {"ahead": "then it pauses", "reached": "reached: look at what arrived", "over": "over"}
_EXCLUDED_BY: Final = {
    "backup": "it is a backup subscription, and its filter drops replays",
    "filter": "no replayed message passes its filter",
    "detached": "it is detached",
}
_AFTER_VERIFICATION: Final = {"incomplete": "missing", "pending": "describe"}
_MAX_TOPICS: Final = 10
_MAX_SAMPLES: Final = 3
_SAMPLE_CHARACTERS: Final = 120


def backfill_lines(backfill: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is to be read of one backfill: its state and figures, and the next command."""
    yield from _head_lines(backfill)
    if backfill.get("revert"):
        yield f"  {'reverted':<10} {_render_revert(backfill)}"
    yield from _next_lines(backfill)


def whole_backfill_lines(backfill: Mapping[str, Any]) -> Iterator[str]:
    """Yield what :func:`backfill_lines` does, with what was asked for before the next command."""
    yield from _head_lines(backfill)
    for name, text in _details(backfill):
        yield from _stacked(name, text)
    yield from _next_lines(backfill)


def query_lines(query: str) -> Iterator[str]:
    """Yield the lines of a query, below each other."""
    return _stacked("query", query)


def plan_lines(plan: Mapping[str, Any], *, is_quoted: bool = True) -> Iterator[str]:
    """Yield what a backfill would do, and the id that a create quotes unless it is made at once."""
    messages = "unknown messages" if plan["rows"] is None else counted(plan["rows"], "message")
    yield f"{plan['plan_id']}  {messages} -> {plan['topic']}"
    for line in _plan_lines(plan):
        yield f"  {line}"
    if is_quoted:
        yield f"  expires    {plan['expires_at']}; run it with --plan {plan['plan_id']}"


def _stacked(name: str, text: str) -> Iterator[str]:
    """Yield a text under its name; its lines stand below each other."""
    for number, line in enumerate(text.splitlines() or [""]):
        yield f"  {'' if number else name:<10} {line}".rstrip()


def _head_lines(backfill: Mapping[str, Any]) -> Iterator[str]:
    yield f"{backfill['id']}  {backfill['state']}  -> {backfill['topic']}"
    for line in _lines(backfill):
        yield f"  {line}"


def _next_lines(backfill: Mapping[str, Any]) -> Iterator[str]:
    if command := next_command(backfill):
        who = ", by a person other than its requester" if waits_for_approval(backfill) else ""
        yield f"  {'next':<10} {command}{who}"


def render_count(backfill: Mapping[str, Any]) -> str:
    """Return how many messages are published of how many, as far as that is known.

    Example:
        >>> render_count({"progress": {"published": 3000, "selected": 12000}})
        '3,000/12,000'
    """
    progress = backfill.get("progress") or {}
    if progress.get("selected") is None:
        return ""
    return f"{progress.get('published') or 0:,}/{progress['selected']:,}"


def render_pace(backfill: Mapping[str, Any], *, with_event_time: bool = True) -> str:
    """Return what is known of a backfill's rate, the time left and the newest publish time that it replayed.

    Example:
        >>> progress = {"rate_messages_per_second": 1234.5, "eta_seconds": 95.0}
        >>> progress["event_time"] = "2026-01-01T06:00:00.123456Z"
        >>> render_pace({"state": "RUNNING", "progress": progress})
        '1,234/s, 1:35 left, publish time 2026-01-01T06:00:00Z'
    """
    progress = backfill.get("progress") or {}
    parts = []
    if backfill["state"] == JobState.RUNNING:
        if progress.get("rate_messages_per_second") is not None:
            parts.append(f"{progress['rate_messages_per_second']:,.0f}/s")
        if progress.get("eta_seconds") is not None:
            parts.append(f"{_render_seconds(progress['eta_seconds'])} left")
    if with_event_time and progress.get("event_time"):
        parts.append(f"publish time {_whole_seconds(progress['event_time'])}")
    return ", ".join(parts)


def render_warning(warning: Mapping[str, Any]) -> str:
    """Return a warning's sentence and code."""
    return f"warning: {warning['message']} ({warning['code']})"


def render_pause(backfill: Mapping[str, Any]) -> str:
    """Return what a paused backfill waits for, and the command that lets it go on."""
    who = "somebody else runs" if waits_for_approval(backfill) else "go on with"
    return f"{_reason(backfill)}: {who} '{next_command(backfill)}'"


def next_command(backfill: Mapping[str, Any]) -> str | None:
    """Return the command that a person would run next on the backfill; None when nothing is left to do.

    Example:
        >>> next_command({"id": "bf_1", "state": "PAUSED"})
        'refeed resume bf_1'
    """
    state, code = JobState(backfill["state"]), (backfill.get("error") or {}).get("code")
    if waits_for_approval(backfill):
        verb = "approve"
    elif state is JobState.PAUSED:
        verb = "resume"
    elif not state.is_final:
        verb = "watch"
    elif state is not JobState.SUCCEEDED:
        verb = "retry"
    elif (verified := (backfill.get("verification") or {}).get("state")) in _AFTER_VERIFICATION:
        verb = _AFTER_VERIFICATION[verified]
    else:
        return None
    if verb == "retry" and code in _FINAL_CODES:
        return None
    if verb == "retry" and code == "messages_failed":
        verb = "dead-letters"
    return f"refeed {verb} {backfill['id']}"


def waits_for_approval(backfill: Mapping[str, Any]) -> bool:
    """Whether somebody other than its creator has to approve the backfill before it goes on."""
    approval = backfill.get("approval") or {}
    return bool(approval.get("required")) and not approval.get("by") and not JobState(backfill["state"]).is_final


def waits_for_person(backfill: Mapping[str, Any]) -> bool:
    """Whether the backfill goes on only when somebody resumes or approves it."""
    state = JobState(backfill["state"])
    return state is JobState.PAUSED or (state is JobState.PENDING and waits_for_approval(backfill))


def render_canary_missing(page: Mapping[str, Any], backfill_id: str) -> Iterator[str]:
    """Yield how many messages of a canary failed again or have not arrived, and the command that lists them."""
    codes = [each["code"] for each in page["messages"]]
    failed = [code for code in codes if code is not None]
    if failed:
        reasons, them = ", ".join(sorted(set(failed))), "it" if len(failed) == 1 else "them"
        letters = "a dead letter" if len(failed) == 1 else "dead letters"
        many = counted(len(failed), "message")
        yield f"{many} of the canary failed again: the pipeline made {letters} of {them} ({reasons})."
    if late := len(codes) - len(failed):
        yield (
            f"{counted(late, 'message')} of the canary {'is' if late == 1 else 'are'} not in the staging table. "
            f"{page['advice'] or ''}"
        ).rstrip()
    if codes:
        yield f"Before you resume: refeed missing {backfill_id}"


def _whole_seconds(moment: str) -> str:
    return re.sub(r"\.\d+", "", moment)


def _render_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _lines(backfill: Mapping[str, Any]) -> Iterator[str]:
    progress = backfill.get("progress") or {}
    counts = ", ".join(
        f"{progress[key]:,} {key}" for key in ("selected", "published", "failed") if progress.get(key) is not None
    )
    if counts:
        yield counts
    if backfill.get("restarts"):
        yield f"its driver died {backfill['restarts']} times: see 'refeed events {backfill['id']}'"
    if progress.get("repeated_at_most"):
        yield _render_repeated(backfill)
    if backfill.get("in_flight_at_most"):
        yield f"at most {backfill['in_flight_at_most']:,} more may be published"
    if backfill["state"] == JobState.RUNNING and render_pace(backfill):
        yield render_pace(backfill)
    if limits := _render_limits(backfill):
        yield limits
    verification = backfill.get("verification") or {}
    if JobState(backfill["state"]).is_final and verification:
        yield f"verification {', '.join(_counts(verification))}"
        if verification.get("advice"):
            yield verification["advice"]
    yield from map(render_warning, backfill.get("warnings") or ())
    yield from _what_to_do(backfill)


def _counts(verification: Mapping[str, Any]) -> Iterator[str]:
    """Yield the verdict and its counts; while messages may wait, those that are missing and wait are bounds."""
    yield verification["state"]
    waiting = verification.get("waiting")
    if verification.get("landed") is not None:
        yield f"{verification['landed']:,} landed"
    if verification.get("missing"):
        letters = f" ({counted(count, 'dead letter')})" if (count := verification.get("dead_letters")) else ""
        yield f"{'at least ' if waiting else ''}{verification['missing']:,} missing{letters}"
    if waiting:
        yield f"at most {waiting:,} not delivered yet"


def _render_repeated(backfill: Mapping[str, Any]) -> str:
    most = f"at most {backfill['progress']['repeated_at_most']:,} repeated"
    # What was sent without an answer before the end goes out again with a retry.
    return f"{most}, including a retry's" if backfill["state"] in {JobState.FAILED, JobState.CANCELLED} else most


def _what_to_do(backfill: Mapping[str, Any]) -> Iterator[str]:
    """Yield why somebody has to do something about it; the last line is an error's, if there is one."""
    if reason := _reason(backfill):
        yield reason
    if backfill.get("error"):
        yield render_fault(backfill["error"])


def _reason(backfill: Mapping[str, Any]) -> str:
    """Return why the backfill needs its next command; empty when that is plain from its state."""
    if waits_for_approval(backfill):
        approval = backfill["approval"]
        return f"{approval['rows']:,} rows, more than {approval['above_rows']:,}, need an approval"
    if backfill["state"] == JobState.PAUSED:
        is_reached = (backfill.get("canary") or {}).get("state") == "reached"
        return "paused after its canary" if is_reached else "paused"
    if backfill["state"] in {JobState.FAILED, JobState.CANCELLED}:
        return "published messages stay published"
    return ""


def _details(backfill: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what was asked for, by whom and when, and what was decided since, by name."""
    if backfill.get("description"):
        yield "why", backfill["description"]
    if backfill.get("created_by"):
        yield "who", backfill["created_by"]
    for name in ("created", "started", "finished"):
        if backfill.get(f"{name}_at"):
            yield name, _whole_seconds(backfill[f"{name}_at"])
    if backfill.get("labels"):
        yield "labels", ", ".join(f"{key}={value}" for key, value in backfill["labels"].items())
    if backfill.get("query"):
        yield "query", backfill["query"]
    for name, parameter in (backfill.get("parameters") or {}).items():
        value = parameter["value"]
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield "parameter", f"{name}:{parameter['type']}:{text}"
    yield from _windows(backfill)
    if backfill.get("plan_id"):
        yield "plan", backfill["plan_id"]
    yield "canary", _render_canary(backfill)
    yield "approval", _render_approval(backfill)
    yield "reverted" if backfill.get("revert") else "revert", _render_revert(backfill)


def _windows(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a plan or a backfill replays, and the partitions that it reads, as far as the API gives them."""
    replays, read = found.get("replays"), found.get("window")
    if replays:
        yield (
            "window",
            f"{_whole_seconds(replays['from'])} to {_whole_seconds(replays['to'])} by {replays['column']}",
        )
    if read:
        yield "partitions", f"{_whole_seconds(read['from'])} to {_whole_seconds(read['to'])}"


def _render_canary(backfill: Mapping[str, Any]) -> str:
    canary = backfill.get("canary")
    if canary is None:
        return "none"
    return f"{canary['messages']:,} messages, {_CANARIES[canary['state']]}"


def _render_approval(backfill: Mapping[str, Any]) -> str:
    approval = backfill.get("approval")
    if approval is None:
        return "not needed"
    if approval.get("by"):
        return f"by {approval['by']} at {_whole_seconds(approval['at'])}, for {approval['rows']:,} rows"
    if waits_for_approval(backfill):
        return f"needed from a person other than {backfill.get('created_by')}"
    return f"not needed up to {approval['above_rows']:,} rows"


def _render_revert(backfill: Mapping[str, Any]) -> str:
    if reverted := backfill.get("revert"):
        at = _whole_seconds(reverted["at"])
        return f"by {reverted['by']} at {at}, {reverted['rows']:,} rows deleted from staging"
    return find_revert_obstacle(backfill) or f"refeed revert {backfill['id']}"


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


def _price_text(price: Mapping[str, Any]) -> str:
    """Return what a replay costs, and what of it is unknown."""
    known = [f"{part['what']} {part['usd']:.2f}" for part in price["parts"] if part["usd"] is not None]
    unknown = [part["what"] for part in price["parts"] if part["usd"] is None]
    most = "about" if price["usd"] is not None else "at least"
    text = f"{most} {price['at_least_usd']:.2f} USD in all"
    details = [", ".join(known), f"unknown: {', '.join(unknown)}" if unknown else ""]
    return f"{text} ({'; '.join(part for part in details if part)})"


def _render_reach(subscription: Mapping[str, Any]) -> str:
    if subscription["receives_replay"]:
        return "receives it"
    reason = _EXCLUDED_BY.get(subscription.get("excluded_by") or "")
    return "does not receive it" if reason is None else f"does not receive it: {reason}"


def _plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    for name, text in _windows(plan):
        yield f"{name:<10} {text}"
    if plan.get("first_publish_time"):
        yield f"published  {plan['first_publish_time']} to {plan['last_publish_time']}"
    price = "price unknown" if plan.get("price_usd") is None else f"about {plan['price_usd']:.2f} USD"
    scanned = "an unknown number of" if plan.get("bytes_scanned") is None else f"{plan['bytes_scanned']:,}"
    yield f"reads      {scanned} bytes, {price}"
    if plan.get("replay_price"):
        yield f"costs      {_price_text(plan['replay_price'])}"
    topics = list(plan["rows_by_topic"].items())
    for topic, rows in topics[:_MAX_TOPICS]:
        yield f"from       {topic}: {rows:,}"
    if len(topics) > _MAX_TOPICS:
        yield f"from       {len(topics) - _MAX_TOPICS} more topics"
    for subscription in plan["subscriptions"]:
        yield f"reaches    {subscription['name']}: {_render_reach(subscription)}"
    for sample in plan["samples"][:_MAX_SAMPLES]:
        data = sample["data"] if sample["encoding"] != "json" else json.dumps(sample["data"], ensure_ascii=False)
        if sample["encoding"] is None:
            data = "hidden, because you need the scope messages.read"
        yield f"sample     {sample['message_id']}: {data[:_SAMPLE_CHARACTERS]}"
    for warning in plan["warnings"]:
        yield f"warning    {warning['message']} ({warning['code']})"
