"""The rule against queries that multiply rows: joins that link nothing, and arrays made of nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from sql.names import Item, Scope
from sql.syntax import ArrayLiteral, Expression, Lambda, NamedArgument, OrderItem, Select
from sql.values import AGGREGATED_ITEMS, Value, without_strings

if TYPE_CHECKING:
    from sql.binder import Binder

# How often one row of the archive may come out of one FROM, and how often when LIMIT cuts the result.
MAX_FACTOR: Final = 10_000
MAX_LIMITED_FACTOR: Final = 1_000_000
# How many rows an array of a message counts for: three of them in one FROM pass, four do not.
ARRAY_ROWS: Final = 20
_ALIAS = re.compile(r"(?<![\w\"])t\d+(?=\.)")


def check(binder: Binder, node: Select, scope: Scope, *, is_limited: bool) -> tuple[int | None, int]:
    """Note a fault when FROM multiplies rows.

    Return how many rows it has, None for as many as the archive, and how often one row may be among them.
    """
    if not scope.items:
        return 1, 1
    factor = 1
    for item in scope.items:
        factor *= item.factor if item.rows is None else max(item.rows, 1)
    most = MAX_LIMITED_FACTOR if is_limited and not node.group_by else MAX_FACTOR
    big = [item for item in scope.items if item.rows is None and item.lake_name]
    arrays = [item for item in scope.items if item.rows is not None and item.rows > 1]
    if factor > most and (big or len(arrays) > 1 or arrays[0].is_array):
        binder.fault(
            node,
            "row_amplification",
            f"FROM makes {factor:,} rows of one; {most:,} are allowed.",
            "Join on a column, or make the array shorter.",
        )
    if len(_groups(big, scope)) > 1:
        binder.fault(
            node,
            "join_unlinked",
            "These tables are joined without an equality between their columns: every row would meet every row.",
            "ON a.message_id = b.message_id",
        )
    return (None if big else factor), min(factor, MAX_LIMITED_FACTOR * 10)


# What can't hold or become an array.
_SINGLE: Final = frozenset({"BOOL", "INT64", "FLOAT64", "NUMERIC", "BIGNUMERIC", "DATE", "DATETIME", "TIME"})


def count_items(binder: Binder, node: Expression, value: Value) -> int | None:
    """Return how many elements arrays made of ``value`` may have; None for as many as a message's arrays have.

    What is made of several may have as many as all of them together.
    """
    if isinstance(value.constant, list):
        return len(value.constant)
    if (
        value.items is not None
        or value.type.name in _SINGLE
        or not (binder.items or isinstance(node, ArrayLiteral))
    ):
        return value.items
    total = len(node.items) if isinstance(node, ArrayLiteral) else None
    for child in _children(node):
        items = binder.items.get(id(child))
        if AGGREGATED_ITEMS in {items, total}:
            total = AGGREGATED_ITEMS
        elif items is not None:
            total = (total or 0) + items
    return total


def _children(node: object) -> Iterator[Expression]:
    """Yield the expressions right below ``node``; queries inside it tell by themselves."""
    for field in fields(node):  # type: ignore[arg-type]
        yield from _expressions(getattr(node, field.name))


def _expressions(found: object) -> Iterator[Expression]:
    if isinstance(found, Expression):
        yield found
    elif isinstance(found, tuple):
        for part in found:
            yield from _expressions(part)
    elif isinstance(found, NamedArgument | Lambda | OrderItem):
        yield from _children(found)


def aliases_in(text: str) -> set[str]:
    r"""Return the names of items that a text for the lake reads, those inside strings left out.

    Example:
        >>> sorted(aliases_in("t1.\"topic\" || 't9.x' || t12.e"))
        ['t1', 't12']
    """
    return set(_ALIAS.findall(without_strings(text)))


def _groups(items: list[Item], scope: Scope) -> list[set[str]]:
    """Return the items that equalities hold together, one set a group."""
    groups = [{item.lake_name} for item in items]
    for left, right in scope.links:
        a, b = aliases_in(left), aliases_in(right)
        if not a or not b or a == b:
            continue
        touched = [group for group in groups if group & (a | b)]
        if len(touched) > 1 and any(group & a for group in touched) and any(group & b for group in touched):
            groups = [group for group in groups if group not in touched]
            groups.append(set().union(*touched))
    return groups
