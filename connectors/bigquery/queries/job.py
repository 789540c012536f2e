"""Query jobs: built, begun once, waited for and read in one way, their errors told apart."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from google.api_core import exceptions as api
from google.cloud import bigquery

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import (
    JOB_ROLE,
    PATIENCE_SECONDS,
    SDK_ERRORS,
    Result,
    call_bigquery,
    error_from,
    find_in_bigquery,
)
from connectors.patience import retry_passing
from model.errors import (
    QueryError,
    QueryStoppedError,
    QueryTooLargeError,
    RefeedError,
    WarehouseError,
    WarehouseUnavailableError,
)

# The label that identifies a job's query.
FINGERPRINT: Final = "refeed_fingerprint"
_ANSWER_RETRY_SECONDS: Final = 60.0
_MIN_POLL_SECONDS: Final = 0.05
_MAX_POLL_SECONDS: Final = 1.0
# "BigQuery error messages" (Google), and what the service says of maximum_bytes_billed.
_TOO_LARGE: Final = frozenset(
    {"bytesBilledLimitExceeded", "billingTierLimitExceeded", "resourcesExceeded", "responseTooLarge", "timeout"}
)
_TYPES: Final[Mapping[type, str]] = {str: "STRING", int: "INT64", datetime: "TIMESTAMP"}
_QUERY_FAULTS: Final = frozenset({"invalidQuery", "invalid", "notFound"})


@dataclass(frozen=True, slots=True)
class NamedParameter:
    """A named parameter; ``type`` is STRING, INT64 ... or ARRAY<...> of one, ``value`` what Python has for it."""

    type: str
    value: Any

    def to_bigquery(self, name: str) -> Any:
        """Return the parameter as Google's client takes it."""
        array = re.fullmatch(r"ARRAY<\s*(\w+)\s*>", self.type)
        if array:
            return bigquery.ArrayQueryParameter(name, array[1], list(self.value or ()))
        return bigquery.ScalarQueryParameter(name, self.type, self.value)


