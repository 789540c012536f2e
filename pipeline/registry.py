"""The registry: a folder, a bucket, or any path that fsspec opens, with descriptor sets and ``sources.yaml``."""

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final

import fsspec
import structlog
from google.protobuf.descriptor import Descriptor

from connectors.object_store.bucket import Bucket
from model.entity import KEY_TYPES, MOMENT_TYPES, EntityRules, version_order
from model.errors import DescriptorError, InvalidNameError, RegistryError
from model.message import parse_resource_id
from model.schema import RowSchema
from model.stream_options import is_group
from pipeline.descriptors import DescriptorSet, schema_version
from pipeline.entries import SOURCES_FILE, BrokenSource, FaultList, Faults, SourceEntry, read_entries
from pipeline.options import read_message_options
from pipeline.schema import Variant, message_schema
from warehouse.merges import MergeSource

_log = structlog.get_logger(__name__)

DESCRIPTOR_SUFFIXES: Final = (".desc", ".pb", ".binpb", ".protoset", ".fds")
SUBSCRIPTION_PREFIX: Final = "refeed-pipeline."

# A text is one where it is RFC 3339, which a merge finds out.
_EVENT_TIME_TYPES: Final = (*MOMENT_TYPES, "STRING")
_TABLE: Final = re.compile(r"(?:[a-z][a-z0-9.:\-]*[.:])?\w+\.\w+")
# A read from a bucket takes tens of milliseconds, and there may be a file for each of many sources.
_READS_AT_ONCE: Final = 16
_BUCKETS: Final = ("gs://", "s3://")
# What file systems call the things that change with a file.
_STAMPS: Final = ("size", "mtime", "etag", "ETag", "generation", "updated", "LastModified", "created")


@dataclass(frozen=True, slots=True)
class Source:
    """One data source: its topic, the schema of its messages, and the tables of their rows.

    ``key`` names the columns that tell entities apart, ``event_time`` the column that says which version is
    newer, ``dedup_order`` columns that decide before anything else does, ``partition`` the column whose day is the
    entity's partition in reporting (None: one partition). With ``scalars_as_text`` a number or a boolean in a
    field of type string is its text. An inferred source has no descriptor; its tables are named after ``staging``
    and the type of the event. ``publish`` is the topic that gets the rows too, empty for none, in the order of
    their keys where ``is_published_by_key`` holds.
    """

    name: str
    topic: str
    subscription: str
    staging: str
    reporting: str
    group: str
    variant: Variant
    message: str = ""
    descriptor: bytes = b""
    version: str = ""
    schema: RowSchema | None = None
    key: tuple[str, ...] = ()
    event_time: str | None = None
    partition: str | None = None
    dedup_order: tuple[str, ...] = ()
    event_type_attribute: str | None = None
    is_soft_delete: bool = False
    scalars_as_text: bool = False
    publish: str = ""
    is_published_by_key: bool = False

    @property
    def row_schema(self) -> RowSchema:
        """The schema of the staging table; only a source that is not inferred has one."""
        assert self.schema is not None
        return self.schema

    @property
    def is_inferred(self) -> bool:
        """Whether the table's schema comes from the messages themselves."""
        return not self.descriptor

    @property
    def merge_source(self) -> MergeSource | None:
        """The source as a merge takes it; None where it has no key, or no reporting table."""
        if not self.key or not self.reporting:
            return None
        rules = EntityRules(
            key=self.key,
            order=version_order(self.dedup_order, self.event_time),
            partition_field=self.partition,
            has_operation=self.variant == "change_data",
            is_soft_delete=self.is_soft_delete,
            event_time=self.event_time,
        )
        return MergeSource(self.name, self.staging, self.reporting, rules)


@dataclass(frozen=True, slots=True)
class RegistrySnapshot:
    """All that the registry said at one moment; ``version`` is a hash over its files.

    Only :meth:`Registry.read_valid` leaves ``broken`` sources beside the others, and ``error`` for files that are
    no source's.
    """

    version: str
    sources: tuple[Source, ...]
    broken: tuple[BrokenSource, ...] = ()
    error: RegistryError | None = None

    def of_group(self, group: str) -> tuple[Source, ...]:
        """Return the sources of one group that have no fault."""
        return tuple(source for source in self.sources if source.group == group)

    def merge_sources(self) -> dict[str, MergeSource | None]:
        """Return the sources that have no fault by their names, as a merge takes them, and log the others."""
        for broken in self.broken:
            _log.warning("source_broken", source=broken.name, error=broken.error.message)
        return {source.name: source.merge_source for source in self.sources}

    def groups(self) -> list[str]:
        """Return the names of all groups that have a source without a fault, sorted."""
        return sorted({source.group for source in self.sources})


