from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from connectors.pubsub.client import PubSub
from jobs.disk_files import DiskFiles
from jobs.store import JobStore
from jobs.store.tables import STREAM_SNAPSHOTS
from local.server import PubSubServer
from model.errors import PubSubUnavailableError, SnapshotRefusedError, StreamSnapshotNotFoundError
from model.message import backup_subscription_id
from model.stream_options import StreamKind
from model.stream_snapshot import SnapshotPlace, SnapshotReason, SnapshotRecord, SnapshotState
from rollout.snapshot_taker import SnapshotTaker, find_surplus, is_overdue
from streams.journal import Journal
from streams.snapshot import read_manifest

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PubSubServer]:
    with PubSubServer(tmp_path_factory.mktemp("pubsub")) as running:
        yield running


@pytest.fixture
def open_pubsub(server: PubSubServer, tmp_path: Path) -> Callable[[], PubSub]:
    """A project of the test's own, with two topics that are backed up and one subscription of somebody else."""
    project = f"p-{abs(hash(tmp_path.name))}"

    def open_pubsub() -> PubSub:
        return PubSub(project, server.emulator_host)

    with open_pubsub() as pubsub:
        for topic in ("members", "orders"):
            pubsub.create_topic(topic)
            pubsub.create_subscription(backup_subscription_id(topic), topic)
        pubsub.create_subscription("somebody-else", "orders")
    return open_pubsub


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(tmp_path / "jobs.sqlite")
    store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    yield store
    store.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "streams" / "backup"
    Journal(folder / "journal", keep_seconds=600)
    (folder / "stream-id").write_text("a" * 32)
    return folder


@pytest.fixture
def taker(store: JobStore, open_pubsub: Callable[[], PubSub], tmp_path: Path) -> SnapshotTaker:
    return SnapshotTaker(store, open_pubsub=open_pubsub, files=DiskFiles(tmp_path / "snapshots"), host="here")


@contextmanager
def pause() -> Iterator[None]:
    yield


def ask(store: JobStore, *, with_source: bool = True) -> SnapshotRecord:
    return store.create_snapshot("backup", with_source=with_source, actor="ann")


def names(open_pubsub: Callable[[], PubSub]) -> list[str]:
    with open_pubsub() as pubsub:
        return [found.id for found in pubsub.list_snapshots()]


def folders(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "snapshots").glob("backup/*"))


def test_a_snapshot_has_the_state_and_every_subscription_of_one_moment(
    store: JobStore, state: Path, taker: SnapshotTaker, open_pubsub: Callable[[], PubSub], tmp_path: Path
) -> None:
    order: list[str] = []

    @contextmanager
    def noted() -> Iterator[None]:
        order.append(f"paused with {len(names(open_pubsub))}")
        yield
        order.append(f"resumed with {len(names(open_pubsub))} and {folders(tmp_path)}")

    made = taker.take(ask(store), state, noted)
    assert order == ["paused with 0", "resumed with 2 and []"]
    assert made.state is SnapshotState.COMPLETED
    subscriptions = [backup_subscription_id(topic) for topic in ("members", "orders")]
    assert [source.subscription for source in made.sources] == subscriptions
    assert names(open_pubsub) == sorted(source.snapshot for source in made.sources)
    assert made.expire_time is not None
    assert timedelta(days=6.9) < made.expire_time - datetime.now(UTC) <= timedelta(days=7)
    assert made.place == SnapshotPlace("here", str(tmp_path / "snapshots" / "backup" / folders(tmp_path)[0]))
    manifest = read_manifest(DiskFiles(Path(made.place.location)))
    assert (manifest.size_bytes, manifest.format_version) == (made.size_bytes, made.format_version)
    assert manifest.facts["snapshot"] == made.id
    assert made.seconds_paused is not None
    assert 0 <= made.seconds_paused < 5
    assert [event.what for event in store.list_stream_events("backup")][-1] == f"snapshot {made.id} made"


def test_a_snapshot_without_its_source_leaves_pubsub_alone(
    store: JobStore, state: Path, taker: SnapshotTaker, open_pubsub: Callable[[], PubSub]
) -> None:
    made = taker.take(ask(store, with_source=False), state, pause)
    assert (made.state, made.sources, made.expire_time) == (SnapshotState.COMPLETED, (), None)
    assert names(open_pubsub) == []


def break_second(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PubSub.create_snapshot

    def fail(self: PubSub, snapshot: str, subscription: str) -> Any:
        if subscription == backup_subscription_id("orders"):
            raise PubSubUnavailableError("Pub/Sub does not answer.")
        return real(self, snapshot, subscription)

    monkeypatch.setattr(PubSub, "create_snapshot", fail)


def break_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(DiskFiles, "complete", fail)


@pytest.mark.parametrize(("damage", "code"), [(break_second, "pubsub_unavailable"), (break_copy, "storage_full")])
def test_a_snapshot_that_fails_halfway_leaves_nothing_behind(  # noqa: PLR0917 - fixtures
    store: JobStore,
    state: Path,
    taker: SnapshotTaker,
    open_pubsub: Callable[[], PubSub],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[pytest.MonkeyPatch], None],
    code: str,
) -> None:
    damage(monkeypatch)
    failed = taker.take(ask(store), state, pause)
    assert failed.state is SnapshotState.FAILED
    assert failed.error is not None
    assert failed.error.code == code
    assert names(open_pubsub) == []
    assert folders(tmp_path) == []
    assert not list(state.glob("captured*"))


