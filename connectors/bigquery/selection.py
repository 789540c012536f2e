"""A backfill's query as BigQuery runs it: tried dry, run once into a table of its own, capped, cancelled."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.api_core import exceptions as api
from google.cloud import bigquery

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import JOB_ROLE, SDK_ERRORS, error_from, our_errors, retry_passing
from connectors.bigquery.query_jobs import begin_query
from connectors.bigquery.tables import TableId
from model.errors import (
    IdempotencyKeyReusedError,
    JobNotFoundError,
    QueryError,
    QueryStoppedError,
    QueryTooLargeError,
    RefeedError,
    WarehouseError,
)

_RETRY_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.5
FINGERPRINT: Final = "refeed_fingerprint"
# "BigQuery error messages" (Google), and what the service says of maximum_bytes_billed.
_TOO_LARGE: Final = frozenset(
    {"bytesBilledLimitExceeded", "billingTierLimitExceeded", "resourcesExceeded", "responseTooLarge", "timeout"}
)
_QUERY_FAULTS: Final = frozenset({"invalidQuery", "invalid", "notFound"})


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A named parameter; ``type`` is STRING, INT64 ... or ARRAY<...> of one, ``value`` what Python has for it."""

    type: str
    value: Any


@dataclass(frozen=True, slots=True)
class DryRunAnswer:
    """What a query would do: ``job`` is the API's own JSON, for whoever compares it with the gate's judgement."""

    bytes_scanned: int
    job: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SelectedTable:
    """The rows that a query selected, in a table that belongs to its job and expires."""

    table: str
    rows: int
    bytes: int
    bytes_billed: int
    expires_at: datetime


class SelectionJobs:
    """The query jobs of backfills: each has the backfill's id in its own, so that it is run once.

    ``dataset`` is where selections are kept; it has to lie in the archive's location.
    """

    def __init__(self, clients: Clients, dataset: TableId) -> None:
        self._clients = clients
        self._dataset = dataset

    def dry_run(self, sql: str, parameters: Mapping[str, QueryParameter]) -> DryRunAnswer:
        """Ask what the query would do; it costs nothing and reads nothing.

        Raises:
            QueryError: BigQuery refuses the query.
        """
        config = self._config(parameters)
        config.dry_run = True
        config.use_query_cache = False

        def call() -> DryRunAnswer:
            with query_errors("trying the query"):
                job = self._clients.rest().query(sql, job_config=config, job_retry=None, **ONCE)
            return DryRunAnswer(int(job.total_bytes_processed or 0), dict(job._properties))  # noqa: SLF001 no other way to its JSON

        return retry_passing(call, seconds=_RETRY_SECONDS)

    def start(
        self,
        backfill: str,
        sql: str,
        parameters: Mapping[str, QueryParameter],
        *,
        maximum_bytes_billed: int,
        keep: timedelta,
    ) -> str:
        """Start the backfill's query, or find it started, and return its job's id.

        A query that would read more than ``maximum_bytes_billed`` fails without reading or costing anything.

        Raises:
            IdempotencyKeyReusedError: the backfill has a job with another query.
            QueryError: BigQuery refuses the query.
            WarehousePermissionError, WarehouseUnavailableError, QuotaExceededError: as they say.
        """
        mark = fingerprint(sql, parameters)
        self._create_table(backfill, datetime.now(UTC) + keep)
        config = self._config(parameters)
        config.destination = str(self.table_of(backfill))
        config.write_disposition = "WRITE_TRUNCATE"
        config.create_disposition = "CREATE_NEVER"
        config.maximum_bytes_billed = maximum_bytes_billed
        config.use_query_cache = False
        config.destination_encryption_configuration = self._encryption()
        config.labels = {
            **config.labels,
            "refeed_backfill": _name(backfill),
            FINGERPRINT: mark,
        }

        def call() -> str:
            with query_errors(f"starting the query of {backfill}"):
                job = begin_query(self._clients, sql, config, job_id(backfill))
            if (job.labels or {}).get(FINGERPRINT) != mark:
                raise IdempotencyKeyReusedError(f"{backfill} has a query job already, with another query.")
            return str(job.job_id)

        return retry_passing(call, seconds=_RETRY_SECONDS)

    def wait(self, backfill: str, is_stopping: Callable[[], bool] = lambda: False) -> SelectedTable:
        """Return the selection once its query is done; whoever asks again gets the same.

        Raises:
            JobNotFoundError: it was never started, or so long ago that BigQuery has forgotten it.
            QueryStoppedError: it was cancelled, or ``is_stopping``; then it is cancelled.
            QueryTooLargeError: it would read more than its cap, or needs more than BigQuery gives.
            QueryError: it failed for good.
            WarehouseError: it failed otherwise; a new backfill may do.
        """
        is_cancelled = False
        while True:
            job = self._read(backfill)
            if job.state == "DONE":
                break
            if is_stopping() and not is_cancelled:
                self.cancel(backfill)
                is_cancelled = True
            time.sleep(_POLL_SECONDS)
        if job.error_result is not None:
            raise job_error(job, f"The query of {backfill} failed")

        def call() -> SelectedTable:
            with our_errors(f"reading the selection of {backfill}"):
                table = self._clients.rest().get_table(str(self.table_of(backfill)), **ONCE)
            return SelectedTable(
                str(self.table_of(backfill)),
                int(table.num_rows),
                int(table.num_bytes or 0),
                int(job.total_bytes_billed or 0),
                table.expires,
            )

        return retry_passing(call, seconds=_RETRY_SECONDS)

    def is_started(self, backfill: str) -> bool:
        """Say whether there is a query of it, whatever became of it."""
        try:
            self._read(backfill)
        except JobNotFoundError:
            return False
        return True

    def is_spent(self, backfill: str) -> bool:
        """Say whether the query ended without a selection for reasons that are not its own: another run may do."""
        try:
            job = self._read(backfill)
        except JobNotFoundError:
            return False
        if job.state != "DONE" or job.error_result is None:
            return False
        return job.error_result.get("reason") not in _TOO_LARGE | _QUERY_FAULTS

    def cancel(self, backfill: str) -> None:
        """Ask BigQuery to stop the query; one that is done, or was never started, stays as it is."""

        def call() -> None:
            with our_errors(f"cancelling the query of {backfill}", JOB_ROLE):
                try:
                    self._clients.rest().cancel_job(job_id(backfill), **ONCE)
                except api.NotFound:
                    return

        retry_passing(call, seconds=_RETRY_SECONDS)

    def drop(self, backfill: str) -> None:
        """Delete the selection's table before it expires; one that is gone is fine."""

        def call() -> None:
            with our_errors(f"deleting the selection of {backfill}"):
                self._clients.rest().delete_table(str(self.table_of(backfill)), not_found_ok=True, **ONCE)

        retry_passing(call, seconds=_RETRY_SECONDS)

    def table_of(self, backfill: str) -> TableId:
        """Return where the backfill's selection is kept."""
        return TableId(self._dataset.project, self._dataset.dataset, f"refeed_selection_{_name(backfill)}")

    def _create_table(self, backfill: str, expires: datetime) -> None:
        """Create the table empty, with its expiry: a job that dies leaves nothing for ever."""
        table = bigquery.Table(str(self.table_of(backfill)))
        table.expires = expires
        table.description = f"What the query of backfill {backfill} selected."
        table.labels = {**self._labels(), "refeed_backfill": _name(backfill)}

        table.encryption_configuration = self._encryption()

        def call() -> None:
            with our_errors(f"creating the selection of {backfill}"):
                self._clients.rest().create_table(table, exists_ok=True, **ONCE)

        retry_passing(call, seconds=_RETRY_SECONDS)

    def _read(self, backfill: str) -> Any:
        def call() -> Any:
            with our_errors(f"asking for the query of {backfill}", JOB_ROLE):
                try:
                    return self._clients.rest().get_job(job_id(backfill), **ONCE)
                except api.NotFound as exc:
                    raise JobNotFoundError(f"BigQuery knows no query of {backfill}.") from exc

        return retry_passing(call, seconds=_RETRY_SECONDS)

    def _config(self, parameters: Mapping[str, QueryParameter]) -> Any:
        return bigquery.QueryJobConfig(
            query_parameters=[parameter_of(name, given) for name, given in parameters.items()],
            labels=self._labels(),
        )

    def _encryption(self) -> Any:
        """Return the key that selections are kept with, as the archive is; None is Google's own."""
        key = self._clients.connection.kms_key
        return bigquery.EncryptionConfiguration(kms_key_name=key) if key else None

    def _labels(self) -> dict[str, str]:
        return self._clients.connection.labels_for("backfill")


