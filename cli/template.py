"""Templates as commands show and launch them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from cli.api import print_answer
from cli.objects import ObjectKind
from cli.parameters import parse_pairs
from cli.terminal import render_table
from model.errors import InputError
from model.typed import parse_parameter, render_parameter

if TYPE_CHECKING:
    from client.api import RefeedApi


def launch_template(
    name: str, parameters: Sequence[str] | None, *, idempotency_key: str | None, as_json: bool
) -> None:
    """Launch the job or stream that a template describes, and print what was made."""
    given = parse_pairs(parameters, "--param", "NAME=VALUE, such as topic=orders") or {}

    def launch_it(api: "RefeedApi") -> dict[str, Any]:
        declared = api.read_manifest(name)["document"].get("parameters", {}) if given else {}
        types = {key: each.get("type", "STRING") for key, each in declared.items()}
        values = {key: parse_parameter(types.get(key, "STRING"), text) for key, text in given.items()}
        return api.launch_template(name, values, idempotency_key=idempotency_key or str(uuid4()))

    print_answer(launch_it, _made_lines, as_json=as_json)


def _list_templates(api: "RefeedApi") -> dict[str, Any]:
    return {"templates": [each for each in api.list_manifests()["manifests"] if each["kind"] == "Template"]}


def _read_template(api: "RefeedApi", name: str) -> dict[str, Any]:
    found = api.read_manifest(name)
    if found["kind"] != "Template":
        raise InputError(f"{name} is a {found['kind']}, not a template.")
    return found


def _table(found: Mapping[str, Any]) -> list[str]:
    documents = [each["document"] for each in found["templates"]]
    rows = [
        (each["name"], each["launch"]["kind"], *each.get("description", "").splitlines()[:1]) for each in documents
    ]
    return render_table(("template", "launches", "description"), rows)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    document = found["document"]
    about = f": {document['description']}" if document.get("description") else ""
    yield f"{found['name']}, a {document['launch']['kind']}{about}\n"
    rows = []
    for name, each in document.get("parameters", {}).items():
        default = "required" if each.get("required") else render_parameter(each.get("default"))
        rows.append((name, each.get("type", "STRING"), default, each.get("help", "")))
    yield from render_table(("parameter", "type", "default", "help"), rows)
    yield f"\n{json.dumps(document['launch'].get('request', {}), indent=2, ensure_ascii=False)}"


def _launch_command(found: Mapping[str, Any]) -> str:
    parameters = found["document"].get("parameters", {})
    needed = (f" --param {name}=VALUE" for name, each in parameters.items() if each.get("required"))
    return f"refeed launch template/{found['name']}{''.join(needed)}"


def _made_lines(made: Mapping[str, Any]) -> Iterator[str]:
    is_job = made["kind"] in {"backfill", "merge"}
    next_ = f"watch {made['id']}" if is_job else f"describe stream/{made['id']}"
    yield f"{made['kind']} {made['id']}; refeed {next_}"


TEMPLATE: Final = ObjectKind(
    name="template",
    plural="templates",
    fetch=lambda api, _: _list_templates(api),
    table=_table,
    read=_read_template,
    lines=_lines,
    next=_launch_command,
)
