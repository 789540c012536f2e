import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from connectors.pubsub.client import PubSub
from jobs.files import open_files
from jobs.store import JobStore
from model.errors import (
    LeaseHeldError,
    PubSubUnavailableError,
    QueryTooLargeError,
    SnapshotRefusedError,
    WarehouseUnavailableError,
)
from model.message import backup_subscription_id
from model.schema import RowSchema
from model.stream_options import StreamKind
from model.stream_record import Wanted
from model.stream_snapshot import RestoreState, RestoreStep, SnapshotReason, SnapshotRecord, SnapshotState
from pipeline.plan import PlanFacts
from pipeline.schema import row_columns
from rollout.restorer import StreamSite, list_kept
from rollout.snapshot_taker import SnapshotTaker
from streams.ids import IDS_SCHEMA, TABLE_IDS_SCHEMA
from streams.journal import Journal
from streams.journal_mark import JournalMark
from streams.lease import hold_lease
from tests.memory.tables import RowTables
from tests.worlds.bucket import SCHEMES, Fault
from tests.worlds.folders import bucket_folder
from tests.worlds.restores import list_running_restores, restore_now
from tests.worlds.snapshots import BROKEN, KilledError, server
from tests.worlds.snapshots import Bench as SnapshotBench

__all__ = ["server"]

SUBSCRIPTION = backup_subscription_id("orders")
TOO_LARGE = "It would cost too much."


class Bench(SnapshotBench):
    """A stream whose state is told from another by a word in its plan."""

    def __init__(self, folder, server):
        super().__init__(folder, server)
        self.mark("before")

    def mark(self, text):
        (self.state / "plan.json").write_text(f'{{"subscriptions": [], "sources": [], "is": "{text}"}}')

    def is_at(self, text):
        return f'"{text}"' in (self.state / "plan.json").read_text()

    @property
    def resources(self):
        return self.server._resources

    def publish(self):
        self.resources.publish(f"projects/{self.project}/topics/orders", [b"\x0a\x01x"])

    def acknowledge_all(self):
        self.resources.seek_to_time(f"projects/{self.project}/subscriptions/{SUBSCRIPTION}", int(2e15))

    def open_messages(self):
        path = f"projects/{self.project}/subscriptions/{SUBSCRIPTION}"
        return int(self.resources.subscription(path).working.read_backpressure().undelivered_messages)

    def take_and_go_on(self):
        """Take a snapshot with an open message, and let the stream acknowledge it and write its plan again."""
        self.publish()
        snapshot = self.take()
        self.acknowledge_all()
        self.mark("after")
        return snapshot

    def restore(self, asked, state=None):
        """Restore what was asked for, or ask for a snapshot first."""
        if isinstance(asked, SnapshotRecord):
            asked = self.ask_back(asked)
        return restore_now(self.store, self.restorer, asked.id, StreamSite(state or self.state, None))


@pytest.fixture
def bench(tmp_path, server):
    made = Bench(tmp_path, server)
    yield made
    made.store.close()


def test_a_stream_goes_back_with_its_subscriptions_and_is_asked_to_learn_what_may_come_again(bench):
    snapshot = bench.take_and_go_on()
    assert bench.open_messages() == 0
    done = bench.restore(snapshot)
    assert (done.state, done.step, done.error) == (RestoreState.SUCCEEDED, RestoreStep.SOUGHT, None)
    assert bench.is_at("before")
    assert bench.open_messages() == 1
    mark = JournalMark(bench.state / "journal")
    assert mark.is_asked
    assert mark.learn_since == snapshot.oldest_publish_time
    # The message was published a moment before.
    assert timedelta(0) <= snapshot.taken_at - mark.learn_since < timedelta(minutes=1)
    assert [event.what for event in bench.store.list_stream_events("backup")][
        -1
    ] == f"rolled back to {snapshot.id}"


def test_a_snapshot_without_its_source_leaves_the_subscriptions_and_says_so(bench):
    snapshot = bench.take(with_source=False)
    bench.publish()
    bench.acknowledge_all()
    done = bench.restore(snapshot)
    assert done.state is RestoreState.SUCCEEDED
    assert done.not_reverted == (
        "The subscriptions do not return to the snapshot, because it has no Pub/Sub snapshots.",
    )
    assert bench.open_messages() == 0
    assert JournalMark(bench.state / "journal").is_asked


