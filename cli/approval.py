"""``refeed approval``: actions that wait for a second person, through the HTTP API."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from cli.api import print_answer
from cli.invocation import HomeGroup
from cli.moments import render_minute
from cli.options import EXIT_CODES, JsonOption, PageSizeOption
from cli.terminal import ExitCode, err, print_found, render_table
from model.approval import ApprovalState

_PAGE_SIZE: Final = 20

app = typer.Typer(
    cls=HomeGroup,
    help="List, show, approve and reject actions that need the approval of a second person. The commands call "
    "the API at REFEED_API_URL, with the key in REFEED_API_KEY.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The approval's id.", show_default=False)]


@app.command("list", epilog=EXIT_CODES)
def list_(
    state: Annotated[
        ApprovalState | None, typer.Option(case_sensitive=False, help="List only actions in this state.")
    ] = None,
    page_size: PageSizeOption = _PAGE_SIZE,
    as_json: JsonOption = False,
) -> None:
    """List the newest actions for which the approval of a second person was requested."""
    print_answer(lambda api: api.list_approvals(state=state, page_size=page_size), _table, as_json=as_json)


@app.command("show", epilog=EXIT_CODES)
def show(approval: IdArgument, as_json: JsonOption = False) -> None:
    """Show an action, its effect, its requester and the decision."""
    print_answer(lambda api: api.read_approval(approval), _lines, as_json=as_json)


@app.command("approve", epilog=EXIT_CODES)
def approve(approval: IdArgument, as_json: JsonOption = False) -> None:
    """Approve an action that somebody else requested. You need the scope of the requested action."""
    print_answer(lambda api: api.decide_approval(approval, "approve"), _lines, as_json=as_json)


@app.command("reject", epilog=EXIT_CODES)
def reject(
    approval: IdArgument,
    *,
    reason: Annotated[
        str | None, typer.Option(help="The reason. The person who requested the action sees it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Reject an action. The person who requested an action can also withdraw it with this command."""
    print_answer(lambda api: api.decide_approval(approval, "reject", {"reason": reason}), _lines, as_json=as_json)


def end_if_held(found: Mapping[str, Any], *, waits: bool, as_json: bool) -> None:
    """End the command when the API answered with an approval: somebody else has to approve the action first.

    Raises:
        typer.Exit: it did; with exit code 1 where the caller ``waits`` for the action's end.
    """
    if "requested_by" not in found:
        return
    said = (f"{found['id']}  {found['state']}: the action was not carried out yet.", f"  {found['what']}")
    print_found(found, lambda _: said, as_json=as_json)
    who = f"A person other than {found['requested_by']} must approve it"
    until = f"{render_minute(found['expires_at'])} UTC"
    err.print(f"{who} until {until}: refeed approval approve {found['id']}")
    raise typer.Exit(ExitCode.FAILED if waits else ExitCode.OK)


def _table(found: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            each["id"],
            each["state"],
            f"{each['action']} {each['name']}",
            each["requested_by"],
            render_minute(each["requested_at"]),
            each["decided_by"] or "",
        )
        for each in found["approvals"]
    ]
    return render_table(("id", "state", "action", "asked for by", "at", "decided by"), rows)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['id']}  {found['state']}"
    for label, text in _details(found):
        yield f"  {label:<9} {text}"


def _details(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "what", found["what"]
    yield "asked for", f"{render_minute(found['requested_at'])} UTC by {found['requested_by']}"
    if found["decided_by"] is not None:
        yield "decided", f"{render_minute(found['decided_at'])} UTC by {found['decided_by']}"
    if found["reason"] is not None:
        yield "reason", found["reason"]
    for kind, made in (found["outcome"] or {}).items():
        yield "made", f"{kind} {made}"
    if found["error"] is not None:
        yield "error", f"{found['error']['code']}: {found['error']['message']}"
    if found["state"] == ApprovalState.WAITING:
        yield "expires", f"{render_minute(found['expires_at'])} UTC"
        yield "next", f"refeed approval approve {found['id']}, by a person other than {found['requested_by']}"
