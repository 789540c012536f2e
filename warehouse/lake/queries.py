"""Queries over a lake, by its own engine: on this machine, and never billed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import structlog

from connectors.lake.query import ArchiveSnapshot, QueryLimits, open_query, read_snapshot
from connectors.lake.query_process import QueryProcesses, Statement
from connectors.lake.query_tables import LakeTables
from model.table import TableRead
from model.window import Window
from sql.dialect import LakeQuery, render_lake_query
from sql.ordering import render_in_key_order
from sql.validate import Policy, ValidatedQuery, parse_parameters, validate_query
from warehouse.figures import QueryFigures
from warehouse.lake.counts import LakeCounts
from warehouse.lake.figures import read_figures
from warehouse.lake.views import LakeViews
from warehouse.lake.warehouse import LakeWarehouse
from warehouse.merges import UnionViews
from warehouse.queries import (
    ArchiveQuery,
    QueryAnswer,
    QuerySpace,
    ReplayQuery,
    SelectionRun,
    ordering_errors,
)

_LOG: Final = structlog.get_logger()
# Somebody waits for the answer.
_QUERY_SECONDS: Final = 60.0
_MOST_SECONDS: Final = 3600.0


class LakeMessages:
    """An archive in a lake; each query runs in a separate process and reads only the files of its window."""

    def __init__(self, place: LakeWarehouse, processes: QueryProcesses, limits: QueryLimits) -> None:
        self._place = place
        self._processes = processes
        self._limits = limits

    @property
    def table(self) -> str:
        """The archive's name."""
        return self._place.archive_table

    def read(self, query: ArchiveQuery) -> list[dict[str, Any]]:
        """Return the query's rows."""
        place = self._place
        policy = Policy(place.archive_table, None, datetime.now(UTC), replay=False)
        lake = render_lake_query(validate_query(query.sql, parse_parameters(query.parameters), policy))
        snapshot = read_snapshot(place.lake, place.archive_table, place.partitioning, window=query.window)
        statement = Statement(lake.sql, lake.parameters)
        (table,) = self._processes.run(snapshot, [statement], self._limits, should_stop=query.should_stop)
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows


