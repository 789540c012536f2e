"""The gate: a text is a query that may run, or every reason why not."""

from collections.abc import Mapping

from sql.binder import Policy
from sql.parameters import Parameter, parse_parameter, parse_parameters
from sql.verdict import OutputColumn, ValidatedQuery
from sql.violation import QueryRefusedError, Violation
from sql.worker import GATE

__all__ = [
    "OutputColumn",
    "Parameter",
    "Policy",
    "QueryRefusedError",
    "ValidatedQuery",
    "Violation",
    "parse_parameter",
    "parse_parameters",
    "validate_query",
]


def validate_query(text: str, parameters: Mapping[str, Parameter], policy: Policy) -> ValidatedQuery:
    """Return ``text`` as a query that may run under ``policy``.

    The query is read in a process of its own that is kept warm and killed when it does not answer, so a
    query can neither crash nor hang the caller; a worker that was killed means "refused".

    Raises:
        QueryRefusedError: it may not run; every violation is in it, with its place and a way out where there
            is one.

    Example:
        >>> from datetime import UTC, datetime
        >>> policy = Policy("backup.messages", None, datetime(2026, 1, 3, tzinfo=UTC))
        >>> query = validate_query("SELECT * FROM backup.messages WHERE _PARTITIONDATE = '2026-01-02'", {}, policy)
        >>> query.window.start.isoformat(), query.rewrites_data
        ('2026-01-02T00:00:00+00:00', False)
    """
    return GATE.validate(text, parameters, policy)
