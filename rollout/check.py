"""The check before an update: every reason against it, and whether there is a way back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from model.format import Format
from model.naming import counted, did_you_mean
from model.schema import RowSchema, plan_evolution
from model.stream_options import StreamKind
from rollout.formats import ReleaseFormats


class Remedy(StrEnum):
    """What a person can do if a stream can't be updated as requested."""

    MAP = "map"
    DRAIN_AND_RELAUNCH = "drain_and_relaunch"
    SNAPSHOT_AND_REPLAY = "snapshot_and_replay"

    @property
    def advice(self) -> str:
        """The advice for a person, as a sentence."""
        return _ADVICE[self]


_ADVICE: Final = {
    Remedy.MAP: "Add a mapping of this source to the update, or correct the registry.",
    Remedy.DRAIN_AND_RELAUNCH: "Drain this stream, and launch the new stream under the same name or another name.",
    Remedy.SNAPSHOT_AND_REPLAY: (
        "Take a snapshot, cancel this stream, launch a new stream with its own tables, and replay the messages "
        "from the archive into these tables."
    ),
}


@dataclass(frozen=True, slots=True)
class CheckReason:
    """One reason not to update; ``about`` names the part of the stream, such as sources.orders."""

    code: str
    about: str
    message: str
    remedy: Remedy


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """One source of a pipeline, from the stream's plan or as a release reads it from the registry.

    ``reporting`` is None if it is unknown; it is not compared then. ``publish`` is the topic to which the rows are
    also published, or None.
    """

    name: str
    topic: str
    subscription: str
    group: str
    staging: str
    schema: RowSchema | None
    reporting: str | None = None
    publish: str | None = None


@dataclass(frozen=True, slots=True)
class StreamSide:
    """A stream as it runs, or as it is to run; a field that is None is unknown, and is not compared.

    ``address`` is the place of the tables, ``home`` the place of the state. ``sources`` are the sources that the
    pipeline runs, or that the registry has for the wanted release; other kinds of streams have none. ``threads``
    is the number of tasks that run at the same time.
    """

    release: str | None
    formats: ReleaseFormats
    options: Mapping[str, Any]
    warehouse: str
    kind: StreamKind | None = None
    project: str | None = None
    address: Mapping[str, str] | None = None
    home: str | None = None
    sources: Sequence[CheckedSource] | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class UpdateCheck:
    """The result of a check: a stream can be updated if there are no ``reasons`` against it.

    ``changes`` are differences that are allowed. ``no_way_back`` has the reasons why the old release can't
    continue after the new one has written; it is empty if there is a way back.
    """

    reasons: tuple[CheckReason, ...]
    changes: tuple[str, ...]
    no_way_back: tuple[str, ...]

    @property
    def passes(self) -> bool:
        """Whether the update may begin."""
        return not self.reasons

    @property
    def has_way_back(self) -> bool:
        """Whether the old release could continue after the new one has written."""
        return not self.no_way_back

    def to_json(self) -> dict[str, Any]:
        """Return the check as the API and the terminal show it."""
        return {
            "passes": self.passes,
            "reasons": [{**asdict(reason), "advice": reason.remedy.advice} for reason in self.reasons],
            "changes": list(self.changes),
            "has_way_back": self.has_way_back,
            "no_way_back": list(self.no_way_back),
        }


def check_update(running: StreamSide, wanted: StreamSide, mapping: Mapping[str, str | None]) -> UpdateCheck:
    """Return every reason why the stream ``running`` can't continue as ``wanted``; an identical rebuild has none.

    ``mapping`` maps the name of a running source to its new name, or to None if the source is to end.
    """
    reasons = [*_kind_reasons(running), *_format_reasons(running, wanted), *_place_reasons(running, wanted)]
    changes = [*_option_changes(running, wanted)]
    for finding in _compare_sources(running, wanted, mapping):
        if isinstance(finding, CheckReason):
            reasons.append(finding)
        else:
            changes.append(finding)
    if running.formats.version != wanted.formats.version:
        changes.insert(0, f"version {running.formats.version} becomes {wanted.formats.version}")
    elif running.release is not None and wanted.release is None:
        # Without a release the update leaves the present release, perhaps without intent: show it.
        changes.insert(0, f"the release {running.release} becomes the installed version")
    no_way_back = [
        f"{running.formats.version} can't read the {name} that {wanted.formats.version} writes"
        for name, ours, theirs in _pairs(wanted, running)
        if theirs is None or not theirs.can_read(ours)
    ]
    return UpdateCheck(tuple(reasons), tuple(changes), tuple(no_way_back))


