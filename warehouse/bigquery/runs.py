"""A replay's query in BigQuery: tried dry, run once into a table of its own, read back as Arrow."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

import pyarrow as pa

from connectors.bigquery.client import Clients
from connectors.bigquery.queries.job import NamedParameter, read_answer
from connectors.bigquery.queries.reader import open_session, read_session
from connectors.bigquery.queries.selections import SelectedTable, SelectionJobs
from connectors.bigquery.table_id import TableId
from model.errors import JobNotFoundError, QueryTooLargeError, SelectionGoneError, TableNotFoundError
from sql.agreement import check_agreement, parse_dry_run
from sql.parameters import Parameter
from sql.validate import ValidatedQuery
from warehouse.figures import SELECTION_KEPT_DAYS

_KEEP: Final = timedelta(days=SELECTION_KEPT_DAYS)
_STREAMS: Final = 4
# An archive grows between the dry run and the run; a young one to many times its size, at less than a cent a GiB.
_GROWTH: Final = 2
_LEAST_BYTES_BILLED: Final = 2**30
_MAX_RUNS: Final = 100


class QueryRuns:
    """Queries over one archive. A run has a name, of a backfill or a plan: under it the query runs once.

    Selections lie in the archive's dataset, so that they are in its location too.
    """

    def __init__(self, archive: TableId, clients: Clients) -> None:
        self._project = clients.connection.project
        self._clients = clients
        self._jobs = SelectionJobs(clients, archive)

    def measure(self, query: ValidatedQuery, *, behind: Collection[str] = ()) -> int:
        """Return how many bytes the query would read; it costs nothing.

        ``behind`` are the full names of tables behind the views that it may read.

        Raises:
            QueryError: BigQuery refuses it.
            QueryDisagreesError: BigQuery understands it otherwise than the gate.
        """
        answer = self._jobs.dry_run(query.text, typed_as_given(query.parameters))
        check_agreement(query, parse_dry_run(answer.job), project=self._project, behind=behind)
        return answer.bytes_scanned

    def answer(
        self,
        query: ValidatedQuery,
        *,
        max_rows: int,
        seconds: float,
        behind: Collection[str] = (),
    ) -> tuple[pa.Table, bool]:
        """Return up to ``max_rows`` rows of the query, and whether there are more; it is billed and capped.

        ``behind`` are the full names of tables behind the views that it may read.

        Raises:
            QueryTooLargeError: it would read more than its cap.
            QueryError: BigQuery refuses it, or it takes too long.
            QueryDisagreesError: BigQuery understands it otherwise than the gate.
        """
        scanned = self.measure(query, behind=behind)
        return read_answer(
            self._clients,
            query.text,
            typed_as_given(query.parameters),
            maximum_bytes_billed=cap_of(scanned, None),
            max_rows=max_rows,
            seconds=seconds,
        )

    def start(
        self, name: str, text: str, parameters: Mapping[str, Parameter], *, maximum_bytes_billed: int
    ) -> None:
        """Start the run ``name`` of a query unless it has been started."""
        # Starting a run creates its table: one that had expired would be empty, and the query not run again.
        if not self._jobs.is_started(name):
            typed = typed_as_given(parameters)
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

        Without ``columns`` all are sent. Errors may come while it is read, too.
        """
        target = TableId.parse(table, self._project)
        session = open_session(self._clients, target, max_streams=_STREAMS, columns=columns)
        return session.arrow_schema(), read_session(self._clients, session)


def cap_of(bytes_scanned: int, max_bytes_billed: int | None) -> int:
    """Return what a query may be billed: what its caller says, else twice the dry run's bytes, or 1 GiB.

    Example:
        >>> cap_of(2**40, None) == 2**41, cap_of(5, None), cap_of(5, 10_000_000)
        (True, 1073741824, 10000000)
    """
    return max_bytes_billed or max(_GROWTH * bytes_scanned, _LEAST_BYTES_BILLED)


def typed_as_given(parameters: Mapping[str, Parameter]) -> dict[str, NamedParameter]:
    """Return a request's parameters as a query job takes them."""
    return {name: NamedParameter(given.type, given.value) for name, given in parameters.items()}


def _gone(name: str) -> SelectionGoneError:
    return SelectionGoneError(
        f"The selected rows of {name} have expired, because BigQuery keeps them for only {_KEEP.days} days. "
        "Create a new backfill.",
        id=name,
    )
