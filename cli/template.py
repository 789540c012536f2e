"""Templates as commands show and launch them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import typer

from cli.api import open_api
from cli.backfill_view import plan_lines
from cli.jobs import BACKFILL
from cli.objects import ObjectKind
from cli.parameters import parse_pairs
from cli.terminal import ExitCode, err, print_found, print_json, render_table
from model.errors import InputError
from model.typed import parse_parameter, render_parameter

if TYPE_CHECKING:
    from client.api import RefeedApi


def launch_template(
    name: str,
    parameters: Sequence[str] | None,
    *,
    idempotency_key: str | None,
    dry_run: bool,
    yes: bool,
    watch: bool,
    as_json: bool,
) -> None:
    """Launch the job or stream that a template describes, and print what was made.

    Of a backfill the plan is shown first, and ``yes`` answers the question. With ``dry_run`` nothing is made.
    """
    given = parse_pairs(parameters, "--param", "NAME=VALUE, such as topic=orders") or {}
    with open_api() as api:
        document = _read_template(api, name)["document"]
        types = {key: each.get("type", "STRING") for key, each in document.get("parameters", {}).items()}
        values = {key: parse_parameter(types.get(key, "STRING"), text) for key, text in given.items()}
        planned: dict[str, Any] = {}
        if dry_run or document["launch"]["kind"] == "backfill":
            planned = _plan(api, document, values, dry_run=dry_run, yes=yes, as_json=as_json)
        if dry_run:
            return
        if planned and idempotency_key is None:
            # With a key, a repeated call must send the same request, and its plan is another one.
            made = api.backfills.create(planned, idempotency_key=str(uuid4()))
            BACKFILL.finish(api, made, watch=watch, as_json=as_json)
            return
        launched = api.launch_template(name, values, idempotency_key=idempotency_key or str(uuid4()))
        print_found(launched, _made_lines, as_json=as_json and not watch)
        if watch:
            _watch(api, launched, as_json=as_json)


def _plan(
    api: "RefeedApi",
    document: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> dict[str, Any]:
    """Show what a launch would do, and return the request of a backfill with its plan, after a yes.

    Raises:
        RequestInvalidError: the parameters are wrong; all of them are named.
        Exit: the plan selects nothing, and that is not allowed.
    """
    from cli.backfill import confirm_plans
    from rollout.manifests.template import read_template

    request = read_template(document).render(values)
    if document["launch"]["kind"] != "backfill":
        print_json(request)
        return {}
    plan = api.plan_backfill(request)
    if dry_run or not as_json:
        print_found(plan, lambda found: plan_lines(found, is_quoted=False), as_json=as_json)
    if plan["rows"] == 0 and not request.get("allow_empty"):
        err.print("The template selects nothing.")
        raise typer.Exit(ExitCode.FAILED)
    if not (dry_run or yes):
        confirm_plans([plan])
    return {**request, "plan_id": plan["plan_id"]}


def _watch(api: "RefeedApi", launched: Mapping[str, Any], *, as_json: bool) -> None:
    """Watch the job or stream until it has ended, or waits for a person."""
    from cli.kinds import KINDS

    kind = next(each for each in KINDS.kinds if each.name == (launched["kind"] if _is_job(launched) else "stream"))
    assert kind.read is not None
    kind.finish(api, kind.read(api, launched["id"]), watch=True, as_json=as_json)


def _is_job(launched: Mapping[str, Any]) -> bool:
    return launched["kind"] in {"backfill", "merge"}


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
    next_ = f"watch {made['id']}" if _is_job(made) else f"describe stream/{made['id']}"
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
