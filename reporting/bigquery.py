"""Reporting tables in BigQuery: queries find out what changes, one script does it in a transaction."""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import structlog

from connectors.bigquery.audits import BigQueryAudits
from connectors.bigquery.client import Clients, Connection
from connectors.bigquery.entity_table import BigQueryEntityTable, MergeState
from connectors.bigquery.merge_jobs import MergeJobs, Run, Step
from connectors.bigquery.row_schema import has_tags, tagged, to_bigquery
from connectors.bigquery.row_table import BigQueryRowTable
from connectors.bigquery.selection import QueryParameter
from connectors.bigquery.tables import TableId
from model import failpoint
from model.audit import Audit, check_audits
from model.entity import DELETED, VIEW_SUFFIX, check_rules
from model.errors import AuditFailedError
from model.schema import Field, RowSchema
from model.settings import BigQuerySettings
from reporting.merge import MergeReport, MergeSource, earlier, reporting_schema
from sql.merge import MergeQueries, MergeTables, PartitionType

_log = structlog.get_logger(__name__)

# A row's partition is when BigQuery got it, and BigQuery forgets a write stream that was not committed within a
# day: no row is committed later than that behind its partition. Rows that are read a second time change nothing.
OVERLAP: Final = timedelta(hours=25)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# A merge that died is taken up where it was; when that was long ago, staging has more by now and it begins anew.
_TAKEN_UP: Final = timedelta(hours=1)
# What a merge has on the way goes with it, or after a day.
_KEEP: Final = timedelta(days=1)
_PARTITION_TYPES: Final[Mapping[str, PartitionType]] = {
    "DATE": "DATE",
    "DATETIME": "DATETIME",
    "TIMESTAMP": "TIMESTAMP",
}
_NO_DAY: Final = "none"
# What rows are compared by in sql/queries: the key's columns as one text.
_KEY: Final = "_refeed_key"
_COUNTS: Final = ("changed", "newer", "older", "replaced", "rows_before", "newest_staged_us")


