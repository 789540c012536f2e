import json

import pytest

from client.api import RefeedApi
from client.jobs import JobCalls

COMPACTION = {
    "id": "cp_01K0ABCDEFGHJKMNPQRSTVWXYZ",
    "state": "FAILED",
    "tables": ["archive", "staging.orders"],
    "files_removed": {"archive": 1812},
    "created_by": "schedule:compactions",
    "created_at": "2026-01-03T03:00:00Z",
    "error": {"code": "table_not_found", "message": "There is no table staging.orders."},
}
PATH = f"/jobs/{COMPACTION['id']}"


@pytest.fixture
def calls(monkeypatch):
    """Every call of the API's client, which answers with one compaction."""
    calls = []

    def call(_api, method, path, **arguments):
        calls.append((method, path, arguments.get("params")))
        if path == "/jobs":
            return {"jobs": [COMPACTION], "next_page_token": "next"}
        return COMPACTION

    monkeypatch.setattr(RefeedApi, "call", call)
    return calls


def test_compactions_are_listed_with_the_files_that_went_away(refeed, calls):
    listed = refeed("get", "compactions", "--state", "failed", "--since", "2026-01-02", "--order-by", "created_at")
    wanted = {"page_size": "50", "order_by": "created_at", "state": ["FAILED"], "since": "2026-01-02T00:00:00Z"}
    assert calls == [("GET", "/jobs", {**wanted, "kind": "compaction"})]
    (row,) = (line.split() for line in listed.out.splitlines() if line.startswith("cp_"))
    assert row == [COMPACTION["id"], "FAILED", "1", "/", "2", "1,812", *row[6:]]
    assert "--since 2026-01-02T00:00:00Z --page-token next" in listed.err
    assert json.loads(refeed("get", "compactions", "--json").out)["compactions"] == [COMPACTION]


def test_one_is_shown_table_by_table_with_its_error(refeed, calls):
    shown = refeed("describe", COMPACTION["id"])
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["archive", "1812"] in rows
    assert ["staging.orders", "-"] in rows
    assert "table_not_found: There is no table staging.orders." in shown.out
    assert json.loads(refeed("describe", COMPACTION["id"], "--json").out) == COMPACTION
    assert {path for _, path, _ in calls} == {PATH}


def test_one_that_is_watched_prints_its_changes_and_ends_with_its_outcome(refeed, calls, monkeypatch):
    assert refeed("retry", COMPACTION["id"]).code == 0
    assert refeed("cancel", COMPACTION["id"]).code == 0
    assert [path for method, path, _ in calls if method == "POST"] == [f"{PATH}:retry", f"{PATH}:cancel"]

    def watch(_, __):
        yield COMPACTION | {"state": "RUNNING", "files_removed": {}}
        yield COMPACTION | {"state": "RUNNING", "files_removed": {}}
        yield COMPACTION | {"state": "SUCCEEDED", "files_removed": {"archive": 3, "staging.orders": 0}}

    assert refeed("watch", COMPACTION["id"]).code == 1, "the compaction has FAILED"
    monkeypatch.setattr(JobCalls, "watch", watch)
    watched = refeed("watch", COMPACTION["id"])
    assert watched.code == 0
    assert watched.err.splitlines() == [
        f"watching {COMPACTION['id']}; Ctrl-C does not cancel it",
        "RUNNING 0 of 2 tables",
        "SUCCEEDED 2 of 2 tables",
    ]
