"""``refeed status`` and ``refeed inbox``: everything that runs, waits for a person or is wrong, from the API."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import typer

from cli.client import RefeedApi
from cli.inventory import render_streams
from cli.jobs import JsonOption
from cli.moments import UNKNOWN, render_count, render_minute, render_seconds
from cli.terminal import ExitCode, out, print_json, render_figures

EXIT_CODES: Final = (
    "Exit codes: 0 nothing is wrong; 1 something is; 2 wrong usage; 3 the API does not answer; 4 the API refused."
)
# What a person does about a problem; jobs are in the inbox with their own.
_MENDS: Final = {
    "backup_not_running": "refeed up, or refeed backup",
    "stream_not_reporting": "refeed doctor, where it runs",
    "stream_without_agent": "refeed up, or refeed agent",
    "messages_expire": "refeed streams",
    "stream_failing": "refeed doctor, where it runs",
    "stream_behind": "refeed topics",
    "source_alert": "refeed registry check",
}
_DOES: Final[Mapping[tuple[str, str], str]] = {
    ("approval", "backfill"): "refeed backfill approve {id}",
    ("canary", "backfill"): "refeed backfill resume {id}",
    ("paused", "backfill"): "refeed backfill resume {id}",
    ("failure", "backfill"): "refeed backfill retry {id}",
    ("incomplete", "backfill"): "refeed backfill missing {id}",
    ("failure", "merge"): "refeed merge retry {id}",
    ("ended", "stream"): "refeed stream show {id}",
}


def status(as_json: JsonOption = False) -> None:
    """Show everything that runs: streams, backfills, merges, what waits for a person, and what is wrong.

    Problems are a stream that does not report, fails, has an alert or is five minutes behind, a backup that does
    not run while topics are attached, and a job of the last seven days that failed or did not land whole.
    """
    with RefeedApi.from_environment() as api:
        found = api.read_status()
    if as_json:
        print_json(found)
    else:
        for line in _status_lines(found):
            out.print(line, markup=False)
    raise typer.Exit(ExitCode.OK if found["is_ok"] else ExitCode.FAILED)


def inbox(as_json: JsonOption = False) -> None:
    """Show what waits for a person: canaries, approvals, pauses, failures, backfills that did not land whole."""
    with RefeedApi.from_environment() as api:
        found = api.read_inbox()
    if as_json:
        print_json(found)
        return
    for line in _inbox_lines(found["items"]) if found["items"] else ("Nothing waits for anybody.",):
        out.print(line, markup=False)


def _status_lines(found: Mapping[str, Any]) -> Iterator[str]:
    problems = found["problems"]
    yield "OK: nothing is wrong" if found["is_ok"] else f"WRONG: {len(problems)}"
    waiting = {item["id"] for item in found["inbox"]}
    for problem in problems:
        yield f"  {problem['name']}: {problem['message']} ({problem['code']})"
        if problem["code"] in _MENDS and problem["name"] not in waiting:
            yield f"    {_MENDS[problem['code']]}"
    yield ""
    yield from render_streams(found["streams"])
    if found["backfills"]:
        yield ""
        rows = [_backfill_row(each) for each in found["backfills"]]
        yield from render_figures(["backfill", "state", "published", "of", "messages/s", "left"], rows, left=2)
    if found["merges"]:
        yield ""
        rows = [
            [each["id"], each["state"], str(each["progress"]["merged"]), str(each["progress"]["sources"])]
            for each in found["merges"]
        ]
        yield from render_figures(["merge", "state", "merged", "of sources"], rows, left=2)
    if not found["backfills"] and not found["merges"]:
        yield "No backfill and no merge runs."
    if found["inbox"]:
        yield ""
        yield f"Waiting for a person: {len(found['inbox'])}"
        yield from _inbox_lines(found["inbox"])


def _backfill_row(found: Mapping[str, Any]) -> list[str]:
    progress = found["progress"]
    rate, left = progress.get("rate_messages_per_second"), progress.get("eta_seconds")
    is_running = found["state"] == "RUNNING"
    return [
        found["id"],
        found["state"],
        render_count(progress["published"]),
        render_count(progress["selected"]),
        "-" if not is_running else UNKNOWN if rate is None else f"{rate:,.1f}",
        render_seconds(left) if is_running else "-",
    ]


def _inbox_lines(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each item with the command that answers it."""
    for item in items:
        where = f" -> {item['topic']}" if item["topic"] else ""
        yield f"{item['kind']}  {item['id']}  {item['state']}{where}"
        yield f"  since {render_minute(item['since'])} UTC, by {item['created_by']}"
        yield f"  {item['message']}"
        yield f"  {_DOES[item['kind'], item['resource']].format(id=item['id'])}"
