"""Snapshots of streams over HTTP and in the terminal, and streams that are put back."""

import io
import json
import sys
from datetime import UTC, datetime

import pytest

from jobs.store.tables import EVENTS, JOBS, MANAGED_STREAMS, STREAM_SNAPSHOTS
from model.fault import FaultRecord
from model.stream_options import StreamKind
from model.stream_record import Wanted
from model.stream_snapshot import DISCARD_EFFECT, SnapshotState, SourceSnapshot
from tests.worlds.job_store import empty
from tests.worlds.restores import end_restore, list_running_restores
from tests.worlds.snapshot_jobs import complete_snapshot, end_deletion, fail_snapshot

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOURCE = SourceSnapshot("refeed-backup.orders", "refeed.sn_1.refeed-backup.orders", "orders", NOON)


@pytest.fixture
def api(served):
    served.store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    yield served
    empty(served.store, EVENTS, JOBS, STREAM_SNAPSHOTS, MANAGED_STREAMS)


def ask(api, **body):
    with api.client() as client:
        answer = client.post("/streams/backup:snapshot", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def complete(api, snapshot_id, *sources):
    """What an agent does when it has made the snapshot."""
    facts = {"sources": sources, "taken_at": NOON, "size_bytes": 1_000, "seconds_paused": 0.02}
    complete_snapshot(api.store, snapshot_id, **facts, known_messages=7)


def test_a_snapshot_is_asked_for_and_shown_whole_when_an_agent_has_made_it(api, client):
    answer = client.post("/streams/backup:snapshot", json={"with_source": True})
    assert answer.status_code == 201
    made = answer.json()
    assert made["id"].startswith("sn_")
    assert answer.headers["Location"] == f"/snapshots/{made['id']}"
    assert (made["stream"], made["state"]) == ("backup", "PENDING")
    assert (made["reason"], made["with_source"]) == ("manual", True)
    assert {made["expire_time"], made["size_bytes"], made["seconds_paused"], made["taken_at"]} == {None}
    complete(api, made["id"], SOURCE)
    shown = client.get(answer.headers["Location"]).json()
    (listed,) = client.get("/snapshots").json()["snapshots"]
    assert shown == listed
    assert (shown["state"], shown["size_bytes"], shown["seconds_paused"]) == ("COMPLETED", 1_000, 0.02)
    assert (shown["format_version"], shown["known_messages"]) == (1, 7)
    assert shown["expire_time"] == "2026-03-01T12:00:00Z"
    assert shown["subscriptions"] == [
        {
            "subscription": "refeed-backup.orders",
            "snapshot": "refeed.sn_1.refeed-backup.orders",
            "topic": "orders",
            "expire_time": "2026-03-01T12:00:00Z",
        }
    ]


def test_a_rollback_discards_what_was_staged_only_where_it_comes_again(api, client):
    api.store.launch_stream("shop", StreamKind.PIPELINE, actor="ann", options={"group": "default"})

    def made(stream, *, with_source):
        asked = api.store.create_snapshot(stream, with_source=with_source, actor="ann")
        complete(api, asked.id, SOURCE)
        return str(asked.id)

    for stream, snapshot in (
        ("backup", made("backup", with_source=True)),
        ("shop", made("shop", with_source=False)),
    ):
        refused = client.post(f"/streams/{stream}:rollback", json={"snapshot": snapshot, "discard_staged": True})
        assert (refused.status_code, refused.json()["code"]) == (409, "snapshot_refused")
    good = made("shop", with_source=True)
    answer = client.post("/streams/shop:rollback", json={"snapshot": good, "discard_staged": True})
    assert answer.status_code == 202
    assert answer.json()["discard_staged"] is True


def test_a_stream_is_launched_from_a_snapshot_of_one_that_has_ended(api, client, refeed):
    made = api.store.create_snapshot("backup", with_source=False, actor="ann")
    complete(api, made.id)
    body = {"name": "second", "kind": "backup", "snapshot": made.id}
    # Two backups would only wait for each other's lease.
    refused = client.post("/streams", json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "stream_exists")
    api.store.end_stream("backup", Wanted.DRAINED, actor="ann")
    missing = client.post("/streams", json=body | {"snapshot": "sn_none"})
    assert (missing.status_code, missing.json()["code"]) == (404, "stream_snapshot_not_found")
    code, out, err = refeed("launch", "second", "--kind", "backup", "--snapshot", made.id, "--json")
    assert code == 0, err
    assert json.loads(out)["snapshot_id"] == made.id


def test_the_body_of_a_snapshot_may_be_left_out_and_unknown_fields_are_refused(client):
    assert client.post("/streams/backup:snapshot").json()["with_source"] is False
    assert client.post("/streams/backup:snapshot", json={"with_sauce": True}).status_code == 422


def test_the_beginning_of_an_id_names_a_snapshot_in_every_command(api, refeed):
    first, second = (ask(api)["id"] for _ in range(2))
    begun = first[: next(place for place, pair in enumerate(zip(first, second, strict=True)) if len({*pair}) > 1)]
    assert first in refeed("describe", first[:-1])[1]
    for words in (
        ("describe", begun),
        ("restore", "backup", begun, "--yes"),
        ("delete", begun, "--yes"),
        ("launch", "other", "--kind", "backup", "--snapshot", begun),
    ):
        code, _, said = refeed(*words)
        assert (code, f"Several ids begin with {begun}" in said) == (2, True), words
    assert refeed("delete", f"snapshot/{first[:-1]}", "--yes")[0] == 0
    assert api.store.get_snapshot(first).state is SnapshotState.DELETING
    code, _, said = refeed("restore", "backup", second[:-1], "--yes")
    assert (code, f"{second} is a PENDING snapshot" in said) == (4, True), said


def inbox(client):
    items = client.get("/inbox").json()["items"]
    wrong = [each["name"] for each in client.get("/status").json()["problems"]]
    found = [(each["resource"], each["id"], each["message"]) for each in items if each["kind"] == "failure"]
    assert {name for _, name, _ in found} <= set(wrong)
    return found


def test_a_snapshot_that_failed_is_in_the_inbox_until_the_next_one(api, client):
    failed = ask(api)["id"]
    fail_snapshot(api.store, failed, FaultRecord("pubsub_unavailable", "Pub/Sub does not answer."))
    said = f"The snapshot {failed} of backup failed. pubsub_unavailable: Pub/Sub does not answer."
    assert inbox(client) == [("snapshot", failed, said)]
    shown = client.get(f"/snapshots/{failed}").json()
    error = {"code": "pubsub_unavailable", "message": "Pub/Sub does not answer."}
    assert (shown["state"], shown["error"]) == ("FAILED", error)
    again = ask(api)["id"]
    assert len(inbox(client)) == 1
    complete(api, again)
    assert inbox(client) == []


def test_a_rollback_and_a_deletion_that_failed_are_in_the_inbox_until_they_are_done(api, client):
    error = FaultRecord("folder_unavailable", "The bucket is gone.")
    made = ask(api)["id"]
    complete(api, made)
    client.post("/streams/backup:rollback", json={"snapshot": made}).raise_for_status()
    (asked,) = list_running_restores(api.store)
    end_restore(api.store, asked.id, error=error)
    rollback = ("stream", "backup", f"The rollback of backup to {made} failed. {error}")
    assert inbox(client) == [rollback]
    client.delete(f"/snapshots/{made}").raise_for_status()
    end_deletion(api.store, error)
    left = ("snapshot", made, f"The files of the snapshot {made} of backup can't be deleted. {error}")
    assert sorted(inbox(client)) == [left, rollback]
    client.delete(f"/snapshots/{made}").raise_for_status()
    end_deletion(api.store)
    assert inbox(client) == [rollback]


def test_the_same_key_asks_for_one_snapshot(client):
    first, second = (
        client.post("/streams/backup:snapshot", headers={"Idempotency-Key": "k"}).json()["id"] for _ in range(2)
    )
    other = client.post("/streams/backup:snapshot", json={"with_source": True}, headers={"Idempotency-Key": "k"})
    assert first == second
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


def test_a_stream_of_kinesis_has_no_snapshots(api, client):
    api.store.launch_stream("kin", StreamKind.KINESIS, actor="ann")
    answer = client.post("/streams/kin:snapshot", json={})
    page = client.get("/snapshots", params={"stream": "kin"}).json()
    assert answer.json()["code"] == "snapshot_refused"
    assert "start" in answer.json()["detail"]
    assert page["snapshots"] == []


def test_snapshots_are_listed_page_by_page_and_by_stream(api, client):
    api.store.launch_stream("pipeline", StreamKind.PIPELINE, actor="ann")
    made = sorted((ask(api)["id"] for _ in range(3)), reverse=True)
    api.store.create_snapshot("pipeline", with_source=False, actor="ann")
    first = client.get("/snapshots", params={"stream": "backup", "page_size": 2}).json()
    token = first["next_page_token"]
    second = client.get("/snapshots", params={"stream": "backup", "page_size": 2, "page_token": token}).json()
    wrong = client.get("/snapshots", params={"page_token": "nonsense"})
    everything = client.get("/snapshots").json()
    assert [each["id"] for each in first["snapshots"]] == made[:2]
    assert [each["id"] for each in second["snapshots"]] == made[2:]
    assert second["next_page_token"] is None
    assert len(everything["snapshots"]) == 4
    assert (wrong.status_code, wrong.json()["code"]) == (422, "request_invalid")


def test_a_snapshot_is_deleted_by_an_agent(api, client):
    made = ask(api)
    answer = client.delete(f"/snapshots/{made['id']}")
    assert (answer.status_code, answer.json()["state"]) == (202, "DELETING")
    end_deletion(api.store)
    gone = client.get(f"/snapshots/{made['id']}")
    assert (gone.status_code, gone.json()["code"]) == (404, "stream_snapshot_not_found")


def test_a_rollback_is_for_the_stream_as_it_was_read_and_is_a_new_version(api, client):
    made = ask(api)
    complete(api, made["id"], SOURCE)
    body = {"snapshot": made["id"]}
    read = {"If-Match": client.get("/streams/backup").headers["ETag"]}
    gone = client.post("/streams/backup:rollback", json=body, headers={"If-Match": '"77"'})
    assert (gone.status_code, gone.json()["code"]) == (412, "stream_changed")
    asked = client.post("/streams/backup:rollback", json=body, headers=read)
    assert asked.status_code == 202
    end_restore(api.store, asked.json()["id"])
    again = client.post("/streams/backup:rollback", json=body, headers=read)
    assert (again.status_code, again.json()["code"]) == (412, "stream_changed")
    assert [each.id for each in api.store.list_restores("backup")] == [asked.json()["id"]]


def test_a_rollback_that_is_asked_for_again_with_its_key_is_the_first_one(api, client):
    made, other = ask(api), ask(api)
    complete(api, made["id"], SOURCE)
    complete(api, other["id"], SOURCE)
    read = client.get("/streams/backup").headers["ETag"]
    headers = {"Idempotency-Key": "k", "If-Match": read}
    body = {"snapshot": made["id"]}
    first = client.post("/streams/backup:rollback", json=body, headers=headers).json()
    end_restore(api.store, first["id"])
    again = client.post("/streams/backup:rollback", json=body, headers=headers)
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (202, first["id"], "SUCCEEDED")
    reused = client.post("/streams/backup:rollback", json={"snapshot": other["id"]}, headers=headers)
    assert (reused.status_code, reused.json()["code"]) == (422, "idempotency_key_reused")
    assert len(api.store.list_restores("backup")) == 1


def test_a_stream_is_put_back_and_says_what_could_not_go_back(api, client):
    made = ask(api, with_source=True)
    complete(api, made["id"], SOURCE)
    answer = client.post("/streams/backup:rollback", json={"snapshot": made["id"]})
    assert answer.status_code == 202
    asked = answer.json()
    assert client.get(answer.headers["Location"]).json() == asked
    assert (asked["state"], asked["step"], asked["snapshot"]) == ("RUNNING", "waiting", made["id"])
    again = client.post("/streams/backup:rollback", json={"snapshot": made["id"]})
    assert (again.status_code, again.json()["code"]) == (409, "stream_state_conflict")
    assert client.delete(f"/snapshots/{made['id']}").status_code == 409
    assert asked["discarded_rows"] == {}
    found = {"not_reverted": ["A table stays wide."], "discarded_rows": {"staging.orders": 3}}
    end_restore(api.store, asked["id"], **found)
    (done,) = client.get("/jobs", params={"kind": "restore", "stream": "backup"}).json()["jobs"]
    assert done["state"] == "SUCCEEDED"
    assert {name: done[name] for name in found} == found


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/streams/nobody:snapshot", {}, (404, "stream_not_found")),
        ("/streams/backup:rollback", {"snapshot": "sn_none"}, (404, "stream_snapshot_not_found")),
        ("/streams/backup:rollback", {}, (422, "request_invalid")),
    ],
)
def test_what_is_not_there_is_not_found(client, path, body, code):
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()["code"]) == code


