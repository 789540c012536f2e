"""Ten tasks of an operator at 3 a.m., each by commands alone and by HTTP alone, with the steps that it takes.

A step is one command, or one HTTP call; calls that are repeated until a job has ended are one step. A task that
needs another number of steps fails here. The runbook has the same commands.
"""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from jobs.folder import Outcome
from model.job import JobState
from model.message import backup_subscription_id
from model.principal import SCOPES
from model.stream_snapshot import SnapshotState
from model.stream_update import UpdateRequest, UpdateState
from pipeline.registry import Registry
from tests.api.conftest import plain_log
from tests.api.terminal import refeed
from tests.waiting import wait_until
from tests.worlds.night import (
    IN_THE_HOUR,
    SCHEDULE,
    SOURCES,
    STREAM_NAME,
    SUBSCRIPTION,
    TOO_LONG,
    night_in,
    taking_short_values,
)

__all__ = ["plain_log", "refeed"]

ANN = "key:ann"
ENDED = {state.value for state in JobState if state.is_final}
IN_HOUR = {f"m{number}" for number in range(IN_THE_HOUR)}
MERGE_FAILED = Outcome(1, JobState.FAILED, {"code": "driver_died", "message": "The driver died."})


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    with night_in(tmp_path_factory.mktemp("home")) as night:
        yield night


@pytest.fixture(scope="module")
def api(night):
    return night.api


class Terminal:
    """Commands of ann; ``steps`` counts them."""

    def __init__(self, run):
        self._run = run
        self.steps = 0

    def __call__(self, *words, code=0):
        self.steps += 1
        ended, out, err = self._run(*words)
        assert ended == code, f"{words}: {out}{err}"
        return out

    def read(self, *words, code=0):
        """Run a command with --json, and return what it prints."""
        return json.loads(self(*words, "--json", code=code))


class Wire:
    """HTTP calls of ann; ``steps`` counts them."""

    def __init__(self, client):
        self._client = client
        self.steps = 0

    def __call__(self, method, path, **content):
        self.steps += 1
        answer = self._client.request(method, path, **content)
        assert answer.is_success, answer.text
        return answer.json() if answer.headers["content-type"].startswith("application/json") else answer.text

    def follow(self, path, ended):
        """Repeat a GET until the state is one of ``ended``."""
        self.steps += 1
        found = []

        def has_ended():
            found[:] = [self._client.get(path).json()]
            return found[0]["state"] in ended

        wait_until(has_ended, f"{path} ends")
        return found[0]


@pytest.fixture
def terminal(night, refeed, monkeypatch):
    for name, value in {**night.api.environment, "REFEED_API_KEY": night.key}.items():
        monkeypatch.setenv(name, value)
    # No pipeline runs, so nothing lands of orders: a watched replay is counted once, and exits with 1.
    monkeypatch.setattr("cli.backfill_watch._SETTLE_SECONDS", 0.0)
    return Terminal(refeed)


@pytest.fixture
def wire(night):
    with night.api.client(night.key) as client:
        yield Wire(client)


@pytest.fixture
def failed_merge(night):
    """The id of a merge of the schedule that has failed."""
    usual, night.drivers.merges = night.drivers.merges, lambda _epoch: MERGE_FAILED
    with night.api.client(night.key) as client:
        made = client.post("/merges", json={"source": "orders"}).json()
        wait_until(lambda: night.store.get(made["id"]).state is JobState.FAILED, "the merge fails")
    night.drivers.merges = usual
    yield made["id"]
    if not night.store.get(made["id"]).state.is_final:
        wait_until(lambda: night.store.get(made["id"]).state.is_final, "it ends")


# What is wrong


def test_what_is_wrong_by_command(failed_merge, terminal):
    """``refeed status`` names what is wrong, and the command that mends it."""
    out = terminal("status", code=1)
    assert "WRONG: " in out
    assert f"refeed retry {failed_merge}" in out
    assert terminal.steps == 1


def test_what_is_wrong_by_http(failed_merge, wire):
    """``GET /status`` has the problem, and the job that waits for a person."""
    found = wire("GET", "/status")
    assert not found["is_ok"]
    assert (failed_merge, "failure", ANN) in {
        (each["id"], each["kind"], each["created_by"]) for each in found["inbox"]
    }
    assert wire.steps == 1


# Replay 02:00 to 03:00 of orders


