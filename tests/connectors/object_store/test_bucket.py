"""The client of a bucket: the accounts that it can use, and those that it can't."""

import json
import re

import pytest

from connectors.object_store.files import open_bucket_files
from model.errors import FolderCredentialsError
from tests.standin.gcs_server import running_gcs
from tests.worlds.http import Answer, answering


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch, tmp_path):
    for name in ("GOOGLE_SERVICE_ACCOUNT_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "shop")


def test_a_federated_account_of_google_s_is_used_as_for_pubsub(monkeypatch, tmp_path):
    """Workload identity federation: a token of another cloud is exchanged for one of Google's."""
    tokens = []

    def exchange(call):
        tokens.append(call)
        token = {"access_token": "google-token", "token_type": "Bearer", "expires_in": 3600}
        kind = {"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
        return Answer(200, json.dumps(token | kind).encode(), {"Content-Type": "application/json"})

    with running_gcs("jobs") as gcs, answering(exchange) as url:
        (tmp_path / "subject").write_text("another cloud's token")
        account = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{url}/token",
            "credential_source": {"file": str(tmp_path / "subject")},
        }
        (tmp_path / "account.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
        monkeypatch.setenv("GOOGLE_BASE_URL", gcs.url)
        files = open_bucket_files("gs://jobs/refeed")
        files.write("a", b"1")
        assert files.read("a") == b"1"
        assert gcs.authorizations == {"Bearer google-token"}
    assert b"another+cloud%27s+token" in tokens[0].body


@pytest.mark.parametrize("content", [None, "{}", "no JSON"])
def test_an_account_that_nobody_can_use_is_an_error_that_says_what_to_do(monkeypatch, tmp_path, content):
    path = tmp_path / "account.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(FolderCredentialsError, match="gcloud auth application-default login"):
        open_bucket_files("gs://jobs/refeed")


def test_a_machine_without_credentials_of_amazon_s_is_told_where_they_come_from(monkeypatch):
    asked = []

    def refuse(call):
        asked.append(call.path)
        return Answer(403)

    with answering(refuse) as url:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", url)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        with pytest.raises(FolderCredentialsError, match=re.escape("Set AWS_ACCESS_KEY_ID")):
            open_bucket_files("s3://jobs/refeed").list()
    assert asked
