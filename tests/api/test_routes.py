"""Every route over real sockets: statuses, headers, bodies, streams."""

import base64
import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.api.backfills import api, assert_problem, body, end, paused
from tests.document import openapi_document

__all__ = ["api"]


NOBODY = "bf_00000000000000000000000000"


def test_a_plan_says_what_would_be_done_and_is_quoted_by_a_create(client):
    asked = body()
    planned = client.post("/backfills?validate_only=true", json=asked)
    plan = planned.json()
    assert planned.status_code == 200
    assert (plan["topic"], plan["rows"], plan["rows_by_topic"]) == (asked["topic"], 30, {"orders": 30})
    assert plan["price_usd"] is None
    assert plan["rows_by_hour"] == [{"hour": "2024-03-01T12:00:00Z", "rows": 30}]
    assert plan["samples"][0]["data"] == {"n": 1}
    made = client.post("/backfills", json={**asked, "plan_id": plan["plan_id"], "start_paused": True})
    assert (made.status_code, made.json()["plan_id"]) == (202, plan["plan_id"])
    other = client.post("/backfills", json={**asked, "topic": "other", "plan_id": plan["plan_id"]})
    assert_problem(other, 409, "plan_mismatch")
    assert_problem(client.post("/backfills", json={**asked, "plan_id": "pl_x"}), 409, "plan_expired")


def test_a_plan_with_originals_is_audited_with_topic_and_window(api, client):
    before = len(api.audit())
    plan = client.post("/backfills?validate_only=true&originals=true", json=body()).json()
    comparison = plan["samples"][0]["comparison"]
    assert (comparison["archived"]["data"], comparison["published"]["data"]) == ('{"n": 1}', '{"n": 1}')
    lines = [line for line in api.audit()[before:] if "validate_only" in line.why]
    window = plan["window"]
    start, end = (datetime.fromisoformat(window[name]) for name in ("from", "to"))
    assert end > start
    assert lines[0].why.startswith(f"200 validate_only: {len(plan['samples'])} of orders from ")
    without = client.post("/backfills?validate_only=true", json=body()).json()
    assert without["samples"][0]["comparison"] is None


def test_a_create_that_only_validates_answers_the_plan(client):
    asked = body()
    response = client.post("/backfills", params={"validate_only": "true"}, json=asked)
    assert (response.status_code, response.json()["rows"]) == (200, 30)
    assert "location" not in response.headers
    for name in ("exact", "originals"):
        problem = assert_problem(
            client.post("/backfills", params={name: "true"}, json=asked), 422, "request_invalid"
        )
        assert problem["errors"][0]["pointer"] == f"query:{name}"
    assert client.get("/backfills", params={"topic": asked["topic"]}).json()["backfills"] == []


def test_every_option_is_shown_as_it_was_asked_for(client):
    options = {
        "rate_limit_messages_per_second": 12.5,
        "max_rows": 100,
        "max_bytes_billed": 10**9,
        "ordering": "by_key",
        "attributes": {"replayed": "yes"},
        "canary_messages": 3,
        "max_failed": 2,
        "allow_overlap": True,
    }
    made = paused(client, **options)
    assert {name: made[name] for name in options} == options
    assert made["state"] == "PAUSED"
    assert made["verification"]["state"] == "pending"
    assert made["approval"] == {"required": False, "above_rows": 29, "rows": None, "by": None, "at": None}


def test_options_out_of_bounds_are_refused_together(client):
    wrong = body(max_rows=0, attributes={"goog": "x"}, rate_limit_messages_per_second=-1, ordering="sorted")
    problem = assert_problem(client.post("/backfills", json=wrong), 422, "request_invalid")
    assert [error["pointer"] for error in problem["errors"]] == ["/ordering"]
    wrong["ordering"] = "none"
    problem = assert_problem(client.post("/backfills", json=wrong), 422, "request_invalid")
    assert {error["pointer"] for error in problem["errors"]} == {
        "/max_rows",
        "/attributes",
        "/rate_limit_messages_per_second",
    }


def test_a_field_that_is_unknown_or_no_object_is_refused_by_name(client):
    wrong = body(max_failed="1", max_rowz=1, yield_to=[])
    problem = assert_problem(client.post("/backfills", json=wrong), 422, "request_invalid")
    assert {(error["code"], error["pointer"], error["message"]) for error in problem["errors"]} == {
        ("field_int_type", "/max_failed", "Input should be a valid integer"),
        ("field_extra_forbidden", "/max_rowz", "Extra inputs are not permitted"),
        ("field_model_attributes_type", "/yield_to", "Input should be a JSON object"),
    }


