"""Functions that messages are repaired with, for which the lake has functions of its own: JSON, FORMAT, hashes."""

import json
import re
from collections.abc import Sequence
from typing import Final

from sql import literals
from sql.datatypes import STRING
from sql.functions import jsons
from sql.functions.registry import Render, Table
from sql.values import LakeGapError, Value, quote_text

TABLE = Table()
_s = TABLE.scalar

# An array that JSON_SET makes longer, and a width or a precision of FORMAT.
MAX_INDEX: Final = 10_000
MAX_WIDTH: Final = 1_000
_SPECIFIER: Final = re.compile(r"%(?P<flags>[-+ 0]*)(?P<width>\d*)(?P<dot>\.\d*)?(?P<kind>[a-zA-Z%])")
_FLOATS: Final = frozenset("fFeEgG")


def _json(text: str) -> str:
    return f"CAST({text} AS JSON)"


def _listed(texts: Sequence[str]) -> str:
    return f"CAST([{', '.join(texts)}] AS VARCHAR[])"


def _source(args: Sequence[Value]) -> str:
    return f"CAST({args[0].lake} AS VARCHAR)"


def _written(value: Value) -> str:
    """Return the text for a value as JSON, never NULL."""
    match value.type.name:
        case "NULL":
            return "'null'"
        case "JSON":
            return f"coalesce(CAST({value.lake} AS VARCHAR), 'null')"
        case "FLOAT64":
            return f"coalesce(refeed_json_float({value.lake}), 'null')"
        case "BYTES":
            return f"coalesce(CAST(to_json(to_base64({value.lake})) AS VARCHAR), 'null')"
        case _:
            return f"CAST({jsons.TABLE.functions['TO_JSON'].lake((value,))} AS VARCHAR)"


def _path(value: Value) -> str | None:
    """Return the text for a constant path as the lake's functions take it, None for a NULL.

    Raises:
        LakeGapError: it is computed, or none that these functions take.
    """
    path = value.constant
    if path is None:
        return None
    if not isinstance(path, str) or "['" in path:
        raise LakeGapError("a JSON path that is not a constant of plain steps")
    steps = jsons.parse_json_path(path)
    if any(isinstance(step, int) and step > MAX_INDEX for step in steps):
        raise LakeGapError(f"a JSON path to an element above {MAX_INDEX}")
    return quote_text(json.dumps(steps, ensure_ascii=False))


def _split(args: Sequence[Value], **defaults: bool) -> tuple[list[Value], list[bool]]:
    """Return the arguments without a name, and what those with one say."""
    named = {arg.named: arg.constant for arg in args if arg.named}
    chosen = [named.get(name, default) for name, default in defaults.items()]
    if not all(isinstance(value, bool) for value in chosen):
        raise LakeGapError("a setting that is not TRUE or FALSE")
    return [arg for arg in args if not arg.named], chosen


def _set(args: Sequence[Value]) -> str:
    plain, (creates,) = _split(args, create_if_missing=True)
    if len(plain) % 2 == 0:
        raise LakeGapError("a path without a value")
    pairs = [(_path(path), _written(value)) for path, value in zip(plain[1::2], plain[2::2], strict=True)]
    paths = _listed([path for path, _ in pairs if path is not None])
    values = _listed([value for path, value in pairs if path is not None])
    return _json(f"refeed_json_set({_source(args)}, {paths}, {values}, {creates})")


def _remove(args: Sequence[Value]) -> str:
    paths = [path for arg in args[1:] if (path := _path(arg)) is not None]
    if "'[]'" in paths:
        raise LakeGapError("JSON_REMOVE of everything")
    return _json(f"refeed_json_remove({_source(args)}, {_listed(paths)})")


def _strip(args: Sequence[Value]) -> str:
    plain, (arrays, empty) = _split(args, include_arrays=True, remove_empty=False)
    path = _path(plain[1]) if len(plain) > 1 else "'[]'"
    if path is None:
        raise LakeGapError("a JSON path that is NULL")
    return _json(f"refeed_json_strip_nulls({_source(args)}, {path}, {arrays}, {empty})")


def _object(args: Sequence[Value]) -> str:
    if len(args) == 2 and args[0].type.element is not None:
        if args[1].type.element is None or args[1].type.element.name not in {"STRING", "BOOL", "INT64", "JSON"}:
            raise LakeGapError(f"JSON_OBJECT of {args[1].type}")
        written = "CAST(coalesce(to_json(v), 'null') AS VARCHAR)"
        values = f"list_transform({args[1].lake}, lambda v: {written})"
        return _json(f"refeed_json_object({args[0].lake}, {values})")
    if len(args) % 2 or any(arg.type.name != "STRING" for arg in args[::2]):
        raise LakeGapError("JSON_OBJECT of names without values")
    names, values = _listed([arg.lake for arg in args[::2]]), _listed(list(map(_written, args[1::2])))
    return _json(f"refeed_json_object({names}, {values})")


def _keys(args: Sequence[Value]) -> str:
    modes = [arg.constant for arg in args if arg.named] or ["strict"]
    if modes[0] not in {"strict", "lax", "lax recursive"}:
        raise LakeGapError("a mode that is not a constant")
    depth = next((arg.lake for arg in args[1:] if not arg.named), "NULL")
    return f"refeed_json_keys({_source(args)}, CAST({depth} AS BIGINT), {quote_text(str(modes[0]))})"


def _lax(name: str) -> Render:
    return lambda args: f"{name}({_source(args)})"


def _bytes(value: Value) -> str:
    return value.lake if value.type.name == "BYTES" else f"encode({value.lake})"


