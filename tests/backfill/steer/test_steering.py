"""Several hands on one job at the same moment: the last word counts, and none is lost."""

import pytest

from backfill.steer.steering import Steering
from jobs.folder import Control, JobFolder, Order, Outcome
from model.errors import JobChangedError, JobStateError
from model.job import JobState, new_job_id
from model.process import Process


@pytest.fixture
def folder(tmp_path):
    folder = JobFolder(tmp_path / "job")
    folder.write_specification({})
    return folder


@pytest.fixture
def steering(store, folder):
    return Steering(store, lambda _id: folder, max_running=1)


@pytest.fixture
def running(store):
    job = store.insert(
        new_job_id("bf"), "backfill", {}, actor="ann", options={"rate_limit_messages_per_second": 5.0}
    )
    store.begin_attempt(job.id)
    return store.move(job.id, JobState.RUNNING, actor="refeed", driver=Process(1, 1, "elsewhere"))


def interfere(monkeypatch, folder, act):
    """Let somebody else act right before the first control is written."""
    write = folder.write_control
    acts = iter([act])

    def write_late(control):
        next(acts, lambda: None)()
        return write(control)

    monkeypatch.setattr(folder, "write_control", write_late)


def test_who_writes_last_but_has_read_first_looks_again(store, folder, steering, running, monkeypatch):
    paused = store.move(running.id, JobState.PAUSED, actor="ann")
    interfere(monkeypatch, folder, lambda: store.move(running.id, JobState.RUNNING, actor="bob"))
    steering.steer(paused)
    assert folder.read_control() == Control(1, Order.RUN, 5.0)


def test_a_new_rate_is_not_lost_by_a_pause_at_the_same_moment(store, folder, steering, running, monkeypatch):
    paused = store.move(running.id, JobState.PAUSED, actor="ann")
    faster = {"rate_limit_messages_per_second": 9.0}
    interfere(monkeypatch, folder, lambda: store.change(running.id, actor="bob", what="faster", options=faster))
    steering.steer(paused)
    assert folder.read_control() == Control(1, Order.PAUSE, 9.0)


def test_what_has_never_begun_is_told_nothing(store, folder, steering):
    job = store.insert(new_job_id("bf"), "backfill", {}, actor="ann", state=JobState.PAUSED)
    steering.steer(job)
    steering.steer(store.move(job.id, JobState.PENDING, actor="ann"))
    assert not (folder.path / "control.json").exists()


@pytest.mark.parametrize("state", [JobState.CANCELLING, JobState.FAILED])
def test_what_is_to_end_is_told_to_stop(store, folder, steering, running, state):
    steering.steer(store.move(running.id, state, actor="ann"))
    assert folder.read_control() == Control(1, Order.STOP, 5.0)


def test_a_driver_that_leaves_at_the_moment_of_a_resume_is_replaced(store, folder, steering, running, monkeypatch):
    paused = store.move(running.id, JobState.PAUSED, actor="ann")

    def leave():
        folder.write_outcome(Outcome(1, JobState.PAUSED))
        store.forget_driver(running.id, actor="refeed", why="long pause", expected_epoch=1)

    interfere(monkeypatch, folder, leave)
    resumed = steering.resume(paused, actor="bob", why="resumed", expected_version=None)
    assert (resumed.state, resumed.driver) == (JobState.PENDING, None)


def test_a_resume_that_names_a_version_is_not_made_on_another_one(store, folder, steering, running, monkeypatch):
    paused = store.move(running.id, JobState.PAUSED, actor="ann")
    interfere(monkeypatch, folder, lambda: store.change(running.id, actor="bob", what="looked"))
    with pytest.raises(JobChangedError):
        steering.resume(paused, actor="ann", why="resumed", expected_version=paused.version)
    assert store.get(running.id).state is JobState.PAUSED
    assert folder.read_control().order is Order.PAUSE


def test_a_resume_of_what_somebody_cancelled_meanwhile_is_refused(store, folder, steering, running, monkeypatch):
    paused = store.move(running.id, JobState.PAUSED, actor="ann")
    interfere(monkeypatch, folder, lambda: store.move(running.id, JobState.CANCELLING, actor="bob"))
    with pytest.raises(JobStateError):
        steering.resume(paused, actor="ann", why="resumed", expected_version=None)
    assert folder.read_control().order is Order.STOP


def test_a_resume_waits_for_its_turn_when_all_places_are_taken(store, folder, steering, running):
    paused = store.move(running.id, JobState.PAUSED, actor="ann")
    other = store.insert(new_job_id("bf"), "backfill", {}, actor="bob")
    assert [job.id for job in store.claim("backfill", "b", limit=1, lease_seconds=60)] == [other.id]
    resumed = steering.resume(paused, actor="ann", why="resumed", expected_version=paused.version)
    assert (resumed.state, resumed.driver, resumed.epoch) == (JobState.PENDING, None, 1)
    assert (
        store.list_events(running.id)[-1].why
        == "resumed; it waits until fewer backfills run than REFEED_MAX_RUNNING (1)"
    )
    # Nothing goes out meanwhile, and the driver that waited leaves.
    assert folder.read_control() == Control(1, Order.STOP, 5.0)
    assert store.claim("backfill", "b", limit=1, lease_seconds=60) == []
    store.move(other.id, JobState.CANCELLED, actor="bob")
    assert [job.id for job in store.claim("backfill", "b", limit=1, lease_seconds=60)] == [running.id]


def test_a_resume_that_loses_the_last_place_at_the_last_moment_waits_too(
    store, folder, steering, running, monkeypatch
):
    paused = store.move(running.id, JobState.PAUSED, actor="ann")
    store.insert(new_job_id("bf"), "backfill", {}, actor="bob")
    interfere(monkeypatch, folder, lambda: store.claim("backfill", "b", limit=1, lease_seconds=60))
    resumed = steering.resume(paused, actor="ann", why="resumed", expected_version=None)
    assert resumed.state is JobState.PENDING
    assert folder.read_control().order is Order.STOP
