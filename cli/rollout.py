"""``refeed rollout``: rollouts with their steps, reversed and cancelled, through the HTTP API."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cli.api import open_api
from cli.invocation import HomeGroup
from cli.jobs import EXIT_CODES, JsonOption
from cli.moments import render_minute, render_seconds
from cli.terminal import out, print_json, print_table
from cli.update import shadow_details
from client.api import RefeedApi

app = typer.Typer(
    cls=HomeGroup,
    help="Show, reverse and cancel rollouts; 'refeed apply' begins them (through the API at REFEED_API_URL).",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The rollout's id, or its manifest's name for the newest.", show_default=False
    ),
]


@app.command("list", epilog=EXIT_CODES)
def list_(as_json: JsonOption = False) -> None:
    """List rollouts, newest first."""
    with open_api() as api:
        found = api.list_rollouts()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["id"],
            each["manifest"],
            each["stream"],
            each["strategy"],
            each["state"],
            f"{_release(each['from'])} to {_release(each['to'])}",
            render_minute(each["created_at"]),
            each["created_by"],
            "" if each["error"] is None else each["error"]["code"],
        )
        for each in found
    ]
    print_table(("id", "manifest", "stream", "strategy", "state", "releases", "begun", "by", "why"), rows)


@app.command("show", epilog=EXIT_CODES)
def show(rollout: IdArgument, as_json: JsonOption = False) -> None:
    """Show a rollout: its steps, and the figures that it was judged by."""
    with open_api() as api:
        _print_rollout(api.read_rollout(_id_of(api, rollout)), as_json=as_json)


@app.command("reverse", epilog=EXIT_CODES)
def reverse(rollout: IdArgument, as_json: JsonOption = False) -> None:
    """Begin the same rollout with from and to exchanged; its manifest stays as it is.

    To a release that was STABLE before nothing is compared and nothing validated.
    """
    with open_api() as api:
        _print_rollout(api.act_on_rollout(_id_of(api, rollout), "reverse"), as_json=as_json)


@app.command("cancel", epilog=EXIT_CODES)
def cancel(rollout: IdArgument, as_json: JsonOption = False) -> None:
    """Have a rollout that has not ended taken back; one that has changed nothing yet ends."""
    with open_api() as api:
        _print_rollout(api.act_on_rollout(_id_of(api, rollout), "cancel"), as_json=as_json)


def _id_of(api: RefeedApi, text: str) -> str:
    """Return the id that the text is, or that of the newest rollout of the manifest of this name."""
    if text.startswith("ro_"):
        return text
    return next((str(each["id"]) for each in api.list_rollouts() if each["manifest"] == text), text)


def _print_rollout(found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out.print(f"{found['id']} of {found['manifest']}: {found['stream']} is {found['state']}", markup=False)
    way = f"from {_release(found['from'])} to {_release(found['to'])}"
    out.print(f"  {found['strategy']} {way}, by {found['created_by']}", markup=False, soft_wrap=True)
    for name in sorted({*found["from"]["options"], *found["to"]["options"]}):
        before, after = (found[side]["options"].get(name) for side in ("from", "to"))
        if before != after:
            out.print(f"  {name}: {before} -> {after}", markup=False, soft_wrap=True)
    if found["reverses"] is not None:
        out.print(f"  it takes {found['reverses']} back", markup=False)
    if found["unwanted_by"] is not None:
        out.print(f"  cancelled by {found['unwanted_by']}", markup=False)
    if found["error"] is not None:
        out.print(f"  {found['error']['code']}: {found['error']['message']}", markup=False, soft_wrap=True)
    rows = [(render_minute(step["at"]), step["state"], step["why"] or "") for step in found["steps"]]
    print_table(("at", "step", "why"), rows)
    _print_figures(found["compared"] or {})


def _print_figures(compared: Mapping[str, Any]) -> None:
    before, after = compared.get("before"), compared.get("after")
    if before is not None and after is not None:
        rows = [(name, _figure(before[name]), _figure(after[name])) for name in before]
        print_table(("figure", "before", "after"), rows)
    for label, text in shadow_details(compared.get("shadow")):
        out.print(f"  {label} {text}", markup=False, soft_wrap=True)
    if compared.get("paused_seconds") is not None:
        out.print(f"  paused {render_seconds(compared['paused_seconds'])}", markup=False)


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f}"


def _release(side: Mapping[str, Any]) -> str:
    return side["release"] or "the installed one"
