"""Manifests over HTTP and in the terminal: planned, applied, watched, pruned and removed."""

import io
import json
import time

import pytest
import yaml
from structlog.testing import capture_logs

from app.deployment import Deployment
from cli.manifest import MANIFEST
from jobs.store import JobStore
from model.errors import UpdateInProgressError
from model.principal import READ, RUN, SCHEDULES_APPLY
from model.settings import read_settings
from model.stream_options import StreamKind
from tests.api.manifests import BACKFILL, MERGE, RANGE, SNAPSHOT, TEMPLATE, api, one, plan, put

__all__ = ["api"]


@pytest.fixture(scope="module")
def uploads(tmp_path_factory):
    """The folder that the API watches."""
    return tmp_path_factory.mktemp("uploads")


@pytest.fixture(scope="module")
def served(start_api, uploads):
    with pytest.MonkeyPatch.context() as patched:
        # How often the folder is listed, and how long a file has to lie still, tests/rollout/manifests holds.
        for name in ("SETTLE_SECONDS", "LOOK_SECONDS"):
            patched.setattr(f"rollout.manifests.uploads.{name}", 0.1)
        api = start_api(REFEED_MANIFESTS=str(uploads))
        api.store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
        yield api


def test_a_manifest_is_planned_applied_changed_and_removed(api, client):
    planned = plan(client, MERGE)
    found = one(planned)
    assert (planned.json()["is_applied"], planned.json()["refused"]) == (False, [])
    assert (found["action"], found["kind"], found["manifest"]) == ("create", "Schedule", None)
    assert {"pointer": "/cron", "before": None, "after": "15 0 * * *"} in found["differences"]
    assert client.get("/manifests/merges").status_code == 404, "a plan changes nothing"
    applied = put(api, MERGE, plan=planned.json()["hash"])
    assert applied.json()["is_applied"]
    assert one(applied)["manifest"].items() <= client.get("/manifests/merges").json().items()
    assert (one(applied)["manifest"]["version"], one(applied)["manifest"]["source"]) == (1, "api")
    again = one(put(api, "# the same\n" + MERGE))
    assert (again["action"], again["differences"], again["manifest"]["version"]) == ("none", [], 1)
    changed = one(put(api, MERGE.replace("15 0", "20 0")))
    assert changed["differences"] == [{"pointer": "/cron", "before": "15 0 * * *", "after": "20 0 * * *"}]
    second, first = client.get("/events", params={"object": "manifest/merges"}).json()["events"]
    assert second["fields"] == {"version": 2, "changes": changed["differences"]}
    assert first["fields"] == {"version": 1}
    stale = put(api, MERGE, plan=planned.json()["hash"])
    assert (stale.status_code, stale.json()["code"]) == (412, "manifest_changed")
    shown = client.get("/schedules/merges").json()
    assert [slot[11:] for slot in shown["next_slots"]] == ["00:20:00Z"] * 5
    assert (shown["paused"], shown["runs"]) == (None, [])
    assert client.delete("/manifests/merges").status_code == 200
    for method, path in (("GET", "/schedules/merges"), ("DELETE", "/manifests/merges")):
        gone = client.request(method, path)
        assert (gone.status_code, gone.json()["code"]) == (404, "manifest_not_found")


