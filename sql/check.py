"""What ``refeed check`` says: the gate's verdict on one query or on thousands, the same as the API's."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sql.binder import Policy
from sql.edits import PlacedViolation, apply_edits, find_edits, fitting_edits
from sql.parameters import parse_parameters
from sql.validate import validate_query
from sql.verdict import ValidatedQuery
from sql.violation import QueryRefusedError, Violation
from sql.worker import GATE

ACCEPTED: Final = 0
REFUSED: Final = 2


@dataclass(frozen=True, slots=True)
class Report:
    """A verdict; ``milliseconds`` is what the gate took, ``lake_violations`` what the lake's engine can't do.

    ``findings`` are the violations with their edits, of a report that was asked for them. ``rewritten`` is the
    text with all of these edits, or with those of the warnings of an accepted query; ``is_mended``: it may run.
    """

    query: ValidatedQuery | None
    violations: tuple[Violation, ...]
    milliseconds: float
    findings: tuple[PlacedViolation, ...] = ()
    rewritten: str | None = None
    is_mended: bool = False

    @property
    def exit_code(self) -> int:
        """What the command ends with: 0 for accepted, 2 for refused."""
        return REFUSED if self.query is None else ACCEPTED

    @property
    def lake_violations(self) -> tuple[Violation, ...]:
        """What of an accepted query only BigQuery can do."""
        return self.query.lake_violations if self.query else ()

    @property
    def warnings(self) -> tuple[Violation, ...]:
        """What an accepted query may not have been meant to say."""
        return tuple(warning.violation for warning in self.query.warnings) if self.query else ()

    def to_json(self) -> dict[str, Any]:
        """Return the report for machines."""
        report: dict[str, Any] = {
            "verdict": "reject" if self.query is None else "accept",
            "codes": [violation.code for violation in self.violations],
            "violations": [render_finding(finding) for finding in self.findings]
            or [_violation_json(violation) for violation in self.violations],
            "ms": round(self.milliseconds, 3),
        }
        if self.rewritten is not None:
            report["rewritten"] = {"query": self.rewritten, "passes": self.is_mended}
        if self.query is not None:
            window = self.query.window
            report["window"] = window and {"from": window.start.isoformat(), "to": window.end.isoformat()}
            report["tables"] = list(self.query.tables)
            report["columns"] = [{"name": column.name, "type": column.type} for column in self.query.output]
            report["rewrites"] = {"data": self.query.rewrites_data, "attributes": self.query.rewrites_attributes}
            report["warnings"] = [render_finding(warning) for warning in self.query.warnings]
            report["lake"] = [_violation_json(violation) for violation in self.query.lake_violations]
        return report

    def to_text(self) -> str:
        """Return the report for people, one violation a line."""
        if self.query is None:
            lines = [f"refused: {len(self.violations)} violation(s)"]
            lines += [_line(violation) for violation in self.violations]
            return "\n".join(lines)
        window = self.query.window
        lines = ["accepted"]
        if window is not None:
            lines.append(f"  window   {window.start.isoformat()} to {window.end.isoformat()}")
        lines.append(f"  columns  {', '.join(column.name for column in self.query.output)}")
        if self.query.rewrites_data or self.query.rewrites_attributes:
            what = [name for name in ("data", "attributes") if getattr(self.query, f"rewrites_{name}")]
            lines.append(f"  changed  {' and '.join(what)}: these messages are not raw")
        lines += [_line(violation) for violation in (*self.warnings, *self.lake_violations)]
        return "\n".join(lines)


def check_query(text: str, parameters: Mapping[str, Any], policy: Policy, *, with_edits: bool = False) -> Report:
    """Return the verdict on one query; ``parameters`` have the API's shape.

    With ``with_edits`` the gate reads the query again with each edit that might mend a violation.

    Example:
        >>> from datetime import UTC, datetime
        >>> policy = Policy("backup.messages", None, datetime(2026, 1, 1, tzinfo=UTC))
        >>> report = check_query("DROP TABLE x", {}, policy)
        >>> report.exit_code, report.to_json()["codes"]
        (2, ['statement_not_allowed'])
    """
    # What the gate takes is what it takes once it is warm, as in the service.
    GATE.warm(1)
    began = time.perf_counter()
    query, violations = _judge(text, parameters, policy)
    milliseconds = (time.perf_counter() - began) * 1000
    if query is not None:
        edits = [edit for warning in query.warnings for edit in warning.edits] if with_edits else []
        return Report(query, (), milliseconds, (), apply_edits(text, edits) if edits else None, bool(edits))
    if not with_edits:
        return Report(query, violations, milliseconds)

    def judge(changed: str) -> tuple[Violation, ...]:
        return _judge(changed, parameters, policy)[1]

    findings = find_edits(text, violations, judge, archive=policy.archive_table, now=policy.now)
    edits = fitting_edits(findings)
    if not edits:
        return Report(query, violations, milliseconds, tuple(findings))
    rewritten = apply_edits(text, edits)
    return Report(query, violations, milliseconds, tuple(findings), rewritten, not judge(rewritten))


def _judge(
    text: str, parameters: Mapping[str, Any], policy: Policy
) -> tuple[ValidatedQuery | None, tuple[Violation, ...]]:
    try:
        return validate_query(text, parse_parameters(parameters), policy), ()
    except QueryRefusedError as exc:
        return None, exc.violations


def check_lines(lines: Iterable[str], policy: Policy) -> Iterator[dict[str, Any]]:
    """Yield one verdict a line of ``{"id": ..., "sql": ..., "params": {name: [type, value]}}``.

    A line that is no such thing is refused with the code ``line_invalid``; the lines after it still count.

    Example:
        >>> from datetime import UTC, datetime
        >>> policy = Policy("backup.messages", None, datetime(2026, 1, 1, tzinfo=UTC))
        >>> [answer["codes"] for answer in check_lines(['{"id": 1, "sql": ""}', "no JSON"], policy)]
        [['query_empty'], ['line_invalid']]
    """
    for line in lines:
        if not line.strip():
            continue
        try:
            identity, text, parameters = _read_line(line)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            yield {"id": None, "verdict": "reject", "codes": ["line_invalid"], "ms": 0.0}
            continue
        report = check_query(text, parameters, policy)
        yield {
            "id": identity,
            "verdict": "reject" if report.query is None else "accept",
            "codes": [violation.code for violation in report.violations],
            "ms": round(report.milliseconds, 3),
        }


def _read_line(line: str) -> tuple[Any, str, dict[str, Any]]:
    document = json.loads(line)
    if not isinstance(document["sql"], str):
        raise TypeError("sql is not a text")
    pairs = (document.get("params") or {}).items()
    return (
        document.get("id"),
        document["sql"],
        {name: {"type": kind, "value": value} for name, (kind, value) in pairs},
    )


def render_finding(finding: PlacedViolation) -> dict[str, Any]:
    """Return a finding in the API's shape."""
    return {
        **_violation_json(finding.violation),
        "start": finding.start,
        "end": finding.end,
        "edits": [asdict(edit) for edit in finding.edits],
    }


def _violation_json(violation: Violation) -> dict[str, Any]:
    return {
        "code": violation.code,
        "message": violation.message,
        "line": violation.line,
        "column": violation.column,
        "rewrite": violation.rewrite,
    }


def _line(violation: Violation) -> str:
    rewrite = f"\n      try: {violation.rewrite}" if violation.rewrite else ""
    return f"  {violation.line}:{violation.column}  {violation.message} [{violation.code}]{rewrite}"