def lose_source(bench, snapshot):
    with bench.open_pubsub() as pubsub:
        pubsub.delete_snapshot(snapshot.sources[0].snapshot)


def damage_files(bench, snapshot):
    (Path(snapshot.place.location) / "state.tar").write_bytes(b"")


def detach_another_topic(bench, _):
    with bench.open_pubsub() as pubsub:
        pubsub.delete_subscription(backup_subscription_id("zebras"))


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lose_source, "snapshot_expired"),
        (damage_files, "snapshot_corrupt"),
        (detach_another_topic, "snapshot_refused"),
    ],
)
def test_what_can_not_go_back_changes_nothing(bench, damage, code):
    with bench.open_pubsub() as pubsub:
        pubsub.create_topic("zebras")
        pubsub.create_subscription(backup_subscription_id("zebras"), "zebras")
    snapshot = bench.take_and_go_on()
    damage(bench, snapshot)
    failed = bench.restore(snapshot)
    assert (failed.state, failed.error.code) == (RestoreState.FAILED, code)
    assert bench.is_at("after")
    assert bench.open_messages() == 0
    assert list_running_restores(bench.store) == []


def test_a_snapshot_on_another_machines_disk_is_refused(bench):
    snapshot = bench.take()
    bench.restorer._host = "there"
    failed = bench.restore(snapshot)
    assert failed.error.code == "snapshot_refused"
    assert "another machine" in failed.error.message


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_snapshot_in_a_bucket_is_restored_on_another_machine_and_deleted(bench, request, scheme):
    with bucket_folder(scheme, request) as bucket:
        files = open_files(bucket.location)
        bench.taker = SnapshotTaker(bench.store, open_pubsub=bench.open_pubsub, files=files, host="here")
        bucket.proxy.faults += [Fault("PUT", "", "lost"), Fault("PUT", "", "503")]
        snapshot = bench.take()
        bench.mark("after")
        bench.restorer._host = "there"
        bucket.proxy.faults.append(Fault("GET", "", "partial"))
        assert bench.restore(snapshot).state is RestoreState.SUCCEEDED
        assert bench.is_at("before")
        bench.delete(snapshot.id)
        assert files.list() == []


def failing(place, name):
    return patch.object(place, name, side_effect=PubSubUnavailableError(BROKEN))


def test_what_passes_by_itself_is_tried_again_from_where_it_ended(bench):
    snapshot = bench.take_and_go_on()
    with failing(PubSub, "seek_to_snapshot"), pytest.raises(PubSubUnavailableError):
        bench.restore(snapshot)
    (left,) = list_running_restores(bench.store)
    assert (left.state, left.step) == (RestoreState.RUNNING, RestoreStep.RESTORED)
    # The state is not put back a second time: a stream may have been asked for more since.
    bench.mark("later")
    done = bench.restore(left)
    assert done.state is RestoreState.SUCCEEDED
    assert bench.is_at("later")
    assert bench.open_messages() == 1


def restore_elsewhere(bench, fails):
    """Begin a restore that fails at a call; return the home of another machine, which the stream ran on last."""
    snapshot = bench.take()
    other = bench.state.parent.parent / "other" / "streams" / "backup"
    leases = bench.warehouse.open_archive().leases()
    journal = Journal(other / "journal", keep_seconds=600)
    with hold_lease(leases, f"backup-{bench.project}", "c" * 32, journal):
        journal.write(1, pa.Table.from_pylist([MESSAGE], IDS_SCHEMA))
    (other / "stream-id").write_text("c" * 32)
    with failing(*fails), pytest.raises(PubSubUnavailableError):
        bench.restore(snapshot)
    return other


MESSAGE = {
    "topic": "orders",
    "subscription": SUBSCRIPTION,
    "message_id": "1",
    "publish_time": datetime(2024, 3, 1, tzinfo=UTC),
    "ack_id": "",
}


