"""What people do: each action with its page, which says what it will do, and its call of the API."""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from console.attach import ATTACH_ACTIONS
from console.effects import (
    Effects,
    approve_effects,
    cancel_effects,
    pause_effects,
    reject_effects,
    rerun_effects,
    resume_effects,
    retry_effects,
    revert_effects,
)
from console.forms import Action, ActionPage, FormField, form_fault, parse_number
from console.jobs import VERBS, describe_job, find_verbs, scope_of
from console.manifests import MANIFEST_ACTIONS
from console.new_backfill import describe_new_backfill, launch_backfill
from console.rerun import rerun, rerun_fields, show_rerun
from console.schedules import SCHEDULE_ACTIONS
from console.sources import SOURCE_ACTIONS
from console.view import plain_time
from console.visit import Visit, problem_of
from model.errors import RequestRefusedError
from model.principal import RUN, STREAMS_OPERATE
from model.stream_snapshot import DISCARD_EFFECT
from model.stream_update import render_abandons

_DEFAULT_DRAIN_SECONDS: Final = "120"
_REFUSED: Final = 409
_IRREVERSIBLE: Final = frozenset({"cancel", "rollback"})


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


def _target_of(job: Mapping[str, Any]) -> str | None:
    return job.get("topic") or job.get("stream")


def _approval_typed(job: Mapping[str, Any]) -> str | None:
    """Return the stream's name where nobody takes the change back."""
    return job["name"] if job["kind"] == "change" and job["verb"] in _IRREVERSIBLE else None


def _reject_fields(_: Mapping[str, Any], given: Mapping[str, str]) -> tuple[FormField, ...]:
    return (FormField("reason", "Why", value=given.get("reason", "")),)


def _reject_body(fields: Mapping[str, str]) -> Mapping[str, Any] | None:
    reason = fields.get("reason", "").strip()
    return {"reason": reason} if reason else None


def _job_action(
    verb: str,
    effects: Effects,
    *,
    typed: Callable[[Mapping[str, Any]], str | None] = lambda *_: None,
    fields: Callable[[Mapping[str, Any], Mapping[str, str]], tuple[FormField, ...]] = lambda *_: (),
    body: Callable[[Mapping[str, str]], Mapping[str, Any] | None] = lambda *_: None,
    show: Callable[[Visit, Mapping[str, Any], Mapping[str, str]], Mapping[str, Any]] = lambda *_: {},
    perform: Callable[[Visit, Mapping[str, str]], str] | None = None,
) -> Action:
    """Return an action of a job; ``fields`` are those of its form, and ``body`` is what they come to.

    What a job's state does not allow has no form. ``typed`` returns what has to be typed first, and ``show`` what
    a page has of its own. ``perform`` takes the place of a call of the job's verb.
    """

    def describe(visit: Visit, given: Mapping[str, str]) -> ActionPage:
        job = visit.api.jobs.read(visit.path_params["id"])
        kind, is_possible = job["kind"], verb in find_verbs(job)
        refused = f"The {kind} is {job['state']}. This action is not possible in this state."
        return ActionPage(
            title=f"{VERBS[verb]}: {describe_job(job)}",
            effects=effects(job) if is_possible else (refused,),
            button=f"Cancel the {kind}" if verb == "cancel" else VERBS[verb],
            back=f"/jobs/{job['id']}",
            etag=job["etag"],
            fields=fields(job, given) if is_possible else (),
            typed=typed(job),
            is_possible=is_possible,
            scope=scope_of(job, verb),
            **(show(visit, job, given) if is_possible else {}),
        )

    def act(visit: Visit, sent: Mapping[str, str]) -> str:
        job, etag, chosen = visit.path_params["id"], sent.get("etag") or None, body(sent)
        if verb == "rate":
            found = visit.api.jobs.change(job, chosen or {}, etag=etag)
        else:
            found = visit.api.jobs.act(job, verb, chosen, etag=etag)
        # A stable update is taken back by another one.
        return f"/jobs/{found['id']}"

    return Action(f"/jobs/{{id}}/{verb}", "", describe, perform or act)


def _retry_fields(job: Mapping[str, Any], given: Mapping[str, str]) -> tuple[FormField, ...]:
    if job["kind"] != "backfill":
        return ()
    failed, missing = job["progress"]["failed"], job["verification"]["missing"]
    count = "" if missing is None else f"the {missing:,} "
    options = (
        ("all", "all messages that are not published yet"),
        ("failed", f"the {failed:,} dead letters"),
        ("missing", f"{count}messages that are not in the staging table"),
    )
    labels = {"code": "Only dead letters with this code", "rows": "Only dead letters of these rows"}
    return (
        FormField("only", "Send again", value=given.get("only", "all"), options=options),
        *(FormField(name, label, value=given[name]) for name, label in labels.items() if given.get(name)),
    )


