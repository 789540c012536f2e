"""The OpenAPI document of a collector, for those who generate clients; it names no topic."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_UUID: Final = {"type": "string", "format": "uuid"}
_TIME: Final = {"type": "string", "format": "date-time"}
_ERRORS: Final = {"type": "array", "items": {"$ref": "#/components/schemas/Error"}}
# What any request may be answered with, and what besides where events come in.
_ALWAYS: Final = (400, 405, 431, 500)
_INCOMING: Final = (401, 403, 404, 408, 413, 415, 422, 429, 503)
_RETRIED: Final = (429, 503)
_REFUSED_BATCH: Final = (413, 422, 500, 503)
_PROBLEM: Final = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def _object(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required or properties)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_SCHEMAS: Final[dict[str, Any]] = {
    "Event": _object(uuid=_UUID, timestamp=_TIME),
    "Batch": _object(
        taken=_COUNT,
        refused=_COUNT,
        items={"type": "array", "items": {"anyOf": [_ref("TakenItem"), _ref("RefusedItem")]}},
    ),
    "TakenItem": _object(status={"type": "integer"}, uuid=_UUID, timestamp=_TIME),
    "RefusedItem": _object(status={"type": "integer"}, code=_TEXT, detail=_TEXT, errors=_ERRORS),
    "Notified": {"anyOf": [_object(taken=_COUNT), _object(status={"const": "ok"})]},
    "Error": _object(("code", "message"), code=_TEXT, message=_TEXT, pointer=_TEXT),
    "Problem": _object(
        type=_TEXT,
        title=_TEXT,
        status={"type": "integer"},
        detail=_TEXT,
        instance=_TEXT,
        code=_TEXT,
        errors=_ERRORS,
    ),
    "Health": _object(status={"const": "ok"}),
    "Readiness": _object(
        ("status",),
        status={"enum": ["ok", "not_ready"]},
        problems={"type": "object", "additionalProperties": _TEXT},
        unsubscribed={"type": "object", "additionalProperties": _TEXT},
        unread={"type": "array", "items": _TEXT},
    ),
}
_TOPIC: Final = {
    "name": "topic",
    "in": "path",
    "required": True,
    "description": "A topic on the collector's list.",
    "schema": {"type": "string", "pattern": r"^[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}$"},
}
_PARAMETERS: Final = {
    "name": "parameters",
    "in": "query",
    "style": "form",
    "explode": True,
    "schema": {"type": "object", "additionalProperties": _TEXT},
}


def render_document(*, has_sns: bool) -> bytes:
    """Return the document as JSON; ``/sns`` is in it only where the collector takes notifications."""
    paths = {
        "/{topic}": {"parameters": [_TOPIC], "post": _post(), "get": _get()},
        "/healthz": {"get": _own("readHealth", "Whether the process runs.", _answers({200: _json("Health")}))},
        "/readyz": {
            "get": _own(
                "readReadiness",
                "Whether every listed topic exists and accepts events. Only operators see the reasons.",
                _answers({200: _json("Readiness"), 503: _json("Readiness")}),
            )
        },
        "/metrics": {
            "get": _own(
                "readMetrics",
                "Figures for Prometheus, shown to operators.",
                _answers({200: {"text/plain": {"schema": _TEXT}}}, problems=(404,)),
            )
        },
        "/openapi.json": {
            "get": _own(
                "readDocument",
                "This document.",
                _answers({200: {"application/json": {"schema": {"type": "object"}}}}),
            )
        },
    }
    if has_sns:
        paths["/sns"] = {"post": _notify()}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Refeed collector", "version": version("refeed")},
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
                "sns": {"type": "http", "scheme": "basic"},
            },
        },
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _post() -> dict[str, Any]:
    events = {"application/json": {"schema": {"anyOf": [_ref("Event"), _ref("Batch")]}}}
    # A batch whose events are all refused for one reason has the status of that.
    refused = dict.fromkeys(_REFUSED_BATCH, _json("Batch") | _PROBLEM)
    return {
        "operationId": "sendEvents",
        "summary": (
            "Send one event, or a batch as an array or ndjson. The collector answers after it has stored the "
            "events safely."
        ),
        # Public topics, signed ones and programs of the same machine need no key.
        "security": [{}, {"bearer": []}, {"key": []}],
        "parameters": [{**_PARAMETERS, "description": "Parameters become attributes of the events."}],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {}}, "application/x-ndjson": {"schema": _TEXT}},
        },
        "responses": _answers({200: events, 202: events, 207: _json("Batch"), **refused}, problems=_INCOMING),
    }


def _get() -> dict[str, Any]:
    return {
        "operationId": "sendParameters",
        "summary": "Send the parameters of the query as an event.",
        "security": [{}, {"bearer": []}, {"key": []}],
        "parameters": [{**_PARAMETERS, "description": "The event, as a JSON object with string values."}],
        "responses": _answers({200: {"image/gif": {}}, 204: {}}, problems=_INCOMING),
    }


def _notify() -> dict[str, Any]:
    required = ("Type", "MessageId", "TopicArn", "Message", "Timestamp")
    message = _object(
        (*required, "SignatureVersion", "Signature", "SigningCertURL"), **dict.fromkeys(required, _TEXT)
    )
    return {
        "operationId": "notify",
        "summary": "The messages of Amazon SNS: notifications and confirmations.",
        "security": [{}, {"sns": []}],
        "parameters": [{"name": "topic", "in": "query", "required": True, "schema": _TEXT}],
        # SNS sends its JSON as text.
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": message}, "text/plain": {"schema": _TEXT}},
        },
        "responses": _answers({200: _json("Notified"), 202: _json("Notified")}, problems=_INCOMING),
    }


def _own(operation_id: str, summary: str, responses: dict[str, Any]) -> dict[str, Any]:
    return {"operationId": operation_id, "summary": summary, "security": [], "responses": responses}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(name)}}


def _answers(contents: dict[int, dict[str, Any]], *, problems: Sequence[int] = ()) -> dict[str, Any]:
    """Return all answers of a route: those with a content of their own, and problems."""
    found = dict.fromkeys((*problems, *_ALWAYS), _PROBLEM) | contents
    return {str(status): _answer(status, found[status]) for status in sorted(found)}


def _answer(status: int, content: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if content:
        answer["content"] = content
    if status in _RETRIED and "application/problem+json" in content:
        answer["headers"] = {"Retry-After": {"description": "Seconds.", "schema": _COUNT}}
    return answer
