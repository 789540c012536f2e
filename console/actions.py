"""What people do: each action with its page, which says what it will do, and its call of the API."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from console.approvals import APPROVAL_ACTIONS
from console.attach import ATTACH_ACTIONS
from console.effects import (
    Effects,
    approve_effects,
    cancel_effects,
    pause_effects,
    render_left,
    resume_effects,
    revert_effects,
)
from console.forms import Action, ActionPage, FormField, form_fault, parse_number, path_after
from console.new_backfill import describe_new_backfill, launch_backfill
from console.sources import SOURCE_ACTIONS
from console.visit import Visit, problem_of
from model.errors import RequestRefusedError
from model.principal import APPROVE, RUN, STREAMS_OPERATE

_DEFAULT_DRAIN_SECONDS: Final = "120"
_REFUSED: Final = 409


def answer_action(action: Action, visit: Visit, fields: Mapping[str, str] | None) -> str | dict[str, Any]:
    """Return the action's page or, when ``fields`` were sent and the API did it, the path to go on at.

    Raises:
        SignedOutError: the API does not know the caller any more.
        RequestRefusedError: it can't show what the action is about.
    """
    given = visit.params if fields is None else fields
    page = action.describe(visit, given)
    problem: Mapping[str, Any] | None = None
    if fields is not None and fields.get("do", "perform") == "perform":
        if page.typed is not None and fields.get("typed", "").strip() != page.typed:
            detail = f"Nothing was done. To continue, type {page.typed} exactly."
            problem = {"code": "name_not_typed", "detail": detail, "errors": [], "status": 422}
        else:
            try:
                return action.perform(visit, fields)
            except RequestRefusedError as refused:
                problem = problem_of(refused)
    status = 200 if problem is None else int(problem.get("status", _REFUSED))
    context = {"title": page.title, "page": page, "given": given, "problem": problem, "action": action}
    return {**context, **page.extra, "template": page.template, "status": status}


def _job_action(
    verb: str,
    scope: str,
    effects: Effects,
    *,
    button: str,
    typed: bool = False,
) -> Action:
    """Return an action of a backfill that needs nothing but its id."""

    def describe(visit: Visit, _: Mapping[str, str]) -> ActionPage:
        job = visit.api.backfills.read(visit.path_params["id"])
        return ActionPage(
            title=f"{button}: {job['id']}",
            effects=effects(job),
            button=button,
            back=f"/backfills/{job['id']}",
            etag=job["etag"],
            typed=job["topic"] if typed else None,
        )

    def perform(visit: Visit, fields: Mapping[str, str]) -> str:
        job = visit.path_params["id"]
        visit.api.jobs.act(job, verb, etag=fields.get("etag") or None)
        return path_after(fields, f"/backfills/{job}")

    return Action(f"/backfills/{{id}}/{verb}", scope, describe, perform)


def _describe_retry(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    job = visit.api.backfills.read(visit.path_params["id"])
    failed, missing = job["progress"]["failed"], job["verification"]["missing"]
    options = [("all", "all messages that are not published yet"), ("failed", f"the {failed:,} dead letters")]
    options.append(
        (
            "missing",
            "messages that are not in the staging table"
            if missing is None
            else f"the {missing:,} messages that are not in the staging table",
        )
    )
    chosen = given.get("only", "all")
    fields = [FormField("only", "Send again", value=chosen, options=tuple(options))]
    if given.get("code"):
        fields.append(FormField("code", "Only dead letters with this code", value=given["code"]))
    if given.get("rows"):
        fields.append(FormField("rows", "Only dead letters of these rows", value=given["rows"]))
    return ActionPage(
        title=f"Retry: {job['id']}",
        effects=(
            render_left(job),
            "The backfill continues with the same selection. The query does not run again.",
        ),
        button="Retry",
        back=f"/backfills/{job['id']}",
        etag=job["etag"],
        fields=tuple(fields),
    )


def _retry(visit: Visit, fields: Mapping[str, str]) -> str:
    job = visit.path_params["id"]
    body: dict[str, Any] = {"only": fields.get("only", "all")}
    if fields.get("code"):
        body["code"] = fields["code"]
    if fields.get("rows", "").strip():
        body["rows"] = _row_numbers(fields["rows"])
    visit.api.jobs.act(job, "retry", body, etag=fields.get("etag") or None)
    return f"/backfills/{job}"


def _row_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise form_fault(
            f"Write the numbers of rows with commas between them. Not a number: {text.strip()[:80]!r}."
        ) from None


def _describe_rate(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    job = visit.api.backfills.read(visit.path_params["id"])
    rate = job["rate_limit_messages_per_second"]
    # All of its digits: the form sends them back.
    value = given.get("rate", "" if rate is None else str(rate).removesuffix(".0"))
    return ActionPage(
        title=f"Change the rate: {job['id']}",
        effects=("The new limit applies within a second. Leave the field empty for no limit.",),
        button="Change the rate",
        back=f"/backfills/{job['id']}",
        etag=job["etag"],
        fields=(FormField("rate", "Maximum messages per second", value=value),),
    )


def _change_rate(visit: Visit, fields: Mapping[str, str]) -> str:
    job, text = visit.path_params["id"], fields.get("rate", "").strip()
    rate = parse_number(text, "The rate") if text else None
    etag = fields.get("etag") or None
    visit.api.jobs.change(job, {"rate_limit_messages_per_second": rate}, etag=etag)
    return f"/backfills/{job}"


def _stream_page(visit: Visit, title: str, effects: tuple[str, ...], **more: Any) -> ActionPage:
    stream = visit.api.read_stream(visit.path_params["name"])
    name, backlog = stream["name"], stream["backlog_messages"]
    waiting = "An unknown number of messages waits" if backlog is None else f"{backlog:,} messages wait"
    return ActionPage(
        title=f"{title}: {name}",
        effects=(f"{name} is {stream['state']}. {waiting} for it.", *effects),
        button=title,
        back=_stream_path(name),
        etag=stream["etag"],
        **more,
    )


def _describe_drain(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    seconds = FormField(
        "timeout_seconds",
        "Time limit of the drain, in seconds",
        value=given.get("timeout_seconds", _DEFAULT_DRAIN_SECONDS),
        help="After this time, the stream ends even with uncommitted messages. Pub/Sub delivers these messages "
        "again.",
    )
    effects = (
        "The stream pulls no more messages.",
        "The stream commits and acknowledges the messages that it has pulled, and then ends.",
        "No message is lost or written twice.",
        "Pub/Sub then keeps new messages for the subscription's retention period (seven days by default).",
    )
    return _stream_page(visit, "Drain", effects, fields=(seconds,))


def _drain(visit: Visit, fields: Mapping[str, str]) -> str:
    name, text = visit.path_params["name"], fields.get("timeout_seconds", "").strip() or _DEFAULT_DRAIN_SECONDS
    seconds = parse_number(text, "The time")
    body, etag = {"timeout_seconds": seconds}, fields.get("etag") or None
    return _stream_result(name, visit.api.act_on_stream(name, "drain", body, etag=etag))


def _describe_cancel(visit: Visit, _: Mapping[str, str]) -> ActionPage:
    effects = (
        "The stream ends at once. The stream does not acknowledge the messages that it has pulled.",
        "Pub/Sub delivers these messages again.",
        "Committed messages are not written again. Pub/Sub keeps new messages until a stream reads them.",
    )
    return _stream_page(visit, "Cancel", effects, typed=visit.path_params["name"])


def _cancel(visit: Visit, fields: Mapping[str, str]) -> str:
    name = visit.path_params["name"]
    return _stream_result(name, visit.api.act_on_stream(name, "cancel", etag=fields.get("etag") or None))


def _describe_snapshot(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    source = FormField(
        "with_source",
        "Also take a Pub/Sub snapshot of each subscription",
        kind="checkbox",
        value=given.get("with_source", "yes"),
        help="Without this option, a rollback can't return messages that were acknowledged after the snapshot.",
    )
    effects = (
        "The snapshot copies the stream's state between two commits.",
        "The stream commits nothing for some milliseconds.",
    )
    return _stream_page(visit, "Snapshot", effects, fields=(source,))


def _snapshot(visit: Visit, fields: Mapping[str, str]) -> str:
    name = visit.path_params["name"]
    visit.api.create_snapshot(name, with_source="with_source" in fields, idempotency_key=str(uuid4()))
    return _stream_path(name)


def _describe_rollback(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    found = visit.api.list_snapshots(stream=visit.path_params["name"])
    whole = [each for each in found if each["state"] == "COMPLETED"]
    options = tuple((each["id"], f"{each['taken_at']}, {each['reason']}") for each in whole)
    discard = FormField(
        "discard_staged",
        "Delete the rows that were staged after the snapshot",
        kind="checkbox",
        value=given.get("discard_staged", ""),
        help="Pub/Sub delivers the messages of these rows again, and the stream stages them again. Rows that "
        "were already merged stay in the reporting tables.",
    )
    effects = (
        "The stream returns to the state in the snapshot.",
        "If the snapshot includes Pub/Sub snapshots, the stream's subscriptions return to them too.",
        "Pub/Sub then delivers messages again if they were acknowledged after the snapshot.",
        *(() if whole else ("The stream has no completed snapshot, so it can't be rolled back.",)),
    )
    fields = (FormField("snapshot", "Snapshot", value=given.get("snapshot", ""), options=options), discard)
    name = visit.path_params["name"]
    return _stream_page(visit, "Roll back", effects, fields=fields, typed=name, is_possible=bool(whole))


def _roll_back(visit: Visit, fields: Mapping[str, str]) -> str:
    name = visit.path_params["name"]
    asked = visit.api.roll_back_stream(
        name,
        fields.get("snapshot", ""),
        discard_staged="discard_staged" in fields,
        idempotency_key=str(uuid4()),
        etag=fields.get("etag") or None,
    )
    return _stream_result(name, asked)


def _describe_update(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    known = [each["name"] for each in visit.api.list_releases()["releases"]]
    release = given.get("release")
    options = (("", "the installed release"), *((name, name) for name in known))
    fields = (
        FormField("release", "Release", value=release or "", options=options),
        FormField("reason", "Why", value=given.get("reason", "")),
    )
    check = None
    if release is not None:
        check = visit.api.check_stream(visit.path_params["name"], {"release": release} if release else {})
    effects = (
        "The new release starts as a standby and takes over between two commits.",
        "Refeed then compares the figures of both releases.",
        "If the new release fails and the old release can still run, Refeed rolls the update back.",
    )
    return _stream_page(visit, "Update", effects, fields=fields, check=check, template="update.html")


def _update(visit: Visit, fields: Mapping[str, str]) -> str:
    name, release = visit.path_params["name"], fields.get("release", "")
    request: dict[str, Any] = {"release": release} if release else {}
    if fields.get("reason", "").strip():
        request["reason"] = fields["reason"].strip()
    etag = fields.get("etag") or None
    return _stream_result(name, visit.api.update_stream(name, request, idempotency_key=str(uuid4()), etag=etag))


def _stream_path(name: str) -> str:
    return f"/streams/{quote(name, safe='')}"


def _stream_result(name: str, answer: Mapping[str, Any]) -> str:
    """Return where to go on: the stream, or the approval that its action waits for."""
    is_held = answer.get("state") == "WAITING" and str(answer.get("id", "")).startswith("ap_")
    return f"/approvals/{answer['id']}" if is_held else _stream_path(name)


def _describe_new(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    return ActionPage(
        title="New backfill",
        effects=(),
        button="Launch",
        back="/backfills",
        template="new_backfill.html",
        extra=describe_new_backfill(visit, given),
    )


ACTIONS: Final = (
    Action("/backfills/new", RUN, _describe_new, launch_backfill),
    _job_action("pause", RUN, pause_effects, button="Pause"),
    _job_action("resume", RUN, resume_effects, button="Resume"),
    _job_action("cancel", RUN, cancel_effects, button="Cancel the backfill", typed=True),
    _job_action("approve", APPROVE, approve_effects, button="Approve"),
    _job_action("revert", RUN, revert_effects, button="Revert", typed=True),
    *APPROVAL_ACTIONS,
    *SOURCE_ACTIONS,
    *ATTACH_ACTIONS,
    Action("/backfills/{id}/retry", RUN, _describe_retry, _retry),
    Action("/backfills/{id}/rate", RUN, _describe_rate, _change_rate),
    Action("/streams/{name}/drain", STREAMS_OPERATE, _describe_drain, _drain),
    Action("/streams/{name}/cancel", STREAMS_OPERATE, _describe_cancel, _cancel),
    Action("/streams/{name}/snapshot", STREAMS_OPERATE, _describe_snapshot, _snapshot),
    Action("/streams/{name}/rollback", STREAMS_OPERATE, _describe_rollback, _roll_back),
    Action("/streams/{name}/update", STREAMS_OPERATE, _describe_update, _update),
)
