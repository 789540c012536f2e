"""The changes of one merge in a lake: found in staging, compared with reporting, handed out by the partition."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.columns import arrow_schema
from connectors.lake.buckets import Batches, BucketWriter
from connectors.lake.engine import EngineLimits, open_engine
from connectors.lake.entities import EntityFile
from connectors.lake.key_index import NO_DAY, Hashes, KeyDays
from connectors.lake.merge_statements import FILE, HASH, ROW, UNORDERED, MergeStatements
from connectors.lake.merged_files import StagedRows
from connectors.lake.object_reads import open_reads
from model.entity import PARTITION_DATE
from model.errors import QueryTooLargeError, WarehouseError

RowNumbers = npt.NDArray[np.int64]

_EPOCH: Final = date(1970, 1, 1)
_BATCH_ROWS: Final = 8192
# Bytes of rows that are split by partition at a time; more bytes give fewer and larger pieces.
_DEAL_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Compared:
    """How many changes there are, newer ones and others, how many rows go, and which partitions change.

    ``without_key`` counts the changes that are rows of no entity, ``unordered`` those of which it can't be told
    whether they are the newest version of their key.
    """

    changed: int
    newer: int
    older: int
    replaced: int
    newest_us: int
    partitions: frozenset[date | None]
    without_key: int = 0
    unordered: int = 0


@dataclass(frozen=True, slots=True)
class Dealt:
    """Which batches of the file ``winners`` belong to a partition, and which rows of a file go, ascending."""

    winners: Path
    batches: Mapping[date | None, Batches]
    gone: Mapping[str, RowNumbers]


@dataclass(frozen=True, slots=True)
class Counted:
    """The rows, the keys and the newest ``ingest_time`` (microseconds since 1970, 0 for none) of some files."""

    rows: int
    keys: int
    newest_us: int


class MergeChanges:
    """The newest version of each key of some staged rows, kept by DuckDB while a merge runs.

    Only the columns that tell versions apart are kept; whole rows are read once, for those that win.
    """

    def __init__(self, statements: MergeStatements, connection: Any) -> None:
        self._statements = statements
        self._run = connection
        self._paths: tuple[str, ...] = ()
        self._reporting: tuple[str, ...] = ()
        self._displaced: tuple[str, ...] = ()
        self._has_replays = False

    @property
    def text_order(self) -> tuple[str, ...]:
        """The columns whose texts are ordered by what they say."""
        return self._statements.text_order

    def find(self, staging: StagedRows, reporting: Sequence[EntityFile]) -> list[EntityFile]:
        """Find the changes among rows of staging; return the files with rows that their replays take away."""
        self._paths = staging.paths
        versions = self._statements.versions(staging.new)
        if staging.again:
            again = self._statements.versions(staging.again, first=len(staging.new), since=staging.since)
            versions = f"{versions} UNION ALL {again}"
        is_repaired = self._find_replays(staging)
        if self._has_replays:
            versions = self._statements.current(versions, "replays")
        self._run.execute(f"CREATE TABLE changes AS {self._statements.newest(versions)}")
        return self._displace(staging, reporting) if is_repaired else []

    def _find_replays(self, staging: StagedRows) -> bool:
        """Keep the replays that may repair a staged row; return whether there are some among the staged rows."""
        if not self._statements.has_replays:
            return False
        self._run.execute(f"CREATE TABLE replays AS {self._statements.replays(staging.later)}")
        found = self._table(f"SELECT DISTINCT {FILE} FROM replays").column(0).to_pylist()
        self._has_replays = bool(found)
        return not {staging.later[place] for place in found}.isdisjoint(staging.paths)

    def _displace(self, staging: StagedRows, reporting: Sequence[EntityFile]) -> list[EntityFile]:
        """Find the rows of reporting that replays repair, and what is newest of their keys without them."""
        run, statements = self._run.execute, self._statements
        self._displaced = tuple(file.path for file in reporting)
        run(f"CREATE TABLE displaced AS {statements.displaced(self._displaced, 'replays')}")
        run(f"CREATE TABLE lost AS {statements.without_heir('displaced', 'changes')}")
        if self._value("SELECT count(*) FROM lost"):
            run(f"CREATE TABLE every_replay AS {statements.replays(staging.every)}")
            history = statements.versions(staging.every, first=len(self._paths))
            history = statements.current(statements.of_keys(history, "lost"), "every_replay")
            kept = statements.of_other_keys("FROM changes", "lost")
            run(f"CREATE TABLE all_changes AS {kept} UNION ALL BY NAME {statements.newest(history)}")
            run("DROP TABLE changes")
            run("ALTER TABLE all_changes RENAME TO changes")
            self._paths += staging.every
        files = self._table(f"SELECT DISTINCT {FILE} FROM displaced").column(0).to_pylist()
        return [reporting[place] for place in files]

    def hashes(self) -> Hashes:
        """Return the hash of each changed key, ascending."""
        return np.sort(_hashes(self._table(f"SELECT {HASH} FROM changes")))

    def winning_key_days(self) -> KeyDays:
        """Return the hash and the day of each key whose change is newer, in any order; after :meth:`compare`."""
        found = self._table(f"SELECT {HASH}, {PARTITION_DATE} FROM winners").combine_chunks()
        return KeyDays(_hashes(found), _day_numbers(found.column(PARTITION_DATE)))

    def compare(self, reporting: Sequence[EntityFile]) -> Compared:
        """Compare each change with the rows of its key in files of the table; a tie changes nothing.

        A row that a replay takes away loses to every change, and goes where there is none.
        """
        self._reporting = tuple(file.path for file in reporting)
        run = self._run.execute
        # Its files are numbered by another list.
        places = {path: place for place, path in enumerate(self._reporting)}
        pairs = [(old, places[path]) for old, path in enumerate(self._displaced) if path in places]
        numbers = {"old": [old for old, _ in pairs], "new": [new for _, new in pairs]}
        run(f"CREATE TABLE leaving ({FILE} BIGINT, {ROW} BIGINT)")
        if pairs:
            self._run.register("reporting_places", pa.table(numbers))
            run(
                f"INSERT INTO leaving SELECT p.new, d.{ROW} FROM displaced d "
                f"JOIN reporting_places p ON d.{FILE} = p.old"
            )
        run(
            f"CREATE TABLE met AS SELECT m.place, m.{FILE}, m.{ROW}, "
            f"m.is_newer OR l.{ROW} IS NOT NULL AS is_newer, m.{UNORDERED} AND l.{ROW} IS NULL AS {UNORDERED} "
            f"FROM ({self._statements.compared('changes', self._reporting)}) m "
            f"LEFT JOIN leaving l ON m.{FILE} = l.{FILE} AND m.{ROW} = l.{ROW}"
        )
        run("CREATE TABLE older AS SELECT DISTINCT place FROM met WHERE NOT is_newer")
        older = int(self._value("SELECT count(*) FROM older"))
        # Without older ones, as in a first merge, a copy of all changes is spared.
        loses = "ANTI JOIN older o ON c.rowid = o.place" if older else ""
        run(f"CREATE {'TABLE' if older else 'VIEW'} winners AS SELECT c.* FROM changes c {loses}")
        run(
            f"CREATE TABLE replaced AS SELECT {FILE}, {ROW} FROM met m ANTI JOIN older o ON m.place = o.place "
            f"UNION SELECT {FILE}, {ROW} FROM leaving"
        )
        days = self._table(f"SELECT DISTINCT {PARTITION_DATE} FROM winners").column(0).to_pylist()
        files = self._table(f"SELECT DISTINCT {FILE} FROM replaced").column(0).to_pylist()
        newest = self._value("SELECT max(ingest_time) FROM winners")
        return Compared(
            changed=int(self._value("SELECT count(*) FROM changes")),
            newer=int(self._value("SELECT count(*) FROM winners")),
            older=older,
            replaced=int(self._value("SELECT count(*) FROM replaced")),
            newest_us=0 if newest is None else microseconds(newest),
            partitions=frozenset(days) | {reporting[place].partition for place in files},
            unordered=int(
                self._value(
                    f"SELECT count(*) FROM changes c WHERE c.{UNORDERED} "
                    f"OR c.rowid IN (SELECT place FROM met WHERE {UNORDERED})"
                )
            ),
            without_key=int(self._value(self._statements.without_key("changes"))),
        )

    def deal(self, folder: Path) -> Dealt:
        """Write the rows that win and the places of those that go, so that each partition's task reads its own."""
        winners = folder / "winners.arrow"
        return Dealt(winners, self._deal_winners(winners), self._gone())

    def read_table_key_days(self, files: Sequence[EntityFile]) -> KeyDays:
        """Return the hash of every key in files of the table, each with its partition's day."""
        found = self._table(self._statements.key_hashes([file.path for file in files]))
        days = np.array([day_number(file.partition) for file in files], np.int32)
        return KeyDays(_hashes(found), days[found.column(FILE).to_numpy()]).sorted()

    def count(self, paths: Sequence[str]) -> Counted:
        """Count files of the table, committed or not."""
        found = self._run.execute(self._statements.counted(paths)).fetchall()[0]
        return Counted(int(found[0]), int(found[1]), 0 if found[2] is None else microseconds(found[2]))

    def _deal_winners(self, target: Path) -> Mapping[date | None, Batches]:
        places = self._table(f"SELECT DISTINCT {FILE} FROM winners ORDER BY 1").column(0).to_pylist()
        # Files of staging that nothing is taken from are not read again.
        sql = self._statements.changed_rows([self._paths[place] for place in places], self._choose(places))
        schema = arrow_schema(self._statements.schema)
        with BucketWriter[date | None](target, schema) as buckets:
            for batch in _read_ahead(_gathered(self._run.sql(sql).to_arrow_reader(_BATCH_ROWS))):
                numbers = _day_numbers(batch.column(PARTITION_DATE))
                rows = pa.RecordBatch.from_arrays(
                    [batch.column(place).cast(field.type) for place, field in enumerate(schema)], schema=schema
                )
                order = np.argsort(numbers, kind="stable")
                ordered = rows.take(pa.array(order))
                for day, run in _runs(numbers[order]):
                    buckets.write(day_of(day), ordered.slice(run.start, run.stop - run.start))
        return buckets.batches

    def _choose(self, places: Sequence[int]) -> str | None:
        """Return a table of the winning rows, by the place of their file in ``places``; None where all win."""
        paths = [self._paths[place] for place in places]
        if places and self._value("SELECT count(*) FROM winners") == self._value(
            self._statements.staged_count(paths)
        ):
            return None
        self._run.register("read_places", pa.table({"old": places, "new": range(len(places))}))
        self._run.execute(
            f"CREATE TABLE chosen AS SELECT p.new AS {FILE}, w.{ROW} FROM winners w JOIN read_places p "
            f"ON w.{FILE} = p.old"
        )
        return "chosen"

    def _gone(self) -> dict[str, RowNumbers]:
        found = self._table(f"SELECT {FILE}, {ROW} FROM replaced ORDER BY ALL")
        rows = found.column(ROW).to_numpy()
        return {self._reporting[place]: rows[run].copy() for place, run in _runs(found.column(FILE).to_numpy())}

    def _table(self, sql: str) -> pa.Table:
        return self._run.sql(sql).to_arrow_table()

    def _value(self, sql: str) -> Any:
        return self._run.execute(sql).fetchall()[0][0]


