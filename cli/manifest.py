"""``refeed plan``, ``apply``, ``delete`` and ``manifest``: manifests in files, applied through the HTTP API."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.api import open_api
from cli.invocation import HomeGroup, command_settings
from cli.objects import ObjectKind
from cli.options import JsonOption, YesOption
from cli.snapshot import delete_snapshots
from cli.terminal import ExitCode, confirm, err, out, print_found, print_json, render_change, render_table
from model.errors import InputError, ManifestInvalidError

if TYPE_CHECKING:
    from client.api import RefeedApi
    from rollout.manifests.job_gate import JobGate

CHECK_CODES: Final = "Exit codes: 0 done; 1 a file has faults; 2 wrong usage; 130 interrupted."
PLAN_CODES: Final = (
    "Exit codes: 0 done; 1 a file has faults; 2 wrong usage; 3 the API does not answer; 4 the API refused the "
    "call; 130 interrupted."
)
EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 a file has faults, or the plan's hash is not the hash in --plan; 2 wrong usage; 3 the "
    "API does not answer; 4 the API refused the call; 130 interrupted."
)
_SUFFIXES: Final = (".yaml", ".yml")

app = typer.Typer(
    cls=HomeGroup,
    help="Check manifests, and print the JSON Schema of manifests for editors.",
    epilog=CHECK_CODES,
    no_args_is_help=True,
)

FilesOption = Annotated[
    list[Path],
    typer.Option(
        "--file", "-f", help="A file, or a folder with .yaml and .yml files. May be repeated.", show_default=False
    ),
]
PruneOption = Annotated[
    bool,
    typer.Option(
        "--prune",
        help="Also remove the manifests that callers of the API have applied and that are not in these files. "
        "Uploaded manifests stay.",
    ),
]
NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Names of manifests, or ids of snapshots.", show_default=False),
]
PlanOption = Annotated[
    str | None, typer.Option("--plan", metavar="HASH", help="Apply only if the plan still has this hash.")
]


@dataclass(frozen=True, slots=True)
class _ManifestFile:
    """A manifest's file, which has no fault."""

    path: Path
    name: str
    content: bytes


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of manifests."""
    from rollout.manifests.manifest import manifest_schema

    print_json(manifest_schema())


@app.command("check", epilog=CHECK_CODES)
def check(
    paths: Annotated[
        list[Path], typer.Argument(help="Files, or folders with .yaml and .yml files.", show_default=False)
    ],
) -> None:
    """Print every fault in the manifests, with line and column, and apply nothing.

    The command does not call the API. The command checks queries with this machine's settings, such as
    REFEED_QUERY_TABLES.
    """
    for file in _read_files(paths, _gate()):
        out.print(f"{file.path}: good")


def plan(files: FilesOption, *, prune: PruneOption = False, as_json: JsonOption = False) -> None:
    """Show what 'refeed apply' would change, and change nothing.

    The last line is the hash of this plan. 'refeed apply -f FILE --plan HASH' applies exactly this plan.
    """
    read = _read_files(files)
    with open_api() as api:
        plans, removals = _plan_files(api, read, prune=prune)
    _print_plans([*plans, *removals["plans"]], as_json=as_json)


def apply(
    files: FilesOption,
    plan: PlanOption = None,
    *,
    prune: PruneOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Apply manifests: create or change schedules and templates, and begin rollouts. Unchanged ones do nothing.

    With --prune and without --plan, the command asks before it removes manifests.
    """
    read = _read_files(files)
    with open_api() as api:
        plans, removals = _plan_files(api, read, prune=prune)
        removed = [each["name"] for each in removals["plans"]]
        _check_hash([*plans, *removals["plans"]], plan)
        if removed and plan is None and not yes:
            confirm(f"Remove {', '.join(removed)}?")
        for file, planned in zip(read, plans, strict=True):
            update = api.apply_manifest(file.name, file.content, plan=planned["hash"])["update"]
            if update is not None and planned["note"] is None:
                planned["note"] = f"{update['id']} is {update['state']}."
        if removed:
            api.prune_manifests([file.name for file in read], plan=removals["hash"])
    _print_plans([*plans, *removals["plans"]], as_json=as_json)


