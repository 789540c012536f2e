"""The page of the HTTP API: the OpenAPI document, by resource."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from model.principal import SCOPES
from tests.document import openapi_document
from tests.guards.reference.markdown import anchor, first_sentence, link, page, prose, sentence, table
from tests.guards.reference.shapes import kind_of, render_shape

INTRODUCTION: Final = """\
`GET /openapi.json` describes the same operations for programs. [The HTTP API](../api.md) shows examples.

Send a key or a token with each call: `Authorization: Bearer KEY` ([security](../security.md)). The caller needs
one of the scopes that the operation lists. If two scopes are joined by "and", the caller needs both. A key can
be limited to topics. With such a key, a caller can publish only to these topics, and read only their messages."""
EVERYWHERE: Final = """\
Every operation can return the statuses in this table. The sections below list the other statuses of each
operation. The body of an error is a problem (RFC 9457). The `code` of a problem is one of the
[error codes](error-codes.md)."""
_JSON: Final = "application/json"
COMMON: Final = ("401", "403", "408", "413", "422", "429", "500", "503", "504")


def render_http() -> str:
    document = openapi_document()
    by_resource: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    usual: dict[str, str] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_resource[operation["tags"][0]].append((f"{method.upper()} {path}", operation))
            if operation["operationId"] == "changeJob":
                usual = {status: operation["responses"][status]["description"] for status in COMMON}
    usual["422"] = "The request is not valid. `errors` lists every violation."
    resources = {name: sorted(found, key=_place) for name, found in sorted(by_resource.items())}
    scopes = table(
        ["scope", "allows the caller to"], [[f"`{scope}`", prose(text)] for scope, text in SCOPES.items()]
    )
    answers = table(["status", "means"], [[status, prose(text)] for status, text in usual.items()])
    overview = table(
        ["resource", "operations"], [[link(name.capitalize()), str(len(each))] for name, each in resources.items()]
    )
    parts = [f"{INTRODUCTION}\n\n{overview}", f"## Scopes\n\n{scopes}", f"## Answers\n\n{EVERYWHERE}\n\n{answers}"]
    for name, operations in resources.items():
        rows = [
            [f"[`{call}`](#{anchor(call)})", _scopes(each), prose(first_sentence(each["description"]))]
            for call, each in operations
        ]
        parts.append(f"## {name.capitalize()}\n\n{table(['operation', 'scope', 'does'], rows)}")
        parts += [_render(call, each, usual) for call, each in operations]
    shapes = document["components"]["schemas"]
    parts.append(
        "## Shapes\n\nThese are the bodies of requests and answers. The API refuses a request "
        "with any other field.\n"
    )
    parts += [render_shape(name, shapes[name]) for name in sorted(shapes)]
    return page("HTTP operations", "the OpenAPI document of api/", *parts)


def _place(operation: tuple[str, Any]) -> tuple[str, str]:
    method, path = operation[0].split(" ")
    return path, method


def _scopes(operation: Mapping[str, Any]) -> str:
    if not operation.get("security"):
        return "none (public)"
    alternatives = [" and ".join(f"`{scope}`" for scope in each["bearer"]) for each in operation["security"]]
    return ", ".join(alternatives).strip(", ") or "any"


def _render(call: str, operation: Mapping[str, Any], usual: Mapping[str, str]) -> str:
    text = "\n\n".join(prose(each) for each in operation["description"].split("\n\n"))
    return "\n".join([f"### `{call}`\n", f"{text}\n", *_lines(operation, usual)])


def _lines(operation: Mapping[str, Any], usual: Mapping[str, str]) -> Iterator[str]:
    yield f"- Scope: {_scopes(operation)}. Operation: `{operation['operationId']}`."
    if parameters := operation.get("parameters"):
        yield "- Parameters:"
        for each in parameters:
            schema = each["schema"]
            default = schema.get("default")
            facts = [f"{each['in']}, {kind_of(schema).removesuffix(' or null')}"]
            facts += ["required"] if each["required"] and each["in"] != "path" else []
            facts += [f"default `{default}`"] if default not in (None, "", []) else []
            meaning = prose(sentence(each.get("description", "")))
            yield f"  - `{each['name']}` ({', '.join(facts)}). {meaning}".rstrip()
    if body := operation.get("requestBody"):
        kinds = [
            kind_of(content["schema"]).removesuffix(" or null") + ("" if media == _JSON else f" (`{media}`)")
            for media, content in body["content"].items()
        ]
        yield f"- Body: {', '.join(kinds)}{'' if body.get('required') else ', optional'}."
    for status, response in operation["responses"].items():
        if usual.get(status) == response["description"]:
            continue
        *parts, last = _answer(response)
        sentences = [*(part if part.endswith(".") else f"{part}." for part in parts), last]
        yield f"- {status}: {' '.join(sentences)}"
    yield ""


def _answer(response: Mapping[str, Any]) -> Iterator[str]:
    content = response.get("content", {})
    kinds = [
        kind_of(each["schema"]) if media == _JSON else f"`{media}`"
        for media, each in content.items()
        if media != "application/problem+json" and each.get("schema") is not None
    ]
    if kinds:
        yield " or ".join(kinds)
    if response["description"] != "Successful Response":
        yield prose(sentence(response["description"]))
    headers = [name for name in response.get("headers", {}) if name != "WWW-Authenticate"]
    if headers:
        yield f"Headers: {', '.join(f'`{name}`' for name in headers)}"
