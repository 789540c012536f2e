"""The grammar of types, calls and windows: what stands between the brackets of an expression."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from sql.cursor import Cursor
from sql.syntax import (
    Argument,
    Call,
    Expression,
    FrameBound,
    Lambda,
    Name,
    NamedArgument,
    OrderItem,
    Path,
    Query,
    TypeName,
    WindowSpec,
)  # fmt: skip

_PARAMETERISED: Final = frozenset({"STRING", "BYTES", "NUMERIC", "DECIMAL", "BIGNUMERIC", "BIGDECIMAL"})


class CallGrammar(Cursor, ABC):
    """Reads types and calls; the expressions and queries inside them are read by the subclasses."""

    @abstractmethod
    def read_expression(self) -> Expression:
        """Read one expression."""

    @abstractmethod
    def read_query(self) -> Query:
        """Read a query up to what can't belong to it."""

    def starts_query(self) -> bool:
        """Say whether a query starts here, perhaps after opening brackets."""
        ahead = 0
        while self.follows("(", ahead):
            ahead += 1
        return self.peek(ahead).upper in {"SELECT", "WITH", "FROM"}

    def read_part(self) -> str:
        """Read a date part: DAY, or WEEK(MONDAY)."""
        part = self.expect_name().text.upper()
        if part == "WEEK" and self.accept_symbol("("):
            part = f"WEEK({self.expect_name().text.upper()})"
            self.expect_symbol(")")
        return part

    # --- types ---------------------------------------------------------------------------------------------------

    def read_type(self) -> TypeName:
        """Read a type: STRING, STRING(10), ARRAY<T>, STRUCT<a T, T>."""
        token = self.token
        if token.kind != "name":
            self.refuse("Expected a type")
        self.take()
        name = token.upper
        if name not in {"ARRAY", "STRUCT", "RANGE"}:
            if self.is_symbol("("):
                if name not in _PARAMETERISED:
                    self.refuse(f"{name} has no parameters")
                self.refuse("Types with a length or precision are not allowed.", "type_not_allowed", name)
            return TypeName(token.start, name)
        self.enter()
        self.expect_symbol("<")
        arguments: list[TypeName] = []
        fields: list[str | None] = []
        while True:
            following = self.peek()
            named = name == "STRUCT" and (
                following.kind in {"name", "quoted"} and not (self.is_word("ARRAY", "STRUCT", "RANGE"))
            )
            fields.append(self.expect_name().text if named else None)
            arguments.append(self.read_type())
            if not (name == "STRUCT" and self.accept_symbol(",")):
                break
        self.expect_symbol(">")
        self.leave()
        return TypeName(token.start, name, tuple(arguments), tuple(fields))

    # --- calls ---------------------------------------------------------------------------------------------------

    def read_call(self, at: int, name: tuple[str, ...]) -> Expression:
        """Read what follows the name of a function."""
        self.expect_symbol("(")
        if self.is_symbol("*") and self.follows(")"):
            self.take()
            self.take()
            return Call(at, name, (), is_star=True, over=self._read_over())
        distinct = self.accept_word("DISTINCT") is not None
        arguments: list[Argument] = []
        while not self._at_call_tail():
            if arguments:
                self.expect_symbol(",")
            arguments.append(self._read_argument())
        nulls = having = limit = None
        order: tuple[OrderItem, ...] = ()
        if word := self.accept_word("IGNORE", "RESPECT"):
            self.expect_word("NULLS")
            nulls = word
        if self.accept_word("HAVING"):
            which = self.accept_word("MAX", "MIN")
            if which is None:
                self.refuse("Expected MAX or MIN")
            having = (which, self.read_expression())
        if self.accept_words("ORDER", "BY"):
            order = self.read_order()
        if self.accept_word("LIMIT"):
            limit = self.read_expression()
        self.expect_symbol(")")
        if (word := self.accept_word("IGNORE", "RESPECT")) and nulls is None:
            self.expect_word("NULLS")
            nulls = word
        return Call(
            at,
            name,
            tuple(arguments),
            is_distinct=distinct,
            nulls="IGNORE" if nulls == "IGNORE" else "RESPECT" if nulls else None,
            having=("MAX" if having[0] == "MAX" else "MIN", having[1]) if having else None,
            order_by=order,
            limit=limit,
            over=self._read_over(),
        )

    def _at_call_tail(self) -> bool:
        return self.is_symbol(")") or self.is_word("IGNORE", "RESPECT", "HAVING", "ORDER", "LIMIT")

    def _read_argument(self) -> Argument:
        at = self.at
        if self.token.kind in {"name", "quoted"} and self.follows("=>"):
            name = self.expect_name()
            self.take()
            value = self._read_argument()
            if isinstance(value, NamedArgument):
                self.refuse("An argument has one name")
            return NamedArgument(at, name, value)
        if self.token.kind in {"name", "quoted"} and self.follows("->"):
            name = self.expect_name()
            self.take()
            return Lambda(at, (name,), self.read_expression())
        if self.is_symbol("("):
            ahead, names = 1, True
            while self.peek(ahead).kind in {"name", "quoted"} and self.follows(",", ahead + 1):
                ahead += 2
            names = self.peek(ahead).kind in {"name", "quoted"} and self.follows(")", ahead + 1)
            if names and self.follows("->", ahead + 2):
                self.take()
                parameters = [self.expect_name()]
                while self.accept_symbol(","):
                    parameters.append(self.expect_name())
                self.expect_symbol(")")
                self.expect_symbol("->")
                return Lambda(at, tuple(parameters), self.read_expression())
        if self.is_word("TABLE", "MODEL") and self.peek().kind in {"name", "quoted"}:
            self.refuse("Functions over tables and models are not allowed.", "function_not_allowed")
        if self.starts_query() and not self.is_symbol("("):
            # ARRAY_CONCAT(SELECT ...) is no GoogleSQL; a query as an argument stands in parentheses.
            self.refuse("A query as an argument needs its own parentheses")
        if self.is_word("WEEK") and self.follows("(") and self.follows(")", 3):
            return Path(at, (Name(at, self.read_part()),))
        return self.read_expression()

    def read_order(self) -> tuple[OrderItem, ...]:
        """Read what stands after ORDER BY."""
        items = []
        while True:
            key = self.read_expression()
            if self.is_word("COLLATE"):
                self.refuse("COLLATE is not allowed.", "clause_not_allowed")
            descending = self.accept_word("ASC", "DESC") == "DESC"
            first: bool | None = None
            if self.accept_word("NULLS"):
                word = self.accept_word("FIRST", "LAST")
                if word is None:
                    self.refuse("Expected FIRST or LAST")
                first = word == "FIRST"
            items.append(OrderItem(key.at, key, descending, first))
            if not self.accept_symbol(","):
                return tuple(items)

    def _read_over(self) -> WindowSpec | None:
        if not self.accept_word("OVER"):
            return None
        if self.is_name():
            name = self.expect_name()
            return WindowSpec(name.at, name)
        return self.read_window()

    def read_window(self) -> WindowSpec:
        """Read a window in parentheses."""
        at = self.expect_symbol("(").start
        base = self.expect_name() if self.is_name() else None
        partition: list[Expression] = []
        if self.accept_words("PARTITION", "BY"):
            partition.append(self.read_expression())
            while self.accept_symbol(","):
                partition.append(self.read_expression())
        order = self.read_order() if self.accept_words("ORDER", "BY") else ()
        frame = self.accept_word("ROWS", "RANGE")
        low = high = None
        if frame:
            if self.accept_word("BETWEEN"):
                low = self._read_frame_bound()
                self.expect_word("AND")
                high = self._read_frame_bound()
            else:
                low = self._read_frame_bound()
        self.expect_symbol(")")
        kind = "ROWS" if frame == "ROWS" else "RANGE" if frame else None
        return WindowSpec(at, base, tuple(partition), order, kind, low, high)  # type: ignore[arg-type]

    def _read_frame_bound(self) -> FrameBound:
        at = self.at
        if self.accept_words("CURRENT", "ROW"):
            return FrameBound(at, "CURRENT ROW", None)
        amount = None if self.accept_word("UNBOUNDED") else self.read_expression()
        word = self.accept_word("PRECEDING", "FOLLOWING")
        if word is None:
            self.refuse("Expected PRECEDING or FOLLOWING")
        if amount is None:
            return FrameBound(at, "UNBOUNDED PRECEDING" if word == "PRECEDING" else "UNBOUNDED FOLLOWING", None)
        return FrameBound(at, "PRECEDING" if word == "PRECEDING" else "FOLLOWING", amount)
