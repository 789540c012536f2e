"""``refeed diff``, ``apply`` and ``delete``: manifests in files, applied through the HTTP API."""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.api import open_api
from cli.invocation import command_settings
from cli.moments import UNKNOWN
from cli.objects import ObjectKind
from cli.options import JsonOption, YesOption
from cli.snapshot import delete_snapshots
from cli.terminal import ExitCode, confirm, err, out, print_found, render_change, render_table
from model.errors import InputError, ManifestInvalidError

if TYPE_CHECKING:
    from rollout.manifests.job_gate import JobGate

DIFF_CODES: Final = (
    "Exit codes: 0 done; 1 a file has faults; 2 wrong usage; 3 the API does not answer; 4 the API refused the "
    "call; 130 interrupted."
)
EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 a file has faults, or the plan's hash is not the hash in --plan; 2 wrong usage; 3 the "
    "API does not answer; 4 the API refused the call; 130 interrupted."
)
_DONE: Final = {"create": "created", "update": "changed", "none": "unchanged", "remove": "removed"}
_SUFFIXES: Final = (".yaml", ".yml")
# As PyYAML counts lines.
_LINE_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")

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
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show the changes, as 'refeed diff' does.")]
PlanOption = Annotated[
    str | None, typer.Option("--plan", metavar="HASH", help="Apply only if the plan still has this hash.")
]


@dataclass(frozen=True, slots=True)
class _ManifestFile:
    """A file of manifests, which has no fault."""

    path: Path
    names: tuple[str, ...]
    content: bytes


class _ManifestText:
    """All files as one text with a document or several from each, and the way back to their lines."""

    def __init__(self, files: Sequence[_ManifestFile]) -> None:
        self.content = b""
        # The line before the first of each file.
        self._starts: list[tuple[int, Path]] = []
        for file in files:
            # A directive such as %YAML can stand only after the end of a document.
            separator = b"" if not self.content else b"...\n" if file.content.startswith(b"%") else b"---\n"
            self.content += separator
            self._starts.append((len(_LINE_BREAK.findall(self.content.decode())), file.path))
            text = file.content.removeprefix(BOM_UTF8)
            self.content += text if text.endswith(b"\n") else text + b"\n"

    def place(self, fault: Mapping[str, Any]) -> str:
        """Return file, line and column of a fault that the API found in the text."""
        start, path = next(each for each in reversed(self._starts) if each[0] < fault["line"])
        return f"{path}:{fault['line'] - start}:{fault['column']}"


def check_manifests(paths: Sequence[Path]) -> None:
    """Print every fault in the manifests, or that they have none, without the API.

    Queries are checked with this machine's settings, such as REFEED_QUERY_TABLES.
    """
    for file in _read_files(paths, _gate()):
        out.print(f"{file.path}: good")


def diff(files: FilesOption, *, prune: PruneOption = False, as_json: JsonOption = False) -> None:
    """Show what 'refeed apply' would change, and change nothing.

    The last line is the hash of this plan. 'refeed apply -f FILE --plan HASH' applies exactly this plan.
    """
    text = _ManifestText(_read_files(files))
    with open_api() as api:
        planned = api.apply_manifests(text.content, validate_only=True, prune=prune)
    _print_changes(text, planned, as_json=as_json)


