"""Plans, keys, the audit log and the outbox, on every job store."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from jobs.store import ApiKey, JobStore
from model.errors import JobNotFoundError, StoreError
from model.job import JobState

KIND = "backfill"
NOW = datetime.now(UTC)
Insert = Callable[..., str]

KEY = ApiKey(
    id="key_1",
    prefix="rf_abc",
    digest="d" * 64,
    name="nightly",
    scopes=("backfills.read", "backfills.run"),
    topics=("orders",),
    created_at=NOW,
    expires_at=NOW + timedelta(days=90),
)


@pytest.fixture
def end(store: JobStore, insert: Insert) -> Callable[..., str]:
    """Return what makes a job that ran and ended."""

    def end(state: JobState = JobState.SUCCEEDED) -> str:
        job_id = insert()
        store.begin_attempt(job_id)
        store.move(job_id, JobState.RUNNING, actor="refeed")
        return store.move(job_id, state, actor="refeed").id

    return end


def test_a_key_is_found_by_its_prefix(store: JobStore) -> None:
    every_topic = replace(KEY, id="key_2", prefix="rf_xyz", topics=None, created_at=NOW + timedelta(seconds=1))
    store.insert_key(KEY)
    store.insert_key(every_topic)

    assert store.find_key("rf_abc") == KEY
    assert store.find_key("rf_") is None
    assert store.list_keys() == [KEY, every_topic]
    with pytest.raises(StoreError):
        store.insert_key(replace(KEY, id="key_3"))


def test_a_key_is_revoked_once_and_stays(store: JobStore) -> None:
    store.insert_key(KEY)

    assert store.revoke_key("key_1", NOW)
    assert store.revoke_key("key_1", NOW + timedelta(hours=1))
    assert not store.revoke_key("key_none", NOW)

    assert store.find_key("rf_abc") == replace(KEY, revoked_at=NOW)


def test_a_key_s_last_use_is_kept_to_the_minute(store: JobStore) -> None:
    store.insert_key(KEY)

    for seconds in (0, 30, -300):
        store.touch_key("key_1", NOW + timedelta(seconds=seconds))
    assert store.list_keys()[0].last_used_at == NOW
    store.touch_key("key_1", NOW + timedelta(seconds=61))
    assert store.list_keys()[0].last_used_at == NOW + timedelta(seconds=61)


def test_an_end_is_told_once(store: JobStore, insert: Insert, end: Insert) -> None:
    first, second = end(), end(JobState.FAILED)
    insert()

    assert [job.id for job in store.list_unnotified(KIND, 9)] == [first, second]
    # Others are kept from them while somebody tells.
    assert store.list_unnotified(KIND, 9) == []
    store.mark_notified(first, NOW, news_at=store.get(first).news_at)

    assert store.get(first).notified_at == NOW
    assert store.get(second).notified_at is None
    assert len(store.list_events(first)) == 3


def test_an_end_that_could_not_be_told_is_tried_again_later(store: JobStore, end: Insert) -> None:
    job_id = end()
    assert [job.id for job in store.list_unnotified(KIND, 9, hold_seconds=-1)] == [job_id]
    # Whoever held it died.
    assert [job.id for job in store.list_unnotified(KIND, 9)] == [job_id]

    store.mark_notified(job_id, NOW, news_at=store.get(job_id).news_at, error="503")

    assert store.list_unnotified(KIND, 9) == []
    assert store.get(job_id).notified_at is None
    with pytest.raises(JobNotFoundError):
        store.mark_notified("bf_none", NOW, news_at=None)


def test_a_job_that_ends_again_is_told_again(store: JobStore, end: Insert) -> None:
    job_id = end(JobState.FAILED)
    store.mark_notified(job_id, NOW, news_at=store.get(job_id).news_at)
    store.move(job_id, JobState.PENDING, actor="ann")
    assert store.list_unnotified(KIND, 9) == []

    store.move(job_id, JobState.CANCELLED, actor="ann")

    assert [job.id for job in store.list_unnotified(KIND, 9)] == [job_id]


def test_an_end_that_comes_while_an_earlier_one_is_told_is_told_too(store: JobStore, end: Insert) -> None:
    job_id = end(JobState.FAILED)
    (told,) = store.list_unnotified(KIND, 9)
    # Whoever hears of it retries it before the call is answered.
    store.move(job_id, JobState.PENDING, actor="ann")
    store.mark_notified(job_id, NOW, news_at=told.news_at)
    store.move(job_id, JobState.CANCELLED, actor="ann")
    store.mark_notified(job_id, NOW, news_at=told.news_at, error="503")

    assert [job.id for job in store.list_unnotified(KIND, 9)] == [job_id]


def test_an_ended_job_is_verified_until_there_is_nothing_to_wait_for(
    store: JobStore, insert: Insert, end: Insert
) -> None:
    job_id = end()
    never_ran = insert()
    store.move(never_ran, JobState.CANCELLED, actor="ann")

    assert [job.id for job in store.list_unverified(KIND, 9)] == [job_id]
    assert store.list_unverified(KIND, 9) == []
    store.set_verification(job_id, {"state": "pending"}, actor="refeed", epoch=1, again_seconds=-1)
    assert [job.findings for job in store.list_unverified(KIND, 9)] == [{"state": "pending"}]
    store.set_verification(job_id, {"state": "pending", "landed": 5}, actor="refeed", epoch=1, again_seconds=-1)
    store.set_verification(job_id, {"state": "complete"}, actor="refeed", epoch=1, again_seconds=None)

    assert store.list_unverified(KIND, 9) == []
    assert store.get(job_id).findings == {"state": "complete"}
    assert [e.what for e in store.list_events(job_id)][-2:] == ["verification pending", "verification complete"]


def test_a_verdict_on_an_earlier_attempt_is_none(store: JobStore, end: Insert) -> None:
    job_id = end(JobState.FAILED)
    store.move(job_id, JobState.PENDING, actor="ann")
    store.begin_attempt(job_id)

    store.set_verification(job_id, {"state": "incomplete"}, actor="refeed", epoch=1, again_seconds=None)

    assert store.get(job_id).findings is None


def test_a_wait_for_a_person_is_news_until_somebody_has_decided(store: JobStore, insert: Insert) -> None:
    job_id = insert()
    store.move(job_id, JobState.RUNNING, actor="refeed")
    assert store.list_unnotified(KIND, 9) == []

    store.move(job_id, JobState.PAUSED, actor="driver", awaits_person=True)

    (waiting,) = store.list_unnotified(KIND, 9, hold_seconds=-1)
    assert (waiting.id, waiting.news_at is not None) == (job_id, True)
    store.move(job_id, JobState.RUNNING, actor="ann")
    assert store.list_unnotified(KIND, 9) == []
    # What a person paused is no news to people.
    store.move(job_id, JobState.PAUSED, actor="ann")
    assert (store.list_unnotified(KIND, 9), store.get(job_id).news_at) == ([], None)


def test_a_job_that_needs_an_approval_is_news_until_it_has_one(store: JobStore, insert: Insert) -> None:
    wanted = {"required": True, "above_rows": 1, "rows": 2, "by": None, "at": None}
    job_id = insert(approval=wanted)
    store.move(job_id, JobState.PAUSED, actor="ann")
    assert [job.id for job in store.list_unnotified(KIND, 9, hold_seconds=-1)] == [job_id]

    store.change(job_id, actor="bob", what="approved", approval={**wanted, "by": "bob"})

    assert store.list_unnotified(KIND, 9) == []
    assert store.get(job_id).news_at is None


def test_a_webhook_is_told_from_when_it_was_first_set(store: JobStore, end: Insert) -> None:
    old = end()
    since = store.open_webhook("digest")
    new = end()

    assert [job.id for job in store.list_unnotified(KIND, 9, since=since)] == [new]
    assert store.open_webhook("digest") == since
    assert store.open_webhook("another") > since
    assert store.get(old).notified_at is None
