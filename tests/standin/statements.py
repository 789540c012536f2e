"""GoogleSQL text as a statement: what it is, its tables, what it says of partitions, and the engine's text.

The translator is sqlglot's, with what it lacks for the shapes that Refeed sends; a text that it can't carry over
whole is refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tests.standin.catalog import PARTITION_DATE, PARTITION_TIME, TableEntry, TableKey
from tests.standin.problems import Problem

_PSEUDO: Final = frozenset((PARTITION_TIME, PARTITION_DATE))
# "Quotas and limits", query jobs: maximum unresolved GoogleSQL query length.
_MOST_CHARACTERS: Final = 1024 * 1024
_LEAST_OF_A_TRANSACTION: Final = 3
_KINDS: Final = (
    (exp.Insert, "INSERT"),
    (exp.Delete, "DELETE"),
    (exp.Update, "UPDATE"),
    (exp.Merge, "MERGE"),
    (exp.TruncateTable, "TRUNCATE_TABLE"),
    (exp.Alter, "ALTER_TABLE"),
    (exp.Query, "SELECT"),
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement; ``target`` is what it changes or creates, ``tables`` what it reads, each once.

    ``moments`` are the expressions of FOR SYSTEM_TIME AS OF.
    """

    tree: exp.Expr
    kind: str
    target: TableKey | None
    tables: tuple[TableKey, ...]
    moments: Mapping[TableKey, exp.Expr]

    @property
    def query(self) -> exp.Query | None:
        """The SELECT in it that makes its rows, if it is one or creates from one."""
        found = self.tree if isinstance(self.tree, exp.Query) else self.tree.args.get("expression")
        return found if isinstance(found, exp.Query) else None


@lru_cache(maxsize=256)
def parse_statement(text: str, project: str, default_dataset: str | None) -> Statement:
    """Return the one statement in ``text``, which all that look at it share.

    Raises:
        Problem: ``invalidQuery``; it is no statement, several, or of a kind that is not kept here.
    """
    trees = _parse(text)
    if len(trees) != 1:
        raise Problem("invalidQuery", f"{len(trees)} statements; of scripts only transactions are kept here")
    return _statement(trees[0].copy(), project, default_dataset)


@lru_cache(maxsize=64)
def parse_transaction(text: str, project: str, default_dataset: str | None) -> list[Statement] | None:
    """Return the statements between BEGIN TRANSACTION and COMMIT TRANSACTION, None when it is no such script.

    Raises:
        Problem: ``invalidQuery``; one of them is not kept here.
    """
    trees = _parse(text)
    if len(trees) < _LEAST_OF_A_TRANSACTION or not isinstance(trees[0], exp.Transaction):
        return None
    if not isinstance(trees[-1], exp.Commit):
        raise Problem("invalidQuery", "A script here ends with COMMIT TRANSACTION")
    found = [_statement(tree.copy(), project, default_dataset) for tree in trees[1:-1]]
    # "Multi-statement transactions", supported statements: no DDL on what stays.
    if unfit := [s.kind for s in found if s.kind not in {"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE"}]:
        raise Problem("invalidQuery", f"{unfit[0]} in a transaction is not among what is kept here")
    if any(statement.moments for statement in found):
        raise Problem("invalidQuery", "FOR SYSTEM_TIME AS OF in a transaction is not among what is kept here")
    return found


def _parse(text: str) -> list[exp.Expr]:
    if len(text) > _MOST_CHARACTERS:
        raise Problem(
            "invalid", "The query is too large. The maximum standard SQL query length is 1024.00K characters"
        )
    try:
        return _parse_once(text)
    except (SqlglotError, RecursionError) as exc:
        raise Problem("invalidQuery", f"Syntax error: {_reason(exc)}") from exc


@lru_cache(maxsize=64)
def _parse_once(text: str) -> list[exp.Expr]:
    """A job looks at its text several times, and a merge's takes half a second to parse."""
    return [tree for tree in sqlglot.parse(text, read="bigquery") if tree is not None]


def _statement(tree: exp.Expr, project: str, default_dataset: str | None) -> Statement:
    kind = _kind(tree)
    _mend(tree)
    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    target_node = _target(tree, kind)
    target = None if target_node is None else table_key(target_node, project, default_dataset)
    tables: dict[TableKey, exp.Expr | None] = {}
    for node in list(tree.find_all(exp.Table)):
        if node is target_node or (not node.db and node.name.lower() in ctes):
            continue
        key, moment = table_key(node, project, default_dataset), _moment(node)
        if tables.setdefault(key, moment) != moment:
            raise Problem("invalidQuery", f"Two moments of {key} in one statement are not among what is kept here")
    moments = {key: moment for key, moment in tables.items() if moment is not None}
    if moments and kind != "SELECT":
        raise Problem("invalidQuery", "FOR SYSTEM_TIME AS OF is kept here for SELECT alone")
    return Statement(tree, kind, target, tuple(tables), moments)