@pytest.mark.parametrize("fails", [(PubSub, "seek_to_snapshot"), (JobStore, "end_step_job")])
def test_a_machine_that_takes_over_puts_the_state_back_in_its_own_home(bench, fails):
    bench.publish()
    other = restore_elsewhere(bench, fails)
    bench.acknowledge_all()
    (left,) = list_running_restores(bench.store)
    assert left.step is not RestoreStep.WAITING
    assert bench.restore(left, other).state is RestoreState.SUCCEEDED
    assert JournalMark(other / "journal").is_asked
    assert list((other / "journal").glob("*.arrow")) == []
    assert '"before"' in (other / "plan.json").read_text()


@pytest.mark.parametrize(
    ("fails", "how_far"),
    [
        ((PubSub, "seek_to_snapshot"), "its state, and perhaps its subscriptions"),
        ((JobStore, "end_step_job"), "its state and its subscriptions"),
    ],
)
def test_a_machine_that_takes_over_without_the_files_has_the_stream_learn_what_may_have_been_sought(
    bench, fails, how_far
):
    other = restore_elsewhere(bench, fails)
    bench.restorer._host = "there"
    (left,) = list_running_restores(bench.store)
    assert bench.restore(left, other).state is RestoreState.FAILED
    said = bench.store.list_stream_events(left.stream)[-1].what
    assert said == f"rolled back to {left.snapshot_id} in part: {how_far}"
    mark = JournalMark(other / "journal")
    assert mark.is_asked
    assert mark.learn_since == bench.store.get_snapshot(left.snapshot_id).oldest_publish_time
    assert list((other / "journal").glob("*.arrow")) == []


def test_a_kill_between_two_steps_costs_a_repetition_and_nothing_else(bench):
    bench.publish()
    asked = bench.ask_back(bench.take())
    bench.acknowledge_all()
    for _ in range(3):
        with patch.object(JobStore, "note_step", side_effect=KilledError), pytest.raises(KilledError):
            bench.restore(asked)
    assert list_running_restores(bench.store) == [asked]
    assert bench.restore(asked).state is RestoreState.SUCCEEDED
    assert bench.open_messages() == 1
    assert bench.is_at("before")


def test_a_table_that_became_wider_or_newer_is_named():
    snapshot = SnapshotRecord(
        "sn_1",
        "pipeline",
        "pipeline",
        with_source=True,
        reason=SnapshotReason.MANUAL,
        state=SnapshotState.COMPLETED,
        created_by="ann",
        created_at=datetime(2026, 3, 1, tzinfo=UTC),
    )
    facts = {"columns": {"staging.orders": ["id"], "staging.same": ["id"]}, "versions": {"staging.clicks": 2}}
    columns = {"staging.orders": ["id", "note"], "staging.same": ["id"], "staging.new": ["id"]}
    plan = PlanFacts((), columns, {"staging.clicks": 3})
    assert list_kept(facts, snapshot, plan) == [
        "staging.orders keeps these columns, which are newer than the snapshot: note.",
        "The schema of staging.clicks stays at version 3. The snapshot has version 2.",
    ]
    alone = list_kept({}, replace(snapshot, with_source=False), plan)
    assert alone == ["The subscriptions do not return to the snapshot, because it has no Pub/Sub snapshots."]


def launch_from(bench, snapshot):
    """Launch another stream from the snapshot, after the first one has ended; return it and its folder."""
    bench.store.end_stream("backup", Wanted.DRAINED, actor="ann")
    record = bench.store.launch_stream("second", StreamKind.BACKUP, actor="ann", snapshot_id=snapshot.id)
    (restore,) = list_running_restores(bench.store)
    return record, restore, bench.state.with_name("second")


def test_a_stream_that_is_launched_from_a_snapshot_begins_with_its_state_and_its_source(bench):
    snapshot = bench.take_and_go_on()
    _, restore, state = launch_from(bench, snapshot)
    assert bench.restore(restore, state).state is RestoreState.SUCCEEDED
    assert '"before"' in (state / "plan.json").read_text()
    assert bench.is_at("after")
    assert bench.open_messages() == 1
    assert JournalMark(state / "journal").is_asked
    # It is another stream: with the id of the first one it would take the lease for its own.
    assert (state / "stream-id").read_text() != (bench.state / "stream-id").read_text()


