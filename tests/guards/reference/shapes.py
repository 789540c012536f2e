"""JSON Schema as tables of fields: what a field takes, what it has by default, and what it means."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.guards.reference.markdown import link, prose, sentence, table

_FORMATS: Final = {"date-time": "time (RFC 3339)", "date": "date", "binary": "bytes"}
# What a number that JavaScript holds exactly can be is no bound that anybody meets.
_NO_BOUND: Final = {9007199254740992, 9007199254740991}


def render_shape(name: str, schema: Mapping[str, Any], level: str = "###") -> str:
    """Return a shape's section: its sentence and the table of its fields."""
    text = prose(sentence(schema.get("description", "").split("\n\n")[0]))
    parts = [f"{level} {name}\n", *([f"{text}\n"] if text else [])]
    if "enum" in schema:
        parts.append(f"One of {', '.join(f'`{value}`' for value in schema['enum'])}.\n")
    elif "oneOf" in schema or "anyOf" in schema:
        parts.append(f"One of {kind_of(schema)}.\n")
    if properties := schema.get("properties"):
        required = schema.get("required", ())
        rows = [[f"`{field}`", *_facts(each, field in required)] for field, each in properties.items()]
        parts.append(table(["field", "takes", "default", "means"], rows))
    return "\n".join(parts)


def _facts(schema: Mapping[str, Any], is_required: bool) -> Iterator[str]:
    yield f"{kind_of(schema)}{_bounds(schema)}"
    default = schema.get("default")
    if setting := schema.get("x-setting"):
        yield f"`{setting}`"
    elif is_required or isinstance(schema.get("default", {}), dict):
        yield "required" if is_required else ""
    else:
        yield "none" if default is None else f"`{json.dumps(default)}`"
    yield prose(sentence(schema.get("description", "")))


def kind_of(schema: Mapping[str, Any]) -> str:
    """Return what a schema takes, in words; another shape is a link to it."""
    if "$ref" in schema:
        return link(schema["$ref"].rpartition("/")[2])
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values:
        return ", ".join(f"`{value}`" for value in values)
    if options := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        # The values of an object may be null too, which is another null.
        words = " or ".join(dict.fromkeys(kind_of(each) for each in options))
        return words.replace("null or null", "null, or null")
    return _type(schema, schema.get("type", "any value"))


def _type(schema: Mapping[str, Any], kind: str | list[str]) -> str:
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        items = schema.get("items", {})
        return f"list of {kind_of(items)}{_bounds(items)}" if items else "list"
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), dict) and values:
        return f"object with values of type {kind_of(values)}"
    return _FORMATS.get(schema.get("format", ""), kind)


def _bounds(schema: Mapping[str, Any]) -> str:
    """Return the bounds of a number or of a text's length, which may be those of one of several types."""
    for each in schema.get("anyOf", ()):
        if bounds := _bounds(each):
            return bounds
    above = schema.get("exclusiveMinimum")
    least, most = schema.get("minimum"), schema.get("maximum")
    most = None if most in _NO_BOUND else most
    if above is not None:
        return f", over {above:g}" + (f" to {_number(most)}" if most is not None else "")
    if least is not None:
        return f", {_number(least)} " + (f"to {_number(most)}" if most is not None else "or more")
    if most is not None:
        return f", up to {_number(most)}"
    if longest := schema.get("maxLength"):
        return f", up to {_number(longest)} characters"
    return ""


def _number(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:.2g}"
