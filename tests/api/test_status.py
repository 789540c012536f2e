"""``GET /status`` and ``GET /inbox``, and what the terminal shows of them, over jobs of every kind."""

import json
from datetime import UTC, datetime

import pytest

from api.routes_status import InboxItemOut
from backfill.plan.request import BackfillRequest
from backfill.run.progress import Progress
from backfill.steer.kind import BACKFILL
from cli.terminal import COLUMNS
from jobs.inbox_items import InboxItem
from jobs.store import JobStore
from model.errors import StoreUnavailableError
from model.fault import FaultRecord
from model.job import JobState, new_job_id
from model.message import backup_subscription_id
from model.stream_update import ENDED_UPDATES
from streams.status import StatusFile
from tests.waiting import wait_until

ASKED = BackfillRequest(query="SELECT 1", topic="orders").to_json()
WINDOW = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
MERGE = {"source": None, "since": None, "dry_run": False}


class Jobs:
    """Makes jobs as they are after a night, without anything that runs them."""

    def __init__(self, store, home):
        self.store = store
        self.home = home

    def backfill(self, **options):
        asked = {**ASKED, "window": WINDOW, "source_topics": None}
        return self.store.insert(
            new_job_id("bf"), "backfill", asked, actor="ann", state=JobState.PAUSED, **options
        ).id

    def failed(self):
        job_id = self.backfill()
        # At once: what runs here would be looked for by the service.
        self.store.move(job_id, JobState.FAILED, actor="ann", error=FaultRecord("driver_died", "It died."))
        return job_id

    def canary(self):
        job_id = self.backfill(options={"canary_messages": 10})
        self.store.set_progress(job_id, Progress(selected=100, published=10).to_json())
        folder = BACKFILL.open_folders(self.home).of(job_id)
        folder.write_specification({})
        folder.write_pause(self.store.get(job_id).epoch, "canary")
        return job_id

    def merge(self, *sources, state, since=None, dry_run=False, error=None):
        asked = {**MERGE, "sources": list(sources), "since": since, "dry_run": dry_run}
        job_id = self.store.insert(new_job_id("mg"), "merge", asked, actor="ann", state=JobState.PAUSED).id
        self.store.move(job_id, state, actor="ann", error=error)
        return job_id

    def compaction(self, *tables, state):
        asked = {"tables": list(tables)}
        job_id = self.store.insert(new_job_id("cp"), "compaction", asked, actor="ann", state=JobState.PAUSED).id
        if state is not JobState.PAUSED:
            self.store.move(job_id, state, actor="ann")
        return job_id


@pytest.fixture
def api(start_api):
    return start_api()


@pytest.fixture
def jobs(api):
    return Jobs(api.store, api.home)


def report(home, name, *, seconds_ago=0.0, **fields):
    path = home / "streams" / name / "status.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    StatusFile(path).write(**fields)
    written = json.loads(path.read_text())
    path.write_text(json.dumps({**written, "at": written["at"] - seconds_ago}))


def get(api, path):
    with api.client() as client:
        return client.get(path).json()


def test_a_quiet_home_is_ok_and_nothing_waits(api, refeed):
    code, text, _ = refeed("status")
    assert (code, text.splitlines()[0]) == (0, "OK: there are no problems")
    assert "No stream has reported yet" in text
    assert "No job runs." in text
    assert refeed("inbox")[:2] == (0, "Nothing waits for a person.\n")
    assert json.loads(refeed("status", "--json")[1]) == get(api, "/status")


def test_the_first_line_says_that_something_waits_although_nothing_is_wrong(refeed, jobs):
    jobs.canary()
    code, text, _ = refeed("status")
    assert (code, text.splitlines()[0]) == (0, "OK: there are no problems, and 1 item waits for you: refeed inbox")
    jobs.backfill()
    first = refeed("status")[1].splitlines()[0]
    assert first == "OK: there are no problems, and 2 items wait for you: refeed inbox"


