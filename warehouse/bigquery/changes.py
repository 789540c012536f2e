"""The changes that a merge takes from staging: queries find them, and tables of the merge's own keep them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from connectors.bigquery.queries.job import typed
from connectors.bigquery.queries.merge_steps import MergeJobs, MergeStep, Run
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.entity_table import BigQueryEntityTable, MergeState
from connectors.bigquery.tables.schema import has_tags, tagged
from model import failpoint
from model.schema import Field, RowSchema
from sql.merge import MergeQueries

# A row's partition is when BigQuery got it, and BigQuery forgets a write stream that was not committed within a
# day: no row is committed later than that after its partition. Rows that are read a second time change nothing.
OVERLAP: Final = timedelta(hours=25)
# The tables of a merge are dropped with it, or expire after a day.
KEEP: Final = timedelta(days=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# A merge that died is taken up where it was; when that was long ago, staging has more by now and it begins again.
_TAKEN_UP: Final = timedelta(hours=1)
# What rows are compared by in sql/queries: the key's columns as one text.
_KEY: Final = "_refeed_key"


@dataclass(frozen=True, slots=True)
class PassingTags:
    """The policy tags of a source's columns, for the tables that a merge has on the way.

    Rows lie there for the time of a merge, for a day where it dies: without the tags, everybody who may read the
    dataset could read there what the tags keep from them.
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


class ChangeSearch:
    """Finds the changes that a merge takes, into tables that a merge finds again when it takes up one that died.

    ``queries`` name the tables that were made, ``passing`` are all of them; ``changes`` is the number of changes,
    ``without_key`` that of those which are rows of no entity.
    """

    def __init__(
        self,
        state: MergeState,
        jobs: MergeJobs,
        reporting: BigQueryEntityTable,
        queries: MergeQueries,
        *,
        tags: PassingTags | None,
    ) -> None:
        self._tags = tags
        self.jobs = jobs
        self.queries = queries
        self.passing: list[TableId] = []
        self.until = state.now
        self.changes = 0
        self.without_key = 0
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
        if self.changes:
            self._count_without_key()

    def _count_without_key(self) -> None:
        step = MergeStep("without_key", self.queries.without_key(), {})
        self.without_key = self.jobs.read(step, self.jobs.run(step))[0]["without_key"]
        self.queries = replace(self.queries, may_lack_key=self.without_key > 0)

    def _displace(self) -> None:
        """Find the rows of reporting that replays repair, and what is newest of their keys without them."""
        displaced, count = self._keep(MergeStep("displaced", self.queries.displaced(), {}))
        failpoint.hit("bigquery.merge.displaced")
        if not count:
            return
        self._use(displaced=str(displaced))
        orphans = MergeStep("orphans", self.queries.orphans(), {})
        if self.jobs.read(orphans, self.jobs.run(orphans))[0]["orphans"]:
            table, self.changes = self._keep(self._step("heirs", self.queries.heirs(), _EPOCH))
            self._use(changes=str(table))

    def _step(self, name: str, sql: str, since: datetime, *, is_first: bool = False) -> MergeStep:
        """Return a step that reads staging; the first one's moment holds for all, also when it is taken up."""
        given = typed({"partitions_from": since, "until": self.until})
        return MergeStep(name, sql, given, moving=("until",) if is_first else ())

    def _use(self, **tables: str) -> None:
        self.queries = replace(self.queries, tables=replace(self.queries.tables, **tables))

    def _keep(self, step: MergeStep) -> tuple[TableId, int]:
        """Run a step, keep its rows in a table, and return that with their number."""

        def table_of(number: str) -> TableId:
            name = f"refeed_merge_{self._state.id}_{step.name}_{number}"
            return self._reporting.id.beside(name.replace("-", "_"))

        def prepare(number: str) -> TableId:
            columns = None if self._tags is None else self._tags.put_on(self.jobs.columns_of(step))
            return self._reporting.create_passing(table_of(number), columns, datetime.now(UTC) + KEEP)

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


def _day(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
