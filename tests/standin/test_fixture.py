from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from tests.standin.fixture import PROJECT


def test_google_s_client_finds_the_stand_in_by_its_variable(shared_standin, dataset, monkeypatch):
    for name, value in shared_standin.environment.items():
        monkeypatch.setenv(name, value)
    with bigquery.Client(project=PROJECT, credentials=AnonymousCredentials()) as client:
        assert client.get_dataset(dataset).dataset_id == dataset
    assert shared_standin.environment["REFEED_BIGQUERY_STORAGE_HOST"] == f"127.0.0.1:{shared_standin.grpc_port}"


def test_what_was_called_is_on_record(shared_standin, dataset):
    client = shared_standin.client()
    client.get_dataset(dataset)
    shared_standin.clear_log()
    client.get_dataset(dataset)
    [call] = shared_standin.calls("datasets.get")
    assert call["resource"] == f"/projects/{PROJECT}/datasets/{dataset}"
    assert call["outcome"] == "ok"
    assert shared_standin.counts() == {"datasets.get": 1}
