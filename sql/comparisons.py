"""Comparisons in the lake's words: NaN equals nothing, and a struct is compared field by field."""

from __future__ import annotations

from typing import Final

from sql.datatypes import FLOAT64
from sql.values import LakeGapError, Value, quote_name

# The engine sorts NaN above every number: which side makes an operator true that GoogleSQL holds false.
_GREATER_SIDE: Final = {"=": 0, "!=": 0, ">": 0, ">=": 0, "<": 1, "<=": 1}


def comparison(operator: str, left: Value, right: Value) -> str:
    """Return ``left operator right`` of values of one type.

    Raises:
        LakeGapError: the engine has no such comparison.

    Example:
        >>> from sql.datatypes import INT64
        >>> comparison("<", Value(INT64, "a"), Value(INT64, "b"))
        '(a < b)'
    """
    if left.type.name == "STRUCT" and operator in {"=", "!="}:
        return _of_structs(operator, left, right)
    if left.type != FLOAT64 or operator not in _GREATER_SIDE:
        return f"({left.lake} {operator} {right.lake})"
    risky = (left, right)[_GREATER_SIDE[operator]]
    # A literal is never NaN; where it is one side of an equality, NaN on the other side gives no match anyhow.
    if risky.is_literal or (operator in {"=", "!="} and (left.is_literal or right.is_literal)):
        return f"({left.lake} {operator} {right.lake})"
    # NaN gives false (true for !=), NULL beside NaN still NULL.
    joiner, sign, otherwise = ("OR", ">", "FALSE") if operator == "!=" else ("AND", "<", "TRUE")
    guard = f"CASE WHEN isnan({risky.lake}) THEN ({left.lake} + {right.lake}) {sign} 0 ELSE {otherwise} END"
    return f"({left.lake} {operator} {right.lake} {joiner} {guard})"


def _of_structs(operator: str, left: Value, right: Value) -> str:
    parts = []
    names = zip(left.type.lake_names, right.type.lake_names, left.type.fields, right.type.fields, strict=True)
    for mine, other, (_, kind), (_, other_kind) in names:
        if kind.element is not None or other_kind.element is not None:
            raise LakeGapError("structs with arrays compared")
        field = Value(kind, f"({left.lake}).{quote_name(mine)}")
        parts.append(comparison(operator, field, Value(other_kind, f"({right.lake}).{quote_name(other)}")))
    return "(" + (" AND " if operator == "=" else " OR ").join(parts) + ")"


def membership(value: Value, items: list[Value], *, is_negated: bool) -> str:
    """Return ``value IN (items)``, of values of one type."""
    negation = "NOT " if is_negated else ""
    plain = value.type.name != "STRUCT" and (value.type != FLOAT64 or all(item.is_literal for item in items))
    if plain:
        return f"({value.lake} {negation}IN ({', '.join(item.lake for item in items)}))"
    return f"({negation}({' OR '.join(comparison('=', value, item) for item in items)}))"
