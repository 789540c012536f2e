"""The HTTP service over real sockets; its launcher starts processes that only sleep."""

import errno
import json
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from api.errors import STATUSES
from backfill.steer.service import BackfillService
from model.errors import JavaNotFoundError
from tests.api.backfills import assert_problem as assert_status
from tests.api.conftest import serve_api
from tests.waiting import wait_until
from tests.worlds.launchers import IdleLauncher

MAX_BODY_BYTES = 10_000
QUERY = "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONDATE >= @day"


@dataclass
class NoLauncher(IdleLauncher):
    """Refuses every launch, once it is told that Spark is there."""

    spark: threading.Event = field(default_factory=threading.Event)
    problem: Exception | None = None

    def prepare(self):
        if self.problem is not None:
            raise self.problem
        self.spark.wait(60)

    def exit_reason(self, driver):
        return None if driver.is_alive else "gone"

    def kill(self, driver):
        raise AssertionError(driver)

    def close(self):
        self.spark.set()


@pytest.fixture
def launcher():
    return NoLauncher()


@pytest.fixture
def client(tmp_path, launcher):
    with serve_api(tmp_path, {"REFEED_MAX_BODY_BYTES": str(MAX_BODY_BYTES)}, launcher=launcher) as api:
        with api.client() as client:
            yield client
        launcher.spark.set()


def body(**changes):
    today = datetime.now(UTC).date() - timedelta(days=1)
    parameters = {"day": {"type": "DATE", "value": today.isoformat()}}
    return {"query": QUERY, "topic": "replay", "parameters": parameters, **changes}


def assert_problem(response, status, code):
    problem = assert_status(response, status, code)
    assert set(problem) == {"type", "title", "status", "detail", "instance", "code", "errors"}
    assert problem["type"] == f"/problems/{code}"
    assert problem["instance"] == response.url.path
    assert "Traceback" not in response.text
    return problem


def test_a_backfill_is_accepted_and_says_where_to_look(client):
    response = client.post("/backfills", json=body(description="why", labels={"ticket": "42"}))
    made = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == f"/jobs/{made['id']}"
    assert int(response.headers["retry-after"]) >= 1
    assert (made["state"], made["topic"], made["labels"]) == ("PENDING", "replay", {"ticket": "42"})
    assert made["progress"]["selected"] is None
    shown = client.get(response.headers["location"])
    assert shown.json() == made
    assert shown.headers["etag"] == made["etag"] == response.headers["etag"]
    assert client.get("/backfills").json() == {"backfills": [made], "unreadable": [], "next_page_token": None}


def test_a_create_that_the_home_s_disk_does_not_take_is_a_problem_with_the_reason(client, monkeypatch):
    def write_bytes(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", write_bytes)
        response = client.post("/backfills", json=body(start_paused=True))
    assert (response.status_code, response.json()["code"]) == (503, "folder_unavailable")
    assert "No space left on device" in response.json()["detail"]


def test_every_violation_of_a_query_is_named_with_its_place(client):
    response = client.post("/backfills", json=body(query="SELECT data,\n  nothing\nFROM other.table"))
    problem = assert_problem(response, 422, "query_refused")
    assert len(problem["errors"]) >= 2
    for error in problem["errors"]:
        assert error["code"]
        assert error["message"]
        assert error["line"] >= 1
        assert error["column"] >= 1


def test_of_hundreds_of_violations_the_first_hundred_are_named(client):
    response = client.post("/backfills", json={f"no_{number}": 0 for number in range(500)})
    assert (response.status_code, response.json()["code"]) == (422, "request_invalid")
    assert len(response.json()["errors"]) == 100
    assert len(response.content) < 20_000


def test_a_body_over_the_limit_is_refused_with_or_without_its_length_and_one_within_it_is_read(client):
    within = json.dumps(body()).encode().ljust(MAX_BODY_BYTES)
    taken = client.post("/backfills", content=within, headers={"content-type": "application/json"})
    assert taken.status_code == 202
    announced = client.post("/backfills", json=body(query="x" * MAX_BODY_BYTES))
    assert_problem(announced, 413, "body_too_large")
    chunks = (b" " * 1000 for _ in range(MAX_BODY_BYTES // 1000 + 2))
    streamed = client.post("/backfills", content=chunks, headers={"content-type": "application/json"})
    assert_problem(streamed, 413, "body_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("DELETE", "/backfills", 405, "method_not_allowed"),
        ("GET", "/jobs/nonsense", 404, "job_not_found"),
        ("GET", "/backfills?page_size=0", 422, "request_invalid"),
        ("GET", "/backfills?page_size=1001", 422, "request_invalid"),
        ("GET", "/backfills?page_token=nonsense", 422, "request_invalid"),
    ],
)
def test_what_is_not_there_or_not_allowed_is_a_problem(client, method, path, status, code):
    assert_problem(client.request(method, path), status, code)


def test_what_nobody_foresaw_is_a_problem_that_tells_nothing(client, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(BackfillService, "get", fail)
    response = client.get("/jobs/bf_00000000000000000000000000")
    assert_problem(response, 500, "internal")
    assert "secret" not in response.text
    assert "ZeroDivision" not in response.text


def test_it_is_ready_once_spark_is(client, launcher):
    assert client.get("/healthz").json()["status"] == "ok"
    starting = client.get("/readyz")
    assert (starting.status_code, list(starting.json()["problems"])) == (503, ["spark"])
    launcher.spark.set()
    wait_until(lambda: client.get("/readyz").status_code == 200, "it is ready")


def test_it_says_why_it_is_not_ready(launcher, request):
    launcher.problem = JavaNotFoundError("There is no Java.")
    client = request.getfixturevalue("client")
    wait_until(lambda: client.get("/readyz").json()["problems"] == {"spark": "There is no Java."}, "it says why")


def test_a_plan_of_an_archive_that_is_not_there_is_a_problem(client):
    assert_problem(client.post("/backfills?validate_only=true", json=body()), 502, "warehouse_error")


def test_every_status_of_an_error_is_one_that_http_has():
    assert all(400 <= status < 600 for status in STATUSES.values())


def test_every_code_has_a_page_that_its_type_leads_to(client):
    framework = {"not_found", "method_not_allowed", "http_error", "body_too_large"}
    jobs = {"driver_died", "driver_failed", "interrupted", "messages_failed", "query_stopped", "query_too_large"}
    updates = {f"update_{end}" for end in ("abandoned", "failed", "inconclusive", "refused", "unwanted")}
    updates |= {f"shadow_{end}" for end in ("differs", "failed", "inconclusive")}
    updates |= {"no_way_back", "snapshot_failed", "standby_failed", "start_failed", "stream_died"}
    for code in {error.code for error in STATUSES} | framework | jobs | updates:
        page = client.get(f"/problems/{code}")
        assert page.status_code == 200, code
        assert f"`{code}`" in page.text
        assert "**What to do.**" in page.text
    assert_problem(client.get("/problems/..%2Fapi"), 404, "not_found")
    assert_problem(client.get("/problems/no_such_code"), 404, "not_found")
