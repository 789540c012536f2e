"""What is sent again: what is left, dead letters, what has not landed."""

import pytest

from backfill.plan.redrive import LetterCounter
from backfill.run.dead_letters import DeadLetterWriter
from backfill.run.progress import Progress
from backfill.run.selection import read_slice, write_selection
from backfill.steer.verification import Waiting
from model.errors import BackfillOverlapsError, JobChangedError, JobStateError, RequestInvalidError
from model.job import JobState
from model.principal import APPROVE, PLAN, READ, RUN, Principal

ANN = Principal("key:ann", frozenset({READ, PLAN, RUN, APPROVE}))


def test_only_what_failed_or_was_cancelled_is_retried(service, request_of, folder_of, ended):
    made = service.create(request_of(), principal=ANN)
    with pytest.raises(JobStateError):
        service.retry(made.id, principal=ANN)
    service.cancel(made.id, principal=ANN)
    with pytest.raises(RequestInvalidError):
        service.retry(made.id, principal=ANN, only="some")
    assert service.retry(made.id, principal=ANN).state is JobState.PENDING
    with pytest.raises(JobStateError, match="published everything"):
        service.retry(ended(JobState.SUCCEEDED), principal=ANN)


def test_a_retry_that_is_refused_changes_nothing_of_what_the_next_one_sends(service, ended, folder_of):
    job_id = ended(JobState.FAILED)
    job = service._store.get(job_id)
    service._store.set_progress(job_id, Progress(selected=30, published=28, failed=2).to_json())
    with pytest.raises(JobChangedError):
        service.retry(job_id, principal=ANN, only="failed", versions={job.version - 1})
    assert folder_of(job_id).read_specification()["run"]["only"] == "all"


def test_a_retry_may_not_overlap_an_active_backfill_either(service, request_of, folder_of):
    first = service.create(request_of(), principal=ANN)
    service.cancel(first.id, principal=ANN)
    second = service.create(request_of(), principal=ANN)
    with pytest.raises(BackfillOverlapsError, match=second.id):
        service.retry(first.id, principal=ANN)
    assert service.get(first.id, principal=ANN).state is JobState.CANCELLED
    service.cancel(second.id, principal=ANN)
    assert service.retry(first.id, principal=ANN).state is JobState.PENDING


def test_some_dead_letters_are_sent_again_by_row_or_by_code(service, ended, rows, folder_of):
    job_id = ended(JobState.FAILED)
    folder = folder_of(job_id)
    (part,) = write_selection([rows(30)], folder.selection).slices
    writer, batch = DeadLetterWriter(folder, 1, part), read_slice(folder.selection, part)
    writer.write(batch, [(4, "gave_up: no answer"), (9, "gave_up: no answer"), (20, "message_too_large: 11 MB")])
    service._store.set_progress(job_id, Progress(selected=30, published=27, failed=3).to_json())
    with pytest.raises(JobStateError, match="no such dead letters"):
        service.retry(job_id, principal=ANN, only="failed", code="refused_by_pubsub")
    with pytest.raises(JobStateError, match="no such dead letters"):
        service.retry(job_id, principal=ANN, only="failed", rows=[5, 31])
    with pytest.raises(RequestInvalidError, match="only=failed"):
        service.retry(job_id, principal=ANN, rows=[4])
    assert service.get(job_id, principal=ANN).state is JobState.FAILED
    found = service.count_dead_letters(job_id, principal=ANN)
    assert [(reason.code, reason.messages) for reason in found] == [("gave_up", 2), ("message_too_large", 1)]
    service.retry(job_id, principal=ANN, only="failed", code="gave_up")
    run = folder.read_specification()["run"]
    assert (run["only"], run["rows"]) == ("failed", [4, 9])
    assert service.watch(job_id, principal=ANN).events[-1].why == "retried, only failed, 2 of 3"
    service.cancel(job_id, principal=ANN)
    service.retry(job_id, principal=ANN, only="failed", rows=[9, 20])
    assert folder.read_specification()["run"]["rows"] == [9, 20]
    service.cancel(job_id, principal=ANN)
    service.retry(job_id, principal=ANN, only="failed")
    assert folder.read_specification()["run"]["rows"] == []


def test_what_has_not_landed_is_listed_and_sent_again(open_service, ended, publish, staging, folder_of):
    service = open_service(staging_of=lambda _topic: staging)
    job_id = ended(JobState.SUCCEEDED, service)
    publish(job_id, 5, 5)
    staging.rows = {job_id: [0, 2, 4, 4]}
    missing = service.list_missing(job_id, principal=ANN)
    assert [(message.row, message.message_id) for message in missing] == [(1, "m1"), (3, "m3")]
    assert [m.row for m in service.list_missing(job_id, principal=ANN, limit=1, after=1)] == [3]
    assert service.retry(job_id, principal=ANN, only="missing").state is JobState.PENDING
    assert folder_of(job_id).read_specification()["run"]["rows"] == [1, 3]


def test_what_may_still_be_delivered_is_not_sent_again(open_service, ended, publish, staging, folder_of):
    waits = [Waiting(3, "The stream is DRAINED.")]
    service = open_service(staging_of=lambda _topic: staging, waiting_of=lambda _topic, _until: waits[0])
    job_id = ended(JobState.SUCCEEDED, service)
    publish(job_id, 5, 5)
    staging.rows = {job_id: [0, 2, 4]}
    assert service.explain_missing(job_id, principal=ANN) == "The stream is DRAINED."
    with pytest.raises(JobStateError, match=r"2 messages of .* could send them twice\. The stream is DRAINED\."):
        service.retry(job_id, principal=ANN, only="missing")
    waits[0] = None
    assert service.explain_missing(job_id, principal=ANN) is None
    service.retry(job_id, principal=ANN, only="missing")
    assert folder_of(job_id).read_specification()["run"]["rows"] == [1, 3]


def test_what_is_missing_has_the_reason_of_the_dead_letter_that_it_became(
    open_service, ended, publish, staging, monkeypatch
):
    def find_reasons(self, messages, start):
        assert start == created_at
        assert {message_id for _, message_id in messages} == {"m1", "m2"}
        return {message: ("not_json", "It is no JSON.") for message in messages if message[1] == "m1"}

    monkeypatch.setattr(LetterCounter, "find_reasons", find_reasons)
    service = open_service(staging_of=lambda _topic: staging)
    job_id = ended(JobState.SUCCEEDED, service)
    publish(job_id, 3, 3)
    staging.rows = {job_id: [0]}
    created_at = service.get(job_id, principal=ANN).created_at
    missing = service.list_missing(job_id, principal=ANN)
    assert [(each.row, each.code, each.reason) for each in missing] == [
        (1, "not_json", "It is no JSON."),
        (2, None, None),
    ]


def test_nothing_is_sent_again_when_nothing_is_missing(open_service, ended, publish, staging):
    service = open_service(staging_of=lambda _topic: staging)
    job_id = ended(JobState.SUCCEEDED, service)
    publish(job_id, 2, 2)
    staging.rows = {job_id: [0, 1]}
    with pytest.raises(JobStateError, match="Nothing is missing"):
        service.retry(job_id, principal=ANN, only="missing")
