"""Streams over HTTP and in the terminal: launched, shown, changed, drained and cancelled by their names."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from connectors.pubsub.publish import Publisher
from jobs.lease_owner import LeaseOwner
from jobs.store.tables import EVENTS, MANAGED_STREAMS
from model.fault import FaultRecord
from model.message import Message
from model.stream_record import StreamHome, StreamState
from streams.status import StatusFile
from tests.worlds.job_store import empty

AGENT = str(LeaseOwner.current())
LOOKS = {"status": ("status",), "list": ("get", "streams"), "object": ("describe", "stream/backup")}


@pytest.fixture
def api(served):
    yield served
    empty(served.store, EVENTS, MANAGED_STREAMS)


def launch(api, name="backup", **fields):
    with api.client() as client:
        answer = client.post("/streams", json={"name": name, "kind": "backup", **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


def run(api, name="backup"):
    """What an agent does when it has started the stream; returns the stream's status file."""
    api.store.take_streams(AGENT, limit=9, lease_seconds=600)
    home = api.home / "streams" / name
    home.mkdir(parents=True, exist_ok=True)
    api.store.report_stream(
        name, AGENT, StreamState.RUNNING, instance_id="in_1", home=StreamHome("here", str(home))
    )
    path = home / "status.json"
    StatusFile(path, instance="in_1").write(state="running", totals={"messages": 5, "redelivered": 1})
    return path


def test_a_stream_is_launched_shown_and_listed_in_one_shape(client):
    answer = client.post("/streams", json={"name": "backup", "kind": "backup", "options": {"slots": 4}})
    assert (answer.status_code, answer.headers["Location"]) == (201, "/streams/backup")
    assert answer.headers["ETag"] == '"1"'
    made = answer.json()
    shown = client.get(answer.headers["Location"])
    (listed,) = client.get("/streams").json()["streams"]
    assert (made["state"], made["wanted"], made["options"]) == ("STARTING", "RUNNING", {"slots": 4})
    assert made["generation"] == 1
    assert {made["instance_id"], made["agent"], made["home"], made["reported_at"], made["rates"]} == {None}
    assert (made, shown.headers["ETag"]) == (shown.json(), '"1"')
    for each in (made, listed):
        # Pub/Sub's own figures are of the moment.
        each.pop("lag_measured_at")
    assert made == listed


def test_a_stream_that_runs_shows_its_instance_and_its_figures(api, client):
    launch(api)
    status = run(api)
    found = client.get("/streams/backup").json()
    status.unlink()
    assert (found["state"], found["instance_id"], found["redelivered"]) == ("RUNNING", "in_1", 1)
    assert found["home"] == {"host": "here", "path": str(status.parent)}
    assert found["agent"]["host"]


def test_a_stream_whose_process_died_says_so_while_it_starts_again_and_runs(api, client, refeed):
    launch(api)
    status = run(api)
    fault = FaultRecord("process_ended", "The process of backup ended with exit code -9.")
    api.store.report_stream("backup", AGENT, StreamState.FAILED, error=fault)
    api.store.report_stream("backup", AGENT, StreamState.STARTING, instance_id="in_1")
    found = client.get("/streams/backup").json()
    assert (found["error"], found["failures"]["count"]) == (None, 1)
    assert found["failures"] == client.get("/streams").json()["streams"][0]["failures"]
    (problem,) = client.get("/status").json()["problems"]
    said = {name: refeed(*command)[1] for name, command in LOOKS.items()}
    api.store.report_stream("backup", AGENT, StreamState.RUNNING)
    (later,) = client.get("/status").json()["problems"]
    status.unlink()
    assert (problem["code"], problem["name"], later["code"]) == ("stream_failed", "backup", "stream_failed")
    assert "ended with exit code -9" in problem["message"]
    assert {name: "ended with exit code -9" in text for name, text in said.items()} == dict.fromkeys(said, True)
    assert "    refeed events stream/backup" in said["status"].splitlines()


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, {"/name", "/kind"}),
        ({"name": "b", "kind": "kafka"}, {"/kind"}),
        ({"name": "b", "kind": "backup", "option": {}}, {"/option"}),
        (
            {"name": "B", "kind": "backup", "options": {"slots": 0, "group": "x"}},
            {"/name", "/options/slots", "/options/group"},
        ),
        ({"name": "b", "kind": "pipeline", "options": {"batch_seconds": "1"}}, {"/options/batch_seconds"}),
    ],
)
def test_everything_that_is_wrong_is_told_with_its_place(client, body, pointers):
    answer = client.post("/streams", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "request_invalid")
    assert {error["pointer"] for error in answer.json()["errors"]} == pointers