def test_lists_are_filtered_ordered_and_paged(client):
    ids = [paused(client, labels={"batch": "lists", "n": str(n)})["id"] for n in range(3)]
    mine = {"label": "batch:lists", "page_size": 2}
    first = client.get("/backfills", params=mine).json()
    second = client.get("/backfills", params={**mine, "page_token": first["next_page_token"]}).json()
    assert [b["id"] for page in (first, second) for b in page["backfills"]] == ids[::-1]
    assert second["next_page_token"] is None
    oldest = client.get("/backfills", params={**mine, "order_by": "created_at", "page_size": 1}).json()
    assert [b["id"] for b in oldest["backfills"]] == ids[:1]
    since = {"since": "2026-01-01T00:00:00Z"}
    one = client.get(
        "/backfills", params={"label": ["batch:lists", "n:1"], "state": ["FAILED", "PAUSED"], **since}
    )
    assert [b["id"] for b in one.json()["backfills"]] == [ids[1]]
    later = client.get("/backfills", params={"label": "batch:lists", "since": "2999-01-01T00:00:00Z"})
    assert later.json()["backfills"] == []
    for others in ({"label": "batch:others"}, {"state": "PAUSED"}, {"topic": "orders"}, since):
        other = client.get("/backfills", params={**mine, **others, "page_token": first["next_page_token"]})
        assert "another filter" in assert_problem(other, 422, "request_invalid")["detail"]


@pytest.mark.parametrize(
    ("path", "params", "pointer"),
    [
        ("/backfills", {"state": "paused"}, "query:state/0"),
        ("/backfills", {"state": ["PAUSED", ""]}, "query:state/1"),
        ("/backfills", {"label": "team=shop"}, "query:label/0"),
        ("/backfills", {"label": ["team:shop", "Team:x"]}, "query:label/1"),
        ("/backfills", {"label": ["a:b"] * 65}, "query:label"),
        ("/backfills", {"since": "yesterday"}, "query:since"),
        ("/backfills", {"since": "2026-01-01T00:00:00"}, "query:since"),
        ("/backfills", {"since": "0.0"}, "query:since"),
        ("/topics/orders/histogram", {"from": "5"}, "query:from"),
        ("/backfills", {"filter": "state = FAILED"}, "query:filter"),
        ("/jobs", {"state": "DONE"}, "query:state/0"),
        ("/jobs", {"kind": "merges"}, "query:kind/0"),
        ("/jobs", {"id_prefix": "bf_%"}, "query:id_prefix"),
        ("/jobs", {"bogus": "1"}, "query:bogus"),
    ],
)
def test_a_parameter_of_a_list_that_is_wrong_is_named(client, path, params, pointer):
    problem = assert_problem(client.get(path, params=params), 422, "request_invalid")
    assert [error["pointer"] for error in problem["errors"]] == [pointer]


@pytest.mark.parametrize(
    "path", sorted(path for path, methods in openapi_document()["paths"].items() if "get" in methods)
)
def test_a_parameter_that_an_operation_lacks_is_refused(client, path):
    answer = client.get(re.sub(r"\{[a-z_]+\}", "x", path), params={"page_sise": "5"})
    if path in {"/", "/healthz", "/readyz", "/metrics"}:
        assert answer.status_code == 200, "probes and scrapers may send what they like"
    else:
        problem = assert_problem(answer, 422, "request_invalid")
        assert ("field_extra_forbidden", "query:page_sise") in {
            (each["code"], each["pointer"]) for each in problem["errors"]
        }


def test_a_mistyped_parameter_of_a_create_creates_nothing(client):
    before = client.get("/jobs").json()["jobs"]
    answer = client.post("/backfills", params={"validate_onyl": "true"}, json=body())
    assert_problem(answer, 422, "request_invalid")
    assert client.get("/jobs").json()["jobs"] == before


