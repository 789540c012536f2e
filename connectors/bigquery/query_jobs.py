"""Query jobs that have an id of their own: begun once, joined by whoever asks again, waited for."""

import time
from typing import Any, Final

from google.api_core import exceptions as api

from connectors.bigquery.client import ONCE, Clients
from model.errors import WarehouseUnavailableError

_POLL_SECONDS: Final = 0.2


def begin_query(clients: Clients, sql: str, config: Any, job_id: str | None = None) -> Any:
    """Begin a query job and return it; with the id of a job that is there, return that one.

    BigQuery runs an id once, so that a lost answer, or two that begin at once, make one job. What fails comes as
    Google's client raises it: the caller knows what was being done.
    """
    try:
        return clients.rest().query(sql, job_id=job_id, job_config=config, job_retry=None, **ONCE)
    except api.Conflict:
        if job_id is None:
            raise
        return clients.rest().get_job(job_id, **ONCE)


def wait_until_done(job: Any, what: str, *, ends_at: float) -> None:
    """Return when the job has ended, well or not; ``ends_at`` is by the monotonic clock.

    Raises:
        WarehouseUnavailableError: it has not by then; it goes on by itself.
    """
    while job.state != "DONE":
        if time.monotonic() > ends_at:
            raise WarehouseUnavailableError(f"{what}: job {job.job_id} has not ended.")
        time.sleep(_POLL_SECONDS)
        job.reload(**ONCE)
