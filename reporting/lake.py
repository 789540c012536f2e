"""Reporting tables in a lake: partitions that change are written anew, and one commit puts them in place."""

import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from connectors.lake.audits import LakeAudits
from connectors.lake.entities import EntitySnapshot, EntityTable
from connectors.lake.key_index import KeyDays, KeyIndex, join
from connectors.lake.merging import (
    Compared,
    MergeLimits,
    MergeStatements,
    Rewritten,
    day_of,
    microseconds,
    read_newest_us,
)
from connectors.lake.rows import RowTable
from connectors.lake.tables import DataFile
from connectors.lake.taken_files import StagedRows, TakenLists
from model import failpoint
from model.audit import MergeCounts, check_audits
from model.entity import check_rules
from reporting.merge import MergeReport, MergeSource, earlier, reporting_schema
from reporting.work import MergeWork

_log = structlog.get_logger(__name__)

# Where a merge left no list of files, only times tell what it took, and clocks may be hours off. Rows that are
# read a second time change nothing.
_UNLISTED_OVERLAP: Final = timedelta(days=1)
# What a merge that died left behind; none takes that long.
_LEFTOVER_SECONDS: Final = 86_400.0


class Tasks(Protocol):
    """Runs the steps of a merge over its partitions: here, or as tasks of a Spark job."""

    def compare(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Compared]:
        """Return the comparison of each partition."""
        ...

    def rewrite(self, work: MergeWork, partitions: Sequence[date | None]) -> list[Rewritten]:
        """Write each partition anew and return its files."""
        ...


class LakeMerger:
    """Merges within the lake at ``lake``; ``folder`` holds what is on the way, a folder a merge."""

    def __init__(self, lake: str, audits: str, *, folder: Path, tasks: Tasks, limits: MergeLimits) -> None:
        self._lake = lake
        self._audits = LakeAudits(lake, audits)
        self._folder = folder
        self._tasks = tasks
        self._limits = limits

    def merge(
        self, source: MergeSource, *, now: datetime, since: datetime | None, is_dry_run: bool
    ) -> MergeReport:
        """Merge one source; see :func:`reporting.merge.merge_source`."""
        with _own_folder(self._folder) as folder:
            merge = _Merge(source, self._lake, folder, self._tasks, self._limits)
            found = merge.compare(now, since, is_dry_run=is_dry_run)
            if found is None:
                return MergeReport(source.name, since, now, is_dry_run=is_dry_run)
            if is_dry_run:
                return replace(found.report, is_dry_run=True)
            failpoint.hit("merge.compared")
            rewritten = self._tasks.rewrite(found.work, found.partitions)
            counts = merge.count(found, rewritten)
            audits = counts.audits()
            self._audits.append(source.name, now, audits)
            check_audits(source.name, audits)
            failpoint.hit("merge.rewritten")
            merge.commit(found, rewritten)
        _log.info("merged", source=source.name, changed=counts.changed, newer=counts.newer)
        return replace(found.report, rows_before=counts.rows_before, rows_after=counts.rows_after, audits=audits)

    def read_audits(self, source: str | None, limit: int) -> list[dict[str, Any]]:
        """Return the newest audits, of one source or all, the newest first."""
        return self._audits.read(source, limit)

    def close(self) -> None:
        """Do nothing: a lake is files."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What the first half of a merge found out: which keys are older, which rows go, which partitions change.

    ``staged`` are the files that staging had when the merge looked: what it takes, and what others took before.
    """

    report: MergeReport
    snapshot: EntitySnapshot
    staged: tuple[DataFile, ...]
    index: KeyIndex
    work: MergeWork
    older: int
    replaced: int
    partitions: tuple[date | None, ...]


