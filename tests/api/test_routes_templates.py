"""Templates over HTTP: manifests like others, launched with the scopes of what they make."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from model.principal import PLAN, READ, RUN, STREAMS_OPERATE, STREAMS_READ

REPLAY = """
kind: Template
name: replay
description: Replays what came since a day.
parameters:
  day: {type: DATE, required: true}
  topic: {type: STRING, default: replay}
launch:
  kind: backfill
  request:
    query: >
      SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE >= @day AND topic = 'orders'
    topic: ${topic}
    start_paused: true
    parameters: {day: {type: DATE, value: "${day}"}}
"""
STREAM = """
kind: Template
name: shop
parameters: {group: {required: true}}
launch: {kind: pipeline, request: {name: "p-${group}", options: {group: "${group}"}}}
"""
MERGE = "kind: Template\nname: nightly\nlaunch: {kind: merge}\n"
SCHEDULE = 'kind: Schedule\nname: yearly\ncron: "0 0 1 1 *"\njob: {kind: merge}\n'


@pytest.fixture(scope="module")
def api(served):
    """An API whose manifests are three templates and a schedule."""
    with served.client() as client:
        text = f"{REPLAY}---\n{STREAM}---\n{MERGE}---\n{SCHEDULE}"
        assert client.post("/manifests:apply", content=text).status_code == 200
    return served


def yesterday() -> str:
    return (datetime.now(UTC).date() - timedelta(days=1)).isoformat()


def test_a_template_makes_the_job_that_it_describes_once_for_a_key(client):
    body = {"parameters": {"day": yesterday()}}
    key = {"Idempotency-Key": "from-a-template"}
    made = client.post("/manifests/replay:launch", json=body, headers=key)
    assert made.status_code == 202, made.text
    assert made.json()["kind"] == "backfill"
    job = client.get(made.headers["location"]).json()
    assert (job["id"], job["topic"], job["state"]) == (made.json()["id"], "replay", "PAUSED")
    assert job["parameters"] == {"day": {"type": "DATE", "value": yesterday()}}
    # At its former path too.
    again = client.post("/templates/replay:launch", json=body, headers=key, follow_redirects=True)
    assert again.json() == made.json()
    client.post(f"{made.headers['location']}:cancel")


def test_a_template_launches_a_stream(client):
    made = client.post("/manifests/shop:launch", json={"parameters": {"group": "one"}})
    assert made.json() == {"template": "shop", "kind": "pipeline", "id": "p-one"}
    stream = client.get(made.headers["location"]).json()
    assert (stream["name"], stream["kind"], stream["options"]["group"]) == ("p-one", "pipeline", "one")
    again = client.post("/manifests/shop:launch", json={"parameters": {"group": "one"}})
    assert (again.status_code, again.json()["code"]) == (409, "stream_exists")
    wrong = client.post("/manifests/shop:launch", json={"parameters": {"group": "No Group"}})
    assert wrong.status_code == 422


def test_wrong_parameters_and_what_the_service_refuses_are_problems(client):
    wrong = client.post("/manifests/replay:launch", json={"parameters": {"dya": "x", "topic": 3}})
    assert wrong.status_code == 422
    assert {error["pointer"] for error in wrong.json()["errors"]} == {
        "/parameters/dya",
        "/parameters/day",
        "/parameters/topic",
    }
    unknown = {"parameters": {"day": yesterday(), "topic": "nobody-has-it"}}
    assert client.post("/manifests/replay:launch", json=unknown).json()["code"] == "topic_not_found"
    nothing = client.post("/manifests/nightly:launch", json={"parameters": {}})
    assert (nothing.status_code, nothing.json()["errors"][0]["code"]) == (422, "nothing_to_merge")
    meant = client.post("/manifests/replya:launch", json={})
    assert (meant.status_code, meant.json()["detail"]) == (
        404,
        "There is no template replya. Did you mean replay?",
    )
    # A manifest of another kind is none.
    assert client.post("/manifests/yearly:launch", json={}).status_code == 404


def test_launching_needs_the_scopes_of_creating_it(api):
    planner = api.make_key(READ, PLAN, name="planner")
    narrow = api.make_key(READ, RUN, name="narrow", topics=["other"])
    body = {"parameters": {"day": yesterday()}}
    for key, path, given in (
        (planner, "/manifests/replay:launch", body),
        (planner, "/manifests/nightly:launch", {}),
        (narrow, "/manifests/shop:launch", {"parameters": {"group": "two"}}),
        # It may run backfills, and not to this topic.
        (narrow, "/manifests/replay:launch", body),
        (api.make_key(READ, name="reader"), "/manifests/replay:launch", body),
    ):
        with api.client(key) as client:
            answer = client.post(path, json=given)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
    assert any(entry.action == "launchTemplate" for entry in api.audit())


def test_who_runs_streams_sees_templates_and_no_other_manifest(api):
    with api.client(api.make_key(STREAMS_READ, STREAMS_OPERATE, name="operator")) as client:
        found = client.get("/manifests").json()["manifests"]
        assert [each["name"] for each in found] == ["nightly", "replay", "shop"]
        # One manifest says more of itself than a list does.
        assert found[1].items() <= client.get("/manifests/replay").json().items()
        assert client.get("/manifests/yearly").status_code == 403


FORMER = """
name: replay-old
kind: pipeline
release: 0.2.0
parameters: {group: {required: true}, day: {type: DATE, default: 2026-01-02}}
request: {name: "p-${group}", options: {group: "${group}-${day}"}}
"""

# The names of files before and after the good one: none of these keeps another one out.
NO_TEMPLATES = {
    "notes.txt": b"no template",
    "aa-binary.yaml": b"name: aa-binary\nkind: backfill\nrequest: {source_topic: !!binary aGVsbG8=}\n",
    "aa-cut.yaml": b"kind: [x",
    "aa-itself.yaml": b"&x {a: *x}",
    "aa-latin.yaml": b"name: \xff",
    "aa-list.yaml": b"- a",
    "zz-key.yaml": b"name: zz-key\nkind: merge\nrequest: {2026-01-01: a}\n",
}


def list_templates(api: Any) -> list[dict[str, Any]]:
    with api.client() as client:
        return [each for each in client.get("/manifests").json()["manifests"] if each["kind"] == "Template"]


def test_templates_of_an_earlier_folder_become_manifests_once(start_api, tmp_path):
    for name, text in {"replay-old": FORMER, "broken": "name: broken\nkind: merge\ncolour: red\n"}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    for name, content in NO_TEMPLATES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "aa-folder.yaml").mkdir()
    api = start_api(REFEED_TEMPLATES=str(tmp_path))
    (found,) = list_templates(api)
    assert (found["name"], found["applied_by"]) == ("replay-old", "REFEED_TEMPLATES")
    assert found["document"]["launch"]["release"] == "0.2.0"
    assert found["document"]["parameters"]["day"] == {"type": "DATE", "default": "2026-01-02"}
    with api.client() as client:
        assert client.delete("/manifests/replay-old").status_code == 200
    # Somebody has removed it since.
    store = f"sqlite:///{api.home / 'jobs.db'}"
    assert list_templates(start_api(REFEED_TEMPLATES=str(tmp_path), REFEED_JOB_STORE=store)) == []
