"""The view that people query: reporting united with what staging has since, each key once, its newest version."""

import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from connectors.lake.engine import EngineLimits
from connectors.lake.entities import EntityTable
from connectors.lake.merge_statements import MergeStatements
from connectors.lake.merged_files import StagedRows
from connectors.lake.merging import find_replayed
from connectors.lake.query_tables import TableFile, TableSnapshot, describe_columns
from connectors.lake.rows import LakeRowTable
from model.errors import EvolutionRefusedError, MergeOvertakenError, WarehouseError
from model.table import TableRead, TableSchema
from warehouse.lake.merger import select_staged
from warehouse.merges import MergeSource, reporting_schema

# So much of staging is always in the view, merged or not.
_STAGING_DAYS: Final = 2


@dataclass(frozen=True, slots=True)
class UnionView:
    """The union view of one source, over the files that both tables had at one moment."""

    statements: MergeStatements
    reporting: tuple[str, ...]
    staging: StagedRows

    @property
    def sql(self) -> str:
        """The SELECT for all of its rows, in the lake engine's words."""
        return self.statements.union_sql(self.reporting, self.staging)


def open_view(source: MergeSource, lake: str, now: datetime | None = None) -> UnionView | None:
    """Return the view of ``source`` as it is now, None while nothing was ever staged.

    It holds all that staging committed since the last merge, and two days at least, so that a row is in it from
    its commit on, whether merges run or not. Where staging became wider, reporting does too: rows of two types
    can't be united.
    """
    staging = LakeRowTable(lake, source.staging)
    schema = staging.schema()
    if schema is None:
        return None
    reporting = EntityTable(lake, source.reporting)
    wanted = reporting_schema(schema)
    if reporting.exists() and reporting.plan(wanted).refused:
        # What can't be mended here is the next merge's to report.
        with suppress(EvolutionRefusedError, MergeOvertakenError):
            reporting.evolve(wanted)
    # Reporting first: what a merge moves over in between is in both then, and in neither the other way round.
    snapshot = reporting.snapshot()
    moment = now or datetime.now(UTC)
    since = moment - timedelta(days=_STAGING_DAYS)
    statements = MergeStatements(reporting.schema() or wanted, source.rules)
    staged = select_staged(staging, staging.data_files(), reporting, snapshot, since=since, now=moment)
    limits = EngineLimits("1GB", Path(tempfile.gettempdir()))
    if find_replayed(statements, staged.later, limits):
        staged = replace(staged, replays=tuple(find_replayed(statements, staged.every, limits)))
    return UnionView(statements, tuple(file.path for file in snapshot.files), staged)


class LakeViews:
    """The views of some sources in the lake at ``lake``; each is read as it is when it is opened first."""

    def __init__(self, lake: str, sources: Iterable[MergeSource]) -> None:
        self._lake = lake
        self._sources = {source.view: source for source in sources}
        self._open: dict[str, UnionView] = {}

    def __contains__(self, table: object) -> bool:
        return table in self._sources

    def read_schemas(self) -> tuple[TableSchema, ...]:
        """Return the columns of every view; a source of which nothing was ever staged has none."""
        found = []
        for name, source in self._sources.items():
            view = self._open.get(name) or open_view(source, self._lake)
            if view is not None:
                self._open[name] = view
                columns = describe_columns(view.statements.schema)
                found.append(TableSchema(name, tuple((column.name, column.type) for column in columns)))
        return tuple(found)

    def snapshot(self, read: TableRead) -> TableSnapshot:
        """Return what a query over a view reads.

        Raises:
            WarehouseError: nothing was ever staged of its source.
        """
        view = self._open.get(read.table)
        if view is None:
            raise WarehouseError(f"The lake has no view {read.table}.", table=read.table)
        every = view.staging.every if view.staging.replays else ()
        paths = (*view.reporting, *view.staging.paths, *every)
        # Only its paths are asked for: nobody is told what reading a view costs.
        files = tuple(TableFile(path, 0) for path in dict.fromkeys(paths))
        return TableSnapshot(read.view, describe_columns(view.statements.schema), (), files, None, view.sql)
