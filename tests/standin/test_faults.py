import urllib.error
from contextlib import nullcontext

import pytest
import requests
from google.api_core import exceptions
from google.cloud import bigquery


@pytest.fixture
def client(shared_standin):
    with shared_standin.client() as client:
        yield client
    shared_standin.clear_faults()


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("quotaExceeded", exceptions.Forbidden),
        ("rateLimitExceeded", exceptions.Forbidden),
        ("backendError", exceptions.InternalServerError),
        ("accessDenied", exceptions.Forbidden),
    ],
)
def test_the_next_calls_meet_the_error_and_those_after_do_not(shared_standin, client, dataset, reason, error):
    """ "BigQuery API HTTP status and error codes": reasons and codes."""
    shared_standin.fault("datasets.get", reason=reason, count=2, skip=1)
    client.get_dataset(dataset, retry=None)
    for _ in range(2):
        with pytest.raises(error) as refused:
            client.get_dataset(dataset, retry=None)
        assert refused.value.errors[0]["reason"] == reason
    client.get_dataset(dataset, retry=None)
    assert shared_standin.open_faults() == []
    outcomes = [call["outcome"] for call in shared_standin.calls("datasets.get")]
    assert outcomes == ["ok", reason, reason, "ok"]


@pytest.mark.parametrize(("when", "second"), [("before", None), ("after", exceptions.Conflict)])
def test_a_call_can_be_lost_before_and_after_its_work_is_done(shared_standin, client, dataset, when, second):
    shared_standin.fault("tables.insert", "drop", when=when)
    table = bigquery.Table(f"shop.{dataset}.t", [bigquery.SchemaField("a", "STRING")])
    with pytest.raises(requests.exceptions.ConnectionError):
        client.create_table(table, retry=None)
    with pytest.raises(second) if second else nullcontext():
        client.create_table(table, retry=None)


def test_an_order_with_an_unknown_member_is_refused(shared_standin):
    with pytest.raises(urllib.error.HTTPError, match="400"):
        shared_standin.fault("AppendRows", colour="red")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        shared_standin.fault("AppendRows", "explode")