class _Merge:
    """One merge under way."""

    def __init__(self, source: MergeSource, lake: str, folder: Path, tasks: Tasks, limits: MergeLimits) -> None:
        self._source = source
        self._tasks = tasks
        self._limits = replace(limits, temp_folder=folder / "spill")
        self._staging = RowTable(lake, source.staging)
        self._reporting = EntityTable(lake, source.reporting)
        self._changes = folder / "changes.parquet"
        self._winners = folder / "winners.parquet"

    def compare(self, now: datetime, since: datetime | None, *, is_dry_run: bool) -> _Found | None:
        """Return what changes and where, None when nothing was ever staged."""
        schema = self._staging.schema()
        if schema is None:
            return None
        check_rules(self._source.name, self._source.rules, schema)
        wanted = reporting_schema(schema)
        if is_dry_run and not self._reporting.exists():
            snapshot = EntitySnapshot(0, (), 0, 0)
        else:
            if not is_dry_run:
                wanted = self._reporting.evolve(wanted).schema
            snapshot = self._reporting.snapshot()
        merged = merged_at(snapshot)
        statements = MergeStatements(wanted, self._source.rules)
        files = self._staging.data_files()
        staged = select_staged(self._staging, files, self._reporting, snapshot, since=since, now=now)
        changed = statements.write_changes(staged, self._changes, self._limits)
        index = self._open_index(statements, snapshot)
        pairs = statements.read_key_days(self._changes)
        may_lie = _days(index.find(pairs.hashes))
        # A table of many years has many files: tasks are sent those that they may need.
        current: dict[date | None, list[str]] = {}
        for file in snapshot.of(may_lie | _days(pairs)):
            current.setdefault(file.partition, []).append(file.path)
        work = MergeWork(statements, self._reporting.uri, current, self._changes, self._winners, self._limits)
        held = [partition for partition in current if partition in may_lie]
        compared = self._tasks.compare(work, held)
        older = sorted({key for each in compared for key in each.older})
        newer = statements.write_winners(self._changes, older, self._winners, self._limits)
        lost = [set(each.newer) - set(older) for each in compared]
        touched = {partition for partition, keys_lost in zip(held, lost, strict=True) if keys_lost}
        moved = _days(statements.read_key_days(self._winners))
        partitions = tuple(sorted(touched | moved, key=_partition_order))
        report = MergeReport(
            self._source.name,
            merged if since is None else earlier(since, merged),
            now,
            changed=changed,
            newer=newer,
            partitions=tuple(None if p is None else p.isoformat() for p in partitions),
        )
        replaced = sum(map(len, lost))
        return _Found(report, snapshot, tuple(files), index, work, len(older), replaced, partitions)

    def count(self, found: _Found, rewritten: Sequence[Rewritten]) -> MergeCounts:
        """Return what was written, counted from the files."""
        return MergeCounts(
            changed=found.report.changed,
            newer=found.report.newer,
            older=found.older,
            rows_before=sum(each.rows_before for each in rewritten),
            replaced=found.replaced,
            added=sum(each.added for each in rewritten),
            rows_after=sum(each.rows_after for each in rewritten),
            keys_after=sum(each.keys_after for each in rewritten),
            newest_staged_us=read_newest_us(self._winners),
            newest_merged_us=max((each.newest_us for each in rewritten), default=0),
        )

    def commit(self, found: _Found, rewritten: Sequence[Rewritten]) -> None:
        """Put the written partitions in place and say what of staging is in them, or change nothing."""
        pairs = found.work.statements.read_key_days(self._winners)
        following = found.index.add(pairs) if found.report.newer else found.index
        lists = TakenLists(self._reporting.uri)
        taken_number = lists.write(self._staging.as_taken(found.staged))
        failpoint.hit("merge.indexed")
        self._reporting.replace(
            found.snapshot,
            found.snapshot.of(set(found.partitions)),
            [file for each in rewritten for file in each.files],
            watermark_us=microseconds(found.report.until),
            index_number=following.number,
            taken_number=taken_number,
        )
        failpoint.hit("merge.committed")
        found.index.forget(following)
        lists.forget(taken_number)

    def _open_index(self, statements: MergeStatements, snapshot: EntitySnapshot) -> KeyIndex:
        index = KeyIndex(self._reporting.uri, snapshot.index_number)
        if not index.is_lost:
            return index
        _log.warning("index_rebuilt", source=self._source.name, files=len(snapshot.files))
        return index.rebuild(join([statements.read_table_key_days(f, self._limits) for f in snapshot.files]))


def merged_at(snapshot: EntitySnapshot) -> datetime | None:
    """Return when the last merge looked at staging, by its machine's clock; None where there was none."""
    if not snapshot.watermark_us:
        return None
    return datetime.fromtimestamp(snapshot.watermark_us / 1_000_000, UTC)


def select_staged(
    staging: RowTable,
    files: Sequence[DataFile],
    reporting: EntityTable,
    snapshot: EntitySnapshot,
    *,
    since: datetime | None,
    now: datetime,
) -> StagedRows:
    """Return what of ``files`` the last merge did not take, and what came in behind ``since``.

    Where nobody can say what it took, that is everything.
    """
    merged = merged_at(snapshot)
    if merged is not None and not snapshot.taken_number:
        # Merged by a Refeed that kept no lists.
        unlisted = min(merged, now) - _UNLISTED_OVERLAP
        return staging.staged_rows(files, staging.as_taken(files), earlier(since or unlisted, unlisted))
    taken = TakenLists(reporting.uri).read(snapshot.taken_number) if snapshot.taken_number else {}
    if taken is None:
        _log.warning("taken_files_lost", table=reporting.name)
    return staging.staged_rows(files, taken or {}, since)


def _days(pairs: KeyDays) -> set[date | None]:
    return {day_of(int(number)) for number in set(pairs.days.tolist())}


def _partition_order(partition: date | None) -> date:
    return partition or date.min


@contextmanager
def _own_folder(root: Path) -> Iterator[Path]:
    """Give a folder that no other merge uses, and remove it and what died long ago."""
    root.mkdir(parents=True, exist_ok=True)
    for left in root.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > _LEFTOVER_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    folder = root / uuid.uuid4().hex
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
