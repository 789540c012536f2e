"""Which of Google's endpoints, or which local server, a channel goes to."""

import google.auth
import google.auth.transport.grpc
import pytest
from google.auth.credentials import AnonymousCredentials

from connectors.pubsub.backlog import MonitoredBacklog, open_backlog
from connectors.pubsub.channel import open_channel
from model.errors import SettingsError
from model.settings import read_settings


@pytest.fixture
def targets(monkeypatch):
    """The hosts that secure channels were opened to; credentials are nobody's."""
    found = []

    def open_secure(_credentials, _request, target, **_):
        found.append(target)

    monkeypatch.setattr(google.auth, "default", lambda **_: (AnonymousCredentials(), "shop"))
    monkeypatch.setattr(google.auth.transport.grpc, "secure_authorized_channel", open_secure)
    return found


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({}, "pubsub.googleapis.com:443"),
        (
            {"REFEED_PUBSUB_ENDPOINT": "europe-west1-pubsub.googleapis.com"},
            "europe-west1-pubsub.googleapis.com:443",
        ),
        (
            {"REFEED_PUBSUB_ENDPOINT": "pubsub.europe-west1.rep.googleapis.com:443"},
            "pubsub.europe-west1.rep.googleapis.com:443",
        ),
    ],
)
def test_a_channel_goes_to_the_endpoint_of_the_settings(targets, given, target):
    open_channel(read_settings({"HOME": "/somewhere", **given}).pubsub_address)
    assert targets == [target]


def test_a_local_server_wins_over_an_endpoint(targets):
    environment = {
        "PUBSUB_EMULATOR_HOST": "127.0.0.1:1",
        "REFEED_PUBSUB_ENDPOINT": "europe-west1-pubsub.googleapis.com",
    }
    settings = read_settings({"HOME": "/somewhere", **environment})
    open_channel(settings.pubsub_address).close()
    assert (settings.is_embedded, targets) == (True, [])


def test_an_endpoint_s_backlog_is_measured_by_cloud_monitoring(monkeypatch):
    opened = object()
    monkeypatch.setattr(MonitoredBacklog, "open", lambda _: opened)
    assert open_backlog("projects/p/subscriptions/s", "https://europe-west1-pubsub.googleapis.com:443") is opened


@pytest.mark.parametrize("host", ["pubsub.example.com", "https://pubsub.googleapis.com", "x.googleapis.com/path"])
def test_credentials_are_sent_to_google_alone(host):
    with pytest.raises(SettingsError, match="REFEED_PUBSUB_ENDPOINT"):
        read_settings({"HOME": "/somewhere", "REFEED_PUBSUB_ENDPOINT": host})
