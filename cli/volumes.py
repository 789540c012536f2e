"""``refeed volumes``: how much of every topic came in by hour or day, from the API."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import typer

from cli.api import print_answer
from cli.moments import UNKNOWN, FromOption, ToOption, parse_range, render_count, render_minute
from cli.options import JsonOption
from cli.terminal import Columns, tabulate

# Of a step against the largest of its topic: nothing, then eighths.
_LEVELS: Final = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_UNKNOWN_STEP: Final = "?"
_MOST_POINTS: Final = 28
_MOST_GAPS: Final = 20

TopicsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="TOPIC", help="Ids of topics. Default: all.", show_default=False)
]


def volumes(
    topics: TopicsArgument = None,
    *,
    step: Annotated[Literal["hour", "day"], typer.Option(help="The length of each step: hour or day.")] = "hour",
    start: FromOption = None,
    end: ToOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show messages and payload bytes of each topic, and gaps: hours or days with far fewer messages than usual.

    The default is the last 14 days. An hour or a day is a gap if it has less than a tenth of the usual number of
    messages. The usual number is the median number of messages in the same hour on other days. The command scans
    no table, so BigQuery bills nothing.
    """
    window = dict(zip(("start", "end"), parse_range(start, end), strict=True))
    print_answer(
        lambda api: api.read_volumes(step=step, topics=topics or (), **window), render_volumes, as_json=as_json
    )


def render_volumes(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each topic and one for each gap, the oldest first."""
    start, end = render_minute(found["window"]["from"]), found["window"]["to"]
    # The newest step may not have ended.
    is_over = datetime.fromisoformat(end) <= datetime.now(UTC)
    window = f"{start} to {render_minute(end)} UTC" if is_over else f"{start} UTC to now"
    if not found["topics"]:
        yield f"No messages arrived from {window}. To show an earlier period, use --from."
        return
    columns: Columns = {
        "topic": "topic",
        "messages": lambda it: render_count(it["total_messages"]),
        "bytes": lambda it: render_count(it["total_bytes"]),
        "gaps": lambda it: str(len(it["gaps"])),
        "messages over time": lambda it: f"|{_sparkline(it['messages'])}|",
    }
    yield window
    yield from tabulate(columns, found["topics"], left=1)
    gaps = sorted((gap, each["topic"]) for each in found["topics"] for gap in each["gaps"])
    if gaps:
        yield ""
    places = {start: place for place, start in enumerate(found["starts"])}
    for gap, topic in gaps[:_MOST_GAPS]:
        yield f"GAP  {render_minute(gap)}  {topic}"
        for each in found["topics"]:
            # An API of an earlier release names none.
            for surge in (one for one in each.get("surges", ()) if one["start"] == gap):
                had = each["messages"][places[gap]]
                yield f"       more than usual: {each['topic']} had {had:,}, usually {surge['usual']:,}"
    if len(gaps) > _MOST_GAPS:
        yield f"and {len(gaps) - _MOST_GAPS} more: --json has all"
    if any(each["total_messages"] is None for each in found["topics"]):
        yield f"\n{UNKNOWN}: files of an earlier release have no counts; on a lake run 'refeed archive count'"


def _sparkline(numbers: Sequence[int | None]) -> str:
    """Return the numbers as bars, several steps in each where they are many."""
    width = -(-len(numbers) // _MOST_POINTS)
    groups = [numbers[place : place + width] for place in range(0, len(numbers), width)]
    sums = [None if None in group else sum(each for each in group if each is not None) for group in groups]
    most = max((each for each in sums if each is not None), default=0)
    return "".join(
        _UNKNOWN_STEP if each is None else _LEVELS[-(-each * (len(_LEVELS) - 1) // most) if most else 0]
        for each in sums
    )
