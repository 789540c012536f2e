"""Snapshots of streams, and streams that are put back, as records in every job store."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.store import DELETION, SNAPSHOT, Idempotency, JobStore
from model.errors import (
    JobChangedError,
    SnapshotRefusedError,
    StreamNotFoundError,
    StreamSnapshotNotFoundError,
    StreamStateError,
)
from model.fault import FaultRecord
from model.stream_options import StreamKind
from model.stream_record import StreamState, Wanted
from model.stream_snapshot import (
    RestoreState,
    RestoreStep,
    SnapshotPlace,
    SnapshotReason,
    SnapshotRecord,
    SnapshotState,
    SourceSnapshot,
)
from tests.worlds.restores import list_running_restores
from tests.worlds.snapshot_jobs import begin_snapshot, complete_snapshot, end_deletion, fail_snapshot

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOURCE = SourceSnapshot("refeed-backup.orders", "refeed.sn_1.refeed-backup.orders", "orders", NOON)
COMPLETED: dict[str, Any] = {
    "sources": [
        SOURCE,
        SourceSnapshot("refeed-backup.b", "refeed.sn_1.refeed-backup.b", "b", NOON + timedelta(1)),
    ],
    "format_version": 1,
    "taken_at": NOON - timedelta(days=1),
    "size_bytes": 3_000_000_000,
    "seconds_paused": 0.125,
    "known_messages": 5_000_000_000,
}


@pytest.fixture(autouse=True)
def launched(store: JobStore) -> None:
    store.launch_stream("backup", StreamKind.BACKUP, actor="ann", release="1.2")


def create(store: JobStore, stream: str = "backup", **given: Any) -> SnapshotRecord:
    return store.create_snapshot(stream, **{"with_source": True, "actor": "ann"} | given)


def complete(store: JobStore) -> SnapshotRecord:
    return complete_snapshot(store, create(store).id, **COMPLETED)


def test_a_snapshot_is_pending_until_it_is_whole(store: JobStore) -> None:
    made = create(store)
    assert (made.state, made.stream, made.kind, made.release) == (SnapshotState.PENDING, "backup", "backup", "1.2")
    assert (made.reason, made.created_by, made.with_source) == (SnapshotReason.MANUAL, "ann", True)
    assert (made.sources, made.expire_time, made.size_bytes, made.place) == ((), None, None, None)
    place = SnapshotPlace("here", "/home/snapshots/backup/sn")
    job = begin_snapshot(store, made.id, place)
    assert store.get_snapshot(made.id) == made
    done = complete_snapshot(store, made.id, job, **COMPLETED)
    assert done == store.get_snapshot(made.id)
    assert (done.state, done.sources, done.place) == (SnapshotState.COMPLETED, tuple(COMPLETED["sources"]), place)
    assert (done.size_bytes, done.known_messages, done.seconds_paused) == (3_000_000_000, 5_000_000_000, 0.125)
    assert (done.taken_at, done.format_version) == (COMPLETED["taken_at"], 1)
    assert done.finished_at >= made.created_at
    assert done.expire_time == NOON
    assert done.oldest_publish_time == NOON - timedelta(days=7)
    assert done.has_source(NOON - timedelta(seconds=1))
    assert not done.has_source(NOON)


def test_only_living_streams_have_snapshots(store: JobStore) -> None:
    with pytest.raises(StreamNotFoundError, match=r"launched as 'backups'\. Did you mean backup\?"):
        create(store, "backups")
    with pytest.raises(StreamNotFoundError):
        create(store, "no\0body")
    store.end_stream("backup", Wanted.DRAINED, actor="ann")
    with pytest.raises(StreamStateError, match="DRAINED"):
        create(store)


def test_of_two_runs_the_one_that_noted_its_place_last_counts(store: JobStore) -> None:
    made, first, second = create(store), SnapshotPlace("here", "/sn.1"), SnapshotPlace("there", "/sn.2")
    begun = begin_snapshot(store, made.id)
    earlier = store.note_step(begun, {"place": first})
    with pytest.raises(JobChangedError):
        store.note_step(begun, {"place": second})
    later = store.note_step(earlier, {"place": second})
    with pytest.raises(JobChangedError):
        complete_snapshot(store, made.id, earlier)
    with pytest.raises(JobChangedError):
        fail_snapshot(store, made.id, FaultRecord("x", "y"), earlier)
    done = complete_snapshot(store, made.id, later)
    assert (done.state, done.place) == (SnapshotState.COMPLETED, second)
    with pytest.raises(JobChangedError):
        fail_snapshot(store, made.id, FaultRecord("x", "y"), later)


def test_a_snapshot_that_failed_gets_a_deletion_where_something_of_it_is_left(store: JobStore) -> None:
    made, error = create(store), FaultRecord("x", "y")
    job = begin_snapshot(store, made.id, SnapshotPlace("here", "/sn.1"))
    failed = fail_snapshot(store, made.id, error, job)
    fail_snapshot(store, create(store).id, error)
    (deletion,) = store.list_step_jobs([DELETION])
    assert deletion.request["snapshot_id"] == made.id
    end_deletion(store)
    assert store.get_snapshot(made.id) == replace(failed, place=None)
    assert len(store.list_snapshots()) == 2


def test_a_deletion_that_was_given_up_leaves_the_snapshot_and_says_why(store: JobStore) -> None:
    done, error = complete(store), FaultRecord("x", "y")
    store.delete_snapshot(done.id)
    end_deletion(store, error)
    found = store.get_snapshot(done.id)
    assert (found.state, found.error) == (SnapshotState.DELETING, error)
    assert store.delete_snapshot(done.id).error is None
    assert len(store.list_step_jobs([DELETION])) == 1


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_snapshot_that_is_to_be_deleted_does_not_become_whole_or_failed(store, is_begun):
    made, place = create(store), SnapshotPlace("here", "/sn.1")
    job = begin_snapshot(store, made.id, place) if is_begun else None
    deleting = store.delete_snapshot(made.id)
    assert (deleting.state, deleting.place) == (SnapshotState.DELETING, place if is_begun else None)
    assert store.list_step_jobs([SNAPSHOT]) == []
    if job is not None:
        for call in (
            lambda: complete_snapshot(store, made.id, job),
            lambda: fail_snapshot(store, made.id, FaultRecord("x", "y"), job),
        ):
            with pytest.raises(JobChangedError):
                call()
    end_deletion(store)
    for find in (store.get_snapshot, store.delete_snapshot):
        with pytest.raises(StreamSnapshotNotFoundError):
            find(made.id)


def test_a_stream_is_launched_from_a_snapshot_and_put_to_it_before_it_starts(store: JobStore) -> None:
    done = complete(store)
    store.end_stream("backup", Wanted.DRAINED, actor="ann")
    record = store.launch_stream("second", StreamKind.BACKUP, actor="ann", snapshot_id=done.id)
    assert (record.snapshot_id, record.instance_id) == (done.id, None)
    (restore,) = list_running_restores(store)
    assert (restore.snapshot_id, restore.step) == (done.id, RestoreStep.WAITING)
    assert [event.what for event in store.list_stream_events("second")] == [f"launched from {done.id}"]
    with pytest.raises(StreamStateError):
        store.delete_snapshot(done.id)
    store.end_stream("second", Wanted.CANCELLED, actor="ann")
    assert store.launch_stream("second", StreamKind.BACKUP, actor="ann").snapshot_id is None


def test_a_snapshot_stays_that_another_stream_is_put_back_to_at_the_same_moment(store: JobStore) -> None:
    done = complete(store)
    store.end_stream("backup", Wanted.DRAINED, actor="ann")
    store.launch_stream("second", StreamKind.BACKUP, actor="ann")
    refused: list[StreamStateError] = []

    def delete() -> None:
        try:
            store.delete_snapshot(done.id)
        except StreamStateError as exc:
            refused.append(exc)

    deleting = threading.Thread(target=delete)
    with store._database.write():
        store.create_restore("second", done.id, actor="ann")
        deleting.start()
        # It waits for a lock that this transaction has.
        deleting.join(0.5)
    deleting.join(10)
    assert [exc.message for exc in refused] == [f"second is being rolled back to {done.id}."]
    assert store.get_snapshot(done.id) == done


def test_nothing_is_launched_from_a_snapshot_that_is_not_whole_or_of_another_kind(store: JobStore) -> None:
    pending, done = create(store), complete(store)
    for snapshot_id, kind in ((pending.id, StreamKind.BACKUP), (done.id, StreamKind.PIPELINE)):
        with pytest.raises(SnapshotRefusedError):
            store.launch_stream("second", kind, actor="ann", snapshot_id=snapshot_id)
    with pytest.raises(StreamSnapshotNotFoundError):
        store.launch_stream("second", StreamKind.BACKUP, actor="ann", snapshot_id="sn_none")
    with pytest.raises(StreamNotFoundError):
        store.get_stream("second")


def test_a_stream_that_ended_before_it_was_put_back_is_not_put_back_when_it_is_launched_again(store):
    done = complete(store)
    store.create_restore("backup", done.id, actor="ann")
    store.end_stream("backup", Wanted.CANCELLED, actor="ann")
    store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    assert list_running_restores(store) == []
    (left,) = store.list_restores("backup")
    assert (left.state, left.error.code) == (RestoreState.FAILED, "stream_state_conflict")
    assert store.delete_snapshot(done.id).state is SnapshotState.DELETING


def test_a_stream_that_is_to_end_has_no_snapshot_made_of_it(store: JobStore) -> None:
    store.take_streams("agent", limit=1, lease_seconds=60)
    store.report_stream("backup", "agent", StreamState.RUNNING, instance_id="in_1")
    made = create(store, idempotency=Idempotency("k", "f"))
    store.end_stream("backup", Wanted.DRAINED, actor="ann")
    with pytest.raises(StreamStateError, match="backup is ending"):
        create(store)
    assert create(store, idempotency=Idempotency("k", "f")) == made


@pytest.mark.parametrize("wanted", [Wanted.DRAINED, Wanted.CANCELLED])
@pytest.mark.parametrize("is_held", [True, False])
def test_a_stream_that_ends_leaves_no_rollback_that_goes_on_for_ever(store, wanted, is_held):
    snapshot = complete(store)
    store.create_restore("backup", snapshot.id, actor="ann")
    if is_held:
        store.take_streams("agent", limit=1, lease_seconds=60)
    store.end_stream("backup", wanted, actor="ann")
    if is_held:
        state = StreamState.DRAINED if wanted is Wanted.DRAINED else StreamState.CANCELLED
        store.report_stream("backup", "agent", state)
    (ended,) = store.list_restores("backup")
    assert ended.state is RestoreState.FAILED
    assert ended.error.message == "backup ended before the rollback was complete."
    assert store.delete_snapshot(snapshot.id).state is SnapshotState.DELETING


def test_a_stream_that_is_to_end_is_put_back_to_nothing(store: JobStore) -> None:
    snapshot = complete(store)
    store.take_streams("agent", limit=1, lease_seconds=60)
    store.end_stream("backup", Wanted.DRAINED, actor="ann")
    with pytest.raises(StreamStateError, match="backup is ending"):
        store.create_restore("backup", snapshot.id, actor="ann")


def test_of_snapshots_that_fail_for_years_the_last_twenty_are_kept(store: JobStore) -> None:
    whole = complete(store)
    error = FaultRecord("pubsub_error", "Pub/Sub refused it.")
    failed = [fail_snapshot(store, create(store, with_source=False).id, error).id for _ in range(30)]
    pending = create(store)
    found = [each.id for each in store.list_snapshots()]
    assert found == [pending.id, *failed[:-21:-1], whole.id]


def test_a_snapshot_is_young_by_when_it_was_asked_for(store: JobStore) -> None:
    made = create(store)
    at, second = made.created_at, timedelta(seconds=1)
    times = {"after": at - second, "failed_after": at - second, "until": at}
    old = times | {"after": at + timedelta(days=400), "until": at + timedelta(days=500)}
    assert not store.find_overdue_streams(**old), "it waits until its stream runs, and is made then"
    complete_snapshot(store, made.id)
    assert store.find_overdue_streams(**old) == {"backup"}
    assert not store.find_overdue_streams(**times)
    assert store.find_overdue_streams(**times | {"after": at}) == {"backup"}
    assert store.find_overdue_streams(**times | {"until": at - second}) == {"backup"}
    assert not store.find_overdue_streams(**times | {"failed_after": at})
    store.delete_snapshot(made.id)
    assert store.find_overdue_streams(**times) == {"backup"}
    made = create(store)
    at = made.created_at
    times = {"after": at - second, "failed_after": at - second, "until": at}
    fail_snapshot(store, made.id, FaultRecord("pubsub_error", "Pub/Sub refused it."))
    assert not store.find_overdue_streams(**times)
    assert store.find_overdue_streams(**times | {"failed_after": at}) == {"backup"}
    store.delete_snapshot(made.id)
    assert store.find_overdue_streams(**times) == {"backup"}
    create(store, with_source=False)
    assert store.find_overdue_streams(**times | {"until": at + timedelta(hours=1)}) == {"backup"}


def test_the_schedule_finds_what_is_due_of_all_streams_at_once(store: JobStore) -> None:
    for stream in ("eager", "idle"):
        store.launch_stream(stream, StreamKind.BACKUP, actor="ann")
    scheduled = {"reason": SnapshotReason.SCHEDULED}
    made = [create(store, stream, **scheduled) for stream in ("backup", "eager", "eager")]
    made += [create(store, "backup"), create(store, "backup", with_source=False)]
    last, second = made[-1].created_at, timedelta(seconds=1)
    times = {"after": made[0].created_at - second, "failed_after": last, "until": last}
    assert store.find_overdue_streams(**times) == {"idle"}
    assert store.find_surplus_streams(keep=0) == set(), "none is complete"
    for each in made:
        complete_snapshot(store, each.id)
    assert store.find_overdue_streams(**times | {"after": last}) == {"backup", "eager", "idle"}
    found = [store.find_surplus_streams(keep=keep) for keep in range(3)]
    assert found == [{"backup", "eager"}, {"eager"}, set()]
