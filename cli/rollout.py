"""Rollouts with their steps, as commands show, follow, cancel and revert them."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from cli.moments import UNKNOWN, render_minute, render_seconds
from cli.objects import ObjectKind, follow_states
from cli.terminal import render_table
from cli.update import shadow_details
from model.rollout_record import ENDED_ROLLOUTS, RolloutState

if TYPE_CHECKING:
    from client.api import RefeedApi


def _id_of(api: "RefeedApi", text: str) -> str:
    """Return the id that the text is, or that of the newest rollout of the manifest of this name."""
    if text.startswith("ro_"):
        return text
    return next((str(each["id"]) for each in api.list_rollouts() if each["manifest"] == text), text)


def _table(found: Mapping[str, Any]) -> list[str]:
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
        for each in found["rollouts"]
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


def _read(api: "RefeedApi", rollout: str) -> dict[str, Any]:
    return api.read_rollout(_id_of(api, rollout))


ROLLOUT: Final = ObjectKind(
    name="rollout",
    plural="rollouts",
    prefix="ro",
    fetch=lambda api, _: {"rollouts": api.list_rollouts()},
    table=_table,
    read=_read,
    lines=_lines,
    acts={
        "cancel": lambda api, rollout, _: api.act_on_rollout(_id_of(api, rollout), "cancel"),
        "revert": lambda api, rollout, _: _read(api, api.jobs.act(_id_of(api, rollout), "revert")["id"]),
    },
    follow=lambda api, found: follow_states(found, lambda: _read(api, found["id"]), ENDED_ROLLOUTS),
    succeeded=lambda found: found["state"] == RolloutState.STABLE,
)
