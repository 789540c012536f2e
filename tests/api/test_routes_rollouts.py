"""Rollouts over HTTP and in the terminal: begun by their manifests, shown, cancelled and reversed."""

import json
import time
from typing import Any

import pytest

from jobs.store.tables import EVENTS, JOBS, MANAGED_STREAMS, MANIFESTS, SCHEDULE_RUNS
from model.principal import READ, ROLLOUTS_APPLY, SCHEDULES_APPLY, STREAMS_OPERATE
from model.stream_options import StreamKind
from model.stream_record import StreamState
from model.stream_update import UNWANTED, UpdateFault, UpdateState
from tests.worlds.job_store import empty
from tests.worlds.update_jobs import advance_update

AGENT = "agent-1"
TEXT = """\
kind: Rollout
name: faster
stream: backup
from: {}
to: {options: {slots: 4}}
strategy: restart
validate: {seconds: 3600, min_messages: 0}
"""
QUERY = """\
kind: Rollout
name: faster
stream: backup
from: {}
to: {options: {slots: 4}}
strategy: restart
validate:
  query: SELECT 1
"""
SCHEDULED = """\
kind: Schedule
name: faster
cron: 0 3 * * *
job:
  kind: rollout
  request:
    stream: backup
    to: {options: {slots: 4}}
    validate:
      query: SELECT 1
"""


@pytest.fixture
def api(served):
    served.store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    run(served)
    yield served
    empty(served.store, EVENTS, JOBS, MANAGED_STREAMS, SCHEDULE_RUNS, MANIFESTS)


def run(api: Any) -> None:
    """What an agent does of a stream that is to run."""
    api.store.take_streams(AGENT, limit=1, lease_seconds=600)
    api.store.report_stream("backup", AGENT, StreamState.RUNNING, instance_id=f"in_{time.monotonic_ns()}")


def put(api: Any, text: str = TEXT, token: str | None = None) -> Any:
    with api.client(token) as client:
        return client.post("/manifests:apply", content=text.encode())


def begin(api: Any) -> dict[str, Any]:
    answer = put(api)
    assert answer.status_code == 200, answer.text
    return answer.json()["plans"][0]["update"]


def advance(api: Any, rollout_id: str, *states: UpdateState, **given: Any) -> None:
    """What the stream's agent does."""
    for state in states:
        advance_update(api.store, api.store.get_update(rollout_id), state, **given)


def test_a_rollout_is_planned_applied_carried_out_cancelled_and_shown(api):
    with api.client() as client:
        wanted = {"validate_only": "true"}
        (planned,) = client.post("/manifests:apply", content=TEXT, params=wanted).json()["plans"]
        assert (planned["kind"], planned["action"], planned["note"]) == ("Rollout", "create", None)
        made = begin(api)
        job = f"/jobs/{made['id']}"
        applied = client.get("/manifests/faster").json()
        assert (made["manifest"]["name"], made["manifest"]["version"]) == ("faster", applied["version"])
        assert (made["stream"], made["strategy"], made["on_failure"]) == ("backup", "restart", "rollback")
        assert (made["from_release"], made["from_options"]) == (None, {})
        assert (made["release"], made["options"], made["reverses"]) == (None, {"slots": 4}, None)
        assert (made["validate_seconds"], made["thresholds"]["lag_factor"]) == (3600, 2.0)
        for call in (
            client.delete("/manifests/faster"),
            client.post("/manifests:apply", content=TEXT + "description: other\n"),
            client.patch("/streams/backup", json={"options": {"batch_seconds": 2}}),
            client.post("/streams/backup:update", json={"options": {"slots": 8}}),
        ):
            assert (call.status_code, call.json()["code"]) == (409, "update_in_progress"), call.text
        advance(api, made["id"], UpdateState.MEASURING, UpdateState.STOPPING)
        (again,) = put(api).json()["plans"]
        assert again["action"] == "none"
        assert made["id"] in again["note"]
        cancelled = client.post(f"{job}:cancel")
        assert (cancelled.status_code, cancelled.json()["unwanted_by"]) == (200, "local")
        assert cancelled.json()["state"] == "STOPPING"
        fault = UpdateFault(UNWANTED, "local took the update back.")
        advance(api, made["id"], UpdateState.RESTARTING_BACK, outgoing_id="in_1")
        advance(api, made["id"], UpdateState.ROLLED_BACK, error=fault)
        back = client.get(job).json()
        assert (back["state"], back["error"]["code"]) == ("ROLLED_BACK", "update_unwanted")
        listed = client.get("/jobs", params={"kind": "update", "label": "manifest:faster"}).json()["jobs"]
        assert listed == [back]
        steps = [each["what"] for each in client.get("/events", params={"object": made["id"]}).json()["events"]]
        assert any("back_start" in step for step in steps)
        assert client.post(f"{job}:cancel").json()["code"] == "stream_state_conflict", "it has ended"
        assert client.get("/inbox").json()["items"] == [], "somebody wanted that"
        assert client.delete("/manifests/faster").status_code == 200
        assert client.get("/streams/backup").json()["options"] == {}


