"""Manifests: what a person writes of a schedule, and everything that is wrong with it, with line and column."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from backfill.plan.request import BackfillRequest
from model.errors import ManifestInvalidError, RequestInvalidError
from model.plain_yaml import PlainLoader, YamlDocument, YamlFaultsError, read_yaml
from reporting.request import MergeCreate
from rollout.manifests.cron import Cron, Timing, parse_zone
from rollout.manifests.secrets import find_secrets
from rollout.manifests.slots import Slot, fill_request, find_placeholders, is_slot
from sql.parameters import parse_parameters
from sql.violation import QueryRefusedError

MAX_BYTES: Final = 256 * 1024
_MAX_CATCH_UP_SECONDS: Final = 31 * 86400.0
_SLOT_TYPES: Final = ("TIMESTAMP", "DATE")
_CORE_TAGS: Final = ("null", "bool", "int", "float")


def _cron(text: str) -> str:
    cron = Cron.parse(text)
    if next(Timing(cron, parse_zone("UTC")).after(datetime(2000, 1, 1, tzinfo=UTC)), None) is None:
        raise ValueError("is never due: no month has such a day")
    return text


def _zone(text: str) -> str:
    parse_zone(text)
    return text


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class SnapshotWanted(_Part):
    """The snapshot that a schedule makes of a stream."""

    stream: str = Field(min_length=1, max_length=63, description="The stream's name.")
    with_source: bool = Field(
        default=False, description="Whether to make a Pub/Sub snapshot of each subscription."
    )


class TemplateWanted(_Part):
    """The template that a schedule launches, with the values of its parameters."""

    template: str = Field(min_length=1, max_length=63, description="The template's name.")
    parameters: dict[str, Any] = Field(default_factory=dict, description="A value may be {{ slot.start }}.")


class BackfillJob(_Part):
    """A backfill; values of its query's parameters may be ``{{ slot.start }}`` or ``{{ slot.end }}``."""

    kind: Literal["backfill"]
    request: BackfillRequest


class MergeJob(_Part):
    """A merge of staging into reporting."""

    kind: Literal["merge"]
    request: MergeCreate = Field(default_factory=MergeCreate)


class SnapshotJob(_Part):
    """A snapshot of a stream."""

    kind: Literal["snapshot"]
    request: SnapshotWanted


class TemplateJob(_Part):
    """Whatever a template launches."""

    kind: Literal["template"]
    request: TemplateWanted


Job = BackfillJob | MergeJob | SnapshotJob | TemplateJob


class CatchUp(_Part):
    """Which missed slots are made up for when the service was away; without it none is."""

    window_seconds: float = Field(ge=60, le=_MAX_CATCH_UP_SECONDS, description="Not those that are older.")
    max: int = Field(ge=1, le=100, description="At most the newest N of these, one after another.")


