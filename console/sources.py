"""Sources: from the topic to reporting with counts, findings, versions, dead letters and nights."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from console.forms import Action, ActionPage, FormField, form_fault, parse_number, read_time
from console.jobs import EVENTS
from console.messages import PREVIEW_BYTES
from console.view import plain_time, render_utc
from console.visit import PagePart, Visit
from model.principal import RUN

# As far back as the API counts dead letters by itself.
_SINCE: Final = timedelta(days=30)
_LETTERS: Final = 100
_NIGHTS: Final = 14
# Stands for every type of event: the type without a name is a type too.
_EVERY_TYPE: Final = "*"


def read_sources(visit: Visit) -> dict[str, Any]:
    """Return what the list of sources shows: each with its counts and the audits of its last merges."""
    found = visit.read("sources", visit.api.list_sources)
    nights = visit.read("merge audits", visit.api.list_merge_audits)
    text = visit.params.get("text", "").strip()
    context: dict[str, Any] = {"title": "Sources", "found": found, "nights": nights, "text": text}
    if found.problem is not None:
        return context
    by_source = _by_source([] if nights.problem is not None else nights.data["nights"])
    every = found.data["sources"]
    shown = [each for each in every if text.lower() in f"{each['name']} {each['topic'] or ''}".lower()]
    return {**context, "count": len(every), "sources": shown, "by_source": by_source}


def _by_source(nights: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return by source its last nights, the oldest first, and whether each held."""
    found: dict[str, list[dict[str, Any]]] = {}
    for night in nights:
        of_source = found.setdefault(night["source"], [])
        if len(of_source) < _NIGHTS:
            of_source.insert(0, {"finished_at": night["finished_at"], "is_good": is_good(night)})
    return found


def is_good(night: Mapping[str, Any]) -> bool:
    """Whether a merge took the source in and every audit held.

    Example:
        >>> is_good({"state": "merged", "audits": [{"is_passed": True}, {"is_passed": False}]})
        False
    """
    return night["state"] == "merged" and all(audit["is_passed"] for audit in night["audits"])


def read_source(visit: Visit) -> dict[str, Any]:
    """Return what one source's page shows."""
    name = visit.path_params["name"]
    found = visit.read(f"source {name}", lambda: visit.api.read_source(name))
    context: dict[str, Any] = {"title": name, "name": name, "found": found, "source": found.data}
    if found.problem is not None:
        return context
    since, subject = find_since(visit), f"source/{name}"
    context |= {
        "since": since,
        "letters": _read_letters(visit, name, since),
        "nights": visit.read(f"nights {name}", lambda: visit.api.list_merge_audits(name)["nights"]),
        "may_redrive": visit.may(RUN),
        "events": visit.read(subject, lambda: visit.api.list_events(subject, page_size=EVENTS)["events"]),
    }
    # One that has a fault has no schema to have versions of.
    return context if found.data["fault"] else {**context, **_read_versions(visit, name)}


def _read_versions(visit: Visit, name: str) -> dict[str, Any]:
    every = visit.read(f"versions {name}", lambda: visit.api.list_source_versions(name))
    chosen = visit.params.get("type", _EVERY_TYPE)
    wanted = {
        "event_type": None if chosen == _EVERY_TYPE else chosen,
        "from": visit.params.get("before") or None,
        "to": visit.params.get("after") or None,
    }
    versions = every
    if any(value is not None for value in wanted.values()):
        versions = visit.read(f"versions {name} {wanted}", lambda: visit.api.list_source_versions(name, **wanted))
    types = [] if every.problem else sorted({each["event_type"] for each in every.data["versions"]})
    return {"versions": versions, "types": types, "type": chosen, "every_type": _EVERY_TYPE}


def find_since(visit: Visit) -> datetime:
    """Return from when on dead letters are counted: the URL's time, else 30 days ago.

    Raises:
        RequestRefusedError: the URL has something else there.
    """
    return read_time(visit.params, "since") or datetime.now(UTC).replace(microsecond=0) - _SINCE


