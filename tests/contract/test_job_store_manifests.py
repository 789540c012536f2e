"""Manifests and the runs of schedules as records in every job store."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest

from jobs.store import DELETION, RESTORE, JobStore, open_store
from jobs.store.manifests import AHEAD, KEEP_RUNS
from jobs.store.tables import JOBS, STREAM_SNAPSHOTS
from model.errors import ManifestChangedError, ManifestNotFoundError, ManifestOwnedError
from model.manifest_record import ManifestRecord, NewRun, RunState, Settlement
from model.principal import READ, RUN, Principal
from model.stream_options import StreamKind
from model.stream_snapshot import SnapshotState
from rollout.manifests.manifest import parse_manifest
from rollout.manifests.schedule import read_schedule
from tests.work import counted
from tests.worlds.migrations import insert, migrate_to

ANN = Principal("ann", frozenset({RUN, READ}), ("orders",))
REQUEST = {"job": {"kind": "merge", "request": {}}, "time_zone": "UTC"}


def put(store: JobStore, digest: str = "1", source: str = "api", **given: object) -> ManifestRecord:
    return store.put_manifest(
        "nightly",
        "Schedule",
        {"cron": digest},
        digest,
        source=source,
        principal=ANN,
        **given,  # type: ignore[arg-type]
    )


def settlement(record: ManifestRecord, *states: RunState) -> Settlement:
    slots = [record.settled_until + timedelta(hours=number) for number in range(1, len(states) + 1)]
    runs = tuple(NewRun(slot, slot - timedelta(hours=1), state) for slot, state in zip(slots, states, strict=True))
    return Settlement(slots[-1], runs, REQUEST)


def test_a_manifest_is_kept_with_who_applied_it_and_the_same_again_changes_nothing(store):
    first = put(store)
    assert (first.version, first.applied_by, first.scopes, first.topics) == (1, "ann", ANN.scopes, ANN.topics)
    assert first.settled_until == first.created_at
    assert put(store) == first
    second = put(store, "2", keeps_slots=lambda before: before.digest == "1")
    assert (second.version, second.document, second.settled_until) == (2, {"cron": "2"}, first.settled_until)
    assert put(store, "3").settled_until > first.settled_until
    assert [record.name for record in store.list_manifests(kind="Schedule")] == ["nightly"]
    assert store.list_manifests(kind="Rollout") == []


def test_a_name_belongs_to_its_source_until_it_is_removed(store):
    put(store)
    with pytest.raises(ManifestOwnedError, match="belongs to api"):
        put(store, "2", source="folder")
    with pytest.raises(ManifestOwnedError):
        store.remove_manifest("nightly", source="folder")
    store.remove_manifest("nightly", source="api")
    for call in (store.get_manifest, lambda name: store.pause_schedule(name, "x")):
        with pytest.raises(ManifestNotFoundError):
            call("nightly")
    assert (put(store, source="folder").version, store.list_manifests()[0].source) == (3, "folder")


def test_a_change_is_of_the_version_that_was_seen(store):
    put(store, expected_version=0)
    with pytest.raises(ManifestChangedError):
        put(store, "2", expected_version=0)
    put(store, "2", expected_version=1)
    with pytest.raises(ManifestChangedError):
        store.remove_manifest("nightly", source="api", expected_version=1)
    store.remove_manifest("nightly", source="api", expected_version=2)


def test_of_replicas_that_settle_at_once_one_adds_the_run(store, url):
    since = put(store).settled_until
    asked = []

    def choose(record, now, living):
        asked.append(record.settled_until)
        return settlement(record, RunState.STARTING) if record.settled_until == since else None

    other = open_store(url)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: (store, other)[number % 2].settle_slots("nightly", choose), range(16)))
    other.close()
    assert sorted(map(len, made)) == [0] * 15 + [1]
    assert (asked.count(since), len(asked)) == (1, 16)
    (run,) = store.list_living_runs()
    assert (run.slot, run.slot_start, run.request) == (since + timedelta(hours=1), since, REQUEST)


def test_a_paused_or_removed_schedule_settles_nothing(store):
    first = put(store)
    store.pause_schedule("nightly", "by ann")
    assert store.settle_slots("nightly", lambda record, *_: settlement(record, RunState.STARTING)) == []
    resumed = store.pause_schedule("nightly", None)
    assert (resumed.paused, resumed.settled_until > first.settled_until) == (None, True)
    store.remove_manifest("nightly", source="api")
    assert store.settle_slots("nightly", lambda record, *_: settlement(record, RunState.STARTING)) == []


def test_a_run_is_changed_only_from_the_state_in_which_it_was_seen(store):
    put(store)
    (run,) = store.settle_slots("nightly", lambda record, *_: settlement(record, RunState.STARTING))
    assert store.change_run(run, RunState.RUNNING, job_kind="merge", job_id="mg_1")
    assert not store.change_run(run, RunState.FAILED, why="late"), "another replica has given it its job"
    assert not store.change_run(run, RunState.RUNNING, job_kind="merge", job_id="mg_2")
    (running,) = store.list_living_runs()
    assert (running.job_id, running.state, running.finished_at) == ("mg_1", RunState.RUNNING, None)
    assert store.change_run(running, RunState.SUCCEEDED)
    assert store.list_living_runs() == []
    (done,) = store.list_runs("nightly", limit=5)
    assert (done.state, done.finished_at is not None) == (RunState.SUCCEEDED, True)


def test_a_run_that_got_its_job_while_its_schedule_was_removed_is_followed(store):
    put(store)
    first, second = store.settle_slots(
        "nightly", lambda record, *_: settlement(record, RunState.STARTING, RunState.QUEUED)
    )
    store.remove_manifest("nightly", source="api")
    assert [run.state for run in store.list_runs("nightly", limit=5)] == [RunState.SKIPPED] * 2
    assert not store.change_run(second, RunState.STARTING)
    assert store.change_run(first, RunState.RUNNING, job_kind="merge", job_id="mg_1")
    (run,) = store.list_living_runs()
    assert (run.slot, run.finished_at) == (first.slot, None)


def test_a_run_that_could_not_start_its_job_is_told_until_a_later_one_has_started_its_own(store):
    def settle(*states):
        store.settle_slots("nightly", lambda record, now, living: settlement(record, *states))

    put(store)
    since = store.now() - timedelta(days=7)
    settle(RunState.SUCCEEDED)
    assert store.list_unstarted(since) == []
    settle(RunState.FAILED, RunState.SKIPPED)
    (told,) = store.list_unstarted(since)
    assert (told.schedule, told.state) == ("nightly", RunState.FAILED)
    assert store.list_unstarted(store.now() + timedelta(hours=1)) == [], "it is history"
    settle(RunState.STARTING)
    assert store.list_unstarted(since) == [told], "nobody knows yet whether the next one can"
    (run,) = store.list_living_runs()
    store.change_run(run, RunState.RUNNING, job_kind="merge", job_id="mg_1")
    assert store.list_unstarted(since) == []
    (run,) = store.list_living_runs()
    store.change_run(run, RunState.FAILED, why="the merge failed")
    assert store.list_unstarted(since) == [], "its job is told itself"


def test_a_slot_that_had_its_run_gets_no_other_when_the_manifest_comes_back(store):
    since = put(store).settled_until
    store.settle_slots("nightly", lambda record, *_: settlement(record, RunState.STARTING))
    store.remove_manifest("nightly", source="api")
    back = put(store)
    assert back.settled_until == since + timedelta(hours=1)
    one = NewRun(since + timedelta(hours=1), since, RunState.STARTING)
    store.settle_slots("nightly", lambda record, *_: Settlement(record.settled_until, (one,), REQUEST))
    assert [run.state for run in store.list_runs("nightly", limit=5)] == [RunState.SKIPPED]


def test_of_calls_with_one_key_that_come_at_once_one_makes_a_run(store, url):
    put(store)
    other = open_store(url)

    def ask(number):
        def choose(record, now, living):
            return Settlement(now, (NewRun(now, now - timedelta(hours=1), RunState.STARTING),), REQUEST)

        return (store, other)[number % 2].add_run("nightly", choose, actor="ann", idempotency_key="k")

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(ask, range(16)))
    other.close()
    assert len({run.slot for run in made}) == len(store.list_runs("nightly", limit=5)) == 1
    said = [(each.actor, each.what) for each in store.list_last_events(limit=9, of=("manifest", "nightly"))]
    assert said.count(("ann", "requested a run")) == 1
    assert store.get_manifest("nightly").settled_until < made[0].slot, "slots are not settled by it"
    with pytest.raises(ManifestNotFoundError):
        store.add_run("weekly", lambda *_: None, actor="ann", idempotency_key=None)


def test_a_slot_reads_nothing_of_the_runs_before_it(store):
    put(store)

    def settle(count):
        with counted(store) as work:
            states = [RunState.SKIPPED] * count
            assert len(store.settle_slots("nightly", lambda record, *_: settlement(record, *states))) == count
        return work

    first = settle(1)
    settle(500)
    after = settle(1)
    assert (after.statements, after.rows) == (first.statements, first.rows)
    assert after.instructions <= first.instructions + 500, "not one for each run"


def test_runs_of_long_ago_are_forgotten_and_none_of_their_slots_runs_again(store):
    since = put(store).settled_until
    old = since - 2 * KEEP_RUNS
    slots = [old + timedelta(hours=number) for number in range(5)]
    runs = [NewRun(slot, slot, RunState.SKIPPED) for slot in slots]
    store.settle_slots("nightly", lambda *_: Settlement(since, tuple(runs), REQUEST))
    store.settle_slots("nightly", lambda record, *_: settlement(record, RunState.STARTING))
    assert [run.slot for run in store.list_runs("nightly", limit=9)] == [since + timedelta(hours=1), slots[-1]]
    real = store._database.now
    store._database.now = lambda connection: real(connection) - 4 * KEEP_RUNS  # type: ignore[method-assign]
    assert store.set_back("nightly").settled_until == slots[-1], "slots before it may have run"


def test_slots_are_taken_back_where_they_are_decided_for_more_than_an_hour_ahead(store):
    settled = put(store).settled_until
    for now, until in ((settled - AHEAD, settled), (early := settled - AHEAD - timedelta(seconds=1), early)):
        store._database.now = lambda _, now=now: now  # type: ignore[method-assign, misc]
        assert store.set_back("nightly").settled_until == until


def test_a_look_at_what_goes_on_reads_nothing_of_what_has_ended(store):
    put(store)

    def look():
        with counted(store) as work:
            store.list_living_runs()
            store.list_updates(living=True)
            store.list_step_jobs([RESTORE, DELETION])
            store.list_snapshots(states=(SnapshotState.PENDING, SnapshotState.DELETING))
        return work

    first = look()
    fill(store, 300)
    after = look()
    assert (after.statements, after.rows) == (first.statements, first.rows) == (after.statements, 0)
    assert after.instructions <= first.instructions + 200, "not one for each row"


def fill(store: JobStore, count: int) -> None:
    """Keep ``count`` of everything that has ended."""
    store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
    states = [RunState.SKIPPED] * count
    store.settle_slots("nightly", lambda record, *_: settlement(record, *states))
    now = store.now()
    with store._database.write() as connection:
        for number in range(count):
            text = {"id": f"x{number}", "stream": "backup", "created_by": "ann", "created_at": now}
            kept = {
                "with_source": False,
                "reason": "manual",
                "state": "COMPLETED",
                "kind": "backup",
                "sources": [],
            }
            connection.execute(STREAM_SNAPSHOTS.insert(), {**text, **kept, "kind": "backup"})
            over = {"kind": RESTORE, "state": "SUCCEEDED", "subject": "stream/backup", "finished_at": now}
            job = {"id": f"x{number}", "request": {}, "progress": {}, "epoch": 0, "version": 1}
            connection.execute(JOBS.insert().values(**job, **over, created_by="ann", created_at=now))


@pytest.mark.usefixtures("migrations")
def test_a_schedule_whose_slots_replaced_runs_lets_them_wait_and_its_runs_go_on(empty):
    text = "kind: Schedule\nname: nightly\ncron: 0 3 * * *\njob: {kind: merge}\noverlap: queue\n"
    wanted = parse_manifest(text.encode())
    at = "2026-01-02T03:00:00+00:00"
    engine = migrate_to(empty, "0028")
    with engine.begin() as connection:
        facts = {"kind": "Schedule", "source": "api", "version": 1, "scopes": [RUN], "settled_until": at}
        facts |= {"changed_at": at, "applied_by": "ann", "created_at": at, "digest": "d"}
        document = {**wanted.document, "overlap": "replace"}
        insert(connection, "manifests", name="nightly", document=document, **facts)
        insert(connection, "manifests", name="other", document={"name": "other"}, **facts)
        run = {"schedule": "nightly", "slot_start": at, "request": REQUEST, "created_at": at}
        for slot, state, given in (
            ("2026-01-01T03:00:00+00:00", "RUNNING", {"job_kind": "merge", "job_id": "mg_1", "is_unwanted": True}),
            (at, "QUEUED", {"is_unwanted": False}),
        ):
            insert(connection, "schedule_runs", slot=slot, state=state, **run, **given)
    engine.dispose()
    with closing(open_store(empty)) as store:
        found = store.get_manifest("nightly")
        assert (found.digest, read_schedule(found.document).overlap) == (wanted.digest, "queue")
        assert (store.get_manifest("other").digest, found.version) == ("d", 1)
        first, second = store.list_living_runs()
        assert [first.state, second.state] == [RunState.RUNNING, RunState.QUEUED]
        assert store.change_run(first, RunState.SUCCEEDED)
        assert store.change_run(second, RunState.STARTING)
