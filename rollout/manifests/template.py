"""``kind: Template``: a stream or a job that was written down once, launched by name with typed parameters."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from backfill.plan.create import BackfillCreate
from model.declaration import declared_fields, json_name
from model.errors import RequestInvalidError, fault_at
from model.naming import did_you_mean
from model.plain_yaml import walk_names, walk_texts
from model.stream_options import StreamKind
from reporting.request import MergeCreate
from rollout.manifests.rollout import Found, ManifestPart, read_document
from rollout.request import StreamLaunch
from sql.constants import ConstantError
from sql.parameters import parse_parameter

KIND: Final = "Template"
# kind -> what its request declares
LAUNCHES: Final[Mapping[str, type]] = {
    "backfill": BackfillCreate,
    "merge": MergeCreate,
    **dict.fromkeys(StreamKind, StreamLaunch),
}
_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)\}")
_REQUEST: Final = ("launch", "request")
# Those of a query's parameters that are one value.
ParameterType = Literal["STRING", "INT64", "FLOAT64", "BOOL", "DATE", "TIMESTAMP"]
# No value is ever read as SQL.
_SQL: Final = (("query",), ("where",))


class ParameterWanted(ManifestPart):
    """A parameter of a template. A launch may leave out each parameter that is not required."""

    type: ParameterType = Field(default="STRING", description="The parameter's GoogleSQL type.")
    default: Any = Field(default=None, description="The value if a launch gives none.")
    help: str = Field(default="", max_length=2000, description="What the parameter means.")
    required: bool = Field(default=False, description="Whether a launch must give a value.")


class LaunchWanted(ManifestPart):
    """The job or stream that the template launches. ``${name}`` stands for the value of a parameter."""

    kind: Literal["backfill", "merge", "backup", "pipeline", "kinesis"] = Field(
        description="The kind of the job or stream."
    )
    release: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Only for a stream: the version of Refeed. Null means the installed version.",
    )
    request: dict[str, Any] = Field(
        default_factory=dict, description="The request, as for a launch without a template."
    )

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream."""
        return LAUNCHES[self.kind] is StreamLaunch