def _read_letters(visit: Visit, name: str, since: datetime) -> PagePart:
    """Return the reasons for dead letters of the source, each with how many nobody has repaired."""
    start = render_utc(since)
    part = visit.read(f"dead letters {start}", lambda: visit.api.count_dead_letters(start))
    if part.problem is not None:
        return part
    reasons = [each for each in part.data["reasons"] if each["source"] == name]
    left = [None if each["repaired"] is None else each["messages"] - each["repaired"] for each in reasons]
    return PagePart([{**each, "left": many} for each, many in zip(reasons, left, strict=True)])


def read_source_letters(visit: Visit) -> dict[str, Any]:
    """Return the dead letters of one reason, to choose some of them."""
    name, since = visit.path_params["name"], find_since(visit)
    choice = read_choice(visit.params)
    wanted = {"source": name, "from": render_utc(since), "code": choice["code"], "path": choice["path"]}
    wanted |= {"preview_bytes": str(PREVIEW_BYTES), "page_size": str(_LETTERS)}
    found = visit.read(f"letters {wanted}", lambda: visit.api.list_dead_letters(**wanted))
    return {"title": f"Dead letters: {name}", "name": name, "since": since, "choice": choice, "found": found}


def read_source_letter_payload(visit: Visit) -> bytes:
    """Return the whole payload of the dead letter in the URL.

    Raises:
        RequestRefusedError: there is no such dead letter, or the caller may not read messages.
    """
    topic, letter, at = (visit.params.get(name, "") for name in ("topic", "id", "at"))
    where = {"source": visit.path_params["name"], "topic": topic, "from": at}
    return visit.api.download_dead_letter(letter, **where)


def read_choice(params: Mapping[str, str]) -> dict[str, Any]:
    """Return which dead letters an address means: a code, a path ("" is none), ids; None and () are all.

    Example:
        >>> read_choice({"code": "wrong_type", "no_place": "yes", "id-2": "b", "id-1": "a"})
        {'code': 'wrong_type', 'path': '', 'ids': ('a', 'b')}
    """
    path = "" if params.get("no_place") else params.get("place") or None
    ids = tuple(value for name, value in sorted(params.items()) if name.startswith("id-") and value)
    return {"code": params.get("code") or None, "path": path, "ids": ids}


def _check_chosen(params: Mapping[str, str]) -> None:
    """Raise when a form to choose some comes without any: that is never all of them.

    Raises:
        RequestRefusedError: it does.
    """
    if params.get("chosen") and not read_choice(params)["ids"]:
        raise form_fault("No dead letter was chosen.", code="nothing_chosen")


