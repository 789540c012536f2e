"""What is done for backfills that have ended."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from backfill.steer.kind import BACKFILL
from backfill.steer.periodic import backfill_tasks, verify_again_seconds
from jobs.folder import JobFolder
from jobs.periodic import PeriodicTasks
from jobs.store import JobStore, StoredPlan
from jobs.supervisor import JobSupervisor
from model.job import JobState, new_job_id
from tests.reaching import ending
from tests.waiting import wait_until


@pytest.fixture
def tasks(store):
    made = []

    def open_tasks(verify):
        made.append(PeriodicTasks(backfill_tasks(store, verify)))
        return made[-1]

    yield open_tasks
    for one in made:
        one.stop()
        one.join()


def ended(store: JobStore) -> str:
    job_id = store.insert(new_job_id("bf"), BACKFILL.name, {}, actor="ann").id
    store.begin_attempt(job_id)
    store.move(job_id, JobState.RUNNING, actor="refeed")
    return store.move(job_id, JobState.SUCCEEDED, actor="refeed").id


def test_an_ended_job_is_verified(store, tasks):
    job_id = ended(store)
    its_tasks = tasks(lambda job: {"state": "unknown", "published": job.epoch})

    def is_verified():
        its_tasks.tick()
        return store.get(job_id).findings == {"state": "unknown", "published": 1}

    wait_until(is_verified, "it is verified")
    assert store.list_events(job_id)[-1].what == "verification unknown"


def test_a_verification_that_fails_holds_nothing_else_up(store, tasks, monkeypatch):
    monkeypatch.setattr("backfill.steer.periodic._VERIFY_TICK_SECONDS", 0.0)
    broken, whole = ended(store), ended(store)

    def verify(job):
        if job.id == broken:
            raise ValueError("no such table")
        return {"state": "unknown"}

    its_tasks = tasks(verify)

    def is_verified():
        its_tasks.tick()
        return store.get(whole).findings is not None

    wait_until(is_verified, "the other one is verified")
    assert store.get(broken).findings is None


def test_a_verdict_that_may_get_better_is_asked_for_again_and_one_that_can_t_is_not(store):
    now = datetime.now(UTC)
    job = replace(store.get(ended(store)), finished_at=now - timedelta(hours=1))

    def again(**verification):
        return verify_again_seconds(job, verification)

    assert again(state="unknown", landed=None) is None
    assert again(state="pending", landed=None) == pytest.approx(1800, abs=60)
    assert again(state="complete", landed=5, merged=5) is None
    assert again(state="complete", landed=5, merged=0) == pytest.approx(1800, abs=60)
    assert again(state="incomplete", landed=4, merged=0) == pytest.approx(1800, abs=60)
    fresh = replace(job, finished_at=now)
    assert verify_again_seconds(fresh, {"state": "incomplete", "landed": 4}) == pytest.approx(5, abs=1)
    old = replace(job, finished_at=now - timedelta(days=3))
    assert verify_again_seconds(old, {"state": "incomplete", "landed": 4}) is None


def test_old_folders_and_plans_go(store, launcher, tmp_path):
    job_id = ended(store)
    JobFolder(tmp_path / "backfills" / job_id).write_specification({})
    (tmp_path / "backfills" / ".removed-bf_old").mkdir()
    now = datetime.now(UTC)
    store.put_short_lived(StoredPlan("pl_old", "digest", {}, now - timedelta(days=2)))
    store.put_short_lived(StoredPlan("pl_new", "digest", {}, now))
    folders = BACKFILL.open_folders(tmp_path)
    made = JobSupervisor(BACKFILL, store, launcher, folders, max_running=1, tasks=backfill_tasks(store))

    def is_clean():
        made.tick()
        return (
            store.find_short_lived(StoredPlan, "pl_old") is None
            and not (tmp_path / "backfills" / ".removed-bf_old").exists()
        )

    with ending(made):
        wait_until(is_clean, "the old plan is gone")
    assert store.find_short_lived(StoredPlan, "pl_new") is not None
    assert [path.name for path in (tmp_path / "backfills").iterdir()] == [job_id]