class LakeQueries:
    """Each query runs in a process of its own, but for a selection, whose process has nothing else to do."""

    is_billed: Final = False

    def __init__(self, place: LakeWarehouse, space: QuerySpace) -> None:
        self._place = place
        self._space = space
        self._processes = QueryProcesses(keep_spare=space.keeps_spare)
        self._tables: dict[tuple[str, ...], LakeTables] = {}
        # These write next to nothing, and say how full the archive is on a disk that is full, too.
        limits = replace(self._limits(_QUERY_SECONDS), min_free_bytes=0)
        self.counts = LakeCounts(place, self._processes, limits)
        self.messages = LakeMessages(place, self._processes, limits)

    def warm(self) -> None:
        """Start the process that the next query runs in."""
        self._processes.warm()

    def close(self) -> None:
        """End the process that waits for a query."""
        self._processes.close()

    def policy(self, policy: Policy, *, must_exist: bool = True) -> Policy:
        """Return ``policy`` with the columns of the tables beside the archive, which takes milliseconds."""
        lake = self._place.lake
        policy = replace(policy, partitioning=self._place.partitioning)
        if not must_exist and "://" not in lake and not Path(lake).is_dir():
            return policy
        schemas, missing = self._open_tables(policy.extra_tables).read_schemas()
        return replace(policy, schemas=schemas, missing_tables=missing)

    def check(self, query: ValidatedQuery) -> None:
        """Raise when the lake's engine can't do part of the query."""
        render_lake_query(query)

    def has_table(self, name: str) -> bool:
        """Return whether there is a table of this name that can be read."""
        _, missing = self._open_tables((name,)).read_schemas()
        return not missing

    def answer(
        self,
        query: ValidatedQuery,
        *,
        max_rows: int,
        seconds: float | None = None,
        views: UnionViews | None = None,
    ) -> QueryAnswer:
        """Return up to ``max_rows`` rows of the query, and stop it there; its bytes are those of whole files."""
        lake = render_lake_query(query)
        assert views is None or isinstance(views, LakeViews), "views are of the warehouse that opened them"
        of_views = [read for read in lake.extra_reads if views is not None and read.table in views]
        snapshot = self._snapshot(query, lake, [read for read in lake.extra_reads if read not in of_views])
        if views is not None:
            snapshot = replace(snapshot, tables=(*snapshot.tables, *map(views.snapshot, of_views)))
        batches: list[pa.RecordBatch] = []
        count = 0
        limits = self._limits(seconds or _MOST_SECONDS)
        with self._processes.open(snapshot, Statement(lake.sql, lake.parameters), limits) as results:
            for batch in results:
                batches.append(batch)
                count += batch.num_rows
                if count > max_rows:
                    break
        rows = pa.Table.from_batches(batches).slice(0, max_rows) if batches else pa.table({})
        return QueryAnswer(rows, is_cut=count > max_rows)

    def examine(self, wanted: ReplayQuery, *, keep_as: str | None = None) -> QueryFigures:  # noqa: ARG002
        """Return exact figures, which cost nothing: nothing has to be kept."""
        query = wanted.query
        snapshot = self._snapshot(query, render_lake_query(query))
        limits = self._limits(_QUERY_SECONDS)
        return read_figures(query, snapshot, self._processes, limits, added=wanted.attributes)

    def source(self, wanted: ReplayQuery, *, kept: str | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Return the query in the lake's words; which files it reads is decided when it runs."""
        query = wanted.query
        lake = render_lake_query(query)
        assert query.window is not None, "the gate gives every replay a window"
        if wanted.max_bytes_billed is not None:
            wanted.check_bill(self._snapshot(query, lake).size_bytes)
        return {
            "sql": lake.sql,
            "parameters": dict(lake.parameters),
            "window": _bounds(query.window),
            "reads_archive": lake.reads_archive,
            "extra_reads": [
                {"table": read.table, "view": read.view, "window": read.window and _bounds(read.window)}
                for read in lake.extra_reads
            ],
        }

    @contextmanager
    def select(self, source: Mapping[str, Any], run: SelectionRun) -> Iterator[Iterator[pa.RecordBatch]]:
        """Run the query over the lake as it is now, in this process, and give its rows as they come."""
        place = self._place
        snapshot = read_snapshot(
            place.lake,
            place.archive_table,
            place.partitioning,
            window=_read_window(source["window"]),
            reads_archive=source.get("reads_archive", True),
            extra_reads=[
                TableRead(read["table"], read["view"], read["window"] and _read_window(read["window"]))
                for read in source.get("extra_reads", ())
            ],
        )
        _LOG.info("selecting", files=len(snapshot.files), bytes=snapshot.size_bytes)
        sql = render_in_key_order(source["sql"]) if run.by_key else source["sql"]
        limits = self._limits(_MOST_SECONDS)
        with (
            ordering_errors(by_key=run.by_key),
            open_query(snapshot, sql, source["parameters"], limits, should_stop=run.should_stop) as batches,
        ):
            yield batches

    def _snapshot(
        self, query: ValidatedQuery, lake: LakeQuery, extra_reads: Sequence[TableRead] | None = None
    ) -> ArchiveSnapshot:
        """Return the files that the query reads, as they are now; ``extra_reads`` are all that are in the lake."""
        place = self._place
        return read_snapshot(
            place.lake,
            place.archive_table,
            place.partitioning,
            window=query.window,
            reads_archive=lake.reads_archive,
            extra_reads=lake.extra_reads if extra_reads is None else extra_reads,
        )

    def _open_tables(self, names: Sequence[str]) -> LakeTables:
        key = tuple(names)
        return self._tables.setdefault(key, LakeTables(self._place.lake, key))

    def _limits(self, seconds: float) -> QueryLimits:
        space = self._space
        return QueryLimits(space.memory, space.folder, seconds=seconds, min_free_bytes=space.min_free_bytes)


def _bounds(window: Window) -> list[str]:
    return [window.start.isoformat(), window.end.isoformat()]


def _read_window(bounds: Sequence[str]) -> Window:
    return Window(*map(datetime.fromisoformat, bounds))