def test_the_terminal_asks_for_lists_shows_and_deletes(api, refeed):
    assert refeed("snapshot", "backup", "--with-source")[0] == 0
    (made,) = api.store.list_snapshots()
    assert (made.state, made.with_source) == (SnapshotState.PENDING, True)
    complete(api, made.id, SOURCE)
    (listed,) = json.loads(refeed("get", "snapshots", "--stream", "backup", "--json")[1])["snapshots"]
    assert listed["id"] == made.id
    table = refeed("get", "snapshots")[1]
    assert made.id in table
    assert "2026-03-01" in table
    assert "refeed-backup.orders" in refeed("describe", made.id)[1]
    assert refeed("restore", "backup", made.id, "--yes")[0] == 0
    (restore,) = list_running_restores(api.store)
    assert restore.snapshot_id == made.id
    end_restore(api.store, restore.id, error=FaultRecord("snapshot_corrupt", "Damaged."))
    assert refeed("delete", made.id, "--yes")[0] == 0
    assert api.store.get_snapshot(made.id).state is SnapshotState.DELETING
    assert f"snapshot {made.id} to be deleted" in refeed("events", "stream/backup")[1], "who did it is known"


def test_the_terminal_asks_nobody_about_what_will_be_refused(api, refeed):
    code, _, said = refeed("delete", "sn_01M7Z1H20HKNZ6PGKRYCX6J210")
    assert (code, "snapshot_not_found" in said, "Continue?" in said) == (4, True, False), said
    refeed("snapshot", "backup")
    (pending,) = api.store.list_snapshots()
    code, _, said = refeed("restore", "backup", pending.id)
    assert (code, "Continue?" in said, "None" in said) == (4, False, False), said
    complete(api, pending.id, SOURCE)
    code, _, said = refeed("restore", "bakcup", pending.id)
    assert (code, "Continue?" in said) == (4, False), said


