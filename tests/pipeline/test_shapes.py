"""Shapes of one place, joined in every order that its values may come in."""

import itertools
import json
from typing import Any

from model.schema import Field
from model.widening import widen_value
from pipeline.shapes import EMPTY, columns, compile_fit, grow, read_shape

KINDS: tuple[Any, ...] = (
    *(7, -7, 1 << 53, (1 << 53) + 1, 1 << 70, 0.5, -0.0, 1e16, 1e300, True, "x", "7", "0.50", "true", ""),
    *({"y": "3"}, {"y": 3.0, "z": None}, {"y": ["a", 1]}, [1, 2.0], ["4", "b"], [1, None]),
    [{"k": 1}, {"k": "1"}],
)


def table_of(values: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Return the type of a column that became wider with each of the values, and its cells."""
    shape, rows = EMPTY, []
    before: dict[str, Field] = {}
    for value in values:
        shape = grow(shape, read_shape({"n": value}) or EMPTY)
        after = {column.name: column for column in columns(shape)}
        rows = [{name: widen_value(row[name], before[name], after[name]) for name in row} for row in rows]
        rows.append(compile_fit(shape)({"n": value}, "", {}))
        before = after
    return before["n"].type, [row["n"] for row in rows]


def shown(kind: str, cell: Any) -> str:
    """Return a cell as text; what is null in a record is the lack of it."""
    if kind == "JSON":
        return json.dumps(json.loads(cell), sort_keys=True)
    if isinstance(cell, dict):
        return repr(sorted((name, child) for name, child in cell.items() if child not in (None, [])))
    return repr(cell)


def test_every_order_of_three_kinds_makes_the_same_table() -> None:
    different = []
    for kinds in itertools.combinations(KINDS, 3):
        made = set()
        for order in itertools.permutations(kinds):
            kind, cells = table_of(order)
            made.add(
                (kind, *sorted((repr(value), shown(kind, cell)) for value, cell in zip(order, cells, strict=True)))
            )
        if len(made) > 1:
            different.append((kinds, made))
    assert different == []