def test_the_inbox_has_what_waits_for_a_person_with_the_command_that_answers_it(api, refeed, jobs):
    above = {"required": True, "above_rows": 50, "rows": 100, "by": None, "at": None}
    made = {
        "approval": jobs.backfill(approval=above),
        "canary": jobs.canary(),
        "paused": jobs.backfill(),
        "failure": jobs.failed(),
    }
    items = {item["kind"]: item for item in get(api, "/inbox")["items"]}
    assert {kind: item["id"] for kind, item in items.items()} == made
    assert "10 of 100 messages are published" in items["canary"]["message"]
    assert "100 rows, more than 50: a person other than ann" in items["approval"]["message"]
    assert items["failure"]["message"] == "driver_died: It died."
    since = [datetime.fromisoformat(item["since"]) for item in get(api, "/inbox")["items"]]
    assert since == sorted(since)
    assert since[-1] <= datetime.now(UTC)
    code, text, _ = refeed("inbox")
    verbs = {"approval": "approve", "canary": "resume", "paused": "resume", "failure": "retry"}
    for kind, verb in verbs.items():
        assert f"  refeed {verb} {made[kind]}" in text.splitlines()
    assert code == 0
    assert max(map(len, text.splitlines())) <= COLUMNS + 10
    assert json.loads(refeed("inbox", "--json")[1]) == get(api, "/inbox")
    code, text, _ = refeed("status")
    assert (code, text.splitlines()[0]) == (1, "WRONG: 1")
    assert "Waiting for a person: 4" in text
    running = [line.split() for line in text.splitlines() if line.startswith("bf_")][0:3]
    assert [made["canary"], "PAUSED", "10", "100", "-", "-"] in running


@pytest.mark.parametrize("state", sorted(ENDED_UPDATES))
def test_an_update_in_the_inbox_may_have_failed_in_any_way(state):
    item = InboxItem("failure", "update", "ro_1", state, None, "ann", datetime.now(UTC), "It went back.")
    assert InboxItemOut.model_validate(item, from_attributes=True).state == state


def test_a_failed_merge_waits_until_a_later_one_has_made_up_for_it(api, refeed, jobs):
    new_year = "2026-01-01T00:00:00+00:00"
    jobs.merge("orders", state=JobState.FAILED)
    jobs.merge("orders", state=JobState.FAILED, dry_run=True)
    jobs.merge("orders", "members", state=JobState.SUCCEEDED)
    again = jobs.merge("orders", "members", state=JobState.FAILED, since=new_year)
    for sources, since in (
        (["orders", "members"], None),
        (["orders", "members"], "2026-01-01T00:00:01+00:00"),
        (["members"], new_year),
    ):
        jobs.merge(*sources, state=JobState.SUCCEEDED, since=since)
        assert [item["id"] for item in get(api, "/inbox")["items"]] == [again]
    assert f"refeed retry {again}" in refeed("inbox")[1]
    unfit = jobs.merge("hooks", state=JobState.FAILED, error=FaultRecord("rules_unfit", "hooks: no key."))
    assert f"refeed describe {unfit}" in refeed("inbox")[1], "a retry fails again"
    jobs.merge("hooks", state=JobState.SUCCEEDED)
    # The same moment, said in another zone.
    jobs.merge("orders", "members", state=JobState.SUCCEEDED, since="2026-01-01T01:00:00+01:00")
    assert get(api, "/inbox")["items"] == []


def test_a_failed_compaction_waits_until_a_later_one_has_compacted_its_tables(api, refeed, jobs):
    jobs.compaction("archive", "staging.orders", state=JobState.SUCCEEDED)
    failed = jobs.compaction("archive", "staging.orders", state=JobState.FAILED)
    jobs.compaction("archive", state=JobState.SUCCEEDED)
    (item,) = get(api, "/inbox")["items"]
    assert (item["id"], item["resource"], item["created_by"]) == (failed, "compaction", "ann")
    assert f"refeed retry {failed}" in refeed("inbox")[1]
    assert [problem["code"] for problem in get(api, "/status")["problems"]] == ["job_failed"]
    jobs.compaction("staging.orders", "archive", state=JobState.SUCCEEDED)
    assert get(api, "/inbox")["items"] == []


def test_a_compaction_that_runs_is_in_the_status_with_its_tables(api, refeed, jobs):
    running = jobs.compaction("archive", "staging.orders", state=JobState.PAUSED)
    jobs.store.change(running, actor="driver", what="archive compacted", findings={"tables": {"archive": 7}})
    (shown,) = get(api, "/status")["compactions"]
    assert (shown["id"], shown["files_removed"]) == (running, {"archive": 7})
    code, text, _ = refeed("status")
    assert code == 0
    assert [running, "PAUSED", "1", "2"] in [line.split() for line in text.splitlines()]


