"""Topics attached and detached over HTTP, planned first and bound to the plan."""

import pytest

from model.message import backup_subscription_id
from model.principal import READ, STREAMS_OPERATE
from tests.api.backfills import assert_problem


@pytest.fixture
def client(api):
    with api.client(api.make_key(STREAMS_OPERATE, name="operator")) as client:
        yield client


@pytest.fixture(autouse=True)
def detached(api):
    for found in api.pubsub.list_subscriptions():
        api.pubsub.delete_subscription(found.id)


def subscriptions_of(api, topic):
    return api.pubsub.list_subscriptions(topic)


def test_a_dry_run_says_what_is_created_and_creates_nothing(api, client):
    found = client.post("/topics/orders:attach", json={"dry_run": True, "exactly_once": True}).json()
    assert found["subscription"] == backup_subscription_id("orders")
    assert (found["was_attached"], found["is_attached"], found["creates_topic"]) == (False, False, False)
    assert (found["ack_deadline_seconds"], found["exactly_once"], found["backlog_messages"]) == (60, True, 0)
    assert found["filter"] == 'NOT attributes.refeed_replay = "<token>"'
    assert subscriptions_of(api, "orders") == []


def test_a_topic_is_attached_as_planned_and_twice_is_once(api, client):
    plan = client.post("/topics/orders:attach", json={"dry_run": True}).json()["plan"]
    made = client.post("/topics/orders:attach", json={"plan": plan}).json()
    assert (made["was_attached"], made["is_attached"], made["differences"]) == (False, True, [])
    (kept,) = subscriptions_of(api, "orders")
    assert kept.id == made["subscription"]
    assert "<token>" not in kept.filter
    again = client.post("/topics/orders:attach").json()
    assert (again["was_attached"], again["is_attached"]) == (True, True)
    # The plan was of a topic that nobody had attached.
    refused = assert_problem(
        client.post("/topics/orders:attach", json={"plan": plan}), 409, "topic_backup_changed"
    )
    assert "Nothing was done" in refused["detail"]
    lines = [(line.actor, line.action, line.target, line.outcome) for line in api.audit()]
    assert ("key:operator", "attachTopic", "/topics/orders:attach", "done") in lines


def test_settings_that_differ_are_named_and_changed_on_request_alone(api, client):
    filter_text = _attach(api, client).filter
    api.pubsub.delete_subscription(backup_subscription_id("orders"))
    api.pubsub.create_subscription(
        backup_subscription_id("orders"), "orders", message_filter=filter_text, ack_deadline_seconds=10
    )
    found = client.post("/topics/orders:attach").json()
    assert found["differences"] == [{"field": "ack_deadline_seconds", "found": "10", "wanted": "60"}]
    assert subscriptions_of(api, "orders")[0].ack_deadline_seconds == 10
    assert client.post("/topics/orders:attach", json={"update": True}).json()["differences"] == []
    assert subscriptions_of(api, "orders")[0].ack_deadline_seconds == 60


def _attach(api, client):
    assert client.post("/topics/orders:attach").status_code == 200
    return subscriptions_of(api, "orders")[0]


def test_another_deployment_s_subscription_is_refused_by_the_dry_run_too(api, client):
    api.pubsub.create_subscription(
        backup_subscription_id("orders"), "orders", message_filter='NOT attributes.refeed_replay = "other"'
    )
    for body in ({"dry_run": True}, {}):
        assert_problem(client.post("/topics/orders:attach", json=body), 409, "subscription_mismatch")


def test_a_missing_topic_is_created_by_a_local_server(api, client):
    found = client.post("/topics/fresh:attach", json={"dry_run": True}).json()
    assert (found["creates_topic"], api.pubsub.topic_exists("fresh")) == (True, False)
    assert client.post("/topics/fresh:attach", json={"plan": found["plan"]}).json()["is_attached"] is True
    assert api.pubsub.topic_exists("fresh")
    api.pubsub.delete_topic("fresh")


def test_a_detach_says_what_waits_and_loses_it(api, client):
    _attach(api, client)
    found = client.post("/topics/orders:detach", json={"dry_run": True}).json()
    assert (found["was_attached"], found["is_attached"], found["backlog_messages"]) == (True, True, 0)
    assert len(subscriptions_of(api, "orders")) == 1
    assert_problem(client.post("/topics/orders:detach", json={"plan": "x"}), 409, "topic_backup_changed")
    done = client.post("/topics/orders:detach", json={"plan": found["plan"]}).json()
    assert (done["is_attached"], subscriptions_of(api, "orders")) == (False, [])
    assert_problem(client.post("/topics/orders:detach"), 422, "subscription_not_found")


def test_it_needs_the_scope_and_the_topic_and_a_name(api, client):
    with api.client(api.make_key(READ, name="reader")) as reader:
        assert_problem(reader.post("/topics/orders:attach", json={"dry_run": True}), 403, "forbidden")
        assert_problem(reader.post("/topics/orders:detach"), 403, "forbidden")
    with api.client(api.make_key(STREAMS_OPERATE, name="others", topics=("other",))) as limited:
        assert_problem(limited.post("/topics/orders:attach"), 403, "forbidden")
    assert_problem(client.post("/topics/1bad:attach"), 422, "name_invalid")
    assert_problem(client.post("/topics/orders:attach", json={"dryrun": True}), 422, "request_invalid")
    assert subscriptions_of(api, "orders") == []
