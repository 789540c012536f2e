"""The check of a query as it is written: findings with places and edits, nothing run, nothing in the audit log."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from api.bulkhead import MAX_QUICK_CALLS
from backfill.steer.service import BackfillService
from model.errors import ServiceBusyError
from model.principal import PLAN, READ
from tests.api.backfills import assert_problem
from tests.waiting import wait_until

WINDOW = "_PARTITIONTIME >= @from"
GOOD = f"SELECT data, attributes, message_id FROM backup.messages WHERE {WINDOW}"
PARAMETERS = {"from": {"type": "TIMESTAMP", "value": "2026-01-01T00:00:00Z"}}
_SECONDS = 20.0


@pytest.fixture(scope="module")
def api(start_api):
    return start_api(REFEED_RATE_LIMIT_PER_MINUTE="0")


def check(client, query, **parameters):
    response = client.post("/queries:check", json={"query": query, "parameters": parameters})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_query_that_may_run_has_its_window_its_columns_and_its_warnings(client):
    answer = check(client, GOOD.replace("data,", "b'x' AS data,"), **PARAMETERS)
    assert (answer["passes"], answer["findings"], answer["rewritten"]) == (True, [], None)
    assert answer["window"]["from"] == "2026-01-01T00:00:00Z"
    assert [column["name"] for column in answer["columns"]] == ["data", "attributes", "message_id"]
    assert [warning["code"] for warning in answer["warnings"]] == ["data_rewritten"]
    assert answer["reads"] == ["backup.messages"]


def test_a_click_on_every_edit_makes_a_query_that_may_run(client):
    query = "SELECT data, '\U0001f600' AS note FROM backup.messages"
    answer = check(client, query)
    assert not answer["passes"]
    assert [finding["code"] for finding in answer["findings"]] == ["column_missing"] * 2 + ["window_missing"]
    window = answer["findings"][-1]
    assert (window["line"], window["column"], window["source"]) == (1, query.index("backup") + 1, "gate")
    # In characters, as Python and JavaScript's Array.from count them; UTF-16 has one more before the table.
    assert query[window["start"] : window["end"]] == "backup"
    text = query
    edits = [edit for finding in answer["findings"] for edit in finding["edits"]]
    for edit in sorted(edits, key=lambda edit: edit["start"], reverse=True):
        text = text[: edit["start"]] + edit["text"] + text[edit["end"] :]
    assert answer["rewritten"]["passes"]
    assert check(client, text)["passes"]
    assert check(client, answer["rewritten"]["query"])["passes"]


def test_what_the_lake_can_not_do_is_the_warehouses_finding(client):
    answer = check(client, f"{GOOD} AND REGEXP_CONTAINS(topic, r'\\pN')", **PARAMETERS)
    other = check(
        client, GOOD.replace("message_id FROM", "message_id, ST_GEOGPOINT(1, 2) AS g FROM"), **PARAMETERS
    )
    found = [finding for each in (answer, other) for finding in each["findings"]]
    assert {finding["source"] for finding in found} == {"warehouse"}
    assert all(finding["start"] < finding["end"] for finding in found)


def test_tables_that_a_query_may_read_have_their_columns(client):
    (archive,) = check(client, "")["tables"]
    assert (archive["table"], archive["is_archive"]) == ("backup.messages", True)
    names = [column["name"] for column in archive["columns"]]
    assert names[:3] == ["data", "attributes", "message_id"]
    assert names[-2:] == ["_PARTITIONTIME", "_PARTITIONDATE"]


def test_a_text_that_utf_8_can_not_hold_and_an_unknown_field_are_refused(client):
    body = b'{"query": "", "parameters": {"a": {"type": "STRING", "value": "\\ud800"}}}'
    half = client.post("/queries:check", content=body, headers={"Content-Type": "application/json"})
    assert assert_problem(half, 422, "request_invalid")["errors"][0]["code"] == "text_invalid"
    assert_problem(client.post("/queries:check", json={"query": GOOD, "topic": "x"}), 422, "request_invalid")


def test_only_who_may_plan_checks_and_typing_leaves_nothing_in_the_audit_log(start_api):
    api = start_api()
    planner, reader = api.make_key(PLAN, name="planner"), api.make_key(READ, name="reader")
    with api.client(planner) as client:
        assert check(client, GOOD, **PARAMETERS)["passes"]
        assert not check(client, "DROP TABLE x")["passes"]
    with api.client(reader) as client:
        assert_problem(client.post("/queries:check", json={"query": GOOD}), 403, "forbidden")
    assert [(line.actor, line.action, line.outcome) for line in api.audit()] == [
        ("key:reader", "checkQuery", "refused")
    ]


def test_plans_that_take_long_and_checks_do_not_wait_for_each_other(api, client, monkeypatch):
    release = threading.Event()

    def wait(*_, **__):
        assert release.wait(_SECONDS), "nobody let the check end"
        raise ServiceBusyError

    monkeypatch.setattr(BackfillService, "check_query", wait)
    with ThreadPoolExecutor(20) as pool:
        calls = [pool.submit(client.post, "/queries:check", json={"query": GOOD}) for _ in range(20)]
        wait_until(
            lambda: sum(call.done() for call in calls) >= 20 - MAX_QUICK_CALLS,
            "calls beyond the bound are refused instead of waiting",
        )
        with api.client() as other:
            assert other.get("/topics").status_code == 200
        release.set()
    assert {call.result().status_code for call in calls} == {429}