def test_what_can_t_begin_is_refused_by_its_name(api):
    for text, status, code in (
        (TEXT.replace("from: {}", "from: {options: {slots: 2}}"), 409, "rollout_refused"),
        (TEXT.replace("from: {}", "from: {environment: {PATH: x}}"), 422, "manifest_invalid"),
        (TEXT.replace("stream: backup", "stream: other"), 404, "stream_not_found"),
        (TEXT.replace("to: {", "to: {release: '9', "), 404, "release_not_found"),
        (TEXT.replace("slots: 4", "slots: 0"), 422, "request_invalid"),
    ):
        refused = put(api, text)
        assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
    for text, pointer in ((QUERY, "/validate/query"), (SCHEDULED, "/job/request/validate/query")):
        refused = put(api, text)
        (fault,) = refused.json()["errors"]
        assert (refused.status_code, fault["line"], fault["pointer"]) == (422, len(text.splitlines()), pointer)
        assert "Remove validate.query" in fault["message"]
    with api.client() as client:
        assert client.get("/jobs").json()["jobs"] == []
        assert client.get("/schedules/faster").status_code == 404
        put(api)
        assert client.get("/schedules/faster").status_code == 404, "it is no schedule"


def test_who_may_apply_and_steer_rollouts(start_api):
    # One of its own: an API with a key is open to nobody without one.
    api = start_api()
    api.store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    run(api)
    may = api.make_key(ROLLOUTS_APPLY, name="deployer")
    made = put(api, token=may).json()["plans"][0]["update"]
    assert made["created_by"] == "key:deployer"
    for scope, name in ((READ, "reader"), (SCHEDULES_APPLY, "planner"), (STREAMS_OPERATE, "operator")):
        key = api.make_key(scope, name=name)
        assert put(api, token=key).status_code == 403
        with api.client(key) as client:
            for verb in ("revert", "cancel"):
                assert client.post(f"/jobs/{made['id']}:{verb}").status_code == 403
    with api.client(may) as client:
        assert client.get(f"/jobs/{made['id']}").json()["manifest"]["name"] == "faster"
        assert [each["id"] for each in client.get("/jobs").json()["jobs"]] == [made["id"]]
        assert client.get("/jobs", params={"kind": "restore"}).status_code == 403
        assert client.post(f"/jobs/{made['id']}:cancel").status_code == 200
        schedule = b"kind: Schedule\nname: merges\ncron: 15 0 * * *\njob: {kind: merge}\n"
        assert client.post("/manifests:apply", content=schedule).status_code == 403
    assert {"applyManifests", "cancelJob"} <= {line.action for line in api.audit()}


def test_the_terminal_applies_shows_lists_reverses_and_cancels(api, refeed, tmp_path):
    file = tmp_path / "faster.yaml"
    file.write_text(TEXT)
    printed = refeed("apply", "-f", str(file))[1]
    (made,) = api.store.list_updates()
    assert ("created: Rollout faster" in printed, f"{made.id} is CHECKING" in printed) == (True, True)
    assert f"{made.id} is" in refeed("diff", "-f", str(file))[1]
    code, printed, _ = refeed("describe", made.id)
    assert (code, f"{made.id} of backup" in printed, "faster, version " in printed) == (0, True, True)
    assert "slots becomes 4" in printed
    assert "--label manifest=faster" in refeed("describe", "rollout/faster")[2]
    advance(api, made.id, UpdateState.STOPPING)
    assert "back by local" in refeed("cancel", made.id)[1]
    assert "back by local" in refeed("revert", made.id)[1], "it is taken back already"
    figures = {"seconds": 60.0, "messages": 6.0, "dead_letters": 0.0, "faults": None, "lag_seconds": 1.0}
    compared = {"figures": {"before": figures, "after": figures}, "paused_seconds": 1.5}
    fault = UpdateFault("update_failed", "Slow.")
    advance(api, made.id, UpdateState.RESTARTING)
    advance(api, made.id, UpdateState.FAILED, error=fault, **compared)
    printed = refeed("describe", made.id)[1]
    assert "update_failed: Slow." in printed
    assert "messages: 6 in 60 s before, 6 in 60 s after" in printed
    assert {"unknown", "paused"} <= set(printed.split())
    assert made.id in refeed("get", "updates", "--label", "manifest=faster")[1]
    assert made.id not in refeed("get", "updates", "--label", "manifest=slower")[1]
    assert json.loads(refeed("get", "updates", "--json")[1])["updates"][0]["state"] == "FAILED"
    assert refeed("describe", "ro_1")[0] == 4
    code, printed, _ = refeed("revert", made.id, "--json")
    reversal = json.loads(printed)
    assert (code, reversal["reverses"], reversal["options"]) == (0, made.id, {"slots": None})
    code, _, said = refeed("revert", "stream/backup")
    assert (code, "is itself a revert" in said, f"refeed revert {reversal['id']}" in said) == (2, True, True), said
    advance(api, reversal["id"], UpdateState.FAILED, error=fault)
    assert f"refeed describe {reversal['id']}" in refeed("inbox")[1]
    with api.client() as client:
        problems = client.get("/status").json()["problems"]
    assert ("rollout_failed", reversal["id"]) in {(each["code"], each["name"]) for each in problems}