def typed(values: Mapping[str, str | int | datetime]) -> dict[str, NamedParameter]:
    """Return parameters of the types that their Python values have.

    Example:
        >>> typed({"topic": "orders"})
        {'topic': NamedParameter(type='STRING', value='orders')}
    """
    return {name: NamedParameter(_TYPES[type(value)], value) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class QueryJob:
    """A statement as BigQuery runs it; ``use`` labels it, so that a bill can be grouped by use.

    With an ``id`` it runs once, however many processes begin it, because BigQuery runs an id once. ``options`` are
    further properties of Google's QueryJobConfig. BigQuery's cache is not used unless they say so.
    """

    clients: Clients
    sql: str
    use: str
    parameters: Mapping[str, NamedParameter] = field(default_factory=dict)
    id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def begin(self) -> Any:
        """Begin the job and return it, or return the job that has its id already.

        Google's exceptions come as they are: the caller knows what was being done.
        """
        client = self.clients.rest()
        try:
            return client.query(
                self.sql, job_id=self.id, job_config=self._config(self.options), job_retry=None, **ONCE
            )
        except api.Conflict:
            if self.id is None:
                raise
            # The answer to an earlier try was lost, or another process was quicker.
            return client.get_job(self.id, **ONCE)

    def start(self, what: str, *, seconds: float = PATIENCE_SECONDS) -> Any:
        """Return the job that :meth:`begin` returns; what fails in passing is repeated for ``seconds``.

        Raises:
            QueryError, WarehouseError: as :func:`query_errors` raises them.
        """
        return self._retry(self.begin, what, seconds)

    def dry_run(self, what: str) -> Any:
        """Return the job as it would be; it reads nothing and costs nothing.

        Raises:
            QueryError, WarehouseError: as :func:`query_errors` raises them.
        """
        config = self._config({"dry_run": True})
        return self._retry(
            lambda: self.clients.rest().query(self.sql, job_config=config, job_retry=None, **ONCE),
            what,
            PATIENCE_SECONDS,
        )

    def rows(self, what: str) -> list[Any]:
        """Run the statement and return its rows, few enough to keep; it raises what :meth:`read` does."""
        return self.read(what, list)

    def read(self, what: str, read: Callable[[Any], Result], *, seconds: float = PATIENCE_SECONDS) -> Result:
        """Run the statement and return what ``read`` makes of its rows, which Google's client iterates over.

        Without an ``id`` a DML statement whose answer was lost may run again: twice has to be the same as once.

        Raises:
            WarehouseError: BigQuery failed, refuses it, or did not answer within ``seconds``.
        """
        return call_bigquery(
            lambda: read(self.begin().result(retry=None, timeout=seconds)), what, seconds=seconds, role=JOB_ROLE
        )

    def _retry(self, call: Callable[[], Result], what: str, seconds: float) -> Result:
        def call_once() -> Result:
            with query_errors(what):
                return call()

        return retry_passing(call_once, seconds=seconds)

    def _config(self, options: Mapping[str, Any]) -> Any:
        return bigquery.QueryJobConfig(
            query_parameters=[given.to_bigquery(name) for name, given in self.parameters.items()],
            labels={**self.clients.connection.labels_for(self.use), **self.labels},
            **{"use_query_cache": False, **options},
        )


def find_job(clients: Clients, job_id: str, what: str, *, seconds: float = PATIENCE_SECONDS) -> Any | None:
    """Return the job with this id, None where BigQuery knows none."""
    return find_in_bigquery(lambda: clients.rest().get_job(job_id, **ONCE), what, seconds=seconds, role=JOB_ROLE)


def wait_until_done(
    job: Any,
    what: str,
    *,
    ends_at: float | None = None,
    patience_seconds: float = 0.0,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Return when the job has ended, well or not.

    ``meanwhile`` is called before each pause, and may raise. A look that fails is repeated for
    ``patience_seconds``. ``ends_at`` is by the monotonic clock.

    Raises:
        WarehouseUnavailableError: it has not ended by ``ends_at``; it goes on by itself.
    """
    pause = _MIN_POLL_SECONDS
    while job.state != "DONE":
        if ends_at is not None and time.monotonic() > ends_at:
            raise WarehouseUnavailableError(f"{what}: job {job.job_id} has not ended.")
        meanwhile()
        time.sleep(pause)
        pause = min(pause * 1.5, _MAX_POLL_SECONDS)
        call_bigquery(lambda: job.reload(**ONCE), what, seconds=patience_seconds, role=JOB_ROLE)


def read_answer(
    clients: Clients,
    sql: str,
    parameters: Mapping[str, NamedParameter],
    *,
    maximum_bytes_billed: int,
    max_rows: int,
    seconds: float,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[pa.Table, bool]:
    """Return up to ``max_rows`` rows of a query that a person waits for, and whether there are more.

    A query that would read more than ``maximum_bytes_billed`` fails without reading or costing anything.

    Raises:
        QueryTooLargeError: it would read more, or takes longer than ``seconds``; then it is cancelled.
        QueryStoppedError: ``should_stop``, which is called every second, returned True; then it is cancelled too.
        QueryError, WarehouseError: as :func:`query_errors` raises them.
    """
    patience = _ANSWER_RETRY_SECONDS
    options = {"maximum_bytes_billed": maximum_bytes_billed, "use_query_cache": True}
    job = QueryJob(clients, sql, "query", parameters, options=options).start(
        "starting the query", seconds=patience
    )
    ends_at = time.monotonic() + seconds

    def cancel_in_time() -> None:
        failure: RefeedError
        if should_stop():
            failure = QueryStoppedError()
        elif time.monotonic() > ends_at:
            failure = QueryTooLargeError(f"The query took longer than {seconds:g} s and was cancelled.")
        else:
            return
        call_bigquery(lambda: job.cancel(**ONCE), "cancelling the query", seconds=patience, role=JOB_ROLE)
        raise failure

    wait_until_done(job, "asking for the query", patience_seconds=patience, meanwhile=cancel_in_time)
    if job.error_result is not None:
        raise job_error(job, "The query failed")

    def read() -> pa.Table:
        rows = job.result(max_results=max_rows + 1, retry=None, timeout=patience)
        return rows.to_arrow(create_bqstorage_client=False)

    table = call_bigquery(read, "reading the query's rows", seconds=patience, role=JOB_ROLE)
    return table.slice(0, max_rows), table.num_rows > max_rows


def fingerprint(sql: str, parameters: Mapping[str, NamedParameter]) -> str:
    """Return a digest of the query and its parameters, short enough for a label."""
    document = [sql, [[name, given.type, repr(given.value)] for name, given in sorted(parameters.items())]]
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:40]


@contextmanager
def query_errors(what: str) -> Iterator[None]:
    """Raise BigQuery's complaints about a query as a QueryError, every other error as ``our_errors`` does."""
    try:
        yield
    except SDK_ERRORS as exc:
        raise _query_error(exc, what) from exc


def _query_error(exc: Exception, what: str) -> RefeedError:
    found = error_from(exc, what, JOB_ROLE)
    reason = found.details.get("reason")
    if reason in _TOO_LARGE:
        return QueryTooLargeError(found.message)
    if isinstance(exc, api.BadRequest | api.NotFound) and (reason in _QUERY_FAULTS or reason is None):
        return QueryError(found.message)
    return found


def job_error(job: Any, what: str) -> RefeedError:
    """Return our error for a job that has failed; ``what`` names the job."""
    reason, message = job.error_result.get("reason"), job.error_result.get("message")
    text = f"{what}: {message}"
    if reason == "stopped":
        return QueryStoppedError(text)
    if reason in _TOO_LARGE:
        return QueryTooLargeError(text)
    if reason in _QUERY_FAULTS:
        return QueryError(text)
    return WarehouseError(text, reason=reason)


def is_own_fault(reason: str | None) -> bool:
    """Whether a failure with this reason is the query's own: running it again would fail again."""
    return reason in _TOO_LARGE | _QUERY_FAULTS
