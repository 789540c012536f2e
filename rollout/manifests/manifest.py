"""Parses manifests, and reports all of their faults with line and column."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, get_args

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from model.errors import ManifestInvalidError, fault_at
from model.plain_yaml import (
    PlainLoader,
    YamlDocument,
    YamlFaultsError,
    read_yaml,
    read_yaml_stream,
    walk_texts,
)
from rollout.manifests import rollout, schedule, template
from rollout.manifests.rollout import Found, RolloutManifest
from rollout.manifests.schedule import Job, ScheduleManifest
from rollout.manifests.template import TemplateManifest

MAX_BYTES: Final = 256 * 1024
_TOO_LARGE: Final = f"The manifest is larger than {MAX_BYTES} bytes."
# Characters that YAML escapes can write and no store can keep: NUL, and half of a surrogate pair.
_UNKEPT: Final = re.compile(r"[\0\ud800-\udfff]")
_CORE_TAGS: Final = ("null", "bool", "int", "float")
# Names of fields for secrets, and texts that are secrets.
_SECRET_NAME: Final = re.compile(
    r"(?:.*[_\-.])?(?:secret|password|passwd|token|api[_\-]?key|private[_\-]?key|credentials?)", re.IGNORECASE
)
_SECRET_TEXTS: Final[Mapping[str, re.Pattern[str]]] = {
    "a password in an address": re.compile(r"[a-z0-9+.\-]://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a key of Refeed": re.compile(r"\brf_[a-z2-7]{10}_[a-z2-7]{52}\b"),
    # https://cloud.google.com/docs/authentication/api-keys and access tokens of OAuth.
    "a key of Google": re.compile(r"\bAIza[0-9A-Za-z_\-]{35}|\bya29\.[0-9A-Za-z_\-]{20}"),
    # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
    "a key of AWS": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    # https://github.blog/engineering/platform-security/behind-githubs-new-authentication-token-formats/
    "a token of GitHub": re.compile(r"\bgh[pousr]_[0-9A-Za-z]{36}"),
}

Spec = ScheduleManifest | RolloutManifest | TemplateManifest
_SPEC: Final[TypeAdapter[Spec]] = TypeAdapter(Annotated[Spec, Field(discriminator="kind")])
# kind -> the function that finds faults beyond the model.
_FINDERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Iterator[Found]]]] = {
    schedule.KIND: schedule.find_faults,
    rollout.KIND: rollout.find_faults,
    template.KIND: template.find_faults,
}
# The end of a field's path -> advice for a field or a value that only earlier releases had.
_TAKEN_OUT: Final[Mapping[tuple[str | int, ...], str]] = {
    ("validate", "query"): (
        "A rollout runs no query. Remove validate.query and validate.max_bytes_billed. To check the data by SQL, "
        "use 'refeed query' after the rollout. If the data is wrong, use 'refeed revert'."
    ),
    ("overlap",): "overlap must be skip or queue. A schedule no longer cancels its previous run (replace).",
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """A valid manifest; ``document`` is its content as JSON."""

    document: Mapping[str, Any]
    spec: Spec
    # The text from which it was read, with the places of its parts.
    source: YamlDocument | None = field(default=None, compare=False, repr=False)

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
        """A digest of the content, without its comments and order."""
        return digest_of(self.document)


def digest_of(document: Any) -> str:
    """Return a digest of a JSON value; equal values have equal digests."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def manifest_schema() -> dict[str, Any]:
    """Return the JSON Schema of manifests."""
    schema = _SPEC.json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def read_spec(document: Mapping[str, Any]) -> Spec:
    """Parse a document of :class:`Manifest`."""
    return _SPEC.validate_json(json.dumps(document))


def parse_manifest(content: bytes, name: str | None = None) -> Manifest:
    """Parse a text; if ``name`` is given, the manifest must have this name.

    Raises:
        ManifestInvalidError: the manifest has faults; ``details["errors"]`` has all, with line and column.
    """
    if len(content) > MAX_BYTES:
        raise refuse([_fault("", _TOO_LARGE, 1, 1)])
    with _yaml_faults():
        source = read_yaml(content, _ManifestLoader)
    return read_manifest(source, name)


def read_manifest(source: YamlDocument, name: str | None = None) -> Manifest:
    """Read a document; raises as :func:`parse_manifest`."""
    found = list(_find_faults(source.value, name))
    if found:
        raise refuse([place_fault(source, path, message) for path, message in found])
    if len(json.dumps(source.value)) > MAX_BYTES:
        raise refuse([place_fault(source, (), _TOO_LARGE)])
    return Manifest(source.value, read_spec(source.value), source)


def split_manifests(content: bytes) -> list[YamlDocument]:
    """Return the documents of a text with one or several manifests, separated by ``---`` or in a list.

    Raises:
        ManifestInvalidError: the text is no YAML of plain values, or has no document.
    """
    with _yaml_faults():
        found = read_yaml_stream(content, _ManifestLoader)
    if not found:
        raise refuse([_fault("", "The text contains no manifest.", 1, 1)])
    return found


