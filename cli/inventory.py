"""Topics and streams as ``refeed get`` lists them, and ``refeed histogram``: messages of a topic by time."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Annotated, Any, Final, Literal

import typer

from cli.api import open_api
from cli.completion import name_argument
from cli.moments import UNKNOWN, FromOption, ToOption, parse_range, render_count, render_minute, render_seconds
from cli.objects import ObjectKind
from cli.options import JsonOption
from cli.terminal import Columns, print_found, render_fault, tabulate
from model.message import parse_resource_id
from model.moment import render_moment
from model.naming import counted

START_TAKES: Final = "some ten seconds, on a busy machine up to two minutes"
_BAR_CHARACTERS: Final = 40
_DOWN: Final = frozenset({"DRAINED", "CANCELLED", "FAILED", "NOT_REPORTING"})
_CLOSER: Final = {"day": "hour", "hour": "minute"}
_WIDTHS: Final = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
# The most steps of the next smaller kind that people look at in a terminal.
_MOST_STEPS: Final = 1440

TopicArgument = Annotated[str, name_argument("topic", "The topic's id.", "TOPIC")]
Step = Literal["minute", "hour", "day"]


def histogram(
    name: TopicArgument,
    *,
    step: Annotated[Step, typer.Option(help="The length of each step: minute, hour or day.")] = "hour",
    start: FromOption = None,
    end: ToOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many messages of a topic were archived in each minute, hour or day, and mark gaps.

    Without --from, the period depends on --step: the last hour by minute, the last day by hour, or the last 30
    days by day.
    """
    parse_resource_id(name)
    window = dict(zip(("start", "end"), parse_range(start, end), strict=True))
    with open_api() as api:
        found = api.read_histogram(name, step=step, **window)
        topics = [] if as_json else api.list_topics()["topics"]
    known = [each for each in topics if each["topic"] == name]
    print_found(found, lambda it: (*_topic_lines(name, known), *render_histogram(it)), as_json=as_json)