def _of_bytes(name: str) -> Render:
    return lambda args: f"{name}({_bytes(args[0])})"


def _points(args: Sequence[Value]) -> str:
    name = "refeed_byte_points" if args[0].type.name == "BYTES" else "refeed_text_points"
    return f"{name}({args[0].lake})"


def _of_points(args: Sequence[Value]) -> str:
    element = args[0].type.element
    if element is not None and element.name not in {"INT64", "NULL"}:
        raise LakeGapError(f"of {args[0].type}")
    return f"refeed_text_of_points(CAST({args[0].lake} AS BIGINT[]))"


def _format(args: Sequence[Value]) -> str:
    pattern, values = args[0].constant, list(args[1:])
    if not isinstance(pattern, str):
        raise LakeGapError("a format that is not a constant")
    parts, end = [], 0
    while (place := pattern.find("%", end)) >= 0:
        found = _SPECIFIER.match(pattern, place)
        if found is None:
            raise LakeGapError("a format with an unknown specifier")
        parts.append(quote_text(pattern[end:place]))
        if found["kind"] == "%":
            parts.append("'%'")
        elif not values:
            raise LakeGapError("a format with more specifiers than values")
        else:
            parts.append(_formatted(found, values.pop(0)))
        end = found.end()
    if values:
        raise LakeGapError("a format with fewer specifiers than values")
    return f"({' || '.join([*parts, quote_text(pattern[end:])])})"


def _formatted(found: re.Match[str], value: Value) -> str:
    """Return the text for a value as one specifier writes it."""
    kind, type_name = found["kind"], value.type.name
    sizes = [int(size) for size in (found["width"], (found["dot"] or "").lstrip(".")) if size]
    if any(size > MAX_WIDTH for size in sizes):
        raise LakeGapError(f"a format of over {MAX_WIDTH} characters")
    shape = f"%{found['flags']}{found['width']}{found['dot'] or ''}"
    if kind in {"d", "i"} and type_name == "INT64":
        return f"refeed_format_whole({quote_text(shape + 'd')}, {value.lake})"
    if kind in _FLOATS and type_name == "FLOAT64":
        return f"refeed_format_float({quote_text(shape + kind)}, {value.lake})"
    if kind not in {"t", "T"} and not (kind == "s" and type_name == "STRING"):
        raise LakeGapError(f"%{kind} of {value.type}")
    if set(found["flags"]) - {"-"}:
        raise LakeGapError(f"these flags with %{kind}")
    specifier = quote_text(f"{shape}s")
    if kind == "s":
        return f"refeed_format_text({specifier}, {value.lake})"
    text = f"coalesce({_shown(value) if kind == 't' else _as_literal(value)}, 'NULL')"
    return text if shape == "%" else f"refeed_format_shown({specifier}, {text})"


def _shown(value: Value) -> str:
    """Return the text for a value as ``%t`` writes it."""
    match value.type.name:
        case "STRING":
            return value.lake
        case "NULL":
            return "CAST(NULL AS VARCHAR)"
        case "INT64" | "BOOL" | "DATE" | "TIMESTAMP":
            return literals.cast(value, STRING, is_safe=False).lake
        case "FLOAT64":
            return f"refeed_shown_float({value.lake})"
        case _:
            raise LakeGapError(f"%t of {value.type}")


def _as_literal(value: Value) -> str:
    """Return the text for a value as ``%T`` writes it: a literal of GoogleSQL."""
    shown = _shown(value)
    match value.type.name:
        case "STRING":
            return f"refeed_literal_text({value.lake})"
        case "DATE" | "TIMESTAMP":
            return f"('{value.type.name} \"' || {shown} || '\"')"
        case "FLOAT64":
            odd = f"isnan({value.lake}) OR isinf({value.lake})"
            return f"CASE WHEN {odd} THEN 'CAST(\"' || {shown} || '\" AS FLOAT64)' ELSE {shown} END"
        case _:
            return shown


_s("JSON_SET", "JSON STRING ANY *ANY", "JSON", _set, named="create_if_missing")
_s("JSON_REMOVE", "JSON STRING *STRING", "JSON", _remove)
_s("JSON_STRIP_NULLS", "JSON ?STRING", "JSON", _strip, named="include_arrays remove_empty")
_s("JSON_OBJECT", "?ANY *ANY", "JSON", _object)
_s(
    "JSON_ARRAY",
    "?ANY *ANY",
    "JSON",
    lambda args: _json(f"refeed_json_array({_listed(list(map(_written, args)))})"),
)
_s("JSON_KEYS", "JSON ?INT64", "ARRAY<STRING>", _keys, named="mode")
_s("LAX_BOOL", "JSON", "BOOL", _lax("refeed_lax_bool"))
_s("LAX_INT64", "JSON", "INT64", _lax("refeed_lax_int64"))
_s("LAX_FLOAT64", "JSON", "FLOAT64", _lax("refeed_lax_float64"))
_s("LAX_STRING", "JSON", "STRING", _lax("refeed_lax_string"))
_s("FORMAT", "STRING *ANY", "STRING", _format)
_s(
    "INITCAP",
    "STRING ?STRING",
    "STRING",
    {1: "refeed_initcap_words({0})", 2: "refeed_initcap({0}, {1})"},
)
_s("TO_CODE_POINTS", "STR", "ARRAY<INT64>", _points)
_s("CODE_POINTS_TO_STRING", "ARRAY", "STRING", _of_points)
_s("SHA512", "STR", "BYTES", _of_bytes("refeed_sha512"))
_s("FARM_FINGERPRINT", "STR", "INT64", _of_bytes("refeed_farm_fingerprint"))