@contextmanager
def _yaml_faults() -> Iterator[None]:
    """Turn faults of the YAML into :class:`ManifestInvalidError`."""
    try:
        yield
    except YamlFaultsError as exc:
        words = "The file is not YAML with plain values:"
        raise refuse(
            [_fault("", f"{words} {each.message}.", each.line, each.column) for each in exc.faults]
        ) from exc


def refuse(faults: list[dict[str, Any]]) -> ManifestInvalidError:
    """Return the error for faults, each with code, message, pointer, line and column."""
    ordered = sorted(faults, key=lambda fault: (fault["line"], fault["column"]))
    sentences = " ".join(f"Line {each['line']}, column {each['column']}: {each['message']}" for each in ordered)
    return ManifestInvalidError(f"The manifest is wrong. {sentences}", errors=ordered)


class _ManifestLoader(PlainLoader):
    """Reads only values of JSON: a word such as ``no``, a date and a time of day are texts."""

    has_aliases = False
    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - as in its parent

    def compose_scalar_node(self, anchor: Any) -> Any:
        """Return the node of a name or a value."""
        node = super().compose_scalar_node(anchor)
        if (found := _UNKEPT.search(node.value)) is not None:
            self.add(
                f"a string contains the character U+{ord(found[0]):04X}, which can't be stored", node.start_mark
            )
        return node


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


def _find_faults(value: Any, name: str | None) -> Iterator[Found]:
    yield from _name_faults(value, ())
    try:
        spec = json.dumps(value, allow_nan=False)
        _SPEC.validate_json(spec)
    except ValidationError as exc:
        for error in exc.errors(include_input=False, include_url=False):
            yield _sentence(error)
    except (ValueError, TypeError, RecursionError):
        yield (), "A manifest must be a mapping of names to plain values."
    for path, kind in find_secrets(value):
        yield path, f"The value is {kind} in clear text. A manifest must not contain secrets."
    if not isinstance(value, Mapping):
        return
    written = value.get("name")
    if name is not None and isinstance(written, str) and written != name:
        yield ("name",), f"name is {written[:80]!r}, but the manifest is {name}."
    finder = _FINDERS.get(str(value.get("kind")))
    if finder is not None:
        yield from finder(value)


def find_secrets(document: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the path of each secret text, and the kind of secret, but never the text.

    Example:
        >>> list(find_secrets({"a": ["postgresql://ann:pass@db/jobs"], "db_password": "x"}))
        [(('a', 0), 'a password in an address'), (('db_password',), 'the value of a name for secrets')]
    """
    for path, text in walk_texts(document):
        # The value of a parameter is one level below its name.
        names = [part for part in path if isinstance(part, str) and part != "value"]
        kinds = [kind for kind, pattern in _SECRET_TEXTS.items() if pattern.search(text)]
        if kinds:
            yield path, kinds[0]
        elif text and names and _SECRET_NAME.fullmatch(names[-1]):
            yield path, "the value of a name for secrets"


def _name_faults(value: Any, path: tuple[str | int, ...]) -> Iterator[Found]:
    """Yield the names that are not texts, because JSON would convert some of them to texts."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                yield (*path, str(name)), f"{name!r} is not a name. Write it in quotes."
            yield from _name_faults(inner, (*path, str(name)))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _name_faults(inner, (*path, number))


def _sentence(error: Any) -> Found:
    loc = error["loc"]
    if not loc and error["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        return ("kind",), f"kind must be one of {', '.join(_FINDERS)}."
    # A tagged union adds its tag after the field; the tag of the whole manifest comes first.
    path = tuple(part for number, part in enumerate(loc) if number and loc[number - 1] != "job")
    named = ".".join(map(str, path)) or "It"
    if path == ("job",):
        kinds = ", ".join(get_args(each.__annotations__["kind"])[0] for each in get_args(Job))
        return path, f"job must be an object with a kind, such as {{kind: merge}}. The kinds are {kinds}."
    if path[-2:] in _TAKEN_OUT:
        return path, _TAKEN_OUT[path[-2:]]
    if error["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return path, f"There is no field {str(path[-1])[:80]}."
    whose = f" in a {loc[0]}" if error["type"] == "missing" and len(path) == 1 else ""
    return path, f"{named}: {error['msg'].removeprefix('Value error, ')}{whose}."


def place_fault(source: YamlDocument, path: tuple[str | int, ...], message: str) -> dict[str, Any]:
    """Return a fault with the place of a path in the document."""
    pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
    return _fault(pointer, message, *source.place(path))


def _fault(pointer: str, message: str, line: int, column: int) -> dict[str, Any]:
    return fault_at(pointer, ManifestInvalidError.code, message, line=line, column=column)