class ScheduleManifest(_Part):
    """A job that runs again and again."""

    kind: Literal["Schedule"]
    name: str = Field(pattern=r"^[a-z][a-z0-9\-]{0,62}$", description="Its id, by which it is seen everywhere.")
    description: str = Field(default="", max_length=2000)
    cron: Annotated[str, AfterValidator(_cron)] = Field(
        max_length=200, description="Minute, hour, day of month, month, day of week.", examples=["15 0 * * *"]
    )
    time_zone: Annotated[str, AfterValidator(_zone)] = Field(
        default="UTC", max_length=100, description="Of the tz database.", examples=["Europe/Berlin"]
    )
    start: AwareDatetime | None = Field(default=None, description="No slot is due before it (RFC 3339).")
    end: AwareDatetime | None = Field(default=None, description="No slot is due at it or after it (RFC 3339).")
    job: Annotated[Job, Field(discriminator="kind")]
    catch_up: CatchUp | None = None
    overlap: Literal["skip", "queue", "replace"] = Field(
        default="skip",
        description="While the run before goes on: leave the slot out, wait for it (one slot), or cancel the run.",
    )
    on_failure: Literal["go_on", "pause"] = Field(
        default="go_on", description="Whether a run that fails pauses the schedule."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise ValueError("end is not after start")
        return self

    def timing(self) -> Timing:
        """Return when it is due."""
        return Timing(Cron.parse(self.cron), parse_zone(self.time_zone), self.start, self.end)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest without a fault; ``document`` is what was written, as JSON."""

    document: Mapping[str, Any]
    spec: ScheduleManifest

    @property
    def name(self) -> str:
        """Its id."""
        return self.spec.name

    @property
    def kind(self) -> str:
        """Its kind."""
        return self.spec.kind

    @property
    def digest(self) -> str:
        """A digest of the content, whatever its comments and order."""
        return digest_of(self.document)


def digest_of(document: Any) -> str:
    """Return a digest of a JSON value; the same for the same value."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def manifest_schema() -> dict[str, Any]:
    """Return the JSON Schema of manifests."""
    schema = TypeAdapter(ScheduleManifest).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def read_spec(document: Mapping[str, Any]) -> ScheduleManifest:
    """Return the manifest that a document of :class:`Manifest` is."""
    return ScheduleManifest.model_validate_json(json.dumps(document))


def parse_manifest(content: bytes, name: str | None = None) -> Manifest:
    """Return the manifest of a text; ``name`` is what it has to be called.

    Raises:
        ManifestInvalidError: it has faults; ``details["errors"]`` has all of them, with line and column.
    """
    if len(content) > MAX_BYTES:
        raise _invalid([_fault("", f"It is larger than {MAX_BYTES} bytes.", 1, 1)])
    try:
        source = read_yaml(content, _ManifestLoader)
    except YamlFaultsError as exc:
        words = "It is no YAML of plain values:"
        raise _invalid(
            [_fault("", f"{words} {each.message}.", each.line, each.column) for each in exc.faults]
        ) from exc
    found = list(_find_faults(source.value, name))
    if found:
        raise _invalid([_placed(source, path, message) for path, message in found])
    return Manifest(source.value, read_spec(source.value))


class _ManifestLoader(PlainLoader):
    """Reads what JSON has: a word such as ``no``, a date and a time of day are texts."""

    has_aliases = False
    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - as in its parent


# https://yaml.org/spec/1.2.2/#1032-tag-resolution, without octal and hexadecimal numbers, infinity and NaN.
for _tag, _pattern, _first in (
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", list("-0123456789")),
):
    _ManifestLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), _first)
# YAML can also tag a value with a type, such as !!python/object or !!binary: all such tags are refused.
_ManifestLoader.yaml_constructors = {
    **{
        f"tag:yaml.org,2002:{tag}": yaml.SafeLoader.yaml_constructors[f"tag:yaml.org,2002:{tag}"]
        for tag in (*_CORE_TAGS, "str", "seq", "map")
    },
    None: yaml.SafeLoader.yaml_constructors[None],
}

_REQUEST: Final = ("job", "request")
_SOME_SLOT: Final = Slot(datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC), parse_zone("UTC"))
_NO_SLOT: Final = (
    "Only a whole value can be {{ slot.start }} or {{ slot.end }}: of a parameter that is a TIMESTAMP or a DATE, "
    "of a template's parameter, or of a merge's since."
)
# Where a fault is, and a sentence.
_Found = tuple[tuple[str | int, ...], str]


def _find_faults(value: Any, name: str | None) -> Iterator[_Found]:
    yield from _name_faults(value, ())
    try:
        spec = json.dumps(value, allow_nan=False)
        ScheduleManifest.model_validate_json(spec)
    except ValidationError as exc:
        for error in exc.errors(include_input=False, include_url=False):
            yield _sentence(error)
    except (ValueError, TypeError, RecursionError):
        yield (), "It takes names and plain values."
    for path, kind in find_secrets(value):
        yield path, f"Here stands {kind}, in clear text: a manifest holds no secret."
    if not isinstance(value, Mapping):
        return
    written = value.get("name")
    if name is not None and isinstance(written, str) and written != name:
        yield ("name",), f"name is {written[:80]!r}, and the manifest is {name}."
    job = value.get("job")
    if isinstance(job, Mapping) and isinstance(job.get("request") or {}, Mapping):
        yield from _job_faults(str(job.get("kind")), job.get("request") or {})


