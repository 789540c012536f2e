"""A backfill's query in BigQuery: tried dry, run once into a table of its own, read back as Arrow."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from backfill.options import RunOptions
from backfill.selection import Selection, check_selection, write_selection
from connectors.bigquery.answers import read_answer
from connectors.bigquery.client import Clients, Connection
from connectors.bigquery.reader import open_session, read_session
from connectors.bigquery.selection import QueryParameter, SelectedTable, SelectionJobs
from connectors.bigquery.tables import TableId, read_table
from connectors.lake.query import QueryLimits, open_rows_query
from jobs.folder import JobFolder, Order
from model import failpoint
from model.errors import (
    JobNotFoundError,
    QueryError,
    QueryStoppedError,
    QueryTooLargeError,
    RefeedError,
    SelectionGoneError,
    SelectionTooLargeError,
    TableNotFoundError,
)
from sql.agreement import check_agreement, parse_dry_run
from sql.ordering import render_in_key_order
from sql.validate import ValidatedQuery, parse_parameters

# A selection is read within the hour; a backfill that waits for an approval or is retried, within days.
_KEEP: Final = timedelta(days=3)
_STREAMS: Final = 4
# "Pricing": on-demand queries are billed at least 10 MB a table, rounded up to the MB.
_LEAST_BYTES_BILLED: Final = 100 * 2**20
# An archive grows between the dry run and the run.
_GROWTH: Final = 2
_MAX_RUNS: Final = 100


@dataclass(frozen=True, slots=True)
class BigQueryPlace:
    """Where queries run and selections lie: in the archive's dataset, so that they are in its location too."""

    connection: Connection
    archive_table: str

    @property
    def dataset(self) -> TableId:
        """The archive, whose dataset it is."""
        return TableId.parse(self.archive_table, self.connection.project)

    def as_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return {"connection": self.connection.as_json(), "table": self.archive_table}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "BigQueryPlace":
        """Return the place that :meth:`as_json` described."""
        return cls(Connection.from_json(fields["connection"]), fields["table"])


