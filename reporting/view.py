"""The view that people query: reporting united with what staging has since, each key once, its newest version."""

import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from connectors.lake.entities import EntitySnapshot, EntityTable
from connectors.lake.merge_statements import MergeStatements
from connectors.lake.merging import MergeLimits, find_replayed, read_union
from connectors.lake.rows import RowTable
from connectors.lake.taken_files import StagedRows
from model.errors import EvolutionRefusedError, MergeOvertakenError
from reporting.lake import select_staged
from reporting.merge import MergeSource, reporting_schema

# So much of staging is always in the view, merged or not.
_STAGING_DAYS: Final = 2


@dataclass(frozen=True, slots=True)
class UnionView:
    """The union view of one source, over the files that both tables had at one moment."""

    statements: MergeStatements
    reporting: tuple[str, ...]
    staging: StagedRows

    def read(self, folder: Path, memory: str = "1GB") -> Any:
        """Return all of its rows as an Arrow table; spills into ``folder``."""
        return read_union(self.statements, self.reporting, self.staging, MergeLimits(memory, folder))


def open_view(source: MergeSource, lake: str, now: datetime | None = None) -> UnionView | None:
    """Return the view of ``source`` as it is now, None while nothing was ever staged.

    It holds all that staging committed since the last merge, and two days at least, so that a row is in it from
    its commit on, whether merges run or not. Where staging became wider, reporting does too: rows of two types
    can't be united.
    """
    staging = RowTable(lake, source.staging)
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
    snapshot = reporting.snapshot() if reporting.exists() else EntitySnapshot(0, (), 0, 0)
    moment = now or datetime.now(UTC)
    since = moment - timedelta(days=_STAGING_DAYS)
    statements = MergeStatements(reporting.schema() or wanted, source.rules)
    staged = select_staged(staging, staging.data_files(), reporting, snapshot, since=since, now=moment)
    limits = MergeLimits("1GB", Path(tempfile.gettempdir()))
    if find_replayed(statements, staged.later, limits):
        staged = replace(staged, replays=tuple(find_replayed(statements, staged.every, limits)))
    return UnionView(statements, tuple(file.path for file in snapshot.files), staged)