def test_a_drain_that_is_asked_for_is_carried_out_by_the_agent(api, client):
    launch(api)
    run(api).unlink()
    asked = client.post("/streams/backup:drain", json={"timeout_seconds": 30})
    assert (asked.status_code, asked.headers["ETag"]) == (200, '"2"')
    found = asked.json()
    assert (found["state"], found["wanted"], found["drain_timeout_seconds"]) == ("DRAINING", "DRAINED", 30)
    api.store.report_stream("backup", AGENT, StreamState.DRAINED)
    assert client.get("/streams/backup").json()["state"] == "DRAINED"
    refused = client.post("/streams/backup:drain")
    assert (refused.status_code, refused.json()["code"]) == (409, "stream_state_conflict")
    assert client.post("/streams/backup:drain", json={"timeout_seconds": -1}).status_code == 422
    assert client.post("/streams/backup:drain", json={"timeout": 1}).status_code == 422


def test_a_drain_without_a_body_has_two_minutes(api, client):
    launch(api)
    run(api).unlink()
    assert client.post("/streams/backup:drain").json()["drain_timeout_seconds"] == 120


def test_a_change_meant_for_another_version_is_refused(api, client):
    launch(api)
    changed = client.patch("/streams/backup", json={"options": {"batch_seconds": 2}}, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.json()["options"]) == (200, {"batch_seconds": 2})
    assert changed.headers["ETag"] == '"2"'
    for call in (
        lambda: client.patch("/streams/backup", json={"options": {}}, headers={"If-Match": '"1"'}),
        lambda: client.post("/streams/backup:cancel", headers={"If-Match": '"1"'}),
        lambda: client.post("/streams/backup:drain", headers={"If-Match": "W/no-version"}),
    ):
        answer = call()
        assert (answer.status_code, answer.json()["code"]) == (412, "stream_changed")
    fixed = client.patch("/streams/backup", json={"options": {"slots": 3}})
    assert [error["code"] for error in fixed.json()["errors"]] == ["option_fixed"]
    assert client.patch("/streams/backup", json={"release": "2"}).status_code == 422


def test_a_name_that_never_was_is_not_found_with_the_one_that_was_meant(api, client):
    launch(api)
    for method, path in (
        ("GET", "/streams/bakcup"),
        ("GET", "/streams/bakcup/logs"),
        ("POST", "/streams/bakcup:drain"),
        ("POST", "/streams/bakcup:cancel"),
    ):
        answer = client.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (404, "stream_not_found"), path
        assert "Did you mean backup?" in answer.json()["detail"]
    assert client.get("/streams/%00").status_code == 404


def test_the_end_of_its_log_is_shown_and_where_it_is_when_it_is_elsewhere(api, client, refeed):
    launch(api)
    (api.home / "logs").mkdir(exist_ok=True)
    (api.home / "logs" / "backup.log").write_text("the first line\nthe second line\n")
    answer = client.get("/streams/backup/logs", params={"tail": 1})
    assert (answer.text, answer.headers["content-type"]) == ("the second line\n", "text/plain; charset=utf-8")
    assert client.get("/streams/backup/logs", params={"tail": -1}).status_code == 422
    printed = json.loads(refeed("logs", "stream/backup", "--json")[1])
    assert printed == {"lines": ["the first line", "the second line"]}
    api.store.take_streams(AGENT, limit=1, lease_seconds=60)
    place = StreamHome("node-7", "/data/streams/backup")
    api.store.report_stream("backup", AGENT, StreamState.RUNNING, instance_id="in_1", home=place)
    assert refeed("logs", "stream/backup")[1] == "backup logs on node-7, in /data/logs.\n"


def test_a_launched_stream_without_an_agent_is_a_problem_in_the_status(api, client):
    launch(api)
    problems = client.get("/status").json()["problems"]
    assert [(each["name"], each["code"]) for each in problems] == [("backup", "stream_without_agent")]


