"""A backfill's query as BigQuery runs it: tried dry, run once into a table of its own, capped, cancelled."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.cloud import bigquery

from connectors.bigquery.client import ONCE, Clients
from connectors.bigquery.errors import JOB_ROLE, PATIENCE_SECONDS, call_bigquery, find_in_bigquery
from connectors.bigquery.queries.job import (
    FINGERPRINT,
    NamedParameter,
    QueryJob,
    find_job,
    fingerprint,
    is_own_fault,
    job_error,
    wait_until_done,
)
from connectors.bigquery.table_id import TableId
from model.errors import IdempotencyKeyReusedError, JobNotFoundError

_USE: Final = "backfill"


@dataclass(frozen=True, slots=True)
class DryRunAnswer:
    """What a query would do: ``job`` is the API's own JSON, to be compared with the gate's judgement."""

    bytes_scanned: int
    job: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SelectedTable:
    """The rows that a query selected, in a table that belongs to its job and expires."""

    table: str
    rows: int
    bytes: int
    expires_at: datetime


class SelectionJobs:
    """The query jobs of backfills: each has the backfill's id in its own, so that it is run once.

    ``dataset`` is where selections are kept; it has to lie in the archive's location.
    """

    def __init__(self, clients: Clients, dataset: TableId) -> None:
        self._clients = clients
        self._dataset = dataset

    def dry_run(self, sql: str, parameters: Mapping[str, NamedParameter]) -> DryRunAnswer:
        """Ask what the query would do; it costs nothing and reads nothing.

        Raises:
            QueryError: BigQuery refuses the query.
        """
        job = QueryJob(self._clients, sql, _USE, parameters).dry_run("trying the query")
        return DryRunAnswer(int(job.total_bytes_processed or 0), dict(job._properties))  # noqa: SLF001 no other way to its JSON

    def start(
        self,
        backfill: str,
        sql: str,
        parameters: Mapping[str, NamedParameter],
        *,
        maximum_bytes_billed: int,
        keep: timedelta,
    ) -> str:
        """Start the backfill's query, or find it started, and return its job's id.

        A query that would read more than ``maximum_bytes_billed`` fails without reading or costing anything.

        Raises:
            IdempotencyKeyReusedError: the backfill has a job with another query.
            QueryError, WarehouseError: BigQuery refuses the query, or can't be reached.
        """
        mark = fingerprint(sql, parameters)
        self._create_table(backfill, datetime.now(UTC) + keep)
        job = QueryJob(
            self._clients,
            sql,
            _USE,
            parameters,
            id=job_id(backfill),
            labels={"refeed_backfill": _name(backfill), FINGERPRINT: mark},
            options={
                "destination": str(self.table_of(backfill)),
                "write_disposition": "WRITE_TRUNCATE",
                "create_disposition": "CREATE_NEVER",
                "maximum_bytes_billed": maximum_bytes_billed,
                "destination_encryption_configuration": self._encryption(),
            },
        ).start(f"starting the query of {backfill}")
        if (job.labels or {}).get(FINGERPRINT) != mark:
            raise IdempotencyKeyReusedError(f"{backfill} already has a query job for another query.")
        return str(job.job_id)

    def wait(self, backfill: str, is_stopping: Callable[[], bool] = lambda: False) -> SelectedTable:
        """Return the selection once its query is done; every call returns the same.

        Raises:
            JobNotFoundError: it was never started, or so long ago that BigQuery has forgotten it.
            QueryStoppedError: it was cancelled, or ``is_stopping``; then it is cancelled.
            QueryTooLargeError: it would read more than its cap, or needs more than BigQuery gives.
            QueryError: it failed for good.
            WarehouseError: it failed otherwise; a new backfill may do.
        """
        is_cancelled = False

        def cancel_when_stopping() -> None:
            nonlocal is_cancelled
            if not is_cancelled and is_stopping():
                self.cancel(backfill)
                is_cancelled = True

        if (job := self._find(backfill)) is None:
            raise JobNotFoundError(f"BigQuery knows no query of {backfill}.")
        wait_until_done(
            job,
            f"asking for the query of {backfill}",
            patience_seconds=PATIENCE_SECONDS,
            meanwhile=cancel_when_stopping,
        )
        if job.error_result is not None:
            raise job_error(job, f"The query of {backfill} failed")
        name = str(self.table_of(backfill))
        table = call_bigquery(
            lambda: self._clients.rest().get_table(name, **ONCE), f"reading the selection of {backfill}"
        )
        return SelectedTable(
            name,
            int(table.num_rows),
            int(table.num_bytes or 0),
            table.expires,
        )

    def is_started(self, backfill: str) -> bool:
        """Whether there is a query of it, whatever became of it."""
        return self._find(backfill) is not None

    def is_spent(self, backfill: str) -> bool:
        """Whether the query ended without a selection for reasons that are not its own: another run may do."""
        job = self._find(backfill)
        if job is None or job.state != "DONE" or job.error_result is None:
            return False
        return not is_own_fault(job.error_result.get("reason"))

    def cancel(self, backfill: str) -> None:
        """Ask BigQuery to stop the query; one that is done, or was never started, stays as it is."""
        find_in_bigquery(
            lambda: self._clients.rest().cancel_job(job_id(backfill), **ONCE),
            f"cancelling the query of {backfill}",
            role=JOB_ROLE,
        )

    def drop(self, backfill: str) -> None:
        """Delete the selection's table before it expires; one that is gone is fine."""
        call_bigquery(
            lambda: self._clients.rest().delete_table(str(self.table_of(backfill)), not_found_ok=True, **ONCE),
            f"deleting the selection of {backfill}",
        )

    def table_of(self, backfill: str) -> TableId:
        """Return where the backfill's selection is kept."""
        return self._dataset.beside(f"refeed_selection_{_name(backfill)}")

    def _create_table(self, backfill: str, expires: datetime) -> None:
        """Create the table empty, with its expiry: a job that dies leaves nothing for ever."""
        table = bigquery.Table(str(self.table_of(backfill)))
        table.expires = expires
        table.description = f"The rows that the query of backfill {backfill} selected."
        table.labels = {**self._clients.connection.labels_for(_USE), "refeed_backfill": _name(backfill)}
        table.encryption_configuration = self._encryption()
        call_bigquery(
            lambda: self._clients.rest().create_table(table, exists_ok=True, **ONCE),
            f"creating the selection of {backfill}",
        )

    def _find(self, backfill: str) -> Any | None:
        return find_job(self._clients, job_id(backfill), f"asking for the query of {backfill}")

    def _encryption(self) -> Any:
        """Return the key that selections are kept with, as the archive is; None is Google's own."""
        key = self._clients.connection.kms_key
        return bigquery.EncryptionConfiguration(kms_key_name=key) if key else None


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