def test_replay_an_hour_of_orders_by_command(night, terminal):
    """One command writes the query, plans, publishes, and waits for the end."""
    receive = night.listen("orders")
    hours = ("--from", f"{night.start:%H:%M}", "--to", f"{night.end:%H:%M}")
    made = terminal.read("backfill", "orders", *hours, "--yes", "--watch", code=1)
    assert made["progress"]["published"] == IN_THE_HOUR
    assert {message.attributes["refeed_message_id"] for message in receive()} == IN_HOUR
    assert (ANN, "created") in night.actors(made["id"])
    assert terminal.steps == 1


def test_replay_an_hour_of_orders_by_http(night, wire):
    """One call makes the backfill of a topic and a range, without a query; another follows it to its end."""
    receive = night.listen("orders")
    body = {"source_topic": "orders", "from": night.start.isoformat(), "to": night.end.isoformat()}
    made = wire("POST", "/backfills", json=body, headers={"Idempotency-Key": "replay-orders"})
    events = wire("GET", f"/jobs/{made['id']}:watch")
    assert '"state":"SUCCEEDED"' in events.replace(" ", "")
    assert {message.attributes["refeed_message_id"] for message in receive()} == IN_HOUR
    assert (ANN, "created") in night.actors(made["id"])
    assert wire.steps == 2


# Stop it


@pytest.fixture
def running(night):
    """The id of a backfill of ann that publishes one message a second."""
    with night.api.client(night.key) as client:
        body = {"source_topic": "orders", "from": night.start.isoformat(), "to": night.end.isoformat()}
        made = client.post("/backfills", json={**body, "rate_limit_messages_per_second": 1})
        assert made.status_code == 202, made.text
        found = made.json()["id"]
        wait_until(lambda: client.get(f"/jobs/{found}").json()["progress"]["published"], "it publishes")
    return found


def assert_stopped(night, job_id):
    wait_until(lambda: night.store.get(job_id).state.is_final, "it ends")
    job = night.store.get(job_id)
    assert job.state is JobState.CANCELLED
    assert 0 < (job.progress or {})["published"] < IN_THE_HOUR
    assert (ANN, "RUNNING -> CANCELLING") in night.actors(job_id), night.actors(job_id)


def test_stop_it_by_command(night, running, terminal):
    """``refeed cancel latest`` cancels the newest job of the caller; no id is needed."""
    terminal("cancel", "latest", "--watch")
    assert_stopped(night, running)
    assert terminal.steps == 1


def test_stop_it_by_http(night, running, wire):
    """The list of the caller's jobs has the newest one first; one call cancels it."""
    (found,) = wire("GET", "/jobs", params={"created_by": ANN, "page_size": 1})["jobs"]
    wire("POST", f"/jobs/{found['id']}:cancel")
    assert_stopped(night, running)
    assert wire.steps == 2


# Why is the pipeline late


@pytest.fixture
def late(night):
    figures = {"state": "RUNNING", "rate_messages_per_second": 4.5, "lag_seconds": 754.0, "backlog_messages": 12}
    night.store.put_figures(night.store.now() - timedelta(minutes=5), {f"stream:{STREAM_NAME}": figures})


def test_why_the_pipeline_is_late_by_command(late, terminal):
    """``describe`` has the state now, ``figures`` since when it is late, and ``logs`` what the stream says."""
    assert "RUNNING" in terminal("describe", f"stream/{STREAM_NAME}")
    assert "12 min" in terminal("figures", f"stream/{STREAM_NAME}")
    assert "begins" in terminal("logs", f"stream/{STREAM_NAME}")
    assert terminal.steps == 3


def test_why_the_pipeline_is_late_by_http(late, wire):
    """The stream, its history of figures, and its log are a call each."""
    assert wire("GET", f"/streams/{STREAM_NAME}")["state"] == "RUNNING"
    history = wire("GET", "/streams:history", params={"over": "hour", "name": STREAM_NAME})
    assert "754" in json.dumps(history)
    assert "begins" in wire("GET", f"/streams/{STREAM_NAME}/logs")
    assert wire.steps == 3


# Take back the last update


@pytest.fixture
def updated(night):
    """The id of a STABLE update of bob, which has changed an option."""
    request = UpdateRequest(None, {"batch_seconds": 2.0}, {}, validate_seconds=0.1, min_messages=0)
    made = night.store.create_update(STREAM_NAME, request, actor="key:bob")
    wait_until(lambda: night.store.get_update(made.id).state is UpdateState.STABLE, "the update is stable")
    assert night.store.get_stream(STREAM_NAME).options["batch_seconds"] == 2.0
    return made.id