class BigQueryQueries:
    """Queries over one archive. A run has a name, of a backfill or a plan: under it the query runs once."""

    def __init__(self, place: BigQueryPlace) -> None:
        self._place = place
        self._clients = Clients(place.connection)
        self._jobs = SelectionJobs(self._clients, place.dataset)

    def close(self) -> None:
        """End the connections."""
        self._clients.close()

    def measure(self, query: ValidatedQuery, *, behind: Collection[str] = ()) -> int:
        """Return how many bytes the query would read; it costs nothing.

        ``behind`` are the full names of tables behind the views that it may read.

        Raises:
            QueryError: BigQuery refuses it.
            QueryDisagreesError: BigQuery understands it otherwise than the gate.
        """
        answer = self._jobs.dry_run(query.text, _typed(query.parameters))
        check_agreement(query, parse_dry_run(answer.job), project=self._place.connection.project, behind=behind)
        return answer.bytes_scanned

    def describe_archive(self) -> Any:
        """Return the archive's table as BigQuery describes it, None when there is none."""
        return read_table(self._clients, self._place.dataset)

    def has_table(self, name: str) -> bool:
        """Return whether there is a table of this name, in the service's own project where it names none."""
        return read_table(self._clients, TableId.parse(name, self._place.connection.project)) is not None

    def answer(
        self, query: ValidatedQuery, *, max_rows: int, seconds: float, behind: Collection[str] = ()
    ) -> tuple[pa.Table, bool]:
        """Return up to ``max_rows`` rows of the query, and whether there are more; it is billed and capped.

        ``behind`` are the full names of tables behind the views that it may read.

        Raises:
            QueryError: BigQuery refuses it, or it takes too long.
            QueryDisagreesError: BigQuery understands it otherwise than the gate.
        """
        return read_answer(
            self._clients,
            query.text,
            _typed(query.parameters),
            maximum_bytes_billed=cap_of(self.measure(query, behind=behind), None),
            max_rows=max_rows,
            seconds=seconds,
        )

    def start(self, name: str, text: str, parameters: Mapping[str, Any], *, maximum_bytes_billed: int) -> None:
        """Start the run ``name`` of a query unless it has been; ``parameters`` are a request's, in JSON.

        Raises:
            QueryError: BigQuery refuses the query.
        """
        # To start makes the table anew if it has expired: it would be empty, and the query not run again.
        if not self._jobs.is_started(name):
            typed = _typed(parse_parameters(parameters))
            self._jobs.start(name, text, typed, maximum_bytes_billed=maximum_bytes_billed, keep=_KEEP)

    def wait(self, name: str, should_stop: Callable[[], bool]) -> SelectedTable:
        """Return what the run ``name`` selected once it is done; ``should_stop`` cancels it.

        Raises:
            QueryStoppedError: it was cancelled.
            QueryTooLargeError: it would read more than its cap.
            QueryError, WarehouseError: it failed.
            SelectionGoneError: its table has expired, or BigQuery has forgotten it.
        """
        try:
            return self._jobs.wait(name, should_stop)
        except (TableNotFoundError, JobNotFoundError) as exc:
            raise _gone(name) from exc

    def open_run(self, name: str) -> str:
        """Return the name under which the run ``name`` goes on.

        A run that was cancelled, or that BigQuery gave up for reasons of its own, can't be repeated under its
        name: then it is one made of it, and always the same one until that is spent too.
        """
        for number in range(1, _MAX_RUNS + 1):
            found = name if number == 1 else f"{name}-{number}"
            if not self._jobs.is_spent(found):
                return found
        raise QueryTooLargeError(f"The query of {name} has ended {_MAX_RUNS} times without a result.")

    def read(self, table: str, columns: Sequence[str] = ()) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return a table's schema and its rows as they come, several streams at once.

        Without ``columns`` all are sent.

        Raises:
            WarehouseError: while it is read, too.
        """
        session = open_session(
            self._clients,
            TableId.parse(table, self._place.connection.project),
            max_streams=_STREAMS,
            columns=columns,
        )
        return session.arrow_schema(), read_session(self._clients, session)


def cap_of(bytes_scanned: int, max_bytes_billed: int | None) -> int:
    """Return what a query may be billed: what its caller says, else twice the dry run's bytes, or 100 MiB.

    Example:
        >>> cap_of(2**40, None) == 2**41, cap_of(5, None), cap_of(5, 10_000_000)
        (True, 104857600, 10000000)
    """
    return max_bytes_billed or max(_GROWTH * bytes_scanned, _LEAST_BYTES_BILLED)


def select_rows(
    folder: JobFolder,
    epoch: int,
    query: Mapping[str, Any],
    place: BigQueryPlace,
    options: RunOptions,
) -> Selection:
    """Run a backfill's query, or find it run, and keep its rows as the lake's are kept.

    Raises:
        QueryStoppedError: the attempt is to stop; then the query is cancelled.
        SelectionTooLargeError: there are more rows than ``max_rows``, or more than the deployment allows.
        SelectionGoneError: the rows were kept by a plan and have expired.
        QueryError, WarehouseError: the query failed.
    """
    with closing(BigQueryQueries(place)) as queries:
        table = _run(queries, folder, epoch, query)
        if options.max_rows is not None and table.rows > options.max_rows:
            raise SelectionTooLargeError(
                f"The query selects {table.rows} rows, max_rows allows {options.max_rows}.",
                max_rows=options.max_rows,
            )
        check_selection(table.rows, table.bytes, options.bounds)
        failpoint.hit("bigquery.selection.made")
        found = queries.read(table.table)
        if options.by_key:
            return _write_by_key(found, folder, epoch, query["memory"], options)
        rows = _until_stopped(found[1], folder, epoch)
        return write_selection(rows, folder.selection, max_rows=options.max_rows, bounds=options.bounds)


def _run(queries: BigQueryQueries, folder: JobFolder, epoch: int, query: Mapping[str, Any]) -> SelectedTable:
    """Return what the query selected, of the plan that materialised it or of the backfill's own run."""

    def is_told_to_stop() -> bool:
        control = folder.read_control()
        if control.epoch != epoch:
            # The other attempt waits for the same query: it stays.
            raise QueryStoppedError("Another attempt has taken over.")
        return control.order is Order.STOP

    if query["plan"] is not None:
        return queries.wait(query["plan"], is_told_to_stop)
    while True:
        name = queries.open_run(folder.name)
        queries.start(name, query["sql"], query["parameters"], maximum_bytes_billed=query["maximum_bytes_billed"])
        failpoint.hit("bigquery.selection.started")
        try:
            return queries.wait(name, is_told_to_stop)
        except QueryStoppedError:
            # An attempt before this one may have cancelled it a moment ago.
            if not folder.may_go_on(epoch):
                raise


def _write_by_key(
    found: tuple[pa.Schema, Iterator[pa.RecordBatch]],
    folder: JobFolder,
    epoch: int,
    memory: str,
    options: RunOptions,
) -> Selection:
    schema, rows = found
    faults: list[RefeedError] = []

    def remembered() -> Iterator[pa.RecordBatch]:
        # What is raised under the engine that sorts comes out of it as an error of the engine.
        try:
            yield from rows
        except RefeedError as exc:
            faults.append(exc)
            raise

    try:
        with (
            folder.scratch() as spill,
            open_rows_query(
                pa.RecordBatchReader.from_batches(schema, remembered()),
                render_in_key_order("SELECT * FROM refeed_rows"),
                QueryLimits(memory, spill, min_free_bytes=options.bounds.min_free_bytes),
                should_stop=lambda: not folder.may_go_on(epoch),
            ) as ordered,
        ):
            return write_selection(
                ordered, folder.selection, by_key=True, max_rows=options.max_rows, bounds=options.bounds
            )
    except QueryError:
        if faults:
            raise faults[0] from None
        raise


def _until_stopped(rows: Iterator[pa.RecordBatch], folder: JobFolder, epoch: int) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        if not folder.may_go_on(epoch):
            raise QueryStoppedError
        yield batch


def _typed(parameters: Mapping[str, Any]) -> dict[str, QueryParameter]:
    return {name: QueryParameter(given.type, given.value) for name, given in parameters.items()}


def _gone(name: str) -> SelectionGoneError:
    return SelectionGoneError(
        f"What the query of {name} selected has expired: it is kept for {_KEEP.days} days. Create a new backfill.",
        id=name,
    )
