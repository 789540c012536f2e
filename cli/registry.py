"""``refeed source``: check, compare and publish what the pipeline's sources look like."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.histories import note_event
from cli.invocation import HomeGroup, command_settings, open_deployment
from cli.options import JsonObjectOption
from cli.running import find_running
from cli.terminal import ExitCode, err, out, print_found, render_change, render_table
from model.errors import EvolutionRefusedError, InputError, RegistryError
from model.event import HistoryEventType, render_changes
from model.naming import counted
from model.schema import REFUSED_ADVICE

if TYPE_CHECKING:
    from model.settings import Settings
    from pipeline.registry import Registry, RegistrySnapshot, Source

app = typer.Typer(
    cls=HomeGroup,
    no_args_is_help=True,
    help="Check, compare and publish the registry of data sources. The registry is a folder, or a URL that "
    "fsspec can open.",
)

_ONLY_JSON: Final = (
    "With a schema, Refeed reads JSON messages by its field names, and no binary protobuf messages."
)

FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        help="The file sources.yaml, and descriptor sets that protoc wrote with --include_imports and "
        "--descriptor_set_out.",
        show_default=False,
    ),
]


@app.command("check")
def check(files: FilesArgument = None, as_json: JsonObjectOption = False) -> None:
    """Check the registry and print each fault with its position. FILES are checked as if they were published.

    Refeed reads JSON messages by the field names of the schema, and no binary protobuf messages.

    The command also prints notes. A note is not a fault. It names a problem that can make merges of the source
    fail, or take different entities for one.
    """
    from pipeline.findings import find_doubtful

    settings = command_settings()
    snapshot = _read(_open(settings), files)
    rows = [
        [s.name, s.topic, s.group, s.staging, s.publish, f"{s.message} {s.version}".strip() or "inferred"]
        for s in snapshot.sources
    ]
    findings = find_doubtful(snapshot.sources)
    notes = [_ONLY_JSON] if any(not source.is_inferred for source in snapshot.sources) else []
    notes += [f"note: {each.source}.{each.field}: {each.message}." for each in findings]
    print_found(
        {
            "version": snapshot.version,
            "sources": [_to_json(source) for source in snapshot.sources],
            "findings": [asdict(each) for each in findings],
        },
        lambda _: render_table(["source", "topic", "group", "staging", "publish", "schema"], rows) + notes,
        as_json=as_json,
    )


@app.command("diff")
def diff(files: FilesArgument = None, as_json: JsonObjectOption = False) -> None:
    """Show how FILES would change the sources and their tables if they were published. Nothing is changed.

    The exit code is 1 if a change is not allowed, such as a dropped column or a changed type.
    """
    settings = command_settings()
    registry = _open(settings)
    snapshot = _read(registry, files)
    found = _differences(settings, snapshot)
    print_found(_shown(snapshot, found, _published(registry)), _lines, as_json=as_json)
    if any(entry["refused"] for entry in found):
        raise typer.Exit(ExitCode.FAILED)


@app.command("publish")
def publish(
    files: Annotated[list[Path], typer.Argument(help="Descriptor sets and sources.yaml.", show_default=False)],
    as_json: JsonObjectOption = False,
) -> None:
    """Publish FILES to the registry. Running pipelines use the published files within seconds.

    Each file replaces the registry's file with the same name. To add a source, add it to a copy of the registry's
    sources.yaml. This file has one source without a schema:
    `sources: {orders: {topic: orders, schema: inferred}}`. Refeed infers its columns from the messages. With a
    descriptor set, write `message: shop.Order` in place of `schema: inferred`. Refeed reads JSON messages by the
    field names of this schema, and no binary protobuf messages. If a source has a key, such as `key: id`, merges
    write its newest rows to a reporting table.

    The fields of a source are topic, subscription, message, schema, event_type_attribute, scalars_as_text,
    staging, reporting, key, event_time, partition, dedup_order, group, variant, delete, publish and
    publish_ordering. docs/reference/manifest-fields.md describes them.

    The command publishes nothing if the new registry would be invalid, or if a table can't be changed to match a
    new schema.
    """
    settings = command_settings()
    registry = _open(settings)
    snapshot, overlay = _read(registry, files), _read_files(files)
    found = _differences(settings, snapshot)
    refused = [(entry["source"], fault) for entry in found for fault in entry["refused"]]
    if refused:
        raise EvolutionRefusedError(
            f"Nothing was published, because a table can't be changed to match the new schema. {REFUSED_ADVICE}",
            errors=[
                {
                    "pointer": f"{source}.{fault['path']}",
                    "message": fault["text"],
                    "code": EvolutionRefusedError.code,
                }
                for source, fault in refused
            ],
        )
    known = _published(registry)
    registry.publish(overlay)
    _note(settings, snapshot, known)
    print_found(_shown(snapshot, found, known), _lines, as_json=as_json)
    if not as_json:
        out.print(f"published {', '.join(overlay)} to {registry.url}")
        topics = {source.topic: None for source in snapshot.sources if source.name not in known}
        read = _registry_of_services(settings)
        if read is not None:
            err.print(
                f"The running 'refeed up' reads the registry {read}, so it does not read what you published. To "
                "publish to that registry, unset REFEED_REGISTRY."
            )
            return
        if topics:
            out.print(f"The pipeline begins to read {', '.join(topics)} within about a minute, if it runs.")
            out.print("It does not read messages that are published earlier. 'refeed backfill' replays these.")
        for topic in topics:
            out.print(f"next: refeed backfill {topic} --from 24h   replays earlier messages, if they are archived")
        for line in _row_lines([each for each in snapshot.sources if each.topic in topics]):
            out.print(line)
        for source in snapshot.sources:
            if source.name in known and known[source.name] != source:
                again = f"refeed redrive --source {source.name} --dry-run"
                out.print(f"next: {again}   shows the plan to send its dead letters again")


def _row_lines(sources: "Sequence[Source]") -> Iterator[str]:
    """Yield what becomes of a replayed message that is a row already, of sources with and without a merge."""
    merged, others = ([each for each in sources if bool(each.key) is wanted] for wanted in (True, False))
    if merged:
        names = ", ".join(each.staging for each in merged)
        yield f"A replayed message that has a row already gets a second row in {names}. A merge keeps the new one."
    if others:
        names = ", ".join(each.name for each in others)
        yield f"A replayed message that has a row already gets a second row, which stays, as {names} has no key."


def _note(settings: "Settings", snapshot: "RegistrySnapshot", known: "Mapping[str, Source | None]") -> None:
    """Add a line to the history of each source that the registry did not have as it is now, or has no longer."""
    published = {each.name: each for each in snapshot.sources}
    with open_deployment(settings) as deployment:
        for name, source in published.items():
            before = known.get(name)
            if before != source or name not in known:
                changes = None if before is None else render_changes(_to_json(before), _to_json(source))
                what = "published" if name not in known else "published again"
                note_event(deployment, "source", name, what, kind=HistoryEventType.APPLIED, changes=changes)
        for name in sorted(known.keys() - published.keys()):
            note_event(deployment, "source", name, "removed", kind=HistoryEventType.REMOVED)


def _registry_of_services(settings: "Settings") -> str | None:
    """Return the registry of the running ``refeed up`` if it is not that of ``settings``."""
    running = find_running(os.environ)
    differences = () if running is None else running.differences(settings)
    return next((there for name, _, there in differences if name == "REFEED_REGISTRY"), None)


def _open(settings: "Settings") -> "Registry":
    from pipeline.registry import Registry

    return Registry(settings.registry)


def _published(registry: "Registry") -> "dict[str, Source | None]":
    """Return the published sources by name, None for one with a fault; a registry that can't be read has none."""
    with suppress(RegistryError):
        found = registry.read_valid()
        return dict.fromkeys(each.name for each in found.broken) | {each.name: each for each in found.sources}
    return {}


