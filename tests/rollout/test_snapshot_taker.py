from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest

from connectors.pubsub.client import PubSub
from jobs.disk_files import DiskFiles
from jobs.store import DELETION, SNAPSHOT, JobStore
from jobs.store.tables import STREAM_SNAPSHOTS
from model.errors import JobChangedError, PubSubUnavailableError, SnapshotRefusedError, StoreUnavailableError
from model.message import backup_subscription_id
from model.stream_snapshot import SnapshotPlace, SnapshotReason, SnapshotRecord, SnapshotState
from model.stream_update import UpdateRequest, UpdateState
from rollout.snapshot_taker import SnapshotTaker, find_overdue, find_surplus
from streams.snapshot import read_manifest
from tests.worlds.snapshots import BROKEN, Bench, KilledError, server
from tests.worlds.update_jobs import advance_update

__all__ = ["server"]

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def bench(tmp_path, server):
    """Two topics that are backed up and one subscription of somebody else."""
    made = Bench(tmp_path, server, "members", "orders")
    with made.open_pubsub() as pubsub:
        pubsub.create_subscription("somebody-else", "orders")
    yield made
    made.store.close()


def test_a_snapshot_has_the_state_and_every_subscription_of_one_moment(bench):
    order = []

    @contextmanager
    def noted():
        order.append(f"paused with {len(bench.sources())}")
        yield
        order.append(f"resumed with {len(bench.sources())} and {bench.folders()}")

    made = bench.take(pause=noted())
    assert order == ["paused with 0", "resumed with 2 and []"]
    assert made.state is SnapshotState.COMPLETED
    subscriptions = [backup_subscription_id(topic) for topic in ("members", "orders")]
    assert [source.subscription for source in made.sources] == subscriptions
    assert bench.sources() == sorted(source.snapshot for source in made.sources)
    assert timedelta(days=6.9) < made.expire_time - datetime.now(UTC) <= timedelta(days=7)
    assert made.place == SnapshotPlace("here", str(bench.home / "snapshots" / "backup" / bench.folders()[0]))
    manifest = read_manifest(DiskFiles(Path(made.place.location)))
    assert (manifest.size_bytes, manifest.format_version) == (made.size_bytes, made.format_version)
    assert manifest.facts["snapshot"] == made.id
    assert 0 <= made.seconds_paused < 5
    assert [event.what for event in bench.store.list_stream_events("backup")][-1] == f"snapshot {made.id} made"


def test_a_snapshot_that_waited_for_an_update_is_of_the_release_that_ran_when_it_was_made(bench):
    asked = bench.ask()
    update = bench.store.create_update("backup", UpdateRequest("9", {}, {}), actor="ann")
    advance_update(bench.store, update, UpdateState.HANDING_OVER, instance_id="in_2")
    made = bench.take(asked)
    assert made.release == "9" != asked.release
    assert read_manifest(DiskFiles(Path(made.place.location))).facts["release"] == "9"


def test_a_snapshot_without_its_source_leaves_pubsub_alone(bench):
    made = bench.take(with_source=False)
    assert (made.state, made.sources, made.expire_time) == (SnapshotState.COMPLETED, (), None)
    assert bench.sources() == []


def break_second():
    real = PubSub.create_snapshot

    def fail(self, snapshot, subscription):
        if subscription == backup_subscription_id("orders"):
            raise PubSubUnavailableError(BROKEN)
        return real(self, snapshot, subscription)

    return patch.object(PubSub, "create_snapshot", fail)


def break_copy():
    return patch.object(DiskFiles, "complete", side_effect=OSError("No space left on device"))


def refuse_pause():
    return patch.object(Bench, "pause", side_effect=SnapshotRefusedError("The stream did not pause within 60 s."))


@pytest.mark.parametrize(
    ("damage", "code"),
    [(break_second, "pubsub_unavailable"), (break_copy, "storage_full"), (refuse_pause, "snapshot_refused")],
)
def test_a_snapshot_that_fails_halfway_leaves_nothing_behind(bench, damage, code):
    with damage():
        failed = bench.take()
    assert (failed.state, failed.error.code) == (SnapshotState.FAILED, code)
    assert (bench.sources(), bench.folders()) == ([], [])
    assert not list(bench.state.glob("captured*"))


def test_a_try_that_a_crash_ended_is_cleared_away_before_the_next(bench):
    asked = bench.ask()
    with patch.object(DiskFiles, "complete", side_effect=KilledError), pytest.raises(KilledError):
        bench.take(asked)
    assert len(bench.sources()) == 2
    (begun,) = bench.folders()
    assert begun.startswith(f"{asked.id}.")
    (pending,) = bench.store.list_snapshots()
    assert pending.state is SnapshotState.PENDING
    made = bench.take(pending)
    assert made.state is SnapshotState.COMPLETED
    assert len(bench.sources()) == 2
    assert bench.folders() == [Path(made.place.location).name]


