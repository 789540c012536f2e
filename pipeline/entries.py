"""``sources.yaml``: the entry of each source as a person writes it, and its faults."""

import re
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model.errors import RegistryError
from model.naming import counted, did_you_mean
from model.plain_yaml import PlainLoader, YamlDocument, YamlFaultsError, read_yaml
from pipeline.schema import Variant

SOURCES_FILE: Final = "sources.yaml"
DEFAULT_GROUP: Final = "default"
_Model = TypeVar("_Model", bound=BaseModel)
_KEPT_TAGS: Final = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")


@dataclass(frozen=True, slots=True)
class BrokenSource:
    """A source whose entry, or whose schema, has faults; ``group`` is None where that can't be read either."""

    name: str
    group: str | None
    error: RegistryError


class FaultList:
    """The faults at ``place``, or of a whole registry."""

    def __init__(self, place: str = "") -> None:
        self.found: list[dict[str, Any]] = []
        self._place = place

    def add(self, field: str, message: str) -> None:
        """Note one fault of a field; an empty one is the place itself."""
        pointer = ".".join(part for part in (self._place, field) if part)
        self.found.append({"pointer": pointer, "message": message, "code": RegistryError.code})

    def add_lines(self, document: YamlDocument) -> None:
        """Add to each fault of ``sources.yaml`` its line and column."""
        for fault in self.found:
            file, *path = fault["pointer"].removeprefix(SOURCES_FILE).split(".")
            if not file and path:
                fault["line"], fault["column"] = document.place(path)

    def error(self, url: str) -> RegistryError | None:
        """Return the error that names every fault of the registry ``url``, None when there is none."""
        if not self.found:
            return None
        return RegistryError(f"The registry {url} has {counted(len(self.found), 'fault')}.", errors=self.found)


class Faults:
    """The faults of the registry ``url``: those of its files, and those of each source."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.of_files = FaultList()
        # sources.yaml, once it is read.
        self.document: YamlDocument | None = None
        self._of_sources: dict[str, tuple[str | None, FaultList]] = {}

    def of_source(self, name: str, group: str | None) -> FaultList:
        """Return the list of one source's faults."""
        return self._of_sources.setdefault(name, (group, FaultList(f"{SOURCES_FILE}.sources.{name}")))[1]

    def broken(self) -> tuple[BrokenSource, ...]:
        """Return the sources that have faults."""
        return tuple(
            BrokenSource(name, group, RegistryError(f"{name}: {own.found[0]['message']}.", errors=own.found))
            for name, (group, own) in self._of_sources.items()
            if own.found
        )

    def raise_any(self) -> None:
        """Raise an error that names every fault, if there is one.

        Raises:
            RegistryError: there is.
        """
        together = FaultList()
        for faults in (self.of_files, *(own for _, own in self._of_sources.values())):
            together.found += faults.found
        if self.document is not None:
            together.add_lines(self.document)
        error = together.error(self._url)
        if error is not None:
            raise error


