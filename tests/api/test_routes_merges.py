"""The audits of merges that ended, over HTTP and in the terminal."""

from datetime import UTC, datetime, timedelta

from model.audit import Audit
from model.job import JobState, new_job_id
from reporting.kind import MERGE
from reporting.request import MergeRequest
from reporting.view import describe_failure, describe_report
from warehouse.merges import MergeReport


def test_the_nights_of_each_source_have_their_audits_newest_first_without_dry_runs(client, api, refeed):
    until = datetime(2026, 1, 3, tzinfo=UTC)
    passed, failed = (Audit("keys_unique", found == 90, 90, found, {}) for found in (90, 91))
    report = MergeReport(
        "orders", None, until, changed=12, newer=9, rows_before=80, rows_after=90, audits=(passed,)
    )
    nights = [
        ({"orders": describe_report(report)}, False),
        ({"orders": describe_failure("orders", "audit_failed", "No.", [failed.to_json()])}, False),
        ({"orders": describe_report(report)}, True),
    ]
    made = []
    for found, is_dry_run in nights:
        request = {**MergeRequest().to_json(), "sources": ["orders", "members"], "dry_run": is_dry_run}
        job = api.store.insert(new_job_id("mg"), MERGE.name, request, actor="ann", state=JobState.PAUSED)
        api.store.change(job.id, actor="driver", what="orders merged", findings={"sources": found})
        api.store.move(job.id, JobState.CANCELLED, actor="ann")
        made.append(job.id)
    found = client.get("/merges:audits").json()["nights"]
    assert [(night["merge_id"], night["source"], night["state"]) for night in found] == [
        (made[1], "orders", "failed"),
        (made[0], "orders", "merged"),
    ]
    assert [night["audits"][0]["is_passed"] for night in found] == [False, True]
    assert (found[1]["changed"], found[1]["newer"], found[1]["rows_after"]) == (12, 9, 90)
    assert client.get("/merges:audits", params={"source": "orders"}).json()["nights"] == found
    assert client.get("/merges:audits", params={"source": "members"}).json() == {"nights": []}
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert client.get("/merges:audits", params={"since": later}).json() == {"nights": []}
    code, text, _ = refeed("merge", "audits", "orders")
    assert (code, "keys_unique" in text, "+10" in text) == (0, True, True)