def _read(registry: "Registry", files: list[Path] | None) -> "RegistrySnapshot":
    """Return the registry as it would be with FILES.

    Raises:
        RegistryError: it has faults; those of FILES name the file as the caller did.
    """
    overlay = _read_files(files)
    paths = {path.name: str(path) for path in files or []}
    try:
        return registry.read(overlay)
    except RegistryError as exc:
        faults = exc.details.get("errors", [])
        # The registry's own faults keep its name.
        given = [name for name in paths if any(_is_in(name, fault) for fault in faults)]
        if not given or not all(any(_is_in(name, fault) for name in given) for fault in faults):
            raise
        for fault in faults:
            name = next(name for name in given if _is_in(name, fault))
            fault["pointer"] = paths[name] + fault["pointer"].removeprefix(name)
        count = counted(len(faults), "fault")
        where = " and ".join(paths[name] for name in given)
        has = "has" if len(given) == 1 else "have"
        raise RegistryError(f"{where} {has} {count}.", errors=faults) from exc


def _is_in(name: str, fault: Mapping[str, Any]) -> bool:
    """Whether a fault stands in the file ``name`` of the registry."""
    return re.match(rf"{re.escape(name)}(?:[.,]|$)", fault["pointer"]) is not None


def _read_files(files: list[Path] | None) -> dict[str, bytes]:
    """Return what FILES hold, by the name that they have in a registry."""
    from pipeline.entries import SOURCES_FILE
    from pipeline.registry import DESCRIPTOR_SUFFIXES

    found: dict[str, bytes] = {}
    for path in files or []:
        if path.name != SOURCES_FILE and not path.name.endswith(DESCRIPTOR_SUFFIXES):
            raise InputError(
                f"{path} is neither {SOURCES_FILE} nor a descriptor set ({', '.join(DESCRIPTOR_SUFFIXES)}). "
                f"A file that lists sources must have the name {SOURCES_FILE}: rename it."
            )
        if path.name in found:
            raise InputError(f"Two files have the name {path.name}. Each file needs a different name.")
        try:
            found[path.name] = path.read_bytes()
        except OSError as exc:
            raise InputError(f"{path} can't be read: {exc.strerror}.") from exc
    return found