def job_id(backfill: str) -> str:
    """Return the id of a backfill's query job.

    Example:
        >>> job_id("bf_01HZX")
        'refeed-selection-bf_01HZX'
    """
    return f"refeed-selection-{backfill}"


def _name(backfill: str) -> str:
    """Return the id as tables and labels may hold it: lower-case letters, digits and _."""
    return re.sub(r"[^a-z0-9_]", "_", backfill.lower())


def fingerprint(sql: str, parameters: Mapping[str, QueryParameter]) -> str:
    """Return what tells this query from any other, short enough for a label."""
    document = [sql, [[name, given.type, repr(given.value)] for name, given in sorted(parameters.items())]]
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:40]


def parameter_of(name: str, given: QueryParameter) -> Any:
    """Return a parameter as Google's client takes it."""
    array = re.fullmatch(r"ARRAY<\s*(\w+)\s*>", given.type)
    if array:
        return bigquery.ArrayQueryParameter(name, array[1], list(given.value or ()))
    return bigquery.ScalarQueryParameter(name, given.type, given.value)


@contextmanager
def query_errors(what: str) -> Iterator[None]:
    """Raise what BigQuery says against a query as a QueryError, everything else as :func:`our_errors` does."""
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
    """Return our error for a job that has failed; ``what`` says of which."""
    reason, message = job.error_result.get("reason"), job.error_result.get("message")
    text = f"{what}: {message}"
    if reason == "stopped":
        return QueryStoppedError(text)
    if reason in _TOO_LARGE:
        return QueryTooLargeError(text)
    if reason in _QUERY_FAULTS:
        return QueryError(text)
    return WarehouseError(text, reason=reason)
