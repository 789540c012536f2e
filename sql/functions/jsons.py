"""JSON: values, queries and paths."""

import json
import re
from collections.abc import Sequence
from typing import Final

from sql.datatypes import SqlType
from sql.functions.registry import Render, Table
from sql.values import LakeGapError, Value, quote_name, quote_text

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


# What the engine takes for numbers and Google does not, or writes in another way: NaN, Infinity, -0. It fails for
# half a surrogate pair, which is an escape of a surrogate that is left when the pairs are taken out.
_ODD: Final = r"(?:^|[:,\[\s])(?:-0|-?[nN][aA]|-?[iI][nN])|\\u[dD][89a-fA-F]"
_PAIRS: Final = r"(?:^|[^\\])(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})+"
# A letter, a digit, - or _ that is written as an escape.
_ESCAPED_NAME: Final = r"\\u00(?:[4-7]|3[0-9]|2[dD])"
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_\-]+")


def _valid(text: str) -> str:
    """Return a text where it is JSON that both engines read alike, else NULL."""
    without_pairs = f"regexp_replace({text}, '{_PAIRS}', '.', 'g')"
    odd = (
        f"CASE WHEN regexp_matches({text}, '{_ODD}') THEN regexp_matches({without_pairs}, '{_ODD}') ELSE FALSE END"
    )
    return f"CASE WHEN json_valid({text}) AND NOT ({odd}) THEN {text} END"


def _again_by_name(text: str, args: Sequence[Value]) -> str | None:
    """Return whether a text may have two members of a name on the path, of which a later one may lead on.

    None where no such name is on the path.
    """
    path = args[1].constant if len(args) > 1 else "$"
    names = [step for step in parse_json_path(str(path))[:-1] if isinstance(step, str)]
    if not names:
        return None
    plain = all(map(_PLAIN_NAME.fullmatch, names))
    escaped = f"regexp_matches({text}, '{_ESCAPED_NAME}')" if plain else f"contains({text}, '\\u')"
    twice = [f'{text} LIKE \'%"{name}"%"{name}"%\'' for name in names if "%" not in name and "'" not in name]
    return f"({' OR '.join([*twice, escaped if len(twice) == len(names) else 'TRUE'])})"


# What the engine writes in another way than Google: numbers with a fraction or an exponent, control characters,
# U+2028 and U+2029.
_OTHERWISE: Final = "[0-9][.eE]|\\\\u00|[\u2028\u2029]"


def _again(json_text: str, *, is_text: bool) -> str:
    """Return JSON that the engine wrote as Google writes it: as STRING (``is_text``) or of type JSON."""
    found = f"CAST({json_text} AS VARCHAR)"
    ours = f"refeed_json_again({found}, {str(is_text).upper()})"
    return f"CASE WHEN regexp_matches({found}, '{_OTHERWISE}') THEN {ours} ELSE {found} END"


def inside(found: str) -> str:
    """Return a part of a JSON value that the engine cut out, its numbers written as Google writes them."""
    return f"CAST({_again(found, is_text=False)} AS JSON)"


def _counts(args: Sequence[Value]) -> bool:
    """Say whether a step of the path is a number: an element of an array, or a member whose name it is."""
    path = args[1].constant if len(args) > 1 else "$"
    return isinstance(path, str) and any(str(step).isdigit() for step in parse_json_path(path))


def _steps(args: Sequence[Value], *, is_legacy: bool = False) -> str:
    """Return the path as a function of ours takes it.

    Raises:
        LakeGapError: it is written as the other family of functions takes it.
    """
    path = args[1].constant if len(args) > 1 else "$"
    if not isinstance(path, str):
        raise LakeGapError("a JSON path that is not a constant")
    steps = parse_json_path(path)
    if ('."' if is_legacy else "['") in path:
        raise LakeGapError(f"the JSON path {path!r}")
    return quote_text(json.dumps(steps))


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
        elif '"' in step or not step:
            raise LakeGapError(f"the JSON path {path!r}")
        else:
            out.append(f'."{step}"')
    return quote_text("".join(out))


