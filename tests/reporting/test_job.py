"""A merge job's driver, source by source, with a warehouse that does what the test says."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobs.folder import Control, JobFolder, Order, Outcome
from model.audit import Audit
from model.entity import EntityRules
from model.errors import AuditFailedError, MergeOvertakenError, WarehouseError
from model.job import JobState
from model.settings import read_settings
from reporting import job
from reporting.job import main, run_merge
from reporting.request import MergeRequest
from reporting.specification import render_specification
from tests.reporting.shops import BigQueryShop, LakeShop, order
from tests.standin.fixture import PROJECT
from warehouse.merges import MergeReport, MergeSource
from warehouse.open import open_warehouse

SOURCES = [
    MergeSource(
        name, f"staging.{name}", f"reporting.{name}", EntityRules(key=("id",), order=("at", "ingest_time"))
    )
    for name in ("orders", "returns", "visits")
]
AUDIT = Audit("keys_unique", is_passed=True, expected=7, found=7, details={})


class Warehouse:
    """Merges nothing; ``faults`` are raised for their source, one a call."""

    def __init__(self):
        self.calls: list[tuple[str, datetime | None, bool]] = []
        self.faults: dict[str, list[Exception]] = {}
        self.is_closed = False

    def merge(self, source, *, now, since, is_dry_run):
        self.calls.append((source.name, since, is_dry_run))
        if self.faults.get(source.name):
            raise self.faults[source.name].pop(0)
        return MergeReport(source.name, since, now, 3, 2, ("2026-03-01", None), 5, 7, is_dry_run, (AUDIT,))

    def close(self):
        self.is_closed = True


@pytest.fixture
def warehouse(monkeypatch):
    monkeypatch.setattr("reporting.job._RETRY_SECONDS", 0.0)
    return Warehouse()


@pytest.fixture
def run(tmp_path, warehouse):
    """Return what runs the next attempt of one job, and gives its outcome and the job's findings."""
    folder = JobFolder(tmp_path / "job")
    epochs = iter(range(1, 10))

    def run(request=None):
        settings = read_settings({"REFEED_HOME": str(tmp_path)})
        wanted = request or MergeRequest()
        folder.write_specification(render_specification("mg_1", wanted, SOURCES, open_warehouse(settings)))
        return run_merge(folder, next(epochs), lambda _specification: warehouse), folder.read_findings()

    return run


def states(findings):
    return {name: found["state"] for name, found in findings.items()}


def test_every_source_is_merged_in_turn_and_has_its_report(run, warehouse):
    outcome, findings = run()
    assert outcome == Outcome(1, JobState.SUCCEEDED)
    assert [call[0] for call in warehouse.calls] == ["orders", "returns", "visits"]
    assert states(findings) == dict.fromkeys(("orders", "returns", "visits"), "merged")
    found = findings["orders"]
    assert (found["changed"], found["newer"], found["partitions"]) == (3, 2, ["2026-03-01", None])
    assert (found["rows_before"], found["rows_after"], found["audits"]) == (5, 7, [AUDIT.to_json()])
    assert warehouse.is_closed


def test_a_source_that_fails_keeps_none_of_the_others_from_being_merged(run, warehouse):
    audits = [replace(AUDIT, is_passed=False).to_json()]
    warehouse.faults = {
        "orders": [AuditFailedError("a key has more than one row", source="orders", audits=audits)],
        "visits": [OSError("no space left")],
    }
    outcome, findings = run()
    assert outcome.state is JobState.FAILED
    assert outcome.error["code"] == "audit_failed"
    assert "orders: a key has more than one row" in outcome.error["message"]
    assert "visits: The merge failed with OSError" in outcome.error["message"]
    assert states(findings) == {"orders": "failed", "returns": "merged", "visits": "failed"}
    assert findings["orders"]["audits"] == audits