def test_a_second_schedule_of_the_same_merge_is_warned_of(api, client, refeed, tmp_path):
    (warning,) = one(plan(client, MERGE))["warnings"]
    assert (warning["code"], "The schedule nightly-merge" in warning["message"]) == ("merge_scheduled_twice", True)
    assert "set REFEED_MERGE_AT= (empty)" in warning["message"]
    (tmp_path / "merges.yaml").write_text(MERGE)
    assert "warning: The schedule nightly-merge merges" in refeed("apply", "-f", str(tmp_path / "merges.yaml"))[1]
    # The warning stays, whichever of the two was there first.
    again = one(plan(client, MERGE))
    assert (again["action"], again["warnings"]) == ("none", [warning])
    assert "warning: The schedule nightly-merge merges" in refeed("apply", "-f", str(tmp_path / "merges.yaml"))[1]
    with capture_logs() as logs, Deployment(read_settings(api.environment)) as deployment:
        deployment.manifests.keep_nightly_merge(deployment.settings.merge_at)
    (said,) = [each for each in logs if each["event"] == "merge_scheduled_twice"]
    assert "The schedule merges merges the same sources" in said["problem"]
    orders = MERGE.replace("merges", "orders").replace("kind: merge", "kind: merge, request: {source: orders}")
    put(api, orders)
    # orders and members have no source in common.
    warnings = one(plan(client, orders.replace("orders", "members")))["warnings"]
    assert [each["message"].split()[2] for each in warnings] == ["merges", "nightly-merge"]
    # A schedule is not warned of itself.
    warnings = one(plan(client, MERGE.replace("15 0", "15 1")))["warnings"]
    assert [each["message"].split()[2] for each in warnings] == ["nightly-merge", "orders"]
    assert one(plan(client, SNAPSHOT))["warnings"] == []
    # Two of one text are warned of each other.
    both = plan(client, "\n---\n".join([orders, MERGE.replace("merges", "new")])).json()["plans"]
    warned = {each["name"]: {say["message"].split()[2] for say in each["warnings"]} for each in both}
    assert warned == {"orders": {"merges", "nightly-merge", "new"}, "new": {"merges", "nightly-merge", "orders"}}
    for name in ("merges", "orders"):
        assert client.delete(f"/manifests/{name}").status_code == 200


def test_a_plan_and_the_history_show_a_null_that_is_added(api, client, refeed, tmp_path):
    path = tmp_path / "replay.yaml"
    put(api, TEMPLATE)
    path.write_text(TEMPLATE.replace("required: true", "required: true, default: null"))
    assert "/parameters/day/default: null is added or removed" in refeed("diff", "-f", str(path))[1]
    assert refeed("apply", "-f", str(path))[0] == 0
    newest = client.get("/events", params={"object": "manifest/replay"}).json()["events"][0]
    changed = [{"pointer": "/parameters/day/default", "before": None, "after": None}]
    assert newest["fields"] == {"version": 2, "changes": changed}


def test_several_manifests_of_one_text_are_applied_together_or_not_at_all(api, client, monkeypatch):
    two, wrong = MERGE.replace("merges", "two"), MERGE.replace("merges", "three").replace("cron", "corn")
    text = f"{MERGE}---\n---\n{two}"
    planned = plan(client, text)
    assert [(each["action"], each["name"]) for each in planned.json()["plans"]] == [
        ("create", "merges"),
        ("create", "two"),
    ]
    as_json = json.dumps(
        [
            {"kind": "Schedule", "name": each, "cron": "15 0 * * *", "job": {"kind": "merge"}}
            for each in ("two", "merges")
        ]
    )
    assert plan(client, as_json).json()["hash"] == planned.json()["hash"], "in any order, and as JSON too"
    refused = put(api, f"{text}---\n{wrong}---\n{two}---\n{MERGE.replace('merges', 'nightly-merge')}")
    assert (refused.status_code, refused.json()["code"]) == (422, "manifest_invalid")
    assert refused.json()["detail"].startswith("3 of 5 manifests are refused, so nothing was applied. ")
    assert [(each["line"], each["code"], each.get("pointer")) for each in refused.json()["errors"]] == [
        (12, "manifest_invalid", "/cron"),
        (14, "manifest_invalid", "/corn"),
        (18, "manifest_invalid", "/name"),
        (22, "manifest_owned", None),
    ]
    assert client.get("/manifests/two").status_code == 404
    shown = plan(client, f"{text}---\n{wrong}").json()
    assert [each["name"] for each in shown["plans"]] == ["merges", "two"]
    (fault,) = shown["refused"]
    assert (fault["name"], fault["kind"], fault["code"]) == ("three", "Schedule", "manifest_invalid")
    assert [each["line"] for each in fault["errors"]] == [12, 14]
    with monkeypatch.context() as patched:
        # After all checks, another replica is faster.
        kept, turns = JobStore.put_manifest, iter(("merges", "two", "merges", None))

        def put_manifest(store, name, *given, **more):
            if next(turns) is None:
                raise UpdateInProgressError("A rollout of it runs.")
            return kept(store, name, *given, **more)

        patched.setattr(JobStore, "put_manifest", put_manifest)
        assert put(api, text).status_code == 409
    assert client.get("/manifests/merges").status_code == 404, "all or nothing"
    applied = put(api, text, plan=planned.json()["hash"]).json()
    assert [each["manifest"]["version"] for each in applied["plans"]] == [1, 1]
    line = [each for each in api.audit() if each.action == "applyManifests"][-1]
    assert (line.target, line.why) == ("/manifests:apply", "200 create merges, create two")
    for text in ("", "---\n---\n", "[]"):
        assert "contains no manifest" in plan(client, text).json()["detail"]