def _kind_reasons(running: StreamSide) -> Iterator[CheckReason]:
    if running.kind is not None and not running.kind.has_standby:
        message = f"A {running.kind} stream can't have a standby process, so it can only be updated by a restart."
        yield CheckReason("kind_has_no_standby", "kind", message, Remedy.DRAIN_AND_RELAUNCH)


def _pairs(writer: StreamSide, reader: StreamSide) -> Iterator[tuple[str, Format, Format | None]]:
    """Yield each format of ``writer`` with the reader's format of the same name, or None."""
    for name, found in writer.formats.state.items():
        yield name, found, reader.formats.state.get(name)
    theirs = reader.formats.warehouses.get(writer.warehouse, {})
    for name, found in writer.formats.warehouses.get(writer.warehouse, {}).items():
        yield f"{writer.warehouse} {name}", found, theirs.get(name)


# Formats of which a drained stream leaves no file; all others stay in its state or its tables.
_GONE_WHEN_DRAINED: Final = frozenset({"parts", "attempts", "status", "control"})


def _format_reasons(running: StreamSide, wanted: StreamSide) -> Iterator[CheckReason]:
    new, old = wanted.formats.version, running.formats.version
    for name, written, reader in _pairs(running, wanted):
        if reader is not None and reader.can_read(written):
            continue
        reads = "no format of it" if reader is None else f"formats {' '.join(map(str, sorted(reader.reads)))}"
        message = f"{old} writes {name} in format {written.writes}, and {new} reads {reads}."
        is_gone = name.rpartition(" ")[2] in _GONE_WHEN_DRAINED
        remedy = Remedy.DRAIN_AND_RELAUNCH if is_gone else Remedy.SNAPSHOT_AND_REPLAY
        yield CheckReason("format_unreadable", f"formats.{name}", message, remedy)


def _place_reasons(running: StreamSide, wanted: StreamSide) -> Iterator[CheckReason]:
    """Yield the changes that separate the stream from its state, which belongs to a home, a project and tables."""
    # name -> before, after
    places: dict[str, tuple[Any, Any]] = {
        "project": (running.project, wanted.project),
        "warehouse": (running.warehouse, wanted.warehouse),
        "home": (running.home, wanted.home),
        "group": (running.options.get("group"), wanted.options.get("group")),
    }
    if running.warehouse == wanted.warehouse and running.address is not None and wanted.address is not None:
        names = running.address.keys() | wanted.address.keys()
        places |= {name: (running.address.get(name), wanted.address.get(name)) for name in sorted(names)}
    for name, (before, after) in places.items():
        if before == after or before is None or after is None:
            continue
        message = f"The {name} changes from {before} to {after}. The stream has no state in the new place."
        yield CheckReason(f"{name}_changed", name, message, Remedy.DRAIN_AND_RELAUNCH)


