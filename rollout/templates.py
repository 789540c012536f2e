"""Templates: streams and jobs that were written down once, launched by name with typed parameters."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from backfill.plan.create import BackfillCreate
from jobs.files import Files
from model.declaration import declared_fields, json_name
from model.errors import FolderUnavailableError, RequestInvalidError, TemplateInvalidError, TemplateNotFoundError
from model.naming import did_you_mean
from model.plain_yaml import YamlDocument, YamlFaultsError, read_yaml, walk_texts
from model.stream_options import StreamKind
from reporting.request import MergeCreate
from rollout.request import StreamLaunch
from sql.constants import ConstantError
from sql.parameters import parse_parameter

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PARAMETER: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)\}")
_SUFFIX: Final = ".yaml"
# Those of a query's parameters that are one value.
TYPES: Final = ("STRING", "INT64", "FLOAT64", "BOOL", "DATE", "TIMESTAMP")
# kind -> what its request declares
KINDS: Final[Mapping[str, type]] = {
    "backfill": BackfillCreate,
    "merge": MergeCreate,
    **dict.fromkeys(StreamKind, StreamLaunch),
}
# No value is ever read as SQL.
_SQL: Final = ("/request/query", "/request/where")
_FIELDS: Final = ("name", "kind", "release", "description", "parameters", "request")
_PARAMETER_FIELDS: Final = ("type", "default", "help", "required")

# What is wrong, each with its code, its pointer and a sentence, and of a file with line and column.
_Faults = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TemplateParameter:
    """A parameter of a template; one without a default that is not required may be left out."""

    name: str
    type: str
    default: Any = None
    help: str = ""
    is_required: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the parameter as the API shows it."""
        shown = asdict(self)
        shown["required"] = shown.pop("is_required")
        return shown


@dataclass(frozen=True, slots=True)
class Template:
    """A stream or a job with ``${name}`` where its parameters go.

    ``request`` is what launching it takes without a template. ``release`` is a stream's alone.

    A text that is one placeholder becomes the parameter's value with its type, and a field of a parameter that was
    left out has its own default. In a longer text the value is written out. A query has no placeholders: it has
    parameters of its own, so that no value is ever read as SQL.
    """

    name: str
    kind: str
    release: str | None
    description: str
    parameters: tuple[TemplateParameter, ...]
    request: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the template as the API shows it."""
        return {**asdict(self), "parameters": [parameter.to_json() for parameter in self.parameters]}

    def render(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request with the parameters in their places, of a stream with its kind and its release.

        Raises:
            RequestInvalidError: parameters are wrong; ``details["errors"]`` has all of them.
        """
        declared = {parameter.name: parameter for parameter in self.parameters}
        errors: _Faults = []
        for name in given:
            if name not in declared:
                message = f"The template {self.name} has no parameter {name[:80]}.{did_you_mean(name, declared)}"
                errors.append(_fault("parameter_unknown", f"/parameters/{name[:80]}", message))
        values: dict[str, Any] = {}
        for name, parameter in declared.items():
            value = given.get(name)
            if value is None:
                value = parameter.default
            if value is None and parameter.is_required:
                about = f": {parameter.help}" if parameter.help else ""
                message = f"{name} is missing. It is a {parameter.type}{about}."
                errors.append(_fault("parameter_missing", f"/parameters/{name}", message))
            elif value is not None and (wrong := _type_fault(parameter.type, value)):
                errors.append(_fault("parameter_invalid", f"/parameters/{name}", f"{name}: {wrong}."))
            values[name] = value
        if errors:
            raise RequestInvalidError(" ".join(error["message"] for error in errors), errors=errors)
        rendered: dict[str, Any] = _fill(self.request, values)
        return {**rendered, "kind": self.kind, "release": self.release} if _is_stream(self.kind) else rendered


@dataclass(frozen=True, slots=True)
class BrokenTemplate:
    """A file of templates that can't be launched; ``error`` names every fault of it."""

    name: str
    error: TemplateInvalidError


