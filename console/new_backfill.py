"""A new backfill: from a topic and a range, or a query, to its plan, and from the plan to a launch."""

import base64
import json
from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final
from uuid import uuid4

from console.elsewhere import read_elsewhere
from console.forms import form_fault, parse_number
from console.payloads import compare_sides
from console.range_query import read_range
from console.recipes import read_recipes
from console.topic import draw_histogram, preview
from console.view import find_time
from console.visit import PagePart, Visit, read_part
from model.errors import RequestRefusedError
from model.moment import parse_moment, render_moment
from model.plain_yaml import YamlFaultsError, read_yaml, write_yaml
from model.principal import MESSAGES

_FIELDS: Final = (
    *("topic", "query", "from", "to", "rate", "canary", "description", "labels", "source", "parameters"),
    *("source_attributes", "where", "options"),
)
# Fields of a request without a field of their own in the form, and the values that they need not be given.
OPTIONS: Final = (
    *("max_rows", "max_bytes_billed", "start_paused", "ordering", "attributes", "yield_to", "max_failed"),
    *("allow_overlap", "target_subscription", "create_topic", "fail_if_empty", "allow_empty"),
)
_DEFAULTS: Final[tuple[Any, ...]] = (None, False, 0, "none", {})
_MOST_SAMPLES: Final = 5
_HOUR: Final = timedelta(hours=1)


