"""Manifests: what is applied and what became of it, and how one is planned, applied, launched and removed."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from console.forms import Action, ActionPage, FormField, key_field, read_key
from console.jobs import EVENTS, sum_up
from console.visit import PagePart, Visit, read_part
from model.plain_yaml import write_yaml
from model.principal import ROLLOUTS_APPLY, RUN, SCHEDULES_APPLY, STREAMS_OPERATE
from model.stream_options import StreamKind
from model.typed import parse_parameter, render_parameter

_SCOPES: Final = {"Schedule": SCHEDULES_APPLY, "Rollout": ROLLOUTS_APPLY, "Template": SCHEDULES_APPLY}
_JOBS: Final = 20
_APPLIES: Final = {
    "Schedule": "The schedule starts its jobs at its times, with your permissions.",
    "Rollout": "The rollout begins to update its stream at once.",
    "Template": "The template launches nothing by itself.",
}
_REMOVES: Final = {
    "Schedule": "The schedule starts no more jobs. Running jobs continue.",
    "Rollout": "The stream does not change. It keeps the release and the options that it has.",
    "Template": "Nobody can launch the template any more. Jobs and streams that it launched continue.",
}
_PLANNED: Final = {"create": "would be created", "update": "would be changed", "none": "would not change"}


def read_manifests(visit: Visit) -> dict[str, Any]:
    """Return what the list of manifests shows, with the faults of uploaded files."""
    return {"title": "Manifests", "found": visit.read("manifests", visit.api.list_manifests)}


def read_manifest(visit: Visit) -> dict[str, Any]:
    """Return what a manifest's page shows."""
    name, api = visit.path_params["name"], visit.api
    found = visit.read(f"manifest {name}", lambda: api.read_manifest(name))
    context: dict[str, Any] = {"title": name, "found": found, "manifest": found.data}
    if found.problem is not None:
        return context
    kind, subject = found.data["kind"], f"manifest/{name}"
    jobs = visit.read(f"{subject} jobs", lambda: _read_jobs(visit, kind, name))
    return {
        **context,
        "document": write_yaml(found.data["document"]),
        "scope": _SCOPES.get(kind, SCHEDULES_APPLY),
        "jobs": jobs,
        "events": visit.read(subject, lambda: api.list_events(subject, page_size=EVENTS)["events"]),
    }


def _read_jobs(visit: Visit, kind: str, name: str) -> list[dict[str, Any]] | None:
    """Return the newest jobs that a manifest made; None of a template without any: only backfills name theirs."""
    where = {"created_by": f"schedule:{name}"} if kind == "Schedule" else {"label": f"manifest:{name}"}
    found = [sum_up(job) for job in visit.api.jobs.list(page_size=_JOBS, **where)["jobs"]]
    return None if kind == "Template" and not found else found


