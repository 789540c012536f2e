"""The grammar of GoogleSQL queries: one query and nothing but a query."""

from __future__ import annotations

from abc import abstractmethod

from sql.cursor import STATEMENTS, GrammarError
from sql.expressions import ExpressionGrammar
from sql.lexer import SourceText, Token
from sql.syntax import (
    Cte,
    Expression,
    FromItem,
    GroupBy,
    JoinItem,
    JoinStep,
    Name,
    Path,
    Query,
    QueryItem,
    Select,
    SelectItem,
    SetOperation,
    Star,
    TableItem,
    UnnestItem,
    WindowSpec,
)

__all__ = ["GrammarError", "read_statement"]


def read_statement(source: SourceText, tokens: list[Token]) -> Query:
    """Return the one query that ``tokens`` are.

    Raises:
        GrammarError: they are something else, or more than one statement.
    """
    from sql.pipes import PipeGrammar

    return PipeGrammar(source, tokens).read_statement()


class QueryGrammar(ExpressionGrammar):
    """Reads queries."""

    def read_statement(self) -> Query:
        """Read the whole text as one query, with an optional semicolon after it."""
        token = self.token
        if token.kind == "end":
            self.refuse("The query is empty.", "query_empty")
        if token.upper in STATEMENTS:
            self.refuse(f"{token.upper} is not allowed. Write one SELECT.", "statement_not_allowed")
        if not self.starts_query():
            self.refuse("Expected SELECT, WITH, FROM or '('")
        query = self.read_query()
        if self.accept_symbol(";"):
            if self.token.kind != "end":
                self.refuse("Only one query is allowed.", "several_statements")
        elif self.token.kind != "end":
            self._refuse_clause()
            self.refuse("Expected the end of the query")
        return query

    def _refuse_clause(self) -> None:
        """Say plainly what a clause that is known but not allowed is called."""
        word = self.token.upper
        following = self.peek().upper
        names = {
            "FOR": "FOR SYSTEM_TIME AS OF" if following in {"SYSTEM_TIME", "SYSTEM"} else "FOR UPDATE",
            "INTO": "SELECT INTO",
            "PIVOT": "PIVOT",
            "UNPIVOT": "UNPIVOT",
            "MATCH_RECOGNIZE": "MATCH_RECOGNIZE",
            "NATURAL": "NATURAL JOIN",
            "FETCH": "FETCH",
            "LATERAL": "LATERAL",
            "WITHIN": "WITHIN",
        }
        if word in names and self.token.kind == "name":
            self.refuse(f"{names[word]} is not allowed.", "clause_not_allowed")
        if word in STATEMENTS:
            self.refuse(f"{word} is not allowed inside a query.", "statement_not_allowed")

    # --- query ---------------------------------------------------------------------------------------------------

    def read_query(self) -> Query:
        """Read WITH, the body, ORDER BY and LIMIT."""
        self.enter()
        at = self.at
        ctes = self._read_ctes() if self.is_word("WITH") else ()
        if self.accept_word("FROM"):
            query = self.read_pipes(self.read_from())
            self._refuse_clause()
            self.leave()
            return query if not ctes else Query(at, ctes, query)
        body = self._read_set_operation()
        order = self.read_order() if self.accept_words("ORDER", "BY") else ()
        limit = offset = None
        if self.accept_word("LIMIT"):
            limit = self.read_expression()
            if self.accept_word("OFFSET"):
                offset = self.read_expression()
        if self.is_symbol("|>"):
            inner = (
                body
                if isinstance(body, Query) and not (order or limit)
                else Query(at, (), body, order, limit, offset)
            )
            query = self.read_pipes(QueryItem(at, inner, None))
            self.leave()
            return Query(at, ctes, query) if ctes else query
        self._refuse_clause()
        self.leave()
        if isinstance(body, Query) and not (ctes or order or limit):
            return body
        return Query(at, ctes, body, order, limit, offset)

    @abstractmethod
    def read_pipes(self, start: FromItem) -> Query:
        """Read the steps after ``|>``."""

    def _read_ctes(self) -> tuple[Cte, ...]:
        self.expect_word("WITH")
        if self.is_word("RECURSIVE"):
            self.refuse("WITH RECURSIVE is not allowed.", "clause_not_allowed")
        ctes = []
        while True:
            name = self.expect_name()
            self.expect_word("AS")
            self.expect_symbol("(")
            if self.token.upper in STATEMENTS:
                self.refuse(f"{self.token.upper} is not allowed inside a query.", "statement_not_allowed")
            ctes.append(Cte(name.at, name, self.read_query()))
            self.expect_symbol(")")
            if not self.accept_symbol(","):
                return tuple(ctes)

    def _read_set_operation(self) -> Select | SetOperation | Query:
        at = self.at
        operands = [self._read_operand()]
        operator: tuple[str, bool] | None = None
        while word := self.accept_word("UNION", "INTERSECT", "EXCEPT"):
            quantifier = self.accept_word("ALL", "DISTINCT")
            if quantifier is None:
                self.refuse(f"Expected ALL or DISTINCT after {word}")
            if operator is not None and operator != (word, quantifier == "DISTINCT"):
                self.refuse("Different set operations need parentheses", "set_operation_mixed")
            operator = (word, quantifier == "DISTINCT")
            if self.is_word("BY", "CORRESPONDING", "STRICT"):
                self.refuse(
                    "BY NAME, CORRESPONDING and STRICT are not allowed: write the columns in the same order.",
                    "clause_not_allowed",
                )
            operands.append(self._read_operand())
        if operator is None:
            return operands[0]
        if operator[0] != "UNION" and not operator[1]:
            self.refuse(f"{operator[0]} ALL is not allowed.", "clause_not_allowed", f"{operator[0]} DISTINCT")
        kind = operator[0]
        return SetOperation(at, kind, operator[1], tuple(operands))  # type: ignore[arg-type]

    def _read_operand(self) -> Select | Query:
        if self.accept_symbol("("):
            query = self.read_query()
            self.expect_symbol(")")
            return query
        return self._read_select()

    def _read_select(self) -> Select:
        if self.token.upper in STATEMENTS:
            self.refuse(f"{self.token.upper} is not allowed inside a query.", "statement_not_allowed")
        at = self.expect_word("SELECT").start
        if self.is_word("WITH"):
            self.refuse("SELECT WITH is not allowed.", "clause_not_allowed")
        quantifier = self.accept_word("ALL", "DISTINCT")
        shape = None
        if self.accept_word("AS"):
            shape = self.accept_word("STRUCT") or (
                "VALUE" if self.token.upper == "VALUE" and self.take() else None
            )
            if shape is None:
                self.refuse("Only AS STRUCT and AS VALUE are allowed", "clause_not_allowed")
        items = self.read_items()
        self._refuse_clause()
        source = self.read_from() if self.accept_word("FROM") else None
        self._refuse_clause()
        where = self.read_expression() if self.accept_word("WHERE") else None
        group = self._read_group() if self.accept_words("GROUP", "BY") else None
        having = self.read_expression() if self.accept_word("HAVING") else None
        qualify = self.read_expression() if self.accept_word("QUALIFY") else None
        windows = self._read_windows() if self.accept_word("WINDOW") else ()
        kind = "STRUCT" if shape == "STRUCT" else "VALUE" if shape else None
        return Select(
            at, quantifier == "DISTINCT", kind, items, source, where, group, having, qualify, windows  # type: ignore[arg-type]
        )  # fmt: skip

    def read_items(self) -> tuple[SelectItem, ...]:
        """Read a select list, up to an optional trailing comma."""
        items = [self._read_item()]
        while self.accept_symbol(","):
            if self.is_word("FROM") or self.token.kind == "end" or self.is_symbol(")", ";", "|>"):
                break
            items.append(self._read_item())
        return tuple(items)

    def _read_item(self) -> SelectItem:
        at = self.at
        if self.accept_symbol("*"):
            return SelectItem(at, self._read_star(at, None), None)
        value = self._read_starred()
        if isinstance(value, Star):
            return SelectItem(at, value, None)
        return SelectItem(at, value, self._read_alias())

    def _read_starred(self) -> Expression | Star:
        """Read an expression, or ``path.*``."""
        at = self.at
        if self.is_name():
            ahead = 1
            while self.follows(".", ahead) and self.peek(ahead + 1).kind in {"name", "quoted"}:
                ahead += 2
            if self.follows(".", ahead) and self.follows("*", ahead + 1):
                names = [self.expect_name()]
                while self.accept_symbol(".") and not self.is_symbol("*"):
                    names.append(self.expect_field())
                self.expect_symbol("*")
                return self._read_star(at, Path(at, tuple(names)))
        return self.read_expression()

    def _read_star(self, at: int, path: Expression | None) -> Star:
        excluded: list[Name] = []
        replaced: list[tuple[Expression, Name]] = []
        if self.is_word("EXCEPT") and self.follows("("):
            self.take()
            self.take()
            excluded.append(self.expect_name())
            while self.accept_symbol(",") and not self.is_symbol(")"):
                excluded.append(self.expect_name())
            self.expect_symbol(")")
        if self.is_word("REPLACE") and self.follows("("):
            self.take()
            self.take()
            while True:
                value = self.read_expression()
                self.accept_word("AS")
                replaced.append((value, self.expect_name()))
                if not self.accept_symbol(",") or self.is_symbol(")"):
                    break
            self.expect_symbol(")")
        return Star(at, path, tuple(excluded), tuple(replaced))

    def _read_alias(self) -> Name | None:
        if self.accept_word("AS"):
            return self.expect_name()
        is_clause = self.follows("(") or self.peek().upper in {"INCLUDE", "EXCLUDE"}
        if is_clause and self.is_word("PIVOT", "UNPIVOT", "MATCH_RECOGNIZE"):
            return None
        return self.expect_name() if self.is_name() else None

    # --- from ----------------------------------------------------------------------------------------------------

    def read_from(self) -> FromItem:
        """Read what stands after FROM."""
        self.enter()
        at = self.at
        first = self._read_from_item()
        steps = self.read_joins()
        self.leave()
        return first if not steps else JoinItem(at, first, steps)

    def read_joins(self) -> tuple[JoinStep, ...]:
        """Read every join that follows."""
        steps: list[JoinStep] = []
        while True:
            self._refuse_clause()
            place = self.at
            if self.accept_symbol(","):
                steps.append(JoinStep(place, "CROSS", self._read_from_item()))
                continue
            kind = self._accept_join()
            if kind is None:
                break
            item = self._read_from_item()
            on = None
            using: list[Name] = []
            if self.accept_word("ON"):
                on = self.read_expression()
            elif self.accept_word("USING"):
                self.expect_symbol("(")
                using.append(self.expect_name())
                while self.accept_symbol(","):
                    using.append(self.expect_name())
                self.expect_symbol(")")
            elif kind != "CROSS" and not isinstance(item, UnnestItem | TableItem):
                self.refuse("Expected ON or USING")
            steps.append(JoinStep(place, kind, item, on, tuple(using)))  # type: ignore[arg-type]
        return tuple(steps)

    def _accept_join(self) -> str | None:
        if self.accept_word("JOIN"):
            return "INNER"
        if self.accept_words("INNER", "JOIN"):
            return "INNER"
        if self.accept_words("CROSS", "JOIN"):
            return "CROSS"
        for side in ("LEFT", "RIGHT", "FULL"):
            if self.accept_words(side, "JOIN") or self.accept_words(side, "OUTER", "JOIN"):
                return side
        return None

    def _read_from_item(self) -> FromItem:
        at = self.at
        if self.is_symbol("("):
            if self.starts_query():
                return self._read_query_item()
            return self._read_joined()
        if self.accept_word("UNNEST"):
            self.expect_symbol("(")
            array = self.read_expression()
            if self.is_symbol(","):
                self.refuse("UNNEST needs exactly one array here.", "clause_not_allowed")
            self.expect_symbol(")")
            alias = self._read_alias()
            has_offset, offset = self._read_offset()
            return UnnestItem(at, array, alias, offset, has_offset)
        self._refuse_clause()
        return self._read_table()

    def _read_joined(self) -> FromItem:
        """Read joined items in brackets."""
        self.take()
        item = self.read_from()
        if not isinstance(item, JoinItem):
            self.refuse("Expected a join inside these brackets")
        self.expect_symbol(")")
        return item

    def _read_query_item(self) -> FromItem:
        """Read a query in FROM, or joined items in brackets that begin with one."""
        at = self.at
        if self.follows("(") and not self._is_query_in_brackets():
            return self._read_joined()
        self.take()
        query = self.read_query()
        self.expect_symbol(")")
        alias = self._read_alias()
        return QueryItem(at, query, alias)

    def _is_query_in_brackets(self) -> bool:
        """Look behind the bracket that closes the inner query: an alias or a join means items, not one query."""
        ahead, depth = 1, 0
        while self.peek(ahead).kind != "end":
            token = self.peek(ahead)
            if token.kind == "symbol":
                depth += (token.value == "(") - (token.value == ")")
                if depth == 0 and token.value == ")":
                    break
            ahead += 1
        following = self.peek(ahead + 1)
        return following.upper in {"UNION", "INTERSECT", "EXCEPT", "ORDER", "LIMIT"} or following.value == ")"

    def _read_offset(self) -> tuple[bool, Name | None]:
        if not self.accept_words("WITH", "OFFSET"):
            return False, None
        return True, self._read_alias()

    def _read_table(self) -> TableItem:
        at = self.at
        names = [self.accept_dashed() or self.expect_name()]
        while self.accept_symbol("."):
            if self.is_symbol("*"):
                self.refuse("Wildcard tables are not allowed.", "table_not_allowed")
            names.append(self.expect_field())
        if self.is_symbol("("):
            self.refuse("Table functions are not allowed.", "table_function")
        if self.is_symbol("*"):
            self.refuse("Wildcard tables are not allowed.", "table_not_allowed")
        alias = self._read_alias()
        if alias is None:
            self._refuse_clause()
        has_offset, offset = self._read_offset()
        sample = None
        if self.accept_word("TABLESAMPLE"):
            self.expect_field()
            if self.peek(-1).upper != "SYSTEM":
                self.refuse("Only TABLESAMPLE SYSTEM is allowed.", "clause_not_allowed")
            self.expect_symbol("(")
            sample = self.read_expression()
            if self.expect_field().text.upper() != "PERCENT":
                self.refuse("TABLESAMPLE needs a percentage.", "clause_not_allowed")
            self.expect_symbol(")")
        return TableItem(at, tuple(names), alias, sample, offset, has_offset)

    # --- the rest ------------------------------------------------------------------------------------------------

    def _read_group(self) -> GroupBy:
        at = self.at
        if self.accept_word("ALL"):
            return GroupBy(at, (), is_all=True)
        if self.is_word("ROLLUP", "CUBE", "GROUPING"):
            self.refuse(f"{self.token.upper} is not allowed.", "clause_not_allowed", "GROUP BY columns")
        keys = [self.read_expression()]
        while self.accept_symbol(","):
            keys.append(self.read_expression())
        return GroupBy(at, tuple(keys))

    def _read_windows(self) -> tuple[tuple[Name, WindowSpec], ...]:
        windows = []
        while True:
            name = self.expect_name()
            self.expect_word("AS")
            if self.is_name():
                base = self.expect_name()
                windows.append((name, WindowSpec(base.at, base)))
            else:
                windows.append((name, self.read_window()))
            if not self.accept_symbol(","):
                return tuple(windows)
