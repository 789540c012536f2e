"""The grammar of GoogleSQL expressions, by recursive descent: one pass, no way back, flat chains."""

from __future__ import annotations

from typing import Final

from sql.cursor import Cursor
from sql.syntax import (
    Argument,
    ArrayLiteral,
    Between,
    Call,
    Case,
    Cast,
    Chain,
    Comparison,
    Constant,
    Element,
    Expression,
    Extract,
    Field,
    FrameBound,
    In,
    Interval,
    Is,
    Lambda,
    LikeAny,
    Name,
    NamedArgument,
    OrderItem,
    Path,
    Placeholder,
    Query,
    StructLiteral,
    Subquery,
    TypeName,
    Unary,
    WindowSpec,
)

_LITERAL_TYPES: Final = {
    "DATE": "DATE", "DATETIME": "DATETIME", "TIMESTAMP": "TIMESTAMP", "TIME": "TIME", "NUMERIC": "NUMERIC",
    "DECIMAL": "NUMERIC", "BIGNUMERIC": "BIGNUMERIC", "BIGDECIMAL": "BIGNUMERIC", "JSON": "JSON",
}  # fmt: skip
_BARE_CALLS: Final = frozenset({"CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_DATETIME", "CURRENT_TIME"})
_RESERVED_CALLS: Final = frozenset({"IF", "LEFT", "RIGHT", "GROUPING", "RANGE", "COLLATE"})
_LEVELS: Final = (("|",), ("^",), ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "||"))
_COMPARISONS: Final = ("=", "!=", "<>", "<", "<=", ">", ">=")
_PARAMETERISED: Final = frozenset({"STRING", "BYTES", "NUMERIC", "DECIMAL", "BIGNUMERIC", "BIGDECIMAL"})