def delete(
    names: NamesArgument = None,
    files: FilesOption = [],  # noqa: B006 - typer reads it
    plan: PlanOption = None,
    *,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove manifests by their names or files, or snapshots by their ids.

    Running jobs continue, and streams do not change. A snapshot goes with its files and its Pub/Sub snapshots.

    Uploaded manifests can be removed after their files were deleted.
    """
    snapshots = [name for name in names or () if name.startswith(("sn_", "snapshot/"))]
    if snapshots:
        if len(snapshots) != len(names or ()) or files or plan:
            raise InputError("Delete snapshots and manifests with one command each.")
        delete_snapshots(snapshots, yes=yes, as_json=as_json)
        return
    named = [re.sub("^(manifest|schedule|template)/", "", name) for name in names or ()]
    wanted = [*named, *(file.name for file in (_read_files(files) if files else ()))]
    if not wanted:
        raise InputError("Name the manifests or snapshots, or give files of manifests with --file.")
    with open_api() as api:
        plans = [api.plan_manifest(name, None) for name in wanted]
        _check_hash(plans, plan)
        if not yes:
            confirm(f"Remove {', '.join(wanted)}?")
        for planned in plans:
            api.remove_manifest(planned["name"], plan=planned["hash"])
    _print_plans(plans, as_json=as_json)


def _list_lines(found: Mapping[str, Any]) -> Iterator[str]:
    rows = [(each["name"], each["kind"], str(each["version"]), each["source"]) for each in found["manifests"]]
    yield from render_table(("manifest", "kind", "version", "source"), rows)
    source = found["upload_source"]
    if source is not None and source["problem"] is not None:
        yield f"{source['source']}: {source['problem']}"
    for each in found["uploads"]:
        if each["gone_at"] is not None:
            yield f"{each['file']}: the file no longer exists, and its manifest stays"
        elif each["fault"] is not None:
            applied = each["applied_generation"]
            kept = "No generation is applied" if applied is None else f"Generation {applied} is applied"
            yield f"{each['file']}: generation {each['generation']} is not applied. {kept}. {each['fault']}"


def _gate() -> "JobGate":
    """Return what judges the queries of manifests by this machine's settings."""
    from backfill.plan.validation import validate_request
    from cli.query import gate_policy
    from rollout.manifests.job_gate import JobGate

    settings = command_settings()
    return JobGate(
        lambda request: validate_request(request, gate_policy(settings, replay=True)),
        lambda: datetime.now(UTC),
    )


def _read_files(paths: Sequence[Path], gate: "JobGate | None" = None) -> list[_ManifestFile]:
    """Return the manifests that are named, and those of folders; where any has a fault, print all and end.

    With ``gate`` a query that it refuses is a fault, and what it warns of is printed.

    Raises:
        InputError: there is none, or two have the same name.
    """
    from rollout.manifests.manifest import parse_manifest

    found: list[_ManifestFile] = []
    faults = 0
    for path in _list_paths(paths):
        try:
            content = path.read_bytes()
            manifest = parse_manifest(content)
            for warning in [] if gate is None else gate.check(manifest, content):
                err.print(f"{path}: {warning['message']} ({warning['code']})")
            found.append(_ManifestFile(path, manifest.name, content))
        except OSError as exc:
            faults += 1
            err.print(f"{path} can't be read: {exc.strerror}")
        except ManifestInvalidError as exc:
            for error in exc.details["errors"]:
                faults += 1
                place = f"{path}:{error['line']}:{error['column']}"
                err.print(f"{place}: {error['message']}")
    if faults:
        raise typer.Exit(ExitCode.FAILED)
    names = [file.name for file in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"Several files contain the manifest {', '.join(twice)}.")
    return found


def _list_paths(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES)
        else:
            found.append(path)
    if not found:
        raise InputError(f"There is no .yaml or .yml file in {', '.join(map(str, paths))}.")
    return found


def _plan_files(
    api: "RefeedApi", files: Sequence[_ManifestFile], *, prune: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the plans of the files, and that of the removals, which is empty without ``prune``."""
    plans = [api.plan_manifest(file.name, file.content) for file in files]
    return plans, api.prune_manifests([file.name for file in files]) if prune else {"plans": []}


def _hash_of(plans: Sequence[dict[str, Any]]) -> str:
    """Return one hash for all plans, in whatever order their files come."""
    return hashlib.sha256("\n".join(sorted(each["hash"] for each in plans)).encode()).hexdigest()


def _check_hash(plans: Sequence[dict[str, Any]], given: str | None) -> None:
    if given is not None and given != _hash_of(plans):
        err.print(
            "The plan has changed since you made it, so nothing was applied. 'refeed plan' shows the new plan."
        )
        raise typer.Exit(ExitCode.FAILED)


def _print_plans(plans: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    print_found({"plans": list(plans), "hash": _hash_of(plans)}, _plan_lines, as_json=as_json)


def _plan_lines(found: Mapping[str, Any]) -> Iterator[str]:
    for each in found["plans"]:
        yield f"{each['action']}: {each['kind']} {each['name']}"
        for change in each["differences"]:
            yield f"  {render_change(change)}"
        if each["note"] is not None:
            yield f"  {each['note']}"
        for warning in each.get("warnings") or ():
            yield f"  warning: {warning['message']} ({warning['code']})"
    yield f"plan {found['hash']}"


def _document_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the applied manifest as a file that can be changed and applied again."""
    from model.plain_yaml import write_yaml

    yield f"# version {found['version']}, applied by {found['applied_by']} at {found['changed_at']}"
    yield f"# next: save this as {found['name']}.yaml, change it, and run: refeed apply -f {found['name']}.yaml"
    yield write_yaml(found["document"]).rstrip()


MANIFEST: Final = ObjectKind(
    name="manifest",
    plural="manifests",
    fetch=lambda api, _: api.list_manifests(),
    table=_list_lines,
    read=lambda api, name: api.read_manifest(name),
    lines=_document_lines,
)
