"""The texts of sql/queries, filled with expressions and never with text."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import sqlglot
from sqlglot import exp

_FOLDER: Final = Path(__file__).with_name("queries")
_DIALECT: Final = "bigquery"

Part = exp.Expr | Sequence[exp.Expr]


def fill(name: str, tables: Mapping[str, str | None], parts: Mapping[str, Callable[[], Part]]) -> str:
    """Return the statements of ``sql/queries/<name>.sql`` with ``__x__`` replaced by the table or part ``x``.

    A part is made anew wherever a text uses it; one of several expressions takes the place of one in a list.
    Names that a text does not use are fine. A table that is None has no rows: IN and EXISTS over it are FALSE, a
    DELETE under such a condition is left out.

    Raises:
        KeyError: the text has a name that is not given.
    """
    filled = (_fill(tree.copy(), tables, parts) for tree in _read(name))
    return ";\n".join(tree.sql(_DIALECT) for tree in filled if not _deletes_nothing(tree)) + ";"


@lru_cache
def _read(name: str) -> tuple[exp.Expr, ...]:
    text = (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    trees = [tree for tree in sqlglot.parse(text, read=_DIALECT) if tree is not None]
    for tree in trees:
        for node in tree.walk():
            node.comments = None
    return tuple(trees)


def _fill(tree: exp.Expr, tables: Mapping[str, str | None], parts: Mapping[str, Callable[[], Part]]) -> exp.Expr:
    for table in list(tree.find_all(exp.Table)):
        name = _placeholder(table.this)
        if name is None:
            continue
        full_name = tables[name]
        if full_name is None:
            test = table.find_ancestor(exp.Exists, exp.In)
            if test is None:
                raise KeyError(name)
            test.replace(exp.false())
            continue
        catalog, dataset, table_name = full_name.rsplit(".", 2)
        table.set("this", exp.to_identifier(table_name, quoted=True))
        table.set("db", exp.to_identifier(dataset, quoted=True))
        table.set("catalog", exp.to_identifier(catalog, quoted=True))
    for update in list(tree.find_all(exp.Update)):
        # SET has pairs where an INSERT has two lists.
        if update.expressions and _placeholder(update.expressions[0].this) == "columns":
            pairs = zip(_listed(parts["columns"]()), _listed(parts["values"]()), strict=True)
            update.set("expressions", [exp.EQ(this=exp.Column(this=to), expression=value) for to, value in pairs])
    for column in list(tree.find_all(exp.Column)):
        name = _placeholder(column)
        if name is None:
            continue
        found = parts[name]()
        # A direction belongs to each expression of an ORDER BY.
        node = column.parent if isinstance(column.parent, exp.Ordered) else column
        if isinstance(found, exp.Expr):
            column.replace(found)
        elif node is not None:
            node.replace(_listed(found))
    return tree


def _deletes_nothing(tree: exp.Expr) -> bool:
    where = tree.args.get("where") if isinstance(tree, exp.Delete) else None
    if where is None:
        return False
    return exp.false() in (where.this.flatten() if isinstance(where.this, exp.And) else (where.this,))


def _placeholder(node: exp.Expr) -> str | None:
    name = node.name
    return name.strip("_") if name.startswith("__") and name.endswith("__") else None


def _listed(part: Part) -> list[exp.Expr]:
    return [part] if isinstance(part, exp.Expr) else list(part)