class TemplateManifest(ManifestPart):
    """A saved stream or job with parameters. `refeed launch template/NAME` launches it.

    If a value is one placeholder, the field gets the parameter's value with its type. If the parameter was left
    out, so is the field. In a longer string, the value is inserted as text. A query has no placeholders, because
    it has parameters of its own: no value is ever read as SQL.
    """

    kind: Literal["Template"]
    name: str = Field(
        pattern=r"^[a-z][a-z0-9\-]{0,62}$", description="The manifest's name, and its id in commands and calls."
    )
    description: str = Field(default="", max_length=2000)
    parameters: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")], ParameterWanted] = Field(
        default_factory=dict, description="The parameters, by name."
    )
    launch: LaunchWanted

    def render(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request with the parameters in their places, of a stream with its kind and its release.

        A backfill, which can have labels, has the template's name as its label ``manifest``.

        Raises:
            RequestInvalidError: parameters are wrong; ``details["errors"]`` has all of them.
        """
        errors = []
        for name in given:
            if name not in self.parameters:
                meant = did_you_mean(name, self.parameters)
                message = f"The template {self.name} has no parameter {name[:80]}.{meant}"
                errors.append(_error("parameter_unknown", name, message))
        values: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            value = values[name] = parameter.default if given.get(name) is None else given[name]
            if value is None and parameter.required:
                about = f": {parameter.help}" if parameter.help else ""
                errors.append(
                    _error("parameter_missing", name, f"{name} is missing. It is a {parameter.type}{about}.")
                )
            elif value is not None and (wrong := _type_fault(parameter.type, value)):
                errors.append(_error("parameter_invalid", name, f"{name}: {wrong}."))
        if errors:
            raise RequestInvalidError.of_all(errors)
        rendered: dict[str, Any] = _fill(self.launch.request, values)
        if self.launch.kind == "backfill":
            return {**rendered, "labels": {**(rendered.get("labels") or {}), "manifest": self.name}}
        if not self.launch.is_stream:
            return rendered
        return {**rendered, "kind": self.launch.kind, "release": self.launch.release}


def read_template(document: Mapping[str, Any]) -> TemplateManifest:
    """Return the template that the document of a manifest is; raises as :func:`read_document`."""
    return read_document(TemplateManifest, document)


def find_faults(value: Mapping[str, Any]) -> Iterator[Found]:
    """Yield what is wrong with a template's parameters and placeholders beyond the shape that the model checks."""
    parameters, launch = _mapping(value.get("parameters")), _mapping(value.get("launch"))
    request, kind = _mapping(launch.get("request")), str(launch.get("kind"))
    declared = {name: _mapping(each) for name, each in parameters.items()}
    for name, each in declared.items():
        yield from _parameter_faults(name, each)
    if kind in LAUNCHES:
        is_stream = LAUNCHES[kind] is StreamLaunch
        of_launch = {"kind", "release"} if is_stream else set()
        known = [json_name(each.name) for each in declared_fields(LAUNCHES[kind]) if each.name not in of_launch]
        for name in request:
            if name not in known:
                yield (*_REQUEST, name), f"There is no field {name[:80]}.{did_you_mean(name, known)}"
        if launch.get("release") is not None and not is_stream:
            message = f"A {kind} can't have a release: it always runs with the installed version."
            yield ("launch", "release"), message
    yield from _placeholder_faults(request, declared)


def _parameter_faults(name: str, parameter: Mapping[str, Any]) -> Iterator[Found]:
    default, kind = parameter.get("default"), parameter.get("type", "STRING")
    if default is None:
        return
    if kind in get_args(ParameterType) and (wrong := _type_fault(kind, default)):
        yield ("parameters", name, "default"), f"The default of {name}: {wrong}."
    if parameter.get("required") is True:
        yield ("parameters", name, "required"), f"{name} has a default, so it can't be required."


def _placeholder_faults(request: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]) -> Iterator[Found]:
    used: set[str] = set()
    for path, name in walk_names(request):
        if _PLACEHOLDER.search(name):
            yield (*_REQUEST, *path), "A name has no ${...}. A placeholder is a value."
    for path, text in walk_texts(request):
        names = _PLACEHOLDER.findall(text)
        used |= set(names)
        if names and path in _SQL:
            message = "A query has no ${...}: write @name, and give the value in the request's parameters."
            yield (*_REQUEST, *path), message
            continue
        for name in names:
            found = declared.get(name)
            if found is None:
                message = f"There is no parameter {name[:80]}.{did_you_mean(name, declared)}"
                yield (*_REQUEST, *path), message
            elif _PLACEHOLDER.fullmatch(text) is None and not (
                found.get("required") is True or found.get("default") is not None
            ):
                yield (
                    (*_REQUEST, *path),
                    f"{name} is used within a longer string, so the parameter must be required or have a default.",
                )
    for name in declared.keys() - used:
        message = f"No field uses the parameter {name}. Write ${{{name}}} where its value goes."
        yield ("parameters", name), message


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping of names; the model names what is none."""
    return value if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) else {}


def _fill(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a document with each placeholder's value; a field whose parameter was left out is not there."""
    if isinstance(value, str):
        whole = _PLACEHOLDER.fullmatch(value)
        return values[whole[1]] if whole else _PLACEHOLDER.sub(lambda found: _written(values[found[1]]), value)
    if isinstance(value, Mapping):
        filled = {name: (inner, _fill(inner, values)) for name, inner in value.items()}
        return {name: new for name, (old, new) in filled.items() if new is not None or old is None}
    if isinstance(value, list):
        return [_fill(inner, values) for inner in value]
    return value


def _written(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _type_fault(kind: str, value: Any) -> str | None:
    """Return why a value is not of a type; None where it is."""
    try:
        parse_parameter({"type": kind, "value": value})
    except ConstantError as exc:
        return str(exc)
    # What a query takes for an INT64, a text of digits, a field of a request does not.
    return f"{value!r} is not {kind}" if kind == "INT64" and isinstance(value, str) else None


def _error(code: str, name: str, message: str) -> dict[str, str]:
    return fault_at(f"/parameters/{name[:80]}", code, message)