def test_an_ended_stream_that_messages_wait_for_is_in_the_inbox_with_the_end_of_its_retention(api, client, refeed):
    launch(api)
    client.post("/streams/backup:drain")
    assert client.get("/inbox").json()["items"] == [], "nothing waits"
    subscription = api.pubsub.attach_backup("orders", token="token", ack_deadline_seconds=60)
    try:
        Publisher(api.pubsub.channel, api.pubsub.topic_path("orders")).publish([Message(b"1")])
        found = client.get("/streams/backup").json()
        (item,) = client.get("/inbox").json()["items"]
        text = refeed("inbox")[1]
        codes = [problem["code"] for problem in client.get("/status").json()["problems"]]
        launch(api, "everything")
        replaced = client.get("/inbox").json()["items"]
    finally:
        api.pubsub.delete_subscription(subscription.id)
    left = datetime.fromisoformat(found["retained_until"]) - datetime.now(UTC)
    assert timedelta(days=6, hours=23) < left < timedelta(days=7)
    assert (item["kind"], item["resource"], item["id"], item["state"]) == ("ended", "stream", "backup", "DRAINED")
    assert "Pub/Sub keeps 1 message for it until" in item["message"]
    assert "  refeed launch backup" in text
    assert codes == ["stream_ended", "backup_not_running"]
    assert replaced == [], "the message waits for the other backup"


def test_the_terminal_launches_changes_and_ends_a_stream(api, refeed):
    code, text, _ = refeed("launch", "backup", "--kind", "backup", "--slots", "4")
    assert (code, text.splitlines()[0]) == (0, "backup  STARTING")
    assert "  options     slots 4" in text
    assert "  agent       none yet" in text
    assert "  next        refeed describe stream/backup; without an agent: refeed up, or refeed agent" in text
    run(api).unlink()
    found = json.loads(refeed("set", "stream/backup", "--batch-seconds", "2.5", "--json")[1])
    assert found["options"] == {"slots": 4, "batch_seconds": 2.5}
    code, text, _ = refeed("drain", "backup", "--timeout", "30")
    assert (code, text.splitlines()[:2]) == (0, ["backup  DRAINING", "  wanted      DRAINED, within 30 s"])
    api.store.report_stream("backup", AGENT, StreamState.DRAINED)
    code, text, _ = refeed("describe", "stream/backup")
    assert text.splitlines()[-1] == "  next        refeed launch backup", "as it was"
    code, text, _ = refeed("events", "stream/backup")
    assert [line.split()[1] for line in text.splitlines()[:0:-1]] == [
        "local",
        "agent",
        "agent",
        "local",
        "local",
        "agent",
    ]
    assert json.loads(refeed("launch", "backup", "--kind", "backup", "--json")[1])["generation"] == 2
    code, text, _ = refeed("cancel", "stream/backup", "--watch")
    assert (code, text.splitlines()[0]) == (0, "backup  CANCELLED")
    assert "backup" in refeed("get", "streams")[1]


def test_the_terminal_says_what_is_wrong_with_its_exit_code(api, refeed):
    launch(api)
    code, _, said = refeed("describe", "stream/bakcup")
    assert (code, "Did you mean backup?" in said) == (4, True)
    code, _, said = refeed("launch", "rows", "--kind", "backup", "--group", "orders")
    assert (code, "has no option group" in said) == (4, True)
    assert refeed("set", "stream/backup")[0] == 2
    assert refeed("launch", "rows")[0] == 2


def test_waiting_for_a_stream_that_nobody_starts_ends_with_one(api, refeed, monkeypatch):
    from cli import api as cli_api
    from cli import stream

    monkeypatch.setattr(stream, "_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(cli_api, "POLL_SECONDS", 0.01)
    code, text, said = refeed("launch", "backup", "--kind", "backup", "--watch")
    assert (code, text.splitlines()[0], "still STARTING" in said) == (1, "backup  STARTING", True)


def test_the_terminal_says_how_a_pipeline_is_launched_again_as_it_was(api, client, refeed):
    source = ("--mapping", "orders=sales")
    command = ("launch", "rows", "--kind", "pipeline", "--slots", "3", "--group", "shop", *source)
    assert refeed(*command)[0] == 0
    text = refeed("cancel", "stream/rows")[1]
    assert text.splitlines()[-1] == "  next        refeed launch rows"
    before = client.get("/streams/rows").json()
    code, text, _ = refeed("launch", "rows", "--json")
    again = json.loads(text)
    assert (code, again["generation"]) == (0, before["generation"] + 1)
    assert [again[name] for name in ("kind", "release", "options")] == [
        before[name] for name in ("kind", "release", "options")
    ]
