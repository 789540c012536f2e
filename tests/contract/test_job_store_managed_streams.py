"""Streams as records in every job store: one living stream a name, one agent a stream, and what each may do."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jobs.store import Idempotency, JobStore, stream_rows
from model.errors import (
    IdempotencyKeyReusedError,
    LeaseLostError,
    RequestInvalidError,
    StreamChangedError,
    StreamExistsError,
    StreamNotFoundError,
    StreamStateError,
)
from model.fault import FaultRecord
from model.stream_options import StreamKind
from model.stream_record import StreamEventType, StreamHome, StreamRecord, StreamState, Wanted
from tests.work import Work, counted

LONG = 600.0
BACKUP = StreamKind.BACKUP
Launch = Callable[..., StreamRecord]


@pytest.fixture
def launch(store: JobStore) -> Launch:
    def launch(name: str = "backup", kind: StreamKind = BACKUP, **given: Any) -> StreamRecord:
        return store.launch_stream(name, kind, actor="ann", **given)

    return launch


def take(store: JobStore, agent: str = "a", *, limit: int = 10, lease_seconds: float = LONG) -> list[str]:
    return [each.name for each in store.take_streams(agent, limit=limit, lease_seconds=lease_seconds)]


def run(store: JobStore, name: str = "backup", agent: str = "a") -> StreamRecord:
    take(store, agent)
    return store.report_stream(name, agent, StreamState.RUNNING, instance_id="in_1", home=StreamHome("m", "/h"))


def lines(store: JobStore, name: str = "backup") -> list[tuple[int, str, str]]:
    return [(event.generation, event.actor, event.what) for event in store.list_stream_events(name)]


def snapshot_of(store: JobStore, name: str) -> str:
    """Return the id of a whole snapshot of a backup that has ended."""
    store.launch_stream(name, BACKUP, actor="ann")
    made = store.create_snapshot(name, with_source=False, actor="ann")
    store.complete_snapshot(
        made.id,
        made.place,
        sources=[],
        format_version=1,
        taken_at=made.created_at,
        size_bytes=1,
        seconds_paused=0.0,
        known_messages=0,
    )
    store.end_stream(name, Wanted.CANCELLED, actor="ann")
    return made.id


def test_the_record_names_who_launched_this_generation(store: JobStore) -> None:
    first = store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    assert (first.launched_by, first.launched_at) == ("ann", first.created_at)
    store.end_stream("backup", Wanted.DRAINED, actor="ann")
    again = store.launch_stream("backup", StreamKind.BACKUP, actor="bob")
    assert (again.created_by, again.created_at) == ("ann", first.created_at)
    assert again.launched_by == "bob"
    assert again.launched_at > first.launched_at
    assert [each.launched_by for each in (store.get_stream("backup"), *store.list_streams())] == ["bob", "bob"]


def test_what_was_launched_is_kept_as_it_was_asked_for(store: JobStore, launch: Launch) -> None:
    made = launch(release="1.2", options={"slots": 4}, why="first day")

    assert made == store.get_stream("backup")
    assert (made.kind, made.release, made.options, made.snapshot_id) == (BACKUP, "1.2", {"slots": 4}, None)
    assert (made.wanted, made.state, made.is_living) == (Wanted.RUNNING, StreamState.STARTING, True)
    assert (made.generation, made.version, made.instance_id, made.agent) == (1, 1, None, None)
    assert (made.created_by, made.created_at) == ("ann", made.changed_at)
    assert made.parsed_options().environment() == {"REFEED_BACKUP_SLOTS": "4"}
    (event,) = store.list_stream_events("backup")
    assert (event.type, event.what, event.why, event.at) == ("launched", "launched", "first day", made.created_at)


def test_streams_are_listed_by_name_and_one_that_never_was_is_not_found(store: JobStore, launch: Launch) -> None:
    launch("pipeline-b", StreamKind.PIPELINE)
    launch("backup")

    assert [each.name for each in store.list_streams()] == ["backup", "pipeline-b"]
    calls: Sequence[Callable[[], object]] = (
        lambda: store.get_stream("nobody"),
        lambda: store.list_stream_events("nobody"),
        lambda: store.end_stream("nobody", Wanted.DRAINED, actor="ann"),
        lambda: store.change_stream("nobody", actor="ann", options={}),
        lambda: store.report_stream("nobody", "a", StreamState.RUNNING),
        lambda: store.note_stream("nobody", actor="ann", what="looked"),
    )
    for call in calls:
        with pytest.raises(StreamNotFoundError):
            call()


@pytest.mark.parametrize("kind", list(StreamKind))
def test_the_name_of_a_living_stream_is_taken_whatever_the_kind(
    store: JobStore, launch: Launch, kind: StreamKind
) -> None:
    launch()
    run(store)
    with pytest.raises(StreamExistsError, match="RUNNING"):
        launch(kind=kind)
    assert store.get_stream("backup").generation == 1


def test_a_stream_that_ended_is_launched_again_as_its_next_generation(store: JobStore, launch: Launch) -> None:
    first = launch(options={"slots": 4}, snapshot_id=snapshot_of(store, "other"))
    run(store)
    store.end_stream("backup", Wanted.DRAINED, actor="bob")
    store.report_stream("backup", "a", StreamState.DRAINED, error=FaultRecord("drain_timed_out", "3 left."))

    again = launch(options={"slots": 2})

    assert (again.generation, again.state, again.wanted) == (2, StreamState.STARTING, Wanted.RUNNING)
    assert (again.options, again.snapshot_id, again.error, again.instance_id) == ({"slots": 2}, None, None, None)
    assert (again.home, again.created_at) == (StreamHome("m", "/h"), first.created_at), "where its state may lie"
    assert again.version > first.version
    assert lines(store)[-2:] == [(1, "agent", "RUNNING -> DRAINED"), (2, "ann", "launched")]
    assert take(store) == ["backup"]


def test_the_state_of_a_stream_that_ended_is_for_no_other_kind(store: JobStore, launch: Launch) -> None:
    launch()
    store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    with pytest.raises(StreamExistsError, match="choose another name"):
        launch(kind=StreamKind.PIPELINE)


def test_of_many_that_launch_one_name_at_once_one_does(store: JobStore) -> None:
    start = threading.Barrier(4)

    def launch_at_once(number: int) -> int:
        start.wait(20)
        try:
            return store.launch_stream("backup", BACKUP, actor=f"ann-{number}").generation
        except StreamExistsError:
            return 0

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(launch_at_once, range(4))) == [0, 0, 0, 1]


def test_a_guard_sees_the_living_and_keeps_a_launch_from_being_made(store: JobStore, launch: Launch) -> None:
    launch("backup")
    launch("old")
    store.end_stream("old", Wanted.CANCELLED, actor="ann")

    def refuse(living: Sequence[StreamRecord]) -> None:
        assert [each.name for each in living] == ["backup"]
        raise RequestInvalidError

    with pytest.raises(RequestInvalidError):
        launch("backup-2", guard=refuse)
    assert [each.name for each in store.list_streams()] == ["backup", "old"]


def test_a_launch_with_the_same_key_gives_back_the_stream_that_it_made(store: JobStore, launch: Launch) -> None:
    key = Idempotency("k", "digest")
    made = launch(idempotency=key)

    assert launch(idempotency=Idempotency("k", "digest")) == made
    with pytest.raises(IdempotencyKeyReusedError):
        launch(idempotency=Idempotency("k", "another"))
    with pytest.raises(StreamExistsError):
        store.launch_stream("backup", BACKUP, actor="bob", idempotency=key)
    store.end_stream("backup", Wanted.DRAINED, actor="ann")
    late = launch(idempotency=key)
    assert (late.generation, late.state) == (1, StreamState.DRAINED), "a launch that comes twice undoes no drain"
    assert launch(idempotency=Idempotency("another", "digest")).generation == 2


def test_what_one_agent_holds_no_other_one_gets_before_the_lease_has_gone(store: JobStore, launch: Launch) -> None:
    launch()

    assert take(store) == ["backup"]
    assert take(store) == [], "what it holds is not new"
    assert take(store, "b") == []
    assert [each.name for each in store.list_streams(agent="a")] == ["backup"]
    assert store.get_stream("backup").is_held
    store.renew_streams("a", -1)
    assert (store.get_stream("backup").is_held, store.list_agents()) == (False, ["a"])
    assert take(store, "b") == ["backup"]
    assert store.list_streams(agent="a") == []


def test_a_renewed_lease_is_held_and_a_released_one_is_anybody_s(store: JobStore, launch: Launch) -> None:
    launch("one")
    launch("two")
    take(store, lease_seconds=-1)
    store.renew_streams("a", LONG)
    assert take(store, "b") == []

    store.release_streams("b")
    assert take(store, "b") == [], "only its own are let go"
    store.release_streams("a", "one")
    assert take(store, "b") == ["one"]
    store.release_streams("a")
    assert take(store, "b") == ["two"]


def test_an_agent_holds_no_more_streams_than_it_has_places(store: JobStore, launch: Launch) -> None:
    for name in ("one", "three", "two"):
        launch(name)

    assert take(store, limit=2) == ["one", "three"]
    assert take(store, limit=2) == []
    assert take(store, "b", limit=2) == ["two"]


def test_a_stream_that_ended_needs_no_agent(store: JobStore, launch: Launch) -> None:
    launch()
    store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    assert take(store) == []


def test_what_an_agent_reports_is_kept_without_a_new_version(store: JobStore, launch: Launch) -> None:
    launch()
    running = run(store)
    fault = FaultRecord("storage_full", "The disk is full.")
    waiting = store.report_stream("backup", "a", StreamState.WAITING, instance_id="in_1", error=fault)

    assert (running.state, running.instance_id, running.home) == (
        StreamState.RUNNING,
        "in_1",
        StreamHome("m", "/h"),
    )
    assert (waiting.state, waiting.error, waiting.home) == (StreamState.WAITING, fault, running.home)
    assert (waiting.version, waiting.changed_at) == (1, running.changed_at)
    assert store.report_stream("backup", "a", StreamState.RUNNING).error is None
    events = store.list_stream_events("backup")
    assert [(event.type, dict(event.fields)) for event in events[1:]] == [
        ("started", {"instance_id": "in_1"}),
        ("moved", {"from": "STARTING", "to": "RUNNING"}),
        ("moved", {"from": "RUNNING", "to": "WAITING"}),
        ("moved", {"from": "WAITING", "to": "RUNNING"}),
    ]
    assert events[3].why == "storage_full: The disk is full."
    assert store.list_stream_events("backup", after=events[3].number) == events[4:]


def test_an_agent_that_lost_its_lease_reports_nothing(store: JobStore, launch: Launch) -> None:
    launch()
    run(store)
    store.renew_streams("a", -1)
    take(store, "b")

    with pytest.raises(LeaseLostError):
        store.report_stream("backup", "a", StreamState.FAILED)
    assert store.get_stream("backup").state is StreamState.RUNNING


@pytest.mark.parametrize(
    ("wanted", "end"),
    [(Wanted.DRAINED, StreamState.DRAINED), (Wanted.CANCELLED, StreamState.CANCELLED)],
)
def test_a_stream_that_runs_ends_when_its_agent_says_so(
    store: JobStore, launch: Launch, wanted: Wanted, end: StreamState
) -> None:
    launch()
    run(store)
    asked = store.end_stream("backup", wanted, actor="bob", timeout_seconds=30, why="night")

    assert (asked.wanted, asked.drain_timeout_seconds, asked.state) == (wanted, 30, StreamState.RUNNING)
    assert (asked.version, asked.is_living, asked.agent) == (2, True, "a")
    ended = store.report_stream("backup", "a", end)
    assert (ended.state, ended.is_living, ended.agent, ended.is_held) == (end, False, None, False)
    with pytest.raises(StreamStateError):
        store.end_stream("backup", wanted, actor="bob")
    with pytest.raises(LeaseLostError):
        store.report_stream("backup", "a", StreamState.RUNNING)


def test_a_stream_that_was_never_started_ends_at_once(store: JobStore, launch: Launch) -> None:
    launch("one")
    assert store.end_stream("one", Wanted.DRAINED, actor="ann").state is StreamState.DRAINED

    launch("two")
    take(store)
    held = store.end_stream("two", Wanted.CANCELLED, actor="ann")
    assert held.state is StreamState.STARTING, "its agent may be starting it at this moment"
    store.renew_streams("a", -1)

    launch("three")
    take(store, lease_seconds=-1)
    gone = store.end_stream("three", Wanted.CANCELLED, actor="ann")
    assert (gone.state, gone.agent) == (StreamState.CANCELLED, None), "the agent is gone and had started nothing"


def test_a_drain_may_become_longer_or_a_cancel_and_no_cancel_becomes_a_drain(
    store: JobStore, launch: Launch
) -> None:
    launch()
    run(store)
    store.end_stream("backup", Wanted.DRAINED, actor="ann", timeout_seconds=10)
    assert store.end_stream("backup", Wanted.DRAINED, actor="ann", timeout_seconds=60).drain_timeout_seconds == 60
    with pytest.raises(StreamStateError, match="DRAINED"):
        store.report_stream("backup", "a", StreamState.CANCELLED)
    store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    with pytest.raises(StreamStateError, match="nothing is left to drain"):
        store.end_stream("backup", Wanted.DRAINED, actor="ann")


def test_a_stream_that_is_to_run_has_not_ended_whatever_its_agent_says(store: JobStore, launch: Launch) -> None:
    launch()
    run(store)
    for state in (StreamState.DRAINED, StreamState.CANCELLED, StreamState.NOT_REPORTING):
        with pytest.raises(StreamStateError):
            store.report_stream("backup", "a", state)
    assert store.report_stream("backup", "a", StreamState.FAILED).is_living


def test_options_are_changed_one_by_one_at_the_version_that_was_read(store: JobStore, launch: Launch) -> None:
    launch(options={"slots": 4, "batch_seconds": 2.0})
    changed = store.change_stream(
        "backup", actor="bob", options={"batch_seconds": None, "batch_bytes": 5_000_000}, expected_version=1
    )

    assert (changed.options, changed.version) == ({"slots": 4, "batch_bytes": 5_000_000}, 2)
    with pytest.raises(StreamChangedError):
        store.change_stream("backup", actor="bob", options={}, expected_version=1)
    with pytest.raises(StreamChangedError):
        store.end_stream("backup", Wanted.DRAINED, actor="bob", expected_version=1)
    assert store.change_stream("backup", actor="bob", options={}, release="2.0").release == "2.0"
    assert [(event.what, dict(event.fields)) for event in store.list_stream_events("backup")[1:]] == [
        ("changed batch_bytes, batch_seconds", {"options": ["batch_bytes", "batch_seconds"]}),
        ("changed to release 2.0", {"options": [], "release": "2.0"}),
    ]


def test_a_stream_that_is_to_end_can_t_be_changed(store: JobStore, launch: Launch) -> None:
    launch()
    run(store)
    store.end_stream("backup", Wanted.DRAINED, actor="ann")
    with pytest.raises(StreamStateError, match="is to end"):
        store.change_stream("backup", actor="ann", options={"slots": 3})
    store.report_stream("backup", "a", StreamState.DRAINED)
    with pytest.raises(StreamStateError, match=r"backup is DRAINED; it can be launched again\.$"):
        store.change_stream("backup", actor="ann", options={"slots": 3})


def test_a_note_is_a_line_of_the_history_and_changes_nothing(store: JobStore, launch: Launch) -> None:
    before = launch()
    store.note_stream("backup", actor="agent", what="paused for 0.4 s", snapshot_id="sn_1")

    assert store.get_stream("backup") == before
    event = store.list_stream_events("backup")[-1]
    assert (event.type, event.what, dict(event.fields)) == ("noted", "paused for 0.4 s", {"snapshot_id": "sn_1"})


def test_what_agents_write_and_people_ask_at_once_is_all_kept(store: JobStore, launch: Launch) -> None:
    launch()
    take(store)

    def change(number: int) -> None:
        if number % 2:
            store.change_stream("backup", actor="ann", options={"slots": number})
        else:
            store.report_stream("backup", "a", StreamState.RUNNING, instance_id=f"in_{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, range(12)))
    found = store.get_stream("backup")
    assert (found.version, found.state) == (7, StreamState.RUNNING)
    assert sum(event.type == "changed" for event in store.list_stream_events("backup")) == 6


def test_of_a_stream_that_dies_for_years_the_newest_lines_and_its_launch_are_kept(
    store: JobStore, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_rows, "KEPT_LINES", 20)
    launch()
    store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    launch("shop", why="another stream")
    before = lines(store, "shop")
    launch(why="again")
    for number in range(60):
        store.note_stream("backup", actor="agent", what=f"died {number}")
    noted = [(2, "agent", f"died {number}") for number in range(40, 60)]
    assert lines(store) == [(2, "ann", "launched"), *noted]
    assert store.get_stream("backup").launched_by == "ann"
    assert lines(store, "shop") == before


def test_a_look_at_streams_reads_nothing_of_their_histories(store: JobStore, launch: Launch) -> None:
    def look() -> Work:
        with counted(store) as work:
            store.list_streams()
            assert store.list_stream_events("backup", generation=2, kind=StreamEventType.STARTED) == []
        return work

    for _ in range(2):
        launch()
        store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    first = look()
    for number in range(300):
        store.note_stream("backup", actor="agent", what=f"died {number}")
    after = look()
    assert (after.statements, after.rows) == (first.statements, first.rows)
    assert after.instructions <= first.instructions + 200, "not one for each line"