def test_a_change_is_made_once_and_only_to_what_was_read(client):
    made = paused(client)
    path = f"/jobs/{made['id']}"
    changes = {"rate_limit_messages_per_second": 7, "description": "slower", "labels": {"a": "b"}}
    changed = client.patch(path, json=changes, headers={"If-Match": made["etag"]})
    assert changed.status_code == 200
    assert {name: changed.json()[name] for name in changes} == changes
    assert changed.headers["etag"] == changed.json()["etag"] != made["etag"]
    for stale in (made["etag"], '"99999999999999999999999"', "W/nonsense", "٣"):
        headers = {"If-Match": stale.encode()}
        assert_problem(client.patch(path, json={"description": "x"}, headers=headers), 412, "job_changed")
    assert client.patch(path, json={}, headers={"If-Match": "*"}).json()["description"] == "slower"
    current = changed.json()["etag"]
    for several in ('"1", ' + current, current + ',"99"', f'W/"1" ,{current}'):
        assert client.patch(path, json={}, headers={"If-Match": several}).status_code == 200, several
    lines = [("If-Match", '"1"'), ("If-Match", current)]
    assert client.patch(path, json={}, headers=lines).status_code == 200
    for none_of_them in ('"1", "99"', "W/" + current, f'"{current}"', f'"x,{current[1:]}'):
        refused = client.patch(path, json={}, headers={"If-Match": none_of_them})
        assert_problem(refused, 412, "job_changed")
    lifted = client.patch(path, json={"rate_limit_messages_per_second": None}).json()
    assert lifted["rate_limit_messages_per_second"] is None
    assert_problem(client.patch(path, json={"query": "x"}), 422, "request_invalid")
    assert_problem(client.patch(path, json={"labels": {"A": ""}}), 422, "request_invalid")


def test_pause_resume_and_cancel_say_what_still_goes_out_and_that_it_has_ended(client):
    made = paused(client)
    path = f"/jobs/{made['id']}"
    assert made["in_flight_at_most"] == 0
    again = client.post(f"{path}:pause")
    assert (again.status_code, again.json()["state"]) == (200, "PAUSED")
    stale = client.post(f"{path}:cancel", headers={"If-Match": '"99"'})
    assert_problem(stale, 412, "job_changed")
    cancelled = client.post(f"{path}:cancel", headers={"If-Match": made["etag"]})
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "CANCELLED")
    for verb in ("pause", "resume", "cancel", "approve"):
        problem = assert_problem(client.post(f"{path}:{verb}"), 409, "job_state_conflict")
        if verb in ("pause", "cancel"):
            assert problem["detail"].endswith("has already ended with the state CANCELLED.")
    # No approval is pending, and that is the answer for every caller.
    assert "does not wait for an approval" in problem["detail"]


def test_a_retry_says_what_it_sends(client, api):
    made = paused(client)
    path = f"/jobs/{made['id']}"
    assert_problem(client.post(f"{path}:retry"), 409, "job_state_conflict")
    end(api, made["id"])
    assert_problem(client.post(f"{path}:retry", json={"only": "some"}), 422, "request_invalid")
    assert_problem(client.post(f"{path}:retry", json={"only": "failed"}), 409, "job_state_conflict")
    assert_problem(client.post(f"{path}:retry", json={"only": "missing"}), 409, "staging_unknown")
    assert_problem(client.post(f"{path}:revert"), 409, "staging_unknown")
    retried = client.post(f"{path}:retry", json={"only": "all"})
    assert (retried.status_code, retried.json()["state"]) == (200, "PENDING")


def test_topics_tell_what_there_is_to_replay(client):
    topics = {topic["topic"]: topic for topic in client.get("/topics").json()["topics"]}
    assert (topics["orders"]["messages"], topics["orders"]["is_attached"]) == (30, False)
    assert topics["orders"]["freshness_seconds"] >= 0
    assert client.get("/streams").json() == {"streams": []}


def test_a_histogram_tells_when_messages_came_in(client):
    hours = client.get("/topics/orders/histogram").json()
    assert (hours["messages"], hours["step"]) == (30, "hour")
    assert 24 <= len(hours["buckets"]) <= 25
    now = datetime.now(UTC)
    bounds = {"from": (now - timedelta(days=2)).isoformat(), "to": (now + timedelta(days=1)).isoformat()}
    days = client.get("/topics/orders/histogram", params={**bounds, "step": "day"}).json()
    assert sum(bucket["messages"] for bucket in days["buckets"]) == 30
    past = {"to": (now - timedelta(days=2)).isoformat()}
    assert client.get("/topics/orders/histogram", params=past).json()["messages"] == 0


