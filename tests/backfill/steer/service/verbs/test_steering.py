"""What is done with a backfill that runs or waits: cancel, pause, resume, change."""

import pytest

from backfill.run.progress import Progress
from backfill.steer.view import BackfillCanary
from jobs.folder import Control, Order
from model.errors import ForbiddenError, JobStateError, RequestInvalidError
from model.job import JobState
from model.principal import APPROVE, PLAN, READ, RUN, Principal
from tests.waiting import wait_until

ANN = Principal("key:ann", frozenset({READ, PLAN, RUN, APPROVE}))


def test_a_running_backfill_is_told_to_stop_before_cancel_returns(service, running, folder_of):
    first = service.cancel(running, principal=ANN)
    assert first.state is JobState.CANCELLING
    assert first.in_flight_at_most == 0
    assert not folder_of(running).may_go_on(1)
    assert service.cancel(running, principal=ANN).state in {JobState.CANCELLING, JobState.CANCELLED}


def test_a_pause_says_what_may_still_go_out_and_a_resume_lets_the_same_driver_go_on(
    service, running, folder_of, publish, launcher
):
    folder = folder_of(running)
    publish(running, 5000, 100)
    folder.enter_slice(0, 1)
    paused = service.pause(running, principal=ANN)
    # A second's worth of the rate that has held from the beginning.
    assert (paused.state, paused.in_flight_at_most) == (JobState.PAUSED, 100)
    assert folder.read_control() == Control(1, Order.PAUSE, 100.0)
    assert not folder.may_publish(1)
    assert service.pause(running, principal=ANN).state is JobState.PAUSED
    resumed = service.resume(running, principal=ANN)
    assert (resumed.state, resumed.in_flight_at_most) == (JobState.RUNNING, None)
    assert folder.read_control() == Control(1, Order.RUN, 100.0)
    assert service.resume(running, principal=ANN).state is JobState.RUNNING
    assert len(launcher.launched) == 1
    # What was sent at another rate may be on its way still.
    service.change(running, {"rate_limit_messages_per_second": 5.0}, principal=ANN)
    assert service.pause(running, principal=ANN).in_flight_at_most == 4000


def test_what_may_still_go_out_is_never_more_than_is_left(service, running, folder_of, publish):
    publish(running, 30, 20)
    folder_of(running).enter_slice(0, 1)
    wait_until(lambda: service.get(running, principal=ANN).progress.published == 20, "its figures are known")
    assert service.pause(running, principal=ANN).in_flight_at_most == 10


def test_what_is_sent_once_more_may_still_go_out_after_everything_is_published(
    service, running, folder_of, publish
):
    publish(running, 30, 30)
    # The selection has one slice: the next piece is of rows that are missing.
    folder_of(running).enter_slice(1, 1)
    wait_until(lambda: service.get(running, principal=ANN).progress.published == 30, "its figures are known")
    assert service.pause(running, principal=ANN).in_flight_at_most == 100


def test_what_waits_for_its_turn_is_paused_and_never_launched(service, launcher, request_of):
    made = service.create(request_of(), principal=ANN)
    assert service.pause(made.id, principal=ANN).state is JobState.PAUSED
    service._supervisor.tick()
    assert launcher.launched == []
    assert service.resume(made.id, principal=ANN).state is JobState.PENDING


def test_a_paused_backfill_is_cancelled(service, running, request_of):
    waiting = service.create(request_of(topic="other", start_paused=True), principal=ANN)
    assert service.cancel(waiting.id, principal=ANN).state is JobState.CANCELLED
    service.pause(running, principal=ANN)
    assert service.cancel(running, principal=ANN).state is JobState.CANCELLING


def test_a_resume_ends_the_canary(service, request_of, folder_of):
    made = service.create(request_of(canary_messages=5), principal=ANN)
    assert (made.canary_messages, made.canary) == (5, BackfillCanary(messages=5, state="ahead"))
    service.start()
    wait_until(lambda: service.get(made.id, principal=ANN).state is JobState.RUNNING, "it runs")
    folder = folder_of(made.id)
    assert folder.read_control().canary_messages == 5
    folder.write_pause(1, "The canary of 5 messages is out.")
    wait_until(lambda: service.get(made.id, principal=ANN).state is JobState.PAUSED, "it paused by itself")
    resumed = service.resume(made.id, principal=ANN)
    assert (resumed.state, resumed.canary_messages) == (JobState.RUNNING, None)
    assert resumed.canary == BackfillCanary(messages=5, state="over")
    assert folder.read_control() == Control(1, Order.RUN)
    assert folder.read_pause(1) is None


def test_another_rate_limit_leaves_no_time_that_was_measured_at_the_one_before(service, running, store):
    measured = Progress(selected=900, published=300, rate_messages_per_second=100.0, eta_seconds=6.0)
    store.set_progress(running, measured.to_json())
    assert service.change(running, {"description": "slow"}, principal=ANN).progress.eta_seconds is not None
    changed = service.change(running, {"rate_limit_messages_per_second": 5.0}, principal=ANN).progress
    assert (changed.published, changed.rate_messages_per_second, changed.eta_seconds) == (300, None, None)


def test_a_description_changes_after_the_end_and_a_rate_does_not(service, ended):
    job_id = ended(JobState.SUCCEEDED)
    assert service.change(job_id, {"description": "done"}, principal=ANN).description == "done"
    assert service.change(job_id, {}, principal=ANN).description == "done"
    with pytest.raises(JobStateError):
        service.change(job_id, {"rate_limit_messages_per_second": 1.0}, principal=ANN)
    with pytest.raises(RequestInvalidError):
        service.change(job_id, {"description": "x" * 3000}, principal=ANN)


def test_a_caller_without_the_topic_steers_nothing(service, running):
    stranger = Principal("narrow", frozenset({RUN}), ("other",))
    for call in (service.pause, service.resume, service.cancel, service.retry, service.revert):
        with pytest.raises(ForbiddenError):
            call(running, principal=stranger)
    with pytest.raises(ForbiddenError):
        service.change(running, {"description": ""}, principal=stranger)
    assert service.get(running, principal=ANN).state is JobState.RUNNING
