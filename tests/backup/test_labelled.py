from unittest.mock import MagicMock

import pytest

from backup.labelled import LabelledTopics
from connectors.pubsub.client import PubSub
from local.server import PubSubServer
from model.settings import read_settings
from streams.status import StatusFile
from tests.labels import label_topic


@pytest.fixture
def pubsub(tmp_path):
    with PubSubServer(tmp_path / "pubsub") as server, PubSub("shop", server.emulator_host) as client:
        yield client


@pytest.fixture
def settings_with(tmp_path, pubsub):
    def read(label):
        env = {"REFEED_PROJECT": "shop", "REFEED_BACKUP_LABEL": label}
        return read_settings(env, home=tmp_path / "home")

    return read


@pytest.fixture
def status(tmp_path):
    return StatusFile(tmp_path / "status.json")


def test_a_topic_with_the_label_is_attached_once(pubsub, settings_with, status):
    for topic in ("orders", "members"):
        pubsub.create_topic(topic)
    label_topic(pubsub, "orders", backup="yes")
    labelled = LabelledTopics(settings_with("backup=yes"), status)
    assert labelled.attach_new(pubsub) == ["orders"]
    assert labelled.attach_new(pubsub) == []
    before = status.fields()["attached"]["orders"]
    label_topic(pubsub, "members", backup="yes")
    assert labelled.attach_new(pubsub) == ["members"]
    attached = status.fields()["attached"]
    assert (attached.keys(), attached["orders"]) == ({"orders", "members"}, before)
    assert [s.id for s in pubsub.list_subscriptions()] == ["refeed-backup.members", "refeed-backup.orders"]


def test_a_subscription_of_another_deployment_does_not_stop_the_others(pubsub, settings_with, status):
    for topic in ("members", "orders"):
        pubsub.create_topic(topic)
        label_topic(pubsub, topic, backup="yes")
    pubsub.create_subscription("refeed-backup.members", "orders")
    assert LabelledTopics(settings_with("backup=yes"), status).attach_new(pubsub) == ["orders"]


def test_a_backup_that_was_detached_is_named_and_not_taken_for_one(pubsub, settings_with, status, monkeypatch):
    pubsub.create_topic("orders")
    label_topic(pubsub, "orders", backup="yes")
    labelled = LabelledTopics(settings_with("backup=yes"), status)
    assert labelled.attach_new(pubsub) == ["orders"]
    path = pubsub.subscription_path("refeed-backup.orders")
    pubsub._publisher.detach_subscription(request={"subscription": path})
    log = MagicMock()
    monkeypatch.setattr("backup.labelled._log", log)
    assert labelled.attach_new(pubsub) == []
    ((event,), fields), *_ = log.warning.call_args_list
    assert (event, fields["topic"], fields["code"]) == ("topic_not_attached", "orders", "subscription_mismatch")


def test_without_a_label_nothing_runs(settings_with, status):
    with LabelledTopics(settings_with(""), status) as labelled:
        assert not labelled.loop.is_alive