class BigQueryMerger:
    """Merges within BigQuery; ``audits`` is the table (``dataset.table``) of what merges checked."""

    def __init__(self, project: str, audits: str, settings: BigQuerySettings) -> None:
        self._clients = Clients(Connection.of(project, settings))
        self._settings = settings
        self._audits = BigQueryAudits(self._clients, audits, settings)

    def merge(
        self, source: MergeSource, *, now: datetime, since: datetime | None, is_dry_run: bool
    ) -> MergeReport:
        """Merge one source; see :func:`reporting.merge.merge_source`. The clock that counts is BigQuery's."""
        schema = self._staging_schema(source)
        if schema is None:
            return MergeReport(source.name, since, now, is_dry_run=is_dry_run)
        reporting = self._reporting(source)
        if is_dry_run:
            with _tried(reporting, schema) as (table, state):
                merge = self._merge(source, reporting, table, schema)
                found = merge.compare(state, since)
                merge.drop(found)
                return replace(found.report, is_dry_run=True)
        wanted = reporting.evolve(reporting_schema(schema), source.rules).schema
        self._audits.create()
        merge = self._merge(source, reporting, reporting.id, wanted)
        state = reporting.read_state()
        if state.until is None:
            # Before the first merge too: staging is to be seen.
            merge.create_view(None)
        report = merge.run(state, since)
        merge.create_view(report.until)
        _log.info("merged", source=source.name, changed=report.changed, newer=report.newer)
        return report

    def create_view(self, source: MergeSource) -> str | None:
        """Make the union view of ``source`` and return its name, None while nothing was ever staged.

        Each merge does so too; it is for a source that has not been merged yet.

        Raises:
            RulesUnfitError: staging lacks what the source's rules name.
            EvolutionRefusedError: reporting can't be widened to what staging has become.
            WarehouseError: BigQuery failed.
        """
        schema = self._staging_schema(source)
        if schema is None:
            return None
        reporting = self._reporting(source)
        wanted = reporting.evolve(reporting_schema(schema), source.rules).schema
        merge = self._merge(source, reporting, reporting.id, wanted)
        merge.create_view(reporting.read_state().until)
        return str(view_of(reporting.id))

    def read_audits(self, source: str | None, limit: int) -> list[dict[str, Any]]:
        """Return the newest audits, of one source or all, the newest first."""
        return self._audits.read(source, limit)

    def close(self) -> None:
        """End the connections."""
        self._clients.close()

    def _staging_schema(self, source: MergeSource) -> RowSchema | None:
        schema = BigQueryRowTable(self._clients, source.staging, self._settings).schema()
        if schema is not None:
            check_rules(source.name, source.rules, schema)
        return schema

    def _merge(
        self, source: MergeSource, reporting: BigQueryEntityTable, table: TableId, schema: RowSchema
    ) -> "_Merge":
        limit = self._settings.merge_max_bytes_billed
        return _Merge(
            source,
            reporting,
            table=table,
            schema=schema,
            clients=self._clients,
            audits=self._audits,
            maximum_bytes_billed=limit,
        )

    def _reporting(self, source: MergeSource) -> BigQueryEntityTable:
        return BigQueryEntityTable(self._clients, source.reporting, self._settings)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a merge would do; it looks at the partitions of ``days`` only."""

    report: MergeReport
    queries: MergeQueries
    passing: tuple[TableId, ...]
    days: tuple[date | None, ...]
    counts: Mapping[str, int]

    @property
    def rows_after(self) -> int:
        return self.counts["rows_before"] - self.counts["replaced"] + self.counts["newer"]


class _Merge:
    """One merge under way; ``table`` is compared with, ``reporting``'s own unless it is only tried."""

    def __init__(
        self,
        source: MergeSource,
        reporting: BigQueryEntityTable,
        *,
        table: TableId,
        schema: RowSchema,
        clients: Clients,
        audits: BigQueryAudits,
        maximum_bytes_billed: int,
    ) -> None:
        self._source = source
        self._maximum_bytes_billed = maximum_bytes_billed
        self._reporting = reporting
        self._clients = clients
        self._audits = audits
        tables = MergeTables(
            staging=str(TableId.parse(source.staging, clients.connection.project)),
            reporting=str(table),
            changes=str(table),
            audits=str(audits.id),
            watermark=str(reporting.watermark),
            view=str(view_of(reporting.id)),
        )
        types = {field.name: field.type for field in schema.fields if field.mode != "REPEATED"}
        field = source.rules.partition_field
        kind = None if field is None else _PARTITION_TYPES.get(types.get(field, ""))
        columns = tuple(field.name for field in schema.fields if field.name != DELETED)
        self._queries = MergeQueries(tables, columns, source.rules, kind)
        self._schema = schema

    def run(self, state: MergeState, since: datetime | None) -> MergeReport:
        """Merge all or nothing.

        Raises:
            MergeOvertakenError: another merge was first; nothing was changed.
            AuditFailedError: it does not add up; nothing was changed.
        """
        found = self.compare(state, since)
        failpoint.hit("merge.compared")
        jobs = self._jobs(state)
        script = Step(
            "merge",
            found.queries.merge(found.days),
            {
                "source": QueryParameter("STRING", self._source.name),
                "merge": QueryParameter("STRING", uuid.uuid4().hex),
                "until": QueryParameter("TIMESTAMP", found.report.until),
                "number": QueryParameter("INT64", state.number),
                "rows_after": QueryParameter("INT64", found.rows_after),
                "details": QueryParameter("STRING", json.dumps(dict(found.counts))),
                **{
                    name: QueryParameter("INT64", found.counts[name])
                    for name in ("changed", "newer", "older", "newest_staged_us")
                },
            },
            moving=("merge",),
        )
        run = jobs.run(script)
        merge = run.parameters["merge"]
        failpoint.hit("bigquery.merge.started")
        try:
            jobs.wait(script, run)
        except AuditFailedError as exc:
            audits = tuple(_audit({**row, "details": found.counts}) for row in exc.details["audits"])
            self._audits.append(self._source.name, merge, found.report.until, audits)
            check_audits(self._source.name, audits)
            raise
        failpoint.hit("merge.committed")
        self.drop(found)
        rows = self._audits.read_merge(self._source.name, merge)
        return replace(
            found.report,
            rows_before=found.counts["rows_before"],
            rows_after=found.rows_after,
            audits=tuple(_audit(row) for row in rows),
        )

    def compare(self, state: MergeState, since: datetime | None) -> _Found:
        """Find out what changes and where, and count it; nothing of reporting is touched."""
        # One that a Refeed of old wrote may be of a clock that was ahead.
        merged = None if state.until is None else min(state.until, state.now)
        begin = merged if since is None else earlier(since, merged)
        tags = PassingTags.of(self._schema, self._source.rules.key)
        search = _Search(state, self._jobs(state), self._reporting, self._queries, tags=tags)
        search.run(begin)
        days, counts, changed_days = self._count(search)
        report = MergeReport(
            self._source.name,
            begin,
            search.until,
            changed=counts["changed"],
            newer=counts["newer"],
            partitions=tuple(None if day is None else day.isoformat() for day in changed_days),
        )
        return _Found(report, search.queries, tuple(search.passing), days, counts)

    def drop(self, found: _Found) -> None:
        """Delete what was kept on the way."""
        for table in found.passing:
            self._reporting.drop(table)

    def create_view(self, merged: datetime | None) -> None:
        """Make the union view anew, over all of staging since the last merge."""
        self._reporting.define_view(self._queries.view(None if merged is None else merged - OVERLAP))

    def _count(self, search: "_Search") -> tuple[tuple[date | None, ...], dict[str, int], list[date | None]]:
        """Return the days to look at, the counts of what changes in them, and the days that change."""
        if not search.changes:
            return (), dict.fromkeys(_COUNTS, 0), []
        jobs, queries = search.jobs, search.queries
        days: tuple[date | None, ...] = (None,)
        if queries.partition_type is not None:
            look = Step("days", queries.days(), {})
            days = tuple(sorted((row["day"] for row in jobs.read(look, jobs.run(look))), key=_day_order))
        compare = Step("compare", queries.compare(days), {})
        (row,) = jobs.read(compare, jobs.run(compare))
        listed = (row["new_days"], row["old_days"], row["left_days"])
        names = {name for days in listed for name in (days or "").split(",") if name}
        changed = [None if name == _NO_DAY else date.fromisoformat(name) for name in names]
        return days, {name: int(row[name]) for name in _COUNTS}, sorted(changed, key=_day_order)

    def _jobs(self, state: MergeState) -> MergeJobs:
        return MergeJobs(
            self._clients, self._source.name, state.id, maximum_bytes_billed=self._maximum_bytes_billed
        )