def test_every_fault_is_answered_with_its_line_and_column(api, client):
    answer = put(api, MERGE.replace("cron:", "corn:") + "overlap: maybe\n")
    assert (answer.status_code, answer.json()["code"]) == (422, "manifest_invalid")
    places = [(error["line"], error["column"], error["pointer"]) for error in answer.json()["errors"]]
    assert places == [(1, 1, "/cron"), (3, 1, "/corn"), (5, 1, "/overlap")]
    assert client.post("/manifests:apply").status_code == 422


def test_a_query_that_the_gate_refuses_is_refused_when_it_is_applied_with_its_place(api, client):
    wrong = BACKFILL.replace("SELECT data, attributes", "SELECT daata, attributes").replace(
        "_PARTITIONTIME < @to AND ", "_PARTITIONTIME < @until AND "
    )
    refused = put(api, wrong)
    assert (refused.status_code, refused.json()["code"]) == (422, "manifest_invalid")
    places = [(error["line"], error["column"], error["pointer"]) for error in refused.json()["errors"]]
    lines = wrong.splitlines()
    assert places == [
        (8, lines[7].index("SELECT") + 1, "/job/request/query"),
        (8, lines[7].index("daata") + 1, "/job/request/query"),
        (9, lines[8].index("@until") + 1, "/job/request/query"),
    ]
    (planned,) = plan(client, wrong).json()["refused"]
    assert planned["errors"] == [{"pointer": None, "rewrite": None, **each} for each in refused.json()["errors"]]
    assert client.get("/manifests/replays").status_code == 404
    folded = put(api, wrong.replace("query: |", "query: >"))
    assert (folded.json()["errors"][0]["line"], folded.json()["errors"][0]["column"]) == (7, 5)
    assert "In the query's line 1, column 8: There is no column daata" in folded.json()["detail"]
    unbounded = put(api, BACKFILL.replace("_PARTITIONTIME >= @from AND ", ""))
    assert unbounded.status_code == 422


def test_a_query_that_compares_partitions_with_a_slot_s_own_time_is_warned_of(client, refeed, tmp_path):
    # The last slot before a moment of a day lies within the day but for one minute, whose other end does.
    (tmp_path / "replays.yaml").write_text(BACKFILL)
    (tmp_path / "exact.yaml").write_text(
        BACKFILL.replace("name: replays", "name: exact").replace(
            "_PARTITIONTIME >= @from AND _PARTITIONTIME < @to",
            "_PARTITIONTIME >= TIMESTAMP_TRUNC(@from, DAY) AND _PARTITIONTIME <= @to "
            "AND ingest_time >= @from AND ingest_time < @to",
        )
    )
    code, printed, _ = refeed("diff", "-f", str(tmp_path))
    assert code == 0
    assert "(partition_cut)" not in printed.split("Schedule replays")[0]
    assert "Write _PARTITIONTIME" in printed.split("Schedule replays")[1]
    assert "(partition_cut)" in refeed("apply", "-f", str(tmp_path / "replays.yaml"))[1]
    # What was applied stays good: it is not asked about again.
    again = one(plan(client, BACKFILL))
    assert (again["action"], again["warnings"]) == ("none", [])


def test_the_nightly_merge_is_a_schedule_that_belongs_to_its_setting(api, client):
    shown = client.get("/schedules/nightly-merge").json()
    assert (shown["cron"], shown["job"], shown["source"]) == ("15 0 * * *", "merge", "REFEED_MERGE_AT")
    record = api.store.get_manifest("nightly-merge")
    assert record.settled_until >= record.created_at, "no slot is due that is older than the home"
    removed = client.delete("/manifests/nightly-merge")
    assert (removed.status_code, removed.json()["code"]) == (409, "manifest_owned")
    taken = put(api, MERGE.replace("merges", "nightly-merge"))
    assert (taken.status_code, taken.json()["code"]) == (409, "manifest_owned")


