"""Queries that BigQuery runs and bills: each is tried dry before, and capped."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from connectors.bigquery.client import Clients
from connectors.bigquery.queries.selections import SelectedTable
from connectors.bigquery.table_id import TableId
from connectors.bigquery.tables.catalog import read_table
from connectors.lake.query import QueryLimits, open_rows_query
from model import failpoint
from model.errors import QueryError, QueryStoppedError, QueryTooLargeError, RefeedError
from sql.ordering import render_in_key_order
from sql.validate import Policy, ValidatedQuery, parse_parameters
from warehouse.bigquery.counts import BigQueryCounts, BigQueryMessages
from warehouse.bigquery.figures import dry_figures, read_figures
from warehouse.bigquery.runs import QueryRuns, cap_of
from warehouse.bigquery.views import BigQueryViews
from warehouse.bigquery.warehouse import BigQueryWarehouse
from warehouse.figures import QueryFigures, QueryNote
from warehouse.merges import UnionViews
from warehouse.queries import QueryAnswer, QuerySpace, ReplayQuery, SelectionRun, ordering_errors

# Somebody waits for the answer.
_EXACT_SECONDS: Final = 45.0
_MOST_SECONDS: Final = 600.0
# tables.get says how old the buffer's oldest row is, where it says anything. A partition may begin up to a day
# before its rows came in, and clocks differ.
_MARGIN: Final = timedelta(days=2)


class BigQueryQueries:
    """Reads and bills nothing but for an answer, an exact look and a selection."""

    is_billed: Final = True

    def __init__(self, place: BigQueryWarehouse, space: QuerySpace) -> None:
        self._place = place
        self._space = space
        self._clients = Clients(place.connection)
        self._runs = QueryRuns(place.archive, self._clients)
        self.counts = BigQueryCounts(
            place.archive, self._clients, expiration_days=place.settings.partition_expiration_days
        )
        self.messages = BigQueryMessages(place.archive, self._clients)

    def warm(self) -> None:
        """Do nothing: BigQuery is always there."""

    def close(self) -> None:
        """End the connections."""
        self._clients.close()

    def policy(self, policy: Policy, *, must_exist: bool = True) -> Policy:  # noqa: ARG002
        """Return ``policy`` for an archive whose youngest rows have no partition yet.

        Nothing is known beforehand of the other tables' columns: a dry run knows them.
        """
        return replace(policy, partitioning=self._place.partitioning, has_write_buffer=True)

    def check(self, query: ValidatedQuery) -> None:
        """Do nothing: the gate speaks BigQuery's own language."""

    def has_table(self, name: str) -> bool:
        """Whether there is a table of this name, in the service's own project where it names none."""
        return read_table(self._clients, TableId.parse(name, self._place.project)) is not None

    def answer(
        self,
        query: ValidatedQuery,
        *,
        max_rows: int,
        seconds: float | None = None,
        views: UnionViews | None = None,
    ) -> QueryAnswer:
        """Return up to ``max_rows`` rows of the query; it is billed and capped.

        Raises:
            QueryTooLargeError, QueryError, QueryDisagreesError: as :meth:`QueryRuns.answer` raises them.
        """
        assert views is None or isinstance(views, BigQueryViews), "views are of the warehouse that opened them"
        behind = frozenset[str]() if views is None else views.tables_behind()
        whole, notes = self._with_buffer(query)
        rows, is_cut = self._runs.answer(whole, max_rows=max_rows, seconds=seconds or _MOST_SECONDS, behind=behind)
        return QueryAnswer(rows, is_cut=is_cut, notes=tuple(notes))

    def examine(self, wanted: ReplayQuery, *, keep_as: str | None = None) -> QueryFigures:
        """Try the query dry; with ``keep_as`` run it, count its rows and keep them.

        Raises:
            QueryError: BigQuery refuses the query, or understands it otherwise than the gate.
            QueryTooLargeError: it would be billed more than its cap, or does not end within a minute.
        """
        query, notes = self._with_buffer(wanted.query)
        bytes_scanned = self._runs.measure(query)
        if keep_as is None:
            figures = dry_figures(wanted.query, bytes_scanned)
        else:
            wanted.check_bill(bytes_scanned)
            selected = self._materialise(keep_as, query, cap_of(bytes_scanned, wanted.max_bytes_billed))
            # What no backfill may publish is not read to be counted either.
            runs = self._runs if wanted.is_allowed(selected.rows, selected.bytes) else None
            figures = read_figures(wanted.query, bytes_scanned, selected, runs)
        return replace(figures, notes=[*figures.notes, *notes])

    def source(self, wanted: ReplayQuery, *, kept: str | None = None) -> dict[str, Any]:
        """Return the query and its cap, and the plan that has its rows already, if one has.

        Raises:
            QueryError: BigQuery refuses the query, or understands it otherwise than the gate.
        """
        query, _ = self._with_buffer(wanted.query)
        bytes_scanned = self._runs.measure(query)
        if kept is None:
            wanted.check_bill(bytes_scanned)
        return {
            "sql": query.text,
            "parameters": dict(wanted.parameters),
            "maximum_bytes_billed": cap_of(bytes_scanned, wanted.max_bytes_billed),
            "plan": kept,
        }

    @contextmanager
    def select(self, source: Mapping[str, Any], run: SelectionRun) -> Iterator[Iterator[pa.RecordBatch]]:
        """Run the query, or find it run, and give its rows as they come; an attempt that stops cancels it."""
        table = self._run(source, run)
        run.check_size(table.rows, table.bytes)
        failpoint.hit("bigquery.selection.made")
        schema, rows = self._runs.read(table.table)
        if not run.by_key:
            yield _until_stopped(rows, run)
            return
        with self._in_key_order(schema, rows, run) as ordered:
            yield ordered

    def _run(self, source: Mapping[str, Any], run: SelectionRun) -> SelectedTable:
        """Return what the query selected, of the plan that materialised it or of the backfill's own run."""

        def is_told_to_stop() -> bool:
            if run.is_superseded():
                # The other attempt waits for the same query: it stays.
                raise QueryStoppedError("Another attempt of the job has taken over.")
            return run.should_stop()

        if source["plan"] is not None:
            return self._runs.wait(source["plan"], is_told_to_stop)
        parameters = parse_parameters(source["parameters"])
        while True:
            name = self._runs.open_run(run.name)
            self._runs.start(name, source["sql"], parameters, maximum_bytes_billed=source["maximum_bytes_billed"])
            failpoint.hit("bigquery.selection.started")
            try:
                return self._runs.wait(name, is_told_to_stop)
            except QueryStoppedError:
                # An attempt before this one may have cancelled it a moment ago.
                if run.should_stop():
                    raise

    @contextmanager
    def _in_key_order(
        self, schema: pa.Schema, rows: Iterator[pa.RecordBatch], run: SelectionRun
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """Sort rows on this machine: the lake's engine spills what does not fit into memory."""
        faults: list[RefeedError] = []

        def remembered() -> Iterator[pa.RecordBatch]:
            # What is raised under the engine that sorts comes out of it as an error of the engine.
            try:
                yield from rows
            except RefeedError as exc:
                faults.append(exc)
                raise

        space = self._space
        try:
            with (
                ordering_errors(by_key=True),
                open_rows_query(
                    pa.RecordBatchReader.from_batches(schema, remembered()),
                    render_in_key_order("SELECT * FROM refeed_rows"),
                    QueryLimits(space.memory, space.folder, min_free_bytes=space.min_free_bytes),
                    should_stop=run.should_stop,
                ) as ordered,
            ):
                yield ordered
        except QueryError:
            if faults:
                raise faults[0] from None
            raise

    def _with_buffer(self, query: ValidatedQuery) -> tuple[ValidatedQuery, list[QueryNote]]:
        if not query.leaves_out_buffer:
            return query, []
        return _with_write_buffer(query, read_table(self._clients, self._place.archive), datetime.now(UTC))

    def _materialise(self, name: str, query: ValidatedQuery, cap: int) -> SelectedTable:
        ends_at = time.monotonic() + _EXACT_SECONDS
        self._runs.start(name, query.text, query.parameters, maximum_bytes_billed=cap)
        try:
            return self._runs.wait(name, lambda: time.monotonic() > ends_at)
        except QueryStoppedError as exc:
            raise QueryTooLargeError(
                f"The query took longer than {_EXACT_SECONDS:.0f} s. Plan the backfill without exact=true."
            ) from exc


def _until_stopped(rows: Iterator[pa.RecordBatch], run: SelectionRun) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        if run.should_stop():
            raise QueryStoppedError
        yield batch


def _with_write_buffer(query: ValidatedQuery, table: Any, now: datetime) -> tuple[ValidatedQuery, list[QueryNote]]:
    """Return the query that is to run, and the notes about the write buffer.

    ``table`` is the archive as BigQuery describes it. Rows in the buffer have a NULL _PARTITIONTIME, for a time
    that is not documented: a query whose window reaches them is run as the gate has written it with them.
    """
    if query.unbuffered_until is None or not _is_reached(query.unbuffered_until, table, now):
        return query, []
    if query.buffered_text is not None:
        message = (
            f"Part of the window is still in BigQuery's write buffer ({_rows_text(table)}), whose rows "
            "have no _PARTITIONTIME yet. Refeed adds those rows whose ingest_time is in the window."
        )
        return replace(query, text=query.buffered_text), [QueryNote("write_buffer_added", message)]
    message = (
        f"Part of the window is still in BigQuery's write buffer ({_rows_text(table)}), whose rows have no "
        f"_PARTITIONTIME yet. The query may leave out these rows. Add them: WHERE (_PARTITIONTIME >= "
        "TIMESTAMP_TRUNC(@from, DAY) AND _PARTITIONTIME <= @to OR _PARTITIONTIME IS NULL) AND ingest_time >= "
        "@from AND ingest_time < @to."
    )
    return query, [QueryNote("write_buffer_left_out", message)]


def _is_reached(end: datetime, table: Any, now: datetime) -> bool:
    buffer = None if table is None else table.streaming_buffer
    oldest = now if buffer is None or buffer.oldest_entry_time is None else min(now, buffer.oldest_entry_time)
    return end > oldest - _MARGIN


def _rows_text(table: Any) -> str:
    buffer = None if table is None else table.streaming_buffer
    rows = None if buffer is None else buffer.estimated_rows
    return "BigQuery reports no rows in the buffer at the moment" if rows is None else f"about {rows} rows in all"