class _Search:
    """What of staging a merge takes: tables of its own, each found again by a merge that takes up where it died.

    ``queries`` name the tables that were made, ``passing`` are all of them; ``changes`` is the number of changes.
    """

    def __init__(
        self,
        state: MergeState,
        jobs: MergeJobs,
        reporting: BigQueryEntityTable,
        queries: MergeQueries,
        *,
        tags: "PassingTags | None",
    ) -> None:
        self._tags = tags
        self.jobs = jobs
        self.queries = queries
        self.passing: list[TableId] = []
        self.until = state.now
        self.changes = 0
        self._state = state
        self._reporting = reporting

    def run(self, begin: datetime | None) -> None:
        """Find the changes among what staging has from ``begin`` on, and what its replays repair in reporting."""
        since = _EPOCH if begin is None else _day(begin - OVERLAP)
        if self.queries.has_replays:
            replays, count = self._keep(self._step("replays", self.queries.replays(), since, is_first=True))
            if count:
                self._use(replays=str(replays))
        is_first = not self.queries.has_replays
        table, self.changes = self._keep(self._step("changes", self.queries.changes(), since, is_first=is_first))
        self._use(changes=str(table))
        failpoint.hit("bigquery.merge.changes")
        if self.queries.tables.replays is not None:
            self._displace()

    def _displace(self) -> None:
        """Find the rows of reporting that replays repair, and what is newest of their keys without them."""
        displaced, count = self._keep(Step("displaced", self.queries.displaced(), {}))
        failpoint.hit("bigquery.merge.displaced")
        if not count:
            return
        self._use(displaced=str(displaced))
        orphans = Step("orphans", self.queries.orphans(), {})
        if self.jobs.read(orphans, self.jobs.run(orphans))[0]["orphans"]:
            table, self.changes = self._keep(self._step("heirs", self.queries.heirs(), _EPOCH))
            self._use(changes=str(table))

    def _step(self, name: str, sql: str, since: datetime, *, is_first: bool = False) -> Step:
        """Return a step that reads staging; the first one's moment holds for all, also when it is taken up."""
        given = {
            "partitions_from": QueryParameter("TIMESTAMP", since),
            "until": QueryParameter("TIMESTAMP", self.until),
        }
        return Step(name, sql, given, moving=("until",) if is_first else ())

    def _use(self, **tables: str) -> None:
        self.queries = replace(self.queries, tables=replace(self.queries.tables, **tables))

    def _keep(self, step: Step) -> tuple[TableId, int]:
        """Run a step, keep its rows in a table, and return that with their number."""

        def table_of(number: str) -> TableId:
            name = f"refeed_merge_{self._state.id}_{step.name}_{number}"
            return self._reporting.beside(name.replace("-", "_"))

        def prepare(number: str) -> TableId:
            columns = None if self._tags is None else self._tags.put_on(self.jobs.columns_of(step))
            return self._reporting.create_passing(table_of(number), columns, datetime.now(UTC) + _KEEP)

        def is_usable(run: Run) -> bool:
            until = run.parameters.get("until", self.until)
            is_recent = self._state.now - until < _TAKEN_UP
            return is_recent and self._reporting.rows_of(table_of(run.number)) is not None

        run = self.jobs.run(step, is_usable=is_usable, prepare=prepare, is_shaped=self._tags is not None)
        self.jobs.wait(step, run)
        if step.moving:
            self.until = run.parameters["until"].astimezone(UTC)
        table = table_of(run.number)
        self.passing.append(table)
        return table, self._reporting.rows_of(table) or 0


