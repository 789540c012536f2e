"""Query jobs: an outcome that BigQuery does not give in time is an error of ours."""

import pytest

from connectors.bigquery.client import Clients, Connection
from connectors.bigquery.queries.job import QueryJob
from model.errors import WarehouseUnavailableError


def test_a_statement_that_takes_too_long_is_one_that_bigquery_did_not_answer(settings, shared_standin):
    clients = Clients(Connection.of("shop", settings.bigquery))
    shared_standin.fault("jobs.run", "delay", seconds=3.0)
    with pytest.raises(WarehouseUnavailableError, match="asking for one"):
        QueryJob(clients, "SELECT 1", "doctor").read("asking for one", list, seconds=0.5)
    shared_standin.clear_faults()
    clients.close()