def test_a_pause_of_a_manifest_is_not_shown_as_its_application(api, client, refeed):
    put(api, MERGE)
    before = client.get("/manifests/merges").json()
    assert before["applied_at"] == before["last_change"]["at"] == before["created_at"]
    assert before["last_change"]["type"] == "applied"
    for why in ("a holiday", None):
        api.store.pause_schedule("merges", why, actor="ann")
    after = client.get("/manifests/merges").json()
    assert (after["version"], after["applied_at"]) == (before["version"] + 2, before["applied_at"])
    change = after["last_change"]
    assert (change["type"], change["actor"], change["at"]) == ("resumed", "ann", after["changed_at"])
    first, created, changed, *_ = refeed("describe", "manifest/merges")[1].splitlines()
    assert first == f"# version 3, applied by local at {before['applied_at']}"
    assert created == f"# created at {before['created_at']}"
    assert changed == f"# last change: resumed by ann at {after['changed_at']}"


@pytest.mark.parametrize(
    "asked",
    [("get", "manifests"), ("get", "schedules"), ("describe", "manifest/merges"), ("describe", "schedule/merges")],
)
def test_manifests_are_written_as_yaml_as_they_are_as_json(api, refeed, asked):
    put(api, MERGE)
    found = {form: refeed(*asked, "-o", form) for form in ("yaml", "json")}
    assert [code for code, *_ in found.values()] == [0, 0]
    assert yaml.safe_load(found["yaml"][1]) == json.loads(found["json"][1])


def test_a_manifest_that_a_setting_owns_is_not_described_as_a_file_to_apply(api, refeed):
    described = refeed("describe", "manifest/nightly-merge")[1].splitlines()
    assert "# next: change the setting REFEED_MERGE_AT, and start the API again" in described
    assert "kind: Schedule" in described


@pytest.mark.parametrize(
    ("source", "way"),
    [
        ("api", "save this as a.yaml, change it, and run: refeed apply -f a.yaml"),
        ("upload:s3://shop/manifests", "change its file in s3://shop/manifests"),
        ("REFEED_MERGE_AT", "change the setting REFEED_MERGE_AT, and start the API again"),
    ],
)
def test_a_manifest_is_changed_by_its_owner(source, way):
    change = {"type": "paused", "actor": None, "at": "2026-01-02T00:00:00Z"}
    found = {
        "name": "a",
        "version": 2,
        "source": source,
        "applied_by": "ann",
        "created_at": "2026-01-01T00:00:00Z",
    }
    found |= {"applied_at": None, "last_change": change, "document": {}}
    lines = list(MANIFEST.lines(found))
    assert lines[0] == "# version 2, applied by ann at unknown"
    assert lines[2:4] == ["# last change: paused by unknown at 2026-01-02T00:00:00Z", f"# next: {way}"]


def test_who_applies_needs_the_scope_and_those_of_the_job_and_its_topic(start_api):
    # One of its own: an API with a key is open to nobody without one.
    api = start_api()
    refused = {
        "no scope": api.make_key(READ, RUN, name="reader"),
        "not the job's": api.make_key(READ, SCHEDULES_APPLY, name="planner"),
        "not the topic": api.make_key(RUN, SCHEDULES_APPLY, name="other", topics=("other",)),
    }
    for why, key in refused.items():
        assert put(api, BACKFILL, key).status_code == 403, why
        assert put(api, RANGE, key).status_code == 403, why
    key = api.make_key(RUN, SCHEDULES_APPLY, name="orders", topics=("orders",))
    assert one(put(api, BACKFILL, key))["manifest"]["applied_by"] == "key:orders"
    for why in ("not the job's", "not the topic"):
        with api.client(refused[why]) as client:
            assert client.post("/schedules/replays:pause").status_code == 200, why
            assert client.post("/schedules/replays:resume").status_code == 403, why
    with api.client(key) as client:
        assert client.post("/schedules/replays:resume").json()["paused"] is None
    with api.client(refused["no scope"]) as client:
        assert client.get("/schedules").status_code == 200
        for call in ("/schedules/replays:pause", "/schedules/replays:resume", "/schedules/replays:run"):
            assert client.post(call).status_code == 403
        assert client.delete("/manifests/replays").status_code == 403
        assert one(plan(client, BACKFILL))["action"] == "none", "who may read may see what would change"
        pruned = plan(client, MERGE, prune="true").json()
        assert [each["action"] for each in pruned["plans"]] == ["create", "remove"]
        assert put(api, BACKFILL, refused["no scope"], prune="true", plan=pruned["hash"]).status_code == 403
    assert "applyManifests" in {line.action for line in api.audit()}