@pytest.mark.parametrize("ends", ["kept", "deleted", "deleted before it was made"])
def test_what_a_try_left_on_another_machine_is_deleted_there(bench, ends, tmp_path):
    asked, here = bench.ask(), bench.taker
    with patch.object(DiskFiles, "complete", side_effect=KilledError), pytest.raises(KilledError):
        bench.take(asked)
    assert len(bench.folders()) == 1
    files = DiskFiles(tmp_path / "elsewhere")
    bench.taker = there = SnapshotTaker(bench.store, open_pubsub=bench.open_pubsub, files=files, host="there")
    if ends == "deleted before it was made":
        with patch.object(DiskFiles, "complete", side_effect=KilledError), pytest.raises(KilledError):
            bench.take(asked)
    else:
        made = bench.take(asked)
    if ends != "kept":
        bench.store.delete_snapshot(asked.id)
    for taker in (there, here):
        bench.taker = taker
        for job in bench.store.list_step_jobs([DELETION]):
            if taker.is_here(SnapshotPlace(**job.request["place"])):
                bench.carry_out(job)
    assert bench.store.list_step_jobs([DELETION]) == []
    assert bench.folders() == []
    is_kept = ends == "kept"
    assert bench.store.list_snapshots() == ([made] if is_kept else [])
    assert len(files.folder("backup").list()) == is_kept
    assert len(bench.sources()) == (2 if is_kept else 0)


def test_a_snapshot_is_deleted_with_its_files_and_its_source(bench):
    kept = bench.take()
    gone = bench.take()
    bench.delete(gone.id)
    assert bench.store.list_snapshots() == [kept]
    assert bench.sources() == sorted(source.snapshot for source in kept.sources)
    assert bench.folders() == [Path(kept.place.location).name]


def record(number, reason, state=SnapshotState.COMPLETED):
    at = NOW + timedelta(hours=number)
    return SnapshotRecord(f"sn_{number:02}", "backup", "backup", True, reason, state, "ann", at)


def test_retention_keeps_what_people_made_and_the_newest_whole_one():
    scheduled = [record(number, SnapshotReason.SCHEDULED) for number in range(5)]
    manual = [record(number, SnapshotReason.MANUAL) for number in (5, 6)]
    failed = record(9, SnapshotReason.SCHEDULED, SnapshotState.FAILED)
    assert find_surplus([*scheduled, *manual, failed], keep=2) == [scheduled[2], scheduled[1], scheduled[0]]
    assert find_surplus([*scheduled[:1], failed], keep=1) == []
    assert find_surplus(scheduled, keep=0) == [scheduled[3], scheduled[2], scheduled[1], scheduled[0]]
    assert find_surplus(manual, keep=0) == []


def is_due(store, records, *, every, now):
    """Store the records without files, and return whether another snapshot is due."""
    with store._database.write() as connection:
        connection.execute(STREAM_SNAPSHOTS.delete())
        for each in records:
            values = {column.name: getattr(each, column.name) for column in fields(each)}
            connection.execute(STREAM_SNAPSHOTS.insert().values(**values))
    return "backup" in find_overdue(store, every=every, now=now)


def test_a_scheduled_snapshot_is_due_when_the_newest_is_old_and_none_is_under_way(bench):
    store = bench.store
    every = timedelta(hours=1)
    old = record(0, SnapshotReason.MANUAL)
    failed = record(5, SnapshotReason.SCHEDULED, SnapshotState.FAILED)
    pending = record(5, SnapshotReason.SCHEDULED, SnapshotState.PENDING)
    deleting = record(5, SnapshotReason.SCHEDULED, SnapshotState.DELETING)
    assert is_due(store, [], every=every, now=NOW)
    assert is_due(store, [old], every=every, now=NOW + timedelta(hours=1))
    assert not is_due(store, [old], every=every, now=NOW + timedelta(minutes=59))
    assert not is_due(store, [pending, old], every=every, now=NOW + timedelta(hours=5))
    assert is_due(store, [deleting, old], every=every, now=NOW + timedelta(hours=5))
    assert not is_due(store, [failed, old], every=every, now=NOW + timedelta(hours=5, minutes=9))
    assert is_due(store, [failed, old], every=every, now=NOW + timedelta(hours=5, minutes=10))
    # The schedule's interval is shorter than the wait after a failure.
    assert is_due(store, [failed, old], every=timedelta(minutes=5), now=NOW + timedelta(hours=5, minutes=5))
    young = record(4, SnapshotReason.MANUAL)
    assert not is_due(store, [failed, young], every=timedelta(hours=2), now=NOW + timedelta(hours=5, minutes=30))


