from datetime import UTC, datetime, timedelta

import pytest

from backfill.steer import inbox_items
from backfill.steer.kind import BACKFILL
from cli.backfill_view import next_command
from cli.remedies import DOES, command_of
from jobs import inbox_items as jobs_inbox
from model.fault import FaultRecord
from model.job import JobState, new_job_id


def ended(store, state):
    job_id = store.insert(new_job_id("bf"), "backfill", {"topic": "orders"}, actor="ann", state=JobState.PAUSED).id
    store.move(job_id, state, actor="ann")
    return job_id


def items(store, home):
    return inbox_items.list_inbox(store, BACKFILL.open_folders(home).of)


def test_what_did_not_land_whole_waits_and_what_landed_does_not(store, tmp_path):
    for state, missing in (("incomplete", 3), ("complete", 0), ("unknown", None)):
        job_id = ended(store, JobState.SUCCEEDED)
        verification = {"state": state, "missing": missing}
        store.set_verification(job_id, verification, actor="service", epoch=0, again_seconds=None)
    ended(store, JobState.CANCELLED)
    reverted = ended(store, JobState.SUCCEEDED)
    store.change(reverted, actor="ann", what="reverted", options={"reverted": {"by": "ann", "rows": 3}})
    verification = {"state": "incomplete", "missing": 3}
    store.set_verification(reverted, verification, actor="service", epoch=0, again_seconds=None)
    (item,) = items(store, tmp_path)
    assert (item.kind, item.message) == ("incomplete", "3 messages are not in the staging table")
    assert DOES[item.kind, item.resource].format(id=item.id).startswith("refeed missing bf_")


def test_messages_that_are_dead_letters_again_wait_for_a_day(store, tmp_path, monkeypatch):
    job_id = ended(store, JobState.SUCCEEDED)
    verdict = {"state": "incomplete", "missing": 3, "dead_letters": 2}
    store.set_verification(job_id, verdict, actor="service", epoch=0, again_seconds=None)
    (item,) = items(store, tmp_path)
    assert (
        item.message == "3 messages are not in the staging table, and 2 of them are dead letters of the pipeline"
    )
    verdict["dead_letters"] = 3
    store.set_verification(job_id, verdict, actor="service", epoch=0, again_seconds=None)
    (item,) = items(store, tmp_path)
    assert (item.kind, item.id) == ("incomplete", job_id)
    assert item.message == (
        "3 messages became dead letters of the pipeline again. This item goes after one day, or when the same "
        "messages are sent again"
    )
    monkeypatch.setattr(inbox_items, "_LETTERS_WITHIN", timedelta(0))
    assert items(store, tmp_path) == []


def test_the_verdict_on_a_later_backfill_of_the_same_messages_replaces_an_incomplete_one(store, tmp_path):
    """A redrive has the same parameters except its time; it sends all that are not repaired."""

    def redrive(state, selected, missing, **parameters):
        known = {"from": {"value": new_job_id("x")}, "source": "o", "codes": [], "paths": [], "message_ids": []}
        # The first one knows no staging table yet.
        request = {"topic": "orders", "query": new_job_id("q"), "parameters": {**known, **parameters}}
        made = store.insert(new_job_id("bf"), "backfill", request, actor="ann", state=JobState.PAUSED)
        store.move(made.id, JobState.SUCCEEDED, actor="ann")
        verdict = {"state": state, "selected": selected, "missing": missing, "dead_letters": missing}
        store.set_verification(made.id, verdict, actor="service", epoch=0, again_seconds=None)
        return made.id

    first = redrive("incomplete", 40, 40)
    redrive("complete", 15, 0, codes=["not_json"])
    redrive("complete", 39, 0)
    assert [item.id for item in items(store, tmp_path)] == [first], "of none of these are all 40 repaired"
    second = redrive("incomplete", 40, 30)
    assert [item.id for item in items(store, tmp_path)] == [second]
    redrive("complete", 30, 0)
    assert items(store, tmp_path) == []


def test_a_failure_is_made_up_for_by_a_later_backfill_of_the_same_messages(store, tmp_path):
    def insert(state, **request):
        request = {"topic": "orders", "query": "SELECT 1", "parameters": {"day": "1"}, **request}
        job_id = store.insert(new_job_id("bf"), "backfill", request, actor="ann", state=JobState.PAUSED).id
        store.move(job_id, state, actor="ann")
        return job_id

    failed = insert(JobState.FAILED)
    insert(JobState.SUCCEEDED, parameters={"day": "2"})
    insert(JobState.SUCCEEDED, topic="members")
    insert(JobState.SUCCEEDED, target_subscription="one")
    assert [(item.id, item.topic) for item in items(store, tmp_path)] == [(failed, "orders")]
    insert(JobState.SUCCEEDED)
    assert items(store, tmp_path) == []


def test_a_failure_waits_for_seven_days(store, tmp_path, monkeypatch):
    job_id = ended(store, JobState.FAILED)
    (item,) = items(store, tmp_path)
    assert (item.kind, item.id, item.since) == ("failure", job_id, store.get(job_id).finished_at)
    later = datetime.now(UTC) + timedelta(days=7, minutes=1)
    assert jobs_inbox.list_ended(store, "backfill", (JobState.FAILED,), now=later) == []


@pytest.mark.parametrize(
    ("code", "command"),
    [
        ("driver_died", "refeed retry {id}"),
        ("messages_failed", "refeed dead-letters {id}"),
        ("query_failed", "refeed describe {id}"),
        (None, "refeed retry {id}"),
    ],
)
def test_a_failure_names_the_command_that_its_own_page_names(store, tmp_path, code, command):
    job_id = store.insert(new_job_id("bf"), "backfill", {"topic": "orders"}, actor="ann", state=JobState.PAUSED).id
    error = None if code is None else FaultRecord(code, "It failed.")
    store.move(job_id, JobState.FAILED, actor="ann", error=error)
    (item,) = items(store, tmp_path)
    named = command_of({"kind": item.kind, "resource": item.resource, "id": item.id, "code": item.code})
    assert named == command.format(id=job_id)
    shown = next_command({"id": job_id, "state": "FAILED", "error": error and {"code": error.code}})
    assert shown in {named, None}


@pytest.mark.parametrize("kind", ["canary", "paused"])
def test_what_is_paused_names_a_resume(kind):
    item = {"kind": kind, "resource": "backfill", "id": "bf_1", "state": "PAUSED", "code": None}
    assert command_of(item) == "refeed resume bf_1"