def test_a_template_that_a_schedule_launches_is_changed_by_who_may_do_what_it_launches(start_api):
    api = start_api()
    ann = api.make_key(RUN, SCHEDULES_APPLY, name="ann")
    template = "kind: Template\nname: replay\nlaunch: {kind: backfill, request: {topic: orders}}\n"
    schedule = (
        'kind: Schedule\nname: nightly\ncron: "0 0 * * *"\njob: {kind: template, request: {template: replay}}\n'
    )
    alone = api.make_key(SCHEDULES_APPLY, name="alone")
    assert put(api, template, alone).status_code == 200, "no schedule launches it yet"
    assert put(api, schedule, ann).status_code == 200
    changed = template.replace("orders", "clicks")
    narrow = api.make_key(RUN, SCHEDULES_APPLY, name="narrow", topics=("orders",))
    for key in (alone, narrow):
        refused = put(api, changed, key)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), refused.json()
    assert put(api, template, alone).status_code == 200, "it is as it was"
    assert put(api, changed, ann).status_code == 200


def test_the_terminal_plans_applies_shows_and_deletes(api, refeed, tmp_path):
    (tmp_path / "merges.yaml").write_text(MERGE)
    (tmp_path / "replays.yml").write_text(BACKFILL)
    code, printed, _ = refeed("diff", "-f", str(tmp_path))
    assert code == 0
    assert "create: Schedule merges" in printed
    assert '  /cron: nothing -> "15 0 * * *"' in printed
    plan = printed.split("\nplan ")[1].strip()
    code, _, said = refeed("apply", "-f", str(tmp_path), "--plan", "0" * 64)
    assert (code, "The plan has changed" in said) == (1, True)
    code, printed, _ = refeed("apply", "-f", str(tmp_path), "--plan", plan)
    assert (code, "created: Schedule merges" in printed, "\nplan " in printed) == (0, True, False)
    assert '  /cron: nothing -> "15 0 * * *"' in printed
    (tmp_path / "merges.yaml").write_text(MERGE.replace("15 0", "20 0"))
    printed = refeed("apply", "-f", str(tmp_path))[1]
    assert ("changed: Schedule merges" in printed, "unchanged: Schedule replays" in printed) == (True, True)
    assert "none: Schedule merges" in refeed("diff", "-f", str(tmp_path / "merges.yaml"))[1]
    _, printed, _ = refeed("get", "schedules")
    assert {"merges", "nightly-merge", "replays"} <= set(printed.split())
    assert "paused: local paused it." in refeed("pause", "merges")[1]
    assert "paused" not in refeed("resume", "schedule/merges")[1]
    assert "next: save this as merges.yaml" in refeed("describe", "manifest/merges")[1]
    assert json.loads(refeed("describe", "schedule/merges", "--json")[1])["cron"] == "20 0 * * *"
    assert refeed("delete", "-f", str(tmp_path), "--yes")[0] == 0
    assert refeed("describe", "schedule/merges")[0] == 4
    (tmp_path / "merges.yaml").write_text(MERGE + "colour: red\n")
    code, _, said = refeed("apply", "-f", str(tmp_path))
    assert (code, "merges.yaml:5:1: There is no field colour." in said) == (1, True)