def _differences(settings: "Settings", snapshot: "RegistrySnapshot") -> list[dict[str, Any]]:
    """Return for each source what would change in its table, and what is refused."""
    found = []
    # Nothing is written: there is no stream and no lease.
    with closing(open_deployment(settings).warehouse.open_row_tables(stream="", lease="")) as tables:
        for source in snapshot.sources:
            if source.is_inferred:
                continue
            evolution = tables.open(source.staging).plan(source.row_schema)
            found.append(
                {
                    "source": source.name,
                    "table": source.staging,
                    "changes": [{"path": change.path, "text": change.text} for change in evolution.changes],
                    "refused": [{"path": fault.path, "text": fault.text} for fault in evolution.refused],
                }
            )
    return found


def _shown(
    snapshot: "RegistrySnapshot", found: list[dict[str, Any]], known: "Mapping[str, Source | None]"
) -> dict[str, Any]:
    """Return the differences of tables and of entries; the tables of inferred sources follow their messages."""
    tables = {each["source"]: each for each in found}
    entries = {each.name: _entry_changes(known.get(each.name), each) for each in snapshot.sources}
    inferred = [each.name for each in snapshot.sources if each.is_inferred]
    return {
        "sources": [{**each, "entry": entries[name]} for name, each in tables.items()],
        "inferred": inferred,
        "entries": {name: entries[name] for name in inferred},
        "new": [each.name for each in snapshot.sources if each.name not in known],
        "unchanged": [each.name for each in snapshot.sources if each.is_inferred and each == known.get(each.name)],
        "removed": sorted(known.keys() - entries.keys()),
    }


def _entry_changes(before: "Source | None", after: "Source") -> list[dict[str, Any]]:
    """Return how a source's entry changes; a new one, or one that had a fault, has nothing to compare with."""
    if before is None:
        return []
    return render_changes(source_to_entry(before), source_to_entry(after)) or []


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    for entry in found["sources"]:
        lines = [("  ", _change_line(change)) for change in entry["entry"]]
        lines += [("  ", f"{change['path']} {change['text']}") for change in entry["changes"]]
        lines += [("  refused: ", f"{fault['path']} {fault['text']}") for fault in entry["refused"]]
        yield f"{entry['source']} -> {entry['table']}" + ("" if lines else ": no change")
        for mark, line in lines:
            yield f"{mark}{line}"
        if entry["refused"]:
            yield f"  {REFUSED_ADVICE}"
    for name in found["inferred"]:
        is_new, is_same = name in found["new"], name in found["unchanged"]
        what = "a new source" if is_new else "no change of its entry" if is_same else "its entry changes"
        yield f"{name}: {what}. Its schema is inferred: its messages decide how its tables change."
        for change in found["entries"][name]:
            yield f"  {_change_line(change)}"
    for name in found["removed"]:
        yield f"{name}: removed. The pipeline reads its topic no longer. Its tables and its subscription stay."


def _change_line(change: Mapping[str, Any]) -> str:
    return render_change(change).removeprefix("/")


def source_to_entry(source: "Source") -> dict[str, Any]:
    """Return the fields of a source by their names in sources.yaml, with defaults, and the schema's hash."""
    return {
        "topic": source.topic,
        "subscription": source.subscription,
        "group": source.group,
        "staging": source.staging,
        "reporting": source.reporting,
        "key": list(source.key),
        "event_time": source.event_time,
        "partition": source.partition,
        "dedup_order": list(source.dedup_order),
        "variant": source.variant,
        "delete": "soft" if source.is_soft_delete else "hard",
        "event_type_attribute": source.event_type_attribute,
        "scalars_as_text": source.scalars_as_text,
        "publish": source.publish or None,
        "publish_ordering": "key" if source.is_published_by_key else "none",
        "message": source.message or None,
        "schema_version": source.version or None,
    }


def _to_json(source: "Source") -> dict[str, Any]:
    schema = None if source.schema is None else source.schema.to_json()
    return {"name": source.name, **source_to_entry(source), "schema": schema}