def _name_faults(value: Any, path: tuple[str | int, ...]) -> Iterator[_Found]:
    """Yield the names that are no texts: JSON would make some of them."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                yield (*path, str(name)), f"{name!r} is no name: write it in quotes."
            yield from _name_faults(inner, (*path, str(name)))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _name_faults(inner, (*path, number))


def _sentence(error: Any) -> _Found:
    loc = error["loc"]
    # A tagged union puts the tag behind its field.
    path = tuple(part for number, part in enumerate(loc) if number == 0 or loc[number - 1] != "job")
    named = ".".join(map(str, path)) or "It"
    if error["type"] == "extra_forbidden":
        return path, f"There is no field {str(path[-1])[:80]}."
    return path, f"{named}: {error['msg'].removeprefix('Value error, ')}."


def _job_faults(kind: str, request: Mapping[str, Any]) -> Iterator[_Found]:
    for path, _ in find_placeholders(request):
        if not _may_be_slot(kind, path, request):
            yield (*_REQUEST, *path), _NO_SLOT
    if kind == "backfill" and request.get("plan_id") is not None:
        yield (*_REQUEST, "plan_id"), "plan_id: a plan expires, and is of one backfill only."
    try:
        yield from _value_faults(kind, request)
    except (ValidationError, TypeError, KeyError, AttributeError, ValueError):
        # Its shape is wrong, and the model names that.
        return


def _value_faults(kind: str, request: Mapping[str, Any]) -> Iterator[_Found]:
    """Yield what is wrong with the values of a request that has the times of some slot."""
    try:
        filled = fill_request(kind, request, _SOME_SLOT)
        if kind == "backfill":
            parse_parameters(filled["parameters"])
        elif kind == "merge":
            TypeAdapter(MergeCreate).validate_json(json.dumps(filled)).parse()
    except QueryRefusedError as exc:
        for violation in exc.violations:
            yield (*_REQUEST, "parameters"), violation.message
    except RequestInvalidError as exc:
        for error in exc.details["errors"]:
            yield (*_REQUEST, *error["pointer"].split("/")[1:]), error["message"]


def _may_be_slot(kind: str, path: tuple[str | int, ...], request: Mapping[str, Any]) -> bool:
    value: Any = request
    owner: Any = request
    for part in path:
        owner, value = value, value[part]
    if not is_slot(value):
        return False
    if kind == "merge":
        return path == ("since",)
    if kind == "template":
        return path[:1] == ("parameters",) and len(path) == len(("parameters", "name"))
    if kind == "backfill":
        is_value = path[:1] == ("parameters",) and path[2:] == ("value",)
        return is_value and isinstance(owner, Mapping) and owner.get("type") in _SLOT_TYPES
    return False


def _placed(source: YamlDocument, path: tuple[str | int, ...], message: str) -> dict[str, Any]:
    pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
    return _fault(pointer, message, *source.place(path))


def _fault(pointer: str, message: str, line: int, column: int) -> dict[str, Any]:
    return {
        "code": ManifestInvalidError.code,
        "pointer": pointer,
        "message": message,
        "line": line,
        "column": column,
    }


def _invalid(faults: list[dict[str, Any]]) -> ManifestInvalidError:
    ordered = sorted(faults, key=lambda fault: (fault["line"], fault["column"]))
    sentences = " ".join(f"Line {each['line']}, column {each['column']}: {each['message']}" for each in ordered)
    return ManifestInvalidError(f"The manifest is wrong. {sentences}", errors=ordered)