def test_the_terminal_names_the_file_of_a_fault_that_the_service_finds(refeed, tmp_path):
    (tmp_path / "a.yaml").write_bytes(f"%YAML 1.1\n---\n{MERGE}---\n{MERGE.replace('merges', 'two')}".encode())
    (tmp_path / "b.yaml").write_bytes(b"\xef\xbb\xbf" + MERGE.replace("merges", "three").rstrip().encode())
    (tmp_path / "c.yaml").write_text("# first\n---\n" + BACKFILL.replace("SELECT data,", "SELECT daata,"))
    (tmp_path / "d.yaml").write_text("%YAML 1.1\n---\n" + MERGE.replace("merges", "nightly-merge"))
    for command in (("diff",), ("apply",), ("apply", "--dry-run")):
        code, printed, said = refeed(*command, "-f", str(tmp_path))
        assert code == 4, command
        assert "create: Schedule three" in printed
        assert "refused: Schedule replays" in printed
        column = BACKFILL.splitlines()[7].index("data") + 1
        assert f"c.yaml:10:{column}: There is no column daata" in said.replace("\n", "")
        assert "d.yaml:3:1: nightly-merge belongs to REFEED_MERGE_AT" in said.replace("\n", "")
    assert refeed("describe", "schedule/two")[0] == 4, "nothing was applied"
    code, printed, _ = refeed("apply", "--dry-run", "-f", str(tmp_path / "a.yaml"))
    assert (code, "create: Schedule two" in printed, refeed("describe", "schedule/two")[0]) == (0, True, 4)
    assert refeed("apply", "-f", str(tmp_path / "a.yaml"), "-f", str(tmp_path / "b.yaml"))[0] == 0
    assert refeed("describe", "schedule/three")[0] == 0
    code, printed, _ = refeed("delete", "-f", str(tmp_path / "a.yaml"), "--yes")
    assert (code, printed.splitlines()) == (0, ["removed: Schedule merges", "removed: Schedule two"])


def test_a_file_in_the_watched_folder_is_applied_and_its_fault_is_shown_everywhere(api, refeed, uploads):
    uploaded = SNAPSHOT.replace("snapshots", "uploaded").replace('"* * * * *"', "0 3 * * *")
    (uploads / "uploaded.yaml").write_text(uploaded)

    def seen(field):
        deadline = time.monotonic() + 20
        while not (found := [each[field] for each in client.get("/manifests").json()["uploads"]]) or not found[0]:
            assert time.monotonic() < deadline, f"the upload was not looked at within 20 s: {found}"
            time.sleep(0.1)
        return found[0]

    with api.client() as client:
        applied = seen("applied_generation")
        shown = client.get("/manifests/uploaded").json()
        assert (shown["source"], shown["applied_by"]) == (f"upload:{uploads}", f"upload:{uploads}")
        assert client.delete("/manifests/uploaded").json()["code"] == "manifest_owned"
        (uploads / "uploaded.yaml").write_text(uploaded + "colour: red\n")
        assert seen("fault") == "The manifest is wrong. Line 5, column 1: There is no field colour."
        assert client.get("/manifests").json()["uploads"][0]["applied_generation"] == applied
        assert client.get("/manifests").json()["upload_source"] == {"source": f"upload:{uploads}", "problem": None}
        (item,) = [each for each in client.get("/inbox").json()["items"] if each["resource"] == "manifest"]
        assert (item["kind"], item["id"]) == ("failure", "uploaded.yaml")
        codes = [each["code"] for each in client.get("/status").json()["problems"]]
        assert "upload_failed" in codes
    assert "uploaded.yaml: generation" in refeed("get", "manifests")[1]
    assert "refeed get manifests" in refeed("inbox")[1]
    lines = [(line.actor, line.action, line.target, line.outcome) for line in api.audit()]
    for outcome in ("done", "refused"):
        assert (f"upload:{uploads}", "applyManifest", "/manifests/uploaded", outcome) in lines
    (uploads / "uploaded.yaml").unlink()
    with api.client() as client:
        assert seen("gone_at")
        assert client.get("/manifests/uploaded").status_code == 200, "nothing is removed by itself"
    assert "uploaded.yaml: the file no longer exists, and its manifest stays" in refeed("get", "manifests")[1]
    assert "Put the files back, or use 'refeed delete NAME'" in " ".join(refeed("inbox")[1].split())
    assert refeed("delete", "manifest/uploaded", "--yes")[0] == 0
    with api.client() as client:
        assert client.get("/manifests/uploaded").status_code == 404
        assert client.get("/manifests").json()["uploads"] == []