class Registry:
    """The registry at ``url``: ``/path``, ``gs://bucket/path``, ``s3://bucket/path``, or another of fsspec's.

    Raises:
        RegistryError: the kind of path needs a package that is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        with _our_errors(url):
            kind = _BucketFiles if url.startswith(_BUCKETS) else _FsspecFiles
            self._files: _BucketFiles | _FsspecFiles = kind(url)

    def fingerprint(self) -> str:
        """Return a text that changes with the files; it reads none of them, so that it may be asked often."""
        with _our_errors(self.url):
            lines = [f"{name} {stamp}" for name, stamp in sorted(self._files.stamps().items())]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def changed_at(self) -> datetime | None:
        """Return when the newest file was written; None where the files do not say."""
        with _our_errors(self.url):
            times = self._files.times()
        return None if None in times else max((each for each in times if each is not None), default=None)

    def read_files(self) -> dict[str, bytes]:
        """Return every descriptor set and ``sources.yaml``, by their path in the registry."""
        with _our_errors(self.url), ThreadPoolExecutor(_READS_AT_ONCE) as pool:
            names = [name for name in sorted(self._files.stamps()) if _is_ours(name)]
            return dict(zip(names, pool.map(self._files.read, names), strict=True))

    def read(self, overlay: Mapping[str, bytes] | None = None) -> RegistrySnapshot:
        """Return the registry's sources, with the files of ``overlay`` in the place of its own.

        Raises:
            RegistryError: something is wrong; ``details["errors"]`` names all of it, each with its place.
        """
        return read_snapshot({**self.read_files(), **(overlay or {})}, self.url)

    def read_valid(self) -> RegistrySnapshot:
        """Return the registry's sources that have no fault, and the others as broken.

        Raises:
            RegistryError: the registry or its ``sources.yaml`` can't be read.
        """
        return read_snapshot(self.read_files(), self.url, is_partial=True)

    def publish(self, files: Mapping[str, bytes]) -> None:
        """Write ``files``; ``sources.yaml`` comes last, so that nobody reads of a message before it is there."""
        with _our_errors(self.url):
            for name in sorted(files, key=lambda name: (name == SOURCES_FILE, name)):
                self._files.write(name, files[name])


class _BucketFiles:
    """The objects of a bucket: by the client of everything else in buckets, which needs no further package."""

    def __init__(self, url: str) -> None:
        self._bucket = Bucket(url)

    def stamps(self) -> dict[str, str]:
        """Return what changes with the content of each file."""
        return {each.name: f"{each.size_bytes} {each.e_tag}" for each in self._bucket.find()}

    def times(self) -> list[datetime | None]:
        """Return when each file was written."""
        return [each.modified_at for each in self._bucket.find()]

    def read(self, name: str) -> bytes:
        found = self._bucket.read(name)
        if found is None:
            raise FileNotFoundError(f"{name} was deleted while the registry was read.")
        return found.content

    def write(self, name: str, content: bytes) -> None:
        self._bucket.put(name, content)


class _FsspecFiles:
    """The files of a folder, or of what else fsspec opens."""

    def __init__(self, url: str) -> None:
        self._files, root = fsspec.core.url_to_fs(url)
        self._root = str(root).rstrip("/")

    def stamps(self) -> dict[str, str]:
        self._files.invalidate_cache()
        found = self._files.find(self._root, detail=True) if self._files.exists(self._root) else {}
        return {
            str(path)[len(self._root) + 1 :]: " ".join(str(info.get(name)) for name in _STAMPS)
            for path, info in found.items()
        }

    def times(self) -> list[datetime | None]:
        """Return when each file was written, None where the file system has no time of the local kind."""
        found = self._files.find(self._root, detail=True) if self._files.exists(self._root) else {}
        times = [info.get("mtime") for info in found.values()]
        return [datetime.fromtimestamp(at, UTC) if isinstance(at, float) else None for at in times]

    def read(self, name: str) -> bytes:
        return bytes(self._files.cat_file(f"{self._root}/{name}"))

    def write(self, name: str, content: bytes) -> None:
        path = f"{self._root}/{name}"
        self._files.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        if "file" not in self._files.protocol:
            self._files.pipe_file(path, content)
            return
        # A local file is made beside and moved into place; the suffix keeps readers away from it.
        beside = f"{path}.{os.getpid()}.tmp"
        self._files.pipe_file(beside, content)
        Path(beside).replace(path)


def read_snapshot(files: Mapping[str, bytes], url: str, *, is_partial: bool = False) -> RegistrySnapshot:
    """Return the sources that ``files`` define; with ``is_partial`` faults of one source leave the others alone.

    Raises:
        RegistryError: something is wrong; ``details["errors"]`` names all of it, each with its place.
    """
    faults = Faults(url)
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\n{len(content)}\n".encode() + content)
    entries = read_entries(files.get(SOURCES_FILE), faults)
    descriptors = _read_descriptors(files, faults.of_files)
    sources: list[Source] = []
    if entries is not None:
        for name, entry in entries.sources.items():
            own = faults.of_source(name, entry.group)
            _check_names(name, entry, own)
            if entry.schema_ == "inferred":
                source: Source | None = _inferred(name, entry, own)
            else:
                source = _described(name, entry, descriptors, entries.policy_tag_pattern, own)
            if source is not None and not own.found:
                sources.append(source)
        sources = _acyclic(_unshared(sources, faults), faults)
    if entries is None or not is_partial:
        faults.raise_any()
    return RegistrySnapshot(digest.hexdigest()[:16], tuple(sources), faults.broken(), faults.of_files.error(url))


def _read_descriptors(files: Mapping[str, bytes], faults: FaultList) -> dict[str, DescriptorSet]:
    """Return the descriptor sets by their files; each has its imports, and its names are its own."""
    found = {}
    for name, content in files.items():
        if name != SOURCES_FILE:
            try:
                found[name] = DescriptorSet([content])
            except DescriptorError as exc:
                faults.add(name, exc.message)
    return found


def _find_message(descriptors: Mapping[str, DescriptorSet], name: str) -> tuple[DescriptorSet, Descriptor]:
    """Return the set that has a message, and the message.

    Raises:
        DescriptorError: none has it, or two have it and differ.
    """
    having = {file: found for file, found in descriptors.items() if found.has_message(name)}
    if not having:
        raise DescriptorError(f"No descriptor set has a message {name}.", name=name)
    versions = {schema_version(found.message(name)): file for file, found in having.items()}
    if len(versions) > 1:
        raise DescriptorError(f"{name} is defined differently in {' and '.join(sorted(versions.values()))}.")
    found = next(iter(having.values()))
    return found, found.message(name)


def _check_names(name: str, entry: SourceEntry, faults: FaultList) -> None:
    if not re.fullmatch(r"[A-Za-z]\w{0,99}", name):
        faults.add("", f"{name!r} is not a valid name for a source. Use a letter, and then letters, digits and _")
    for what, text in (("topic", entry.topic), ("subscription", entry.subscription), ("publish", entry.publish)):
        try:
            parse_resource_id(text or "ok-", what)
        except InvalidNameError as exc:
            faults.add(what, exc.message)
    for what, text in (("staging", entry.staging), ("reporting", entry.reporting)):
        if text is not None and not _TABLE.fullmatch(text):
            faults.add(what, f"{text!r} does not have the form dataset.table")
    if entry.publish_ordering == "key" and entry.publish is None:
        faults.add("publish_ordering", "is set, but publish is missing. Name a topic in publish")
    elif entry.publish_ordering == "key" and not entry.key:
        faults.add("publish_ordering", "needs the source's key, and the source has no key")
    if not is_group(entry.group):
        faults.add(
            "group", f"{entry.group!r} is not a valid name for a group. Use lower-case letters, digits and -"
        )


def _inferred(name: str, entry: SourceEntry, faults: FaultList) -> Source:
    if entry.message is not None:
        faults.add("message", "a source with 'schema: inferred' can't have a message. Leave out one of the two")
    if entry.variant != "plain":
        faults.add("variant", "change_data needs a schema. Name a message")
    if entry.scalars_as_text:
        faults.add("scalars_as_text", "needs a schema. Name a message")
    if entry.event_type_attribute is not None and entry.key:
        faults.add(
            "key",
            "can't be used with event_type_attribute, because each event type has its own table. "
            "Choose one of the two",
        )
    return _build(name, entry, staging=entry.staging or f"staging.{name}")


def _described(
    name: str,
    entry: SourceEntry,
    descriptors: Mapping[str, DescriptorSet],
    tags: re.Pattern[str],
    faults: FaultList,
) -> Source | None:
    if entry.message is None:
        faults.add("message", "is missing. Name the message, or write 'schema: inferred'")
        return None
    if entry.event_type_attribute is not None:
        faults.add("event_type_attribute", "works only with 'schema: inferred'")
    try:
        owner, message = _find_message(descriptors, entry.message)
        reference = read_message_options(message).table_reference
        schema = message_schema(message, variant=entry.variant, policy_tag_pattern=tags)
    except DescriptorError as exc:
        for fault in exc.details.get("faults", [exc.message]):
            faults.add("message", fault)
        return None
    _check_columns(entry, schema, faults)
    if entry.staging is None and reference and not _TABLE.fullmatch(reference):
        faults.add("message", f"its table_reference {reference!r} does not have the form dataset.table")
    return _build(
        name,
        entry,
        staging=entry.staging or reference or f"staging.{name}",
        message=entry.message,
        descriptor=owner.subset(message),
        version=schema_version(message),
        schema=schema,
    )


def _build(name: str, entry: SourceEntry, **found: Any) -> Source:
    return Source(
        name=name,
        topic=entry.topic,
        subscription=entry.subscription or f"{SUBSCRIPTION_PREFIX}{entry.topic}",
        reporting=entry.reporting or f"reporting.{name}",
        group=entry.group,
        variant=entry.variant,
        key=_keys(entry),
        event_time=entry.event_time,
        partition=entry.partition,
        dedup_order=tuple(entry.dedup_order),
        event_type_attribute=entry.event_type_attribute,
        is_soft_delete=entry.delete == "soft",
        scalars_as_text=entry.scalars_as_text,
        publish=entry.publish or "",
        is_published_by_key=entry.publish_ordering == "key",
        **found,
    )


def _keys(entry: SourceEntry) -> tuple[str, ...]:
    return (entry.key,) if isinstance(entry.key, str) else tuple(entry.key)


def _check_columns(entry: SourceEntry, schema: RowSchema, faults: FaultList) -> None:
    columns = {field.name: field for field in schema.fields}
    keys = _keys(entry)
    named = [("key", name) for name in keys] + [("dedup_order", name) for name in entry.dedup_order]
    moments = (("event_time", entry.event_time), ("partition", entry.partition))
    named += [(what, name) for what, name in moments if name is not None]
    for what, name in named:
        field = columns.get(name)
        if field is None or field.mode == "REPEATED" or field.type in ("RECORD", "JSON"):
            faults.add(what, f"{name!r} is not a column with a single value")
        elif what == "key" and field.type not in KEY_TYPES:
            faults.add("key", f"{name!r} is {field.type}, and a key can't have this type")
        elif what == "partition" and field.type not in MOMENT_TYPES:
            faults.add(what, f"{name!r} is {field.type}, not {', '.join(MOMENT_TYPES)}")
        elif what == "event_time" and field.type not in _EVENT_TIME_TYPES:
            faults.add(what, f"{name!r} is {field.type}, not {', '.join(_EVENT_TIME_TYPES)}")
    for name in {name for _, name in named if named.count(("key", name)) > 1}:
        faults.add("key", f"{name!r} is named twice")
    if entry.variant == "change_data" and not keys:
        faults.add("key", "is missing, and change_data needs a key")


def _unshared(sources: Sequence[Source], faults: Faults) -> list[Source]:
    """Return the sources that share no table and no subscription: else each would get a part of the messages."""
    shared: set[str] = set()
    for kinds in (("staging", "reporting"), ("subscription",)):
        taken: dict[str, tuple[Source, str]] = {}
        for source, what in ((source, what) for what in kinds for source in sources):
            text = getattr(source, what).lower().replace(":", ".")
            first, its = taken.setdefault(text, (source, what))
            if (first, its) == (source, what):
                continue
            for one, own, other in ((first, its, source), (source, what, first)):
                also = (
                    f"is also used by the source {other.name}"
                    if one is not other
                    else "is both the staging and the reporting table"
                )
                faults.of_source(one.name, one.group).add(own, f"{getattr(one, own)} {also}")
                shared.add(one.name)
    return [source for source in sources if source.name not in shared]


def _acyclic(sources: Sequence[Source], faults: Faults) -> list[Source]:
    """Return the sources whose rows never come back to their own topic: they would go round for ever."""
    leads = defaultdict(set)
    for source in sources:
        if source.publish:
            leads[source.topic].add(source.publish)
    looping = {source.name: source for source in sources if source.publish and _reaches(leads, source)}
    for source in looping.values():
        others = [name for name in looping if name != source.name]
        by = f" through {' and '.join(others)}" if others else ""
        message = (
            f"rows that are published to {source.publish} return to the source's own topic {source.topic}{by}"
        )
        faults.of_source(source.name, source.group).add("publish", message)
    return [source for source in sources if source.name not in looping]


def _reaches(leads: Mapping[str, Collection[str]], source: Source) -> bool:
    """Whether the rows of ``source`` come back to its own topic, by way of any others."""
    found: set[str] = set()
    left = {source.publish}
    while left:
        found |= left
        left = {topic for name in left for topic in leads.get(name, ())} - found
    return source.topic in found


def _is_ours(name: str) -> bool:
    return name == SOURCES_FILE or name.endswith(DESCRIPTOR_SUFFIXES)


@contextmanager
def _our_errors(url: str) -> Any:
    try:
        yield
    except ImportError as exc:
        raise RegistryError(f"{url} needs a package that is not installed: {exc}") from exc
    except (OSError, ValueError) as exc:
        raise RegistryError(f"The registry {url} can't be used: {exc}") from exc
