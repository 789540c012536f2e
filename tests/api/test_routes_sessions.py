"""Sessions over HTTP: opened with a key, sent as a bearer token, ended."""

import pytest

from jobs.keys import Keyring
from tests.api.backfills import assert_problem


@pytest.fixture(scope="module")
def api(start_api):
    api = start_api()
    api.make_key("backfills.admin", name="first")
    return api


def test_a_key_opens_a_session_that_calls_as_the_key_does(api):
    key = api.make_key("backfills.read", name="ann", topics=["orders"])
    with api.client(key) as client:
        opened = client.post("/sessions")
        assert (opened.status_code, opened.headers["location"]) == (201, "/sessions/current")
        made = opened.json()
        assert client.get("/sessions/current").json()["expires_at"] is None
    assert made["token"].startswith("rs_")
    assert key not in opened.text
    with api.client(made["token"]) as client:
        found = client.get("/sessions/current").json()
        assert client.get("/backfills").status_code == 200
        problem = assert_problem(client.get("/messages", params={"topic": "orders"}), 403, "forbidden")
    assert "messages.read" in problem["detail"]
    assert found == {key: value for key, value in made.items() if key != "token"}
    wanted = {"name": "key:ann", "scopes": ["backfills.read"], "topics": ["orders"], "is_open": False}
    assert found == {**wanted, "expires_at": made["expires_at"]}
    lines = [(line.actor, line.action, line.outcome) for line in api.audit()]
    assert ("key:ann", "openSession", "done") in lines


def test_a_session_opens_no_other_one(api):
    with api.client(api.make_key("backfills.read")) as client:
        token = client.post("/sessions").json()["token"]
    with api.client(token) as client:
        assert_problem(client.post("/sessions"), 403, "forbidden")
    with api.client() as client:
        assert_problem(client.post("/sessions"), 401, "unauthenticated")


def test_a_session_that_was_ended_is_nobody(api):
    key = api.make_key("backfills.read")
    with api.client(key) as client:
        token = client.post("/sessions").json()["token"]
        # A key ends no session, and stays as it is.
        assert client.delete("/sessions/current").status_code == 200
    with api.client(token) as client:
        assert client.delete("/sessions/current").json()["name"] == "key:ci"
        assert_problem(client.get("/backfills"), 401, "unauthenticated")
    with api.client(key) as client:
        assert client.get("/backfills").status_code == 200


def test_a_revoked_key_ends_the_session_with_the_next_call(api):
    keyring = Keyring(api.store)
    made, key = keyring.create("leaver", ["backfills.read"])
    with api.client(key) as client:
        token = client.post("/sessions").json()["token"]
    with api.client(token) as client:
        assert client.get("/backfills").status_code == 200
        keyring.revoke(made.id)
        assert_problem(client.get("/backfills"), 401, "unauthenticated")


def test_an_open_deployment_says_so(start_api):
    with start_api().client() as client:
        found = client.get("/sessions/current").json()
        assert (found["is_open"], found["name"], found["expires_at"]) == (True, "local", None)
        assert_problem(client.post("/sessions"), 401, "unauthenticated")
