"""The rule against queries that multiply rows: joins that link nothing, and arrays made of nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from sql.names import Item, Scope
from sql.syntax import (
    ArrayLiteral,
    Call,
    Cast,
    Chain,
    Element,
    Expression,
    FieldAccess,
    Is,
    Lambda,
    NamedArgument,
    OrderItem,
    Select,
    StructLiteral,
)  # fmt: skip
from sql.values import AGGREGATED_ITEMS, Value, without_quotes

if TYPE_CHECKING:
    from sql.binder import Binder

# How often one row of the archive may come out of one FROM, and how often when LIMIT cuts the result.
MAX_FACTOR: Final = 10_000
MAX_LIMITED_FACTOR: Final = 1_000_000
# How many rows an array of a message counts for: three of them in one FROM pass, four do not.
ARRAY_ROWS: Final = 20
# The same for an array made of what a message says, which may be as long as the message: one passes, two do not.
DATA_ITEMS: Final = 500
# Columns of the archive that tell one message from another. An ordering key does not: most messages have none.
KEY_COLUMNS: Final = frozenset({"message_id", "data", "attributes", "publish_time"})
# Functions whose result tells apart what their arguments do, or may.
_KEEPING: Final = frozenset([
    "ANY_VALUE", "ARRAY_AGG", "ARRAY_CONCAT", "ARRAY_CONCAT_AGG", "ARRAY_FIRST", "ARRAY_LAST", "ARRAY_REVERSE",
    "ARRAY_SLICE", "ARRAY_TO_STRING", "COALESCE", "CONCAT", "FARM_FINGERPRINT", "FLOAT64", "FROM_BASE64",
    "FROM_HEX", "IFNULL", "INT64", "JSON_EXTRACT", "JSON_EXTRACT_ARRAY", "JSON_EXTRACT_SCALAR",
    "JSON_EXTRACT_STRING_ARRAY", "JSON_QUERY", "JSON_QUERY_ARRAY", "JSON_VALUE", "JSON_VALUE_ARRAY",
    "LAX_FLOAT64", "LAX_INT64", "LAX_STRING", "LOWER", "LTRIM", "MAX", "MAX_BY", "MD5", "MIN", "MIN_BY",
    "NULLIF", "PARSE_JSON", "REGEXP_EXTRACT", "REGEXP_EXTRACT_ALL", "REGEXP_REPLACE", "REGEXP_SUBSTR",
    "REPLACE", "RTRIM", "SAFE_CONVERT_BYTES_TO_STRING", "SHA1", "SHA256", "SHA512", "SPLIT", "STRING",
    "STRING_AGG", "SUBSTR", "SUBSTRING", "TO_BASE64", "TO_HEX", "TO_JSON", "TO_JSON_STRING", "TRIM", "UPPER",
])  # fmt: skip
_COARSE: Final = frozenset({"BOOL", "DATE"})
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
            f"FROM can turn one row into {factor:,} rows. At most {most:,} are allowed.",
            "Join on a column, or limit the array: ARRAY_SLICE(array, 0, 9).",
        )
    if len(_groups(big, scope, _absent(big, node.where, binder))) > 1:
        binder.fault(
            node,
            "join_unlinked",
            "No condition of this join compares keys for equality, so one row may match very many rows.",
            "ON a.message_id = b.message_id, or IN (SELECT ...)",
        )
    return (None if big else factor), min(factor, MAX_LIMITED_FACTOR * 10)


# What can't hold or become an array.
_SINGLE: Final = frozenset({"BOOL", "INT64", "FLOAT64", "NUMERIC", "BIGNUMERIC", "DATE", "DATETIME", "TIME"})


def count_items(binder: Binder, node: Expression, value: Value) -> int | None:
    """Return how many elements arrays made of ``value`` may have; None for as many as a message's arrays have.

    What is made of several may have as many as all of them together. What is made of the message alone has no more
    than the message.
    """
    if isinstance(value.constant, list | str | bytes):
        return len(value.constant)
    if value.items is not None or value.type.name in _SINGLE:
        return value.items
    written = len(node.items) if isinstance(node, ArrayLiteral) else None
    children = list(_children(node))
    found = [items for child in children if (items := binder.items.get(id(child))) is not None]
    if value.type.element is None and any(_is_open_array(binder.values.get(id(child))) for child in children):
        # What one element of an array says may be as long as the message, however few elements there are.
        found.append(DATA_ITEMS)
    if AGGREGATED_ITEMS in found:
        return AGGREGATED_ITEMS
    total = sum(items for items in found if items != DATA_ITEMS) + (written or 0)
    # A list that is written out is as long as it is written, whatever its elements are made of.
    return max(total, DATA_ITEMS) if DATA_ITEMS in found and written is None else total or None


def _is_open_array(value: Value | None) -> bool:
    return value is not None and value.type.element is not None and not isinstance(value.constant, list)


def is_part(array: Value, scope: Scope) -> Item | None:
    """Return the array of this FROM of whose elements ``array`` is a part of each, None when it is of none.

    All parts of all elements together are no more than the message is long. That holds for the first array made of
    another one's elements, not for a second one beside it.
    """
    names = aliases_in(array.lake)
    if array.items != DATA_ITEMS or len(names) != 1:
        return None
    return next((i for i in scope.items if i.lake_name in names and i.is_data and not i.has_parts), None)


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
    return set(_ALIAS.findall(without_quotes(text)))


def is_key(binder: Binder, node: Expression, value: Value) -> bool:
    """Return whether ``value`` may tell one message from another, so that equal ones belong together.

    A message_id and what is read from data and attributes may; whatever is coarser than what it is made of, such
    as a length, a remainder or a day, may not.
    """
    if value.is_key or value.type.name in _COARSE:
        return value.is_key
    parts: tuple[object, ...] = ()
    if isinstance(node, Cast):
        parts = (node.operand,)
    elif isinstance(node, FieldAccess | Element):
        parts = (node.base,)
    elif isinstance(node, StructLiteral):
        parts = tuple(item for item, _ in node.items)
    elif isinstance(node, Chain) and node.operators[0] == "||":
        parts = node.operands
    elif isinstance(node, Call) and node.over is None and node.name[-1] in _KEEPING:
        parts = node.arguments
    known = binder.values
    return any((found := known.get(id(part))) is not None and found.is_key for part in parts)


def _absent(items: list[Item], where: Expression | None, binder: Binder) -> set[str]:
    """Return the items that WHERE wants to be missing, as in LEFT JOIN ... WHERE b.message_id IS NULL."""
    parts = where.operands if isinstance(where, Chain) and where.operators[0] == "AND" else (where,)
    missing = {
        binder.values[id(part.operand)].lake
        for part in parts
        if isinstance(part, Is) and part.what == "NULL" and not part.is_negated
    }
    return {
        item.lake_name
        for item in items
        if item.is_optional and any(_is_unique(c.value) and c.value.lake in missing for c in item.columns)
    }


def _groups(items: list[Item], scope: Scope, absent: set[str]) -> set[frozenset[str]]:
    """Return the items that equalities hold together, one set a group.

    An item joins a group when each row of the group meets few of its rows: those with an equal message_id of the
    archive, with equal values of all columns that the item's rows are unique by, or with an equal key. Keys that
    come from the data need not be many: what bounds these is the selection's own bound.
    """
    names = {item.lake_name for item in items}
    group_of = {name: frozenset({name}) for name in names}
    # By item, sets of equalities of which one is enough: a list of what each column may be equal to.
    ways: list[tuple[str, list[list[set[str]]]]] = []
    for pair in scope.links:
        for near, far in (pair, pair[::-1]):
            own, others = aliases_in(near.lake) & names, aliases_in(far.lake) & names
            if len(own) == 1 and others and (_is_unique(near) or (near.is_key and far.is_key)):
                ways.append((next(iter(own)), [[others]]))
    equals = [(near.lake, aliases_in(far.lake) & names) for a, b in scope.links for near, far in ((a, b), (b, a))]
    for item in items:
        columns = [[others for text, others in equals if text == key and others] for key in item.unique]
        if columns or item.lake_name in absent:
            ways.append((item.lake_name, [] if item.lake_name in absent else columns))
    is_done = False
    while not is_done:
        is_done = True
        for name, columns in ways:
            for group in set(group_of.values()) - {group_of[name]}:
                if all(any(others <= group for others in column) for column in columns):
                    joined = group | group_of[name]
                    group_of.update(dict.fromkeys(joined, joined))
                    is_done = False
                    break
    return set(group_of.values())


def _is_unique(value: Value) -> bool:
    return value.origin is not None and value.origin.column == "message_id"