def test_a_histogram_of_an_unknown_topic_is_no_row_of_zeros(api, client):
    api.pubsub.create_topic("silent")
    assert client.get("/topics/silent/histogram").json()["messages"] == 0
    problem = assert_problem(client.get("/topics/silnt/histogram"), 404, "topic_unknown")
    assert "Did you mean silent?" in problem["detail"]
    # A topic that was deleted is known by the archive, also where its messages are older than the window.
    bounds = {"from": "2020-01-01T00:00:00Z", "to": "2020-01-02T00:00:00Z"}
    archived = client.get("/topics/bygone/histogram", params=bounds)
    assert (archived.status_code, archived.json()["messages"]) == (200, 0)


@pytest.mark.parametrize(
    "params",
    [
        {"step": "second"},
        {"from": "yesterday"},
        {"from": "2026-01-02T00:00:00"},
        {"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"},
        {"from": "2000-01-01T00:00:00Z"},
        {"to": "0001-01-01T00:00:00+14:00"},
        {"from": "1970-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z", "step": "day"},
        {"to": "9999-12-31T23:59:59-14:00", "from": "2026-01-01T00:00:00Z"},
    ],
)
def test_a_histogram_of_no_window_is_refused(client, params):
    assert_problem(client.get("/topics/orders/histogram", params=params), 422, "request_invalid")


@pytest.mark.parametrize(
    ("path", "characters"), [("/backfills?", 2000), ("/events?", 2000), ("/messages?topic=orders&", 4000)]
)
def test_a_page_token_of_brackets_within_brackets_is_no_fault_of_the_service(client, path, characters):
    token = base64.urlsafe_b64encode(b"[" * (characters // 4 * 3)).decode()
    problem = assert_problem(client.get(f"{path}page_token={token}"), 422, "request_invalid")
    assert problem["errors"][0]["code"] == "page_token_invalid"


@pytest.mark.parametrize("path", ["/backfills?since=", "/jobs?since=", "/dead-letters?from="])
def test_a_list_since_before_the_calendar_is_the_whole_list(client, path):
    before = client.get(f"{path}0001-01-01T00:00:00%2B14:00")
    first = client.get(f"{path}0001-01-01T00:00:00Z")
    assert (before.status_code, _listed(before)) == (200, _listed(first))
    assert client.get(f"{path}9999-12-31T23:59:59-14:00").status_code == 200


def _listed(answer: httpx.Response) -> set[str]:
    """Return the ids of what is listed: what stands beside them may have changed since another answer."""
    (items,) = (value for name, value in answer.json().items() if isinstance(value, list) and name != "unreadable")
    return {str(item.get("id", item)) for item in items}


def test_a_histogram_of_no_topic_is_refused(client):
    assert_problem(client.get("/topics/1/histogram"), 422, "name_invalid")


@pytest.mark.parametrize(
    ("method", "suffix"),
    [
        *[("POST", f":{verb}") for verb in ("pause", "resume", "cancel", "retry", "approve", "revert")],
        *[("GET", part) for part in ("", "/logs", ":watch")],
        ("PATCH", ""),
    ],
)
def test_what_is_not_there_is_a_problem_on_every_route(client, method, suffix):
    content = {"json": {}} if method == "PATCH" else {}
    for job_id in (NOBODY, "nonsense", "bf_%00", "xx_00000000000000000000000000"):
        problem = assert_problem(
            client.request(method, f"/jobs/{job_id}{suffix}", **content), 404, "job_not_found"
        )
        assert ("There is no backfill" in problem["detail"]) == (job_id == NOBODY)


@pytest.mark.parametrize(
    "path",
    [
        *("/backfills/{id}", "/jobs/{id}/figures", "/jobs/{id}/missing"),
        *("/dead-letters?job={id}", "/dead-letters?group_by=reason&job={id}", "/dead-letters/1/data?job={id}"),
    ],
)
def test_a_part_of_what_is_not_there_is_a_problem(client, path):
    for backfill_id in (NOBODY, "nonsense", "bf_%00", "mg_00000000000000000000000000"):
        assert_problem(client.get(path.format(id=backfill_id)), 404, "job_not_found")


def test_a_body_without_its_content_type_is_told_what_is_missing(client):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    problem = assert_problem(client.post("/backfills", content=b"{}", headers=form), 422, "request_invalid")
    assert problem["detail"] == "The body must be a JSON object, sent with Content-Type: application/json."
