"""The syntax tree of a GoogleSQL query: nothing exists but what the grammar knows; ``at`` is an offset."""

from dataclasses import dataclass
from typing import Literal as OneOf


@dataclass(frozen=True, slots=True)
class Node:
    """A part of the query and where it starts."""

    at: int


# --- names and types ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Name(Node):
    """An identifier as written, without its backticks."""

    text: str
    is_quoted: bool = False

    @property
    def key(self) -> str:
        """The name as GoogleSQL compares columns and aliases: ASCII case does not count."""
        return self.text.lower() if self.text.isascii() else self.text


@dataclass(frozen=True, slots=True)
class TypeName(Node):
    """A type as written: ``arguments`` are element or field types, ``fields`` their names (None where unnamed)."""

    name: str
    arguments: tuple["TypeName", ...] = ()
    fields: tuple[str | None, ...] = ()


# --- expressions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expression(Node):
    """Anything with a value."""


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    """A literal; ``text`` of INT64, FLOAT64 and typed literals (DATE '...') is what was written."""

    type: str
    value: str | bytes | bool | None


@dataclass(frozen=True, slots=True)
class Interval(Expression):
    """``INTERVAL amount unit [TO last_unit]``."""

    amount: Expression
    unit: str
    last_unit: str | None


@dataclass(frozen=True, slots=True)
class Placeholder(Expression):
    """A named parameter, ``@name``."""

    name: str


@dataclass(frozen=True, slots=True)
class Path(Expression):
    """``a.b.c``: a column, a range variable or fields of one."""

    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class FieldAccess(Expression):
    """``(expression).name``."""

    base: Expression
    name: Name


@dataclass(frozen=True, slots=True)
class Element(Expression):
    """``base[index]``; ``mode`` is OFFSET, ORDINAL, their SAFE_ twins or empty for a bare index."""

    base: Expression
    mode: str
    index: Expression


@dataclass(frozen=True, slots=True)
class NamedArgument(Node):
    """``name => value``."""

    name: Name
    value: "Expression | Lambda"


@dataclass(frozen=True, slots=True)
class Lambda(Node):
    """``x -> body`` or ``(x, y) -> body``, an argument only."""

    names: tuple[Name, ...]
    body: Expression


Argument = Expression | NamedArgument | Lambda


@dataclass(frozen=True, slots=True)
class OrderItem(Node):
    """One key of ORDER BY; ``nulls_first`` is None where nothing was written."""

    key: Expression
    is_descending: bool
    nulls_first: bool | None


@dataclass(frozen=True, slots=True)
class FrameBound(Node):
    """One end of a window frame; ``amount`` is None for CURRENT ROW and UNBOUNDED."""

    kind: OneOf["UNBOUNDED PRECEDING", "PRECEDING", "CURRENT ROW", "FOLLOWING", "UNBOUNDED FOLLOWING"]
    amount: Expression | None


@dataclass(frozen=True, slots=True)
class WindowSpec(Node):
    """What stands after OVER or in the WINDOW clause; ``base`` names another window."""

    base: Name | None
    partition_by: tuple[Expression, ...] = ()
    order_by: tuple[OrderItem, ...] = ()
    frame: OneOf["ROWS", "RANGE"] | None = None
    low: FrameBound | None = None
    high: FrameBound | None = None


@dataclass(frozen=True, slots=True)
class Call(Expression):
    """A function call with all that GoogleSQL allows inside its parentheses and after them."""

    name: tuple[str, ...]
    arguments: tuple[Argument, ...]
    is_star: bool = False
    is_distinct: bool = False
    nulls: OneOf["IGNORE", "RESPECT"] | None = None
    having: tuple[OneOf["MAX", "MIN"], Expression] | None = None
    order_by: tuple[OrderItem, ...] = ()
    limit: Expression | None = None
    over: WindowSpec | None = None


@dataclass(frozen=True, slots=True)
class Cast(Expression):
    """CAST or SAFE_CAST."""

    operand: Expression
    type: TypeName
    is_safe: bool
    format: Expression | None = None
    zone: Expression | None = None


@dataclass(frozen=True, slots=True)
class Extract(Expression):
    """``EXTRACT(part FROM operand [AT TIME ZONE zone])``."""

    part: str
    operand: Expression
    zone: Expression | None


@dataclass(frozen=True, slots=True)
class Case(Expression):
    """CASE with or without an operand."""

    operand: Expression | None
    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression | None


