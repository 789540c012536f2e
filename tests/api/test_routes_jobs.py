"""Jobs of every kind as one resource: one list, one place for each job, and the places of before."""

import pytest

from backfill.steer.kind import BACKFILL
from backup.compaction.kind import COMPACTION
from jobs.folder import JobFolder
from model.job import JobState, new_job_id
from reporting.kind import MERGE as MERGES
from tests.api.backfills import api, assert_problem, paused

__all__ = ["api"]
KINDS = {kind.name: kind for kind in (BACKFILL, MERGES, COMPACTION)}
PREFIXES = {"bf": "backfill", "mg": "merge", "cp": "compaction", "up": "update", "ro": "update", "rs": "restore"}
NOBODY = "00000000000000000000000000"
MERGE = {"source": None, "since": None, "dry_run": False, "sources": ["orders"]}
PATCHED = {"json": {"description": "x"}}


def make(api, kind):
    """A job that nobody launches."""
    prefix, request = {"merge": ("mg", MERGE), "compaction": ("cp", {"tables": ["archive"]})}[kind]
    made = api.store.insert(new_job_id(prefix), kind, request, actor="key:ann", state=JobState.PAUSED)
    folder_of(api, kind, made.id).write_specification({})
    return str(made.id)


def folder_of(api, kind, job_id):
    return JobFolder(api.home / KINDS[kind].folder / job_id)


def ids(answer):
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["jobs"]]


def test_jobs_of_all_kinds_are_one_list_in_one_order(client, api):
    first, merge, last = paused(client)["id"], make(api, "merge"), make(api, "compaction")
    newest = client.get("/jobs", params={"page_size": 2}).json()
    assert [(job["id"], job["kind"]) for job in newest["jobs"]] == [(last, "compaction"), (merge, "merge")]
    token = {"page_size": 2, "page_token": newest["next_page_token"]}
    assert ids(client.get("/jobs", params=token))[0] == first
    assert ids(client.get("/jobs", params={"order_by": "id desc", "page_size": 1})) == [merge]
    assert ids(client.get("/jobs", params={"kind": ["backfill", "compaction"], "page_size": 2})) == [last, first]
    for kind, found in (("merge", merge), ("compaction", last)):
        one = client.get("/jobs", params={"kind": kind, "created_by": "key:ann", "page_size": 1})
        assert ids(one) == [found]
        assert_problem(client.get("/jobs", params={**token, "kind": kind}), 422, "request_invalid")
    assert ids(client.get("/jobs", params={"id_prefix": merge[:-1]})) == [merge]
    assert ids(client.get("/jobs", params={"id_prefix": merge[:-1].swapcase()})) == []
    assert ids(client.get("/jobs", params={"created_by": "key:nobody"})) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_of_any_kind_is_read_and_steered_at_one_place(client, api, kind):
    job_id = paused(client)["id"] if kind == "backfill" else make(api, kind)
    shown = client.get(f"/jobs/{job_id}")
    assert (shown.json()["kind"], shown.json()["state"]) == (kind, "PAUSED")
    assert shown.headers["etag"] == shown.json()["etag"]
    assert client.get(f"/jobs/{job_id}/logs").text == ""
    folder_of(api, kind, job_id).driver_log.write_text("first line\nsecond\n")
    assert client.get(f"/jobs/{job_id}/logs", params={"tail": 1}).text == "second\n"
    stale = client.post(f"/jobs/{job_id}:cancel", headers={"If-Match": '"99"'})
    assert_problem(stale, 412, "job_changed")
    cancelled = client.post(f"/jobs/{job_id}:cancel", headers={"If-Match": shown.headers["etag"]})
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "CANCELLED")
    with client.stream("GET", f"/jobs/{job_id}:watch") as watched:
        assert "event: end" in list(watched.iter_lines())
    assert client.post(f"/jobs/{job_id}:retry").json()["state"] == "PENDING"


@pytest.mark.parametrize("part", ["", "/logs?follow=true", ":watch"])
@pytest.mark.parametrize(("prefix", "kind"), PREFIXES.items())
def test_what_is_not_there_is_named_by_its_kind(client, prefix, kind, part):
    problem = assert_problem(client.get(f"/jobs/{prefix}_{NOBODY}{part}"), 404, "job_not_found")
    assert problem["detail"] == f"There is no {kind} {prefix}_{NOBODY}."