class ExpressionGrammar(Cursor):
    """Reads expressions; the queries inside them are read by the subclass."""

    def read_query(self) -> Query:
        """Read a query up to what can't belong to it."""
        raise NotImplementedError

    def starts_query(self) -> bool:
        """Say whether a query starts here, perhaps after opening brackets."""
        ahead = 0
        while self.follows("(", ahead):
            ahead += 1
        return self.peek(ahead).upper in {"SELECT", "WITH", "FROM"}

    # --- operators, loosest first --------------------------------------------------------------------------------

    def read_expression(self) -> Expression:
        """Read one expression."""
        self.enter()
        first = self._read_and()
        operands = [first]
        while self.accept_word("OR"):
            operands.append(self._read_and())
        self.leave()
        return first if len(operands) == 1 else Chain(first.at, ("OR",) * (len(operands) - 1), tuple(operands))

    def _read_and(self) -> Expression:
        first = self._read_not()
        operands = [first]
        while self.accept_word("AND"):
            operands.append(self._read_not())
        return first if len(operands) == 1 else Chain(first.at, ("AND",) * (len(operands) - 1), tuple(operands))

    def _read_not(self) -> Expression:
        if not self.is_word("NOT"):
            return self._read_comparison()
        at = self.take().start
        self.enter()
        operand = self._read_not()
        self.leave()
        return Unary(at, "NOT", operand)

    def _read_comparison(self) -> Expression:
        left = self._read_level(0)
        if operator := self.accept_symbol(*_COMPARISONS):
            return Comparison(left.at, "!=" if operator == "<>" else operator, left, self._read_level(0))
        if self.is_word("IS"):
            self.take()
            return self._read_is(left)
        negated = False
        if self.is_word("NOT") and self.peek().upper in {"LIKE", "IN", "BETWEEN"}:
            self.take()
            negated = True
        word = self.accept_word("LIKE", "IN", "BETWEEN")
        if word == "LIKE":
            return self._read_like(left, negated=negated)
        if word == "IN":
            return self._read_in(left, negated=negated)
        if word == "BETWEEN":
            low = self._read_level(0)
            self.expect_word("AND")
            return Between(left.at, left, negated, low, self._read_level(0))
        return left

    def _read_is(self, left: Expression) -> Expression:
        negated = self.accept_word("NOT") is not None
        if self.accept_word("DISTINCT"):
            self.expect_word("FROM")
            operator = "IS NOT DISTINCT FROM" if negated else "IS DISTINCT FROM"
            return Comparison(left.at, operator, left, self._read_level(0))
        what = self.accept_word("NULL", "TRUE", "FALSE", "UNKNOWN")
        if what is None:
            self.refuse("Expected NULL, TRUE or FALSE")
        return Is(left.at, left, negated, what)

    def _read_like(self, left: Expression, *, negated: bool) -> Expression:
        if quantifier := self.accept_word("ANY", "SOME", "ALL"):
            if self.is_word("UNNEST"):
                self.refuse("LIKE ANY takes patterns in parentheses here", "clause_not_allowed")
            self.expect_symbol("(")
            patterns = self._read_list(")")
            return LikeAny(left.at, left, quantifier, patterns, negated)
        return Comparison(left.at, "NOT LIKE" if negated else "LIKE", left, self._read_level(0))

    def _read_in(self, left: Expression, *, negated: bool) -> Expression:
        if self.accept_word("UNNEST"):
            self.expect_symbol("(")
            array = self.read_expression()
            self.expect_symbol(")")
            return In(left.at, left, negated, array=array)
        if not self.is_symbol("("):
            self.refuse("Expected '(' or UNNEST after IN")
        if self.starts_query():
            self.take()
            query = self.read_query()
            self.expect_symbol(")")
            return In(left.at, left, negated, query=query)
        self.take()
        return In(left.at, left, negated, items=self._read_list(")"))

    def _read_level(self, level: int) -> Expression:
        if level == len(_LEVELS):
            return self._read_unary()
        first = self._read_level(level + 1)
        operands, operators = [first], []
        while True:
            operator = self._accept_operator(level)
            if operator is None:
                break
            operators.append(operator)
            operands.append(self._read_level(level + 1))
        return first if not operators else Chain(first.at, tuple(operators), tuple(operands))

    def _accept_operator(self, level: int) -> str | None:
        if ">>" in _LEVELS[level] and self.is_symbol(">"):
            # The lexer leaves >> in two, for ARRAY<STRUCT<...>>.
            following = self.peek()
            if following.kind == "symbol" and following.value == ">" and following.start == self.token.end:
                self.take()
                self.take()
                return ">>"
        return self.accept_symbol(*_LEVELS[level])

    def _read_unary(self) -> Expression:
        if not self.is_symbol("-", "+", "~"):
            return self._read_postfix()
        token = self.take()
        self.enter()
        operand = self._read_unary()
        self.leave()
        if token.value == "-" and isinstance(operand, Constant) and operand.type in {"INT64", "FLOAT64"}:
            written = str(operand.value)
            return Constant(token.start, operand.type, written[1:] if written.startswith("-") else f"-{written}")
        return Unary(token.start, str(token.value), operand)

    def _read_postfix(self) -> Expression:
        base = self._read_primary()
        while True:
            if self.is_symbol("."):
                self.take()
                if self.is_symbol("*"):
                    self.refuse("'.*' stands in a select list only", "star_not_allowed")
                base = Field(base.at, base, self.expect_field())
            elif self.is_symbol("["):
                base = self._read_element(base)
            else:
                return base

    def _read_element(self, base: Expression) -> Element:
        self.expect_symbol("[")
        mode = ""
        if self.is_word("OFFSET", "ORDINAL", "SAFE_OFFSET", "SAFE_ORDINAL") and self.follows("("):
            mode = self.take().upper
            self.expect_symbol("(")
        index = self.read_expression()
        if mode:
            self.expect_symbol(")")
        self.expect_symbol("]")
        return Element(base.at, base, mode, index)

    # --- primaries -----------------------------------------------------------------------------------------------

    def _read_primary(self) -> Expression:  # noqa: RET503 - refuse never returns
        token = self.token
        if token.kind in {"string", "bytes", "integer", "float"}:
            self.take()
            kinds = {"string": "STRING", "bytes": "BYTES", "integer": "INT64", "float": "FLOAT64"}
            return Constant(token.start, kinds[token.kind], token.value)
        if token.kind == "parameter":
            self.take()
            return Placeholder(token.start, str(token.value))
        if self.is_symbol("("):
            return self._read_parentheses()
        if self.is_symbol("["):
            self.take()
            return ArrayLiteral(token.start, None, self._read_list("]"))
        if token.kind == "quoted":
            return self._read_path()
        if token.kind == "name":
            return self._read_word()
        self.refuse("Expected an expression")

    def _read_parentheses(self) -> Expression:
        at = self.at
        if self.starts_query():
            self.take()
            query = self.read_query()
            self.expect_symbol(")")
            return Subquery(at, "SCALAR", query)
        self.take()
        first = self.read_expression()
        if self.accept_symbol(")"):
            return first
        self.expect_symbol(",")
        rest = self._read_list(")")
        return StructLiteral(at, None, tuple((item, None) for item in (first, *rest)))

    def _read_word(self) -> Expression:
        token = self.token
        word, at = token.upper, token.start
        if word in {"TRUE", "FALSE", "NULL"}:
            self.take()
            return Constant(at, "NULL" if word == "NULL" else "BOOL", None if word == "NULL" else word == "TRUE")
        if word in _LITERAL_TYPES and self.peek().kind == "string":
            self.take()
            return Constant(at, _LITERAL_TYPES[word], self.take().value)
        reader = {
            "CASE": self._read_case,
            "CAST": self._read_cast,
            "SAFE_CAST": self._read_cast,
            "EXTRACT": self._read_extract,
            "INTERVAL": self._read_interval,
            "EXISTS": self._read_exists,
            "ARRAY": self._read_array,
            "STRUCT": self._read_struct,
        }.get(word)
        if reader is not None and (word != "SAFE_CAST" or self.follows("(")):
            return reader()
        if word in _BARE_CALLS and not self.follows("("):
            self.take()
            return Call(at, (word,), ())
        if word in _RESERVED_CALLS and self.follows("("):
            self.take()
            return self._read_call(at, (word,))
        if word == "NEW":
            self.refuse("NEW makes protocol buffers, which the archive has none of.", "clause_not_allowed")
        if not self.is_name():
            self.refuse("Expected an expression")
        return self._read_path()

    def _read_path(self) -> Expression:
        names = [self.expect_name()]
        while self.is_symbol(".") and not self.follows("*"):
            self.take()
            names.append(self.expect_field())
        if self.is_symbol("("):
            if any(name.is_quoted for name in names):
                self.refuse("A function's name can't be quoted here.", "function_not_allowed")
            return self._read_call(names[0].at, tuple(name.text.upper() for name in names))
        return Path(names[0].at, tuple(names))

    def _read_list(self, closing: str) -> tuple[Expression, ...]:
        items: list[Expression] = []
        if self.accept_symbol(closing):
            return ()
        while True:
            items.append(self.read_expression())
            if self.accept_symbol(closing):
                return tuple(items)
            self.expect_symbol(",")

    def _read_case(self) -> Expression:
        at = self.take().start
        self.enter()
        operand = None if self.is_word("WHEN") else self.read_expression()
        branches = []
        self.expect_word("WHEN")
        while True:
            condition = self.read_expression()
            self.expect_word("THEN")
            branches.append((condition, self.read_expression()))
            if not self.accept_word("WHEN"):
                break
        otherwise = self.read_expression() if self.accept_word("ELSE") else None
        self.expect_word("END")
        self.leave()
        return Case(at, operand, tuple(branches), otherwise)

    def _read_cast(self) -> Expression:
        token = self.take()
        self.expect_symbol("(")
        operand = self.read_expression()
        self.expect_word("AS")
        kind = self.read_type()
        form = zone = None
        if self.accept_word("FORMAT"):
            form = self.read_expression()
            if self.accept_words("AT", "TIME", "ZONE"):
                zone = self.read_expression()
        self.expect_symbol(")")
        return Cast(token.start, operand, kind, token.upper == "SAFE_CAST", form, zone)

    def _read_extract(self) -> Expression:
        at = self.take().start
        self.expect_symbol("(")
        part = self._read_part()
        self.expect_word("FROM")
        operand = self.read_expression()
        zone = self.read_expression() if self.accept_words("AT", "TIME", "ZONE") else None
        self.expect_symbol(")")
        return Extract(at, part, operand, zone)

    def _read_part(self) -> str:
        """Read a date part: DAY, or WEEK(MONDAY)."""
        part = self.expect_name().text.upper()
        if part == "WEEK" and self.accept_symbol("("):
            part = f"WEEK({self.expect_name().text.upper()})"
            self.expect_symbol(")")
        return part

    def _read_interval(self) -> Expression:
        at = self.take().start
        amount = self._read_level(0)
        unit = self._read_part()
        last = self._read_part() if self.accept_word("TO") else None
        return Interval(at, amount, unit, last)

    def _read_exists(self) -> Expression:
        at = self.take().start
        if not (self.is_symbol("(") and self.starts_query()):
            self.refuse("Expected a query in parentheses after EXISTS")
        return self._read_subquery(at, "EXISTS")

    def _read_subquery(self, at: int, kind: str) -> Subquery:
        self.expect_symbol("(")
        query = self.read_query()
        self.expect_symbol(")")
        return Subquery(at, "EXISTS" if kind == "EXISTS" else "ARRAY", query)

    def _read_array(self) -> Expression:
        at = self.at
        if self.follows("("):
            self.take()
            return self._read_subquery(at, "ARRAY")
        element = None
        if self.follows("<"):
            element = self.read_type().arguments[0]
        else:
            self.take()
        self.expect_symbol("[")
        return ArrayLiteral(at, element, self._read_list("]"))

    def _read_struct(self) -> Expression:
        at = self.at
        kind = None
        if self.follows("<"):
            kind = self.read_type()
        else:
            self.take()
        self.expect_symbol("(")
        items: list[tuple[Expression, Name | None]] = []
        while not self.accept_symbol(")"):
            if items:
                self.expect_symbol(",")
            value = self.read_expression()
            items.append((value, self.expect_name() if self.accept_word("AS") else None))
        return StructLiteral(at, kind, tuple(items))

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
                    self.refuse(f"{name} takes no parameters")
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

    def _read_call(self, at: int, name: tuple[str, ...]) -> Expression:
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
            self.refuse("A query as an argument stands in parentheses")
        if self.is_word("WEEK") and self.follows("(") and self.follows(")", 3):
            return Path(at, (Name(at, self._read_part()),))
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