@dataclass(frozen=True, slots=True)
class Unary(Expression):
    """``-x``, ``+x``, ``~x`` or ``NOT x``."""

    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Chain(Expression):
    """Operators of one precedence, read from the left; n operands, n - 1 operators, flat whatever n is."""

    operators: tuple[str, ...]
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Comparison(Expression):
    """``left operator right``; also LIKE, IS DISTINCT FROM and their negations."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class LikeAny(Expression):
    """``operand [NOT] LIKE ANY|SOME|ALL (patterns)``."""

    operand: Expression
    quantifier: str
    patterns: tuple[Expression, ...]
    is_negated: bool


@dataclass(frozen=True, slots=True)
class In(Expression):
    """``operand [NOT] IN (items) | (query) | UNNEST(array)``: exactly one of the three is set."""

    operand: Expression
    is_negated: bool
    items: tuple[Expression, ...] = ()
    query: "Query | None" = None
    array: Expression | None = None


@dataclass(frozen=True, slots=True)
class Between(Expression):
    """``operand [NOT] BETWEEN low AND high``."""

    operand: Expression
    is_negated: bool
    low: Expression
    high: Expression


@dataclass(frozen=True, slots=True)
class Is(Expression):
    """``operand IS [NOT] NULL|TRUE|FALSE|UNKNOWN``."""

    operand: Expression
    is_negated: bool
    what: str


@dataclass(frozen=True, slots=True)
class Subquery(Expression):
    """A query used as a value: SCALAR, ARRAY or EXISTS."""

    kind: OneOf["SCALAR", "ARRAY", "EXISTS"]
    query: "Query"


@dataclass(frozen=True, slots=True)
class ArrayLiteral(Expression):
    """``[a, b]`` or ``ARRAY<T>[a, b]``."""

    element: TypeName | None
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class StructLiteral(Expression):
    """``STRUCT(a AS x)``, ``STRUCT<x T>(a)`` or the tuple ``(a, b)``."""

    type: TypeName | None
    items: tuple[tuple[Expression, Name | None], ...]


# --- queries -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Star(Node):
    """``*`` or ``path.*`` with EXCEPT and REPLACE."""

    path: Expression | None
    excluded: tuple[Name, ...] = ()
    replaced: tuple[tuple[Expression, Name], ...] = ()


@dataclass(frozen=True, slots=True)
class SelectItem(Node):
    """One item of a select list."""

    value: Expression | Star
    alias: Name | None


@dataclass(frozen=True, slots=True)
class TableItem(Node):
    """A path in FROM: a table, a CTE or an array of an earlier item."""

    path: tuple[Name, ...]
    alias: Name | None
    sample_percent: Expression | None = None
    offset: Name | None = None
    has_offset: bool = False


@dataclass(frozen=True, slots=True)
class UnnestItem(Node):
    """``UNNEST(array) [AS alias] [WITH OFFSET [AS offset]]``."""

    array: Expression
    alias: Name | None
    offset: Name | None
    has_offset: bool


@dataclass(frozen=True, slots=True)
class QueryItem(Node):
    """A query in FROM."""

    query: "Query"
    alias: Name | None


@dataclass(frozen=True, slots=True)
class JoinItem(Node):
    """Items joined from the left: ``first``, then one step each; a comma is a step of kind CROSS."""

    first: "FromItem"
    steps: tuple["JoinStep", ...]


@dataclass(frozen=True, slots=True)
class JoinStep(Node):
    """One join: INNER, LEFT, RIGHT, FULL or CROSS."""

    kind: OneOf["INNER", "LEFT", "RIGHT", "FULL", "CROSS"]
    item: "FromItem"
    on: Expression | None = None
    using: tuple[Name, ...] = ()


FromItem = TableItem | UnnestItem | QueryItem | JoinItem


@dataclass(frozen=True, slots=True)
class GroupBy(Node):
    """GROUP BY; ``is_all`` for GROUP BY ALL; ``sets`` for ROLLUP, CUBE and GROUPING SETS as written."""

    keys: tuple[Expression, ...]
    is_all: bool = False


@dataclass(frozen=True, slots=True)
class Select(Node):
    """One SELECT, without ORDER BY and LIMIT: those are the query's."""

    is_distinct: bool
    shape: OneOf["STRUCT", "VALUE"] | None
    items: tuple[SelectItem, ...]
    source: FromItem | None = None
    where: Expression | None = None
    group_by: GroupBy | None = None
    having: Expression | None = None
    qualify: Expression | None = None
    windows: tuple[tuple[Name, WindowSpec], ...] = ()


@dataclass(frozen=True, slots=True)
class SetOperation(Node):
    """UNION, INTERSECT or EXCEPT of two or more queries."""

    operator: OneOf["UNION", "INTERSECT", "EXCEPT"]
    is_distinct: bool
    operands: tuple["Select | Query", ...]


@dataclass(frozen=True, slots=True)
class Cte(Node):
    """One query of a WITH clause."""

    name: Name
    query: "Query"


@dataclass(frozen=True, slots=True)
class Query(Node):
    """A whole query."""

    ctes: tuple[Cte, ...]
    body: "Select | SetOperation | Query"
    order_by: tuple[OrderItem, ...] = ()
    limit: Expression | None = None
    offset: Expression | None = None
