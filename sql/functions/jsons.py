"""JSON: values, queries and paths."""

import re
from collections.abc import Sequence
from typing import Final

from sql.datatypes import SqlType
from sql.functions.registry import Table
from sql.values import LakeGapError, Value, quote_text

TABLE = Table()
_s = TABLE.scalar

_STEP: Final = re.compile(
    r"\.(?P<name>[A-Za-z_][A-Za-z0-9_\-]*|\d+)|\.\"(?P<quoted>[^\"\\]*)\"|\[(?P<index>\d+)\]|\['(?P<legacy>[^'\\]*)'\]"
)


def parse_json_path(text: str) -> tuple[str | int, ...]:
    """Return the steps of a GoogleSQL JSON path.

    Raises:
        LakeGapError: the path is none, or has wildcards.

    Example:
        >>> parse_json_path('$.a."b c"[0]')
        ('a', 'b c', 0)
    """
    if not text.startswith("$"):
        raise LakeGapError(f"the JSON path {text!r}")
    steps: list[str | int] = []
    position = 1
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise LakeGapError(f"the JSON path {text!r}")
        position = match.end()
        if match["index"] is not None:
            steps.append(int(match["index"]))
        else:
            steps.append(
                next(part for part in (match["name"], match["quoted"], match["legacy"]) if part is not None)
            )
    return tuple(steps)


def lake_path(args: Sequence[Value]) -> str:
    """Return the second argument, a constant path, in the words of the lake's engine; without one, the root."""
    if len(args) < 2:
        return "'$'"
    path = args[1].constant
    if not isinstance(path, str):
        raise LakeGapError("a JSON path that is not a constant")
    out = ["$"]
    for step in parse_json_path(path):
        if isinstance(step, int):
            out.append(f"[{step}]")
        elif '"' in step:
            raise LakeGapError(f"the JSON path {path!r}")
        else:
            out.append(f'."{step}"')
    return quote_text("".join(out))


def _source(args: Sequence[Value]) -> str:
    """Return the JSON to look into: a string that is none gives NULL, never an error."""
    if args[0].type.name == "JSON":
        return args[0].lake
    return f"CASE WHEN json_valid({args[0].lake}) THEN {args[0].lake} END"


def _value(args: Sequence[Value]) -> str:
    text, path = _source(args), lake_path(args)
    kind = f"json_type({text}, {path})"
    return f"CASE WHEN {kind} NOT IN ('OBJECT', 'ARRAY') THEN json_extract_string({text}, {path}) END"


def _query(args: Sequence[Value]) -> str:
    text, path = _source(args), lake_path(args)
    # JSON null is SQL's NULL for strings, and stays JSON null for JSON.
    if args[0].type.name == "JSON":
        return f"json_extract({text}, {path})"
    return f"CASE WHEN json_type({text}, {path}) <> 'NULL' THEN CAST(json_extract({text}, {path}) AS VARCHAR) END"


def _query_array(args: Sequence[Value]) -> str:
    text, path = _source(args), lake_path(args)
    items = f"CAST(json_extract({text}, {path}) AS JSON[])"
    if args[0].type.name != "JSON":
        items = f"list_transform({items}, lambda j: CAST(j AS VARCHAR))"
    return f"CASE WHEN json_type({text}, {path}) = 'ARRAY' THEN {items} END"


def _value_array(args: Sequence[Value]) -> str:
    text, path = _source(args), lake_path(args)
    array = f"CAST(json_extract({text}, {path}) AS JSON[])"
    scalars = f"len(list_filter({array}, lambda j: json_type(j) IN ('OBJECT', 'ARRAY'))) = 0"
    items = f"list_transform({array}, lambda j: json_extract_string(j, '$'))"
    return f"CASE WHEN json_type({text}, {path}) = 'ARRAY' AND {scalars} THEN {items} END"


def _is_plain(kind: SqlType) -> bool:
    """Say whether both engines write values of ``kind`` as the same JSON."""
    if kind.element is not None:
        return _is_plain(kind.element)
    if kind.name == "STRUCT":
        return all(name is not None and _is_plain(inner) for name, inner in kind.fields)
    return kind.name in {"STRING", "BOOL", "INT64", "JSON", "DATE"}


