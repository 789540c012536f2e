import json
from typing import Any

import pytest

from client.api import RefeedApi
from client.jobs import JobCalls
from connectors.lake.entities import EntityTable
from connectors.lake.rows import LakeRowTable
from model.schema import Field, RowSchema
from pipeline.schema import row_columns
from tests.reporting.orders import Orders


@pytest.fixture
def orders(home, tmp_path):
    orders = Orders(home)
    orders.publish(tmp_path)
    return orders


def test_a_merge_makes_reporting_what_staging_says(refeed, orders, home):
    orders.stage((1, 0), (1, 5), (2, 0))
    (planned,) = json.loads(refeed("merge", "--source", "orders", "--dry-run", "--json").out)
    assert (planned["source"], planned["changed"], planned["newer"]) == ("orders", 2, 2)
    assert not EntityTable(str(home / "lake"), "reporting.orders").exists()
    merged, nothing = json.loads(refeed("merge", "--json").out)
    assert merged["partitions"] == ["2026-03-02", "2026-03-03"]
    assert (nothing["source"], nothing["changed"]) == ("returns", 0)
    orders.stage((1, 3), (2, 9))
    shown = refeed("merge", "--source", "orders")
    assert "orders  2          1             1" in shown.out
    assert shown.err == ""
    assert orders.reported() == {1: "1-5", 2: "2-9"}


def test_a_source_that_can_not_be_merged_is_named(refeed, orders):
    assert "logs has no key in sources.yaml" in refeed("merge", "--source", "logs").err
    assert "has no valid source 'none'" in refeed("merge", "--source", "none").err


def test_a_source_with_a_fault_keeps_no_other_from_being_merged(refeed, orders, home):
    orders.stage((1, 0))
    path = home / "registry" / "sources.yaml"
    path.write_text(f"{path.read_text()}  broken: {{topic: bbb, message: shop.Nope}}\n")
    merged = json.loads(refeed("merge", "--json").out)
    assert [(one["source"], one["newer"]) for one in merged] == [("orders", 1), ("returns", 0)]
    assert "has no valid source 'broken'" in refeed("merge", "--source", "broken").err


UNFIT = """
sources:
  visits: {topic: visits, schema: inferred, key: id, partition: at}
  orders: {topic: orders, message: shop.Order, key: id, event_time: updated_at}
  hooks: {topic: hooks, schema: inferred, key: id}
  returns: {topic: returns, message: shop.Order, key: id, event_time: updated_at}
"""


@pytest.fixture
def unfit(orders, home, tmp_path):
    """The sources visits and hooks, whose staging tables their rules do not fit, before and between two others."""
    orders.publish(tmp_path, UNFIT)
    inferred = RowSchema((Field("at", "STRING"), Field("id", "FLOAT64"), *row_columns((), "plain")))
    for source in ("visits", "hooks"):
        LakeRowTable(str(home / "lake"), f"staging.{source}").evolve(inferred)
    orders.stage((1, 0))
    orders.stage((1, 0), source="returns")
    return orders


def test_a_source_whose_rules_do_not_fit_keeps_no_other_from_being_merged(refeed, unfit):
    shown = refeed("merge")
    assert shown.code == 1
    assert "orders   1          1             1" in shown.out
    assert "returns  1          1             1" in shown.out
    assert "2 of 4 sources were not merged." in shown.err
    assert "  - visits: key 'id' is FLOAT64" in shown.err
    assert "partition 'at' is STRING" in shown.err
    assert "  - hooks: key 'id' is FLOAT64" in shown.err
    assert "'refeed describe source/hooks'" in shown.err
    assert unfit.reported() == {1: "1-0"}


def test_the_sources_that_were_merged_beside_others_are_printed_as_json_too(refeed, unfit):
    shown = refeed("merge", "--json")
    assert shown.code == 1
    assert [(one["source"], one["newer"]) for one in json.loads(shown.out)] == [("orders", 1), ("returns", 1)]
    problem = json.loads(shown.err)
    assert problem["code"] == "rules_unfit"
    assert [(each["pointer"], each["code"]) for each in problem["errors"]] == [
        ("visits", "rules_unfit"),
        ("hooks", "rules_unfit"),
    ]


def test_an_earlier_beginning_is_a_time_or_a_day(refeed, orders):
    orders.stage((1, 0))
    refeed("merge")
    for option in (("--since", "2026-01-01T00:00:00Z"), ("--since", "2026-01-01"), ("--date", "2026-01-01")):
        (merged,) = json.loads(refeed("merge", "--source", "orders", *option, "--json").out)
        assert (merged["since"], merged["changed"], merged["newer"]) == ("2026-01-01T00:00:00Z", 1, 0)
    assert "not a day such as 2026-01-01" in refeed("merge", "--date", "tomorrow").err
    assert "not both" in refeed("merge", "--date", "2026-01-01", "--since", "2026-01-01").err


