"""The merge of one source: what staging committed since the last one becomes one row an entity in reporting."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import structlog

from connectors.lake.entities import EntitySnapshot, EntityTable
from connectors.lake.key_index import KeyIndex, join
from connectors.lake.merging import Compared, MergeLimits, MergeStatements, Rewritten, day_of
from connectors.lake.rows import RowTable
from connectors.lake.tables import MAX_UNCOMMITTED_HOURS
from model import failpoint
from model.entity import DELETED, EntityRules
from model.errors import AuditFailedError
from model.schema import Field, RowSchema
from model.window import Window
from reporting.work import MergeWork

_log = structlog.get_logger(__name__)

# A file is committed within an hour of its writing or never; clocks of two machines may differ by minutes. Rows
# that are read a second time change nothing.
OVERLAP: Final = timedelta(hours=MAX_UNCOMMITTED_HOURS, minutes=5)
_DELETED_FIELD: Final = Field(DELETED, "BOOL", description="Whether the entity was removed.")


@dataclass(frozen=True, slots=True)
class MergeSource:
    """One source to merge: the tables' names (``dataset.table``) and the rules of its entities."""

    name: str
    staging: str
    reporting: str
    rules: EntityRules


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did, or with ``is_dry_run`` would do; times are aware UTC.

    ``changed`` counts the keys that staging had, ``newer`` those of them that changed reporting.
    """

    source: str
    since: datetime | None
    until: datetime
    changed: int
    newer: int
    partitions: tuple[str | None, ...]
    rows_before: int
    rows_after: int
    is_dry_run: bool = False


class Tasks(Protocol):
    """Runs the steps of a merge over its partitions: here, or as tasks of a Spark job."""

    def compare(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Compared]:
        """Return the comparison of each partition."""
        ...

    def rewrite(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Rewritten]:
        """Write each partition anew and return its files."""
        ...


def merge_source(
    source: MergeSource,
    *,
    lake: str,
    folder: Path,
    tasks: Tasks,
    limits: MergeLimits,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    is_dry_run: bool = False,
) -> MergeReport:
    """Merge what ``source`` has in staging since its last merge into its reporting table, in one commit.

    Run it twice, late, out of order or again after a kill at any point: the reporting table comes out the same.
    Only partitions that change are read and written. ``folder`` holds what is on the way, and is emptied at the
    end.

    Raises:
        MergeOvertakenError: another merge of the source was first; nothing was changed.
        AuditFailedError: the counts do not add up; nothing was changed.
        EvolutionRefusedError: reporting can't be widened to what staging has become; nothing was changed.
    """
    merge = _Merge(source, lake, folder, tasks, limits)
    # Taken before staging is looked at: what is committed later than the look is of the next merge.
    until = now()
    with _emptied(folder):
        return merge.run(until, is_dry_run=is_dry_run)


class _Merge:
    """One merge under way."""

    def __init__(self, source: MergeSource, lake: str, folder: Path, tasks: Tasks, limits: MergeLimits) -> None:
        self._source = source
        self._folder = folder
        self._tasks = tasks
        self._limits = limits
        self._staging = RowTable(lake, source.staging)
        self._reporting = EntityTable(lake, source.reporting)
        self._changes = folder / "changes.parquet"
        self._winners = folder / "winners.parquet"

    def run(self, until: datetime, *, is_dry_run: bool) -> MergeReport:
        schema = self._staging.schema()
        if schema is None:
            return self._report(None, until, is_dry_run=is_dry_run)
        wanted = reporting_schema(schema)
        if is_dry_run and not self._reporting.exists():
            snapshot = EntitySnapshot(0, (), 0, 0)
        else:
            if not is_dry_run:
                wanted = self._reporting.evolve(wanted).schema
            snapshot = self._reporting.snapshot()
        since = read_since(snapshot)
        statements = MergeStatements(wanted, self._source.rules)
        # Clocks differ: a file may be of a day that has not begun here.
        window = None if since is None else Window(since, until + timedelta(days=1))
        rows = [file.path for file in self._staging.data_files(window)]
        changed = statements.write_changes(rows, since, self._changes, self._limits)
        index = self._open_index(statements, snapshot)
        work = MergeWork(
            statements,
            self._reporting.uri,
            {partition: [f.path for f in snapshot.of({partition})] for partition in _partitions(snapshot)},
            self._changes,
            self._winners,
            self._limits,
        )
        keys = statements.read_key_days(self._changes)
        may_lie = {day_of(int(number)) for number in set(index.find(keys.hashes).days.tolist())}
        held = [partition for partition in _partitions(snapshot) if partition in may_lie]
        compared = self._tasks.compare(work, held)
        older = sorted({key for each in compared for key in each.older})
        newer = statements.write_winners(self._changes, older, self._winners, self._limits)
        lost = [set(each.newer) - set(older) for each in compared]
        touched = {partition for partition, keys_lost in zip(held, lost, strict=True) if keys_lost}
        moved = {day_of(int(number)) for number in set(statements.read_key_days(self._winners).days.tolist())}
        partitions = sorted(touched | moved, key=_partition_order)
        report = replace(
            self._report(since, until, is_dry_run=is_dry_run),
            changed=changed,
            newer=newer,
            partitions=tuple(None if p is None else p.isoformat() for p in partitions),
        )
        if is_dry_run:
            return report
        failpoint.hit("merge.compared")
        rewritten = self._tasks.rewrite(work, partitions)
        audit(source=self._source.name, rewritten=rewritten, newer=newer, replaced=sum(map(len, lost)))
        failpoint.hit("merge.rewritten")
        following = index.add(statements.read_key_days(self._winners)) if newer else index
        failpoint.hit("merge.indexed")
        self._reporting.replace(
            snapshot,
            snapshot.of(set(partitions)),
            [file for each in rewritten for file in each.files],
            watermark_us=int(until.timestamp() * 1_000_000),
            index_number=following.number,
        )
        failpoint.hit("merge.committed")
        index.forget(following)
        _log.info("merged", source=self._source.name, changed=changed, newer=newer, partitions=len(partitions))
        return replace(
            report,
            rows_before=sum(each.rows_before for each in rewritten),
            rows_after=sum(each.rows_after for each in rewritten),
        )

    def _open_index(self, statements: MergeStatements, snapshot: EntitySnapshot) -> KeyIndex:
        index = KeyIndex(self._reporting.uri, snapshot.index_number)
        if not index.is_lost:
            return index
        _log.warning("index_rebuilt", source=self._source.name, files=len(snapshot.files))
        return index.rebuild(join([statements.read_table_key_days(f, self._limits) for f in snapshot.files]))

    def _report(self, since: datetime | None, until: datetime, *, is_dry_run: bool) -> MergeReport:
        return MergeReport(self._source.name, since, until, 0, 0, (), 0, 0, is_dry_run)


def audit(*, source: str, rewritten: Sequence[Rewritten], newer: int, replaced: int) -> None:
    """Check that what is to be committed has every key once, every change, and every row that was not replaced.

    Raises:
        AuditFailedError: it has not; the counts say where.
    """
    counts = {
        "rows_before": sum(each.rows_before for each in rewritten),
        "replaced": replaced,
        "newer": newer,
        "added": sum(each.added for each in rewritten),
        "rows": sum(each.rows_after for each in rewritten),
        "keys": sum(each.keys_after for each in rewritten),
    }
    faults = []
    if counts["added"] != newer:
        faults.append("not every changed key is in a partition")
    if counts["rows"] != counts["rows_before"] - replaced + counts["added"]:
        faults.append("rows were lost or doubled")
    if counts["keys"] != counts["rows"]:
        faults.append("a key is there twice")
    if faults:
        raise AuditFailedError(
            f"The merge of {source} does not add up ({'; '.join(faults)}): {counts}. Nothing was committed.",
            source=source,
            counts=counts,
        )


def reporting_schema(staging: RowSchema) -> RowSchema:
    """Return the schema of a staging table's reporting table: the same columns, and whether it was removed."""
    return RowSchema((*staging.fields, _DELETED_FIELD), staging.description)


def read_since(snapshot: EntitySnapshot) -> datetime | None:
    """Return from when on staging has to be read; None is from its beginning."""
    if not snapshot.watermark_us:
        return None
    return datetime.fromtimestamp(snapshot.watermark_us / 1_000_000, UTC) - OVERLAP


def _partitions(snapshot: EntitySnapshot) -> list[date | None]:
    return list(dict.fromkeys(file.partition for file in snapshot.files))


def _partition_order(partition: date | None) -> date:
    return partition or date.min


@contextmanager
def _emptied(folder: Path) -> Iterator[None]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
