"""One small query of Refeed's own, asked until it is answered."""

from collections.abc import Mapping
from typing import Any, Final

from google.cloud import bigquery

from connectors.bigquery.client import Clients
from connectors.bigquery.errors import JOB_ROLE, our_errors, retry_passing
from connectors.bigquery.query_jobs import begin_query
from connectors.bigquery.selection import QueryParameter, parameter_of

_SECONDS: Final = 120.0


def run_query(
    clients: Clients,
    what: str,
    sql: str,
    parameters: Mapping[str, QueryParameter] | None = None,
    *,
    job_id: str | None = None,
    seconds: float = _SECONDS,
) -> Any:
    """Return the rows of a statement, as Google's client iterates over them; ``what`` is being done by it.

    With a ``job_id`` it runs once, whoever asks how often. Without one a DML statement whose answer was lost may
    run again: it has to come to the same.

    Raises:
        WarehouseError: BigQuery failed, refuses it, or did not answer within ``seconds``.
    """
    config = bigquery.QueryJobConfig(
        query_parameters=[parameter_of(name, given) for name, given in (parameters or {}).items()],
        use_query_cache=False,
        labels={"app": "refeed", **dict(clients.connection.labels)},
    )

    def call() -> Any:
        with our_errors(what, JOB_ROLE):
            return begin_query(clients, sql, config, job_id).result(retry=None, timeout=seconds)

    return retry_passing(call, seconds=seconds)
