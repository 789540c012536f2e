"""Backfills of many rows, which wait for somebody else than their creator."""

from contextlib import closing

import pytest

from backfill.job import hold
from jobs.store import JobStore
from model.errors import ApprovalRequiredError, ForbiddenError, JobStateError
from model.job import JobState
from model.principal import APPROVE, LOCAL, PLAN, READ, RUN, Principal
from tests.waiting import wait_until

ANN = Principal("key:ann", frozenset({READ, PLAN, RUN, APPROVE}))
BOB = Principal("key:bob", frozenset({READ, APPROVE}))


def test_a_planned_backfill_with_many_rows_waits_for_somebody_else(
    open_service, request_of, archive, launcher, folder_of
):
    service = open_service(approval_rows=29)
    plan = service.plan(request_of(), principal=ANN)
    made = service.create(request_of(plan_id=plan["plan_id"]), principal=ANN)
    assert made.approval.model_dump() == {"required": True, "above_rows": 29, "rows": 30, "by": None, "at": None}
    service._supervisor.tick()
    assert launcher.launched == []
    with pytest.raises(ApprovalRequiredError, match="a person other than key:ann must approve it"):
        service.resume(made.id, principal=ANN)
    with pytest.raises(ForbiddenError, match="yourself"):
        service.approve(made.id, principal=ANN)
    with pytest.raises(ForbiddenError):
        service.approve(made.id, principal=Principal("key:eve", frozenset({READ, RUN})))
    with pytest.raises(ForbiddenError):
        service.approve(made.id, principal=Principal("key:eve", frozenset({APPROVE}), ("other",)))
    approved = service.approve(made.id, principal=BOB)
    assert (approved.approval.by, approved.approval.required) == ("key:bob", True)
    assert folder_of(made.id).read_specification()["run"]["approval_rows"] == 30
    service.start()
    wait_until(lambda: len(launcher.launched) == 1, "it is launched")
    with pytest.raises(JobStateError, match="does not wait"):
        service.approve(made.id, principal=BOB)


def test_rows_that_are_counted_at_selection_wait_for_somebody_else_too(
    open_service, request_of, folder_of, publish
):
    service = open_service(approval_rows=29)
    made = service.create(request_of(), principal=ANN)
    assert not made.approval.required
    assert folder_of(made.id).read_specification()["run"]["approval_rows"] == 29
    service.start()
    wait_until(lambda: service.get(made.id, principal=ANN).state is JobState.RUNNING, "it runs")
    publish(made.id, 30, 0)
    folder_of(made.id).write_pause(1, "30 rows wait for an approval.")
    wait_until(lambda: service.get(made.id, principal=ANN).state is JobState.PAUSED, "the driver has paused")
    wait_until(lambda: service.get(made.id, principal=ANN).progress.selected == 30, "its rows are known")
    with pytest.raises(ApprovalRequiredError, match="more than 29 rows"):
        service.resume(made.id, principal=ANN)
    approved = service.approve(made.id, principal=BOB)
    assert approved.state is JobState.RUNNING
    assert folder_of(made.id).may_publish(1)


def test_an_approval_of_fewer_rows_than_are_selected_does_not_hold(
    open_service, request_of, archive, folder_of, publish
):
    """The archive grows between the plan and the query; somebody has looked at 30 rows, and not at 31."""
    service = open_service(approval_rows=29)
    plan = service.plan(request_of(), principal=ANN)
    made = service.create(request_of(plan_id=plan["plan_id"]), principal=ANN)
    service.approve(made.id, principal=BOB)
    service.start()
    wait_until(lambda: service.get(made.id, principal=ANN).state is JobState.RUNNING, "it runs")
    publish(made.id, 31, 0)
    assert hold(folder_of(made.id), 1, 31)
    wait_until(lambda: service.get(made.id, principal=ANN).state is JobState.PAUSED, "the driver has paused")
    waiting = service.get(made.id, principal=ANN)
    assert waiting.approval.model_dump() == {
        "required": True,
        "above_rows": 29,
        "rows": 31,
        "by": None,
        "at": None,
    }
    said = service.watch(made.id, principal=ANN).events[-1]
    assert (said.actor, said.what) == ("driver", "RUNNING -> PAUSED")
    assert said.why == "31 rows are selected. A backfill with more than 30 rows needs an approval."
    with pytest.raises(ApprovalRequiredError, match="more than 30 rows"):
        service.resume(made.id, principal=ANN)
    again = service.approve(made.id, principal=BOB)
    assert again.state is JobState.RUNNING
    assert not hold(folder_of(made.id), 1, 31)
    assert [e.why for e in service.watch(made.id, principal=ANN).events if e.what == "approved"] == [
        "30 rows",
        "31 rows",
    ]