def test_pruning_removes_what_callers_applied_and_the_files_do_not_have_all_or_nothing(api, client, monkeypatch):
    for name in ("one", "two", "three"):
        assert put(api, MERGE.replace("merges", name)).status_code == 200
    keep = MERGE.replace("merges", "two")
    planned = plan(client, keep, prune="true").json()
    assert [(each["action"], each["name"]) for each in planned["plans"]] == [
        ("none", "two"),
        ("remove", "one"),
        ("remove", "three"),
    ]
    assert len(client.get("/schedules").json()["schedules"]) == 4, "a plan removes nothing"
    unplanned = put(api, keep, prune="true")
    assert (unplanned.status_code, unplanned.json()["errors"][0]["pointer"]) == (422, "query:plan")
    put(api, MERGE.replace("merges", "one").replace("15 0", "16 0"))
    answer = put(api, keep, prune="true", plan=planned["hash"])
    assert (answer.status_code, answer.json()["code"]) == (412, "manifest_changed")
    hash_ = plan(client, keep, prune="true").json()["hash"]
    with monkeypatch.context() as patched:
        remove = JobStore.remove_manifest
        patched.setattr(
            JobStore,
            "remove_manifest",
            lambda store, name, **given: _stumble(name) or remove(store, name, **given),
        )
        answer = put(api, keep, prune="true", plan=hash_)
    assert (answer.status_code, answer.json()["code"]) == (409, "update_in_progress")
    assert len(client.get("/schedules").json()["schedules"]) == 4, "one that can't be removed keeps all"
    assert put(api, keep, prune="true", plan=hash_).status_code == 200
    names = {each["name"] for each in client.get("/schedules").json()["schedules"]}
    assert names == {"nightly-merge", "two"}, "what a setting made stays"
    assert put(api, "", prune="true", plan=hash_).status_code == 422, "no manifest at all is a mistake"


def _stumble(name: str, wrong: str = "three") -> None:
    if name == wrong:
        raise UpdateInProgressError("A rollout of it runs.")


def test_a_manifest_and_its_schedule_change_only_at_a_version_that_the_caller_names(api, client):
    put(api, MERGE)
    read = client.get("/schedules/merges")
    assert read.headers["ETag"] == read.json()["etag"] == client.get("/manifests/merges").headers["ETag"]
    stale = {"If-Match": read.headers["ETag"]}
    paused = client.post("/schedules/merges:pause", headers=stale)
    assert (paused.status_code, paused.headers["ETag"]) == (200, paused.json()["etag"])
    assert paused.headers["ETag"] != read.headers["ETag"]
    changed = MERGE.replace("15 0", "20 0")
    for method, path, content in (
        ("POST", "/schedules/merges:pause", ""),
        ("POST", "/schedules/merges:resume", ""),
        ("POST", "/schedules/merges:run", ""),
        ("POST", "/manifests:apply", changed),
        ("DELETE", "/manifests/merges", ""),
    ):
        refused = client.request(method, path, content=content, headers=stale)
        assert (refused.status_code, refused.json()["code"]) == (412, "manifest_changed"), path
    assert client.get("/schedules/merges").json() == paused.json()
    assert client.get("/schedules/merges").json()["runs"] == []
    newest = {"If-Match": paused.headers["ETag"]}
    several = client.post("/manifests:apply", content=f"{changed}---\n{changed}", headers=newest)
    assert (several.status_code, several.json()["errors"][0]["pointer"]) == (422, "header:if-match")
    applied = one(client.post("/manifests:apply", content=changed, headers=newest))["manifest"]
    assert client.delete("/manifests/merges", headers={"If-Match": applied["etag"]}).status_code == 200
    free = client.post("/manifests:apply", content=MERGE, headers=newest)
    assert free.status_code == 412, "a name that is free is at no version"


def test_the_terminal_prunes_after_it_has_shown_what_and_asked(api, refeed, tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(MERGE.replace("merges", name))
    assert refeed("apply", "-f", str(tmp_path))[0] == 0
    (tmp_path / "two.yaml").unlink()
    assert "remove" not in refeed("diff", "-f", str(tmp_path))[1]
    code, printed, _ = refeed("diff", "-f", str(tmp_path), "--prune")
    assert (code, "remove: Schedule two" in printed) == (0, True)
    plan = printed.split("\nplan ")[1].strip()
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdin", io.StringIO("n\n"))
        code, _, said = refeed("apply", "-f", str(tmp_path), "--prune")
    assert (code != 0, "Remove two?" in said) == (True, True)
    assert refeed("describe", "schedule/two")[0] == 0
    code, printed, _ = refeed("apply", "-f", str(tmp_path), "--prune", "--plan", plan)
    assert (code, "removed: Schedule two" in printed) == (0, True)
    assert refeed("describe", "schedule/two")[0] == 4
    assert refeed("apply", "-f", str(tmp_path), "--prune")[0] == 0, "nothing is left to ask about"
    assert refeed("delete", "--yes")[0] == 2
