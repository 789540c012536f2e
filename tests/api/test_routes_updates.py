"""Updates of streams over HTTP and in the terminal: asked for, shown, approved, and taken back."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from jobs.store.tables import EVENTS, JOBS, MANAGED_STREAMS
from model.stream import AgentReport
from model.stream_options import StreamKind
from model.stream_update import StreamUpdate, UpdateFault, UpdateReplay, UpdateState
from tests.worlds.job_store import empty
from tests.worlds.update_jobs import advance_update

UPDATES = {"kind": "update", "stream": "backup"}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CHECKED: dict[str, Any] = {
    "passes": True,
    "reasons": [],
    "changes": ["slots changes from the deployment's setting to 8"],
    "has_way_back": True,
    "no_way_back": [],
}


@pytest.fixture
def api(served):
    served.store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    releases = [{"name": name, "sha256": name} for name in ("1.2", "1.3", "1.4")]
    served.store.put_agent_report(AgentReport("agent", "host", "/home", "0.1.0", releases))
    yield served
    empty(served.store, EVENTS, JOBS, MANAGED_STREAMS)


def advance(api: Any, update_id: str, state: UpdateState, **changes: Any) -> StreamUpdate:
    """What an agent does."""
    return advance_update(api.store, api.store.get_update(update_id), state, **changes)


def test_an_update_is_asked_for_and_shown_at_its_step(api, client):
    body = {"release": "1.3", "options": {"slots": 8}, "min_messages": 5, "reason": "faster"}
    answer = client.post("/streams/backup:update", json=body, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 202, answer.text
    made = answer.json()
    assert answer.headers["Location"] == f"/jobs/{made['id']}"
    assert (made["stream"], made["state"], made["release"]) == ("backup", "CHECKING", "1.3")
    assert (made["options"], made["validate_seconds"], made["min_messages"]) == ({"slots": 8}, 120.0, 5)
    assert {made["has_way_back"], made["checked"], made["error"], made["replay"], made["finished_at"]} == {None}
    again = client.post("/streams/backup:update", json=body, headers={"Idempotency-Key": "k"})
    assert again.json() == made
    advance(api, made["id"], UpdateState.STARTING, checked=CHECKED)
    shown = client.get(answer.headers["Location"]).json()
    (listed,) = client.get("/jobs", params=UPDATES).json()["jobs"]
    assert shown == listed
    assert (shown["state"], shown["checked"], shown["has_way_back"]) == ("STARTING", CHECKED, True)


def test_who_asked_when_and_what_comes_next_is_described_and_a_stream_names_its_update(api, client, refeed):
    body = {"options": {"slots": 8}, "strategy": "restart", "reason": "faster"}
    made = client.post("/streams/backup:update", json=body).json()
    minute = made["created_at"].replace("T", " ")[:16]
    _, text, _ = refeed("describe", made["id"])
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[-2:] == [f"created {minute} UTC by {made['created_by']}", f"next refeed watch {made['id']}"]
    assert "reason faster" in lines
    code, text, _ = refeed("describe", "stream/backup")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert (code, lines[-2:]) == (0, [f"update {made['id']} CHECKING", f"next refeed watch {made['id']}"])
    assert [each["id"] for each in client.get("/status").json()["updates"]] == [made["id"]]
    assert f"{made['id']} CHECKING backup {minute}" in " ".join(refeed("status")[1].split())
    advance(api, made["id"], UpdateState.STABLE)
    assert client.get("/status").json()["updates"] == []
    assert f"refeed revert {made['id']}" in refeed("describe", made["id"])[1]
    assert made["id"] not in refeed("describe", "stream/backup")[1]


@pytest.mark.parametrize("end", [UpdateState.FAILED, UpdateState.REFUSED, UpdateState.ROLLED_BACK])
def test_a_revert_that_changed_nothing_is_tried_again_with_the_stream_s_name(api, client, refeed, end):
    body = {"options": {"slots": 8}, "strategy": "restart"}
    update_id = client.post("/streams/backup:update", json=body).json()["id"]
    handed = {"handed_over_at": NOON}
    advance(api, update_id, UpdateState.RESTARTING, **handed)
    advance(api, update_id, UpdateState.STABLE)
    for _ in range(2):
        code, out, said = refeed("revert", "stream/backup", "--json")
        assert code == 0, said
        revert = json.loads(out)
        assert revert["reverses"] == update_id
        advance(api, revert["id"], end, error=UpdateFault("update_abandoned", "It was drained."))
    # One that had changed the stream and failed on its own way back.
    revert = json.loads(refeed("revert", "stream/backup", "--json")[1])
    for state in (UpdateState.RESTARTING, UpdateState.RESTARTING_BACK, end):
        fault = UpdateFault("start_failed", "It did not start.")
        advance(api, revert["id"], state, **handed, **({"error": fault} if state is end else {}))
    code, out, said = refeed("revert", "stream/backup", "--json")
    assert code == 0, said
    revert = json.loads(out)
    assert revert["reverses"] == update_id
    advance(api, revert["id"], UpdateState.RESTARTING, **handed)
    advance(api, revert["id"], UpdateState.FAILED, error=UpdateFault("no_way_back", "It stays."))
    code, _, said = refeed("revert", "stream/backup")
    assert (code, f"refeed revert {revert['id']}" in said) == (2, True), said


def test_a_failed_update_without_a_manifest_waits_for_a_person_and_is_no_problem(api, client, refeed):
    update_id = client.post("/streams/backup:update", json={"options": {"slots": 8}}).json()["id"]
    advance(api, update_id, UpdateState.FAILED, error=UpdateFault("update_failed", "Slow."))
    found = client.get("/status").json()
    assert update_id in {each["id"] for each in found["inbox"]}
    assert update_id not in {each["name"] for each in found["problems"]}
    said = " ".join(refeed("status", "--help")[1].split())
    assert "A failed update is a problem only if a manifest requested it." in said


def test_updates_are_listed_by_the_states_in_which_they_are_shown(api, client, refeed):
    ids = []
    for end in (UpdateState.STABLE, UpdateState.REFUSED, UpdateState.FAILED, UpdateState.ROLLED_BACK, None):
        made = client.post("/streams/backup:update", json={"options": {"slots": 8 + len(ids)}}).json()
        ids.append(made["id"])
        if end is not None:
            advance(api, made["id"], end)
    stable, refused, failed, back, checking = ids
    for states, wanted in (
        (["STABLE"], [stable]),
        (["SUCCEEDED"], [stable]),
        (["REFUSED"], [refused]),
        (["FAILED"], [back, failed, refused]),
        (["ROLLED_BACK"], [back]),
        (["CHECKING"], [checking]),
        (["WATCHING"], []),
        (["REFUSED", "PENDING"], [checking, refused]),
    ):
        found = client.get("/jobs", params={**UPDATES, "state": states}).json()["jobs"]
        assert [each["id"] for each in found] == wanted, states
        # The store knows no states of updates, so a page can have fewer than wanted, and the next one is named.
        walked, token = [], ""
        while token is not None:
            params = {**UPDATES, "state": states, "page_size": 1, **({"page_token": token} if token else {})}
            page = client.get("/jobs", params=params).json()
            walked, token = [*walked, *(each["id"] for each in page["jobs"])], page["next_page_token"]
        assert walked == wanted, states
    code, out, _ = refeed("get", "jobs", "--kind", "update", "--state", "stable")
    assert (code, [line.split()[0] for line in out.splitlines()[1:]]) == (0, [stable])
    code, _, said = refeed("get", "updates", "--state", "stabel")
    assert (code, "Did you mean STABLE?" in said) == (2, True)


def test_an_update_is_for_the_stream_as_it_was_read_unless_its_key_has_made_one(api, client):
    body = {"options": {"slots": 8}, "strategy": "restart"}
    headers = {"If-Match": client.get("/streams/backup").headers["ETag"], "Idempotency-Key": "k"}
    made = client.post("/streams/backup:update", json=body, headers=headers).json()
    assert (made["strategy"], made["has_way_back"]) == ("restart", True)
    advance(api, made["id"], UpdateState.ROLLED_BACK)
    assert client.patch("/streams/backup", json={"options": {"batch_seconds": 2}}).status_code == 200
    assert client.post("/streams/backup:update", json=body, headers=headers).json()["id"] == made["id"]
    stale = client.post("/streams/backup:update", json=body, headers={"If-Match": headers["If-Match"]})
    assert (stale.status_code, stale.json()["code"]) == (412, "stream_changed")
    assert len(api.store.list_updates("backup")) == 1


def test_a_pipeline_s_update_may_ask_for_a_shadow_and_shows_its_report(api, client):
    api.store.launch_stream("orders", StreamKind.PIPELINE, actor="ann", options={"group": "default"})
    body = {"release": "1.3", "shadow": {"may_differ": ["staging.orders.total"]}}
    made = client.post("/streams/orders:update", json=body).json()
    assert made["shadow"] == {"hours": 1.0, "may_differ": ["staging.orders.total"]}
    example = {"topic": "orders", "message_id": "1", "running": "3.1", "new": "3.2"}
    figures = {"shadow": {"rows_different": 1, "examples": [example]}}
    advance(api, made["id"], UpdateState.SHADOWING, figures=figures)
    shown = client.get(f"/jobs/{made['id']}").json()
    assert (shown["state"], shown["figures"]) == ("SHADOWING", figures)
    for hours in (-1, 25):
        refused = client.post("/streams/orders:update", json={"shadow": {"hours": hours}})
        assert refused.status_code == 422
    both = client.post("/streams/orders:update", json={"shadow": {}, "strategy": "restart"})
    assert (both.status_code, both.json()["errors"][0]["pointer"]) == (422, "/shadow")
    none = client.post("/streams/backup:update", json={"shadow": {}})
    assert (none.status_code, none.json()["errors"][0]["pointer"]) == (422, "/shadow")


def test_a_release_that_no_agent_has_is_refused_by_the_call(api, client, refeed):
    refused = client.post("/streams/backup:update", json={"release": "1.33"})
    assert (refused.status_code, refused.json()["code"]) == (404, "release_not_found")
    assert "Did you mean 1.3" in refused.json()["detail"]
    assert client.get("/jobs", params=UPDATES).json()["jobs"] == []
    headers = {"Idempotency-Key": "k"}
    made = client.post("/streams/backup:update", json={"release": "1.3"}, headers=headers).json()
    api.store.remove_agent_report("agent")
    # The update is there, whatever became of its release since.
    assert client.post("/streams/backup:update", json={"release": "1.3"}, headers=headers).json() == made
    assert refeed("update", "backup", "--release", "1.33")[0] == 4


def test_everything_that_is_wrong_is_named_at_once(client):
    body = {"options": {"slots": 0, "group": "x"}, "mapping": {"a": "b"}}
    refused = client.post("/streams/backup:update", json=body)
    assert refused.status_code == 422
    pointers = [error["pointer"] for error in refused.json()["errors"]]
    assert pointers == ["/options/slots", "/options/group", "/mapping"]
    assert client.post("/streams/backup:update", json={"validate_seconds": -1}).status_code == 422
    assert client.post("/streams/nobody:update", json={}).json()["code"] == "stream_not_found"
    assert client.get("/jobs", params={"stream": "nobody"}).json()["code"] == "stream_not_found"
    nobody = "/jobs/up_00000000000000000000000000"
    for call in (client.get(nobody), client.post(f"{nobody}:revert")):
        assert (call.status_code, call.json()["code"]) == (404, "job_not_found")
        assert call.json()["detail"].startswith("There is no update up_0")


def test_an_update_says_what_a_watch_that_proves_nothing_means(api, client):
    usual = client.post("/streams/backup:update", json={}).json()
    assert usual["when_inconclusive"] == "keep"
    fault = UpdateFault("update_inconclusive", "3 messages.")
    advance(api, usual["id"], UpdateState.STABLE, error=fault)
    assert client.get(f"/jobs/{usual['id']}").json()["error"]["code"] == "update_inconclusive"
    assert client.post(f"/jobs/{usual['id']}:approve").status_code == 409
    strict = client.post("/streams/backup:update", json={"when_inconclusive": "fail"}).json()
    assert strict["when_inconclusive"] == "fail"
    assert api.store.get_update(strict["id"]).request.when_inconclusive == "fail"
    refused = client.post("/streams/backup:update", json={"when_inconclusive": "ask"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/when_inconclusive")


@pytest.mark.parametrize(
    ("state", "expected"), [(UpdateState.WATCHING, "ROLLING_BACK"), (UpdateState.ROLLING_BACK, None)]
)
def test_an_update_is_taken_back_until_it_goes_back(api, client, state, expected):
    made = client.post("/streams/backup:update", json={}).json()
    advance(api, made["id"], state, checked=CHECKED)
    stale = client.post(f"/jobs/{made['id']}:revert", headers={"If-Match": made["etag"]})
    assert (stale.status_code, stale.json()["code"]) == (412, "job_changed")
    read = client.get(f"/jobs/{made['id']}").headers["ETag"]
    answer = client.post(f"/jobs/{made['id']}:revert", headers={"If-Match": read})
    if expected is None:
        assert (answer.status_code, answer.json()["code"]) == (409, "stream_state_conflict")
    else:
        assert (answer.json()["state"], answer.json()["error"]["code"]) == (expected, "update_unwanted")


def test_an_update_is_watched_until_its_end_and_has_no_log(api, client):
    made = client.post("/streams/backup:update", json={}).json()
    assert (made["kind"], client.get(f"/jobs/{made['id']}/logs").status_code) == ("update", 409)
    with client.stream("GET", f"/jobs/{made['id']}:watch") as response:
        lines = response.iter_lines()
        assert "event: progress" in lines
        assert '"state": "CHECKING"' in next(lines)
        client.post(f"/jobs/{made['id']}:revert").raise_for_status()
        assert "event: end" in lines
        assert '"state": "ROLLED_BACK"' in next(lines)


def test_the_terminal_asks_for_an_update_lists_it_and_says_what_is_next(api, refeed):
    options = ("--set", "slots=8", "--set", "batch_bytes=")
    code, out, err = refeed("update", "backup", "--release", "1.3", *options, "--json")
    assert code == 0, err
    made = json.loads(out)
    assert (made["release"], made["options"]) == ("1.3", {"slots": 8, "batch_bytes": None})
    code, _, err = refeed("update", "backup", "--release", "1.4")
    assert (code, made["id"] in err) == (4, True)
    fault = UpdateFault("update_inconclusive", "3 messages came.", {"new": "the last line"})
    replay = UpdateReplay(None, NOON, ("orders",))
    advance(api, made["id"], UpdateState.STABLE, error=fault, replay=replay, paused_seconds=1.25)
    _, out, _ = refeed("get", "updates", "--stream", "backup")
    assert all(text in out for text in (made["id"], "STABLE", "installed", "1.25 s")), out
    assert "update_inconclusive: 3 messages came." in out
    assert "orders, published from an unknown time to 2026-03-01T12:00:00Z" in out
    assert "the last line" in out
    assert refeed("revert", "stream/backup")[0] == 4, "the stream does not run with it"
    code, out, err = refeed("update", "backup", *options)
    assert (code, "installed" in out) == (0, False), err
    assert "option      slots becomes 8\n" in out
    assert "option      batch_bytes becomes the setting of the deployment\n" in out
    for wrong in (["--set", "slots"], ["--mapping", "a"], ["--when-inconclusive", "ask"]):
        assert refeed("update", "backup", *wrong)[0] == 2


def test_an_update_is_found_as_any_other_job(api, client, refeed):
    made = client.post("/streams/backup:update", json={"options": {"slots": 8}}).json()["id"]
    for words in (["updates"], ["updates", "--by", "local"], ["jobs", "--stream", "stream/backup"]):
        code, out, err = refeed("get", *words)
        assert (code, made in out) == (0, True), err
    assert made not in refeed("get", "jobs", "--stream", "other")[1]
    for name in ("latest", made[:-1], f"job/{made}"):
        code, out, err = refeed("describe", name)
        assert (code, out.startswith(f"{made} of backup")) == (0, True), err
    for name in ("latest", made[:-1]):
        code, out, err = refeed("events", name)
        assert (code, f"update/{made}" in out) == (0, True), err
    code, _, err = refeed("events", "backup")
    assert (code, "stream/backup" in err) == (4, True)