def test_a_launch_from_a_snapshot_that_can_not_be_restored_is_cancelled_and_a_rollback_is_not(bench):
    bench.publish()
    snapshot = bench.take()
    lose_source(bench, snapshot)
    assert bench.restore(snapshot).state is RestoreState.FAILED
    assert bench.store.get_stream("backup").wanted is Wanted.RUNNING
    _, restore, state = launch_from(bench, snapshot)
    assert bench.restore(restore, state).state is RestoreState.FAILED
    assert bench.store.get_stream("second").wanted is Wanted.CANCELLED
    assert "snapshot_expired" in str([event.why for event in bench.store.list_stream_events("second")])


def test_nothing_is_sought_while_another_home_s_stream_holds_the_lease(bench):
    snapshot = bench.take_and_go_on()
    asked = bench.ask_back(snapshot)
    leases = bench.warehouse.open_archive().leases()
    with hold_lease(leases, f"backup-{bench.project}", "another"), pytest.raises(LeaseHeldError):
        bench.restore(asked)
    assert bench.open_messages() == 0
    assert bench.is_at("after")
    assert bench.restore(asked).state is RestoreState.SUCCEEDED


STAGED = RowSchema(tuple(row_columns((), "plain")))


class Shop:
    """A pipeline that does not run, with the sources orders and members, on the bench of a backup."""

    def __init__(self, bench):
        self.bench = bench
        self.state = bench.state.with_name("shop")
        Journal(self.state / "journal", keep_seconds=600, schema=TABLE_IDS_SCHEMA)
        (self.state / "stream-id").write_text("b" * 32)
        self.write_plan("orders", "members")
        bench.store.launch_stream("shop", StreamKind.PIPELINE, actor="ann", options={"group": "default"})

    def write_plan(self, *sources):
        schema = {"fields": [{"name": "id"}]}
        found = [
            {"source": {"name": name, "topic": name, "staging": f"staging.{name}", "schema": schema}, "types": []}
            for name in sources
        ]
        (self.state / "plan.json").write_text(json.dumps({"subscriptions": [SUBSCRIPTION], "sources": found}))

    def stage(self, source, message_id):
        table = self.bench.warehouse.memory.table(f"staging.{source}")
        table.schema = STAGED
        now = datetime.now(UTC)
        row = {"_topic": source, "_message_id": message_id, "_publish_time": now, "ingest_time": now}
        table.rows.append(row | {"_backfill_id": None})

    def staged(self, source):
        return [row["_message_id"] for row in self.bench.warehouse.memory.table(f"staging.{source}").rows]

    def take(self):
        asked = self.bench.store.create_snapshot("shop", with_source=True, actor="ann")
        return self.bench.take(asked)

    def roll_back(self, snapshot):
        asked = self.bench.store.create_restore("shop", snapshot.id, actor="ann", discard_staged=True)
        return self.bench.restore(asked, self.state)


@pytest.fixture
def shop(bench):
    return Shop(bench)


def test_what_was_staged_since_the_snapshot_is_discarded_but_where_a_merge_works(bench, shop):
    for source in ("orders", "members"):
        shop.stage(source, "old")
    snapshot = shop.take()
    shop.write_plan("orders", "members", "late")
    for source in ("orders", "members", "late"):
        shop.stage(source, "new")
    merge = bench.store.insert("mg_1", "merge", {"sources": ["members"]}, actor="ann")
    done = shop.roll_back(snapshot)
    assert (done.state, done.error, done.discard_staged) == (RestoreState.SUCCEEDED, None, True)
    assert shop.staged("orders") == ["old"]
    assert shop.staged("members") == ["old", "new"]
    assert shop.staged("late") == ["new"]
    assert done.not_reverted == (
        "staging.late is newer than the snapshot and keeps its rows.",
        f"staging.members keeps the rows that were staged since the snapshot: {merge.id} merges them.",
        "Reporting tables keep the rows that were merged since the snapshot.",
        "Dead letters since the snapshot stay. The stream does not try their messages again.",
    )
    whats = [event.what for event in bench.store.list_stream_events("shop")]
    assert "discarded 1 row of staging.orders" in whats
    assert done.discarded_rows == {"staging.orders": 1}


