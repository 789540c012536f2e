"""What every job store keeps to beside what the state machine holds, on SQLite and on a real PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import Engine, event

from jobs.store import Idempotency, JobFilter, JobStore, KeySession, SortOrder, StoredPlan, open_store
from model.change import ChangeRequest
from model.errors import (
    JobNotFoundError,
    JobStateError,
    RequestInvalidError,
    StreamExistsError,
    StreamNotFoundError,
    StreamStateError,
)
from model.job import JobState, new_job_id
from model.principal import STREAMS_OPERATE, Principal
from model.stream_options import StreamKind
from model.stream_record import Wanted
from tests.worlds.job_store import by_clock
from tests.years.clock import Clock

KIND = "backfill"
NOW = datetime.now(UTC)
AHEAD = timedelta(days=3652)
ANN = Principal("key:ann", frozenset({STREAMS_OPERATE}))


def test_jobs_survive_the_process_that_made_them(store, url, insert):
    job_id = insert({"query": "SELECT 1"})
    store.close()
    again = open_store(url)
    try:
        assert again.get(job_id).request == {"query": "SELECT 1"}
    finally:
        again.close()


def test_two_callers_names_and_keys_never_give_the_same_text(insert):
    assert insert(actor="a/b", idempotency=Idempotency("c", "x")) != insert(
        actor="a", idempotency=Idempotency("b/c", "y")
    )


@pytest.mark.parametrize(
    "given",
    [
        {"where": JobFilter(labels=(("", "x"),))},
        {"where": JobFilter(labels=(('a"b', "x"),))},
        # Before the year 1 in UTC, which RFC 3339 can write with an offset.
        {"where": JobFilter(created_since=datetime.fromisoformat("0001-01-01T00:00:00+10:00"))},
        {"order": [SortOrder("progress")]},
        {"order": [SortOrder("topic")], "after": ("x",)},
    ],
)
def test_a_list_that_makes_no_sense_is_refused(store, given):
    with pytest.raises(RequestInvalidError):
        store.list_jobs(limit=1, **given)


def test_a_text_that_no_store_can_keep_is_the_caller_s_fault(store, insert):
    with pytest.raises(RequestInvalidError):
        insert(actor="half \ud800")
    assert store.list_jobs(limit=10) == []


def test_more_messages_than_a_32_bit_number_holds_are_summed(store, insert):
    for published in (3_000_000_000, 5):
        store.set_progress(insert(), {"published": published})
    assert [count.sums for count in store.count_jobs(("published",), of_kind=KIND)] == [
        {"published": 3_000_000_005}
    ]


def test_a_change_of_a_job_and_its_line_in_the_history_are_stored_together_or_not_at_all(store, insert):
    job_id = insert()

    def fail(_connection, _cursor, statement, *_):
        if statement.startswith("INSERT INTO events "):
            raise InterruptedError

    event.listen(Engine, "before_cursor_execute", fail)
    try:
        for change in (
            lambda: insert({"query": "SELECT 2"}),
            lambda: store.move(job_id, JobState.CANCELLED, actor="ann"),
        ):
            with pytest.raises(InterruptedError):
                change()
    finally:
        event.remove(Engine, "before_cursor_execute", fail)
    assert [(job.id, job.state) for job in store.list_active()] == [(job_id, JobState.PENDING)]
    assert len(store.list_events(job_id)) == 1


def test_histories_go_on_from_a_number(store, insert):
    job_id = insert()
    insert()
    store.move(job_id, JobState.RUNNING, actor="refeed")
    launch(store, "backup")
    store.note_stream("backup", actor="ann", what="seen")
    for lines, read in (
        (store.list_events(job_id), lambda after: store.list_events(job_id, after=after)),
        (store.list_stream_events("backup"), lambda after: store.list_stream_events("backup", after=after)),
    ):
        assert [read(line.number) for line in lines] == [lines[1:], []]


def test_a_line_of_the_history_says_what_it_changed(store, insert):
    job_id = insert()
    store.change(job_id, actor="ann", what="changed", options={"rate": 2})
    store.move(job_id, JobState.PAUSED, actor="ann", options={"rate": None})
    created, changed, paused = store.list_events(job_id)
    assert [line.has_changed("rate") for line in (created, changed, paused)] == [False, True, True]
    assert (paused.is_move(to=JobState.PAUSED), changed.is_move(to=JobState.PAUSED)) == (True, False)
    assert paused.is_move(to=JobState.PAUSED, before=JobState.PENDING)
    assert not paused.is_move(to=JobState.PAUSED, before=JobState.RUNNING)


def test_a_refusal_says_what_stands_in_the_way(store):
    def refused(words, error, call):
        with pytest.raises(error, match=words):
            call()

    def end(wanted):
        return store.end_stream("backup", wanted, actor="ann")

    launch(store, "backup")
    refused("name backup is STARTING", StreamExistsError, lambda: launch(store, "backup"))
    end(Wanted.CANCELLED)
    pipeline = StreamKind.PIPELINE
    again = partial(store.launch_stream, "backup", pipeline, actor="ann")
    refused("Choose another name", StreamExistsError, again)
    change = partial(store.change_stream, "backup", actor="ann", options={"slots": 3})
    refused(r"backup is CANCELLED; it can be launched again\.$", StreamStateError, change)
    launch(store, "backup")
    store.take_streams("a", limit=1, lease_seconds=600)
    end(Wanted.DRAINED)
    refused("is ending", StreamStateError, change)
    end(Wanted.CANCELLED)
    refused("being cancelled", StreamStateError, lambda: end(Wanted.DRAINED))
    asked = ChangeRequest("stream", "backup", "drain", {}, "Drain.", 1, STREAMS_OPERATE, ANN)
    decide = partial(store.move, store.create_change(asked).id, JobState.CANCELLED, actor="bob")
    decide()
    refused("is CANCELLED", JobStateError, decide)


def test_what_is_short_lived_is_kept_until_it_is_purged(store):
    document = {"rows": 5, "samples": ["\u0000"]}
    plan = StoredPlan("pl_1", "digest", document, NOW + timedelta(minutes=15))
    store.put_short_lived(plan)
    store.put_short_lived(replace(plan, id="pl_2", expires_at=NOW - timedelta(seconds=1)))
    store.put_short_lived(KeySession("pl_1", "key", NOW + timedelta(hours=1)))
    assert store.purge_short_lived(NOW) == 1
    assert [store.find_short_lived(StoredPlan, key) for key in ("pl_1", "pl_2")] == [plan, None]
    assert store.delete_short_lived(KeySession, "pl_1")
    assert not store.delete_short_lived(KeySession, "pl_1")
    assert store.find_short_lived(StoredPlan, "pl_1") == plan


def test_the_audit_log_is_read_page_by_page(store):
    for number in range(5):
        store.append_audit("ann", "backfills.run", f"bf_{number}", "refused", "No such scope.")
    first = store.list_audit(2)
    assert [entry.target for entry in first + store.list_audit(9, first[-1].number)] == [
        f"bf_{number}" for number in (4, 3, 2, 1, 0)
    ]


# -- calls that are kept together


def launch(store: JobStore, name: str) -> None:
    store.launch_stream(name, StreamKind.BACKUP, actor="ann")


def test_calls_in_one_block_are_kept_together_or_not_at_all(store, insert):
    job_id = insert()

    def cancel_and_fail():
        with store.together():
            store.move(job_id, JobState.CANCELLED, actor="bob")
            launch(store, "backup")
            assert store.get_stream("backup").name == "backup"
            raise StreamNotFoundError

    with pytest.raises(StreamNotFoundError):
        cancel_and_fail()
    assert (store.get(job_id).state, store.list_streams()) == (JobState.PENDING, [])
    with store.together():
        store.move(job_id, JobState.CANCELLED, actor="bob")
        launch(store, "backup")
    assert store.get(job_id).state is JobState.CANCELLED
    assert [each.name for each in store.list_streams()] == ["backup"]


def test_a_rehearsed_call_leaves_nothing_behind_and_raises_what_keeps_it_from_being_made(store):
    store.rehearse(lambda: launch(store, "backup"))
    assert store.list_streams() == []
    with pytest.raises(StreamNotFoundError):
        store.rehearse(lambda: store.note_stream("backup", actor="ann", what="seen"))


def test_another_thread_is_no_part_of_the_block(store):
    with store.together():
        launch(store, "backup")
        with ThreadPoolExecutor(1) as other:
            assert other.submit(store.list_streams).result(20) == []


# -- what a clock that was years ahead has written


@pytest.fixture
def clock(store):
    clock = Clock(datetime(2026, 3, 2, tzinfo=UTC))
    by_clock(store, clock)
    with clock.is_everybody_s():
        yield clock


def test_a_source_that_is_held_for_years_is_nobody_s(store, clock):
    clock.jump(AHEAD)
    assert store.hold_source("folder", "gone", lease_seconds=30)
    clock.jump(-AHEAD)
    assert store.hold_source("folder", "b", lease_seconds=30)
    assert not store.hold_source("folder", "c", lease_seconds=30), "a lease of seconds is one"


def test_neither_a_stream_nor_a_key_is_held_for_years_and_a_webhook_waits_for_none(store, clock):
    launch(store, "backup")
    clock.jump(AHEAD)
    assert store.take_streams("gone", limit=1, lease_seconds=20)[0].is_held
    assert store.begin_create(KIND, Idempotency("key", "digest"), actor="ann") is None
    store.open_webhook("digest")
    clock.jump(-AHEAD)
    assert not store.get_stream("backup").is_held
    assert store.begin_create(KIND, Idempotency("key", "digest"), actor="ann") is None
    assert store.open_webhook("digest") == clock.now


def test_figures_of_the_future_go(store, clock):
    store.put_figures(clock.now + AHEAD, {"stream:a": {"messages": 1}})
    store.put_figures(clock.now, {"stream:a": {"messages": 2}})
    found = store.list_figures(["stream:a"], clock.now - AHEAD)
    assert [(point.at, point.figures) for point in found["stream:a"]] == [(clock.now, {"messages": 2})]


def test_ended_jobs_of_long_ago_are_forgotten_but_for_the_newest_by_any_clock(store, insert, monkeypatch):
    month = timedelta(days=30)
    ended = [insert() for _ in range(6)]
    for job_id in ended:
        store.move(job_id, JobState.CANCELLED, actor="ann")
    living = insert(idempotency=Idempotency("key", "digest"))
    other = store.insert(new_job_id("mg"), "merge", {}, actor="ann").id
    store.move(other, JobState.CANCELLED, actor="ann")
    assert store.forget_jobs("backfill", keep=0, keep_for=month) == 0
    monkeypatch.setattr(store._database, "now", lambda _: datetime.now(UTC) + timedelta(days=3650))
    assert store.forget_jobs("backfill", keep=100, keep_for=month) == 0, "a clock that is years ahead"
    assert store.forget_jobs("backfill", keep=3, keep_for=month) == 4
    assert store.forget_jobs("backfill", keep=3, keep_for=month) == 0
    assert [job.id for job in store.list_jobs(JobFilter(kinds=("backfill",)), limit=9)] == [living, *ended[:3:-1]]
    for job_id in ended[:4]:
        with pytest.raises(JobNotFoundError):
            store.get(job_id)
        assert store.list_last_events(limit=9, of=(None, job_id)) == [], "its history went with it"
    assert len(store.list_events(ended[4])) == 2
    assert store.get(other).state is JobState.CANCELLED
    assert insert(idempotency=Idempotency("key", "digest")) == living
