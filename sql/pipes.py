"""Pipe syntax: the steps whose meaning can be proved, written as the SELECT that means the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sql.grammar import QueryGrammar
from sql.syntax import (
    Chain,
    Expression,
    FromItem,
    JoinItem,
    JoinStep,
    Name,
    Query,
    QueryItem,
    Select,
    SelectItem,
    Star,
    TableItem,
    UnnestItem,
)

ALLOWED: Final = "WHERE, EXTEND, SELECT, AS, JOIN, then ORDER BY, then LIMIT"


@dataclass(slots=True)
class _Stage:
    """What the steps so far mean: joined items and a filter, nothing selected yet."""

    source: FromItem
    where: tuple[Expression, ...] = ()

    def select(self, at: int, items: tuple[SelectItem, ...], *, is_distinct: bool = False) -> Query:
        where = None
        if self.where:
            operators = ("AND",) * (len(self.where) - 1)
            where = self.where[0] if len(self.where) == 1 else Chain(self.where[0].at, operators, self.where)
        return Query(at, (), Select(at, is_distinct, None, items, self.source, where))

    def alias(self) -> Name | None:
        """Return the one name under which the columns so far can be called, if there is one."""
        if isinstance(self.source, TableItem):
            return self.source.alias or self.source.path[-1]
        if isinstance(self.source, QueryItem | UnnestItem):
            return self.source.alias
        return None


class PipeGrammar(QueryGrammar):
    """Reads queries with steps after ``|>``."""

    def read_pipes(self, start: FromItem) -> Query:
        """Read every step after ``start`` and return the query that they mean."""
        stage = _Stage(start)
        at = start.at
        while self.is_symbol("|>"):
            step = self.take().end
            if self.accept_word("WHERE"):
                stage.where += (self.read_expression(),)
            elif self.accept_word("AS"):
                alias = self.expect_name()
                stage = _Stage(QueryItem(at, self._everything(at, stage), alias))
            elif self.is_word("EXTEND"):
                self.take()
                items = (SelectItem(step, Star(step, None), None), *self.read_items())
                stage = _Stage(QueryItem(at, stage.select(at, items), stage.alias()))
            elif self.accept_word("SELECT"):
                is_distinct = self.accept_word("DISTINCT") is not None
                query = stage.select(at, self.read_items(), is_distinct=is_distinct)
                stage = _Stage(QueryItem(at, query, None))
            elif self.is_word("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS"):
                self._join(stage)
            elif self.is_word("ORDER", "LIMIT"):
                return self._ordered(at, stage)
            else:
                self.refuse(
                    f"After |>, write {ALLOWED}.", "pipe_not_allowed", "Write the step as part of a SELECT."
                )
        return self._everything(at, stage)

    def _everything(self, at: int, stage: _Stage) -> Query:
        if isinstance(stage.source, QueryItem) and not stage.where:
            return stage.source.query
        return stage.select(at, (SelectItem(at, Star(at, None), None),))

    def _join(self, stage: _Stage) -> None:
        if self.is_word("RIGHT", "FULL") and stage.where:
            # What was filtered before such a join is not what WHERE filters after it.
            self.refuse("A filter is not allowed before this join.", "pipe_not_allowed", "Use a subquery.")
        steps = self.read_joins()
        first = stage.source
        before: tuple[JoinStep, ...] = ()
        if isinstance(first, JoinItem):
            before, first = first.steps, first.first
        elif isinstance(first, QueryItem) and first.alias is None:
            self.refuse("The table before this join needs a name.", "pipe_not_allowed", "|> AS name")
        stage.source = JoinItem(first.at, first, (*before, *steps))

    def _ordered(self, at: int, stage: _Stage) -> Query:
        """Read ORDER BY and LIMIT, after which nothing may stand: a later step might lose the order."""
        body = self._everything(at, stage)
        order = self.read_order() if self.accept_words("ORDER", "BY") else ()
        is_next = not order
        if order and self.accept_symbol("|>"):
            is_next = True
            if not self.is_word("LIMIT"):
                self.refuse("After ORDER BY, only LIMIT is allowed.", "pipe_not_allowed")
        limit = offset = None
        if is_next and self.accept_word("LIMIT"):
            limit = self.read_expression()
            offset = self.read_expression() if self.accept_word("OFFSET") else None
        if self.is_symbol("|>"):
            self.refuse("After LIMIT, no other step is allowed.", "pipe_not_allowed")
        return Query(at, (), body, order, limit, offset)