def test_a_stream_that_is_silent_or_failing_is_wrong_and_exits_one(api, refeed):
    report(api.home, "backup", state="running", seconds_ago=3600, totals={"messages": 5})
    report(api.home, "pipeline-a", state="stopped")
    assert [(problem["code"], problem["name"]) for problem in get(api, "/status")["problems"]] == [
        ("stream_not_reporting", "backup")
    ]
    code, text, _ = refeed("status")
    assert (code, text.splitlines()[0]) == (1, "WRONG: 1")
    assert "    refeed doctor, on the stream's machine" in text
    error = {"code": "storage_full", "message": "The disk is full."}
    report(api.home, "backup", state="stopped", error=error)
    assert get(api, "/status")["problems"][0]["message"] == "storage_full: The disk is full."


def test_a_backup_that_does_not_run_while_topics_are_attached_is_wrong(api):
    report(api.home, "backup", state="stopped")
    assert get(api, "/status")["is_ok"]
    api.pubsub.create_topic("orders")
    api.pubsub.create_subscription(backup_subscription_id("orders"), "orders")
    (problem,) = get(api, "/status")["problems"]
    assert problem["code"] == "backup_not_running"
    assert problem["message"] == (
        "1 topic is attached but nothing is backed up, because the backup stream is DRAINED."
    )


def test_a_background_loop_that_fails_is_wrong_until_it_works_again(api, refeed, monkeypatch):
    def fail(*_):
        raise StoreUnavailableError("no room on /var/lib/postgres")

    def names():
        return [each["name"] for each in get(api, "/status")["problems"] if each["code"] == "background_failing"]

    with monkeypatch.context() as patched:
        patched.setattr(JobStore, "list_living_runs", fail)
        wait_until(lambda: names() == ["schedules"], "the scheduler fails")
        assert "schedules" in refeed("status")[1]
    wait_until(lambda: names() == [], "it works again")


def test_the_root_leads_on_to_what_there_is_and_needs_nobody(start_api):
    closed = start_api()
    closed.make_key("backfills.read")
    with closed.client() as client:
        found = client.get("/").json()
        assert (found.pop("service"), bool(found.pop("version"))) == ("refeed", True)
        assert found.pop("status") == "/status"
        for name, path in found.items():
            # Spark may still start: then it is not ready, and says so.
            assert client.get(path).status_code in ((200, 503) if name == "readiness" else (200,)), name


def test_a_job_that_another_release_wrote_is_named_and_keeps_no_other_from_being_shown(api, client, refeed, jobs):
    good = jobs.backfill()
    later = {**ASKED, "yield_to": {"later": 1}}
    unknown = api.store.insert(new_job_id("bf"), "backfill", later, actor="ann", state=JobState.PAUSED).id
    found = client.get("/status").json()
    assert [each["id"] for each in found["backfills"]] == [good]
    (problem,) = (each for each in found["problems"] if each["code"] == "job_unreadable")
    assert problem["name"] == unknown
    for path, name in (("/jobs", "jobs"), ("/backfills", "backfills")):
        page = client.get(path).json()
        assert ([each["id"] for each in page[name]], page["unreadable"]) == ([good], [unknown])
    # Its request can be read, and the values in it have types that no answer may have.
    wrong = {**ASKED, "description": 7, "labels": [1]}
    odd = api.store.insert(new_job_id("bf"), "backfill", wrong, actor="ann", state=JobState.PAUSED).id
    for path, name in (("/jobs", "jobs"), ("/backfills", "backfills")):
        page = client.get(path).json()
        assert ([each["id"] for each in page[name]], {*page["unreadable"]}) == ([good], {unknown, odd})
    for bad in (unknown, odd):
        for path in ("jobs", "backfills"):
            answer = client.get(f"/{path}/{bad}")
            assert (answer.status_code, answer.json()["code"]) == (409, "job_unreadable")
    assert unknown in refeed("get", "jobs")[2]
    assert unknown in refeed("get", "backfills")[2]
    assert unknown in refeed("status")[1]


def test_a_source_that_refuses_all_its_messages_is_a_problem_with_its_command(api, refeed):
    counts = {"orders": {"rows": {"staged": 0}, "refused": {"not_json": 30}}}
    report(api.home, "pipeline-a", state="running", totals={"dead_letters": 30}, sources=counts)
    (problem,) = get(api, "/status")["problems"]
    code, text, _ = refeed("status")
    (api.home / "streams" / "pipeline-a" / "status.json").unlink()
    assert (problem["code"], problem["name"]) == ("source_refuses", "orders")
    assert code == 1
    said = "All of the latest 30 messages of this source became dead letters, replays included."
    assert text.splitlines()[1:3] == [f"  orders: {said} (source_refuses)", "    refeed dead-letters"]
