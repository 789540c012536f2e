"""``refeed template``: list, show and launch templates through the HTTP API."""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any
from uuid import uuid4

import typer

from cli.api import open_api
from cli.invocation import HomeGroup
from cli.jobs import EXIT_CODES, JsonOption
from cli.terminal import out, print_json, print_table
from model.errors import InputError

app = typer.Typer(
    cls=HomeGroup,
    help="Launch what was written down once, by its name (through the API at REFEED_API_URL).",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A template's name.", show_default=False)]


@app.command("list", epilog=EXIT_CODES)
def list_(as_json: JsonOption = False) -> None:
    """List all templates, also those with faults."""
    with open_api() as api:
        found = api.list_templates()
    if as_json:
        print_json(found)
        return
    rows = [
        (each["name"], each["kind"] or "", each["description"] or "; ".join(_messages(each)))
        for each in found["templates"]
    ]
    print_table(("template", "kind", "description"), rows)


@app.command("show", epilog=EXIT_CODES)
def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show one template: its parameters, and the request that they go into."""
    with open_api() as api:
        found = api.read_template(name)
    if as_json:
        print_json(found)
        return
    about = f": {found['description']}" if found["description"] else ""
    out.print(f"{found['name']}, a {found['kind']}{about}\n", markup=False)
    rows = [
        (each["name"], each["type"], "required" if each["required"] else _shown(each["default"]), each["help"])
        for each in found["parameters"]
    ]
    print_table(("parameter", "type", "default", "help"), rows)
    out.print(f"\n{json.dumps(found['request'], indent=2, ensure_ascii=False)}", markup=False)


@app.command("launch", epilog=EXIT_CODES)
def launch(
    name: NameArgument,
    *,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="NAME=VALUE", help="A parameter's value; may be repeated."),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeated calls with the same key launch it once.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Launch a template with these parameters; the commands of its kind watch what it made."""
    given = _read_params(param or ())
    with open_api() as api:
        types = {each["name"]: each["type"] for each in api.read_template(name)["parameters"]}
        values = {key: _typed(types.get(key, "STRING"), text) for key, text in given.items()}
        made = api.launch_template(name, values, idempotency_key=idempotency_key or str(uuid4()))
    if as_json:
        print_json(made)
    else:
        next_ = f"{made['kind']} watch" if made["kind"] in {"backfill", "merge"} else "stream show"
        out.print(f"{made['kind']} {made['id']}; refeed {next_} {made['id']}", markup=False)


def _read_params(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InputError(f"--param {text!r} is not NAME=VALUE, such as topic=orders")
        if name in found:
            raise InputError(f"--param {name} is given twice")
        found[name] = value
    return found


def _typed(kind: str, text: str) -> Any:
    """Return the value of a text in JSON; one that is none of its type stays a text, which the API names."""
    if kind in {"INT64", "FLOAT64", "BOOL"}:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _messages(template: Mapping[str, Any]) -> list[str]:
    return [str(error["message"]) for error in template["errors"]]


def _shown(value: Any) -> str:
    return "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)