def _moment(node: exp.Table) -> exp.Expr | None:
    """Return the expression of FOR SYSTEM_TIME AS OF."""
    version = node.args.get("version")
    if version is None:
        return None
    if version.name != "TIMESTAMP" or version.args["kind"] != "AS OF":
        raise Problem("invalidQuery", f"{node.sql('bigquery')} is not among what is kept here")
    return version.expression


def _reason(error: Exception) -> str:
    found = getattr(error, "errors", None) or [{}]
    place = f" at [{found[0].get('line')}:{found[0].get('col')}]" if found[0].get("line") else ""
    return f"{found[0].get('description') or type(error).__name__}{place}"


def table_key(node: exp.Table, project: str, default_dataset: str | None) -> TableKey:
    """Return the full name of a table in a text.

    Raises:
        Problem: ``invalidQuery``; it has no dataset, or is no plain table.
    """
    extra = {name for name, value in node.args.items() if value} - {"this", "db", "catalog", "alias", "version"}
    if extra:
        raise Problem("invalidQuery", f"{node.sql('bigquery')}: {', '.join(sorted(extra))} is not kept here")
    dataset = node.db or default_dataset
    if not isinstance(node.this, exp.Identifier) or "*" in node.name or "INFORMATION_SCHEMA" in node.sql().upper():
        raise Problem("invalidQuery", f"{node.sql()} is not among what is kept here")
    if not dataset:
        raise Problem(
            "invalidQuery", f'Table "{node.name}" must be qualified with a dataset (e.g. dataset.table).'
        )
    return TableKey(node.catalog or project, dataset, node.name)


def _kind(tree: exp.Expr) -> str:
    if isinstance(tree, exp.Create) and tree.kind == "VIEW":
        return "CREATE_VIEW"
    for kind, name in _KINDS:
        if isinstance(tree, kind):
            return name
    raise Problem("invalidQuery", f"{type(tree).__name__} statements are not among what is kept here")


def _target(tree: exp.Expr, kind: str) -> exp.Table | None:
    if kind == "SELECT":
        return None
    node = tree.this or next(iter([*tree.expressions, *(tree.args.get("tables") or ())]), None)
    if isinstance(node, exp.Schema):
        node = node.this
    if not isinstance(node, exp.Table):
        raise Problem("invalidQuery", f"{kind} needs a table")
    return node


def _mend(tree: exp.Expr) -> None:
    """Bring spellings of GoogleSQL that sqlglot keeps apart to one form."""
    if isinstance(tree, exp.Delete):
        if tree.args.get("tables"):
            tree.set("this", tree.args["tables"][0])
            tree.set("tables", None)
        if tree.args.get("where") is None:
            raise Problem("invalidQuery", "DELETE must have a WHERE clause")
    if isinstance(tree, exp.Update) and tree.args.get("where") is None:
        raise Problem("invalidQuery", "UPDATE must have a WHERE clause")
    query = tree if isinstance(tree, exp.Query) else tree.args.get("expression")
    for number, item in enumerate(query.selects if isinstance(query, exp.Query) else ()):
        # What has no name of its own is f0_, f1_ ... in BigQuery.
        if not isinstance(item, exp.Alias | exp.Column | exp.Dot | exp.Star):
            item.replace(exp.alias_(item.copy(), f"f{number}_"))


def _sources(select: exp.Expr) -> list[exp.Table]:
    found = [select.args.get("from_") or select.args.get("from"), *(select.args.get("joins") or ())]
    return [item.this for item in found if item is not None and isinstance(item.this, exp.Table)]


# What a statement says of partitions


def conditions(statement: Statement, key: TableKey, project: str, default: str | None, column: str | None
               ) -> Iterator[list[exp.Expr] | None]:  # fmt: skip
    """Yield for every reading of a table the conditions on its partitions alone, ``[]`` when there are none.

    ``column`` is the partitioning column, None for the pseudo columns. Such a condition is a conjunct of WHERE
    (of ON in a MERGE) with constants and parameters beside it, the one that prunes ("Query partitioned tables").
    """
    wanted = {name.upper() for name in (_PSEUDO if column is None else {column})}
    for node in statement.tree.find_all(exp.Table):
        try:
            if table_key(node, project, default) != key:
                continue
        except Problem:
            continue
        holder = node.find_ancestor(exp.Select, exp.Delete, exp.Update, exp.Merge)
        clause = None if holder is None else holder.args.get("on" if isinstance(holder, exp.Merge) else "where")
        if clause is None:
            yield []
            continue
        condition = clause.this if isinstance(clause, exp.Where) else clause
        parts = condition.flatten() if isinstance(condition, exp.And) else [condition]
        yield [part.copy() for part in parts if _is_on_partitions(part, wanted, node.alias_or_name)]