def _topics_lines(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["topics"]:
        yield "There are no topics. 'refeed attach TOPIC' backs up a topic, 'refeed publish FILE' creates topics."
        return
    columns: Columns = {
        "topic": "topic",
        "backed up": _render_backup,
        "lag": lambda it: render_seconds(it["lag_seconds"]) if it["is_attached"] else "-",
        "backlog": lambda it: render_count(it["backlog_messages"]) if it["is_attached"] else "-",
        "newest": lambda it: _render_age(it["freshness_seconds"], has_some=it["messages"] != 0),
        "in 7 days": lambda it: render_count(it["messages"]),
    }
    yield from tabulate(columns, found["topics"], left=1)
    loose = [each["topic"] for each in found["topics"] if not each["is_attached"]]
    if loose:
        yield f"\nTo back up the other topics: refeed attach {' '.join(loose)}"
    for each in found["topics"]:
        if each["excludes_replays"] is False:
            said = "the backup subscription does not exclude replays, so Refeed refuses a backfill to this topic"
            yield f"\n{each['topic']}: {said}; run 'refeed detach', then 'refeed attach'"
    yield f"\nTo see when messages arrived: refeed histogram {found['topics'][0]['topic']}"


def render_streams(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of streams, and below it what is wrong with each."""
    if not found:
        yield (
            "No stream has reported yet. 'refeed up' starts all streams, 'refeed backup' starts the backup stream."
        )
        return
    columns: Columns = {
        "stream": "name",
        "state": "state",
        "report": lambda it: _render_age(it["seconds_since_report"], has_some=True),
        "messages/s": _render_rate,
        "lag": lambda it: render_seconds(it["lag_seconds"]),
        "backlog": lambda it: render_count(it["backlog_messages"]),
        "since start": lambda it: render_count(it["totals"].get("messages")),
    }
    yield from tabulate(columns, found, left=2)
    if any(each["rates"] for each in found):
        yield "MESSAGES/S is over the last minute, or less after a start."
    if any(each["totals"].get("messages") is not None for each in found):
        yield "SINCE START counts from 0 with each new process of the stream."
    if any(each["state"] == "STARTING" for each in found):
        yield f"STARTING takes {START_TAKES}."
    for each in found:
        if each["error"]:
            yield f"{each['name']}: {render_fault(each['error'])}"
        # An API of an earlier release does not count failures.
        elif each.get("failures"):
            yield f"{each['name']}: {each['failures']['message']}"
        elif each["state"] == "NOT_REPORTING":
            silent = render_seconds(each["seconds_since_report"])
            yield f"{each['name']}: no report for {silent}; run 'refeed doctor' on its machine"
        if each["state"] in _DOWN and each.get("retained_until"):
            until = render_minute(each["retained_until"])
            yield f"{each['name']}: Pub/Sub keeps pending messages until {until} UTC"


def render_histogram(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line a step, empty steps in a row as one line that says so, and the command that looks closer."""
    step, window, buckets = found["step"], found["window"], found["buckets"]
    yield (
        f"{render_minute(window['from'])} to {render_minute(window['to'])} UTC by {step}: "
        f"{found['messages']:,} archived messages"
    )
    if not found["messages"]:
        yield "There are no messages in this period. To show an earlier period, use --from."
        return
    most = max(bucket["messages"] for bucket in buckets)
    width = len(f"{most:,}")
    gaps: list[tuple[str, str]] = []
    runs = [(is_empty, list(run)) for is_empty, run in groupby(buckets, lambda bucket: not bucket["messages"])]
    yield ""
    for place, (is_empty, run) in enumerate(runs):
        if not is_empty:
            for bucket in run:
                # One message is seen beside a million.
                bar = "#" * max(1, round(bucket["messages"] / most * _BAR_CHARACTERS))
                yield f"{render_minute(bucket['start'])}  {bucket['messages']:>{width},}  {bar}"
            continue
        many = counted(len(run), step)
        if place == 0:
            said = f"nothing for {many}"
        elif place == len(runs) - 1:
            said = f"nothing since then, for {many}"
        elif step == "minute":
            # Most topics have minutes without a message: that is no sign of a loss.
            said = f"nothing for {many}"
        else:
            gaps.append((run[0]["start"], runs[place + 1][1][0]["start"]))
            said = f"GAP of {many}"
        yield f"{render_minute(run[0]['start'])}  {0:>{width}}  {said}"
    yield ""
    yield from _next_lines(found, gaps)


def _next_lines(found: Mapping[str, Any], gaps: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield how to look closer: at the first gap where there is one."""
    step, name = found["step"], found["topic"]
    if gaps:
        yield (f"{len(gaps)} gap{'' if len(gaps) == 1 else 's'}, in which no message of {name} was archived.")
    if step not in _CLOSER:
        return
    closer = _CLOSER[step]
    buckets = [bucket for bucket in found["buckets"] if bucket["messages"]]
    first, last = gaps[0] if gaps else (buckets[-1]["start"], buckets[-1]["start"])
    # The steps beside a gap show where it begins and ends.
    start = _moment(first) - (_WIDTHS[step] if gaps else timedelta())
    end = min(_moment(last) + _WIDTHS[step], start + _WIDTHS[closer] * _MOST_STEPS)
    yield (
        f"For more detail: refeed histogram {name} --step {closer} --from {render_moment(start)} --to "
        f"{render_moment(end)}"
    )


def _topic_lines(name: str, known: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not known:
        yield f"{name}: no such topic in Pub/Sub, or in the archive of the last seven days"
        return
    (found,) = known
    if not found["is_attached"]:
        yield f"{name}: not backed up. To back it up, run 'refeed attach {name}'."
    else:
        yield f"{name}: backed up through {found['subscription']}"
        yield (
            f"lag {render_seconds(found['lag_seconds'])}, backlog {render_count(found['backlog_messages'])}, "
            f"newest {_render_age(found['freshness_seconds'], has_some=found['messages'] != 0)}"
        )
    reached = [_render_subscription(each) for each in found["subscriptions"] if each["receives_replay"]]
    yield f"a replay to this topic reaches {', '.join(reached) or 'no subscription'}"


def _render_subscription(found: Mapping[str, Any]) -> str:
    # Google's service has it in Cloud Monitoring alone, and an API of an earlier release does not send it.
    backlog = found.get("backlog_messages")
    return str(found["name"]) if backlog is None else f"{found['name']} (backlog {render_count(backlog)})"


def _render_backup(found: Mapping[str, Any]) -> str:
    if not found["is_attached"]:
        return "NO"
    return "yes" if found["excludes_replays"] else "yes, with replays"


def _render_age(seconds: float | None, *, has_some: bool) -> str:
    if not has_some:
        return "none"
    return UNKNOWN if seconds is None else f"{render_seconds(seconds)} ago"


def _render_rate(stream: Mapping[str, Any]) -> str:
    """Return messages a second; nothing that stands still has a rate."""
    rate = (stream["rates"] or {}).get("messages")
    return "-" if rate is None else f"{rate:,.1f}"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


TOPIC: Final = ObjectKind(
    name="topic",
    plural="topics",
    fetch=lambda api, _: api.list_topics(),
    table=_topics_lines,
)