@dataclass(frozen=True, slots=True)
class PassingTags:
    """The policy tags of a source's columns, for the tables that a merge has on the way.

    Rows lie there for the time of a merge, for a day where it dies: without the tags whoever may read the dataset
    could read there what the tags keep from them.
    """

    fields: tuple[Field, ...]
    key: tuple[str, ...]

    @classmethod
    def of(cls, schema: RowSchema, key: Sequence[str]) -> "PassingTags | None":
        """Return the tags of ``schema``, None when it has none."""
        tags = {field.name: field.policy_tags for field in schema.fields}
        # "A column can have only one policy tag": the key that rows are compared by has the first one of its own.
        first = next((tags[name] for name in key if tags.get(name)), ())
        return cls(schema.fields, first) if has_tags(schema.fields) else None

    def put_on(self, columns: Sequence[Any]) -> list[Any]:
        """Return the columns of a query with their tags."""
        return tagged(columns, self.fields, {_KEY: self.key})


def view_of(reporting: TableId) -> TableId:
    """Return the name of the union view of a reporting table."""
    return TableId(reporting.project, reporting.dataset, f"{reporting.table}{VIEW_SUFFIX}")


@contextmanager
def _tried(reporting: BigQueryEntityTable, staging: RowSchema) -> Iterator[tuple[TableId, MergeState]]:
    """Give the table that a dry run compares with, an empty one where there is none, and a state of its own."""
    state = reporting.peek_state() or MergeState("", 0, None, reporting.read_clock())
    state = replace(state, id=f"dry-{uuid.uuid4().hex}")
    if reporting.schema() is not None:
        yield reporting.id, state
        return
    empty = reporting.beside(f"refeed_merge_{state.id}_empty".replace("-", "_"))
    reporting.create_passing(empty, to_bigquery(reporting_schema(staging)), datetime.now(UTC) + _KEEP)
    try:
        yield empty, state
    finally:
        reporting.drop(empty)


def _audit(row: Mapping[str, Any]) -> Audit:
    return Audit(row["name"], bool(row["is_passed"]), int(row["expected"]), int(row["found"]), row["details"])


def _day(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _day_order(day: date | None) -> date:
    return day or date.min