def _value(*, is_legacy: bool = False) -> Render:
    def render(args: Sequence[Value]) -> str:
        steps, text, path = _steps(args, is_legacy=is_legacy), args[0].lake, lake_path(args)
        is_json = args[0].type.name == "JSON"
        ours = f"refeed_json_value({f'CAST({text} AS VARCHAR)' if is_json else text}, {steps})"
        valid = text if is_json else _valid(text)
        kind = f"json_type({valid}, {path})"
        again = None if is_json else _again_by_name(text, args)
        missing = f"WHEN {kind} IS NULL AND {again} THEN {ours} " if again else ""
        missing = f"WHEN {kind} IS NULL THEN {ours} " if _counts(args) else missing
        native = f"CASE {missing}WHEN {kind} IN ('OBJECT', 'ARRAY') THEN NULL "
        native += f"WHEN {kind} = 'DOUBLE' THEN {ours} ELSE json_extract_string({valid}, {path}) END"
        return native if is_json else f"CASE WHEN {valid} IS NOT NULL THEN {native} ELSE {ours} END"

    return render


def _query(*, is_legacy: bool = False) -> Render:
    def render(args: Sequence[Value]) -> str:
        steps, text, path = _steps(args, is_legacy=is_legacy), args[0].lake, lake_path(args)
        if args[0].type.name == "JSON":
            found = f"json_extract({text}, {path})"
            if _counts(args):
                found = f"coalesce({found}, CAST(refeed_json_query(CAST({text} AS VARCHAR), {steps}) AS JSON))"
            return inside(found)
        valid = _valid(text)
        found = f"CAST(json_extract({valid}, {path}) AS VARCHAR)"
        again = _again_by_name(text, args)
        is_missing = f"({found} IS NOT NULL OR NOT {again}) AND " if again else ""
        is_missing = f"{found} IS NOT NULL AND " if _counts(args) else is_missing
        odd = f"coalesce(regexp_matches({found}, '{_OTHERWISE}'), FALSE)"
        plain = f"{is_missing}{valid} IS NOT NULL AND NOT {odd}"
        # JSON null is SQL's NULL for strings, and stays JSON null for JSON.
        return f"CASE WHEN {plain} THEN nullif({found}, 'null') ELSE refeed_json_query({text}, {steps}) END"

    return render


def _query_array(*, is_legacy: bool = False) -> Render:
    def render(args: Sequence[Value]) -> str:
        steps, text, path = _steps(args, is_legacy=is_legacy), args[0].lake, lake_path(args)
        if args[0].type.name == "JSON" and _counts(args):
            items = f"refeed_json_query_array(CAST({text} AS VARCHAR), {steps})"
            return f"list_transform({items}, lambda j: CAST(j AS JSON))"
        if args[0].type.name == "JSON":
            items = (
                f"list_transform(CAST(json_extract({text}, {path[:-1]}[*]') AS JSON[]), lambda j: {inside('j')})"
            )
            return f"CASE WHEN json_type({text}, {path}) = 'ARRAY' THEN {items} END"
        return f"refeed_json_query_array({text}, {steps})"

    return render


def _value_array(*, is_legacy: bool = False) -> Render:
    def render(args: Sequence[Value]) -> str:
        steps, text, path = _steps(args, is_legacy=is_legacy), args[0].lake, lake_path(args)
        if args[0].type.name != "JSON" or _counts(args):
            return f"refeed_json_value_array(CAST({text} AS VARCHAR), {steps})"
        array = f"CAST(json_extract({text}, {path}) AS JSON[])"
        scalars = f"len(list_filter({array}, lambda j: json_type(j) IN ('OBJECT', 'ARRAY'))) = 0"
        ours = f"refeed_json_value_array(CAST({text} AS VARCHAR), {steps})"
        odd = f"regexp_matches(CAST(json_extract({text}, {path}) AS VARCHAR), '{_OTHERWISE}')"
        items = f"list_transform({array}, lambda j: json_extract_string(j, '$'))"
        items = f"CASE WHEN {odd} THEN {ours} ELSE {items} END"
        return f"CASE WHEN json_type({text}, {path}) = 'ARRAY' AND {scalars} THEN {items} END"

    return render


def _is_plain(kind: SqlType) -> bool:
    """Say whether both engines write values of ``kind`` as the same JSON."""
    if kind.element is not None:
        return _is_plain(kind.element)
    if kind.name == "STRUCT":
        return all(name is not None and _is_plain(inner) for name, inner in kind.fields)
    return kind.name in {"STRING", "BOOL", "INT64", "JSON", "DATE"}