def describe_new_backfill(
    visit: Visit, given: Mapping[str, str], *, again: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what the form shows, with the plan when it was asked for; it is filled with the request ``again``."""
    earlier = {} if again is None or "do" in given else _form_of(again)
    form = {name: given.get(name, earlier.get(name, "")) for name in _FIELDS}
    # What a message was before the query's change is for those who may read messages; it costs one more query.
    compare = visit.may(MESSAGES) and (given.get("do") != "plan" or "compare" in given)
    plan = None
    if given.get("do") != "plan" and given.get("plan"):
        plan, compare = read_part(lambda: visit.api.read_plan(given["plan"])), False
        if plan.data is not None:
            planned = {"source": given.get("source", ""), **_form_of(plan.data["request"])}
            form = {name: planned.get(name, "") for name in _FIELDS}
    source = form["source"] or form["topic"]
    is_planned = plan is not None and plan.data is not None
    if not form["query"] and source and again is None and "do" not in given and not is_planned:
        form["query"] = render_query(source, given.get("message_id", ""))
    if given.get("do") == "plan":
        try:
            request = read_request(form, visit.zone)
        except RequestRefusedError as refused:
            plan = PagePart(problem={"code": "form_invalid", "errors": [], **refused.details})
        else:
            # A launch is of the same times, however they were written.
            form |= {name: request[name] for name in ("from", "to") if name in request}
            plan = read_part(lambda: visit.api.plan_backfill(request, originals=compare))
    return {
        "form": form,
        "elsewhere": _find_elsewhere(visit, form, plan),
        "compare": compare,
        "plan": plan,
        "chart": _draw(plan),
        "samples": _samples(plan),
        "tables": _read_tables(visit, form),
        "recipes": read_recipes(),
    }


def render_query(topic: str, message_id: str = "") -> str:
    """Return the query of a topic's messages that were ingested within [@from, @to), or of one of them.

    Example:
        >>> print(render_query("orders", "17"))
        SELECT data, attributes, message_id, topic, publish_time
        FROM backup.messages
        WHERE _PARTITIONTIME >= TIMESTAMP_TRUNC(@from, DAY)
          AND _PARTITIONTIME < TIMESTAMP_ADD(@to, INTERVAL 1 DAY)
          AND topic = 'orders' AND ingest_time >= @from AND ingest_time < @to
          AND message_id = '17'
    """
    lines = [
        "SELECT data, attributes, message_id, topic, publish_time",
        "FROM backup.messages",
        # A partition begins at midnight, and a row reaches its partition within a day.
        "WHERE _PARTITIONTIME >= TIMESTAMP_TRUNC(@from, DAY)",
        "  AND _PARTITIONTIME < TIMESTAMP_ADD(@to, INTERVAL 1 DAY)",
        f"  AND topic = {_literal(topic)} AND ingest_time >= @from AND ingest_time < @to",
    ]
    if message_id:
        lines.append(f"  AND message_id = {_literal(message_id)}")
    return "\n".join(lines)


def read_request(form: Mapping[str, str], zone: tzinfo) -> dict[str, Any]:
    """Return the request that a form is: with its query if it has one, else with its topic and range.

    Raises:
        RequestRefusedError: a field is none of what it should be.
    """
    query = form["query"].replace("\r\n", "\n")
    request: dict[str, Any] = {"query": query} if query.strip() else _read_range(form, zone)
    request["parameters"] = _parameters(query or request.get("where", ""), form)
    request |= {name: form[name].strip() for name in ("topic", "description") if form[name].strip()}
    if form["rate"].strip():
        request["rate_limit_messages_per_second"] = parse_number(form["rate"], "rate")
    if form["canary"].strip():
        request["canary_messages"] = parse_number(form["canary"], "canary", int)
    if form["labels"].strip():
        request["labels"] = _pairs(form["labels"], "label")
    return {**_read_options(form["options"]), **request}


def _read_options(text: str) -> dict[str, Any]:
    """Return the fields of a request for which the form has no field of its own."""
    try:
        found = read_yaml(text).value or {}
    except YamlFaultsError as exc:
        raise form_fault(f"More options: {exc}.") from None
    if not isinstance(found, dict):
        raise form_fault("More options are written as NAME: VALUE, one per line.")
    return found


def _read_range(form: Mapping[str, str], zone: tzinfo) -> dict[str, Any]:
    """Return the topic, the range and what narrows it; a range without an end ends now."""
    found: dict[str, Any] = {"source_topic": form["source"].strip()}
    for name in ("from", "to"):
        text = form[name].strip() or ("0s" if name == "to" else "")
        try:
            after = datetime.fromisoformat(found["from"]) if name == "to" else None
            found[name] = render_moment(find_time(text, zone) or parse_moment(text, after=after))
        except ValueError as exc:
            raise form_fault(f"{name}: {exc}.") from None
    if form["source_attributes"].strip():
        found["source_attributes"] = _pairs(form["source_attributes"], "attribute")
    if form["where"].strip():
        found["where"] = form["where"].replace("\r\n", "\n")
    return found


def _form_of(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of the form that :func:`read_request` makes the request of."""
    parameters = dict(request["parameters"])
    bounds = {name: parameters.pop(name)["value"] for name in ("from", "to") if name in parameters}
    rate, canary = request["rate_limit_messages_per_second"], request["canary_messages"]
    options = {name: request[name] for name in OPTIONS if request[name] not in _DEFAULTS}
    return {
        "topic": request["topic"],
        "query": request["query"],
        "options": write_yaml(options) if options else "",
        **bounds,
        "parameters": "\n".join(f"{name}:{each['type']}:{each['value']}" for name, each in parameters.items()),
        "rate": "" if rate is None else str(rate).removesuffix(".0"),
        "canary": "" if canary is None else str(canary),
        "description": request["description"],
        "labels": ", ".join(f"{name}={value}" for name, value in request["labels"].items()),
        **read_range(request["query"]),
    }


def check_query(visit: Visit, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return what the gate says of the form's query, or its problem in words.

    Line ends are the browser's, one character each: the places of findings are counted in its text.
    """
    query = fields.get("query", "").replace("\r\n", "\n")
    try:
        parameters = _parameters(query, fields)
    except RequestRefusedError as refused:
        return {"passes": False, "problem": refused.message}
    part = read_part(lambda: visit.api.check_query(query, parameters))
    if part.problem is not None:
        return {"passes": False, "problem": part.problem["detail"]}
    found: dict[str, Any] = part.data
    return found


def launch_backfill(visit: Visit, fields: Mapping[str, str]) -> str:
    """Create the backfill that the form and its plan describe, and return its path.

    Raises:
        RequestRefusedError: the API refuses it, or a field is none of what it should be.
    """
    request = read_request({name: fields.get(name, "") for name in _FIELDS}, visit.zone)
    if fields.get("plan_id"):
        request["plan_id"] = fields["plan_id"]
    key = fields.get("launch_key") or str(uuid4())
    return f"/jobs/{visit.api.backfills.create(request, idempotency_key=key)['id']}"


def _parameters(query: str, form: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the parameters of the form that the query names, and all that were written out.

    Raises:
        RequestRefusedError: one is not NAME:TYPE:VALUE.
    """
    given = {name: form.get(name, "").strip() for name in ("from", "to")}
    found = {
        name: {"type": "TIMESTAMP", "value": value}
        for name, value in given.items()
        if value and f"@{name}" in query
    }
    for line in filter(None, map(str.strip, form.get("parameters", "").splitlines())):
        name, _, rest = line.partition(":")
        kind, sign, value = rest.partition(":")
        if not sign:
            raise form_fault(f"The parameter {line[:40]!r} is not NAME:TYPE:VALUE.")
        found[name.strip()] = {"type": kind.strip(), "value": value.strip()}
    return found


def _find_elsewhere(visit: Visit, form: Mapping[str, str], plan: PagePart | None) -> list[dict[str, Any]]:
    """Return the topics that may have got what the plan does not find, each with the same query for it."""
    start, end = (find_time(form[name], visit.zone) for name in ("from", "to"))
    topic = form["source"] or form["topic"].strip()
    if plan is None or plan.data is None or start is None or end is None or not start < end:
        return []
    found = read_elsewhere(visit, topic, start, end, excluded=plan.data["rows_by_topic"])
    return [{**each, "query": _query_of(each["topic"], topic, form["query"])} for each in found]


def _query_of(other: str, topic: str, query: str) -> str:
    """Return the query for another topic: the same one where it names ``topic``, else the one to begin with.

    Example:
        >>> _query_of("b", "a", "SELECT data FROM backup.messages WHERE topic = 'a'")
        "SELECT data FROM backup.messages WHERE topic = 'b'"
    """
    written = _literal(topic)
    return query.replace(written, _literal(other)) if written in query else render_query(other)


def _draw(plan: PagePart | None) -> dict[str, Any] | None:
    if plan is None or plan.data is None or not plan.data["rows_by_hour"]:
        return None
    hours = [{"start": each["hour"], "messages": each["rows"]} for each in plan.data["rows_by_hour"]]
    return draw_histogram(hours, _HOUR)


def _samples(plan: PagePart | None) -> list[dict[str, Any]]:
    if plan is None or plan.data is None:
        return []
    return [_describe_sample(each) for each in plan.data["samples"][:_MOST_SAMPLES]]


def _describe_sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample with what differs between the archived message and what goes out, where that is known."""
    sides = sample.get("comparison")
    if sample["encoding"] is None:
        return {**sample, "preview": None, "differs": None, "saved": None}
    if sides is None:
        return {**sample, "preview": preview(sample), "differs": None, "saved": None}
    published, archived = sides["published"], sides["archived"]
    return {
        **sample,
        "preview": published["data"],
        "archived": archived,
        "published": published,
        "differs": None if archived is None else compare_sides(archived, published),
        "saved": _encode(published),
    }


def _encode(side: Mapping[str, Any]) -> str:
    """Return a side's payload as base64: what is copied and saved is its bytes, which HTML would change."""
    data: str = side["data"]
    return data if side["encoding"] == "base64" else base64.b64encode(data.encode()).decode()


def _read_tables(visit: Visit, form: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the tables that a query may read, with their columns; none where the API does not say."""
    part = read_part(lambda: visit.api.check_query(form["query"] or "SELECT 1", {}))
    return [] if part.problem is not None else part.data["tables"]


def _literal(text: str) -> str:
    # JSON's escapes are GoogleSQL's too; the quote is added.
    return "'" + json.dumps(text)[1:-1].replace("'", "\\'") + "'"


def _pairs(text: str, what: str) -> dict[str, str]:
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, sign, value = part.partition("=")
        if not sign:
            raise form_fault(f"The {what} {part[:40]!r} is not NAME=VALUE.")
        found[name.strip()] = value.strip()
    return found
