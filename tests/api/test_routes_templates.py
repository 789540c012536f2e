"""Templates over HTTP: shown with their faults, launched with the scopes of what they make."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.files import open_files
from model.principal import PLAN, READ, RUN
from tests.worlds.bucket import SCHEMES
from tests.worlds.folders import bucket_folder

REPLAY = """
name: replay
kind: backfill
description: Replays what came since a day.
parameters:
  day: {type: DATE, required: true}
  topic: {type: STRING, default: replay}
request:
  query: >
    SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE >= @day AND topic = 'orders'
  topic: ${topic}
  start_paused: true
  parameters: {day: {type: DATE, value: "${day}"}}
"""
STREAM = """
name: shop
kind: pipeline
parameters: {group: {required: true}}
request: {name: "p-${group}", options: {group: "${group}"}}
"""
MERGE = "name: nightly\nkind: merge\nrequest: {}\n"


FILES = {"replay": REPLAY, "nightly": MERGE, "shop": STREAM, "broken": "name: broken\nkind: merge\ncolour: red\n"}


@pytest.fixture(scope="module", params=["disk", *SCHEMES])
def api(request: pytest.FixtureRequest, start_api: Callable[..., Any], tmp_path_factory: Any) -> Iterator[Any]:
    """An API whose templates lie in a folder, and one whose templates are objects of a bucket."""
    with ExitStack() as stack:
        if request.param == "disk":
            place = str(tmp_path_factory.mktemp("templates"))
        else:
            place = stack.enter_context(bucket_folder(request.param, request)).location
        files = open_files(place)
        files.make()
        for name, text in FILES.items():
            files.write(f"{name}.yaml", text.encode())
        yield start_api(REFEED_TEMPLATES=place)


def yesterday() -> str:
    return (datetime.now(UTC).date() - timedelta(days=1)).isoformat()


def test_templates_are_listed_also_those_with_faults(client):
    found = {each["name"]: each for each in client.get("/templates").json()["templates"]}
    assert list(found) == ["broken", "nightly", "replay", "shop"]
    assert found["broken"]["errors"][0]["pointer"] == "/colour"
    assert client.get("/templates/replay").json() == found["replay"]
    assert [each["name"] for each in found["replay"]["parameters"]] == ["day", "topic"]
    for path, status, code in (
        ("/templates/broken", 502, "template_invalid"),
        ("/templates/replya", 404, "template_not_found"),
    ):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_template_makes_the_job_that_it_describes_once_for_a_key(client):
    body = {"parameters": {"day": yesterday()}}
    key = {"Idempotency-Key": "from-a-template"}
    made = client.post("/templates/replay:launch", json=body, headers=key)
    assert made.status_code == 202, made.text
    assert made.json()["kind"] == "backfill"
    job = client.get(made.headers["location"]).json()
    assert (job["id"], job["topic"], job["state"]) == (made.json()["id"], "replay", "PAUSED")
    assert job["parameters"] == {"day": {"type": "DATE", "value": yesterday()}}
    again = client.post("/templates/replay:launch", json=body, headers=key)
    assert again.json() == made.json()
    client.post(f"{made.headers['location']}:cancel")


def test_a_template_launches_a_stream(client):
    made = client.post("/templates/shop:launch", json={"parameters": {"group": "one"}})
    assert made.json() == {"template": "shop", "kind": "pipeline", "id": "p-one"}
    stream = client.get(made.headers["location"]).json()
    assert (stream["name"], stream["kind"], stream["options"]["group"]) == ("p-one", "pipeline", "one")
    again = client.post("/templates/shop:launch", json={"parameters": {"group": "one"}})
    assert (again.status_code, again.json()["code"]) == (409, "stream_exists")
    wrong = client.post("/templates/shop:launch", json={"parameters": {"group": "No Group"}})
    assert wrong.status_code == 422


def test_wrong_parameters_and_what_the_service_refuses_are_problems(client):
    wrong = client.post("/templates/replay:launch", json={"parameters": {"dya": "x", "topic": 3}})
    assert wrong.status_code == 422
    assert {error["pointer"] for error in wrong.json()["errors"]} == {
        "/parameters/dya",
        "/parameters/day",
        "/parameters/topic",
    }
    unknown = {"parameters": {"day": yesterday(), "topic": "nobody-has-it"}}
    assert client.post("/templates/replay:launch", json=unknown).json()["code"] == "topic_not_found"
    nothing = client.post("/templates/nightly:launch", json={"parameters": {}})
    assert (nothing.status_code, nothing.json()["errors"][0]["code"]) == (422, "nothing_to_merge")
    assert client.post("/templates/broken:launch", json={}).status_code == 502
    assert client.post("/templates/nobody:launch", json={}).status_code == 404


def test_launching_needs_the_scopes_of_creating_it(start_api: Callable[..., Any]) -> None:
    api = start_api()
    (api.home / "templates").mkdir()
    (api.home / "templates" / "replay.yaml").write_text(REPLAY)
    (api.home / "templates" / "nightly.yaml").write_text(MERGE)
    (api.home / "templates" / "shop.yaml").write_text(STREAM)
    planner, narrow = (
        api.make_key(READ, PLAN, name="planner"),
        api.make_key(READ, RUN, name="narrow", topics=["other"]),
    )
    body = {"parameters": {"day": yesterday()}}
    for key, path, given in (
        (planner, "/templates/replay:launch", body),
        (planner, "/templates/nightly:launch", {}),
        (narrow, "/templates/shop:launch", {"parameters": {"group": "one"}}),
        # It may run backfills, and not to this topic.
        (narrow, "/templates/replay:launch", body),
        (api.make_key(RUN, name="runner"), "/templates", None),
    ):
        with api.client(key) as client:
            answer = client.get(path) if given is None else client.post(path, json=given)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
    assert any(entry.action == "launchTemplate" for entry in api.audit())


def test_a_bucket_that_is_not_there_or_does_not_answer_is_a_problem_of_the_templates_alone(start_api, request):
    api = start_api(REFEED_TEMPLATES="gs://no-such-bucket/shop")
    with bucket_folder("gs", request), api.client() as client:
        for call in (
            lambda: client.get("/templates"),
            lambda: client.get("/templates/replay"),
            lambda: client.post("/templates/replay:launch", json={}),
        ):
            answer = call()
            assert (answer.status_code, answer.json()["code"]) == (503, "folder_unavailable")
        assert client.get("/streams").status_code == 200
