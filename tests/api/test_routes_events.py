"""Who did what and when, over HTTP and in the terminal, and streams whose dead letters grow in the inbox."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from model.event import HistoryEventType
from model.job import JobState, new_job_id
from model.manifest_record import NewRun, RunState, Settlement
from model.principal import ADMIN, READ, Principal
from model.stream_options import StreamKind
from rollout.manifests.manifest import parse_manifest
from streams.status import StatusFile
from tests.api.backfills import assert_problem


@pytest.fixture(scope="module")
def api(start_api):
    api = start_api()
    for _ in range(3):
        request = {"topic": "replay"}
        job = api.store.insert(new_job_id("bf"), "backfill", request, actor="ann", state=JobState.PAUSED)
        api.store.move(job.id, JobState.CANCELLED, actor="bob", why="a mistake")
    return api


def test_events_come_newest_first_page_by_page_and_in_the_terminal(client, refeed):
    first = client.get("/events", params={"page_size": 4}).json()
    token = first["next_page_token"]
    second = client.get("/events", params={"page_size": 4, "page_token": token}).json()
    assert_problem(client.get("/events", params={"page_token": "x" * 30}), 422, "request_invalid")
    assert client.get("/events", params={"since": "0001-01-01T00:00:00+14:00"}).status_code == 200
    assert [len(page["events"]) for page in (first, second)] == [4, 3]
    assert second["next_page_token"] is None
    moves = [event for page in (first, second) for event in page["events"] if event["type"] == "moved"]
    assert {(event["resource"], event["actor"], event["why"]) for event in moves} == {
        ("backfill", "bob", "a mistake")
    }
    code, text, _ = refeed("events", "--since", "2h")
    assert (code, text.count("PAUSED -> CANCELLED")) == (0, 3)
    assert len(json.loads(refeed("events", "--json")[1])["events"]) == 7
    code, text, more = refeed("events", "--page-size", "4")
    assert (code, text.count("UTC") + text.count("backfill/"), more.split()[0]) == (0, 5, "more:")
    code, text, more = refeed("events", *more.split()[1:])
    assert (code, "nightly-merge" in text, more) == (0, True, "")


def test_who_changed_an_object_is_in_its_history(api, client, refeed):
    api.store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    request = {"topic": "replay", "query": "SELECT 1"}
    job = api.store.insert(new_job_id("bf"), "backfill", request, actor="cem", state=JobState.PAUSED)
    for subject, actor in (
        ("stream/backup", "ann"),
        (job.id, "cem"),
        ("schedule/nightly-merge", "REFEED_MERGE_AT"),
    ):
        (event,) = client.get("/events", params={"object": subject}).json()["events"]
        assert (event["id"], event["actor"]) == (subject.rpartition("/")[2], actor)
        assert actor in refeed("events", subject)[1]
    api.store.move(job.id, JobState.CANCELLED, actor="cem")
    api.store.change_stream("backup", actor="bob", options={"slots": 4})
    changed, launched = client.get("/events", params={"object": "stream/backup"}).json()["events"]
    assert changed["fields"]["changes"] == [{"pointer": "/slots", "before": None, "after": 4}]
    assert "changed slots; /slots: nothing -> 4\n" in refeed("events", "stream/backup")[1]
    newer = {"object": "stream/backup", "after": launched["number"]}
    assert client.get("/events", params=newer).json()["events"] == [changed]
    assert client.get("/events", params={**newer, "after": changed["number"]}).json()["events"] == []
    later = {"object": "stream/backup", "since": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}
    assert client.get("/events", params=later).json()["events"] == []
    assert "Did you mean stream/backup?" in refeed("events", "backup")[2]
    for wrong in ("schedules/nightly-merge", "stream/", "source/"):
        assert_problem(client.get("/events", params={"object": wrong}), 422, "request_invalid")


@pytest.mark.parametrize(
    ("subject", "code", "hint"),
    [
        ("bf_01M7Z1H20HKNZ6PGKRYCX6J210", "job_not_found", ""),
        ("nightly-merge", "job_not_found", "Did you mean manifest/nightly-merge?"),
        ("stream/nightly-merge", "stream_not_found", "Did you mean manifest/nightly-merge?"),
        ("schedule/none", "manifest_not_found", ""),
        ("key/none", "key_not_found", ""),
        ("topic/ordres", "topic_unknown", "Did you mean orders?"),
        ("source/none", "source_not_found", ""),
    ],
)
def test_an_object_that_never_was_is_no_object_without_events(client, refeed, subject, code, hint):
    problem = assert_problem(
        client.get("/events", params={"object": subject, "since": "2026-01-01T00:00:00Z"}), 404, code
    )
    assert problem["detail"].endswith(f" {hint}".strip() or ".")
    exit_code, _, said = refeed("events", subject)
    assert (exit_code, subject.rpartition("/")[2] in said) == (4, True)
    kind = subject.rpartition("/")[0]
    assert kind in {"stream", "topic", "source"} or f"There is no {kind or 'job'} " in said


def test_who_attached_and_detached_a_topic_is_in_its_history(client, refeed):
    assert client.get("/events", params={"object": "topic/replay"}).json()["events"] == []
    for verb in ("attach", "attach", "detach"):
        assert client.post(f"/topics/replay:{verb}").status_code == 200
    found = client.get("/events", params={"object": "topic/replay"}).json()["events"]
    assert [(each["actor"], each["what"]) for each in found] == [
        ("local", "detached, refeed-backup.replay deleted"),
        ("local", "attached, through refeed-backup.replay"),
    ]
    assert "topic/replay" in refeed("events", "topic/replay")[1]
    assert found == client.get("/events", params={"page_size": 2}).json()["events"]


def test_a_type_change_waits_in_the_inbox_with_its_source(api, client, refeed):
    changes = [{"pointer": "/lines/amount", "before": "INT64", "after": "STRING"}]
    fields = {"kind": HistoryEventType.CHANGED, "table": "staging.hooks", "changes": changes}
    api.store.note_event("source", "hooks", "types of columns changed", actor="pipeline", **fields)
    (item,) = [each for each in client.get("/inbox").json()["items"] if each["resource"] == "source"]
    assert (item["kind"], item["id"], item["state"]) == ("type_change", "hooks", None)
    assert "lines.amount was INT64 and is STRING" in item["message"]
    assert item in client.get("/status").json()["inbox"]
    said = refeed("inbox")[1]
    assert ("type_change  hooks" in said, "refeed describe source/hooks" in said) == (True, True)
    assert '/lines/amount: "INT64" -> "STRING"' in refeed("events", "source/hooks")[1]
    api.store.note_event("source", "hooks", "removed", actor="ann", kind=HistoryEventType.REMOVED)


def test_only_an_administrator_sees_keys_come_and_go(start_api):
    api = start_api()
    admin, reader = api.make_key(ADMIN, name="admin"), api.make_key(READ, name="reader")
    seen = {}
    for name, key in (("admin", admin), ("reader", reader)):
        with api.client(key) as client:
            seen[name] = [event["id"] for event in client.get("/events").json()["events"]]
            status = client.get("/events", params={"object": "key/reader"}).status_code
            assert status == (200 if name == "admin" else 403)
    assert (sorted(seen["admin"]), seen["reader"]) == (["admin", "nightly-merge", "reader"], ["nightly-merge"])


def test_a_stream_that_makes_dead_letters_waits_for_a_person_and_one_that_made_them_before_does_not(
    api, client, refeed
):
    now = datetime.now(UTC)
    for name, before in (("pipeline-a", 5), ("pipeline-b", 9)):
        path = api.home / "streams" / name / "status.json"
        path.parent.mkdir(parents=True)
        # It stands still: one that runs would have to report again while this looks.
        started = (now - timedelta(hours=2)).timestamp()
        StatusFile(path).write(state="failed", started_at=started, totals={"dead_letters": 9})
        api.store.put_figures(now - timedelta(minutes=30), {f"stream:{name}": {"dead_letters": before}})
    items = [item for item in client.get("/inbox").json()["items"] if item["kind"] == "dead_letters"]
    assert [(item["id"], item["state"], item["created_by"]) for item in items] == [("pipeline-a", "FAILED", None)]
    assert items[0]["message"].startswith("4 messages became dead letters since ")
    assert "refeed dead-letters" in refeed("inbox")[1]


def test_a_schedule_that_could_not_start_its_job_is_a_problem_until_it_is_removed(api, client, refeed):
    principal = Principal("ann", frozenset({READ}))
    text = "kind: Schedule\nname: hourly\ncron: 7 * * * *\njob: {kind: merge}\n"
    made = parse_manifest(text.encode())
    api.store.put_manifest("hourly", "Schedule", made.document, made.digest, source="api", principal=principal)

    def settle(record, now, _):
        run = NewRun(now, now - timedelta(hours=1), RunState.FAILED, "The registry can't be read.")
        return Settlement(now, (run,), {"job": {"kind": "merge", "request": {}}, "time_zone": "UTC"})

    api.store.settle_slots("hourly", settle)
    (item,) = [each for each in client.get("/inbox").json()["items"] if each["resource"] == "schedule"]
    assert (item["kind"], item["id"], item["state"]) == ("failure", "hourly", "FAILED")
    assert item["message"].endswith("could not start its job: The registry can't be read.")
    problems = client.get("/status").json()["problems"]
    assert ("schedule_failed", "hourly") in [(each["code"], each["name"]) for each in problems]
    assert "refeed describe schedule/hourly" in refeed("inbox")[1]
    api.store.remove_manifest("hourly", source="api")
    assert [each for each in client.get("/inbox").json()["items"] if each["resource"] == "schedule"] == []
