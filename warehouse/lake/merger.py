"""Reporting tables in a lake: partitions that change are written again, and one commit puts them in place."""

import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from connectors.lake.audits import LakeAudits
from connectors.lake.data_files import DataFile
from connectors.lake.engine import EngineLimits
from connectors.lake.entities import EntitySnapshot, EntityTable
from connectors.lake.key_index import KeyDays, KeyIndex
from connectors.lake.merge_statements import MergeStatements
from connectors.lake.merged_files import MergedFileLists, StagedRows
from connectors.lake.merging import Compared, MergeChanges, day_of, microseconds, open_changes
from connectors.lake.rewriting import Rewritten
from connectors.lake.rows import LakeRowTable
from model import failpoint
from model.audit import MergeCounts, check_audits
from model.entity import check_rules, unordered_error
from warehouse.lake.tasks import MergeWork, Tasks
from warehouse.merges import MergeReport, MergeSource, earlier, reporting_schema

_log = structlog.get_logger(__name__)

# Where a merge left no list of files, only times tell what it took, and clocks may be hours off. Rows that are
# read a second time change nothing.
_UNLISTED_OVERLAP: Final = timedelta(days=1)
# What a merge that died left behind; none takes that long.
_LEFTOVER_SECONDS: Final = 86_400.0


class LakeMerger:
    """Merges within the lake at ``lake``; ``folder`` holds what is on the way, a folder a merge."""

    def __init__(self, lake: str, audits: str, *, folder: Path, tasks: Tasks, limits: EngineLimits) -> None:
        self._lake = lake
        self._audits = LakeAudits(lake, audits)
        self._folder = folder
        self._tasks = tasks
        self._limits = limits

    def merge(
        self, source: MergeSource, *, now: datetime, since: datetime | None, is_dry_run: bool
    ) -> MergeReport:
        """Merge one source; see :class:`warehouse.merges.Merger`."""
        staging = LakeRowTable(self._lake, source.staging)
        schema = staging.schema()
        if schema is None:
            return MergeReport(source.name, since, now, is_dry_run=is_dry_run)
        check_rules(source.name, source.rules, schema)
        reporting = EntityTable(self._lake, source.reporting)
        wanted = reporting_schema(schema)
        if not is_dry_run:
            wanted = reporting.evolve(wanted).schema
        snapshot = reporting.snapshot()
        with _own_folder(self._folder) as folder:
            limits = replace(self._limits, temp_folder=folder / "spill")
            statements = MergeStatements(wanted, source.rules)
            with open_changes(statements, limits, self._lake) as changes:
                index = KeyIndex(reporting.uri, snapshot.index_number, statements.identity)
                merge = _Merge(source, staging, reporting, snapshot, changes=changes, index=index)
                report = merge.compare(now, since)
                if is_dry_run:
                    return replace(report, is_dry_run=True)
                failpoint.hit("merge.compared")
                # Nobody reads the new index before the commit names it.
                with ThreadPoolExecutor(1, thread_name_prefix="index") as pool:
                    following = pool.submit(merge.make_index())
                    rewritten = self._tasks.rewrite(merge.work(statements, folder, limits), merge.partitions)
                counts = merge.count(rewritten)
                audits = counts.audits()
                self._audits.append(source.name, now, audits)
                check_audits(source.name, audits)
                failpoint.hit("merge.rewritten")
                merge.commit(rewritten, now, following.result())
        _log.info("merged", source=source.name, changed=counts.changed, newer=counts.newer)
        return replace(report, rows_before=counts.rows_before, rows_after=counts.rows_after, audits=audits)

    def close(self) -> None:
        """Do nothing: a lake is files."""


