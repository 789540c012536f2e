"""Actions that wait for the approval of a second person, as commands show and decide them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer

from cli.moments import render_minute
from cli.objects import ObjectKind
from cli.terminal import ExitCode, err, print_found, render_table
from model.approval import ApprovalState

_PAGE_SIZE: Final = 20


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
    err.print(f"{who} until {until}: refeed approve {found['id']}")
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
        yield "next", f"refeed approve {found['id']}, by a person other than {found['requested_by']}"


APPROVAL: Final = ObjectKind(
    name="approval",
    plural="approvals",
    prefix="ap",
    fetch=lambda api, wanted: api.list_approvals(**{"page_size": _PAGE_SIZE, **wanted}),
    filters=("state", "page_size"),
    table=_table,
    read=lambda api, approval: api.read_approval(approval),
    lines=_lines,
    acts={
        "approve": lambda api, approval, _: api.decide_approval(approval, "approve"),
        "reject": lambda api, approval, body: api.decide_approval(approval, "reject", body),
    },
)
