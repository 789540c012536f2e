"""Checks a query while it is being written: the gate's findings with their edits, and what the query may read."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from backfill.plan.plan import text_warnings
from model.errors import RequestInvalidError
from model.query_parameter import QueryParameter
from model.table import ARCHIVE_COLUMNS, PARTITION_DATE, PARTITION_TIME, TableSchema
from sql.check import check_query, render_finding
from sql.datatypes import ATTRIBUTES
from sql.edits import PlacedViolation, find_edits
from sql.validate import Policy, QueryRefusedError, ValidatedQuery
from sql.violation import Violation

# Where a finding is from: the gate refuses the query everywhere, the warehouse only this deployment's.
FindingSource = Literal["gate", "warehouse"]


def check_replay_query(
    query: str,
    parameters: Mapping[str, QueryParameter],
    policy: Policy,
    check: Callable[[ValidatedQuery], None],
) -> dict[str, Any]:
    """Return the verdict on a query of a replay in the API's shape; nothing is run and nobody is asked.

    ``check`` raises where the warehouse can't answer what the gate lets through.

    Raises:
        RequestInvalidError: it holds a text that UTF-8 can't hold.
    """
    try:
        json.dumps([query, dict(parameters)], ensure_ascii=False).encode()
    except UnicodeEncodeError as exc:
        raise RequestInvalidError.of(
            "text_invalid", "A string contains an unpaired surrogate, so it is not valid Unicode."
        ) from exc
    report = check_query(query, parameters, policy, with_edits=True)
    findings = _render(report.findings, "gate")
    if report.query is not None:
        findings = _render(_place(query, _warehouse_violations(report.query, check), policy), "warehouse")
    document = report.to_json()
    return {
        "passes": not findings,
        "findings": findings,
        "rewritten": document.get("rewritten"),
        "window": document.get("window"),
        "columns": document.get("columns", []),
        "warnings": [] if report.query is None else text_warnings(report.query),
        "reads": document.get("tables", []),
        "tables": _render_tables(policy),
    }


def _render_tables(policy: Policy) -> list[dict[str, Any]]:
    """Return in the API's shape every table that a query may read and that is there, the archive first."""
    columns = [
        (column.name, str(ATTRIBUTES) if column.type == "ATTRIBUTES" else column.type)
        for column in ARCHIVE_COLUMNS
    ]
    found = [
        _render_table(
            policy.archive_table, TableSchema(policy.archive_table, tuple(columns), "day"), is_archive=True
        )
    ]
    others = [name for name in policy.extra_tables if name not in policy.missing_tables]
    return found + [_render_table(name, policy.schema(name), is_archive=False) for name in others]


def _render_table(name: str, schema: TableSchema | None, *, is_archive: bool) -> dict[str, Any]:
    """Return a table with its pseudo columns; without a schema nobody knows its columns before the query runs."""
    columns: list[tuple[str, str]] | None = None
    if schema is not None:
        pseudo = [(PARTITION_TIME, "TIMESTAMP"), (PARTITION_DATE, "DATE")] if schema.partitioning else []
        columns = [*schema.columns, *pseudo]
    return {
        "table": name,
        "is_archive": is_archive,
        "columns": None if columns is None else [{"name": column, "type": kind} for column, kind in columns],
    }


def _warehouse_violations(query: ValidatedQuery, check: Callable[[ValidatedQuery], None]) -> Sequence[Violation]:
    try:
        check(query)
    except QueryRefusedError as exc:
        return exc.violations
    return ()


def _place(text: str, violations: Sequence[Violation], policy: Policy) -> Sequence[PlacedViolation]:
    """Return the violations with their places; the gate has nothing to mend in a query that it lets through."""
    return find_edits(text, violations, lambda _text: violations, archive=policy.archive_table, now=policy.now)


def _render(findings: Sequence[PlacedViolation], source: FindingSource) -> list[dict[str, Any]]:
    return [{**render_finding(finding), "source": source} for finding in findings]