def assert_taken_back(night, update_id):
    newest, *_ = night.store.list_updates(STREAM_NAME)
    assert (newest.state, newest.created_by) == (UpdateState.STABLE, ANN)
    assert newest.request.reason == f"It reverts {update_id}."
    assert "batch_seconds" not in night.store.get_stream(STREAM_NAME).options


def test_take_back_the_last_update_by_command(night, updated, terminal):
    """``refeed revert stream/NAME`` finds the newest update, and goes back to what ran before it."""
    terminal("revert", f"stream/{STREAM_NAME}", "--watch")
    assert_taken_back(night, updated)
    assert terminal.steps == 1


def test_take_back_the_last_update_by_http(night, updated, wire):
    """The newest update is the first job of its stream; reverting it makes another one."""
    newest, *_ = wire("GET", "/jobs", params={"kind": "update", "stream": STREAM_NAME})["jobs"]
    made = wire("POST", f"/jobs/{newest['id']}:revert")
    assert made["id"] != newest["id"]
    wire.follow(f"/jobs/{made['id']}", {"STABLE", "FAILED", "ROLLED_BACK", "REFUSED"})
    assert_taken_back(night, updated)
    assert wire.steps == 3


# Snapshot before a risky change


def assert_snapshot(night, snapshot_id):
    made = night.store.get_snapshot(snapshot_id)
    assert (made.state, made.stream, made.created_by) == (SnapshotState.COMPLETED, STREAM_NAME, ANN)
    assert Path(made.place.location).is_dir()
    (source,) = made.sources
    assert source.subscription == SUBSCRIPTION
    assert source.snapshot in {each.id for each in night.api.pubsub.list_snapshots()}


def test_snapshot_before_a_risky_change_by_command(night, terminal):
    """One command makes the snapshot, with those of Pub/Sub, and waits until it is there."""
    made = terminal.read("snapshot", STREAM_NAME, "--with-source", "--watch")
    assert_snapshot(night, made["id"])
    assert terminal.steps == 1


def test_snapshot_before_a_risky_change_by_http(night, wire):
    """One call asks for the snapshot, another follows it."""
    made = wire("POST", f"/streams/{STREAM_NAME}:snapshot", json={"with_source": True})
    wire.follow(f"/snapshots/{made['id']}", {"COMPLETED", "FAILED"})
    assert_snapshot(night, made["id"])
    assert wire.steps == 2


# Run last night's merge again


def assert_ran_now(night):
    def is_over():
        runs = night.store.list_runs(SCHEDULE, limit=1)
        return bool(runs) and runs[0].state.value == "SUCCEEDED"

    wait_until(is_over, f"the run ends: {night.store.list_runs(SCHEDULE, limit=1)}")
    run, *_ = night.store.list_runs(SCHEDULE, limit=1)
    assert run.asked_by == ANN
    assert night.store.get(run.job_id or "").state is JobState.SUCCEEDED


def test_run_last_nights_merge_again_by_command(night, failed_merge, terminal):
    """Three ways of one command each: run the schedule, retry what failed, rerun what ended."""
    terminal("run-now", SCHEDULE)
    assert_ran_now(night)
    terminal("retry", failed_merge, "--watch")
    assert night.store.get(failed_merge).state is JobState.SUCCEEDED
    assert (ANN, "FAILED -> PENDING") in night.actors(failed_merge), night.actors(failed_merge)
    again = terminal.read("rerun", failed_merge, "--watch")
    assert (again["id"] != failed_merge, again["source"], again["state"]) == (True, "orders", "SUCCEEDED")
    assert terminal.steps == 3


def test_run_last_nights_merge_again_by_http(night, failed_merge, wire):
    """One call runs the schedule now, one continues the merge that failed, and one makes another merge."""
    wire("POST", f"/schedules/{SCHEDULE}:run")
    assert_ran_now(night)
    wire("POST", f"/jobs/{failed_merge}:retry")
    wire.follow(f"/jobs/{failed_merge}", ENDED)
    assert night.store.get(failed_merge).state is JobState.SUCCEEDED
    again = wire("POST", "/merges", json={"source": "orders"})
    assert wire.follow(f"/jobs/{again['id']}", ENDED)["created_by"] == ANN
    assert wire.steps == 5


# Messages that failed, again


@pytest.fixture
def with_dead_letters(night):
    """The id of a backfill that FAILED, because Pub/Sub refused two of three messages; now it would take them."""
    with taking_short_values(), night.api.client(night.key) as client:
        body = {"source_topic": "other", "from": night.start.isoformat(), "to": night.end.isoformat()}
        made = client.post("/backfills", json={**body, "max_failed": TOO_LONG}).json()
        wait_until(lambda: night.store.get(made["id"]).state.is_final, "it ends")
    job = night.store.get(made["id"])
    assert (job.state, job.error and job.error.code) == (JobState.FAILED, "messages_failed")
    return made["id"]


