"""The grammar of GoogleSQL expressions, by recursive descent: one pass, no way back, flat chains."""

from __future__ import annotations

from typing import Final

from sql.call_grammar import CallGrammar
from sql.syntax import (
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
    FieldAccess,
    In,
    Interval,
    Is,
    LikeAny,
    Name,
    Path,
    Placeholder,
    StructLiteral,
    Subquery,
    Unary,
)

_LITERAL_TYPES: Final = {
    "DATE": "DATE", "DATETIME": "DATETIME", "TIMESTAMP": "TIMESTAMP", "TIME": "TIME", "NUMERIC": "NUMERIC",
    "DECIMAL": "NUMERIC", "BIGNUMERIC": "BIGNUMERIC", "BIGDECIMAL": "BIGNUMERIC", "JSON": "JSON",
}  # fmt: skip
_BARE_CALLS: Final = frozenset({"CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_DATETIME", "CURRENT_TIME"})
_RESERVED_CALLS: Final = frozenset({"IF", "LEFT", "RIGHT", "GROUPING", "RANGE", "COLLATE"})
_LEVELS: Final = (("|",), ("^",), ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "||"))
_COMPARISONS: Final = ("=", "!=", "<>", "<", "<=", ">", ">=")


class ExpressionGrammar(CallGrammar):
    """Reads expressions; the queries inside them are read by the subclass."""

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
                self.refuse("LIKE ANY needs patterns in parentheses here", "clause_not_allowed")
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
        # A number right behind its sign is one literal; behind a parenthesis or another sign it is computed.
        is_literal = token.value == "-" and self.token.kind in {"integer", "float"}
        self.enter()
        operand = self._read_unary()
        self.leave()
        if is_literal and isinstance(operand, Constant):
            return Constant(token.start, operand.type, f"-{operand.value!s}")
        return Unary(token.start, str(token.value), operand)

    def _read_postfix(self) -> Expression:
        base = self._read_primary()
        while True:
            if self.is_symbol("."):
                self.take()
                if self.is_symbol("*"):
                    self.refuse("'.*' is allowed only in a select list", "star_not_allowed")
                base = FieldAccess(base.at, base, self.expect_field())
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
            return self.read_call(at, (word,))
        if word == "NEW":
            self.refuse("NEW is not allowed. It creates protocol buffers.", "clause_not_allowed")
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
            return self.read_call(names[0].at, tuple(name.text.upper() for name in names))
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
        part = self.read_part()
        self.expect_word("FROM")
        operand = self.read_expression()
        zone = self.read_expression() if self.accept_words("AT", "TIME", "ZONE") else None
        self.expect_symbol(")")
        return Extract(at, part, operand, zone)

    def _read_interval(self) -> Expression:
        at = self.take().start
        amount = self._read_level(0)
        unit = self.read_part()
        last = self.read_part() if self.accept_word("TO") else None
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
