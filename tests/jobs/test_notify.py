import base64
import hashlib
import hmac
import json
import time
from dataclasses import dataclass, field, replace

import pytest

import jobs.notify
from backfill.steer.kind import BACKFILL
from jobs.notify import Notifier
from jobs.store import JobStore
from model.fault import FaultRecord
from model.job import JobState
from reporting.kind import MERGE
from tests.waiting import wait_until
from tests.worlds.http import Answer, answering

SECRET = "whsec_" + base64.b64encode(b"s" * 24).decode()


@dataclass
class Listener:
    """A web server that answers each call with the next of ``statuses``, the last one for ever."""

    statuses: list[int] = field(default_factory=lambda: [204])
    calls: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def listener():
    heard = Listener()

    def answer(call):
        heard.calls.append((call.path, dict(call.headers), call.body))
        status = heard.statuses.pop(0) if len(heard.statuses) > 1 else heard.statuses[0]
        return Answer(status, headers={"Location": f"{heard.url}/elsewhere"})

    with answering(answer) as heard.url:
        yield heard


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs.notify, "_LOOK_SECONDS", 0.02)
    # What failed is due again at once; how long the store really waits is the store's own test.
    monkeypatch.setattr("jobs.store.outbox._FIRST_WAIT_SECONDS", 0.01)
    store = JobStore(tmp_path / "jobs.db")
    yield store
    store.close()


@pytest.fixture
def notify(store, listener):
    """Start a notifier, whose URL an earlier service was told of already."""
    running = []
    store.open_webhook(hashlib.sha256(f"{listener.url}/hook".encode()).hexdigest())

    def start():
        notifier = Notifier(store, BACKFILL, f"{listener.url}/hook", SECRET)
        notifier.start()
        running.append(notifier)
        return notifier

    yield start
    for notifier in running:
        notifier.stop()


def ended_job(store: JobStore, job_id: str = "bf_1", state: JobState = JobState.FAILED) -> None:
    request = {"topic": "orders", "query": "SELECT secret", "description": "why", "labels": {"ticket": "42"}}
    store.insert(job_id, "backfill", request, actor="key:ci")
    error = (
        FaultRecord("query_failed", "Could not convert 'secret' to INT64") if state is JobState.FAILED else None
    )
    store.move(job_id, state, actor="driver", error=error)


def is_told(store: JobStore, job_id: str = "bf_1") -> bool:
    return store.get(job_id).notified_at is not None


def test_an_end_is_told_once_and_says_what_ended(store, listener, notify):
    store.insert("bf_0", "backfill", {"topic": "orders"}, actor="key:ci")
    ended_job(store)
    notify()
    wait_until(lambda: is_told(store), "it is told")
    ended_job(store, "bf_2", JobState.CANCELLED)
    wait_until(lambda: is_told(store, "bf_2"), "the second one is told")
    assert [json.loads(body)["data"]["id"] for _, _, body in listener.calls] == ["bf_1", "bf_2"]
    path, headers, body = listener.calls[0]
    said = json.loads(body)
    assert path == "/hook"
    assert headers["content-type"] == "application/json"
    assert said["type"] == "backfill.failed"
    assert said["timestamp"] == said["data"]["finished_at"]
    assert said["data"]["created_by"] == "key:ci"
    assert said["data"]["labels"] == {"ticket": "42"}
    assert said["data"]["error"] == {"code": "query_failed", "message": "The query failed while it ran."}
    assert b"secret" not in body


