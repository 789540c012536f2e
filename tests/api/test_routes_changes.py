"""Changes that wait for a second person, over HTTP and in the terminal."""

import json
from datetime import timedelta

import pytest

from jobs.store.tables import EVENTS, JOBS, MANAGED_STREAMS, STREAM_SNAPSHOTS
from model.job import new_job_id
from model.principal import READ, STREAMS_OPERATE, STREAMS_READ
from model.stream_options import StreamKind
from model.stream_record import Wanted
from tests.contract.test_job_store_snapshots import complete
from tests.waiting import wait_until
from tests.worlds.job_store import empty


@pytest.fixture(scope="module")
def served(start_api):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.background._EXPIRE_SECONDS", 0.1)
        yield start_api(REFEED_APPROVE_STREAMS="drain,cancel,rollback,update")


@pytest.fixture(scope="module")
def keys(served):
    names = {
        "ann": (READ, STREAMS_READ, STREAMS_OPERATE),
        "bob": (READ, STREAMS_READ, STREAMS_OPERATE),
        "eve": (READ,),
    }
    return {name: served.make_key(*scopes, name=name) for name, scopes in names.items()}


@pytest.fixture
def api(served, keys):
    served.store.launch_stream("backup", StreamKind.BACKUP, actor="key:ann")
    served.store.take_streams("agent", limit=1, lease_seconds=60)
    yield served
    empty(served.store, EVENTS, JOBS, STREAM_SNAPSHOTS, MANAGED_STREAMS)


def test_a_drain_answers_with_what_it_waits_for_and_is_carried_out_when_somebody_else_approves(api, keys):
    with api.client(keys["ann"]) as ann, api.client(keys["bob"]) as bob, api.client(keys["eve"]) as eve:
        answer = ann.post("/streams/backup:drain", json={"timeout_seconds": 7})
        assert answer.status_code == 202
        made = answer.json()
        path = answer.headers["Location"]
        assert path == f"/jobs/{made['id']}"
        assert (made["state"], made["kind"]) == ("PENDING", "change")
        assert (made["resource"], made["name"]) == ("stream", "backup")
        assert made["verb"] == "drain"
        assert (made["created_by"], made["scope"]) == ("key:ann", STREAMS_OPERATE)
        assert made["body"] == {"timeout_seconds": 7.0}
        assert ann.post("/streams/backup:drain", json={"timeout_seconds": 7}).json() == made
        assert bob.get(path).json() == made
        assert api.store.get_stream("backup").wanted is Wanted.RUNNING
        for client in (ann, eve):
            assert client.post(f"{path}:approve").status_code == 403
        approved = bob.post(f"{path}:approve")
        assert (approved.status_code, approved.json()["state"]) == (200, "SUCCEEDED")
        assert (approved.json()["decided_by"], approved.json()["result"]) == ("key:bob", {"stream": "backup"})
        again = bob.post(f"{path}:approve")
        assert (again.status_code, again.json()["code"]) == (409, "job_state_conflict")
        late = bob.post(f"{path}:reject", json={"reason": "too late"})
        assert (late.status_code, late.json()["code"]) == (409, "job_state_conflict")
    assert api.store.get_stream("backup").wanted is Wanted.DRAINED
    audited = {(line.actor, line.action, line.target, line.outcome) for line in api.audit()}
    assert audited >= {
        ("key:ann", "drainStream", path, "done"),
        ("key:ann", "approveJob", f"{path}:approve", "refused"),
        ("key:eve", "approveJob", f"{path}:approve", "refused"),
        ("key:bob", "approveJob", f"{path}:approve", "done"),
    }


def test_every_action_that_the_deployment_names_waits(api, keys):
    snapshot = complete(api.store).id
    bodies = {"cancel": None, "rollback": {"snapshot": snapshot}, "update": {"options": {"slots": 3}}}
    with api.client(keys["ann"]) as ann, api.client(keys["bob"]) as bob:
        made = {}
        for verb, body in bodies.items():
            answer = ann.post(f"/streams/backup:{verb}", json=body)
            assert (answer.status_code, answer.json()["verb"]) == (202, verb)
            made[verb] = answer.json()["id"]
        page = bob.get("/jobs", params={"kind": "change", "state": "PENDING", "page_size": 2}).json()
        rest = bob.get(
            "/jobs",
            params={"kind": "change", "state": "PENDING", "page_size": 2, "page_token": page["next_page_token"]},
        ).json()
        assert {each["id"] for each in page["jobs"] + rest["jobs"]} == set(made.values())
        rejected = bob.post(f"/jobs/{made['update']}:reject", json={"reason": "not on a Friday"}).json()
        assert (rejected["state"], rejected["reason"]) == ("CANCELLED", "not on a Friday")
        done = bob.post(f"/jobs/{made['rollback']}:approve").json()
        (rollback,) = bob.get("/jobs", params={"kind": "restore", "stream": "backup"}).json()["jobs"]
        assert done["result"] == {"rollback": rollback["id"]}
        assert rollback["created_by"] == "key:ann"
        launched = ann.post("/streams", json={"name": "kin", "kind": "kinesis"})
        assert launched.status_code == 201, launched.text


def test_what_could_not_be_done_anyway_does_not_wait(api, keys):
    with api.client(keys["ann"]) as ann:
        unknown = ann.post("/streams/backpu:cancel")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "stream_not_found")
        stale = ann.post("/streams/backup:cancel", headers={"If-Match": '"77"'})
        assert (stale.status_code, stale.json()["code"]) == (412, "stream_changed")
        wrong = ann.post("/streams/backup:update", json={"options": {"slots": 0}})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "request_invalid")
        assert ann.get("/jobs", params={"kind": "change"}).json() == {
            "jobs": [],
            "unreadable": [],
            "next_page_token": None,
        }
        missing = ann.get(f"/jobs/{new_job_id('ch')}")
        assert (missing.status_code, missing.json()["code"]) == (404, "job_not_found")