def _is_on_partitions(part: exp.Expr, wanted: set[str], alias: str) -> bool:
    columns = list(part.find_all(exp.Column))
    return (
        bool(columns)
        and all(c.name.upper() in wanted and c.table in {"", alias} for c in columns)
        and not any(part.find_all(exp.Query))
    )


def render_condition(part: exp.Expr) -> str:
    """Return a condition of :func:`conditions` for a table that has just those columns."""
    plain = part.transform(lambda node: exp.column(node.name) if isinstance(node, exp.Column) else node)
    return _render(plain)


def render_moment(moment: exp.Expr) -> str:
    """Return a moment of FOR SYSTEM_TIME AS OF for the engine."""
    return _render(moment.copy())


def used_columns(statement: Statement) -> set[str] | None:
    """Return the lower-case names of the columns that are read, None for all."""
    tree = statement.tree
    if any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)):
        return None
    return {name.name.lower() for name in tree.find_all(exp.Identifier)}


# The engine's text


def render(
    statement: Statement,
    names: Mapping[TableKey, str],
    entries: Mapping[TableKey, TableEntry],
    project: str,
    default: str | None,
    *,
    query_only: bool = False,
) -> str:
    """Return the statement for DuckDB, in which each table has the name that ``names`` gives it."""
    tree = (statement.query if query_only else statement.tree).copy()
    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for node in list(tree.find_all(exp.Table)):
        if not node.db and node.name.lower() in ctes:
            continue
        key = table_key(node, project, default)
        alias = node.alias_or_name
        if entries[key].ingestion_step_us:
            _hide_pseudo(node, alias)
        node.replace(exp.alias_(exp.to_table(names[key]), alias, table=True))
    _cut_bytes(tree, entries.values())
    _settle_nan(tree, entries.values())
    _settle(tree)
    return _render(tree)


def _cut_bytes(tree: exp.Expr, entries: Iterable[TableEntry]) -> None:
    """Let SUBSTR of a column of BYTES count bytes from a first one on: DuckDB's takes text alone.

    "String functions", SUBSTR: "Gets a portion of the supplied STRING or BYTES value."
    """
    of_bytes = {field["name"].lower() for entry in entries for field in entry.fields if field["type"] == "BYTES"}
    for node in list(tree.find_all(exp.Substring)):
        column, start, length = node.this, node.args.get("start"), node.args.get("length")
        if not (isinstance(column, exp.Column) and column.name.lower() in of_bytes):
            continue
        if not all(isinstance(number, exp.Literal) and number.is_int for number in (start, length)):
            raise Problem("invalidQuery", "SUBSTR of BYTES is kept here with two literal numbers alone")
        digits = exp.func("substr", exp.func("hex", column.copy()), exp.Literal.number(int(start.name) * 2 - 1),
                          exp.Literal.number(int(length.name) * 2))  # fmt: skip
        node.replace(exp.func("from_hex", digits))


def _settle_nan(tree: exp.Expr, entries: Iterable[TableEntry]) -> None:
    """Let NaN sort before every number, and let no comparison with it hold: DuckDB has it above them.

    "Data types", ordering floating points: NULL, NaN, -inf and so on. "Floating point semantics": any comparison
    with NaN returns FALSE, except for !=.
    """
    floats = {field["name"].lower() for entry in entries for field in entry.fields if field["type"] == "FLOAT"}

    def is_nan(node: Any) -> exp.Expr | None:
        is_float = isinstance(node, exp.Column) and node.name.lower() in floats
        return exp.func("isnan", node.copy()) if is_float else None

    for node in list(tree.find_all(exp.Ordered)):
        if (nan := is_nan(node.this)) is not None:
            first = exp.Ordered(this=nan, desc=not node.args.get("desc"), nulls_first=node.args.get("nulls_first"))
            node.replace([first, node.copy()])
    for node in list(tree.find_all(exp.GT, exp.GTE, exp.LT, exp.LTE)):
        greater = node.this if isinstance(node, exp.GT | exp.GTE) else node.expression
        if (nan := is_nan(greater)) is not None:
            node.replace(exp.paren(exp.and_(node.copy(), exp.not_(nan))))