def test_the_signature_is_what_standard_webhooks_says(store, listener, notify):
    ended_job(store)
    notify()
    wait_until(lambda: is_told(store), "it is told")
    _, headers, body = listener.calls[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(b"s" * 24, signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    assert headers["webhook-id"].startswith("bf_1.")


def test_what_is_not_heard_is_told_again_under_the_same_id(store, listener, notify):
    listener.statuses = [500, 302, 410, 200]
    ended_job(store)
    notify()
    wait_until(lambda: is_told(store), "it is told in the end")
    # A redirect is an answer like any other that is not 2xx: nothing is sent to where it points.
    assert [path for path, _, _ in listener.calls] == ["/hook"] * 4
    assert len({headers["webhook-id"] for _, headers, _ in listener.calls}) == 1


def test_what_an_earlier_service_could_not_tell_is_told_by_the_next(store, listener, notify):
    listener.statuses = [503]
    ended_job(store)
    first = notify()
    wait_until(lambda: len(listener.calls) >= 2, "it is tried again")
    first.stop()
    assert not is_told(store)
    listener.statuses = [200]
    notify()
    wait_until(lambda: is_told(store), "it is told")


def test_nobody_listening_is_no_end_of_the_telling(store, listener, notify):
    nowhere = Notifier(store, BACKFILL, "http://127.0.0.1:9/hook", SECRET)
    nowhere.start()
    ended_job(store)
    wait_until(lambda: store_attempts(store) >= 2, "it is tried twice")
    nowhere.stop()
    assert not is_told(store)
    notify()
    wait_until(lambda: is_told(store), "it is told")


def test_a_url_that_is_set_for_the_first_time_is_told_of_nothing_older(store, listener, notify):
    ended_job(store, "bf_old")
    first = Notifier(store, BACKFILL, f"{listener.url}/new", SECRET)
    first.start()
    ended_job(store, "bf_new")
    wait_until(lambda: is_told(store, "bf_new"), "what ends from now on is told")
    first.stop()
    # Once it is set, nothing is left out: not what ends while no service runs, either.
    ended_job(store, "bf_between")
    second = Notifier(store, BACKFILL, f"{listener.url}/new", SECRET)
    second.start()
    wait_until(lambda: is_told(store, "bf_between"), "the next service tells it")
    second.stop()
    assert [json.loads(body)["data"]["id"] for _, _, body in listener.calls] == ["bf_new", "bf_between"]
    assert not is_told(store, "bf_old")


def test_a_wait_for_a_person_is_told_and_its_end_is_told_too(store, listener, notify):
    kind = replace(BACKFILL, waits_for=lambda job: "approval")
    notifier = Notifier(store, kind, f"{listener.url}/hook", SECRET)
    notifier.start()
    store.insert("bf_1", "backfill", {"topic": "orders", "query": "SELECT secret"}, actor="key:ci")
    store.move("bf_1", JobState.RUNNING, actor="refeed")
    store.move("bf_1", JobState.PAUSED, actor="driver", why="30 rows", awaits_person=True)
    wait_until(lambda: is_told(store), "the wait is told")
    store.move("bf_1", JobState.CANCELLED, actor="ann")
    wait_until(lambda: is_told(store), "the end is told")
    notifier.stop()
    waited, ended = (json.loads(body) for _, _, body in listener.calls)
    assert (waited["type"], ended["type"]) == ("backfill.waiting", "backfill.cancelled")
    assert (waited["data"]["state"], waited["data"]["waits_for"]) == ("PAUSED", "approval")
    assert ended["data"]["waits_for"] is None
    assert waited["timestamp"] < ended["timestamp"]
    ids = [headers["webhook-id"] for _, headers, _ in listener.calls]
    assert len(set(ids)) == 2
    assert b"secret" not in listener.calls[0][2]


def test_what_is_told_of_a_merge_has_its_sources_and_nothing_of_a_topic(store, listener, notify):
    notify().stop()
    asked = {"source": None, "since": None, "dry_run": False, "sources": ["orders", "members"]}
    store.insert("mg_1", "merge", asked, actor="schedule")
    store.move("mg_1", JobState.FAILED, actor="driver", error=FaultRecord("warehouse_error", "Bad value 'secret'"))
    notifier = Notifier(store, MERGE, f"{listener.url}/hook", SECRET)
    notifier.start()
    wait_until(lambda: is_told(store, "mg_1"), "it is told")
    notifier.stop()
    said = json.loads(listener.calls[0][2])
    assert said["type"] == "merge.failed"
    assert not {"topic", "selected", "published", "failed", "labels", "description"} & said["data"].keys()
    assert said["data"]["sources"] == [
        {"source": "orders", "state": "waiting"},
        {"source": "members", "state": "waiting"},
    ]
    counts = {"merged": 0, "failed": 0, "changed": 0, "newer": 0, "without_key": 0}
    assert said["data"]["progress"] == {"sources": 2, **counts}
    assert b"secret" not in listener.calls[0][2]


def store_attempts(store: JobStore) -> int:
    with store._database.read() as connection:
        found: int = connection.exec_driver_sql("SELECT notify_attempts FROM jobs").scalar_one()
    return found