def test_rows_that_a_failed_try_discarded_are_counted_too(bench, shop):
    snapshot = shop.take()
    for source in ("orders", "members"):
        shop.stage(source, "new")
    delete, deleted = RowTables.delete_since, []

    def fail_at_second(tables, name, since):
        if deleted:
            raise WarehouseUnavailableError
        deleted.append(name)
        return delete(tables, name, since)

    with patch.object(RowTables, "delete_since", fail_at_second), pytest.raises(WarehouseUnavailableError):
        shop.roll_back(snapshot)
    (left,) = list_running_restores(bench.store)
    done = bench.restore(left, shop.state)
    assert done.discarded_rows == {"staging.orders": 1, "staging.members": 1}


def test_staged_rows_stay_unless_somebody_chose_otherwise(bench, shop):
    shop.stage("orders", "old")
    snapshot = shop.take()
    shop.stage("orders", "new")
    asked = bench.store.create_restore("shop", snapshot.id, actor="ann")
    done = bench.restore(asked, shop.state)
    assert (done.not_reverted, done.discarded_rows) == ((), {})
    assert shop.staged("orders") == ["old", "new"]


def test_nothing_is_discarded_before_the_subscriptions_are_back(bench, shop):
    snapshot = shop.take()
    shop.stage("orders", "new")
    with failing(PubSub, "seek_to_snapshot"), pytest.raises(PubSubUnavailableError):
        shop.roll_back(snapshot)
    # What is deleted and does not come again would be lost.
    assert shop.staged("orders") == ["new"]
    (left,) = list_running_restores(bench.store)
    assert bench.restore(left, shop.state).state is RestoreState.SUCCEEDED
    assert shop.staged("orders") == []


def test_a_table_that_can_not_lose_its_rows_keeps_them_and_the_stream_is_back(bench, shop, monkeypatch):
    snapshot = shop.take()
    for source in ("orders", "members"):
        shop.stage(source, "new")
    delete = RowTables.delete_since

    def fail(tables, name, since):
        if name == "staging.orders":
            raise QueryTooLargeError(TOO_LARGE)
        return int(delete(tables, name, since))

    monkeypatch.setattr(RowTables, "delete_since", fail)
    done = shop.roll_back(snapshot)
    assert (done.state, done.error) == (RestoreState.SUCCEEDED, None)
    assert done.not_reverted[0] == (
        f"staging.orders keeps the rows that were staged since the snapshot: {TOO_LARGE}"
    )
    assert (shop.staged("orders"), shop.staged("members")) == (["new"], [])


def test_a_snapshot_that_takes_discarded_rows_for_staged_is_refused(bench, shop):
    first = shop.take()
    shop.stage("orders", "new")
    second = shop.take()
    shop.roll_back(first)
    third = shop.take()
    # Pub/Sub holds "new" for acknowledged in it, and no table has it any more.
    refused = shop.roll_back(second)
    assert (refused.state, refused.step) == (RestoreState.FAILED, RestoreStep.WAITING)
    assert refused.error.code == SnapshotRefusedError.code
    assert first.id in refused.error.message
    assert [shop.roll_back(each).state for each in (third, first)] == [RestoreState.SUCCEEDED] * 2


def test_a_discarding_rollback_counts_also_when_its_snapshot_is_deleted(bench, shop):
    first = shop.take()
    second = shop.take()
    shop.roll_back(first)
    bench.delete(first.id)
    assert shop.roll_back(second).state is RestoreState.FAILED


def test_a_snapshot_of_another_group_changes_nothing(bench, shop):
    snapshot = shop.take()
    bench.store.end_stream("shop", Wanted.DRAINED, actor="ann")
    bench.store.launch_stream("shop", StreamKind.PIPELINE, actor="ann", options={"group": "other"})
    failed = shop.roll_back(snapshot)
    assert failed.error.code == "snapshot_refused"
    assert "of the group default" in failed.error.message