def test_messages_that_failed_again_by_command(night, with_dead_letters, terminal):
    """``retry --only failed`` sends a backfill's dead letters; ``redrive`` those of the pipeline."""
    receive, receive_orders = night.listen("other"), night.listen("orders")
    terminal("retry", with_dead_letters, "--only", "failed", "--watch")
    assert {message.attributes["refeed_message_id"] for message in receive()} == {"m0", "m1"}
    night.lose_orders("lost-1", "lost-2")
    assert "wrong_type" in terminal("dead-letters")
    made = terminal.read("redrive", "--source", "orders", "--yes", "--watch", code=1)
    assert {message.attributes["refeed_message_id"] for message in receive_orders()} == {"lost-1", "lost-2"}
    assert night.store.get(made["id"]).created_by == ANN
    assert (ANN, "FAILED -> PENDING") in night.actors(with_dead_letters), night.actors(with_dead_letters)
    assert terminal.steps == 3


def test_messages_that_failed_again_by_http(night, with_dead_letters, wire):
    """Each group of the pipeline's dead letters has the request of the backfill that sends them again."""
    receive, receive_orders = night.listen("other"), night.listen("orders")
    wire("POST", f"/jobs/{with_dead_letters}:retry", json={"only": "failed"})
    assert wire.follow(f"/jobs/{with_dead_letters}", ENDED)["state"] == "SUCCEEDED"
    assert {message.attributes["refeed_message_id"] for message in receive()} == {"m0", "m1"}
    night.lose_orders("lost-3")
    (reason,) = wire("GET", "/dead-letters")["reasons"]
    made = wire("POST", "/backfills", json=reason["request"])
    assert wire.follow(f"/jobs/{made['id']}", ENDED)["state"] == "SUCCEEDED"
    assert "lost-3" in {message.attributes["refeed_message_id"] for message in receive_orders()}
    assert wire.steps == 5


# Who changed this schedule


@pytest.fixture
def paused_schedule(night):
    """The schedule, which bob has paused."""
    key = night.api.make_key(*SCOPES, name="bob")
    with night.api.client(key) as client:
        assert client.post(f"/schedules/{SCHEDULE}:pause").status_code == 200
        yield
        assert client.post(f"/schedules/{SCHEDULE}:resume").status_code == 200


def test_who_changed_this_schedule_by_command(paused_schedule, terminal):
    """``refeed events schedule/NAME`` has who did what and when, newest first."""
    newest, *_ = terminal.read("events", f"schedule/{SCHEDULE}")["events"]
    assert (newest["actor"], newest["what"]) == ("key:bob", "paused")
    assert terminal.steps == 1


def test_who_changed_this_schedule_by_http(paused_schedule, wire):
    """The events of one object are one call."""
    newest, *_ = wire("GET", "/events", params={"object": f"schedule/{SCHEDULE}"})["events"]
    assert (newest["actor"], newest["what"]) == ("key:bob", "paused")
    assert wire.steps == 1


# Add a source


def sources_with(name):
    """Return a registry's file with the source of the night and one more."""
    return f"{SOURCES}  {name}: {{topic: {name}, schema: inferred}}\n"


def assert_added(night, name):
    assert name in Registry(str(night.api.home / "registry")).read_valid().merge_sources()
    subscription = night.api.pubsub.get_subscription(backup_subscription_id(name))
    assert subscription.topic == name


def test_add_a_source_by_command(night, terminal, tmp_path):
    """``check``, ``diff`` and ``publish`` the registry's file, then ``attach`` the topic."""
    (tmp_path / "sources.yaml").write_text(sources_with("hooks"))
    for command in ("check", "diff", "publish"):
        assert "hooks" in terminal("source", command, str(tmp_path / "sources.yaml"))
    terminal("attach", "hooks")
    assert_added(night, "hooks")
    assert terminal.steps == 4


def test_add_a_source_by_http(night, wire):
    """The registry is files, which a deployment copies; the API shows the source, and attaches its topic."""
    (night.api.home / "registry" / "sources.yaml").write_text(sources_with("clicks"))
    assert wire("GET", "/sources/clicks")["fault"] is None
    wire("POST", "/topics/clicks:attach", json={})
    assert_added(night, "clicks")
    assert wire.steps == 2
