"""``refeed rollout``: rollouts with their steps, reversed and cancelled, through the HTTP API."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.api import print_answer
from cli.invocation import HomeGroup
from cli.moments import UNKNOWN, render_minute, render_seconds
from cli.options import EXIT_CODES, JsonOption
from cli.terminal import render_table
from cli.update import shadow_details

if TYPE_CHECKING:
    from client.api import RefeedApi

app = typer.Typer(
    cls=HomeGroup,
    help="Show, reverse and cancel rollouts. The commands call the API at REFEED_API_URL. 'refeed apply' "
    "begins rollouts.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The id of a rollout, or the name of a manifest for the manifest's newest rollout.",
        show_default=False,
    ),
]


@app.command("list", epilog=EXIT_CODES)
def list_(as_json: JsonOption = False) -> None:
    """List rollouts, newest first."""
    print_answer(lambda api: api.list_rollouts(), _table, as_json=as_json)


@app.command("show", epilog=EXIT_CODES)
def show(rollout: IdArgument, as_json: JsonOption = False) -> None:
    """Show a rollout with its steps, and the figures on which its result is based."""
    print_answer(lambda api: api.read_rollout(_id_of(api, rollout)), _lines, as_json=as_json)


@app.command("reverse", epilog=EXIT_CODES)
def reverse(rollout: IdArgument, as_json: JsonOption = False) -> None:
    """Undo a rollout: begin a new rollout with 'from' and 'to' exchanged. The manifest does not change.

    The stream returns to the earlier release. If this release was STABLE before, Refeed does not validate it
    again.
    """
    print_answer(lambda api: api.act_on_rollout(_id_of(api, rollout), "reverse"), _lines, as_json=as_json)


@app.command("cancel", epilog=EXIT_CODES)
def cancel(rollout: IdArgument, as_json: JsonOption = False) -> None:
    """Cancel a rollout that has not ended. If the rollout has changed the stream, Refeed rolls the change back."""
    print_answer(lambda api: api.act_on_rollout(_id_of(api, rollout), "cancel"), _lines, as_json=as_json)


def _id_of(api: "RefeedApi", text: str) -> str:
    """Return the id that the text is, or that of the newest rollout of the manifest of this name."""
    if text.startswith("ro_"):
        return text
    return next((str(each["id"]) for each in api.list_rollouts() if each["manifest"] == text), text)


def _table(found: Sequence[Mapping[str, Any]]) -> list[str]:
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
    return render_table(("id", "manifest", "stream", "strategy", "state", "releases", "begun", "by", "why"), rows)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['id']} of {found['manifest']}: {found['stream']} is {found['state']}"
    way = f"from {_release(found['from'])} to {_release(found['to'])}"
    yield f"  {found['strategy']} {way}, by {found['created_by']}"
    for name in sorted({*found["from"]["options"], *found["to"]["options"]}):
        before, after = (found[side]["options"].get(name) for side in ("from", "to"))
        if before != after:
            yield f"  {name}: {before} -> {after}"
    if found["reverses"] is not None:
        yield f"  it reverses {found['reverses']}"
    if found["unwanted_by"] is not None:
        yield f"  cancelled by {found['unwanted_by']}"
    if found["error"] is not None:
        yield f"  {found['error']['code']}: {found['error']['message']}"
    rows = [(render_minute(step["at"]), step["state"], step["why"] or "") for step in found["steps"]]
    yield from render_table(("at", "step", "why"), rows)
    yield from _compared_lines(found["compared"] or {})


def _compared_lines(compared: Mapping[str, Any]) -> Iterator[str]:
    before, after = compared.get("before"), compared.get("after")
    if before is not None and after is not None:
        rows = [(name, _figure(before[name]), _figure(after[name])) for name in before]
        yield from render_table(("figure", "before", "after"), rows)
    for label, text in shadow_details(compared.get("shadow")):
        yield f"  {label} {text}"
    if compared.get("paused_seconds") is not None:
        yield f"  paused {render_seconds(compared['paused_seconds'])}"


def _figure(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.1f}"


def _release(side: Mapping[str, Any]) -> str:
    return side["release"] or "the installed version"
