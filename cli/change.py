"""Changes that wait for the approval of a second person, as commands show and decide them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer

from cli.jobs import job_kind, job_table, next_of, watch_job
from cli.moments import render_minute
from cli.terminal import ExitCode, err, print_found, render_details, render_fault
from model.job import JobState


def end_if_held(found: Mapping[str, Any], *, waits: bool, as_json: bool) -> None:
    """End the command when the API answered with a change that somebody else has to approve first.

    Raises:
        typer.Exit: it did; with exit code 1 where the caller ``waits`` for the action's end.
    """
    if found.get("kind") != CHANGE.name:
        return
    said = (f"{found['id']}  {found['state']}: the action was not carried out yet.", f"  {found['what']}")
    print_found(found, lambda _: said, as_json=as_json)
    who = f"A person other than {found['created_by']} must approve it"
    until = f"{render_minute(found['expires_at'])} UTC"
    err.print(f"{who} until {until}: refeed approve {found['id']}")
    raise typer.Exit(ExitCode.FAILED if waits else ExitCode.OK)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    return render_details(f"{found['id']}  {found['state']}", _details(found))


def _details(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "what", found["what"]
    if found["decided_by"] is not None:
        yield "decided", f"{render_minute(found['decided_at'])} UTC by {found['decided_by']}"
    if found["reason"] is not None:
        yield "reason", found["reason"]
    for kind, made in (found["result"] or {}).items():
        yield "made", f"{kind} {made}"
    if found["error"] is not None:
        yield "error", render_fault(found["error"])
    if found["state"] == JobState.PENDING:
        yield "expires", f"{render_minute(found['expires_at'])} UTC"


CHANGE: Final = job_kind(
    "change",
    "ch",
    filters=("stream",),
    table=job_table("changes", {"what": lambda job: f"{job['verb']} {job['name']}"}),
    lines=_lines,
    next=next_of(
        PENDING="refeed approve {id}, by a person other than {created_by}",
        **dict.fromkeys(("SUCCEEDED", "CANCELLED", "FAILED"), "refeed events {resource}/{name}"),
    ),
    acts=("approve", "reject", "cancel"),
    follow=lambda api, found: watch_job(
        api, found, lambda seen: str(seen["what"]), waits_for_person=lambda seen: seen["state"] == JobState.PENDING
    ),
)
