"""``refeed status`` and ``refeed inbox``: everything that runs, waits for a person or is wrong, from the API."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from cli.api import open_api, print_answer
from cli.inventory import render_streams
from cli.jobs import print_page
from cli.kinds import KINDS
from cli.moments import UNKNOWN, parse_moment, render_count, render_minute, render_seconds
from cli.options import JsonOption, OutputOption, PageSizeOption, PageTokenOption
from cli.remedies import MENDS, command_of
from cli.terminal import Columns, ExitCode, list_table, out, print_found, render_change, tabulate

EXIT_CODES: Final = (
    "Exit codes: 0 there are no problems; 1 there are problems; 2 wrong usage; 3 the API does not answer; 4 the "
    "API refused the call."
)
_MADE_BY_NOBODY: Final = frozenset({"topic", "source"})


def status(as_json: JsonOption = False) -> None:
    """Show streams and jobs, decisions that a person must make, and problems.

    The command finds these problems. A stream does not report, fails or failed lately, has an alert, is 5 minutes
    behind, or has ended although messages wait for it. All of a source's latest messages became dead letters.
    Topics are attached, but no backup runs. A job of the last seven days failed or has missing messages. A failed
    update is a problem only if a manifest requested it. Any other failed update is listed with what waits for a
    person.
    """
    with open_api() as api:
        found = api.read_status()
    print_found(found, _status_lines, as_json=as_json)
    raise typer.Exit(ExitCode.OK if found["is_ok"] else ExitCode.FAILED)


def inbox(as_json: JsonOption = False) -> None:
    """List everything that a person should look at, such as waiting backfills, failures and missing messages."""
    print_answer(
        lambda api: api.read_inbox(),
        lambda found: _inbox_lines(found["items"]) if found["items"] else ["Nothing waits for a person."],
        as_json=as_json,
    )


def events(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[OBJECT]",
            help="A job's id, the beginning of an id, 'latest', or stream/NAME, schedule/NAME, manifest/NAME, "
            "topic/NAME, source/NAME or key/NAME. Default: all objects.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="List only events since this time: an RFC 3339 time, a day, or an age such as 2h. "
            "The default is one day ago, and for one object its whole history.",
        ),
    ] = None,
    *,
    page_size: PageSizeOption = 50,
    page_token: PageTokenOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """List who did what and when, newest first: to jobs, streams, manifests, topics and sources, or to one object.

    With the scope backfills.admin, you also see the events of keys.
    """
    begin = parse_moment(since, "--since")
    with open_api() as api:
        if subject is not None and _is_short(subject):
            subject = KINDS.find(api, subject, "describe")[1]
        page = api.list_events(subject, since=begin, page_size=page_size, page_token=page_token)
    if page["events"] or as_json or output is not None:
        names = [f"{each['resource']}/{each['id']}" for each in page["events"]]
        table = list_table("events", _EVENT_COLUMNS)
        print_page(page, table, as_json=as_json, since=begin, output=output, names=names)
    else:
        out.print("There are no events.")


def _is_short(subject: str) -> bool:
    """Whether it may be the beginning of an id, or ``latest``, which the API does not take."""
    return subject == "latest" or subject.partition("_")[0] in {kind.prefix for kind in KINDS.kinds}


_EVENT_COLUMNS: Final[Columns] = {
    "at (UTC)": lambda it: it["at"][:19],
    "who": "actor",
    "which": lambda it: f"{it['resource']}/{it['id']}",
    "what": lambda it: "; ".join([it["what"], *map(render_change, it["fields"].get("changes") or ())]),
    "why": "why",
}


def _status_lines(found: Mapping[str, Any]) -> Iterator[str]:
    problems = found["problems"]
    yield f"OK: there are no problems{_pending(found['inbox'])}" if found["is_ok"] else f"WRONG: {len(problems)}"
    waiting = {item["id"] for item in found["inbox"] if item["resource"] != "topic"}
    for problem in problems:
        yield f"  {problem['name']}: {problem['message']} ({problem['code']})"
        if problem["code"] in MENDS and problem["name"] not in waiting:
            yield f"    {MENDS[problem['code']].format_map(problem)}"
    yield ""
    yield from render_streams(found["streams"])
    for noun, columns in _JOBS.items():
        # An API of an earlier release has no updates and restores here.
        if jobs := found.get(f"{noun}s"):
            yield ""
            yield from tabulate({noun: "id", "state": "state", **columns}, jobs, left=2)
    if not any(found.get(f"{noun}s") for noun in _JOBS):
        yield "No job runs."
    if found["inbox"]:
        yield ""
        yield f"Waiting for a person: {len(found['inbox'])}"
        yield from _inbox_lines(found["inbox"])


def _pending(items: Sequence[Mapping[str, Any]]) -> str:
    if not items:
        return ""
    waits = "1 item waits" if len(items) == 1 else f"{len(items):,} items wait"
    return f", and {waits} for you: refeed inbox"


def _rate(backfill: Mapping[str, Any]) -> str:
    rate = backfill["progress"].get("rate_messages_per_second")
    return "-" if backfill["state"] != "RUNNING" else UNKNOWN if rate is None else f"{rate:,.1f}"


def _time_left(backfill: Mapping[str, Any]) -> str:
    return render_seconds(backfill["progress"].get("eta_seconds")) if backfill["state"] == "RUNNING" else "-"


_OF_STREAM: Final[Columns] = {"stream": "stream", "since (UTC)": lambda it: render_minute(it["created_at"])}
_JOBS: Final[Mapping[str, Columns]] = {
    "backfill": {
        "published": lambda it: render_count(it["progress"]["published"]),
        "of": lambda it: render_count(it["progress"]["selected"]),
        "messages/s": _rate,
        "left": _time_left,
    },
    "merge": {
        "merged": lambda it: str(it["progress"]["merged"]),
        "of sources": lambda it: str(it["progress"]["sources"]),
        "rows without key": lambda it: render_count(it["progress"].get("without_key", 0)),
    },
    "compaction": {
        "compacted": lambda it: str(len(it["files_removed"])),
        "of tables": lambda it: str(len(it["tables"])),
    },
    "update": _OF_STREAM,
    "restore": _OF_STREAM,
}


def _inbox_lines(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each item with the command that answers it."""
    for item in items:
        where = f" -> {item['topic']}" if item["topic"] and item["resource"] != "topic" else ""
        state = "" if item["state"] is None else f"  {item['state']}"
        yield f"{item['kind']}  {item['id']}{state}{where}"
        word = "; the stream was launched by" if item["resource"] == "stream" else ", by"
        by = "" if item["resource"] in _MADE_BY_NOBODY else f"{word} {item['created_by'] or UNKNOWN}"
        yield f"  since {render_minute(item['since'])} UTC{by}"
        yield f"  {item['message']}"
        yield f"  {command_of(item)}"
