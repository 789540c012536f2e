"""What waits until somebody decides: held actions, backfills above a limit, canaries."""

from collections.abc import Mapping
from typing import Any, Final

from console.effects import approve_effects, resume_effects
from console.forms import Action, ActionPage, FormField, path_after
from console.visit import PagePart, Visit
from model.principal import APPROVE, RUN

_PAGE_SIZE: Final = 100
_STATES: Final = ("WAITING", "APPROVED", "REJECTED", "EXPIRED")
_WAITS: Final = "WAITING"
# What an approval does that nobody takes back: its name is typed first.
_DANGEROUS: Final = frozenset({("stream", "cancel"), ("stream", "rollback"), ("manifest", "remove")})
_APPROVED: Final = (
    "If you approve, Refeed carries out the action at once. The history names you and the requester."
)
_REJECTED: Final = (
    "If you reject, Refeed does not carry out the action, and nobody can approve this request later."
)
_OWN: Final = "You requested this action yourself. Another person must approve it."
_LIST: Final = "/approvals"


def read_approvals(visit: Visit) -> dict[str, Any]:
    """Return what the list of approvals shows: everything that waits, or approvals in another state."""
    state = visit.choose("state", _STATES, _WAITS)
    found = visit.read(f"approvals {state}", lambda: visit.api.list_approvals(state=state, page_size=_PAGE_SIZE))
    context: dict[str, Any] = {"title": "Approvals", "state": state, "states": _STATES, "found": found}
    if found.problem is None:
        context["approvals"] = [{**each, **_judge(visit, each)} for each in found.data["approvals"]]
    if state != _WAITS:
        return {**context, "jobs": None}
    return {**context, "jobs": _read_jobs(visit)}


def _judge(visit: Visit, approval: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the caller may do about an approval that waits, and what has to be typed for it."""
    is_own = approval["requested_by"] == visit.caller["name"]
    may_decide = approval["state"] == _WAITS and visit.may(approval["scope"])
    return {
        "is_own": is_own,
        "may_approve": may_decide and not is_own,
        "may_reject": may_decide,
        "typed": _typed(approval),
        "approve_effect": _APPROVED,
        "reject_effect": "If you withdraw your request, Refeed does not carry out the action."
        if is_own
        else _REJECTED,
    }


def _typed(approval: Mapping[str, Any]) -> str | None:
    return approval["name"] if (approval["kind"], approval["action"]) in _DANGEROUS else None


def _read_jobs(visit: Visit) -> PagePart:
    """Return the backfills that wait for an approval or are canaries, each with why it waits."""
    inbox = visit.read("inbox", visit.api.read_inbox)
    if inbox.problem is not None:
        return inbox
    waiting = [
        each
        for each in inbox.data["items"]
        if each["resource"] == "backfill" and each["kind"] in {"approval", "canary"}
    ]
    if not waiting:
        return PagePart([])
    listed = visit.read(
        "backfills that wait",
        lambda: visit.api.jobs.list(page_size=1000, kind="backfill", state=["PENDING", "PAUSED"]),
    )
    if listed.problem is not None:
        return listed
    jobs = {job["id"]: job for job in listed.data["jobs"]}
    return PagePart([_render_job(visit, each, jobs[each["id"]]) for each in waiting if each["id"] in jobs])


def _render_job(visit: Visit, item: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    is_canary = item["kind"] == "canary"
    is_own = not is_canary and job["created_by"] == visit.caller["name"]
    return {
        "item": item,
        "job": job,
        "verb": "resume" if is_canary else "approve",
        "effects": resume_effects(job) if is_canary else approve_effects(job),
        "scope": RUN if is_canary else APPROVE,
        "is_own": is_own,
        "may": visit.may(RUN if is_canary else APPROVE) and not is_own,
    }


def _describe_decision(visit: Visit, verb: str) -> ActionPage:
    found = visit.api.read_approval(visit.path_params["id"])
    judged = _judge(visit, found)
    own = (_OWN,) if verb == "approve" and judged["is_own"] else ()
    reason = (FormField("reason", "Why"),) if verb == "reject" else ()
    return ActionPage(
        title=f"{verb.capitalize()}: {found['action']} {found['name']}",
        effects=(f"{found['requested_by']} asks: {found['what']}", judged[f"{verb}_effect"], *own),
        button=verb.capitalize(),
        back=f"{_LIST}/{found['id']}",
        fields=reason,
        typed=judged["typed"] if verb == "approve" else None,
    )


def _decide(visit: Visit, fields: Mapping[str, str], verb: str) -> str:
    name, reason = visit.path_params["id"], fields.get("reason", "").strip()
    visit.api.decide_approval(name, verb, {"reason": reason} if reason else None)
    return path_after(fields, f"{_LIST}/{name}")


def _decision(verb: str) -> Action:
    """Return an action that decides an action of somebody else's."""
    return Action(
        f"{_LIST}/{{id}}/{verb}",
        # The scope is that of the action that waits; the approval's page names it.
        "",
        lambda visit, _: _describe_decision(visit, verb),
        lambda visit, fields: _decide(visit, fields, verb),
    )


APPROVAL_ACTIONS: Final = (_decision("approve"), _decision("reject"))
