"""What every job store keeps to, on SQLite and on a real PostgreSQL."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from backfill.run.progress import Progress
from jobs.store import Idempotency, Job, JobStore, open_store
from model.errors import JobChangedError, JobNotFoundError, JobStateError
from model.fault import FaultRecord
from model.job import JobState, new_job_id
from model.process import Process

KIND = "backfill"
Insert = Callable[..., str]


def test_a_new_job_is_pending_and_has_a_history(store: JobStore, insert: Insert) -> None:
    job = store.get(insert({"query": "SELECT 1"}))

    assert (job.state, job.request, job.created_by, job.epoch) == (
        JobState.PENDING,
        {"query": "SELECT 1"},
        "ann",
        0,
    )
    assert (job.started_at, job.finished_at, job.error, job.driver) == (None, None, None, None)
    assert [(e.actor, e.what) for e in store.list_events(job.id)] == [("ann", "created")]


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("bf_none"),
        lambda store: store.list_events("bf_none"),
        lambda store: store.begin_attempt("bf_none"),
        lambda store: store.move("bf_none", JobState.RUNNING, actor="x"),
    ],
)
def test_a_job_that_is_not_there_is_an_error(store: JobStore, call: object) -> None:
    assert callable(call)
    with pytest.raises(JobNotFoundError):
        call(store)


def test_a_job_runs_and_ends_and_its_history_says_so(store: JobStore, insert: Insert) -> None:
    job_id = insert()
    driver = Process(1, 2, "boot")

    store.begin_attempt(job_id)
    running = store.move(job_id, JobState.RUNNING, actor="refeed", driver=driver)
    ended = store.move(
        job_id, JobState.FAILED, actor="refeed", why="died", error=FaultRecord("driver_died", "Died.")
    )

    assert (running.epoch, running.driver, running.finished_at) == (1, driver, None)
    assert running.started_at is not None
    assert ended.error == FaultRecord("driver_died", "Died.")
    assert ended.finished_at is not None
    assert [(e.what, e.why) for e in store.list_events(job_id)] == [
        ("created", None),
        ("PENDING -> RUNNING", None),
        ("RUNNING -> FAILED", "died"),
    ]


def test_a_retried_job_has_no_error_and_a_new_epoch(store: JobStore, insert: Insert) -> None:
    job_id = insert()
    store.begin_attempt(job_id)
    store.move(job_id, JobState.FAILED, actor="refeed", error=FaultRecord("x", "X."))

    retried = store.move(job_id, JobState.PENDING, actor="ann")

    assert (retried.error, retried.finished_at) == (None, None)
    assert store.begin_attempt(job_id).epoch == 2


def test_a_move_that_its_state_does_not_allow_changes_nothing(store: JobStore, insert: Insert) -> None:
    job_id = insert()
    store.move(job_id, JobState.CANCELLED, actor="ann")
    before = store.get(job_id)

    with pytest.raises(JobStateError):
        store.move(job_id, JobState.RUNNING, actor="refeed")
    with pytest.raises(JobStateError):
        store.begin_attempt(job_id)

    assert store.get(job_id) == before
    assert len(store.list_events(job_id)) == 2


def test_a_move_from_a_version_that_is_gone_is_refused(store: JobStore, insert: Insert) -> None:
    job_id = insert()
    read = store.get(job_id)
    store.begin_attempt(job_id)

    with pytest.raises(JobChangedError):
        store.move(job_id, JobState.CANCELLED, actor="ann", expected_version=read.version)

    assert store.move(job_id, JobState.CANCELLED, actor="ann", expected_version=2).version == 3


def test_progress_is_kept_without_a_new_version(store: JobStore, insert: Insert) -> None:
    job_id = insert()

    store.set_progress(job_id, Progress(selected=10, published=3).to_json())

    assert store.get(job_id).progress == Progress(selected=10, published=3).to_json()
    assert store.get(job_id).version == 1
    assert len(store.list_events(job_id)) == 1


def test_jobs_are_listed_newest_first_page_by_page(store: JobStore, insert: Insert) -> None:
    made = sorted(insert() for _ in range(5))
    store.insert(new_job_id("mg"), "merge", {}, actor="ann")

    first = [job.id for job in store.list_jobs(KIND, limit=2)]
    rest = [job.id for job in store.list_jobs(KIND, limit=9, after=(first[-1],))]

    assert first + rest == made[::-1]


def test_only_jobs_that_are_not_at_their_end_are_active(store: JobStore, insert: Insert) -> None:
    ended, waiting = insert(), insert()
    store.move(ended, JobState.CANCELLED, actor="ann")

    assert [job.id for job in store.list_active(KIND)] == [waiting]


def test_of_many_that_make_the_same_move_one_wins(store: JobStore, url: str, insert: Insert) -> None:
    job_id = insert()
    start = threading.Barrier(8)

    def cancel(_: int) -> bool:
        other = open_store(url)
        try:
            start.wait(20)
            other.move(job_id, JobState.CANCELLED, actor="x")
        except JobStateError:
            return False
        else:
            return True
        finally:
            other.close()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(cancel, range(8))) == 1


def test_many_that_write_at_once_lose_nothing(store: JobStore, url: str, insert: Insert) -> None:
    def write(_: int) -> None:
        other = open_store(url)
        try:
            for _ in range(10):
                other.insert(new_job_id("bf"), KIND, {}, actor="ann")
        finally:
            other.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))

    assert len(store.list_jobs(KIND, limit=1000)) == 40


def test_what_was_asked_for_comes_back_as_it_was(store: JobStore, insert: Insert) -> None:
    request = {
        "query": "SELECT '\u0000' -- \U0001f600",
        "list": [1, None, {"half": "\ud800"}],
        "topic": "orders",
    }
    options = {"description": "why\nnot", "rate_limit_messages_per_second": 0.5, "labels": {"env": "prod"}}
    approval = {"required": True, "rows": 10, "by": None, "at": None}

    job = store.get(insert(request, options=options, plan_id="pl_1", approval=approval))

    assert (job.request, job.options, job.labels) == (request, options, {"env": "prod"})
    assert (job.plan_id, job.approval) == ("pl_1", approval)
    assert (job.restarts, job.findings, job.notified_at, job.lease_owner) == (0, None, None, None)


def test_a_job_may_begin_paused_and_only_so(insert: Insert, store: JobStore) -> None:
    job = store.get(insert(state=JobState.PAUSED))
    assert (job.state, job.driver, job.epoch) == (JobState.PAUSED, None, 0)
    with pytest.raises(JobStateError):
        store.begin_attempt(job.id)
    with pytest.raises(JobStateError):
        insert(state=JobState.RUNNING)

    assert store.move(job.id, JobState.PENDING, actor="ann").state is JobState.PENDING
    assert store.begin_attempt(job.id).epoch == 1


def test_a_move_of_another_attempt_or_from_another_state_is_refused(store: JobStore, insert: Insert) -> None:
    job_id = insert()
    store.begin_attempt(job_id)
    store.move(job_id, JobState.PAUSED, actor="ann")

    with pytest.raises(JobChangedError):
        store.move(job_id, JobState.RUNNING, actor="refeed", expected_epoch=2)
    with pytest.raises(JobStateError):
        store.move(job_id, JobState.RUNNING, actor="refeed", expected_state=JobState.PENDING)

    assert store.move(job_id, JobState.RUNNING, actor="ann", expected_epoch=1).state is JobState.RUNNING


def test_options_change_one_by_one_and_the_history_says_so(store: JobStore, insert: Insert) -> None:
    job_id = insert({"labels": {"a": "1"}}, options={"rate": 1, "canary_messages": 5})

    job = store.change(
        job_id, actor="bob", what="changed", why="too slow", options={"rate": 2, "canary_messages": None}
    )

    assert (job.options, job.labels, job.version) == ({"rate": 2}, {"a": "1"}, 2)
    last = store.list_events(job_id)[-1]
    assert (last.actor, last.what, last.why) == ("bob", "changed", "too slow")
    with pytest.raises(JobChangedError):
        store.change(job_id, actor="bob", what="changed", options={"rate": 3}, expected_version=1)
    assert store.get(job_id).options == {"rate": 2}


def test_an_approval_and_a_verification_replace_what_was_there(store: JobStore, insert: Insert) -> None:
    job_id = insert(approval={"required": True, "rows": 9, "by": None})

    store.change(job_id, actor="bob", what="approved", approval={"required": True, "rows": 9, "by": "bob"})
    job = store.change(job_id, actor="bob", what="reverted", findings={"state": "complete"})

    assert (job.approval, job.findings) == (
        {"required": True, "rows": 9, "by": "bob"},
        {"state": "complete"},
    )


def test_options_may_change_with_a_move(store: JobStore, insert: Insert) -> None:
    job_id = insert(state=JobState.PAUSED, options={"canary_messages": 5, "description": "d"})

    job = store.move(job_id, JobState.PENDING, actor="ann", options={"canary_messages": None})

    assert job.options == {"description": "d"}
    assert len(store.list_events(job_id)) == 2


def test_the_history_goes_on_from_a_number(store: JobStore, insert: Insert) -> None:
    job_id = insert()
    insert()
    store.begin_attempt(job_id)
    store.move(job_id, JobState.RUNNING, actor="refeed")
    store.move(job_id, JobState.PAUSED, actor="ann")

    all_of_it = store.list_events(job_id)

    assert [e.what for e in all_of_it] == ["created", "PENDING -> RUNNING", "RUNNING -> PAUSED"]
    assert store.list_events(job_id, after=all_of_it[0].number) == all_of_it[1:]
    assert store.list_events(job_id, after=all_of_it[-1].number) == []


def test_a_paused_job_may_lose_its_driver_and_stays_paused(store: JobStore, insert: Insert) -> None:
    job_id = insert()
    store.begin_attempt(job_id)
    store.move(job_id, JobState.RUNNING, actor="refeed", driver=Process(1, 2, "boot"))
    with pytest.raises(JobChangedError):
        store.forget_driver(job_id, actor="refeed", why="It idled.", expected_epoch=1)
    store.move(job_id, JobState.PAUSED, actor="ann")

    job = store.forget_driver(job_id, actor="refeed", why="It idled.", expected_epoch=1)

    assert (job.state, job.driver) == (JobState.PAUSED, None)
    assert store.list_events(job_id)[-1].why == "It idled."


def test_a_guard_sees_what_is_active_and_can_keep_a_job_from_being_made(store: JobStore, insert: Insert) -> None:
    ended, active = insert(), insert()
    store.move(ended, JobState.CANCELLED, actor="ann")
    seen: list[str] = []

    def refuse(jobs: Sequence[Job]) -> None:
        seen.extend(job.id for job in jobs)
        raise JobStateError("It overlaps.")

    with pytest.raises(JobStateError, match="overlaps"):
        insert(guard=refuse, idempotency=Idempotency("key", "digest"))

    assert seen == [active]
    assert [job.id for job in store.list_active(KIND)] == [active]
    # The key is free again as well.
    assert insert(idempotency=Idempotency("key", "other")) != active


def test_of_many_that_may_only_be_made_alone_one_is_made(url: str, store: JobStore) -> None:
    start = threading.Barrier(8)

    def alone(jobs: Sequence[Job]) -> None:
        if jobs:
            raise JobStateError("There is one.")

    def create(_: int) -> bool:
        other = open_store(url)
        try:
            start.wait(20)
            other.insert(new_job_id("bf"), KIND, {}, actor="ann", guard=alone)
        except JobStateError:
            return False
        else:
            return True
        finally:
            other.close()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 1


def test_a_line_of_the_history_says_by_type_and_fields_what_it_is_about(store: JobStore, insert: Insert) -> None:
    job_id = insert(approval={"required": False, "rows": 9, "by": None})
    store.begin_attempt(job_id)
    store.move(job_id, JobState.RUNNING, actor="refeed")
    store.change(job_id, actor="ann", what="as she likes", options={"rate": 2, "labels": {"a": "b"}})
    store.change(job_id, actor="bob", what="fine", approval={"required": True, "rows": 9, "by": "bob"})
    store.move(job_id, JobState.PAUSED, actor="ann", options={"rate": None})
    store.forget_driver(job_id, actor="refeed", why="It idled.", expected_epoch=1)
    store.move(job_id, JobState.SUCCEEDED, actor="refeed")
    store.set_verification(job_id, {"state": "complete"}, actor="refeed", epoch=1, again_seconds=None)
    store.change(job_id, actor="driver", what="one of two", findings={"sources": {}})

    events = store.list_events(job_id)

    assert [(event.type.value, event.fields) for event in events] == [
        ("created", {}),
        ("moved", {"from": "PENDING", "to": "RUNNING"}),
        ("changed", {"options": ["labels", "rate"]}),
        ("approved", {}),
        ("moved", {"from": "RUNNING", "to": "PAUSED", "options": ["rate"]}),
        ("driver_ended", {}),
        ("moved", {"from": "PAUSED", "to": "SUCCEEDED"}),
        ("found", {"state": "complete"}),
        ("found", {}),
    ]
    assert [event.has_changed("rate") for event in events[2:5]] == [True, False, True]
    assert events[4].is_move(to=JobState.PAUSED)
    assert not events[4].is_move(to=JobState.PAUSED, before=JobState.PENDING)