def _describe_apply(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    """Return the page of a manifest's text, with the plan once it was asked for; ``name`` fills it."""
    text = given.get("document", "")
    if not text and given.get("name"):
        text = write_yaml(visit.api.read_manifest(given["name"])["document"])
    plan = None
    if given.get("do") == "plan":
        plan = _plan(visit, text)
    planned = plan.data if plan is not None and plan.problem is None else None
    changes = [each for each in planned["plans"] if each["action"] != "none"] if planned else []
    fields = (
        FormField("document", "Manifests, in YAML", kind="textarea", value=text),
        *((FormField("plan", "", kind="hidden", value=planned["hash"]),) if planned else ()),
    )
    return ActionPage(
        title="Apply manifests",
        effects=tuple(dict.fromkeys(_APPLIES.get(each["kind"], "") for each in changes)),
        button=_apply_button(changes),
        back="/manifests",
        fields=fields,
        scope=_SCOPES.get(changes[0]["kind"], "") if changes else "",
        template="apply_manifest.html",
        extra={"plan": plan, "planned": _PLANNED, "changes": changes},
    )


def _apply_button(changes: Sequence[Mapping[str, Any]]) -> str:
    if len(changes) != 1:
        return f"Apply {len(changes)} manifests" if changes else "Apply"
    (change,) = changes
    return f"Apply: {change['action']} the {change['kind'].lower()} {change['name']}"


def _plan(visit: Visit, text: str) -> PagePart:
    """Return what applying the text would change, or its faults."""
    plan = read_part(lambda: visit.api.apply_manifests(text.encode(), validate_only=True))
    refused = plan.data["refused"] if plan.problem is None else ()
    if not refused:
        return plan
    faults = [fault for each in refused for fault in each["errors"]]
    detail = " ".join(each["message"] for each in refused)
    return PagePart(problem={"code": refused[0]["code"], "title": "", "detail": detail, "errors": faults})


def _apply(visit: Visit, fields: Mapping[str, str]) -> str:
    text = fields.get("document", "").replace("\r\n", "\n")
    applied = visit.api.apply_manifests(text.encode(), plan=fields.get("plan") or None)["plans"]
    return _path(applied[0]["name"]) if len(applied) == 1 else "/manifests"


def _describe_remove(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    found = visit.api.read_manifest(visit.path_params["name"])
    name, kind = found["name"], found["kind"]
    # Bound to what the page showed: a manifest that was applied since then stays.
    return ActionPage(
        title=f"Remove: {name}",
        effects=(f"The {kind.lower()} {name} is removed.", _REMOVES.get(kind, "Running jobs continue.")),
        button=f"Remove the {kind.lower()}",
        back=_path(name),
        etag=given.get("etag") or found["etag"],
        typed=name,
        scope=_SCOPES.get(kind, SCHEDULES_APPLY),
    )


def _remove(visit: Visit, fields: Mapping[str, str]) -> str:
    visit.api.remove_manifest(visit.path_params["name"], etag=fields.get("etag", ""))
    return "/manifests"


def _describe_launch(visit: Visit, given: Mapping[str, str]) -> ActionPage:
    found = visit.api.read_manifest(visit.path_params["name"])
    name, document = found["name"], found["document"]
    if found["kind"] != "Template":
        refused = f"{name} is a {found['kind']}, and only a template can be launched."
        return ActionPage(f"Launch: {name}", (refused,), "Launch", _path(name), is_possible=False)
    kind = document["launch"]["kind"]
    effects = [f"A new {kind} is launched with these parameters. You are its creator."]
    if kind == "backfill":
        effects.append(f"To see its plan first, use 'refeed launch template/{name} --dry-run'.")
    return ActionPage(
        title=f"Launch: {name}",
        effects=(*effects, *filter(None, [document.get("description")])),
        button=f"Launch the {kind}",
        back=_path(name),
        fields=(
            *(_parameter(each, wanted, given) for each, wanted in document.get("parameters", {}).items()),
            key_field(given),
        ),
        scope=STREAMS_OPERATE if kind in {*StreamKind} else RUN,
    )


def _parameter(name: str, wanted: Mapping[str, Any], given: Mapping[str, str]) -> FormField:
    shown = render_parameter(wanted.get("default"))
    about = (wanted.get("help", ""), "It is required." if wanted.get("required") else "")
    label = f"{name} ({wanted.get('type', 'STRING')})"
    return FormField(_field(name), label, value=given.get(_field(name), shown), help=" ".join(filter(None, about)))


def _field(name: str) -> str:
    """Return the name of a parameter's field, which is none of the form's own."""
    return f"parameter.{name}"


def _launch(visit: Visit, fields: Mapping[str, str]) -> str:
    name = visit.path_params["name"]
    declared = visit.api.read_manifest(name)["document"].get("parameters", {})
    texts = {each: fields.get(_field(each), "").strip() for each in declared}
    values = {each: parse_parameter(declared[each].get("type", ""), text) for each, text in texts.items() if text}
    made = visit.api.launch_template(name, values, idempotency_key=read_key(fields))
    collection = "streams" if made["kind"] in {*StreamKind} else "jobs"
    return f"/{collection}/{quote(made['id'], safe='')}"


def _path(name: str) -> str:
    return f"/manifests/{quote(name, safe='')}"


MANIFEST_ACTIONS: Final = (
    Action("/manifests:apply", "", _describe_apply, _apply),
    Action("/manifests/{name}/remove", "", _describe_remove, _remove),
    Action("/manifests/{name}/launch", "", _describe_launch, _launch),
)