def test_a_stream_that_does_not_pause_has_no_snapshot(
    store: JobStore, state: Path, taker: SnapshotTaker, open_pubsub: Callable[[], PubSub]
) -> None:
    @contextmanager
    def refuse() -> Iterator[None]:
        raise SnapshotRefusedError("The stream did not pause within 60 s.")
        yield

    failed = taker.take(ask(store), state, refuse)
    assert failed.error is not None
    assert (failed.state, failed.error.code) == (SnapshotState.FAILED, "snapshot_refused")
    assert names(open_pubsub) == []


def test_a_try_that_a_crash_ended_is_cleared_away_before_the_next(  # noqa: PLR0917 - fixtures
    store: JobStore,
    state: Path,
    taker: SnapshotTaker,
    open_pubsub: Callable[[], PubSub],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class KilledError(BaseException):
        pass

    def kill(*_: object) -> None:
        raise KilledError

    asked = ask(store)
    with monkeypatch.context() as context:
        context.setattr(DiskFiles, "complete", kill)
        with pytest.raises(KilledError):
            taker.take(asked, state, pause)
    assert len(names(open_pubsub)) == 2
    (begun,) = folders(tmp_path)
    assert begun.startswith(f"{asked.id}.")
    (pending,) = store.list_snapshots()
    assert pending.state is SnapshotState.PENDING
    made = taker.take(pending, state, pause)
    assert made.state is SnapshotState.COMPLETED
    assert len(names(open_pubsub)) == 2
    assert made.place is not None
    assert folders(tmp_path) == [Path(made.place.location).name]


def test_a_snapshot_is_deleted_with_its_files_and_its_source(
    store: JobStore, state: Path, taker: SnapshotTaker, open_pubsub: Callable[[], PubSub], tmp_path: Path
) -> None:
    kept = taker.take(ask(store), state, pause)
    gone = taker.take(ask(store), state, pause)
    assert taker.delete(store.delete_snapshot(gone.id))
    assert store.list_snapshots() == [kept]
    assert names(open_pubsub) == sorted(source.snapshot for source in kept.sources)
    assert kept.place is not None
    assert folders(tmp_path) == [Path(kept.place.location).name]


def test_a_snapshot_on_another_machines_disk_is_left_to_its_agent(
    store: JobStore, state: Path, taker: SnapshotTaker
) -> None:
    made = taker.take(ask(store), state, pause)
    assert made.place is not None
    elsewhere = replace(store.delete_snapshot(made.id), place=replace(made.place, host="there"))
    assert not taker.delete(elsewhere)
    assert store.get_snapshot(made.id).state is SnapshotState.DELETING


def record(number: int, reason: SnapshotReason, state: SnapshotState = SnapshotState.COMPLETED) -> SnapshotRecord:
    at = NOW + timedelta(hours=number)
    return SnapshotRecord(f"sn_{number:02}", "backup", "backup", True, reason, state, "ann", at)


def test_retention_keeps_what_people_made_and_the_newest_whole_one() -> None:
    scheduled = [record(number, SnapshotReason.SCHEDULED) for number in range(5)]
    manual = [record(number, SnapshotReason.MANUAL) for number in (5, 6)]
    failed = record(9, SnapshotReason.SCHEDULED, SnapshotState.FAILED)
    assert find_surplus([*scheduled, *manual, failed], keep=2) == [scheduled[2], scheduled[1], scheduled[0]]
    assert find_surplus([*scheduled[:1], failed], keep=1) == []
    assert find_surplus(scheduled, keep=0) == [scheduled[3], scheduled[2], scheduled[1], scheduled[0]]
    assert find_surplus(manual, keep=0) == []


def is_due(store: JobStore, records: Sequence[SnapshotRecord], *, every: timedelta, now: datetime) -> bool:
    """Store the records without files, and return whether another snapshot is due."""
    with store._database.write() as connection:
        connection.execute(STREAM_SNAPSHOTS.delete())
        for each in records:
            values = {column.name: getattr(each, column.name) for column in fields(each)}
            connection.execute(STREAM_SNAPSHOTS.insert().values(**values))
    return is_overdue(store, "backup", every=every, now=now)


def test_a_scheduled_snapshot_is_due_when_the_newest_is_old_and_none_is_under_way(store: JobStore) -> None:
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


def test_a_snapshot_without_its_source_takes_no_scheduled_one_s_place(store: JobStore) -> None:
    every = timedelta(hours=1)
    old = record(0, SnapshotReason.SCHEDULED)
    update = replace(record(5, SnapshotReason.UPDATE), with_source=False)
    assert is_due(store, [update, old], every=every, now=NOW + timedelta(hours=5, minutes=1))
    update = replace(update, with_source=True)
    assert not is_due(store, [update, old], every=every, now=NOW + timedelta(hours=5))


def test_nothing_is_left_of_a_snapshot_that_another_agent_deleted_while_it_was_made(
    store: JobStore, state: Path, taker: SnapshotTaker, open_pubsub: Callable[[], PubSub], tmp_path: Path
) -> None:
    asked = ask(store)

    @contextmanager
    def deleting() -> Iterator[None]:
        assert taker.delete(store.delete_snapshot(asked.id))
        yield

    with pytest.raises(StreamSnapshotNotFoundError):
        taker.take(asked, state, deleting)
    assert (names(open_pubsub), folders(tmp_path), store.list_snapshots()) == ([], [], [])


def check_whole(made: SnapshotRecord, open_pubsub: Callable[[], PubSub]) -> None:
    """Fail unless all that the record names is there, and nothing else."""
    assert made.state is SnapshotState.COMPLETED
    assert made.place is not None
    assert read_manifest(DiskFiles(Path(made.place.location))).facts["snapshot"] == made.id
    assert names(open_pubsub) == sorted(source.snapshot for source in made.sources)
    assert [path.name for path in Path(made.place.location).parent.iterdir()] == [Path(made.place.location).name]


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_snapshot_that_was_made_since_it_was_listed_stays_whole(
    store: JobStore, state: Path, taker: SnapshotTaker, open_pubsub: Callable[[], PubSub], *, is_begun: bool
) -> None:
    listed = ask(store)
    made = taker.take(listed, state, pause)
    if is_begun:
        listed = replace(listed, place=made.place)
    assert taker.take(listed, state, pause) == made
    taker.abandon(listed)
    assert store.get_snapshot(made.id) == made
    check_whole(made, open_pubsub)


def test_of_two_agents_that_take_a_snapshot_the_later_one_makes_it(
    store: JobStore, state: Path, taker: SnapshotTaker, open_pubsub: Callable[[], PubSub]
) -> None:
    asked = ask(store)
    second: list[SnapshotRecord] = []

    @contextmanager
    def overtaken() -> Iterator[None]:
        yield
        second.append(taker.take(store.get_snapshot(asked.id), state, pause))

    assert taker.take(asked, state, overtaken) == second[0]
    check_whole(second[0], open_pubsub)


def test_an_agent_that_lost_a_snapshot_to_another_one_spoils_nothing_when_it_fails(
    store: JobStore, state: Path, taker: SnapshotTaker, open_pubsub: Callable[[], PubSub]
) -> None:
    asked = ask(store)

    @contextmanager
    def overtaken() -> Iterator[None]:
        yield
        taker.take(store.get_snapshot(asked.id), state, pause)
        raise SnapshotRefusedError("The snapshot took longer than the stream's pause.")

    check_whole(taker.take(asked, state, overtaken), open_pubsub)
    assert not list(state.glob("captured*"))


def test_a_snapshot_is_failed_before_anything_of_it_is_deleted_and_the_rest_goes_later(  # noqa: PLR0917 - fixtures
    store: JobStore,
    state: Path,
    taker: SnapshotTaker,
    open_pubsub: Callable[[], PubSub],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_: object) -> None:
        raise PubSubUnavailableError("Pub/Sub does not answer.")

    asked = ask(store)
    with monkeypatch.context() as context:
        break_copy(context)
        context.setattr(PubSub, "delete_snapshot", away)
        with pytest.raises(PubSubUnavailableError):
            taker.take(asked, state, pause)
    failed = store.get_snapshot(asked.id)
    assert failed.error is not None
    assert (failed.state, failed.error.code) == (SnapshotState.FAILED, "storage_full")
    assert len(names(open_pubsub)) == 2
    assert store.list_unfinished_snapshots() == [failed]
    assert taker.clear(failed)
    assert (names(open_pubsub), folders(tmp_path), store.list_unfinished_snapshots()) == ([], [], [])
    assert store.get_snapshot(asked.id) == replace(failed, place=None)


def test_snapshots_that_a_clock_that_was_ahead_has_made_keep_no_others_from_being_made_or_kept(
    store: JobStore,
) -> None:
    now, ahead = NOW + timedelta(hours=9), 24 * 3652
    future = [record(ahead + number, SnapshotReason.SCHEDULED) for number in range(3)]
    young = [record(number, SnapshotReason.SCHEDULED) for number in (8, 9)]
    assert is_due(store, future, every=timedelta(days=1), now=now)
    assert not is_due(store, [*future, *young], every=timedelta(days=1), now=now)
    # Their ids have the time of that clock too.
    assert find_surplus([*future, *young], keep=2, now=now) == sorted(future, key=lambda each: each.id)[::-1]
