"""Updates of streams as records in every job store."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from jobs.store import JobStore
from model.errors import (
    StreamStateError,
    UpdateInProgressError,
)
from model.stream_options import StreamKind
from model.stream_record import StreamEventType, StreamState, Wanted
from model.stream_update import StreamUpdate, UpdateReplay, UpdateRequest, UpdateState
from tests.contract.test_job_store_snapshots import complete
from tests.waiting import wait_until
from tests.worlds.restores import end_restore

AGENT = "agent-1"
REQUEST = UpdateRequest("1.3", {"slots": 8, "batch_bytes": None}, {"old": "new", "gone": None}, 30.0, 5, "faster")


@pytest.fixture(autouse=True)
def launched(store: JobStore) -> None:
    options = {"slots": 2, "batch_seconds": 3.0, "batch_bytes": 2_000_000}
    store.launch_stream("backup", StreamKind.BACKUP, actor="ann", release="1.2", options=options)
    store.take_streams(AGENT, limit=1, lease_seconds=60)
    store.report_stream("backup", AGENT, StreamState.RUNNING, instance_id="in_1")


def create(
    store: JobStore, stream: str = "backup", request: UpdateRequest = REQUEST, **given: Any
) -> StreamUpdate:
    return store.create_update(stream, request, **{"actor": "ann"} | given)


def advance(store: JobStore, *states: UpdateState) -> StreamUpdate:
    """Begin an update and bring it through ``states``."""
    found = create(store)
    for state in states:
        if state is UpdateState.HANDING_OVER:
            found = store.note_update(found, instance_id="in_2", outgoing_id="in_1")
        if state is UpdateState.HANDING_BACK:
            found = store.note_update(found, instance_id="in_3", outgoing_id="in_2")
        found = store.advance_update(found, state)
    return found


def test_an_update_begins_with_its_check_and_remembers_where_it_came_from(store: JobStore) -> None:
    made = create(store)
    assert [made, made] == [store.get_update(made.id), *store.list_updates("backup", living=True)]
    assert (made.state, made.stream, made.generation) == (UpdateState.CHECKING, "backup", 1)
    assert (made.request, made.created_by, made.has_way_back) == (REQUEST, "ann", None)
    assert (made.from_release, made.from_options) == ("1.2", store.get_stream("backup").options)
    renamed = {"mapping": {"old": "new"}}
    assert made.to_options == {"slots": 8, "batch_seconds": 3.0, **renamed}
    assert made.back_options == {**made.from_options, **renamed}
    assert (made.error, made.finished_at, made.attempts, made.replay) == (None, None, 0, None)
    noted = store.list_stream_events("backup")[-1]
    assert (noted.type, noted.actor, noted.why) == (StreamEventType.NOTED, "ann", "faster")
    assert noted.fields == {"update": made.id}
    assert store.get_stream("backup").release == "1.2", "nothing has begun"


def test_the_hand_over_gives_the_stream_to_the_new_process_with_its_release_and_options(store: JobStore) -> None:
    version = store.get_stream("backup").version
    handed = advance(store, UpdateState.SNAPSHOTTING, UpdateState.STARTING, UpdateState.HANDING_OVER)
    assert handed.handed_over_at == handed.changed_at
    record = store.get_stream("backup")
    assert (record.release, record.options, record.instance_id) == ("1.3", handed.to_options, "in_2")
    assert (record.version, record.agent) == (version + 1, AGENT)
    assert [event.what for event in store.list_stream_events("backup")][-2:] == [
        "started in_2",
        f"update {handed.id} HANDING_OVER",
    ]


def test_what_is_noted_of_a_step_is_kept(store: JobStore) -> None:
    made = create(store)
    unknown = UpdateReplay(None, made.created_at, ())
    noted = store.note_update(made, attempts=2, checked={"has_way_back": False}, replay=unknown)
    assert (noted.attempts, noted.has_way_back, noted.replay) == (2, False, unknown)
    assert noted.changed_at == made.changed_at


def test_each_direction_counts_its_own_standbys(store: JobStore) -> None:
    begun = store.note_update(advance(store, UpdateState.STARTING), attempts=2)
    handed = store.advance_update(begun, UpdateState.HANDING_OVER, instance_id="in_2")
    assert handed.attempts == 2
    assert store.advance_update(handed, UpdateState.ROLLING_BACK).attempts == 0


def test_a_step_from_a_state_that_has_passed_is_refused(store: JobStore) -> None:
    seen = create(store)
    store.advance_update(seen, UpdateState.ROLLED_BACK, actor="ann")
    with pytest.raises(StreamStateError, match="no longer CHECKING"):
        store.advance_update(seen, UpdateState.STARTING)
    with pytest.raises(StreamStateError, match="no longer CHECKING"):
        store.note_update(seen, attempts=1)
    assert store.get_update(seen.id).state is UpdateState.ROLLED_BACK


def test_changes_and_rollbacks_wait_for_the_end_of_an_update_and_updates_for_that_of_a_rollback(store):
    snapshot = complete(store)
    update = create(store)
    with pytest.raises(UpdateInProgressError, match=update.id):
        store.change_stream("backup", actor="ann", options={"batch_seconds": 1.0})
    with pytest.raises(UpdateInProgressError, match=update.id):
        store.create_restore("backup", snapshot.id, actor="ann")
    store.advance_update(update, UpdateState.REFUSED)
    restore = store.create_restore("backup", snapshot.id, actor="ann")
    with pytest.raises(StreamStateError, match="being rolled back"):
        create(store)
    end_restore(store, restore.id)
    create(store)


def test_a_hand_over_that_has_begun_is_not_cut_off_by_a_drain(store: JobStore) -> None:
    update = advance(store, UpdateState.HANDING_OVER)
    store.end_stream("backup", Wanted.DRAINED, actor="ann")
    assert store.get_update(update.id).state is UpdateState.HANDING_OVER


def test_a_drain_and_a_hand_over_at_once_do_not_wait_for_each_other(store: JobStore) -> None:
    found = store.note_update(create(store), instance_id="in_2", outgoing_id="in_1")
    waits = sa.text(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    )
    with ThreadPoolExecutor(1) as pool:
        with store.together():
            # The drain has the stream; the hand-over comes before the drain has got to the update.
            store.note_stream("backup", actor="ann", what="noted")
            handing = pool.submit(store.advance_update, found, UpdateState.HANDING_OVER)
            if store._database.is_shared:
                with store._database.read() as connection:
                    wait_until(lambda: connection.scalar(waits), "the hand-over waits")
            store.end_stream("backup", Wanted.DRAINED, actor="ann")
        with pytest.raises(StreamStateError, match="FAILED"):
            handing.result(20)
    assert store.get_update(found.id).state is UpdateState.FAILED
    assert store.get_stream("backup").wanted is Wanted.DRAINED