def test_a_restore_is_listed_shown_and_watched_by_its_id(api, client, refeed):
    made = ask(api)
    complete(api, made["id"], SOURCE)
    asked = client.post("/streams/backup:rollback", json={"snapshot": made["id"]}).json()["id"]
    for words in (("get", "restores"), ("get", "restores", "--stream", "backup"), ("describe", asked[:-1])):
        code, out, err = refeed(*words)
        assert (code, asked in out, made["id"] in out) == (0, True, True), err
    fault = FaultRecord("lease_held", "Another stream holds it.")
    end_restore(api.store, asked, error=fault)
    code, out, _ = refeed("watch", "latest")
    assert (code, "lease_held: Another stream holds it." in out) == (1, True)


def test_a_restore_that_deletes_rows_says_so_before_the_question(api, refeed, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    refeed("snapshot", "backup", "--with-source")
    (made,) = api.store.list_snapshots()
    complete(api, made.id, SOURCE)
    _, _, plain = refeed("restore", "backup", made.id)
    _, _, discarding = refeed("restore", "backup", made.id, "--discard-staged")
    assert ("Continue?" in plain, "are deleted" in plain) == (True, False), plain
    assert "Delete the rows?" in discarding
    assert DISCARD_EFFECT in " ".join(discarding.split())
    assert not list_running_restores(api.store)
