import json
from contextlib import closing

from connectors.pubsub.client import PubSub
from jobs.store import JobStore
from model.message import replay_filter, replay_token
from model.settings import read_settings
from tests.labels import label_topic


def test_attaching_makes_the_topic_and_a_subscription_that_leaves_replays_out(refeed, pubsub_server, home):
    result = refeed("attach", "orders", "members", "--json")
    assert result.code == 0
    secret = (home / "secret").read_text()
    assert json.loads(result.out) == [
        {
            "topic": topic,
            "subscription": f"refeed-backup.{topic}",
            "filter": replay_filter(replay_token(secret, topic)),
            "differences": [],
            "is_topic_new": True,
        }
        for topic in ("orders", "members")
    ]
    with PubSub("refeed-local", pubsub_server.emulator_host) as pubsub:
        assert [s.id for s in pubsub.list_subscriptions("orders")] == ["refeed-backup.orders"]


def test_attaching_twice_is_attaching_once(refeed, pubsub_server):
    made = "orders did not exist, and was created\n"
    assert refeed("attach", "orders").out == made + refeed("attach", "orders").out


def test_what_is_attached_and_detached_at_the_terminal_is_in_the_topic_s_history(refeed, pubsub_server, home):
    for words in (("attach", "orders"), ("attach", "orders", "--update"), ("detach", "orders", "--yes")):
        assert refeed(*words).code == 0
    with closing(JobStore(read_settings({"REFEED_HOME": str(home)}).job_store)) as store:
        found = store.list_last_events(limit=9, of=("topic", "orders"))
    assert [each.what for each in found] == [
        "detached, refeed-backup.orders deleted",
        "attached, through refeed-backup.orders",
    ]
    assert all(each.actor.startswith("terminal") for each in found)


def test_a_topic_is_attached_although_its_history_can_not_be_written(refeed, pubsub_server, monkeypatch):
    monkeypatch.setenv("REFEED_JOB_STORE", "postgresql://127.0.0.1:1/none")
    result = refeed("attach", "orders")
    assert (result.code, "is backed up through" in result.out) == (0, True)
    assert "'refeed events topic/orders' does not show this" in " ".join(result.err.split())


def test_a_topic_that_is_created_may_be_a_slip_of_one_that_is_there(refeed, pubsub_server):
    assert refeed("attach", "orders").err == ""
    slip = refeed("attach", "ordres")
    assert (slip.code, slip.out.splitlines()[0]) == (0, "ordres did not exist, and was created")
    assert "Did you mean orders? Then undo this: refeed detach ordres" in slip.err
    assert refeed("attach", "ordres", "clicks").err == ""


def test_another_deployment_s_secret_is_refused(refeed, pubsub_server, home):
    assert refeed("attach", "orders").code == 0
    (home / "secret").unlink()
    result = refeed("attach", "orders")
    assert result.code == 1
    assert "subscription_mismatch" in result.err


def test_a_wrong_name_attaches_none_of_them(refeed, pubsub_server):
    result = refeed("attach", "orders", "1orders")
    assert result.code == 2
    assert "name_invalid" in result.err
    with PubSub("refeed-local", pubsub_server.emulator_host) as pubsub:
        assert pubsub.list_topics() == []


def test_topics_are_attached_by_a_label(refeed, pubsub_server):
    with PubSub("refeed-local", pubsub_server.emulator_host) as pubsub:
        for topic in ("orders", "members"):
            pubsub.create_topic(topic)
        label_topic(pubsub, "orders", backup="yes")
        assert refeed("attach", "--label", "backup=yes").code == 0
        assert [s.topic for s in pubsub.list_subscriptions()] == ["orders"]
        nothing = refeed("attach", "--label", "backup=no")
        assert (nothing.code, "has the label" in nothing.err) == (1, True)
        assert "must be key=value" in refeed("attach", "--label", "backup").err
        assert "Give the id of a topic" in refeed("attach").err


def test_what_differs_is_said_and_mended_only_when_asked(refeed, pubsub_server, monkeypatch):
    assert refeed("attach", "orders").code == 0
    monkeypatch.setenv("REFEED_ACK_DEADLINE_SECONDS", "120")
    told = refeed("attach", "orders")
    assert (told.code, "ack_deadline_seconds is 60 instead of 120; use --update to change this" in told.err) == (
        0,
        True,
    )
    (mended,) = json.loads(refeed("attach", "orders", "--exactly-once", "--update", "--json").out)
    assert mended["differences"] == []
    with PubSub("refeed-local", pubsub_server.emulator_host) as pubsub:
        found = pubsub.get_subscription("refeed-backup.orders")
    assert (found.ack_deadline_seconds, found.exactly_once) == (120, True)
    # What was switched on is not switched off by an attach that does not speak of it.
    assert json.loads(refeed("attach", "orders", "--update", "--json").out)[0]["differences"] == []


def test_detaching_ends_the_backup_of_a_topic(refeed, pubsub_server):
    assert refeed("attach", "orders", "members").code == 0
    assert refeed("detach", "orders", "unknown", "--yes").code == 1
    with PubSub("refeed-local", pubsub_server.emulator_host) as pubsub:
        assert [s.topic for s in pubsub.list_subscriptions()] == ["members", "orders"]
        assert refeed("detach", "orders", "--yes").out == "orders is no longer backed up\n"
        assert [s.topic for s in pubsub.list_subscriptions()] == ["members"]


def test_the_variables_of_terraform_are_what_attaching_would_make(refeed, pubsub_server):
    variables = json.loads(refeed("attach", "orders", "--terraform").out)
    with PubSub("refeed-local", pubsub_server.emulator_host) as pubsub:
        assert pubsub.list_subscriptions() == []
    (attached,) = json.loads(refeed("attach", "orders", "--json").out)
    assert variables == {"backups": {"orders": attached["filter"]}, "ack_deadline_seconds": 60}
