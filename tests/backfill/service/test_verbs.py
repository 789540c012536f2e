"""What is done with backfills that are there."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from backfill.job import hold
from backfill.request import BackfillRequest
from backfill.service import BackfillService
from connectors.lake.archive import LakeArchive
from jobs.folder import Control, JobFolder, Order, Outcome
from jobs.store import JobStore
from model.errors import (
    AlreadyMergedError,
    ApprovalRequiredError,
    BackfillOverlapsError,
    ForbiddenError,
    JobChangedError,
    JobStateError,
    RequestInvalidError,
    RevertIncompleteError,
    StagingUnknownError,
    WarehouseError,
)
from model.job import JobState
from model.principal import APPROVE, LOCAL, PLAN, READ, RUN, Principal

Wait = Callable[..., None]
RequestOf = Callable[..., BackfillRequest]
FolderOf = Callable[[str], JobFolder]
ANN = Principal("key:ann", frozenset({READ, PLAN, RUN, APPROVE}))
BOB = Principal("key:bob", frozenset({READ, APPROVE}))


@pytest.fixture
def running(service: BackfillService, request_of: RequestOf, wait_for: Wait) -> str:
    """A backfill whose driver sleeps."""
    made = service.create(request_of(rate_limit_messages_per_second=100.0), principal=ANN)
    service.start()
    wait_for(lambda: service.get(made.id, principal=ANN).state is JobState.RUNNING, "it runs")
    return made.id


@pytest.fixture
def ended(service: BackfillService, request_of: RequestOf, deployment: Any) -> Callable[..., str]:
    """Make a backfill that has run and ended, as the store has it."""

    def end(state: JobState, using: BackfillService = service) -> str:
        made = using.create(request_of(allow_overlap=True), principal=ANN)
        using._store.begin_attempt(made.id)
        using._store.move(made.id, JobState.RUNNING, actor="refeed")
        using._store.move(made.id, state, actor="refeed")
        return made.id

    return end


def test_what_has_not_started_is_cancelled_at_once_and_never_launched(
    service: BackfillService, launcher: Any, request_of: RequestOf
) -> None:
    made = service.create(request_of(), principal=ANN)

    cancelled = service.cancel(made.id, principal=ANN)

    assert cancelled.state is JobState.CANCELLED
    service._supervisor.tick()
    assert launcher.launched == []
    with pytest.raises(JobStateError):
        service.cancel(made.id, principal=ANN)
    assert [(e.actor, e.what) for e in service.list_events(made.id, principal=ANN)] == [
        ("key:ann", "created"),
        ("key:ann", "PENDING -> CANCELLED"),
    ]


def test_a_running_backfill_is_told_to_stop_before_cancel_returns(
    service: BackfillService, running: str, folder_of: FolderOf
) -> None:
    first = service.cancel(running, principal=ANN)

    assert first.state is JobState.CANCELLING
    assert first.in_flight_at_most == 0
    assert not folder_of(running).may_go_on(1)
    assert service.cancel(running, principal=ANN).state in {JobState.CANCELLING, JobState.CANCELLED}


def test_a_pause_says_what_may_still_go_out_and_a_resume_lets_the_same_driver_go_on(
    service: BackfillService, running: str, folder_of: FolderOf, publish: Callable[..., None], launcher: Any
) -> None:
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


def test_what_may_still_go_out_is_never_more_than_is_left(
    service: BackfillService, running: str, folder_of: FolderOf, publish: Callable[..., None], wait_for: Wait
) -> None:
    publish(running, 30, 20)
    folder_of(running).enter_slice(0, 1)
    wait_for(lambda: service.get(running, principal=ANN).progress.published == 20, "its figures are known")

    assert service.pause(running, principal=ANN).in_flight_at_most == 10


def test_what_is_sent_once_more_may_still_go_out_after_everything_is_published(
    service: BackfillService, running: str, folder_of: FolderOf, publish: Callable[..., None], wait_for: Wait
) -> None:
    publish(running, 30, 30)
    # The selection has one slice: the next piece is of rows that are missing.
    folder_of(running).enter_slice(1, 1)
    wait_for(lambda: service.get(running, principal=ANN).progress.published == 30, "its figures are known")

    assert service.pause(running, principal=ANN).in_flight_at_most == 100


def test_what_waits_for_its_turn_is_paused_and_never_launched(
    service: BackfillService, launcher: Any, request_of: RequestOf
) -> None:
    made = service.create(request_of(), principal=ANN)

    assert service.pause(made.id, principal=ANN).state is JobState.PAUSED
    service._supervisor.tick()
    assert launcher.launched == []
    assert service.resume(made.id, principal=ANN).state is JobState.PENDING


def test_a_paused_backfill_is_cancelled(service: BackfillService, running: str, request_of: RequestOf) -> None:
    waiting = service.create(request_of(topic="other", start_paused=True), principal=ANN)
    assert service.cancel(waiting.id, principal=ANN).state is JobState.CANCELLED

    service.pause(running, principal=ANN)
    assert service.cancel(running, principal=ANN).state is JobState.CANCELLING


def test_a_resume_ends_the_canary(
    service: BackfillService, request_of: RequestOf, folder_of: FolderOf, wait_for: Wait
) -> None:
    made = service.create(request_of(canary_messages=5), principal=ANN)
    assert made.canary_messages == 5
    service.start()
    wait_for(lambda: service.get(made.id, principal=ANN).state is JobState.RUNNING, "it runs")
    folder = folder_of(made.id)
    assert folder.read_control().canary_messages == 5
    folder.write_pause(1, "The canary of 5 messages is out.")
    wait_for(lambda: service.get(made.id, principal=ANN).state is JobState.PAUSED, "it paused by itself")

    resumed = service.resume(made.id, principal=ANN)

    assert (resumed.state, resumed.canary_messages) == (JobState.RUNNING, None)
    assert folder.read_control() == Control(1, Order.RUN)
    assert folder.read_pause(1) is None


def test_a_resume_after_the_driver_let_go_of_spark_takes_another_attempt(
    service: BackfillService, running: str, folder_of: FolderOf, launcher: Any, wait_for: Wait
) -> None:
    service.pause(running, principal=ANN)
    folder_of(running).write_outcome(Outcome(1, JobState.PAUSED))
    launcher.kill(launcher.drivers[0])

    assert service.resume(running, principal=ANN).state is JobState.PENDING
    wait_for(lambda: len(launcher.launched) == 2, "another driver")
    wait_for(lambda: service.get(running, principal=ANN).state is JobState.RUNNING, "it runs again")
    assert folder_of(running).read_control().epoch == 2


def test_only_what_is_paused_is_resumed(service: BackfillService, ended: Callable[..., str]) -> None:
    with pytest.raises(JobStateError):
        service.resume(ended(JobState.FAILED), principal=ANN)


def test_a_new_rate_reaches_what_runs(service: BackfillService, running: str, folder_of: FolderOf) -> None:
    changed = service.change(running, {"rate_limit_messages_per_second": 7.5}, principal=ANN)

    assert changed.rate_limit_messages_per_second == 7.5
    assert folder_of(running).read_control() == Control(1, Order.RUN, 7.5)

    service.pause(running, principal=ANN)
    lifted = service.change(running, {"rate_limit_messages_per_second": None, "labels": {"a": "b"}}, principal=ANN)
    assert (lifted.rate_limit_messages_per_second, lifted.labels) == (None, {"a": "b"})
    assert folder_of(running).read_control() == Control(1, Order.PAUSE)
    assert service.list_events(running, principal=ANN)[-1].what == (
        "changed labels, rate_limit_messages_per_second"
    )


def test_a_description_changes_after_the_end_and_a_rate_does_not(
    service: BackfillService, ended: Callable[..., str]
) -> None:
    job_id = ended(JobState.SUCCEEDED)

    assert service.change(job_id, {"description": "done"}, principal=ANN).description == "done"
    assert service.change(job_id, {}, principal=ANN).description == "done"
    with pytest.raises(JobStateError):
        service.change(job_id, {"rate_limit_messages_per_second": 1.0}, principal=ANN)
    with pytest.raises(RequestInvalidError):
        service.change(job_id, {"description": "x" * 3000}, principal=ANN)


def test_a_change_of_something_else_than_was_read_is_refused(
    service: BackfillService, request_of: RequestOf
) -> None:
    made = service.create(request_of(start_paused=True), principal=ANN)

    for call in (service.cancel, service.resume):
        with pytest.raises(JobChangedError):
            call(made.id, principal=ANN, versions={99})
    with pytest.raises(JobChangedError):
        service.change(made.id, {"description": "x"}, principal=ANN, versions={99})
    assert service.cancel(made.id, principal=ANN, versions={7, 1}).state is JobState.CANCELLED


def test_a_caller_without_the_scope_or_the_topic_steers_nothing(service: BackfillService, running: str) -> None:
    strangers = [
        Principal("reader", frozenset({READ, APPROVE})),
        Principal("narrow", frozenset({RUN}), ("other",)),
    ]
    for stranger in strangers:
        for call in (service.pause, service.resume, service.cancel, service.retry, service.revert):
            with pytest.raises(ForbiddenError):
                call(running, principal=stranger)
        with pytest.raises(ForbiddenError):
            service.change(running, {"description": ""}, principal=stranger)
    assert service.get(running, principal=ANN).state is JobState.RUNNING


def test_only_what_failed_or_was_cancelled_is_retried(
    service: BackfillService, request_of: RequestOf, folder_of: FolderOf, ended: Callable[..., str]
) -> None:
    made = service.create(request_of(), principal=ANN)
    with pytest.raises(JobStateError):
        service.retry(made.id, principal=ANN)
    service.cancel(made.id, principal=ANN)
    with pytest.raises(RequestInvalidError):
        service.retry(made.id, principal=ANN, only="some")

    assert service.retry(made.id, principal=ANN).state is JobState.PENDING
    with pytest.raises(JobStateError, match="published everything"):
        service.retry(ended(JobState.SUCCEEDED), principal=ANN)


def test_a_retry_that_is_refused_changes_nothing_of_what_the_next_one_sends(
    service: BackfillService, ended: Callable[..., str], folder_of: FolderOf
) -> None:
    job_id = ended(JobState.FAILED)
    job = service._store.get(job_id)
    service._store.set_progress(job_id, type(job.progress)(selected=30, published=28, failed=2))

    with pytest.raises(JobChangedError):
        service.retry(job_id, principal=ANN, only="failed", versions={job.version - 1})

    assert folder_of(job_id).read_specification()["run"]["only"] == "all"


def test_a_retry_may_not_overlap_an_active_backfill_either(
    service: BackfillService, request_of: RequestOf, folder_of: FolderOf
) -> None:
    first = service.create(request_of(), principal=ANN)
    service.cancel(first.id, principal=ANN)
    second = service.create(request_of(), principal=ANN)

    with pytest.raises(BackfillOverlapsError, match=second.id):
        service.retry(first.id, principal=ANN)
    assert service.get(first.id, principal=ANN).state is JobState.CANCELLED

    service.cancel(second.id, principal=ANN)
    assert service.retry(first.id, principal=ANN).state is JobState.PENDING


def test_dead_letters_alone_are_sent_again(
    service: BackfillService, ended: Callable[..., str], folder_of: FolderOf
) -> None:
    job_id = ended(JobState.FAILED)
    with pytest.raises(JobStateError, match="no dead letters"):
        service.retry(job_id, principal=ANN, only="failed")
    job = service._store.get(job_id)
    service._store.set_progress(job_id, type(job.progress)(selected=30, published=28, failed=2))

    assert service.retry(job_id, principal=ANN, only="failed").state is JobState.PENDING
    assert folder_of(job_id).read_specification()["run"]["only"] == "failed"
    assert service.list_events(job_id, principal=ANN)[-1].why == "retried, only failed"


def test_a_planned_backfill_with_many_rows_waits_for_somebody_else(
    open_service: Callable[..., BackfillService],
    request_of: RequestOf,
    archive: LakeArchive,
    launcher: Any,
    *,
    wait_for: Wait,
    folder_of: FolderOf,
) -> None:
    service = open_service(approval_rows=29)
    plan = service.plan(request_of(), principal=ANN)
    made = service.create(request_of(plan_id=plan["plan_id"]), principal=ANN)
    assert made.approval == {"required": True, "above_rows": 29, "rows": 30, "by": None, "at": None}
    service._supervisor.tick()
    assert launcher.launched == []

    with pytest.raises(ForbiddenError, match="your own"):
        service.approve(made.id, principal=ANN)
    with pytest.raises(ForbiddenError):
        service.approve(made.id, principal=Principal("key:eve", frozenset({READ, RUN})))
    with pytest.raises(ForbiddenError):
        service.approve(made.id, principal=Principal("key:eve", frozenset({APPROVE}), ("other",)))
    approved = service.approve(made.id, principal=BOB)

    assert approved.approval is not None
    assert (approved.approval["by"], approved.approval["required"]) == ("key:bob", True)
    assert folder_of(made.id).read_specification()["run"]["approval_rows"] == 30
    service.start()
    wait_for(lambda: len(launcher.launched) == 1, "it is launched")
    with pytest.raises(JobStateError, match="does not wait"):
        service.approve(made.id, principal=BOB)


def test_rows_that_are_counted_at_selection_wait_for_somebody_else_too(
    open_service: Callable[..., BackfillService],
    request_of: RequestOf,
    wait_for: Wait,
    folder_of: FolderOf,
    publish: Callable[..., None],
) -> None:
    service = open_service(approval_rows=29)
    made = service.create(request_of(), principal=ANN)
    assert made.approval is not None
    assert not made.approval["required"]
    assert folder_of(made.id).read_specification()["run"]["approval_rows"] == 29
    service.start()
    wait_for(lambda: service.get(made.id, principal=ANN).state is JobState.RUNNING, "it runs")
    publish(made.id, 30, 0)
    folder_of(made.id).write_pause(1, "30 rows wait for an approval.")
    wait_for(lambda: service.get(made.id, principal=ANN).state is JobState.PAUSED, "the driver has paused")
    wait_for(lambda: service.get(made.id, principal=ANN).progress.selected == 30, "its rows are known")

    with pytest.raises(ApprovalRequiredError, match="more than 29 rows"):
        service.resume(made.id, principal=ANN)
    approved = service.approve(made.id, principal=BOB)

    assert approved.state is JobState.RUNNING
    assert folder_of(made.id).may_publish(1)


def test_an_approval_of_fewer_rows_than_are_selected_does_not_hold(
    open_service: Callable[..., BackfillService],
    request_of: RequestOf,
    archive: LakeArchive,
    wait_for: Wait,
    folder_of: FolderOf,
    *,
    publish: Callable[..., None],
) -> None:
    """The archive grows between the plan and the query; somebody has looked at 30 rows, and not at 31."""
    service = open_service(approval_rows=29)
    plan = service.plan(request_of(), principal=ANN)
    made = service.create(request_of(plan_id=plan["plan_id"]), principal=ANN)
    service.approve(made.id, principal=BOB)
    service.start()
    wait_for(lambda: service.get(made.id, principal=ANN).state is JobState.RUNNING, "it runs")
    publish(made.id, 31, 0)
    assert hold(folder_of(made.id), 1, 31)
    wait_for(lambda: service.get(made.id, principal=ANN).state is JobState.PAUSED, "the driver has paused")

    waiting = service.get(made.id, principal=ANN)
    assert waiting.approval == {"required": True, "above_rows": 29, "rows": 31, "by": None, "at": None}
    said = service.list_events(made.id, principal=ANN)[-1]
    assert (said.actor, said.what) == ("driver", "RUNNING -> PAUSED")
    assert said.why == "31 rows are selected; above 30 somebody has to approve."
    with pytest.raises(ApprovalRequiredError, match="more than 30 rows"):
        service.resume(made.id, principal=ANN)
    again = service.approve(made.id, principal=BOB)

    assert again.state is JobState.RUNNING
    assert not hold(folder_of(made.id), 1, 31)
    assert [e.why for e in service.list_events(made.id, principal=ANN) if e.what == "approved"] == [
        "30 rows",
        "31 rows",
    ]


def test_an_approval_does_not_resume_what_somebody_has_paused(
    open_service: Callable[..., BackfillService],
    request_of: RequestOf,
    wait_for: Wait,
    folder_of: FolderOf,
    publish: Callable[..., None],
) -> None:
    service = open_service(approval_rows=29)
    made = service.create(request_of(), principal=ANN)
    service.start()
    wait_for(lambda: service.get(made.id, principal=ANN).state is JobState.RUNNING, "it runs")
    service.pause(made.id, principal=LOCAL)
    publish(made.id, 30, 0)
    wait_for(lambda: service.get(made.id, principal=ANN).progress.selected == 30, "its rows are known")

    assert service.approve(made.id, principal=BOB).state is JobState.PAUSED
    assert not folder_of(made.id).may_publish(1)
    assert service.resume(made.id, principal=ANN).state is JobState.RUNNING


def test_an_approval_reaches_the_driver_though_the_service_died_after_it(
    open_service: Callable[..., BackfillService],
    request_of: RequestOf,
    archive: LakeArchive,
    folder_of: FolderOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_a_small_backfill_needs_nobody_else(
    open_service: Callable[..., BackfillService], request_of: RequestOf, archive: LakeArchive
) -> None:
    service = open_service(approval_rows=30)
    plan = service.plan(request_of(), principal=ANN)
    made = service.create(request_of(plan_id=plan["plan_id"], start_paused=True), principal=ANN)

    with pytest.raises(JobStateError, match="does not wait"):
        service.approve(made.id, principal=BOB)
    assert service.resume(made.id, principal=ANN).state is JobState.PENDING


def test_what_was_to_start_paused_stays_so_when_it_is_approved(
    open_service: Callable[..., BackfillService], request_of: RequestOf, archive: LakeArchive
) -> None:
    service = open_service(approval_rows=1)
    plan = service.plan(request_of(), principal=ANN)
    made = service.create(request_of(plan_id=plan["plan_id"], start_paused=True), principal=ANN)
    with pytest.raises(ApprovalRequiredError):
        service.resume(made.id, principal=ANN)

    assert service.approve(made.id, principal=BOB).state is JobState.PAUSED
    assert service.resume(made.id, principal=ANN).state is JobState.PENDING


def test_nothing_is_reverted_where_no_staging_table_is_known(
    service: BackfillService, ended: Callable[..., str], request_of: RequestOf
) -> None:
    waiting = service.create(request_of(start_paused=True), principal=ANN)
    with pytest.raises(StagingUnknownError):
        service.revert(ended(JobState.SUCCEEDED), principal=ANN)
    with pytest.raises(StagingUnknownError):
        service.retry(ended(JobState.SUCCEEDED), principal=ANN, only="missing")
    with pytest.raises(JobStateError, match="cancel it first"):
        service.revert(waiting.id, principal=ANN)


def test_a_revert_deletes_the_backfill_s_rows_until_they_are_merged(
    open_service: Callable[..., BackfillService],
    ended: Callable[..., str],
    publish: Callable[..., None],
    staging: Any,
) -> None:
    service = open_service(staging_of=lambda topic: staging if topic == "replay" else None)
    job_id = ended(JobState.SUCCEEDED, service)
    publish(job_id, 3, 3)
    staging.rows = {job_id: [0, 1, 2], "bf_other": [7]}

    with pytest.raises(JobChangedError):
        service.revert(job_id, principal=ANN, versions={7, 1})
    staging.merged = 2
    with pytest.raises(AlreadyMergedError, match="2 rows"):
        service.revert(job_id, principal=ANN)
    staging.merged = 0
    reverted = service.revert(job_id, principal=ANN)

    assert staging.rows == {"bf_other": [7]}
    assert (reverted.verification["state"], reverted.verification["landed"]) == ("incomplete", 0)
    *_, done, counted = service.list_events(job_id, principal=ANN)
    assert (done.actor, done.what, done.why) == ("key:ann", "reverted", "3 rows deleted from staging")
    assert counted.what == "verification incomplete"


def test_a_revert_is_in_the_history_whatever_comes_of_counting_what_is_left(
    open_service: Callable[..., BackfillService],
    ended: Callable[..., str],
    publish: Callable[..., None],
    staging: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = open_service(staging_of=lambda _topic: staging)
    job_id = ended(JobState.SUCCEEDED, service)
    publish(job_id, 3, 3)
    staging.rows = {job_id: [0, 1, 2]}

    def fail(_job: object) -> None:
        raise WarehouseError("the lake does not answer")

    monkeypatch.setattr(service._verifier, "verify", fail)
    with pytest.raises(WarehouseError):
        service.revert(job_id, principal=ANN)

    assert service.list_events(job_id, principal=ANN)[-1].what == "reverted"

    for half in (
        AlreadyMergedError("A merge ran while 1 rows were deleted.", deleted=1),
        RevertIncompleteError("1 rows are deleted; staging.other may have more.", deleted=1),
    ):
        monkeypatch.setattr(service._verifier, "delete_rows", Mock(side_effect=half))
        with pytest.raises(type(half)):
            service.revert(job_id, principal=ANN)
        last = service.list_events(job_id, principal=ANN)[-1]
        assert (last.what, last.why) == ("reverted in part", half.message)


def test_what_has_not_landed_is_listed_and_sent_again(
    open_service: Callable[..., BackfillService],
    ended: Callable[..., str],
    publish: Callable[..., None],
    staging: Any,
    folder_of: FolderOf,
) -> None:
    service = open_service(staging_of=lambda _topic: staging)
    job_id = ended(JobState.SUCCEEDED, service)
    publish(job_id, 5, 5)
    staging.rows = {job_id: [0, 2, 4, 4]}

    missing = service.list_missing(job_id, principal=ANN)
    assert [(message.row, message.message_id) for message in missing] == [(1, "m1"), (3, "m3")]
    assert [m.row for m in service.list_missing(job_id, principal=ANN, limit=1, after=1)] == [3]

    assert service.retry(job_id, principal=ANN, only="missing").state is JobState.PENDING
    assert folder_of(job_id).read_specification()["run"]["rows"] == [1, 3]


def test_nothing_is_sent_again_when_nothing_is_missing(
    open_service: Callable[..., BackfillService],
    ended: Callable[..., str],
    publish: Callable[..., None],
    staging: Any,
) -> None:
    service = open_service(staging_of=lambda _topic: staging)
    job_id = ended(JobState.SUCCEEDED, service)
    publish(job_id, 2, 2)
    staging.rows = {job_id: [0, 1]}

    with pytest.raises(JobStateError, match="nothing is missing"):
        service.retry(job_id, principal=ANN, only="missing")


def test_local_may_do_everything(service: BackfillService, running: str) -> None:
    assert service.pause(running, principal=LOCAL).state is JobState.PAUSED
    assert isinstance(service._store, JobStore)