class Templates:
    """The templates of a folder, ``<name>.yaml`` each; they are read again at each call."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def list_templates(self) -> list[Template | BrokenTemplate]:
        """Return all, by their names; a fault of one keeps no other from being shown.

        Raises:
            FolderUnavailableError: the folder does not answer.
        """
        found: list[Template | BrokenTemplate] = []
        for name in self._names():
            try:
                found.append(self.get_template(name))
            except TemplateInvalidError as exc:
                found.append(BrokenTemplate(name, exc))
            except TemplateNotFoundError:
                # Gone since.
                continue
        return found

    def get_template(self, name: str) -> Template:
        """Return one template.

        Raises:
            TemplateNotFoundError: there is none of this name.
            TemplateInvalidError: it has faults; ``details["errors"]`` has all of them.
            FolderUnavailableError: the folder does not answer.
        """
        names = self._names()
        try:
            content = self._files.read(f"{name}{_SUFFIX}") if name in names else None
        except FileNotFoundError:
            content = None
        except OSError as exc:
            raise FolderUnavailableError(f"The template {name} can't be read: {exc}") from exc
        if content is None:
            message = f"There is no template {name[:80]}.{did_you_mean(name, names)}"
            raise TemplateNotFoundError(message, name=name[:80])
        return parse_template(name, content)

    def _names(self) -> list[str]:
        try:
            found = (name.removesuffix(_SUFFIX) for name in self._files.list() if name.endswith(_SUFFIX))
            return [name for name in found if _NAME.fullmatch(name)]
        except OSError as exc:
            raise FolderUnavailableError(f"The templates in {self._files} can't be read: {exc}") from exc


@dataclass(frozen=True, slots=True)
class LaunchedTemplate:
    """What a template launched: the ``id`` of a job, or the name of a stream."""

    template: str
    kind: str
    id: str


def parse_request(kind: str, document: Mapping[str, Any]) -> Any:
    """Return the request of a job of this kind, as the API reads it from JSON.

    Raises:
        RequestInvalidError: it is none; ``details["errors"]`` has all that is wrong.
    """
    try:
        return TypeAdapter(KINDS[kind]).validate_json(json.dumps(document))
    except ValidationError as exc:
        errors = [
            _fault(f"field_{each['type']}", "/request" + "".join(f"/{part}" for part in each["loc"]), each["msg"])
            for each in exc.errors()
        ]
        message = "; ".join(f"{error['pointer']}: {error['message']}" for error in errors)
        raise RequestInvalidError(message, errors=errors) from exc


@dataclass
class _Reading:
    """What has been read of a template's file, and all that is wrong with it."""

    document: Mapping[str, Any]
    source: YamlDocument
    faults: _Faults = field(default_factory=list)

    def add(self, pointer: str, message: str) -> None:
        self.faults.append(_placed(pointer, message, *self.source.place_of(pointer)))

    def text(self, name: str, default: str | None = None) -> str:
        value = self.document.get(name, default)
        if isinstance(value, str) and value:
            return value
        if value != "" or default is None:
            self.add(f"/{name}", f"{name} is missing, or is not a string.")
        return ""

    def mapping(self, owner: Mapping[str, Any], name: str, pointer: str) -> Mapping[str, Any]:
        value = owner.get(name) or {}
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return value
        self.add(pointer, f"{name} must be a mapping of names to values.")
        return {}

    def check_names(self, given: Mapping[str, Any], known: Sequence[str], pointer: str) -> None:
        for name in given:
            if name not in known:
                self.add(f"{pointer}/{name}", f"There is no field {name[:80]}.{did_you_mean(name, known)}")