def _retry_body(fields: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return which messages of a backfill a retry sends; a retry of another job has nothing to choose."""
    body: dict[str, Any] = {"only": fields["only"]} if fields.get("only") else {}
    if fields.get("code"):
        body["code"] = fields["code"]
    if fields.get("rows", "").strip():
        body["rows"] = _row_numbers(fields["rows"])
    return body or None


def _row_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise form_fault(
            f"Write the numbers of rows with commas between them. Not a number: {text.strip()[:80]!r}."
        ) from None


def _rate_fields(job: Mapping[str, Any], given: Mapping[str, str]) -> tuple[FormField, ...]:
    rate = job["rate_limit_messages_per_second"]
    # All of its digits: the form sends them back.
    value = given.get("rate", "" if rate is None else str(rate).removesuffix(".0"))
    return (FormField("rate", "Maximum messages per second", value=value),)


def _rate_body(fields: Mapping[str, str]) -> Mapping[str, Any]:
    text = fields.get("rate", "").strip()
    return {"rate_limit_messages_per_second": parse_number(text, "The rate") if text else None}


def _rate_effects(_: Mapping[str, Any]) -> tuple[str, ...]:
    return ("The new limit applies within a second. Leave the field empty for no limit.",)


def _stream_page(
    visit: Visit, title: str, effects: tuple[str, ...], *, is_end: bool = False, **more: Any
) -> ActionPage:
    stream = visit.api.read_stream(visit.path_params["name"])
    name, backlog = stream["name"], stream["backlog_messages"]
    update = visit.api.find_running_update(name) if is_end else None
    if update is not None:
        effects = (render_abandons(update), *effects)
    waiting = "An unknown number of messages waits" if backlog is None else f"{backlog:,} messages wait"
    return ActionPage(
        title=f"{title}: {name}",
        effects=(f"{name} is {stream['state']}. {waiting} for it.", *effects),
        button=f"{title} the stream",
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
    return _stream_page(visit, "Drain", effects, is_end=True, fields=(seconds,))


def _drain(visit: Visit, fields: Mapping[str, str]) -> str:
    name, text = visit.path_params["name"], fields.get("timeout_seconds", "").strip() or _DEFAULT_DRAIN_SECONDS
    seconds = parse_number(text, "The time")
    body, etag = {"timeout_seconds": seconds}, fields.get("etag") or None
    return _stream_result(name, visit.api.act_on_stream(name, "drain", body, etag=etag))


def _describe_cancel(visit: Visit, _: Mapping[str, str]) -> ActionPage:
    effects = (
        "The stream ends at once, and does not acknowledge the messages that it has pulled.",
        "Pub/Sub delivers these messages again.",
        "Committed messages are not written again. Pub/Sub keeps new messages until a stream reads them.",
    )
    return _stream_page(visit, "Cancel", effects, is_end=True, typed=visit.path_params["name"])


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
    options = tuple(
        (each["id"], f"{plain_time(each['taken_at'], visit.zone)}, {each['reason']}") for each in whole
    )
    discard = FormField(
        "discard_staged",
        "Delete the rows that were staged after the snapshot",
        kind="checkbox",
        value=given.get("discard_staged", ""),
        help=DISCARD_EFFECT,
    )
    effects = (
        "The stream returns to the state in the snapshot.",
        "If the snapshot includes Pub/Sub snapshots, the stream's subscriptions return to that time too.",
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


def _describe_delete(visit: Visit, _: Mapping[str, str]) -> ActionPage:
    found = visit.api.read_snapshot(visit.path_params["id"])
    taken = f" It was taken {plain_time(found['taken_at'], visit.zone)}." if found["taken_at"] else ""
    return ActionPage(
        title=f"Delete the snapshot of {found['stream']}",
        effects=(
            f"The snapshot {found['id']} is {found['state']}.{taken}",
            "With the snapshot, its files and its Pub/Sub snapshots are deleted.",
            "After that, the stream can't be rolled back to this snapshot. The stream itself does not change.",
        ),
        button="Delete the snapshot",
        back=_stream_path(found["stream"]),
        typed=found["stream"],
    )


def _delete(visit: Visit, _: Mapping[str, str]) -> str:
    return _stream_path(visit.api.delete_snapshot(visit.path_params["id"])["stream"])


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
    """Return where to go on: the stream, or the change that waits for a second person."""
    return f"/jobs/{answer['id']}" if answer.get("kind") == "change" else _stream_path(name)


def _describe_new(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    return ActionPage(
        title="New backfill",
        effects=(),
        button="Launch",
        back="/jobs",
        template="new_backfill.html",
        extra=describe_new_backfill(visit, given),
    )


ACTIONS: Final = (
    Action("/backfills/new", RUN, _describe_new, launch_backfill),
    _job_action("pause", pause_effects),
    _job_action("resume", resume_effects),
    _job_action("cancel", cancel_effects, typed=_target_of),
    _job_action("approve", approve_effects, typed=_approval_typed),
    _job_action("reject", reject_effects, fields=_reject_fields, body=_reject_body),
    _job_action("revert", revert_effects, typed=_target_of),
    _job_action("retry", retry_effects, fields=_retry_fields, body=_retry_body),
    _job_action("rerun", rerun_effects, fields=rerun_fields, show=show_rerun, perform=rerun),
    _job_action("rate", _rate_effects, fields=_rate_fields, body=_rate_body),
    *SCHEDULE_ACTIONS,
    *MANIFEST_ACTIONS,
    *SOURCE_ACTIONS,
    *ATTACH_ACTIONS,
    Action("/streams/{name}/drain", STREAMS_OPERATE, _describe_drain, _drain),
    Action("/streams/{name}/cancel", STREAMS_OPERATE, _describe_cancel, _cancel),
    Action("/streams/{name}/snapshot", STREAMS_OPERATE, _describe_snapshot, _snapshot),
    Action("/streams/{name}/rollback", STREAMS_OPERATE, _describe_rollback, _roll_back),
    Action("/snapshots/{id}/delete", STREAMS_OPERATE, _describe_delete, _delete),
    Action("/streams/{name}/update", STREAMS_OPERATE, _describe_update, _update),
)
