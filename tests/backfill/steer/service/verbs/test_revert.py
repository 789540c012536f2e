"""What a backfill brought into staging is deleted again, as long as no merge has taken it."""

from unittest.mock import Mock

import pytest

from model.errors import (
    AlreadyMergedError,
    JobChangedError,
    JobStateError,
    RevertIncompleteError,
    StagingUnknownError,
    WarehouseError,
)
from model.job import JobState
from model.principal import APPROVE, PLAN, READ, RUN, Principal

ANN = Principal("key:ann", frozenset({READ, PLAN, RUN, APPROVE}))


def test_nothing_is_reverted_where_no_staging_table_is_known(service, ended, request_of):
    waiting = service.create(request_of(start_paused=True), principal=ANN)
    with pytest.raises(StagingUnknownError):
        service.revert(ended(JobState.SUCCEEDED), principal=ANN)
    with pytest.raises(StagingUnknownError):
        service.retry(ended(JobState.SUCCEEDED), principal=ANN, only="missing")
    with pytest.raises(JobStateError, match="Cancel it first"):
        service.revert(waiting.id, principal=ANN)


def test_a_backfill_that_is_being_cancelled_is_reverted_once_it_has_ended(service, request_of, store):
    waiting = service.create(request_of(start_paused=True), principal=ANN)
    store.move(waiting.id, JobState.CANCELLING, actor="key:ann")
    with pytest.raises(JobStateError, match="Wait until it is CANCELLED"):
        service.revert(waiting.id, principal=ANN)


def test_a_revert_deletes_the_backfill_s_rows_until_they_are_merged(open_service, ended, publish, staging):
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
    assert (reverted.verification.state, reverted.verification.landed) == ("incomplete", 0)
    *_, done, counted = service.watch(job_id, principal=ANN).events
    assert (done.actor, done.what, done.why) == ("key:ann", "reverted", "3 rows deleted from staging")
    assert counted.what == "verification incomplete"
    assert (reverted.revert.by, reverted.revert.rows) == ("key:ann", 3)
    assert service.retry(job_id, principal=ANN, only="missing").revert is None


def test_a_revert_is_in_the_history_whatever_comes_of_counting_what_is_left(
    open_service, ended, publish, staging, monkeypatch
):
    service = open_service(staging_of=lambda _topic: staging)
    job_id = ended(JobState.SUCCEEDED, service)
    publish(job_id, 3, 3)
    staging.rows = {job_id: [0, 1, 2]}

    def fail(_job: object) -> None:
        raise WarehouseError("the lake does not answer")

    monkeypatch.setattr(service._verifier, "verify", fail)
    with pytest.raises(WarehouseError):
        service.revert(job_id, principal=ANN)
    assert service.watch(job_id, principal=ANN).events[-1].what == "reverted"
    for half in (
        AlreadyMergedError("A merge ran while 1 rows were deleted.", deleted=1),
        RevertIncompleteError("1 rows are deleted; staging.other may have more.", deleted=1),
    ):
        monkeypatch.setattr(service._verifier, "delete_rows", Mock(side_effect=half))
        with pytest.raises(type(half)):
            service.revert(job_id, principal=ANN)
        last = service.watch(job_id, principal=ANN).events[-1]
        assert (last.what, last.why) == ("reverted in part", half.message)
