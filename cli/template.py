"""``refeed template``: list, show and launch templates through the HTTP API."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from cli.api import print_answer
from cli.invocation import HomeGroup
from cli.options import EXIT_CODES, JsonOption
from cli.parameters import parse_pairs
from cli.terminal import render_table

if TYPE_CHECKING:
    from client.api import RefeedApi

app = typer.Typer(
    cls=HomeGroup,
    help="Launch streams and jobs from templates, by name. The commands call the API at REFEED_API_URL.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A template's name.", show_default=False)]


@app.command("list", epilog=EXIT_CODES)
def list_(as_json: JsonOption = False) -> None:
    """List all templates, including templates with faults."""
    print_answer(lambda api: api.list_templates(), _table, as_json=as_json)


@app.command("show", epilog=EXIT_CODES)
def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show one template, with its parameters and its request."""
    print_answer(lambda api: api.read_template(name), _lines, as_json=as_json)


@app.command("launch", epilog=EXIT_CODES)
def launch(
    name: NameArgument,
    *,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", metavar="NAME=VALUE", help="The value of a parameter. May be repeated."),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeated calls with the same key launch the template only once.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Launch the job or stream that a template describes."""
    given = parse_pairs(param, "--param", "NAME=VALUE, such as topic=orders") or {}

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


def _made_lines(made: Mapping[str, Any]) -> Iterator[str]:
    next_ = f"{made['kind']} watch" if made["kind"] in {"backfill", "merge"} else "stream show"
    yield f"{made['kind']} {made['id']}; refeed {next_} {made['id']}"


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