class SourceEntry(BaseModel):
    """A source: a topic whose messages the pipeline turns into rows."""

    model_config = ConfigDict(extra="forbid")

    topic: str = Field(description="The Pub/Sub topic of the source.")
    subscription: str | None = Field(
        default=None,
        description="The subscription from which the pipeline reads. Default: refeed-pipeline.TOPIC. If the "
        "subscription is missing, Refeed creates it. Refeed does not change an existing subscription.",
    )
    message: str | None = Field(default=None, description="The full name of the source's protobuf message.")
    schema_: Literal["protobuf", "inferred"] = Field(
        default="protobuf",
        alias="schema",
        description="`protobuf`: the columns follow the protobuf message. `inferred`: the columns follow the "
        "fields of the received messages.",
    )
    event_type_attribute: str | None = Field(
        default=None,
        description="Only with the inferred schema: the attribute that contains the event type. Each event "
        "type has its own staging table. These tables are not merged, so the source can't have a key.",
    )
    scalars_as_text: bool = Field(
        default=False,
        description="Whether a string field accepts a number or a boolean in the message. The row then contains "
        'the value as text, such as "1.0".',
    )
    staging: str | None = Field(
        default=None,
        description="The staging table. Default: the `table_reference` of the protobuf message, else "
        "staging.NAME.",
    )
    reporting: str | None = Field(default=None, description="The reporting table. Default: reporting.NAME.")
    key: str | list[str] = Field(
        default_factory=list,
        description="The column or columns that identify an entity. Without a key the source is not merged.",
    )
    event_time: str | None = Field(
        default=None,
        description="The column with the time of an entity's version. The version with the latest time is the "
        "newest. The column must be a timestamp, or a string that contains a timestamp "
        "(docs/reporting.md#which-version-wins).",
    )
    partition: str | None = Field(
        default=None,
        description="A column of times or dates. The day in this column is the entity's partition in the "
        "reporting table.",
    )
    dedup_order: list[str] = Field(
        default_factory=list,
        description="The columns that the merge compares first to find the newest version. If they are equal, "
        "the merge compares `event_time`.",
    )
    group: str = Field(
        default=DEFAULT_GROUP,
        description="The source's group. One stream reads all sources of a group. If that stream fails, all "
        "sources of the group wait.",
    )
    variant: Variant = Field(
        default="plain",
        description="`plain`: a message is a version of an entity. `change_data`: a message is an INSERT, "
        "MODIFY or REMOVE event with the fields NewImage and OldImage.",
    )
    delete: Literal["hard", "soft"] = Field(
        default="hard",
        description="Only with `change_data`: what happens to a removed entity in the reporting view. `hard`: "
        "the view does not show the entity. `soft`: the view shows the entity's last values.",
    )
    publish: str | None = Field(
        default=None,
        description="A topic to which the pipeline also publishes the rows (docs/pipeline.md#rows-as-a-stream).",
    )
    publish_ordering: Literal["none", "key"] = Field(
        default="none",
        description="The ordering key of published rows. `none`: published rows have no ordering key. `key`: "
        "the ordering key is the value of the source's key.",
    )


class _SourcesFile(BaseModel):
    """The whole of ``sources.yaml``; its entries are read one by one."""

    model_config = ConfigDict(extra="forbid")

    policy_tag_pattern: str = ""
    sources: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class SourceEntries:
    """The entries of ``sources.yaml`` that can be read."""

    policy_tag_pattern: re.Pattern[str]
    sources: dict[str, SourceEntry]


class _SourcesLoader(PlainLoader):
    """Reads every word as the text that it is, so that ``on``, ``no`` and ``2024-01-01`` are names like others."""

    yaml_implicit_resolvers = {  # noqa: RUF012  as in its parent
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _KEPT_TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_entries(content: bytes | None, faults: Faults) -> SourceEntries | None:
    """Return the entries of the file, None when it can't be read; an entry with a fault is left out."""
    if content is None:
        faults.of_files.add(SOURCES_FILE, "is missing. It must list the sources")
        return None
    try:
        faults.document = read_yaml(content, _SourcesLoader)
    except YamlFaultsError as exc:
        for fault in exc.faults:
            faults.of_files.add(f"{SOURCES_FILE}, line {fault.line}", f"is not YAML: {fault.message}")
        return None
    found = faults.document.value
    whole = _validated(_SourcesFile, found, faults.of_files, SOURCES_FILE)
    entries = {}
    for name, raw in (_raw_sources(found) if whole is None else whole.sources or {}).items():
        group = raw.get("group", DEFAULT_GROUP) if isinstance(raw, dict) else None
        own = faults.of_source(name, group if isinstance(group, str) else None)
        entry = _validated(SourceEntry, raw, own)
        if entry is not None:
            entries[name] = entry
    if whole is None:
        return None
    return SourceEntries(_pattern(whole.policy_tag_pattern, faults.of_files), entries)


def _raw_sources(found: Any) -> dict[str, Any]:
    """Return the entries of a file with other faults, so that theirs are named too."""
    sources = found.get("sources") if isinstance(found, dict) else None
    if not isinstance(sources, dict):
        return {}
    return {name: raw for name, raw in sources.items() if isinstance(name, str)}


def _validated(kind: type[_Model], found: Any, faults: FaultList, *place: str) -> _Model | None:
    try:
        return kind.model_validate(found)
    except ValidationError as exc:
        for error in exc.errors():
            message = error["msg"]
            if error["type"] == "extra_forbidden":
                known = [field.alias or name for name, field in kind.model_fields.items()]
                message = f"is not a field of {SOURCES_FILE}{did_you_mean(str(error['loc'][-1]), known)}"
            faults.add(".".join((*place, *map(str, error["loc"]))), message)
        return None


def _pattern(text: str, faults: FaultList) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as exc:
        faults.add(f"{SOURCES_FILE}.policy_tag_pattern", f"{text!r} is not a valid pattern: {exc}")
        return re.compile("")