def _to_json(args: Sequence[Value]) -> str:
    kind = args[0].type
    if len(args) > 1 or not _is_plain(kind):
        raise LakeGapError(f"JSON of {kind}")
    if kind.name == "JSON":
        return f"coalesce({args[0].lake}, CAST('null' AS JSON))"
    text = inside(f"coalesce(to_json({args[0].lake}), 'null')")
    # Google keeps the members of a JSON value in the order of their names.
    return f"CAST(refeed_json(CAST({text} AS VARCHAR)) AS JSON)" if "STRUCT" in str(kind) else text


def _to_json_string(args: Sequence[Value]) -> str:
    kind = args[0].type
    if len(args) > 1 or not _is_plain(kind):
        raise LakeGapError(f"JSON of {kind}")
    if kind.name == "JSON":
        return f"coalesce(CAST({args[0].lake} AS VARCHAR), 'null')"
    return _again(f"coalesce(to_json({_written(args[0].lake, kind)}), 'null')", is_text=True)


def _written(lake: str, kind: SqlType, depth: int = 0) -> str:
    """Return a value whose integers beyond 2^53 are texts: only they survive JSON's readers."""
    if "INT64" not in str(kind):
        return lake
    if kind.element is not None:
        return f"list_transform({lake}, lambda e{depth}: {_written(f'e{depth}', kind.element, depth + 1)})"
    if kind.name == "STRUCT":
        names = zip(kind.lake_names, kind.fields, strict=True)
        parts = [
            f"{quote_name(name)} := {_written(f'({lake}).{quote_name(name)}', inner, depth)}"
            for name, (_, inner) in names
        ]
        return f"CASE WHEN {lake} IS NOT NULL THEN struct_pack({', '.join(parts)}) END"
    exact = f"{lake} BETWEEN -9007199254740992 AND 9007199254740992"
    return f"CASE WHEN {exact} THEN to_json({lake}) ELSE to_json(CAST({lake} AS VARCHAR)) END"


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


def _integer(text: str) -> str:
    number = f"CAST({text} AS DOUBLE)"
    whole = f"json_type({text}) = 'DOUBLE' AND {number} = trunc({number})"
    kinds = _strict(text, ("BIGINT", "UBIGINT"), "BIGINT")
    return f"CASE WHEN {whole} THEN CAST({number} AS BIGINT) ELSE {kinds} END"


_s("JSON_VALUE", "JSONISH ?STRING", "STRING", _value())
_s("JSON_EXTRACT_SCALAR", "JSONISH ?STRING", "STRING", _value(is_legacy=True))
_s("JSON_QUERY", "JSONISH STRING", "T0", _query())
_s("JSON_EXTRACT", "JSONISH STRING", "T0", _query(is_legacy=True))
_s("JSON_QUERY_ARRAY", "JSONISH ?STRING", "ARRAY<T0>", _query_array())
_s("JSON_EXTRACT_ARRAY", "JSONISH ?STRING", "ARRAY<T0>", _query_array(is_legacy=True))
_s("JSON_VALUE_ARRAY", "JSONISH ?STRING", "ARRAY<STRING>", _value_array())
_s("JSON_EXTRACT_STRING_ARRAY", "JSONISH ?STRING", "ARRAY<STRING>", _value_array(is_legacy=True))
_s("PARSE_JSON", "STRING", "JSON", "CAST(refeed_json({0}) AS JSON)", named="wide_number_mode")
_s("TO_JSON_STRING", "ANY ?BOOL", "STRING", _to_json_string)
_s("TO_JSON", "ANY", "JSON", _to_json, named="stringify_wide_numbers")
_s("JSON_TYPE", "JSON", "STRING", lambda args: _json_type(args[0].lake))
_s("JSON_ARRAY_APPEND", "JSON STRING ANY *ANY", "JSON", named="append_each_element")
_s("JSON_ARRAY_INSERT", "JSON STRING ANY *ANY", "JSON", named="insert_each_element")
_s("BOOL", "JSON", "BOOL", lambda args: _strict(args[0].lake, ("BOOLEAN",), "BOOLEAN"))
_s("INT64", "JSON", "INT64", lambda args: _integer(args[0].lake))
_s(
    "FLOAT64",
    "JSON",
    "FLOAT64",
    lambda args: _strict(args[0].lake, ("BIGINT", "UBIGINT", "DOUBLE"), "DOUBLE"),
    named="wide_number_mode",
)
