"""Updates of streams as records in every job store."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from jobs.store import update_of
from jobs.store.tables import JOBS
from model.errors import JobChangedError, StreamStateError, UpdateInProgressError
from model.event import HistoryEventType
from model.fault import FaultRecord
from model.job import JobState
from model.stream_options import StreamKind
from model.stream_record import StreamState, Wanted
from model.stream_update import UNWANTED, UpdateFault, UpdateReplay, UpdateRequest, UpdateState, UpdateStrategy
from tests.contract.test_job_store_snapshots import complete
from tests.waiting import wait_until
from tests.worlds.restores import end_restore
from tests.worlds.update_jobs import advance_update, note_update

AGENT = "agent-1"
FAULT = UpdateFault(UNWANTED, "ann rolled the update back.")
REQUEST = UpdateRequest("1.3", {"slots": 8, "batch_bytes": None}, {"old": "new", "gone": None}, 30.0, 5, "faster")


@pytest.fixture(autouse=True)
def launched(store):
    options = {"slots": 2, "batch_seconds": 3.0, "batch_bytes": 2_000_000}
    store.launch_stream("backup", StreamKind.BACKUP, actor="ann", release="1.2", options=options)
    store.take_streams(AGENT, limit=1, lease_seconds=60)
    store.report_stream("backup", AGENT, StreamState.RUNNING, instance_id="in_1")


def create(store, stream="backup", request=REQUEST, **given):
    return store.create_update(stream, request, **{"actor": "ann"} | given)


def advance(store, *states):
    """Begin an update and bring it through ``states``."""
    found = create(store)
    for state in states:
        if state is UpdateState.HANDING_OVER:
            found = note_update(store, found, instance_id="in_2", outgoing_id="in_1")
        if state is UpdateState.HANDING_BACK:
            found = note_update(store, found, instance_id="in_3", outgoing_id="in_2")
        found = advance_update(store, found, state)
    return found


def test_an_update_begins_with_its_check_and_remembers_where_it_came_from(store):
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
    assert (noted.type, noted.actor, noted.why) == (HistoryEventType.NOTED, "ann", "faster")
    assert noted.fields == {"update": made.id}
    assert store.get_stream("backup").release == "1.2", "nothing has begun"


def test_an_update_of_a_later_release_is_read_without_what_that_added(store):
    made = create(store)
    later = {**store.get(made.id).request, "update": {**REQUEST.to_json(), "canary_share": 0.1}}
    with store._database.write() as connection:
        connection.execute(JOBS.update().where(JOBS.c.id == made.id).values(request=later, step="canary"))
    (found,) = store.list_updates("backup")
    assert (found.request, found.state.is_ended) == (REQUEST, False)


def test_the_hand_over_gives_the_stream_to_the_new_process_with_its_release_and_options(store):
    version = store.get_stream("backup").version
    handed = advance(store, UpdateState.SNAPSHOTTING, UpdateState.STARTING, UpdateState.HANDING_OVER)
    assert abs(handed.handed_over_at - handed.changed_at) < timedelta(seconds=10)
    record = store.get_stream("backup")
    assert (record.release, record.options, record.instance_id) == ("1.3", handed.to_options, "in_2")
    assert (record.version, record.agent) == (version + 1, AGENT)
    assert [event.what for event in store.list_stream_events("backup")][-2:] == [
        "started in_2",
        f"update {handed.id} HANDING_OVER",
    ]


def test_what_is_noted_of_a_step_is_kept(store):
    made = create(store)
    unknown = UpdateReplay(None, made.created_at, ())
    noted = note_update(store, made, checked={"has_way_back": False}, replay=unknown)
    assert (noted.has_way_back, noted.replay) == (False, unknown)
    assert noted.changed_at == made.changed_at


def test_each_direction_counts_its_own_standbys(store):
    begun = advance(store, UpdateState.STARTING, UpdateState.STARTING)
    assert begun.attempts == 0, "no process was started"
    assert note_update(store, begun, standby="stand_by/2").attempts == 2
    assert advance_update(store, begun, UpdateState.ROLLING_BACK).attempts == 0


def test_an_agent_s_step_that_comes_after_a_person_s_decision_is_refused(store):
    seen = store.get(create(store).id)
    back = store.take_update_back(seen.id, FAULT, actor="ann")
    assert (back.state, back.error) == (UpdateState.ROLLED_BACK, FAULT)
    assert store.get(seen.id).state is JobState.CANCELLED
    with pytest.raises(JobChangedError):
        store.begin_step(seen, "stand_by", owner=None)
    with pytest.raises(JobChangedError):
        store.note_step(seen, {"instance_id": "in_2"})
    with pytest.raises(JobChangedError):
        store.end_step_job(seen, JobState.FAILED, owner=None, ended=store.end_update)
    noted = store.list_stream_events("backup")[-1]
    assert (noted.actor, noted.what) == ("ann", f"update {seen.id} ROLLED_BACK")


@pytest.mark.parametrize(
    ("state", "has_way_back", "then"),
    [
        (UpdateState.CHECKING, None, UpdateState.ROLLED_BACK),
        (UpdateState.STARTING, True, UpdateState.ROLLED_BACK),
        (UpdateState.HANDING_OVER, False, UpdateState.HANDING_OVER),
        (UpdateState.WATCHING, True, UpdateState.ROLLING_BACK),
        (UpdateState.WATCHING, False, None),
        (UpdateState.ROLLING_BACK, True, None),
        (UpdateState.STABLE, True, None),
    ],
)
def test_an_update_is_taken_back_as_far_as_it_has_come(store, state, has_way_back, then):
    checked = {"has_way_back": has_way_back, "no_way_back": ["a column"]}
    update = create(store)
    if state is not UpdateState.CHECKING:
        update = advance_update(store, update, state, checked=checked)
    if then is None:
        why = "the reason: a column" if state is UpdateState.WATCHING else f"is {state}"
        may_stay = state is not UpdateState.WATCHING
        with pytest.raises(StreamStateError, match=why):
            store.take_update_back(update.id, FAULT, actor="ann", may_stay=may_stay)
        assert store.get_update(update.id) == update
        return
    decided = store.take_update_back(update.id, FAULT, actor="ann")
    assert (decided.state, decided.error) == (then, FAULT)
    assert store.list_stream_events("backup")[-1].actor == "ann"


@pytest.mark.parametrize(
    ("step", "state", "then"),
    [
        ("measure", UpdateState.MEASURING, UpdateState.ROLLED_BACK),
        ("stop", UpdateState.STOPPING, UpdateState.STOPPING),
        ("start", UpdateState.RESTARTING, UpdateState.STOPPING_BACK),
        ("watch", UpdateState.WATCHING, UpdateState.STOPPING_BACK),
        ("back_stop", UpdateState.STOPPING_BACK, None),
        ("back_start", UpdateState.RESTARTING_BACK, None),
    ],
)
def test_a_restart_is_taken_back_as_far_as_it_has_come(store, step, state, then):
    request = replace(REQUEST, strategy=UpdateStrategy.RESTART)
    job = store.get(store.create_update("backup", request, actor="ann").id)
    update = update_of(store.begin_step(job, step, owner=None))
    assert update.state is state
    if then is None:
        with pytest.raises(StreamStateError, match=f"is {state}"):
            store.take_update_back(update.id, FAULT, actor="ann")
        return
    assert store.take_update_back(update.id, FAULT, actor="ann").state is then


def test_a_start_gives_the_stream_to_the_other_side_and_its_agent_starts_that(store):
    store.report_stream("backup", AGENT, StreamState.FAILED, error=FaultRecord("stream_died", "It ended."))
    request = replace(REQUEST, mapping={}, strategy=UpdateStrategy.RESTART)
    before = store.get_stream("backup")
    update = store.create_update("backup", request, actor="ann")
    update = advance_update(store, update, UpdateState.RESTARTING)
    given = store.get_stream("backup")
    assert (given.release, given.options) == (request.release, update.to_options)
    assert (given.state, given.error, given.instance_id) == (StreamState.STARTING, None, "in_1")
    assert given.version > before.version
    advance_update(store, update, UpdateState.RESTARTING_BACK)
    back = store.get_stream("backup")
    assert (back.release, back.options) == (before.release, before.options)


def test_a_release_without_a_way_back_may_stay_when_its_update_is_given_up(store):
    update = advance_update(store, create(store), UpdateState.WATCHING, checked={"has_way_back": False})
    given_up = store.take_update_back(update.id, FAULT, actor="manifest", may_stay=True)
    assert (given_up.state, given_up.error) == (UpdateState.FAILED, FAULT)


def test_changes_and_rollbacks_wait_for_the_end_of_an_update_and_updates_for_that_of_a_rollback(store):
    snapshot = complete(store)
    update = create(store)
    with pytest.raises(UpdateInProgressError, match=update.id):
        store.change_stream("backup", actor="ann", options={"batch_seconds": 1.0})
    with pytest.raises(UpdateInProgressError, match=update.id):
        store.create_restore("backup", snapshot.id, actor="ann")
    advance_update(store, update, UpdateState.REFUSED)
    restore = store.create_restore("backup", snapshot.id, actor="ann")
    with pytest.raises(StreamStateError, match="being rolled back"):
        create(store)
    end_restore(store, restore.id)
    create(store)


def test_a_hand_over_that_has_begun_is_not_cut_off_by_a_drain(store):
    update = advance(store, UpdateState.HANDING_OVER)
    store.end_stream("backup", Wanted.DRAINED, actor="ann")
    assert store.get_update(update.id).state is UpdateState.HANDING_OVER


def test_a_drain_and_a_hand_over_at_once_do_not_wait_for_each_other(store):
    found = note_update(store, create(store), instance_id="in_2", outgoing_id="in_1")
    waits = sa.text(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    )
    with ThreadPoolExecutor(1) as pool:
        with store.together():
            # The drain has the stream; the hand-over comes before the drain has got to the update.
            store.note_stream("backup", actor="ann", what="noted")
            handing = pool.submit(advance_update, store, found, UpdateState.HANDING_OVER)
            if store._database.is_shared:
                with store._database.read() as connection:
                    wait_until(lambda: connection.scalar(waits), "the hand-over waits")
            store.end_stream("backup", Wanted.DRAINED, actor="ann")
        with pytest.raises(JobChangedError, match="FAILED"):
            handing.result(20)
    assert store.get_update(found.id).state is UpdateState.FAILED
    assert store.get_stream("backup").wanted is Wanted.DRAINED