def test_an_approval_does_not_resume_what_somebody_has_paused(open_service, request_of, folder_of, publish):
    service = open_service(approval_rows=29)
    made = service.create(request_of(), principal=ANN)
    service.start()
    wait_until(lambda: service.get(made.id, principal=ANN).state is JobState.RUNNING, "it runs")
    service.pause(made.id, principal=LOCAL)
    publish(made.id, 30, 0)
    wait_until(lambda: service.get(made.id, principal=ANN).progress.selected == 30, "its rows are known")
    assert service.approve(made.id, principal=BOB).state is JobState.PAUSED
    assert not folder_of(made.id).may_publish(1)
    assert service.resume(made.id, principal=ANN).state is JobState.RUNNING


def test_an_approval_reaches_the_driver_though_the_service_died_after_it(
    open_service, request_of, archive, folder_of, monkeypatch
):
    service = open_service(approval_rows=1)
    plan = service.plan(request_of(), principal=ANN)
    made = service.create(request_of(plan_id=plan["plan_id"], start_paused=True), principal=ANN)
    with monkeypatch.context() as dying:
        dying.setattr(service, "_write_run", lambda _job: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            service.approve(made.id, principal=BOB)
    assert folder_of(made.id).read_specification()["run"]["approval_rows"] == 1
    assert service.resume(made.id, principal=ANN).state is JobState.PENDING
    assert folder_of(made.id).read_specification()["run"]["approval_rows"] == 30


def test_a_small_backfill_needs_nobody_else(open_service, request_of, archive):
    service = open_service(approval_rows=30)
    plan = service.plan(request_of(), principal=ANN)
    made = service.create(request_of(plan_id=plan["plan_id"], start_paused=True), principal=ANN)
    with pytest.raises(JobStateError, match="does not wait"):
        service.approve(made.id, principal=BOB)
    assert service.resume(made.id, principal=ANN).state is JobState.PENDING


def test_what_was_to_start_paused_stays_so_when_it_is_approved(open_service, request_of, archive):
    service = open_service(approval_rows=1)
    plan = service.plan(request_of(), principal=ANN)
    made = service.create(request_of(plan_id=plan["plan_id"], start_paused=True), principal=ANN)
    with pytest.raises(ApprovalRequiredError):
        service.resume(made.id, principal=ANN)
    assert service.approve(made.id, principal=BOB).state is JobState.PAUSED
    assert service.resume(made.id, principal=ANN).state is JobState.PENDING


def test_who_applied_a_schedule_does_not_approve_its_backfills(open_service, request_of, archive, deployment):
    service = open_service(approval_rows=29)
    with closing(JobStore(deployment.home / "jobs.db")) as store:
        store.put_manifest("nightly", "Schedule", {}, "1", source="api", principal=ANN)
        plan = service.plan(request_of(), principal=ANN)
        schedule = Principal("schedule:nightly", ANN.scopes)
        made = service.create(request_of(plan_id=plan["plan_id"]), principal=schedule)
        with pytest.raises(ForbiddenError, match="yourself"):
            service.approve(made.id, principal=ANN)
        store.remove_manifest("nightly", source="api", actor="key:ann")
        with pytest.raises(ForbiddenError, match="yourself"):
            service.approve(made.id, principal=ANN)
    assert service.approve(made.id, principal=BOB).approval.by == "key:bob"
