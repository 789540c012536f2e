"""Where the clients connect."""

import json
import pickle

import pytest

from connectors.bigquery.client import Clients, Connection, process_clients
from connectors.bigquery.errors import our_errors
from model.errors import CredentialsMissingError
from model.settings import read_settings


def connection(**environment: str) -> Connection:
    return Connection.of("shop", read_settings({"HOME": "/home/ada", **environment}).bigquery)


def test_without_settings_it_is_googles_global_endpoint():
    found = connection()
    assert (found.endpoint, found.storage_endpoint, found.location) == (None, None, "US")


def test_regional_endpoints_keep_requests_in_their_location():
    found = connection(REFEED_BIGQUERY_REGIONAL_ENDPOINTS="true", REFEED_BIGQUERY_LOCATION="europe-west3")
    # "BigQuery regional endpoints" (Google).
    assert found.endpoint == "https://bigquery.europe-west3.rep.googleapis.com"
    assert found.storage_endpoint == "bigquerystorage.europe-west3.rep.googleapis.com"


def test_a_stand_in_is_reached_at_its_hosts_without_credentials(shared_standin):
    clients = Clients(connection(**shared_standin.environment))
    assert list(clients.rest().list_datasets(max_results=1)) is not None
    assert clients.write() is clients.write()
    clients.close()
    clients.close()


def test_a_host_without_a_scheme_is_plain_http():
    assert connection(BIGQUERY_EMULATOR_HOST="127.0.0.1:9050").endpoint == "http://127.0.0.1:9050"


def test_a_connection_survives_the_way_to_a_task():
    found = connection(REFEED_BIGQUERY_LABELS="team=data,cost=a")
    assert Connection.from_json(json.loads(json.dumps(found.as_json()))) == found
    assert pickle.loads(pickle.dumps(found)) == found
    assert found.labels == (("cost", "a"), ("team", "data"))


def test_a_process_has_one_set_of_clients_for_a_connection():
    assert process_clients(connection()) is process_clients(connection())
    assert process_clients(connection()) is not process_clients(connection(REFEED_BIGQUERY_LOCATION="EU"))


@pytest.mark.parametrize("client", ["rest", "write", "read"])
def test_without_credentials_the_login_line_is_named(monkeypatch, tmp_path, client):
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(CredentialsMissingError, match="gcloud auth application-default login"), our_errors("x"):
        getattr(Clients(connection()), client)()