def test_a_snapshot_without_its_source_takes_no_scheduled_one_s_place(bench):
    store = bench.store
    every = timedelta(hours=1)
    old = record(0, SnapshotReason.SCHEDULED)
    update = replace(record(5, SnapshotReason.UPDATE), with_source=False)
    assert is_due(store, [update, old], every=every, now=NOW + timedelta(hours=5, minutes=1))
    update = replace(update, with_source=True)
    assert not is_due(store, [update, old], every=every, now=NOW + timedelta(hours=5))


def test_nothing_is_left_of_a_snapshot_that_another_agent_deleted_while_it_was_made(bench):
    asked = bench.ask()

    @contextmanager
    def deleting():
        bench.delete(asked.id)
        yield

    with pytest.raises(JobChangedError):
        bench.take(asked, deleting())
    assert (bench.sources(), bench.folders(), bench.store.list_snapshots()) == ([], [], [])


def check_whole(made, bench):
    """Fail unless all that the record names is there, and nothing else."""
    assert made.state is SnapshotState.COMPLETED
    assert (Path(made.place.location) / "snapshot.json").exists()
    assert read_manifest(DiskFiles(Path(made.place.location))).facts["snapshot"] == made.id
    assert bench.sources() == sorted(source.snapshot for source in made.sources)
    assert [path.name for path in Path(made.place.location).parent.iterdir()] == [Path(made.place.location).name]


def test_a_snapshot_that_was_made_since_it_was_listed_stays_whole(bench):
    asked = bench.ask()
    (listed,) = bench.store.list_step_jobs([SNAPSHOT])
    made = bench.take(asked)
    with pytest.raises(JobChangedError):
        bench.carry_out(listed)
    assert bench.store.get_snapshot(made.id) == made
    check_whole(made, bench)


def test_an_agent_ends_no_snapshot_that_another_one_has_begun_since(bench):
    asked, other = bench.ask(), SnapshotPlace("there", "/sn.2")

    @contextmanager
    def overtaken():
        yield
        (job,) = bench.store.list_step_jobs([SNAPSHOT])
        bench.store.note_step(job, {"place": other})

    with pytest.raises(JobChangedError):
        bench.take(asked, overtaken())
    assert bench.store.get_snapshot(asked.id) == asked
    assert (bench.sources(), bench.folders()) == ([], [])


@pytest.mark.parametrize("fails", [False, True])
def test_an_agent_that_lost_a_snapshot_to_another_one_spoils_nothing_whether_it_fails_or_not(bench, fails):
    asked = bench.ask()

    @contextmanager
    def overtaken():
        yield
        bench.take(bench.store.get_snapshot(asked.id))
        if fails:
            raise SnapshotRefusedError("The snapshot took longer than the stream's pause.")

    with pytest.raises(JobChangedError):
        bench.take(asked, overtaken())
    check_whole(bench.store.get_snapshot(asked.id), bench)
    assert not list(bench.state.glob("captured*"))


def test_a_snapshot_that_is_deleted_after_it_failed_has_one_deletion(bench):
    asked, away = bench.ask(), patch.object(PubSub, "delete_snapshot", side_effect=PubSubUnavailableError(BROKEN))
    with break_copy(), away:
        bench.take(asked)
    bench.store.delete_snapshot(asked.id)
    assert len(bench.store.list_step_jobs([DELETION])) == 1
    bench.carry_out_deletions()
    assert (bench.sources(), bench.folders(), bench.store.list_snapshots()) == ([], [], [])


@pytest.mark.parametrize("is_written", [True, False])
def test_a_snapshot_whose_last_note_has_no_answer_is_whole_or_made_again(bench, is_written):
    asked, note = bench.ask(), JobStore.note_step

    def lose(store, seen, memory, *, owner):
        if "made" in memory:
            if is_written:
                note(store, seen, memory, owner=owner)
            raise StoreUnavailableError("The store does not answer.")
        return note(store, seen, memory, owner=owner)

    with patch.object(JobStore, "note_step", lose), pytest.raises(StoreUnavailableError):
        bench.take(asked)
    check_whole(bench.take(asked), bench)


def test_snapshots_that_a_clock_that_was_ahead_has_made_keep_no_others_from_being_made_or_kept(bench):
    store = bench.store
    now, ahead = NOW + timedelta(hours=9), 24 * 3652
    future = [record(ahead + number, SnapshotReason.SCHEDULED) for number in range(3)]
    young = [record(number, SnapshotReason.SCHEDULED) for number in (8, 9)]
    assert is_due(store, future, every=timedelta(days=1), now=now)
    assert not is_due(store, [*future, *young], every=timedelta(days=1), now=now)
    # Their ids have the time of that clock too.
    assert find_surplus([*future, *young], keep=2, now=now) == sorted(future, key=lambda each: each.id)[::-1]