class _Merge:
    """One merge under way; ``staged`` are the files that staging had when it looked."""

    def __init__(
        self,
        source: MergeSource,
        staging: LakeRowTable,
        reporting: EntityTable,
        snapshot: EntitySnapshot,
        *,
        changes: MergeChanges,
        index: KeyIndex,
    ) -> None:
        self._source = source
        self._staging = staging
        self._reporting = reporting
        self._snapshot = snapshot
        self._changes = changes
        self._staged = tuple(staging.data_files())
        self._index = index
        self._compared = Compared(0, 0, 0, 0, 0, frozenset())
        self.partitions: tuple[date | None, ...] = ()

    def compare(self, now: datetime, since: datetime | None) -> MergeReport:
        """Find what changes and where; nothing of reporting is touched."""
        merged = merged_at(self._snapshot)
        staged = select_staged(self._staging, self._staged, self._reporting, self._snapshot, since=since, now=now)
        leaving = self._changes.find(staged, self._snapshot.files)
        if self._index.is_lost:
            _log.warning("index_rebuilt", source=self._source.name, files=len(self._snapshot.files))
            self._index = self._index.rebuild(self._changes.read_table_key_days(self._snapshot.files))
        may_lie = set() if self._index.is_empty else _days(self._index.find(self._changes.hashes()))
        held = {file.path: file for file in (*self._snapshot.of(may_lie), *leaving)}
        self._compared = self._changes.compare(list(held.values()))
        if self._compared.unordered:
            raise unordered_error(self._source.name, self._changes.text_order, self._compared.unordered)
        self.partitions = tuple(sorted(self._compared.partitions, key=_partition_order))
        return MergeReport(
            self._source.name,
            merged if since is None else earlier(since, merged),
            now,
            changed=self._compared.changed,
            newer=self._compared.newer,
            partitions=tuple(None if p is None else p.isoformat() for p in self.partitions),
            without_key=self._compared.without_key,
        )

    def make_index(self) -> Callable[[], KeyIndex]:
        """Return what writes the index with the keys that change; it may run beside the other work."""
        if not self._compared.newer:
            return lambda: self._index
        return partial(self._index.add, self._changes.winning_key_days())

    def work(self, statements: MergeStatements, folder: Path, limits: EngineLimits) -> MergeWork:
        """Deal the rows out and return what the tasks need."""
        # A table of many years has many files: tasks are sent those that they may need.
        current: dict[date | None, list[str]] = {}
        for file in self._snapshot.of(set(self.partitions)):
            current.setdefault(file.partition, []).append(file.path)
        return MergeWork(statements, self._reporting.uri, current, self._changes.deal(folder), limits)

    def count(self, rewritten: Sequence[Rewritten]) -> MergeCounts:
        """Return what was written, counted from the files."""
        files = [file for each in rewritten for file in each.files]
        counted = self._changes.count([f"{self._reporting.uri}/{file.path}" for file in files])
        return MergeCounts(
            changed=self._compared.changed,
            newer=self._compared.newer,
            older=self._compared.older,
            rows_before=sum(each.rows_before for each in rewritten),
            replaced=self._compared.replaced,
            added=sum(each.added for each in rewritten),
            rows_after=counted.rows,
            keys_after=counted.keys,
            newest_staged_us=self._compared.newest_us,
            newest_merged_us=counted.newest_us,
        )

    def commit(self, rewritten: Sequence[Rewritten], until: datetime, following: KeyIndex) -> None:
        """Put the written partitions in place and record which files of staging are in them, or change nothing."""
        lists = MergedFileLists(self._reporting.uri)
        taken_number = lists.write(self._staging.as_taken(self._staged))
        failpoint.hit("merge.indexed")
        self._reporting.replace(
            self._snapshot,
            self._snapshot.of(set(self.partitions)),
            [file for each in rewritten for file in each.files],
            watermark_us=microseconds(until),
            index_number=following.number,
            taken_number=taken_number,
        )
        failpoint.hit("merge.committed")
        self._index.forget(following)
        lists.forget(taken_number)


def merged_at(snapshot: EntitySnapshot) -> datetime | None:
    """Return when the last merge looked at staging, by its machine's clock; None where there was none."""
    if not snapshot.watermark_us:
        return None
    return datetime.fromtimestamp(snapshot.watermark_us / 1_000_000, UTC)


def select_staged(
    staging: LakeRowTable,
    files: Sequence[DataFile],
    reporting: EntityTable,
    snapshot: EntitySnapshot,
    *,
    since: datetime | None,
    now: datetime,
) -> StagedRows:
    """Return what of ``files`` the last merge did not take, and what came in after ``since``.

    Where it is not known what it took, that is everything.
    """
    merged = merged_at(snapshot)
    if merged is not None and not snapshot.taken_number:
        # Merged by a Refeed that kept no lists.
        unlisted = min(merged, now) - _UNLISTED_OVERLAP
        return staging.staged_rows(files, staging.as_taken(files), earlier(since or unlisted, unlisted))
    taken = MergedFileLists(reporting.uri).read(snapshot.taken_number) if snapshot.taken_number else {}
    if taken is None:
        _log.warning("merged_files_lost", table=reporting.name)
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
