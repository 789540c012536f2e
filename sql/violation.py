"""What is wrong with a query: a stable code, a place, a plain sentence and a rewrite where there is one."""

from collections.abc import Sequence
from dataclasses import dataclass

from model.errors import RefeedError


@dataclass(frozen=True, slots=True)
class Fault:
    """A violation before its place is known: ``at`` is an offset into the text."""

    code: str
    message: str
    at: int
    rewrite: str | None = None


@dataclass(frozen=True, order=True, slots=True)
class Violation:
    """One reason why a query is refused; lines and columns count from 1, ``code`` is one of :mod:`sql.reasons`."""

    code: str
    message: str
    line: int
    column: int
    rewrite: str | None = None


class QueryRefusedError(RefeedError):
    """The query is not allowed."""

    code = "query_refused"

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        first = self.violations[0]
        more = len(self.violations) - 1
        message = f"The query is not allowed: line {first.line}, column {first.column}: {first.message}"
        if more:
            message += f" ({more} more)"
        super().__init__(
            message,
            violations=[
                {"code": v.code, "message": v.message, "line": v.line, "column": v.column, "rewrite": v.rewrite}
                for v in self.violations
            ],
        )

    def __reduce__(self) -> tuple[type["QueryRefusedError"], tuple[tuple[Violation, ...]]]:
        """Travel whole between processes: the gate reads queries in a worker."""
        return QueryRefusedError, (self.violations,)