@pytest.mark.parametrize("verb", ["pause", "resume", "revert", "approve", "change"])
@pytest.mark.parametrize("kind", ["merge", "compaction"])
def test_what_a_kind_can_not_do_is_a_conflict_that_says_what_it_can(client, api, kind, verb):
    path = f"/jobs/{make(api, kind)}"
    answer = client.patch(path, **PATCHED) if verb == "change" else client.post(f"{path}:{verb}")
    detail = assert_problem(answer, 409, "job_state_conflict")["detail"]
    assert detail == f"A job of the kind {kind} has no action {verb}. It has: cancel, retry."


def test_a_retry_chooses_messages_of_a_backfill_alone(client, api):
    path = f"/jobs/{make(api, 'merge')}"
    client.post(f"{path}:cancel")
    problem = assert_problem(client.post(f"{path}:retry", json={"only": "failed"}), 422, "request_invalid")
    assert problem["errors"][0]["pointer"] == "/only"
    assert client.post(f"{path}:retry", json={"only": "all"}).json()["state"] == "PENDING"


@pytest.mark.parametrize(
    ("method", "former", "place"),
    [
        ("GET", "/merges", "/jobs?kind=merge"),
        ("GET", "/compactions?state=FAILED&state=PAUSED", "/jobs?kind=compaction&state=FAILED&state=PAUSED"),
        ("GET", "/merges/mg_1", "/jobs/mg_1"),
        ("GET", "/merges/mg_1%2F..%3Fx%0d", "/jobs/mg_1/..%3Fx%0D"),
        ("GET", "/merges/mg_1/events?after=3", "/events?object=mg_1&after=3"),
        ("POST", "/compactions/cp_1:retry", "/jobs/cp_1:retry"),
        ("PATCH", "/backfills/bf_1", "/jobs/bf_1"),
        ("GET", "/backfills/bf_1:watch?after=3", "/jobs/bf_1:watch?after=3"),
        ("GET", "/backfills/bf_1/logs?tail=9&follow=true", "/jobs/bf_1/logs?tail=9&follow=true"),
        ("GET", "/backfills/bf_1/events", "/events?object=bf_1"),
        ("GET", "/streams/a%20b/updates", "/jobs?kind=update&stream=a%20b"),
        ("GET", "/streams/backup/rollbacks", "/jobs?kind=restore&stream=backup"),
        ("GET", "/streams/backup/events?after=7", "/events?object=stream/backup&after=7"),
        ("GET", "/updates/up_1", "/jobs/up_1"),
        ("POST", "/updates/up_1:roll_back", "/jobs/up_1:revert"),
        ("GET", "/rollouts", "/jobs?kind=update"),
        ("GET", "/rollouts/ro_1", "/jobs/ro_1"),
        ("POST", "/rollouts/ro_1:reverse", "/jobs/ro_1:revert"),
        ("POST", "/rollouts/ro_1:cancel", "/jobs/ro_1:cancel"),
        ("GET", "/backfills/bf_1/slices", "/jobs/bf_1/figures"),
        ("GET", "/backfills/bf_1/rates", "/jobs/bf_1/figures"),
        ("GET", "/backfills/bf_1/missing?page_size=9", "/jobs/bf_1/missing?page_size=9"),
        ("POST", "/backfills:plan?exact=true", "/backfills?validate_only=true&exact=true"),
        ("POST", "/streams/a%20b:check", "/streams/a%20b:update?validate_only=true"),
        ("GET", "/backfills/bf_1/dead-letters?page_size=9", "/dead-letters?job=bf_1&page_size=9"),
        ("GET", "/backfills/bf_1/dead-letters/reasons", "/dead-letters?job=bf_1&group_by=reason"),
        ("GET", "/backfills/bf_1/dead-letters/7/data", "/dead-letters/7/data?job=bf_1"),
        ("GET", "/dead-letters/messages?source=orders&path=", "/dead-letters?source=orders&path="),
        ("GET", "/dead-letters/messages/a%20b/data?source=x&topic=y", "/dead-letters/a%20b/data?source=x&topic=y"),
        *[
            ("POST", f"/backfills/bf_1:{verb}", f"/jobs/bf_1:{verb}")
            for verb in ("pause", "resume", "cancel", "retry", "revert", "approve")
        ],
    ],
)
def test_a_former_place_points_to_the_one_of_today(client, api, method, former, place):
    before = len(api.audit())
    answer = client.request(method, former)
    assert (answer.status_code, answer.headers["location"]) == (308, place)
    assert len(api.audit()) == before


def test_a_former_place_is_nobody_s_without_a_key(start_api):
    api = start_api()
    api.make_key("backfills.read", name="first")
    with api.client() as nobody:
        assert nobody.post(f"/backfills/bf_{NOBODY}:cancel").status_code == 401
