"""Schedules over HTTP and in the terminal, whose jobs the service really makes."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.store.tables import MANIFESTS, SCHEDULE_RUNS
from model.stream_options import StreamKind
from tests.api.manifests import BACKFILL, MERGE, RANGE, SNAPSHOT, TEMPLATE, api, one, put
from tests.waiting import wait_until

__all__ = ["api"]

TEMPLATED = """\
kind: Schedule
name: templated
cron: "* * * * *"
time_zone: Pacific/Kiritimati
job: {kind: template, request: {template: replay, parameters: {day: "{{ slot.end }}"}}}
"""
COMPACTION = """\
kind: Schedule
name: compactions
cron: "* * * * *"
job: {kind: compaction}
"""
ROLLOUT = """\
kind: Schedule
name: slower
cron: "* * * * *"
job: {kind: rollout, request: {stream: shop, to: {options: {slots: 1}}, strategy: restart}}
"""
RANGE_TEMPLATE = """\
kind: Template
name: last
parameters: {since: {type: STRING, required: true}}
launch:
  kind: backfill
  request: {source_topic: orders, from: "${since}", to: 0m, start_paused: true}
"""
SINCE = """\
kind: Schedule
name: since
cron: "* * * * *"
job: {kind: template, request: {template: last, parameters: {since: 90m}}}
"""


@pytest.fixture(scope="module")
def served(start_api):
    api = start_api()
    api.store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    return api


def run_of(api: Any, text: str) -> dict[str, Any]:
    """Apply a schedule of every minute, let its last slot be due, and return its run once it is decided."""
    applied = put(api, text)
    assert applied.status_code == 200, applied.text
    name = one(applied)["name"]
    deadline = time.monotonic() + 20
    before = datetime.now(UTC) - timedelta(seconds=61)
    with api.store._database.write() as connection:
        connection.execute(MANIFESTS.update().where(MANIFESTS.c.name == name).values(settled_until=before))
    with api.client() as client:
        while not (runs := client.get(f"/schedules/{name}").json()["runs"]) or runs[-1]["state"] == "STARTING":
            assert time.monotonic() < deadline, f"no end within 20 s: {runs}"
            time.sleep(0.05)
    return dict(runs[-1])


def test_a_schedule_s_backfill_has_the_slot_s_times_and_the_schedule_s_name(api, client):
    run = run_of(api, BACKFILL)
    made = client.get(f"/jobs/{run['job_id']}").json()
    assert made["created_by"] == "schedule:replays"
    assert made["parameters"] == {
        "from": {"type": "TIMESTAMP", "value": run["slot_start"]},
        "to": {"type": "TIMESTAMP", "value": run["slot"]},
    }
    assert datetime.fromisoformat(run["slot"]) - datetime.fromisoformat(run["slot_start"]) == timedelta(minutes=1)


def test_a_schedule_runs_when_somebody_asks_once_for_a_key_and_the_job_is_theirs(api, client, refeed):
    put(api, BACKFILL.replace('"* * * * *"', "0 3 * * *"))
    key = {"Idempotency-Key": "again"}
    first = client.post("/schedules/replays:run", headers=key).json()
    assert (first["asked_by"], first["slot_start"][11:]) == ("local", "03:00:00Z")
    covered = f"{first['slot_start'][:10]} 03:00 to {first['slot_end'][:10]} 03:00"
    assert client.post("/schedules/replays:run", headers=key).json()["slot"] == first["slot"]

    def job():
        return client.get("/schedules/replays").json()["runs"][0]["job_id"]

    wait_until(lambda: job() is not None, seconds=20, why="the run has its job")
    made = client.get(f"/jobs/{job()}").json()
    assert made["created_by"] == "local"
    start, end = (made["parameters"][name]["value"] for name in ("from", "to"))
    assert (start, end[11:], end[:10]) == (first["slot_start"], "03:00:00Z", end[:10])
    assert datetime.fromisoformat(end) - datetime.fromisoformat(start) == timedelta(days=1)
    code, printed, _ = refeed("run-now", "replays", "--idempotency-key", "mine")
    assert (code, "SKIPPED" in printed, "has not ended" in printed) == (0, True, True)
    assert refeed("run-now", "replays", "--idempotency-key", "mine")[1] == printed
    described = refeed("describe", "schedule/replays")[1]
    assert f"requested by local at {first['slot'][:16].replace('T', ' ')}, for {covered}" in described
    # The slot is the one that has ended, not the time of the request.
    assert printed.splitlines()[1].startswith(f"{first['slot_end'][:10]} 03:00  SKIPPED")
    assert client.post("/schedules/weekly:run").status_code == 404


def test_a_run_is_shown_once_it_is_known_whether_it_has_a_job(refeed):
    code, printed, _ = refeed("run-now", "nightly-merge")
    assert (code, "STARTING" in printed, "SKIPPED" in printed) == (0, False, True)
    assert "there is nothing to merge" in printed


def test_a_schedule_s_backfill_needs_no_sql(api, client):
    run = run_of(api, RANGE)
    made = client.get(f"/jobs/{run['job_id']}").json()
    assert (made["topic"], made["created_by"]) == ("orders", "schedule:ranges")
    start, end = (f"TIMESTAMP '{run[name]}'" for name in ("slot_start", "slot"))
    assert f"publish_time >= {start}\n  AND publish_time < {end}" in made["query"]


@pytest.mark.parametrize("kind", ["backfill", "template"])
def test_ages_in_a_schedule_s_range_count_from_the_slot_s_end(api, client, kind):
    if kind == "template":
        assert put(api, RANGE_TEMPLATE).status_code == 200
        run = run_of(api, SINCE)
    else:
        run = run_of(api, RANGE.replace("{{ slot.start }}", "90m").replace("{{ slot.end }}", "0m"))
    query = client.get(f"/jobs/{run['job_id']}").json()["query"]
    start = datetime.fromisoformat(run["slot"]) - timedelta(minutes=90)
    wanted = (
        f"publish_time >= TIMESTAMP '{start:%Y-%m-%dT%H:%M:%SZ}'\n  AND publish_time < TIMESTAMP '{run['slot']}'"
    )
    assert wanted in query


def test_a_schedule_whose_range_would_be_refused_is_refused_with_the_place(api):
    for wrong, line, pointer in (
        ("where: nothing = 1", 10, "/job/request/where"),
        ("where: TRUE) OR (TRUE", 10, "/job/request/where"),
        ("where: TRUE\n    query: SELECT 1", 7, "/job/request/source_topic"),
        ("where: 'TRUE'\n# yearly", 8, "/job/request/from"),
    ):
        text = RANGE.replace("* * * * *", "0 0 1 1 *") if "yearly" in wrong else RANGE
        text = text.replace("where: topic = 'orders' OR TRUE", wrong)
        answer = put(api, text)
        assert answer.status_code == 422, answer.text
        assert (line, pointer) in {(each["line"], each["pointer"]) for each in answer.json()["errors"]}


def test_a_template_gets_the_slot_by_the_type_of_its_parameter(api, client):
    put(api, TEMPLATE)
    run = run_of(api, TEMPLATED)
    made = client.get(f"/jobs/{run['job_id']}").json()
    local = datetime.fromisoformat(run["slot"]) + timedelta(hours=14)
    assert made["parameters"] == {"day": {"type": "DATE", "value": local.date().isoformat()}}


def test_an_applied_manifest_is_described_as_a_file_that_can_be_applied_again(api, refeed, tmp_path):
    put(api, TEMPLATED)
    code, text = refeed("describe", "manifest/templated")[:2]
    assert code == 0
    assert text.startswith("# version 1, applied by ")
    (tmp_path / "again.yaml").write_text(text)
    assert "none: Schedule templated" in refeed("diff", "-f", str(tmp_path))[1]
    assert "There is no manifest templatde. Did you mean templated?" in refeed("describe", "manifest/templatde")[2]


def test_a_slot_s_rollout_is_an_update_with_the_schedule_s_name(api, client, refeed):
    api.store.launch_stream("shop", StreamKind.BACKUP, actor="ann", options={"slots": 2})
    run = run_of(api, ROLLOUT)
    assert run["job_kind"] == "rollout"
    made = client.get(f"/jobs/{run['job_id']}").json()
    assert (made["manifest"]["name"], made["manifest"]["version"]) == ("slower", None)
    assert (made["stream"], made["created_by"]) == ("shop", "schedule:slower")
    assert (made["from_options"], made["options"]) == ({"slots": 2}, {"slots": 1})
    listed = json.loads(refeed("get", "updates", "--label", "manifest=slower", "--json")[1])["updates"]
    assert [each["id"] for each in listed] == [run["job_id"]]


def test_a_compaction_is_a_job_by_the_schedule_and_is_refused_without_a_lake(api, monkeypatch):
    run = run_of(api, COMPACTION)
    job = api.store.get(run["job_id"])
    assert (run["job_kind"], job.kind, job.created_by) == ("compaction", "compaction", "schedule:compactions")
    with api.client() as client:
        (shown,) = client.get("/jobs", params={"kind": "compaction"}).json()["jobs"]
        assert (shown["id"], shown["tables"], shown["files_removed"]) == (job.id, ["archive"], {})
        first = client.get("/events", params={"object": job.id}).json()["events"][-1]
        assert first["actor"] == "schedule:compactions"
    monkeypatch.setattr("warehouse.lake.warehouse.LakeWarehouse.open_upkeep", lambda *_: None)
    refused = put(api, COMPACTION.replace("compactions", "others"))
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "nothing_to_compact")
    assert "compacts its tables by itself" in refused.json()["detail"]
    with api.client() as client:
        assert client.get("/manifests/others").status_code == 404


def test_a_snapshot_and_a_merge_are_made_once_for_a_slot(api):
    run = run_of(api, SNAPSHOT)
    # As another replica would that knows nothing of it.
    with api.store._database.write() as connection:
        mine = SCHEDULE_RUNS.c.schedule == "snapshots"
        connection.execute(SCHEDULE_RUNS.update().where(mine).values(state="STARTING", job_id=None))
    assert run_of(api, SNAPSHOT)["job_id"] == run["job_id"]
    assert run["job_kind"] == "snapshot"
    merged = run_of(api, MERGE.replace("15 0 * * *", '"* * * * *"'))
    assert merged["state"] == "SKIPPED"
    assert merged["why"] == "No source of the registry has a key, so there is nothing to merge."