def _to_json(args: Sequence[Value]) -> str:
    if len(args) > 1 or not _is_plain(args[0].type):
        raise LakeGapError(f"JSON of {args[0].type}")
    return f"coalesce(to_json({args[0].lake}), 'null')"


def _json_type(text: str) -> str:
    return (
        f"CASE json_type({text}) WHEN 'OBJECT' THEN 'object' WHEN 'ARRAY' THEN 'array' "
        "WHEN 'VARCHAR' THEN 'string' WHEN 'BOOLEAN' THEN 'boolean' WHEN 'NULL' THEN 'null' "
        f"ELSE CASE WHEN {text} IS NOT NULL THEN 'number' END END"
    )


def _strict(text: str, kinds: tuple[str, ...], lake: str) -> str:
    listed = ", ".join(f"'{kind}'" for kind in kinds)
    wrong = "error('The JSON value has another type')"
    return (
        f"CASE WHEN {text} IS NULL THEN NULL WHEN json_type({text}) IN ({listed}) "
        f"THEN CAST(json_extract_string({text}, '$') AS {lake}) ELSE {wrong} END"
    )


_s("JSON_VALUE", "JSONISH ?STRING", "STRING", _value)
_s("JSON_EXTRACT_SCALAR", "JSONISH ?STRING", "STRING", _value)
_s("JSON_QUERY", "JSONISH ?STRING", "T0", _query)
_s("JSON_EXTRACT", "JSONISH ?STRING", "T0", _query)
_s("JSON_QUERY_ARRAY", "JSONISH ?STRING", "ARRAY<T0>", _query_array)
_s("JSON_EXTRACT_ARRAY", "JSONISH ?STRING", "ARRAY<T0>", _query_array)
_s("JSON_VALUE_ARRAY", "JSONISH ?STRING", "ARRAY<STRING>", _value_array)
_s("JSON_EXTRACT_STRING_ARRAY", "JSONISH ?STRING", "ARRAY<STRING>", _value_array)
_s("PARSE_JSON", "STRING", "JSON", "CAST({0} AS JSON)", named="wide_number_mode")
_s("TO_JSON_STRING", "ANY ?BOOL", "STRING", lambda args: f"CAST({_to_json(args)} AS VARCHAR)")
_s("TO_JSON", "ANY", "JSON", _to_json, named="stringify_wide_numbers")
_s("JSON_TYPE", "JSON", "STRING", lambda args: _json_type(args[0].lake))
_s("JSON_KEYS", "JSON ?INT64", "ARRAY<STRING>", named="mode")
_s("JSON_ARRAY", "?ANY *ANY", "JSON")
_s("JSON_OBJECT", "?ANY *ANY", "JSON")
_s("JSON_SET", "JSON STRING ANY *ANY", "JSON", named="create_if_missing")
_s("JSON_REMOVE", "JSON STRING *STRING", "JSON")
_s("JSON_STRIP_NULLS", "JSON ?STRING", "JSON", named="include_arrays remove_empty")
_s("JSON_ARRAY_APPEND", "JSON STRING ANY *ANY", "JSON", named="append_each_element")
_s("JSON_ARRAY_INSERT", "JSON STRING ANY *ANY", "JSON", named="insert_each_element")
_s("BOOL", "JSON", "BOOL", lambda args: _strict(args[0].lake, ("BOOLEAN",), "BOOLEAN"))
_s("INT64", "JSON", "INT64", lambda args: _strict(args[0].lake, ("BIGINT", "UBIGINT"), "BIGINT"))
_s(
    "FLOAT64",
    "JSON",
    "FLOAT64",
    lambda args: _strict(args[0].lake, ("BIGINT", "UBIGINT", "DOUBLE"), "DOUBLE"),
    named="wide_number_mode",
)
_s("LAX_BOOL", "JSON", "BOOL")
_s("LAX_INT64", "JSON", "INT64")
_s("LAX_FLOAT64", "JSON", "FLOAT64")
_s(
    "LAX_STRING",
    "JSON",
    "STRING",
    "CASE WHEN json_type({0}) NOT IN ('OBJECT', 'ARRAY') THEN json_extract_string({0}, '$') END",
)