def parse_template(name: str, content: bytes) -> Template:
    """Return the template ``name`` of a file.

    Raises:
        TemplateInvalidError: it has faults; ``details["errors"]`` has all of them.
    """
    try:
        source = read_yaml(content)
        # What a request is made of is JSON; YAML makes a date of a text that looks like one.
        document = json.loads(json.dumps(source.value, default=_iso_text, allow_nan=False))
    except YamlFaultsError as exc:
        faults = [
            _placed("", f"The file is not YAML with plain values: {fault.message}", fault.line, fault.column)
            for fault in exc.faults
        ]
        raise _invalid(name, faults) from exc
    except (ValueError, TypeError, RecursionError) as exc:
        raise _invalid(name, [_placed("", f"The file is not YAML with plain values: {exc}", 1, 1)]) from exc
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise _invalid(name, [_placed("", "The file must be a mapping of names to values.", 1, 1)])
    reading = _Reading(document, source)
    reading.check_names(document, _FIELDS, "")
    if reading.text("name") not in {name, ""}:
        reading.add("/name", f"name is {document['name']!r}, but the file has the name {name}{_SUFFIX}.")
    kind = reading.text("kind")
    if kind and kind not in KINDS:
        reading.add("/kind", f"There is no kind {kind[:80]}. The kinds are {', '.join(KINDS)}.")
    parameters = tuple(_read_parameters(reading))
    request = reading.mapping(document, "request", "/request")
    release = reading.text("release") if "release" in document else None
    if kind in KINDS:
        of_template = {"kind", "release"} if _is_stream(kind) else set()
        known = [json_name(each.name) for each in declared_fields(KINDS[kind]) if each.name not in of_template]
        reading.check_names(request, known, "/request")
        if release is not None and not of_template:
            reading.add("/release", f"A {kind} can't have a release: it always runs with the installed version.")
    _check_placeholders(reading, request, {parameter.name: parameter for parameter in parameters})
    if reading.faults:
        raise _invalid(name, reading.faults)
    return Template(name, kind, release, reading.text("description", ""), parameters, request)


def _read_parameters(reading: _Reading) -> Iterator[TemplateParameter]:
    for name, given in reading.mapping(reading.document, "parameters", "/parameters").items():
        pointer = f"/parameters/{name}"
        if not _PARAMETER.fullmatch(name):
            reading.add(
                pointer,
                f"{name[:80]!r} is not a valid name for a parameter. Use lower-case letters, digits and _.",
            )
        if not isinstance(given, Mapping):
            reading.add(pointer, f"{name}: the fields of a parameter are {', '.join(_PARAMETER_FIELDS)}.")
            continue
        reading.check_names(given, _PARAMETER_FIELDS, pointer)
        kind, default = given.get("type", "STRING"), given.get("default")
        about, is_required = given.get("help", ""), given.get("required", False)
        if kind not in TYPES:
            reading.add(f"{pointer}/type", f"There is no type {kind!r}. The types are {', '.join(TYPES)}.")
        elif default is not None and (wrong := _type_fault(kind, default)):
            reading.add(f"{pointer}/default", f"The default of {name}: {wrong}.")
        if not isinstance(about, str):
            reading.add(f"{pointer}/help", "help must be a string.")
        if not isinstance(is_required, bool):
            reading.add(f"{pointer}/required", "required must be true or false.")
        elif is_required and default is not None:
            reading.add(f"{pointer}/required", f"{name} has a default, so it can't be required.")
        yield TemplateParameter(name, str(kind), default, str(about), is_required is True)


def _check_placeholders(
    reading: _Reading, request: Mapping[str, Any], declared: Mapping[str, TemplateParameter]
) -> None:
    used: set[str] = set()
    for path, text in walk_texts(request):
        pointer = "/request" + "".join(f"/{part}" for part in path)
        names = _PLACEHOLDER.findall(text)
        used |= set(names)
        if names and pointer in _SQL:
            message = "A query has no ${...}: write @name, and give the value in the request's parameters."
            reading.add(pointer, message)
            continue
        for name in names:
            if name not in declared:
                reading.add(pointer, f"There is no parameter {name[:80]}.{did_you_mean(name, declared)}")
            elif not _PLACEHOLDER.fullmatch(text) and not (
                declared[name].is_required or declared[name].default is not None
            ):
                reading.add(
                    pointer,
                    f"{name} is used within a longer string, so the parameter must be required or have a default.",
                )
    for name in declared.keys() - used:
        reading.add(
            f"/parameters/{name}", f"No field uses the parameter {name}. Write ${{{name}}} where its value goes."
        )


def _is_stream(kind: str) -> bool:
    return KINDS[kind] is StreamLaunch


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


def _iso_text(value: Any) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{value!r} is not a plain value")


def _fault(code: str, pointer: str, message: str) -> dict[str, Any]:
    return {"code": code, "pointer": pointer, "message": message}


def _placed(pointer: str, message: str, line: int, column: int) -> dict[str, Any]:
    return {**_fault(TemplateInvalidError.code, pointer, message), "line": line, "column": column}


def _invalid(name: str, faults: _Faults) -> TemplateInvalidError:
    message = f"The template {name} is wrong: " + " ".join(fault["message"] for fault in faults)
    return TemplateInvalidError(message, errors=faults)