def test_options_before_a_verb_are_refused_not_ignored(refeed):
    assert "after the subcommand" in refeed("merge", "--dry-run", "create").err


def test_the_home_may_stand_behind_the_group(refeed, tmp_path):
    assert str(tmp_path / "other" / "registry") in refeed("merge", "--home", str(tmp_path / "other")).err


MERGE = {
    "id": "mg_01K0ABCDEFGHJKMNPQRSTVWXYZ",
    "state": "FAILED",
    "source": None,
    "dry_run": False,
    "created_by": "schedule",
    "created_at": "2026-01-03T00:15:00Z",
    "progress": {"sources": 2, "merged": 1, "failed": 1, "changed": 3, "newer": 2},
    "sources": [
        {"source": "orders", "state": "merged", "changed": 3, "newer": 2, "partitions": [None], "error": None},
        {
            "source": "customers",
            "state": "failed",
            "changed": 0,
            "newer": 0,
            "partitions": [],
            "error": {"code": "audit_failed", "message": "a key has more than one row"},
        },
    ],
    "error": {"code": "audit_failed", "message": "customers: a key has more than one row"},
}


@pytest.fixture
def calls(monkeypatch):
    """Every call of the API's client, which answers with one merge."""
    calls = []

    def call(_api, method, path, **arguments):
        calls.append((method, path, arguments.get("json", arguments.get("params"))))
        if path == "/jobs":
            return {"jobs": [MERGE], "next_page_token": "next"}
        return {"streams": []} if path == "/streams" else MERGE

    monkeypatch.setattr(RefeedApi, "call", call)
    return calls


def test_the_service_is_asked_for_a_merge_with_what_was_given_alone(refeed, calls):
    shown = refeed("merge", "create", "--source", "orders", "--date", "2026-01-01", "--dry-run")
    assert calls[0] == ("POST", "/merges", {"source": "orders", "date": "2026-01-01", "dry_run": True})
    assert shown.code == 1, "a dry run is waited for, and this one failed"
    assert "customers  audit_failed: a key has more than one row" in shown.out
    calls.clear()
    refeed("merge", "create")
    assert calls[0] == ("POST", "/merges", {})


def test_a_dry_run_is_waited_for_and_is_not_called_merged(refeed, calls, monkeypatch):
    ended = MERGE | {"state": "SUCCEEDED", "dry_run": True, "sources": MERGE["sources"][:1], "error": None}
    monkeypatch.setattr(JobCalls, "watch", lambda *_: iter([ended]))
    shown = refeed("merge", "create", "--dry-run")
    line = next(line for line in shown.out.splitlines() if line.startswith("orders"))
    assert (shown.code, line.split()) == (0, ["orders", "not", "merged:", "a", "dry", "run", "3", "2", "1"])


def test_ctrl_c_ends_the_watching_of_a_merge_and_says_how_to_go_on(refeed, calls, monkeypatch):
    def interrupted(_, __):
        yield MERGE | {"state": "RUNNING", "progress": {"merged": 1, "sources": 2}}
        raise KeyboardInterrupt

    monkeypatch.setattr(JobCalls, "watch", interrupted)
    left = refeed("watch", MERGE["id"])
    assert left.code == 130
    assert left.err.splitlines() == [
        f"watching {MERGE['id']}; Ctrl-C does not cancel it",
        "RUNNING 1 of 2 sources",
        f"{MERGE['id']} continues without this command. To watch it again, or to stop it:",
        f"  refeed watch {MERGE['id']}",
        f"  refeed cancel {MERGE['id']}",
    ]
    assert [method for method, _, _ in calls] == ["GET"]


def test_the_exit_code_of_a_watched_merge_says_how_it_ended(refeed, calls):
    assert refeed("watch", MERGE["id"]).code == 1
    assert refeed("retry", MERGE["id"], "--watch").code == 1
    assert refeed("cancel", MERGE["id"]).code == 0
    path = f"/jobs/{MERGE['id']}"
    assert [(method, where) for method, where, _ in calls if method == "POST"] == [
        ("POST", f"{path}:retry"),
        ("POST", f"{path}:cancel"),
    ]


def test_merges_are_listed_and_shown(refeed, calls):
    listed = refeed("get", "merges", "--state", "failed", "--since", "2026-01-02", "--order-by", "created_at")
    wanted = {"page_size": "50", "order_by": "created_at", "state": ["FAILED"], "since": "2026-01-02T00:00:00Z"}
    assert calls == [("GET", "/jobs", {**wanted, "kind": "merge"})]
    assert "1 / 2" in listed.out
    assert listed.err == "more: --since 2026-01-02T00:00:00Z --page-token next\n"
    assert refeed("get", "merges").err == "more: --page-token next\n"
    assert json.loads(refeed("describe", MERGE["id"], "--json").out) == MERGE


