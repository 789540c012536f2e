"""Templates as commands show and launch them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from cli.api import print_answer
from cli.objects import ObjectKind
from cli.parameters import parse_pairs
from cli.terminal import render_table

if TYPE_CHECKING:
    from client.api import RefeedApi


def launch_template(
    name: str, parameters: Sequence[str] | None, *, idempotency_key: str | None, as_json: bool
) -> None:
    """Launch the job or stream that a template describes, and print what was made."""
    given = parse_pairs(parameters, "--param", "NAME=VALUE, such as topic=orders") or {}

    def launch_it(api: "RefeedApi") -> dict[str, Any]:
        types = {each["name"]: each["type"] for each in api.read_template(name)["parameters"]}
        values = {key: _typed(types.get(key, "STRING"), text) for key, text in given.items()}
        return api.launch_template(name, values, idempotency_key=idempotency_key or str(uuid4()))

    print_answer(launch_it, _made_lines, as_json=as_json)


def _table(found: Mapping[str, Any]) -> list[str]:
    rows = []
    for each in found["templates"]:
        faults = "; ".join(str(error["message"]) for error in each["errors"])
        rows.append((each["name"], each["kind"] or "", each["description"] or faults))
    return render_table(("template", "kind", "description"), rows)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    about = f": {found['description']}" if found["description"] else ""
    yield f"{found['name']}, a {found['kind']}{about}\n"
    rows = [
        (each["name"], each["type"], "required" if each["required"] else _shown(each["default"]), each["help"])
        for each in found["parameters"]
    ]
    yield from render_table(("parameter", "type", "default", "help"), rows)
    yield f"\n{json.dumps(found['request'], indent=2, ensure_ascii=False)}"


def _launch_command(found: Mapping[str, Any]) -> str:
    needed = (f" --param {each['name']}=VALUE" for each in found["parameters"] if each["required"])
    return f"refeed launch template/{found['name']}{''.join(needed)}"


def _made_lines(made: Mapping[str, Any]) -> Iterator[str]:
    is_job = made["kind"] in {"backfill", "merge"}
    next_ = f"watch {made['id']}" if is_job else f"describe stream/{made['id']}"
    yield f"{made['kind']} {made['id']}; refeed {next_}"


def _typed(kind: str, text: str) -> Any:
    """Return the value of a text in JSON; one that is none of its type stays a text, which the API names."""
    if kind in {"INT64", "FLOAT64", "BOOL"}:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _shown(value: Any) -> str:
    return "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)


TEMPLATE: Final = ObjectKind(
    name="template",
    plural="templates",
    fetch=lambda api, _: api.list_templates(),
    table=_table,
    read=lambda api, name: api.read_template(name),
    lines=_lines,
    next=_launch_command,
)