def apply(
    files: FilesOption,
    plan: PlanOption = None,
    *,
    prune: PruneOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Apply manifests: create or change schedules and templates, and begin rollouts. Unchanged files do nothing.

    The command applies all manifests or none. With --prune and without --plan, it asks before it removes any.

    One example of each kind:

    {kind: Schedule, name: nightly, cron: "0 2 * * *", job: {kind: merge}}

    {kind: Template, name: again, parameters: {topic: {required: true}}, launch: {kind: backfill, request:
    {source_topic: "${topic}", from: 1h}}}

    {kind: Rollout, name: backup-1-3, stream: backup, from: {release: "1.2"}, to: {release: "1.3"}}

    'refeed check --manifest-schema' prints all fields, and docs/reference/manifest-fields.md describes them.
    'refeed describe manifest/NAME' prints an applied manifest as a file.
    """
    text = _ManifestText(_read_files(files))
    with open_api() as api:
        planned = api.apply_manifests(text.content, validate_only=True, prune=prune)
        if plan not in {None, planned["hash"]}:
            err.print(
                "The plan has changed since you made it, so nothing was applied. 'refeed diff' shows the new plan."
            )
            raise typer.Exit(ExitCode.FAILED)
        if dry_run or planned["refused"]:
            _print_changes(text, planned, as_json=as_json)
            return
        removed = [each["name"] for each in planned["plans"] if each["action"] == "remove"]
        if removed and plan is None and not yes:
            confirm(f"Remove {', '.join(removed)}?")
        applied = api.apply_manifests(text.content, prune=prune, plan=planned["hash"])
    _print_changes(text, applied, as_json=as_json)


def delete(
    names: NamesArgument = None,
    files: FilesOption = [],  # noqa: B006 - typer reads it
    *,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove manifests by their names or files, or snapshots by their ids.

    Running jobs continue, and streams do not change. With a snapshot, its files and its
    Pub/Sub snapshots are deleted too. To remove an uploaded manifest, first delete its file.
    """
    snapshots = [name for name in names or () if name.startswith(("sn_", "snapshot/"))]
    if snapshots:
        if len(snapshots) != len(names or ()) or files:
            raise InputError("Delete snapshots and manifests with one command each.")
        delete_snapshots(snapshots, yes=yes, as_json=as_json)
        return
    named = [re.sub("^(manifest|schedule|template)/", "", name) for name in names or ()]
    wanted = [*named, *(name for file in (_read_files(files) if files else ()) for name in file.names)]
    if not wanted:
        raise InputError("Name the manifests or snapshots, or give files of manifests with --file.")
    with open_api() as api:
        found = [api.read_manifest(name) for name in wanted]
        if not yes:
            confirm(f"Remove {', '.join(wanted)}?")
        removed = [api.remove_manifest(each["name"], etag=each["etag"]) for each in found]
    print_found({"manifests": removed}, _removed_lines, as_json=as_json)


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
    from rollout.manifests.manifest import read_manifest, split_manifests

    found: list[_ManifestFile] = []
    faults = 0
    for path in _list_paths(paths):
        try:
            content = path.read_bytes()
        except OSError as exc:
            faults += 1
            err.print(f"{path} can't be read: {exc.strerror}")
            continue
        names = []
        wrong: list[ManifestInvalidError] = []
        try:
            documents = split_manifests(content)
        except ManifestInvalidError as exc:
            documents = []
            wrong.append(exc)
        for source in documents:
            try:
                manifest = read_manifest(source)
                names.append(manifest.name)
                for warning in [] if gate is None else gate.check(manifest):
                    err.print(f"{path}: {warning['message']} ({warning['code']})")
            except ManifestInvalidError as exc:
                wrong.append(exc)
        for error in (each for exc in wrong for each in exc.details["errors"]):
            faults += 1
            err.print(f"{path}:{error['line']}:{error['column']}: {error['message']}")
        found.append(_ManifestFile(path, tuple(names), content))
    if faults:
        raise typer.Exit(ExitCode.FAILED)
    every = [name for file in found for name in file.names]
    if twice := sorted({name for name in every if every.count(name) > 1}):
        raise InputError(f"The files contain several manifests named {', '.join(twice)}.")
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


def _print_changes(text: _ManifestText, found: dict[str, Any], *, as_json: bool) -> None:
    """Print the changes; if manifests are refused, print their faults and end."""
    print_found(found, _plan_lines, as_json=as_json)
    for each in found["refused"]:
        for fault in each["errors"]:
            err.print(f"{text.place(fault)}: {fault['message']}")
    if found["refused"]:
        raise typer.Exit(ExitCode.REFUSED)


def _plan_lines(found: Mapping[str, Any]) -> Iterator[str]:
    for each in found["plans"]:
        action = _DONE[each["action"]] if found["is_applied"] else each["action"]
        yield f"{action}: {each['kind']} {each['name']}"
        for change in each["differences"]:
            yield f"  {render_change(change)}"
        if each["note"] is not None:
            yield f"  {each['note']}"
        elif (update := each["update"]) is not None:
            yield f"  {update['id']} is {update['state']}."
        for warning in each["warnings"]:
            yield f"  warning: {warning['message']} ({warning['code']})"
    for each in found["refused"]:
        yield f"refused: {each['kind'] or 'manifest'} {each['name'] or 'without a name'}"
    # Nobody can apply a plan of which a part is refused.
    if not found["is_applied"] and not found["refused"]:
        yield f"plan {found['hash']}"


def _removed_lines(found: Mapping[str, Any]) -> Iterator[str]:
    for each in found["manifests"]:
        yield f"removed: {each['kind']} {each['name']}"


def _document_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the applied manifest as a file that can be changed and applied again."""
    from model.plain_yaml import write_yaml

    name, applied_at, change = found["name"], found["applied_at"] or UNKNOWN, found["last_change"]
    yield f"# version {found['version']}, applied by {found['applied_by']} at {applied_at}"
    yield f"# created at {found['created_at']}"
    if change is not None and change["type"] != "applied":
        yield f"# last change: {change['type']} by {change['actor'] or UNKNOWN} at {change['at']}"
    yield f"# next: {_way_to_change(name, found['source'])}"
    yield write_yaml(found["document"]).rstrip()


def _way_to_change(name: str, source: str) -> str:
    """Return how a person changes a manifest: only the owner of its name does."""
    if source == "api":
        return f"save this as {name}.yaml, change it, and run: refeed apply -f {name}.yaml"
    if source.startswith("upload:"):
        return f"change its file in {source.removeprefix('upload:')}"
    return f"change the setting {source}, and start the API again"


MANIFEST: Final = ObjectKind(
    name="manifest",
    plural="manifests",
    fetch=lambda api, _: api.list_manifests(),
    table=_list_lines,
    read=lambda api, name: api.read_manifest(name),
    lines=_document_lines,
)