def test_a_merge_that_succeeded_says_what_waits_for_pipelines(refeed, calls, monkeypatch):
    monkeypatch.setattr(JobCalls, "watch", lambda *_: iter([MERGE | {"state": "SUCCEEDED", "error": None}]))
    waits = {"kind": "pipeline", "state": "RUNNING", "backlog_messages": 40}
    streams = [
        {**waits, "name": "pipeline-a"},
        {**waits, "name": "pipeline-b", "backlog_messages": 0},
        {**waits, "name": "pipeline-c", "state": "STARTING", "backlog_messages": None},
        {**waits, "name": "backup", "kind": "backup"},
    ]
    monkeypatch.setattr(RefeedApi, "list_streams", lambda _: {"streams": streams})
    said = refeed("watch", MERGE["id"]).err.splitlines()
    assert said[-2:] == [
        "pipeline-a has 40 pending messages. The merge read only rows that are in staging.",
        "pipeline-c is STARTING. The merge read only rows that are in staging.",
    ]


def merged(since: str | None, changed: int) -> dict[str, Any]:
    source = {**MERGE["sources"][0], "since": since, "changed": changed}
    progress = {**MERGE["progress"], "merged": 1, "sources": 1, "changed": changed}
    return {**MERGE, "state": "SUCCEEDED", "source": "orders", "since": None, "error": None} | {
        "progress": progress,
        "sources": [source],
    }


def test_a_merge_that_found_nothing_says_why_and_how_to_read_a_day_again(refeed, calls, monkeypatch):
    monkeypatch.setattr(RefeedApi, "call", lambda *_, **__: merged("2026-01-03T00:15:00Z", 0))
    said = " ".join(refeed("describe", MERGE["id"]).out.split())
    assert "no rows since the last merge of 2026-01-03 00:15" in said
    assert "refeed merge create --source orders --date 2026-01-02 --watch" in said
    for other in (merged(None, 0), merged("2026-01-03T00:15:00Z", 3)):
        monkeypatch.setattr(RefeedApi, "call", lambda *_, found=other, **__: found)
        assert "refeed merge create" not in refeed("describe", MERGE["id"]).out


def test_a_merge_that_is_run_again_says_that_it_does_not_read_the_same_rows(refeed, monkeypatch):
    ended = merged("2026-01-03T00:15:00Z", 3)
    monkeypatch.setattr(RefeedApi, "call", lambda *_, **__: ended)
    said = " ".join(refeed("rerun", MERGE["id"]).err.split())
    assert "refeed merge create --source orders --date 2026-01-03 --watch" in said
    ended["sources"][0]["since"] = None
    assert "--date 2026-01-02 --watch" in refeed("rerun", MERGE["id"]).err
    # It has a beginning of its own, which the new one has too.
    ended["since"] = "2026-01-01T00:00:00Z"
    assert refeed("rerun", MERGE["id"]).err == ""


@pytest.mark.parametrize("prefix", ["mg", "cp", "bf"])
def test_the_log_of_a_job_is_printed_as_it_comes(refeed, monkeypatch, prefix):
    asked = []

    def read(_api, job_id, **arguments):
        assert job_id == f"{prefix}_1"
        asked.append(arguments)
        return iter(["one\ntw", "o\n"])

    monkeypatch.setattr(JobCalls, "read_log", read)
    assert refeed("logs", f"{prefix}_1", "--tail", "9", "--follow").out == "one\ntwo\n"
    assert json.loads(refeed("logs", f"{prefix}_1", "--json").out) == {"lines": ["one", "two"]}
    assert asked == [{"tail_lines": 9, "follow": True}, {"tail_lines": 1000, "follow": False}]


def test_the_union_view_is_queried_with_staging_that_no_merge_has_taken(refeed, orders):
    orders.stage((1, 0), (2, 0))
    refeed("merge", "--source", "orders")
    orders.stage((1, 5), (3, 0))
    shown = refeed("query", "--view", "orders", "--json")
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert {row["id"]: row["_message_id"] for row in rows} == {1: "1-5", 2: "2-0", 3: "3-0"}
    counted = refeed(
        "query",
        "SELECT COUNT(*) AS n, MAX(id) AS top FROM reporting.orders_view WHERE id > @low",
        "-p",
        "low:INT64:1",
        "--json",
    )
    assert json.loads(counted.out) == {"n": 2, "top": 3}
    assert json.loads(refeed("query", "--view", "orders", "--count", "--json").out) == {"row_count": 3}
    cut = refeed("query", "--view", "orders", "--limit", "1")
    assert "To count all: refeed query --view orders --count" in cut.err
    wrong = refeed("query", "--count", "SELECT id FROM reporting.orders_view")
    assert (wrong.code, "write COUNT(*)" in wrong.err) == (2, True)


def test_a_view_that_is_not_there_is_named(refeed, orders):
    assert "reporting.orders_view" in refeed("query", "SELECT id FROM reporting.orders_view").err
    assert "has no valid source 'none'" in refeed("query", "--view", "none").err
    assert "--view SOURCE" in refeed("query").err
