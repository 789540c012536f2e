"""Calls and operators that the lake's engine would answer with NULL before it looks at what fails beside it."""

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from sql.syntax import (
    Call,
    Cast,
    Chain,
    Comparison,
    Constant,
    Element,
    Expression,
    Interval,
    LikeAny,
    Node,
    Path,
    Placeholder,
    Unary,
)  # fmt: skip
from sql.values import NOT_CONSTANT, Value, without_quotes

# They do not compute what they do not give, in either engine.
_CHOOSING: Final = frozenset({"COALESCE", "IF", "IFNULL"})
# What the lake's engine and ours answer for all values; a call that is not here may fail. GoogleSQL's
# functions need no such list: what they become for the lake says it.
_TOTAL: Final = frozenset([
    "CASE", "WHEN", "THEN", "ELSE", "AND", "OR", "NOT", "IN", "IS", "BETWEEN", "TRY", "TRY_CAST", "CAST",
    "upper", "lower", "length", "octet_length", "encode", "hex", "trim", "ltrim", "rtrim", "starts_with",
    "ends_with", "strpos", "contains", "reverse", "replace", "unicode", "string_split", "nfc_normalize",
    "levenshtein", "to_base64", "md5", "sha1", "sha256", "coalesce", "nullif", "greatest", "least", "isnan",
    "isinf", "isfinite", "ceil", "floor", "round", "trunc", "sign", "cbrt", "atan2", "bit_count", "len",
    "list_reverse", "list_transform", "list_filter", "array_to_string", "struct_pack", "json_extract",
    "json_extract_string", "json_type", "json_valid", "to_json", "regexp_matches", "regexp_replace",
    "regexp_extract", "regexp_extract_all", "regexp_full_match", "refeed_upper", "refeed_lower",
    "refeed_reverse", "refeed_edit_distance", "refeed_initcap", "refeed_initcap_words",
    "refeed_farm_fingerprint", "refeed_sha512", "refeed_byte_points", "refeed_text_points", "refeed_float_text",
    "refeed_json_again", "refeed_json_value", "refeed_json_value_array", "refeed_json_query",
    "refeed_json_query_array", "refeed_lax_bool", "refeed_lax_int64", "refeed_lax_float64", "refeed_lax_string",
])  # fmt: skip
_TOTAL_TYPES: Final = frozenset({"VARCHAR", "DOUBLE", "JSON", "JSON[]"})
# Operators that overflow, and queries, which may give two rows, are odd.
_TOKEN: Final = re.compile(
    r"\bAS (?P<type>[A-Z]\w*(?:\[\])?)|(?P<opened>(?:[A-Za-z_]\w*)? ?\()|(?P<closed>\))"
    r"|(?P<odd>[-+*/%]|\bSELECT\b)"
)
# Hex digits that a digest gives are always bytes.
_DIGEST: Final = re.compile(r"from_hex\((?=(?:md5|sha1|sha256)\()")


def hides_a_failure(node: Expression, values: dict[int, Value]) -> bool:
    """Say whether ``node`` has an operand that is known to be NULL beside one that may fail.

    Google computes every operand, and the query fails. The lake's engine knows the answer when it plans the query.
    """
    parts = _operands(node)
    nulls = [_is_null(part, values) for part in parts]
    return any(nulls) and any(
        not is_null and _may_fail(part, values) for part, is_null in zip(parts, nulls, strict=True)
    )


def _operands(node: Expression) -> list[Expression]:
    """Return what has to be computed for ``node``, and makes it NULL where it is NULL."""
    match node:
        case Call(name=name, arguments=arguments, over=None) if name[-1] not in _CHOOSING:
            found = [argument for argument in arguments if isinstance(argument, Expression)]
        case Chain(operators=operators, operands=operands) if operators[0] not in {"AND", "OR"}:
            found = list(operands)
        case Comparison(left=left, right=right):
            found = [left, right]
        case Element(base=base, index=index):
            found = [base, index]
        case Cast(operand=operand) | Unary(operand=operand):
            found = [operand]
        case _:
            found = []
    return [part.amount if isinstance(part, Interval) else part for part in found]


def _is_null(node: Expression, values: dict[int, Value]) -> bool:
    value = values.get(id(node))
    if isinstance(node, Constant | Placeholder):
        return (isinstance(node, Constant) and node.type == "NULL") or (
            value is not None and value.constant is None
        )
    if isinstance(node, Call) and node.name[-1] in _CHOOSING:
        parts = [part for part in node.arguments if isinstance(part, Expression)]
        return bool(parts) and all(_is_null(part, values) for part in parts)
    return any(_is_null(part, values) for part in _operands(node))


def _may_fail(node: Expression, values: dict[int, Value]) -> bool:
    value = values.get(id(node))
    if value is not None and value.constant is not NOT_CONSTANT:
        return False
    if isinstance(node, Constant | Placeholder | Path):
        return False
    return value is None or not is_total(value.lake) or any(map(_matches_a_pattern, _nodes(node)))


def is_total(lake: str) -> bool:
    """Say whether a text for the lake can never fail, whatever its columns hold.

    Example:
        >>> is_total("upper(t1.x)"), is_total("chr(CAST(t1.n AS INTEGER))"), is_total("TRY(chr(t1.n))")
        (True, False, True)
    """
    open_calls: list[str] = []
    for found in _TOKEN.finditer(_DIGEST.sub("(", without_quotes(lake))):
        if found["opened"] is not None:
            open_calls.append(found["opened"][:-1].rstrip())
        elif found["closed"]:
            open_calls.pop()
        if "TRY" in open_calls:
            continue
        name = open_calls[-1] if found["opened"] else ""
        if found["odd"] or (name and name not in _TOTAL and not name.startswith("refeed_safe_")):
            return False
        if found["type"] and open_calls and open_calls[-1] == "CAST" and found["type"] not in _TOTAL_TYPES:
            return False
    return True


def _matches_a_pattern(node: Node) -> bool:
    """Say whether ``node`` reads a pattern, which may be invalid: ``'('``, or a backslash at LIKE's end."""
    match node:
        case Call(name=name):
            return name[-1].startswith("REGEXP_")
        case Comparison(operator=operator, right=right) if "LIKE" in operator:
            return not isinstance(right, Constant) or "\\" in str(right.value)
        case LikeAny():
            return True
        case _:
            return False


def _nodes(part: object) -> Iterator[Node]:
    """Yield a node and all inside of it."""
    if isinstance(part, Node):
        yield part
        for field in fields(part):
            yield from _nodes(getattr(part, field.name))
    elif isinstance(part, tuple):
        for item in part:
            yield from _nodes(item)