def _option_changes(running: StreamSide, wanted: StreamSide) -> Iterator[str]:
    for name in sorted(running.options.keys() | wanted.options.keys()):
        before, after = running.options.get(name), wanted.options.get(name)
        if before != after and name not in {"group", "mapping"}:
            yield f"{name} changes from {_shown(before)} to {_shown(after)}"
            threads = wanted.threads
            if name == "slots" and after is not None and threads is not None and after > threads:
                rounds = -(-after // threads)
                yield (
                    f"only {counted(threads, 'task')} can run at the same time (REFEED_SPARK_MASTER), so "
                    f"the {after} tasks of a batch run in {rounds} rounds, and a batch takes up to {rounds} times "
                    "as long"
                )


def _shown(value: Any) -> str:
    return "the deployment's setting" if value is None else str(value)


def _compare_sources(
    running: StreamSide, wanted: StreamSide, mapping: Mapping[str, str | None]
) -> Iterator[CheckReason | str]:
    """Yield the reasons about sources, and the allowed changes as texts."""
    if running.sources is None or wanted.sources is None:
        for name in mapping:
            yield _wrong_mapping(name, "this stream has no sources")
        return
    group = wanted.options.get("group", running.options.get("group"))
    old = {source.name: source for source in running.sources}
    everywhere = {source.name: source for source in wanted.sources}
    new = {name: source for name, source in everywhere.items() if source.group == group}
    yield from _mapping_reasons(mapping, old, new)
    successors = {mapping.get(name) or name for name in old if mapping.get(name, name) is not None}
    for name, source in old.items():
        if name in mapping and mapping[name] is None:
            yield f"{name} ends. Its pending messages stay in {source.subscription} until they expire"
            continue
        successor = new.get(mapping.get(name) or name)
        if successor is not None:
            yield from _compare_source(source, successor)
        elif name not in mapping:
            free = [each for each in new.values() if each.name not in old]
            yield _missing(source, everywhere.get(name), free)
    for name in sorted(new.keys() - successors - old.keys()):
        yield f"{name} is new"


def _mapping_reasons(
    mapping: Mapping[str, str | None], old: Mapping[str, CheckedSource], new: Mapping[str, CheckedSource]
) -> Iterator[CheckReason]:
    targets = [target for target in mapping.values() if target is not None]
    for name, target in mapping.items():
        if name not in old:
            yield _wrong_mapping(name, f"the stream has no source {name}.{did_you_mean(name, old)}".rstrip("."))
        elif target is None:
            if name in new:
                yield _wrong_mapping(name, "the registry still has this source; remove it there")
        elif target not in new:
            yield _wrong_mapping(name, f"the registry has no {target} in this group.{did_you_mean(target, new)}")
        elif targets.count(target) > 1 or (
            target in old and target != name and mapping.get(target, target) == target
        ):
            yield _wrong_mapping(name, f"another source becomes {target} too")
        elif target in old and target != name:
            yield _wrong_mapping(name, f"{target} is renamed too; rename the two sources in two updates")


def _wrong_mapping(name: str, why: str) -> CheckReason:
    return CheckReason("mapping_invalid", f"mapping.{name}", f"The mapping of {name}: {why}", Remedy.MAP)


def _missing(source: CheckedSource, elsewhere: CheckedSource | None, free: Sequence[CheckedSource]) -> CheckReason:
    about = f"sources.{source.name}"
    if elsewhere is not None:
        message = f"{source.name} is in the group {elsewhere.group} now. First drain the streams of both groups."
        return CheckReason("source_moved", about, message, Remedy.DRAIN_AND_RELAUNCH)
    heir = next((each for each in free if each.subscription == source.subscription), None)
    if heir is not None:
        message = (
            f"{source.name} is gone, and {heir.name} reads its subscription. If {source.name} was renamed, map "
            f"{source.name}={heir.name}."
        )
        return CheckReason("source_renamed", about, message, Remedy.MAP)
    message = (
        f"{source.name} is gone, and no source would read {source.subscription}. If {source.name} was renamed, "
        f"map it to its new name. If the source is no longer needed, map it to nothing ({source.name}=)."
    )
    return CheckReason("source_removed", about, message, Remedy.MAP)


def _compare_source(before: CheckedSource, after: CheckedSource) -> Iterator[CheckReason | str]:
    about = f"sources.{before.name}"
    if before.name != after.name:
        yield f"{before.name} becomes {after.name}"
    for what in ("topic", "subscription"):
        old, new = getattr(before, what), getattr(after, what)
        if old != new:
            message = f"The {what} of {before.name} changes from {old} to {new}. Pending messages stay in {old}."
            yield CheckReason(f"{what}_changed", about, message, Remedy.DRAIN_AND_RELAUNCH)
    yield from _target_changes(before, after)
    if before.staging != after.staging:
        message = (
            f"The staging table of {before.name} changes from {before.staging} to {after.staging}. Redelivered "
            "messages would then be in both tables. To keep the table, write "
            f"'staging: {before.staging}' in the registry."
        )
        yield CheckReason("table_changed", about, message, Remedy.DRAIN_AND_RELAUNCH)
    elif (before.schema is None) != (after.schema is None):
        message = (
            f"{before.name} has a schema in only one of the two releases. Its new rows would not fit the table "
            f"{before.staging}."
        )
        yield CheckReason("schema_changed", about, message, Remedy.SNAPSHOT_AND_REPLAY)
    elif before.schema is not None and after.schema is not None:
        evolution = plan_evolution(before.schema, after.schema)
        for fault in evolution.refused:
            message = f"{before.staging}.{fault.path}: {fault.text}."
            yield CheckReason("schema_changed", about, message, Remedy.SNAPSHOT_AND_REPLAY)
        for change in evolution.changes:
            yield f"{before.staging}.{change.path} {change.text}"


def _target_changes(before: CheckedSource, after: CheckedSource) -> Iterator[str]:
    """Yield the allowed changes of the targets of rows other than staging."""
    if None not in {before.reporting, after.reporting} and before.reporting != after.reporting:
        # No reason against the update: the stream writes only staging, and merges find the rows there.
        yield (
            f"the reporting table of {before.name} changes from {before.reporting} to {after.reporting}, which "
            f"is empty at first. To keep the merged rows, write 'reporting: {before.reporting}' in the registry"
        )
    if before.publish != after.publish:
        old, new = (each or "no topic" for each in (before.publish, after.publish))
        yield f"{before.name} publishes its rows to {new} instead of {old}. Earlier rows are not published again"
