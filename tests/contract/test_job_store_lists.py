"""Filters, orders and pages of jobs, on every job store."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from backfill.run.progress import Progress
from jobs.store import Job, JobCount, JobFilter, JobStore, SortOrder, sort_key
from model.job import JobState, new_job_id

KIND = "backfill"
Insert = Callable[..., str]


@pytest.fixture
def jobs(store: JobStore, insert: Insert) -> list[Job]:
    """Four jobs, oldest first; the third one has ended."""
    made = [
        insert({"topic": "orders", "labels": {"env": "prod", "team": "a"}}),
        insert({"topic": "Orders"}, actor="bob", options={"labels": {"env": "test"}}),
        insert({"topic": "orders"}, actor="bob"),
        insert({"topic": "pays", "labels": {"env": "prod"}}, state=JobState.PAUSED),
    ]
    store.begin_attempt(made[2])
    store.move(made[2], JobState.RUNNING, actor="refeed")
    store.move(made[2], JobState.SUCCEEDED, actor="refeed")
    return [store.get(job_id) for job_id in made]


TOMORROW = datetime.now(UTC) + timedelta(days=1)
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        (JobFilter(), [0, 1, 2, 3]),
        (JobFilter(topic="orders"), [0, 2]),
        (JobFilter(topic="o' OR 1=1 --"), []),
        (JobFilter((JobState.PENDING, JobState.PAUSED)), [0, 1, 3]),
        (JobFilter((JobState.SUCCEEDED,), "orders"), [2]),
        (JobFilter((JobState.SUCCEEDED,), "pays"), []),
        (JobFilter(labels=(("env", "prod"),)), [0, 3]),
        (JobFilter(labels=(("team", "a"), ("env", "prod"))), [0]),
        (JobFilter(labels=(("it's", "x"),)), []),
        (JobFilter(created_since=LONG_AGO), [0, 1, 2, 3]),
        (JobFilter(created_since=TOMORROW), []),
        (JobFilter(ended_since=LONG_AGO), [2]),
        (JobFilter(ended_since=TOMORROW), []),
    ],
)
def test_everything_that_is_asked_for_holds_for_what_is_listed(
    store: JobStore, jobs: list[Job], where: JobFilter, numbers: list[int]
) -> None:
    found = store.list_jobs(KIND, limit=10, where=where, order=[SortOrder("id")])
    assert [job.id for job in found] == [jobs[number].id for number in numbers]


def test_times_are_compared_to_the_microsecond(store: JobStore, jobs: list[Job]) -> None:
    at = jobs[1].created_at
    since = store.list_jobs(KIND, limit=9, where=JobFilter(created_since=at))
    later = store.list_jobs(KIND, limit=9, where=JobFilter(created_since=at + timedelta(microseconds=1)))

    assert jobs[1].id in [job.id for job in since]
    assert {job.id for job in later} == {job.id for job in jobs if job.created_at > at}


def test_changed_labels_are_what_is_looked_for(store: JobStore, jobs: list[Job]) -> None:
    store.change(jobs[0].id, actor="ann", what="changed", options={"labels": {"env": "test"}})

    found = store.list_jobs(KIND, limit=9, where=JobFilter(labels=(("env", "test"),)))

    assert {job.id for job in found} == {jobs[0].id, jobs[1].id}


@pytest.mark.parametrize(
    "order",
    [
        [],
        [SortOrder("id")],
        [SortOrder("topic")],
        [SortOrder("topic", descending=True), SortOrder("created_by")],
        [SortOrder("state"), SortOrder("created_at", descending=True)],
        [SortOrder("created_by", descending=True), SortOrder("id")],
    ],
)
def test_pages_in_any_order_have_every_job_once(store: JobStore, insert: Insert, order: list[SortOrder]) -> None:
    for number in range(12):
        insert({"topic": "ab"[number % 2]}, actor="xyz"[number % 3])
    pages: list[Job] = []
    after = None
    while page := store.list_jobs(KIND, limit=5, order=order, after=after):
        pages += page
        after = sort_key(page[-1], order)

    assert pages == store.list_jobs(KIND, limit=100, order=order)
    assert len({job.id for job in pages}) == 12
    keys = [sort_key(job, order) for job in pages]
    for place, part in reversed(list(enumerate(order or [SortOrder("id", descending=True)]))):
        keys.sort(key=lambda key, place=place: key[place], reverse=part.descending)
    assert [sort_key(job, order) for job in pages] == keys


def test_a_page_goes_on_behind_its_last_job_whatever_is_made_meanwhile(store: JobStore, insert: Insert) -> None:
    made = sorted(insert() for _ in range(4))
    first = store.list_jobs(KIND, limit=2)
    insert()

    rest = store.list_jobs(KIND, limit=9, after=sort_key(first[-1], []))

    assert [job.id for job in first + rest] == made[::-1]


def test_jobs_and_their_messages_are_counted_by_kind_and_state(store: JobStore, jobs: list[Job]) -> None:
    merge = store.insert(new_job_id("mg"), "merge", {}, actor="ann")
    for job, published in zip(jobs, (1, 20, 300, 0), strict=True):
        store.set_progress(job.id, Progress(selected=5, published=published, failed=published // 10).to_json())

    counts = {(count.kind, count.state): count for count in store.count_jobs(("published", "failed"))}

    assert counts == {
        (KIND, JobState.PENDING): JobCount(KIND, JobState.PENDING, 2, {"published": 21, "failed": 2}),
        (KIND, JobState.SUCCEEDED): JobCount(KIND, JobState.SUCCEEDED, 1, {"published": 300, "failed": 30}),
        (KIND, JobState.PAUSED): JobCount(KIND, JobState.PAUSED, 1, {"published": 0, "failed": 0}),
        ("merge", JobState.PENDING): JobCount("merge", merge.state, 1, {"published": 0, "failed": 0}),
    }
