"""The OpenAPI document: what the framework finds, and what holds for every route."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastapi import FastAPI

from api.auth import is_public
from api.errors import PROBLEM_TYPE
from api.schemas import problem_schemas
from api.schemas_streams import launch_schemas
from api.scopes import describe_scopes, security_of

_EVERYWHERE: Final = {
    "403": "The caller is not allowed to make this call.",
    "500": "An unexpected error happened.",
}
_WITH_A_CALLER: Final = {
    "401": "The call has no valid key or token.",
    "429": (
        "The caller makes too many calls, or too many plans and counts run at the same time. Try again after "
        "the number of seconds in Retry-After."
    ),
    "503": "A service that the call needs does not answer. Try again after the number of seconds in Retry-After.",
}
_LATE: Final = {"504": "The API did not answer in time. The API may still carry out the requested action."}
_WITH_A_BODY: Final = {
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
}
_WITH_INPUT: Final = {
    "422": "The request is not valid. `errors` lists every violation.",
}
_FOREIGN: Final = "HTTPValidationError"
# Fields and parameters that mean the same wherever they stand and are not described there.
_SAME_EVERYWHERE: Final = {
    "actor": "Who caused the entry.",
    "applied_by": "Who applied the manifest.",
    "at": "The time of the entry.",
    "attributes": "The message's attributes.",
    "changed_at": "The time of the last change.",
    "code": "A stable code.",
    "created_at": "The time of creation.",
    "created_by": "The creator.",
    "data": "The message's payload.",
    "detail": "A sentence about the error.",
    "encoding": "The encoding of `data`.",
    "error": "The reason for the failure. Null without a failure.",
    "errors": "Every violation, at most 100.",
    "etag": "The current version. Send this value in If-Match.",
    "events": "The entries of the history.",
    "finished_at": "The end time. Null before the end.",
    "host": "The name of the machine.",
    "ingest_time": "When the message was archived.",
    "instance": "The path of the call that failed.",
    "is_cut": "Whether `data` is only the beginning of the payload.",
    "message": "What is wrong, in a sentence.",
    "message_id": "The message's id in Pub/Sub.",
    "next_page_token": "The value of `page_token` for the next page. Null on the last page.",
    "ordering_key": "The message's ordering key. Empty if the message has no ordering key.",
    "page_size": "The maximum number of entries in a page.",
    "page_token": "The `next_page_token` of the previous page.",
    "publish_time": "When Pub/Sub received the message.",
    "started_at": "The start time. Null before the start.",
    "status": "The HTTP status.",
    "title": "The name of the HTTP status.",
    "type": "The path of the error's page.",
    "what": "What happened, in a sentence.",
    "why": "The reason. Null without a reason.",
}
# In the order in which a reader meets them.
_TAGS: Final = {
    "service": "The service itself: whether it is ready, its metrics, and the audit log.",
    "status": "What runs, what is wrong, what waits for a person, and who did what.",
    "jobs": "Jobs of every kind: list, show, follow and steer them.",
    "backfills": "Replays of archived messages.",
    "dead-letters": "Messages that a backfill could not publish, or that the pipeline could make no row of.",
    "queries": "Checks of queries before they run.",
    "merges": "Merges of staging tables into reporting tables.",
    "compactions": "Compactions of the tables of a lake.",
    "updates": "Updates of running streams.",
    "streams": "Streams, and the releases that they run.",
    "snapshots": "Snapshots of streams, and rollbacks to them.",
    "manifests": "Schedules, rollouts and templates as text.",
    "topics": "Topics: their backups, their archived messages and their volumes.",
    "sources": "Sources of the registry, with their tables.",
    "sessions": "Sign-in to the console, and sessions.",
}
_LICENSE: Final = {"name": "Apache 2.0", "identifier": "Apache-2.0"}
_RETRY_AFTER: Final = {
    "Retry-After": {"description": "Seconds to wait before you try again.", "schema": {"type": "integer"}}
}
_HEADERS: Final = {
    "401": {"WWW-Authenticate": {"description": "The scheme to authenticate with.", "schema": {"type": "string"}}},
    "429": _RETRY_AFTER,
    "503": _RETRY_AFTER,
}


def install_openapi(app: FastAPI) -> None:
    """Document the middleware's answers on every route, so that no route has to."""
    render = app.openapi

    def openapi() -> dict[str, Any]:
        document = render()
        components = document["components"]
        document["info"]["license"] = _LICENSE
        document["servers"] = [{"url": "/", "description": "The service that has served this document."}]
        document["tags"] = [{"name": name, "description": text} for name, text in _TAGS.items()]
        # No route answers with it as a model of its own: the framework would call it application/json.
        components["schemas"] |= problem_schemas()
        # The framework keeps the document: at the next call this has been done.
        if "oneOf" not in (launch := components["schemas"]["StreamLaunch"]):
            components["schemas"] |= launch_schemas(launch)
        components["securitySchemes"] = {
            "bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "An API key (`rf_...`) or a JSON Web Token of the issuer. A service without "
                "keys and without an issuer answers calls from its own machine without a key.",
            }
        }
        for path, operation in _operations(document):
            _complete(path, operation)
        _describe_common_fields(document)
        for unused in (_FOREIGN, "ValidationError"):
            components["schemas"].pop(unused, None)
        for shape in components["schemas"].values():
            for example in shape.get("examples", ()):
                _restore_nulls(shape, example, components["schemas"])
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _describe_common_fields(document: Mapping[str, Any]) -> None:
    fields = [
        field
        for schema in document["components"]["schemas"].values()
        for field in schema.get("properties", {}).items()
    ]
    parameters = [
        (each["name"], each) for _, operation in _operations(document) for each in operation.get("parameters", ())
    ]
    for name, found in (*fields, *parameters):
        if meaning := _SAME_EVERYWHERE.get(name):
            found.setdefault("description", meaning)


def _restore_nulls(schema: Mapping[str, Any], example: Any, shapes: Mapping[str, Any]) -> None:
    """Put the nulls back into an example, which the framework leaves out of the document."""
    if "$ref" in schema:
        schema = shapes[schema["$ref"].rpartition("/")[2]]
    for each in schema.get("anyOf", ()):
        _restore_nulls(each, example, shapes)
    if isinstance(example, list):
        for item in example:
            _restore_nulls(schema.get("items", {}), item, shapes)
    elif isinstance(example, dict):
        for name, part in schema.get("properties", {}).items():
            if name in example:
                _restore_nulls(part, example[name], shapes)
            elif name in schema.get("required", ()):
                example[name] = None


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Add the scheme and the problems that a route has because of where it stands, unless it names them."""
    meanings = dict(_EVERYWHERE)
    # An empty list says that anybody may call. A document without one says nothing.
    operation["security"] = [] if is_public(path) else security_of(operation["operationId"])
    if not is_public(path):
        describe_scopes(operation)
        meanings |= _WITH_A_CALLER | _LATE
    if "requestBody" in operation:
        meanings |= _WITH_A_BODY
    if "requestBody" in operation or "parameters" in operation:
        meanings |= _WITH_INPUT
    # The framework's own 422 has a shape that nothing here answers with.
    responses = {
        status: response for status, response in operation["responses"].items() if _FOREIGN not in repr(response)
    }
    for status, meaning in meanings.items():
        problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
        response = responses.setdefault(status, {"description": meaning, "content": {PROBLEM_TYPE: problem}})
        if PROBLEM_TYPE in response.get("content", {}) and status in _HEADERS:
            response.setdefault("headers", {}).update(_HEADERS[status])
    operation["responses"] = dict(sorted(responses.items()))