def test_a_change_of_a_stream_that_has_changed_is_refused_and_says_so(api, keys):
    with api.client(keys["ann"]) as ann, api.client(keys["bob"]) as bob:
        path = ann.post("/streams/backup:cancel").headers["Location"]
        assert ann.patch("/streams/backup", json={"options": {"batch_seconds": 2}}).status_code == 200
        refused = bob.post(f"{path}:approve")
        assert (refused.status_code, refused.json()["code"]) == (412, "stream_changed")
        shown = bob.get(path).json()
        assert shown["state"] == "FAILED"
        assert shown["error"]["code"] == "stream_changed"


def test_a_change_that_nobody_decides_in_a_day_expires(api, keys):
    with api.client(keys["ann"]) as ann, api.client(keys["bob"]) as bob:
        path = ann.post("/streams/backup:cancel").headers["Location"]
        with api.store._database.write() as connection:
            over = api.store._database.now(connection) - timedelta(days=1)
            connection.execute(JOBS.update().values(created_at=over))
        wait_until(lambda: bob.get(path).json()["state"] == "FAILED", "the change expires")
        assert bob.get(path).json()["error"]["code"] == "approval_late"
        assert bob.get("/inbox").json()["items"] == []
        refused = bob.post(f"{path}:approve")
        assert (refused.status_code, refused.json()["code"]) == (409, "job_state_conflict")
    assert api.store.get_stream("backup").wanted is Wanted.RUNNING


def test_the_terminal_says_who_has_to_approve_and_how(api, keys, refeed, monkeypatch):
    monkeypatch.setenv("REFEED_API_KEY", keys["ann"])
    code, text, said = refeed("drain", "backup", "--timeout", "5")
    change = text.split()[0]
    assert code == 0
    assert text.splitlines()[0] == f"{change}  PENDING: the action was not carried out yet."
    assert "A person other than key:ann must approve it until" in said
    assert f"refeed approve {change}" in said
    for waiting in (("cancel", "stream/backup", "--watch"), ("update", "backup", "--set", "slots=3", "--watch")):
        assert refeed(*waiting)[0] == 1
    snapshot = complete(api.store).id
    code, text, _ = refeed("restore", "backup", snapshot, "--yes", "--json")
    assert (code, json.loads(text)["verb"]) == (0, "rollback")
    assert refeed("approve", change)[0] == 4
    monkeypatch.setenv("REFEED_API_KEY", keys["bob"])
    code, text, _ = refeed("inbox")
    assert f"  refeed approve {change}" in text.splitlines()
    code, text, _ = refeed("watch", change)
    assert (code, f"refeed approve {change}" in text.splitlines()[-1]) == (1, True)
    code, text, _ = refeed("describe", change)
    assert f"refeed approve {change}, by a person other than key:ann" in text
    code, text, _ = refeed("reject", json.loads(refeed("get", "changes", "--json")[1])["changes"][0]["id"])
    assert (code, "CANCELLED" in text) == (0, True)
    code, text, _ = refeed("approve", change)
    assert (code, text.splitlines()[0]) == (0, f"{change}  SUCCEEDED")
    assert "stream backup" in text
    listed = refeed("get", "changes", "--state", "succeeded")[1]
    assert [change, "SUCCEEDED", "drain", "backup", "key:ann"] == listed.splitlines()[-1].split()[:5]
    code, text, _ = refeed("events", "stream/backup")
    assert change in text


def test_a_page_that_was_read_before_somebody_decided_decides_nothing(api, keys):
    with api.client(keys["ann"]) as ann, api.client(keys["bob"]) as bob:
        answer = ann.post("/streams/backup:cancel")
        path, etag = answer.headers["Location"], answer.headers["ETag"]
        assert bob.get(path).headers["ETag"] == etag == answer.json()["etag"]
        for verb in ("approve", "reject", "cancel"):
            stale = bob.post(f"{path}:{verb}", headers={"If-Match": '"77"'})
            assert (stale.status_code, stale.json()["code"]) == (412, "job_changed")
        assert ann.post(f"{path}:cancel", headers={"If-Match": etag}).json()["state"] == "CANCELLED"
        told = ann.get("/events", params={"object": path.removeprefix("/jobs/")}).json()["events"]
        assert [(line["actor"], line["what"]) for line in told] == [
            ("key:ann", "PENDING -> CANCELLED"),
            ("key:ann", "created"),
        ]


def test_former_places_of_approvals_are_those_of_jobs(api, keys):
    with api.client(keys["ann"]) as ann, api.client(keys["bob"]) as bob:
        made = ann.post("/streams/backup:drain").json()
        for word, state in {"WAITING": "PENDING", "EXPIRED": "FAILED"}.items():
            listed = bob.get("/approvals", params={"page_size": 5, "state": word}, follow_redirects=False)
            assert listed.status_code == 308
            assert listed.headers["Location"] == f"/jobs?kind=change&page_size=5&state={state}"
        rejected = bob.post(f"/approvals/{made['id']}:reject", json={"reason": "no"}, follow_redirects=True)
        assert (rejected.status_code, rejected.json()["reason"]) == (200, "no")
        assert bob.get(f"/approvals/{made['id']}", follow_redirects=True).json()["state"] == "CANCELLED"