def choose_request(reasons: Sequence[Mapping[str, Any]], name: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the backfill of the dead letters that were chosen.

    Raises:
        RequestRefusedError: there are none.
    """
    given = {
        "codes": [] if choice["code"] is None else [choice["code"]],
        "paths": [] if choice["path"] is None else [choice["path"]],
        "message_ids": list(choice["ids"]),
    }
    request = next((each["request"] for each in reasons if each["source"] == name), None)
    if request is None:
        raise form_fault(
            f"There are no dead letters of {name} in this period.", code="dead_letters_none", status=404
        )
    lists = {key: {"type": "ARRAY<STRING>", "value": value} for key, value in given.items()}
    return {**request, "parameters": {**request["parameters"], **lists}}


def describe_choice(name: str, choice: Mapping[str, Any], since: str) -> str:
    """Return which dead letters are meant: these, or all that match.

    Example:
        >>> describe_choice("orders", {"code": None, "path": None, "ids": ("a",)}, "2026-01-01")
        '1 dead letter of orders.'
    """
    if ids := choice["ids"]:
        return f"These {len(ids):,} dead letters of {name}." if len(ids) > 1 else f"1 dead letter of {name}."
    code = "" if choice["code"] is None else f" with the code {choice['code']}"
    path = choice["path"]
    place = "" if path is None else f" at {path}" if path else " without a path"
    return f"All dead letters of {name}{code}{place} since {since}. The page may not show all of them."


def _describe_redrive(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    name, since = visit.path_params["name"], find_since(visit)
    _check_chosen(visit.params)
    request = _read_sent(given)
    effects = [describe_choice(name, read_choice(visit.params), plain_time(since, visit.zone))]
    if request is None:
        reasons = visit.api.count_dead_letters(render_utc(since))["reasons"]
        choice = read_choice(visit.params)
        request = choose_request(reasons, name, choice)
        if any(each["source"] == name and each["repaired"] is None for each in reasons):
            effects.append(
                "The number of repaired messages is unknown. Messages that are rows by now are sent too."
            )
        effects += describe_unrepaired(reasons, name, choice)
    plan_id = given.get("plan_id", "")
    is_possible = True
    if not plan_id or given.get("typed", "").strip() != request["topic"]:
        plan = visit.api.plan_backfill(request)
        is_possible = plan["rows"] != 0
        plan_id = plan["plan_id"]
        effects += _plan_effects(plan)
    else:
        effects.append(
            f"A backfill publishes the planned messages to {request['topic']}. Open this page to see its plan."
        )
    if is_possible:
        effects.append(
            "The source reads these messages again. If nobody has corrected the schema, they become dead letters "
            "again."
        )
    hidden = {
        "request": json.dumps(request),
        "plan_id": plan_id,
        "launch_key": given.get("launch_key", str(uuid4())),
    }
    return ActionPage(
        title=f"Redrive: {name}",
        effects=tuple(effects),
        button="Redrive",
        back=f"/sources/{name}",
        fields=(
            *(FormField(key, key, kind="hidden", value=value) for key, value in hidden.items()),
            FormField("canary", "Canary: publish this many messages, then wait", value=given.get("canary", "")),
            FormField("rate", "Maximum messages per second", value=given.get("rate", "")),
        ),
        typed=request["topic"],
        is_possible=is_possible,
    )


def describe_unrepaired(reasons: Sequence[Mapping[str, Any]], name: str, choice: Mapping[str, Any]) -> list[str]:
    """Return for each code of the chosen messages that would fail again how to repair them.

    Example:
        >>> seen = {"source": "orders", "code": "wrong_type", "advice": "Publish a schema that fits."}
        >>> reasons = [{**seen, "path": "a", "is_unchanged": True}, {**seen, "path": "b", "is_unchanged": False}]
        >>> [describe_unrepaired(reasons, "orders", {"code": "wrong_type", "path": path}) for path in ("a", "b")]
        [['wrong_type: Publish a schema that fits.'], []]
    """
    said = {
        each["code"]: each["advice"]
        for each in reasons
        if (each["source"], each.get("is_unchanged")) == (name, True)
        and choice["code"] in {None, each["code"]}
        and choice["path"] in {None, each["path"] or ""}
    }
    return [f"{code}: {advice}" for code, advice in said.items()]


def _plan_effects(plan: Mapping[str, Any]) -> list[str]:
    rows, topic = plan["rows"], plan["topic"]
    if rows == 0:
        return ["No dead letter matches any more, so there is nothing to send."]
    if rows is None:
        many = f"A backfill publishes to {topic}. The number of messages is unknown until the query runs."
    else:
        many = f"A backfill publishes {rows:,} {'message' if rows == 1 else 'messages'} to {topic}."
    receivers = [each["name"] for each in plan["subscriptions"] if each["receives_replay"]]
    # Where nobody receives them, a warning says so.
    reach = [f"These subscriptions receive the messages: {', '.join(receivers)}."] if receivers else []
    return [many, *reach, *(each["message"] for each in plan["warnings"])]


def _read_sent(given: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the request that the form brought back as it was planned; the plan's id holds it to that."""
    if "request" not in given:
        return None
    try:
        found = json.loads(given["request"])
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("topic"), str):
        raise form_fault("The form was changed. Open the page again.", code="form_invalid")
    return found


def _redrive(visit: Visit, fields: Mapping[str, str]) -> str:
    request = _read_sent(fields) or {}
    request |= {"plan_id": fields.get("plan_id"), "description": f"Dead letters of {visit.path_params['name']}."}
    if text := fields.get("canary", "").strip():
        request["canary_messages"] = parse_number(text, "canary", int)
    if text := fields.get("rate", "").strip():
        request["rate_limit_messages_per_second"] = parse_number(text, "rate")
    made = visit.api.backfills.create(request, idempotency_key=fields.get("launch_key") or str(uuid4()))
    return f"/jobs/{made['id']}"


SOURCE_ACTIONS: Final = (Action("/sources/{name}/redrive", RUN, _describe_redrive, _redrive),)