def test_the_next_attempt_merges_what_is_not_merged_and_nothing_else(run, warehouse):
    warehouse.faults = {"returns": [WarehouseError("it went away")]}
    run()
    warehouse.calls.clear()
    outcome, findings = run()
    assert outcome == Outcome(2, JobState.SUCCEEDED)
    assert [call[0] for call in warehouse.calls] == ["returns"]
    assert set(states(findings).values()) == {"merged"}
    # One that died behind its last note has nothing left to do.
    assert run()[0] == Outcome(3, JobState.SUCCEEDED)


def test_a_merge_that_somebody_else_was_quicker_with_is_tried_again(run, warehouse):
    warehouse.faults = {"orders": [MergeOvertakenError("another merge was first") for _ in range(2)]}
    assert run()[0].state is JobState.SUCCEEDED
    assert [call[0] for call in warehouse.calls] == ["orders"] * 3 + ["returns", "visits"]


def test_one_that_is_overtaken_again_and_again_says_so(run, warehouse):
    warehouse.faults = {"orders": [MergeOvertakenError("another merge was first") for _ in range(9)]}
    outcome, _ = run()
    assert (outcome.error or {})["code"] == MergeOvertakenError.code


def test_what_was_asked_for_comes_to_the_warehouse(run, warehouse):
    run(MergeRequest.parse(day="2026-03-01", is_dry_run=True))
    begin = datetime.fromisoformat("2026-03-01T00:00:00+00:00")
    assert warehouse.calls[0] == ("orders", begin, True)


def test_the_driver_merges_in_bigquery_without_spark(shared_standin, tmp_path, monkeypatch):
    shop = BigQueryShop(dataset="merge_job", standin=shared_standin)
    now = datetime.now(UTC)
    shop.stage([order(1), order(2), order(1, minute=5, note="2")], now)
    # There is no table yet that a dry run could compare with.
    assert shop.merge(now, is_dry_run=True).changed == 2
    base = read_settings({"REFEED_HOME": str(tmp_path), "REFEED_PROJECT": PROJECT, "REFEED_WAREHOUSE": "bigquery"})
    settings = replace(base, bigquery=shop.settings, archive_table="merge_job.messages")
    folder = JobFolder(tmp_path / "job")
    folder.write_specification(
        render_specification("mg_1", MergeRequest(), [shop.source], open_warehouse(settings))
    )
    folder.write_control(Control(1, Order.RUN))
    # A session would fail, and be seen: there is no server at this address.
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    assert main(json.dumps({"folder": folder.location, "epoch": 1})) == 0
    assert shop.reporting() == shop.oracle()
    # What tells rows without a key apart is not read where all have one.
    jobs = [job for job in shop.client.list_jobs(max_results=200) if "-days-" in job.job_id]
    assert {"_message_id" in job.query for job in jobs if "`merge_job`" in job.query} == {False}
    found = folder.read_findings()["orders"]
    assert (found["state"], found["newer"]) == ("merged", 2)
    assert {audit["name"]: audit["is_passed"] for audit in found["audits"]} == {
        "keys_unique": True,
        "counts_reconciled": True,
        "freshness": True,
    }
    shop.warehouse.close()


def test_the_driver_merges_a_lake_without_spark_where_executors_do_not_see_its_folder(tmp_path, monkeypatch):
    settings = read_settings({"REFEED_HOME": str(tmp_path), "REFEED_PROJECT": PROJECT})
    shop = LakeShop(lake=Path(settings.lake))
    shop.stage([order(1), order(2)], datetime.now(UTC))
    folder = JobFolder(tmp_path / "job")
    folder.write_specification(
        render_specification("mg_1", MergeRequest(), [shop.source], open_warehouse(settings))
    )
    folder.write_control(Control(1, Order.RUN))
    # As that of a bucket.
    monkeypatch.setattr(JobFolder, "path", None)
    monkeypatch.setattr(job, "starting_spark", lambda _: pytest.fail("it starts Spark"))
    assert main(json.dumps({"folder": folder.location, "epoch": 1})) == 0
    assert shop.reporting() == shop.oracle()
    shop.warehouse.close()