def _settle(tree: exp.Expr) -> None:
    """Write what DuckDB would take otherwise so that types and values are GoogleSQL's."""
    for node in list(tree.find_all(exp.DateAdd, exp.DateSub)):
        # A DATE and an interval are a TIMESTAMP for DuckDB.
        node.replace(exp.cast(node.copy(), exp.DataType.Type.DATE))
    for node in list(tree.find_all(exp.UnixToTime, exp.StrToTime)):
        node.replace(exp.cast(node.copy(), exp.DataType.Type.TIMESTAMPTZ))
    for node in list(tree.find_all(exp.Literal)):
        if not node.is_string and not node.is_int:
            node.replace(exp.cast(node.copy(), exp.DataType.Type.DOUBLE))
    for node in list(tree.find_all(exp.DataType)):
        if node.this == exp.DataType.Type.DECIMAL and not node.expressions:
            node.replace(exp.DataType.build("DECIMAL(38, 9)"))
    for node in list(tree.find_all(exp.ArrayAgg)):
        if isinstance(limit := node.this, exp.Limit):
            node.set("this", limit.this)
            node.replace(exp.func("LIST_SLICE", node.copy(), exp.Literal.number(1), limit.expression))
    _settle_json(tree)
    _check_offsets(tree)


def _settle_json(tree: exp.Expr) -> None:
    """Let TO_JSON give JSON: sqlglot makes a text of it, as of TO_JSON_STRING.

    "JSON functions", JSON encodings: NULL is encoded as null. So TO_JSON of NULL is a JSON null, and
    TO_JSON_STRING of it the text null; neither is NULL.
    """
    # The innermost first: what stands in another is copied with it.
    for node in reversed(list(tree.find_all(exp.JSONFormat))):
        made = exp.cast(exp.Anonymous(this="to_json", expressions=[node.this.copy()]), "JSON")
        some = exp.Coalesce(this=made, expressions=[exp.cast(exp.Literal.string("null"), "JSON")])
        node.replace(some if node.args.get("to_json") else exp.cast(some, "TEXT"))


def _check_offsets(tree: exp.Expr) -> None:
    """Refuse offsets of UNNEST but to order by: DuckDB's ordinality counts from 1."""
    for offset in [node.args["offset"].name for node in tree.find_all(exp.Unnest) if node.args.get("offset")]:
        if any(c.name == offset and c.find_ancestor(exp.Order) is None for c in tree.find_all(exp.Column)):
            raise Problem("invalidQuery", "WITH OFFSET is kept here for ORDER BY alone")


def _hide_pseudo(node: exp.Table, alias: str) -> None:
    """Let ``*`` over a table leave its pseudo columns out."""
    select = node.find_ancestor(exp.Select)
    if select is None or not any(source is node for source in _sources(select)):
        return
    for item in select.expressions:
        star = item.this if isinstance(item, exp.Column) else item
        if not isinstance(star, exp.Star):
            continue
        if isinstance(item, exp.Column) and item.table != alias:
            continue
        hidden = {e.name for e in star.args.get("except_") or star.args.get("except") or ()}
        more = [exp.to_identifier(name) for name in sorted(_PSEUDO - hidden)]
        slot = "except_" if "except_" in exp.Star.arg_types else "except"
        star.set(slot, [*(star.args.get(slot) or ()), *more])


def _render(tree: exp.Expr) -> str:
    """Return the engine's text of a tree, which is changed."""
    try:
        return str(tree.sql("duckdb", copy=False, unsupported_level=sqlglot.ErrorLevel.RAISE))
    except SqlglotError as exc:
        raise Problem("invalidQuery", f"This is not among what is kept here: {exc}") from exc


def render_view(statement: Statement) -> str:
    assert statement.query is not None
    return str(statement.query.sql("bigquery"))


def altered_columns(statement: Statement) -> list[tuple[str, str]]:
    """Return the columns of ALTER COLUMN SET DATA TYPE with their new types."""
    actions = statement.tree.args.get("actions") or []
    if not all(isinstance(action, exp.AlterColumn) and action.args.get("dtype") for action in actions):
        raise Problem("invalidQuery", "Of ALTER TABLE only ALTER COLUMN SET DATA TYPE is kept here")
    return [(action.name, action.args["dtype"].sql("bigquery")) for action in actions]


def ddl_options(statement: Statement) -> dict[str, Any]:
    """Return the OPTIONS of a CREATE, and refuse properties that nothing here would keep."""
    properties = statement.tree.args.get("properties")
    options: dict[str, Any] = {}
    for item in properties.expressions if properties is not None else ():
        if not isinstance(item, exp.Property) or type(item) is not exp.Property:
            raise Problem(
                "invalidQuery", f"{item.sql('bigquery')} is not among what is kept here; use the REST API"
            )
        options[item.name] = item.args["value"].name
    if unknown := set(options) - {"description", "friendly_name"}:
        raise Problem("invalidQuery", f"OPTIONS {', '.join(sorted(unknown))}: use the REST API")
    return options
