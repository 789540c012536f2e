"""One merge in BigQuery: queries count its changes, and one script makes them in a transaction."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Final

from connectors.bigquery.client import Clients
from connectors.bigquery.queries.job import typed
from connectors.bigquery.queries.merge_steps import MergeJobs, MergeStep
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.audits import BigQueryAudits
from connectors.bigquery.tables.cells import read_columns
from connectors.bigquery.tables.entity_table import BigQueryEntityTable, MergeState
from model import failpoint
from model.audit import Audit, check_audits
from model.entity import DELETED, unordered_error
from model.errors import AuditFailedError
from model.schema import RowSchema
from sql.merge import MergeQueries, MergeTables, PartitionType
from warehouse.bigquery.changes import OVERLAP, ChangeSearch, PassingTags
from warehouse.merges import MergeReport, MergeSource, earlier

_PARTITION_TYPES: Final[Mapping[str, PartitionType]] = {
    "DATE": "DATE",
    "DATETIME": "DATETIME",
    "TIMESTAMP": "TIMESTAMP",
}
_NO_DAY: Final = "none"
_COUNTS: Final = ("changed", "newer", "older", "replaced", "rows_before", "newest_staged_us")


@dataclass(frozen=True, slots=True)
class MergeFindings:
    """The changes of a merge, which reads the partitions of ``days`` only."""

    report: MergeReport
    queries: MergeQueries
    passing: tuple[TableId, ...]
    days: tuple[date | None, ...]
    counts: Mapping[str, int]

    @property
    def rows_after(self) -> int:
        """How many rows these partitions have after the merge."""
        return self.counts["rows_before"] - self.counts["replaced"] + self.counts["newer"]


@dataclass(frozen=True, slots=True)
class BigQueryMerge:
    """One merge under way; ``table`` is compared with, ``reporting``'s own unless it is only tried.

    ``schema`` are the columns of reporting, ``staging`` those that staging has for them.
    """

    source: MergeSource
    reporting: BigQueryEntityTable
    table: TableId
    schema: RowSchema
    staging: RowSchema
    clients: Clients
    audits: BigQueryAudits
    maximum_bytes_billed: int

    def _queries(self) -> MergeQueries:
        source, project = self.source, self.clients.connection.project
        tables = MergeTables(
            staging=str(TableId.parse(source.staging, project)),
            reporting=str(self.table),
            changes=str(self.table),
            audits=str(self.audits.id),
            watermark=str(self.reporting.watermark),
            view=str(TableId.parse(source.view, project)),
        )
        types = {field.name: field.type for field in self.schema.fields if field.mode != "REPEATED"}
        field = source.rules.partition_field
        kind = None if field is None else _PARTITION_TYPES.get(types.get(field, ""))
        columns = tuple(field.name for field in self.schema.fields if field.name != DELETED)
        # Those columns of staging that are several, or whose type within changed, are read by an expression.
        cells = read_columns(self.staging, "s").items()
        staged = {name: sql for name, sql in cells if sql != f"s.`{name}`"}
        floats = frozenset(name for name, type_ in types.items() if type_ == "FLOAT64")
        texts = frozenset(source.rules.text_order(self.schema))
        return MergeQueries(tables, columns, source.rules, kind, staged, floats, texts)

    def run(self, state: MergeState, since: datetime | None) -> MergeReport:
        """Merge all or nothing.

        Raises:
            MergeOvertakenError: another merge was first; nothing was changed.
            AuditFailedError: it does not add up; nothing was changed.
        """
        found = self.compare(state, since)
        failpoint.hit("merge.compared")
        jobs = self._jobs(state)
        script = self._script(found, state)
        run = jobs.run(script)
        merge = run.parameters["merge"]
        failpoint.hit("bigquery.merge.started")
        try:
            jobs.wait(script, run)
        except AuditFailedError as exc:
            audits = tuple(_audit({**row, "details": found.counts}) for row in exc.details["audits"])
            self.audits.append(self.source.name, merge, found.report.until, audits)
            check_audits(self.source.name, audits)
            raise
        failpoint.hit("merge.committed")
        self.drop(found)
        rows = self.audits.read_merge(self.source.name, merge)
        return replace(
            found.report,
            rows_before=found.counts["rows_before"],
            rows_after=found.rows_after,
            audits=tuple(_audit(row) for row in rows),
        )

    def compare(self, state: MergeState, since: datetime | None) -> MergeFindings:
        """Find out what changes and where, and count it; nothing of reporting is touched."""
        # One that a Refeed of old wrote may be of a clock that was ahead.
        merged = None if state.until is None else min(state.until, state.now)
        begin = merged if since is None else earlier(since, merged)
        tags = PassingTags.of(self.schema, self.source.rules.key)
        search = ChangeSearch(state, self._jobs(state), self.reporting, self._queries(), tags=tags)
        search.run(begin)
        days, counts, changed_days = self._count(search)
        report = MergeReport(
            self.source.name,
            begin,
            search.until,
            changed=counts["changed"],
            newer=counts["newer"],
            partitions=tuple(None if day is None else day.isoformat() for day in changed_days),
            without_key=search.without_key,
        )
        return MergeFindings(report, search.queries, tuple(search.passing), days, counts)

    def drop(self, found: MergeFindings) -> None:
        """Delete what was kept on the way."""
        for table in found.passing:
            self.reporting.drop(table)

    def create_view(self, merged: datetime | None) -> None:
        """Replace the union view, which is over all of staging since the last merge."""
        self.reporting.define_view(self._queries().view(None if merged is None else merged - OVERLAP))

    def _script(self, found: MergeFindings, state: MergeState) -> MergeStep:
        """Return the step that makes the changes ``found``, as long as no other merge was first."""
        return MergeStep(
            "merge",
            found.queries.merge(found.days),
            typed(
                {
                    "source": self.source.name,
                    "merge": uuid.uuid4().hex,
                    "until": found.report.until,
                    "number": state.number,
                    "rows_after": found.rows_after,
                    "details": json.dumps(dict(found.counts)),
                    **{name: found.counts[name] for name in ("changed", "newer", "older", "newest_staged_us")},
                }
            ),
            moving=("merge",),
        )

    def _count(self, search: ChangeSearch) -> tuple[tuple[date | None, ...], dict[str, int], list[date | None]]:
        """Return the days to look at, the counts of what changes in them, and the days that change.

        Raises:
            RulesUnfitError: of some keys it can't be told which version is newest.
        """
        if not search.changes:
            return (), dict.fromkeys(_COUNTS, 0), []
        jobs, queries = search.jobs, search.queries
        days: tuple[date | None, ...] = (None,)
        if queries.partition_type is not None:
            look = MergeStep("days", queries.days(), {})
            days = tuple(sorted((row["day"] for row in jobs.read(look, jobs.run(look))), key=_day_order))
        compare = MergeStep("compare", queries.compare(days), {})
        (row,) = jobs.read(compare, jobs.run(compare))
        if row["unordered"]:
            # What is staged to mend it is to be seen by the next merge, and not what this one saw.
            for table in search.passing:
                self.reporting.drop(table)
            raise unordered_error(
                self.source.name, self.source.rules.text_order(self.schema), int(row["unordered"])
            )
        listed = (row["new_days"], row["old_days"], row["left_days"])
        names = {name for days in listed for name in (days or "").split(",") if name}
        changed = [None if name == _NO_DAY else date.fromisoformat(name) for name in names]
        return days, {name: int(row[name]) for name in _COUNTS}, sorted(changed, key=_day_order)

    def _jobs(self, state: MergeState) -> MergeJobs:
        return MergeJobs(self.clients, self.source.name, state.id, maximum_bytes_billed=self.maximum_bytes_billed)


def _audit(row: Mapping[str, Any]) -> Audit:
    return Audit(row["name"], bool(row["is_passed"]), int(row["expected"]), int(row["found"]), row["details"])


def _day_order(day: date | None) -> date:
    return day or date.min