@contextmanager
def open_changes(statements: MergeStatements, limits: EngineLimits, lake: str) -> Iterator[MergeChanges]:
    """Give the changes of one merge in a lake, and let go of them after it."""
    with open_duckdb(limits, lake) as connection:
        yield MergeChanges(statements, connection)


def find_replayed(statements: MergeStatements, paths: Sequence[str], limits: EngineLimits) -> list[str]:
    """Return those of some files of staging that have rows of replays."""
    if not statements.has_replays:
        return []
    with open_duckdb(limits, *paths) as connection:
        sql = f"SELECT DISTINCT {FILE} FROM ({statements.replays(paths)})"
        return [paths[place] for (place,) in connection.execute(sql).fetchall()]


def read_widened(statements: MergeStatements, path: str, limits: EngineLimits) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file whose schema is older than the table's, each with its ``__row`` as last column."""
    arrow = arrow_schema(statements.schema).append(pa.field(ROW, pa.int64()))
    with open_duckdb(limits, path) as connection:
        for batch in connection.sql(statements.widened_rows(path)).to_arrow_reader(_BATCH_ROWS):
            arrays = [column.cast(field.type) for column, field in zip(batch.columns, arrow, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow)


def microseconds(moment: datetime) -> int:
    """Return an aware moment as microseconds since 1970, exactly."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def day_number(day: date | None) -> int:
    """Return the days since 1970, or the number that stands for a null."""
    return NO_DAY if day is None else (day - _EPOCH).days


def day_of(number: int) -> date | None:
    """Return the day that :func:`day_number` gave a number.

    Example:
        >>> day_of(day_number(date(2026, 1, 2)))
        datetime.date(2026, 1, 2)
    """
    return None if number == NO_DAY else date.fromordinal(_EPOCH.toordinal() + number)


def _hashes(found: pa.Table) -> Any:
    return found.column(HASH).to_numpy().astype(np.uint64)


def _day_numbers(column: Any) -> Any:
    numbers = column.cast(pa.int32()).fill_null(NO_DAY)
    return numbers.to_numpy(zero_copy_only=False).astype(np.int32)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``batches`` in larger ones."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > _DEAL_BYTES:
            yield pa.concat_batches(held)
            held, size = [], 0
    if held:
        yield pa.concat_batches(held)


def _read_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield ``batches``; DuckDB reads the next one while the caller works on one."""
    with ThreadPoolExecutor(1, thread_name_prefix="deal") as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            yield batch


def _runs(keys: Any) -> Iterator[tuple[int, slice]]:
    """Yield each run of equal keys with its place."""
    if not len(keys):
        return
    starts = np.concatenate(([0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [len(keys)]))
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        yield int(keys[first]), slice(first, last)


@contextmanager
def open_duckdb(limits: EngineLimits, *paths: str) -> Iterator[Any]:
    """Give a connection that keeps to ``limits`` and reads where ``paths`` are; its errors become ours."""
    try:
        with (
            open_reads(paths[:1], is_root=True) as reads,
            open_engine(limits, reads, parquet_metadata_cache="true", enable_progress_bar="false") as connection,
        ):
            yield connection
    except duckdb.OutOfMemoryException as exc:
        raise QueryTooLargeError(f"The merge needs more than {limits.memory} of memory: {exc}") from exc
    except (duckdb.Error, pa.ArrowException) as exc:
        raise WarehouseError(f"The merge failed in the lake: {exc}") from exc
