"""Changes that a second person has to approve: each is made once, as it was asked for, or not at all."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from jobs.store.tables import JOBS
from model.change import ChangeRequest
from model.errors import (
    ForbiddenError,
    JobNotFoundError,
    JobStateError,
    JobUnreadableError,
    ManifestChangedError,
    UpdateInProgressError,
)
from model.job import JobState, new_job_id
from model.principal import READ, SCHEDULES_APPLY, STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_options import StreamKind
from model.stream_record import Wanted
from model.stream_update import UpdateRequest
from rollout.changes import ChangeService
from rollout.service import StreamService
from rollout.snapshots import SnapshotService
from rollout.stream_changes import StreamChanges, stream_acts
from rollout.updates import UpdateService

ANN = Principal("key:ann", frozenset({STREAMS_OPERATE}))
BOB = Principal("key:bob", frozenset({STREAMS_OPERATE}))
EVE = Principal("key:eve", frozenset({STREAMS_OPERATE}))
DRAIN = {"timeout_seconds": 7.0}
EVERY = ("drain", "cancel", "rollback", "update")


@pytest.fixture(autouse=True)
def stream(store):
    store.launch_stream("backup", StreamKind.BACKUP, actor="key:ann")
    store.take_streams("agent", limit=1, lease_seconds=60)


@pytest.fixture
def changes(store):
    return ChangeService(store, stream_acts(StreamService(store), SnapshotService(store), UpdateService(store)))


@pytest.fixture
def streams(store, changes):
    return StreamChanges(changes, StreamService(store), EVERY)


def hold(streams, action="drain", request=DRAIN):
    return streams.hold(action, "backup", request, principal=ANN)


def update_request(**changes):
    given = {"release": "1.3", "options": {"slots": 8}, "mapping": {}, "validate_seconds": 1.0, "min_messages": 5}
    return {**given, "reason": "faster", **changes}


def test_only_the_actions_that_the_deployment_names_wait(store, changes):
    streams = StreamChanges(changes, StreamService(store), ("cancel",))
    assert streams.hold("drain", "backup", DRAIN, principal=ANN) is None
    assert streams.hold("cancel", "backup", {}, principal=ANN) is not None


def test_who_lacks_the_action_s_own_scope_decides_nothing(changes, streams):
    held = hold(streams)
    for scope in (READ, STREAMS_READ, SCHEDULES_APPLY):
        other = Principal("key:eve", frozenset({scope}))
        assert changes.get(held.id, principal=other) == held
        assert [item.id for item in changes.list_inbox(principal=other)] == [held.id]
        with pytest.raises(ForbiddenError):
            changes.approve(held.id, principal=other)
        with pytest.raises(ForbiddenError):
            changes.reject(held.id, principal=other)
    stranger = Principal("key:eve", frozenset())
    with pytest.raises(ForbiddenError):
        changes.get(held.id, principal=stranger)
    with pytest.raises(ForbiddenError):
        streams.hold("drain", "backup", DRAIN, principal=stranger)
    with pytest.raises(JobNotFoundError):
        changes.approve("ch_none", principal=BOB)


def test_an_action_that_can_t_be_carried_out_now_goes_on_waiting(store, changes, streams):
    held = hold(streams, "update", update_request())
    other = store.create_update("backup", UpdateRequest(None, {"slots": 4}, {}), actor="key:eve")
    with pytest.raises(UpdateInProgressError):
        changes.approve(held.id, principal=BOB)
    assert changes.get(held.id, principal=BOB) == held
    UpdateService(store).revert(other.id, principal=EVE)
    done = changes.approve(held.id, principal=BOB)
    made = store.get_update(done.result["update"])
    assert (made.request, made.created_by) == (UpdateRequest(**update_request()), "key:ann")


def test_nobody_approves_late_although_no_loop_has_looked(store, changes, streams):
    held = hold(streams)
    with store._database.write() as connection:
        connection.execute(JOBS.update().values(created_at=held.created_at - timedelta(days=1)))
    with pytest.raises(JobStateError):
        changes.approve(held.id, principal=BOB)
    found = changes.get(held.id, principal=BOB)
    assert (found.state, found.error and found.error.code) == (JobState.FAILED, "approval_late")
    assert store.get_stream("backup").wanted is Wanted.RUNNING


def test_an_action_says_what_it_changes(streams):
    said = hold(streams).request.what
    assert said == "Drain backup: the stream commits the messages that it has pulled, within 7 s, and then ends."
    request = update_request(options={"slots": 8, "batch_seconds": None})
    said = hold(streams, "update", request).request.what
    assert said == "Update backup to 1.3, with slots 8, batch_seconds as in the settings. The reason: faster"
    plain = update_request(release=None, options={}, reason=None)
    assert hold(streams, "update", plain).request.what == "Update backup to the installed release."


def test_of_two_who_approve_at_once_one_carries_it_out(store, changes, streams):
    held = hold(streams)
    begin = threading.Barrier(2)

    def approve(principal):
        begin.wait(20)
        try:
            return changes.approve(held.id, principal=principal).state is JobState.SUCCEEDED
        except JobStateError:
            return False

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(approve, (BOB, EVE))) == [False, True]
    assert [event.what for event in store.list_stream_events("backup")].count("wanted DRAINED") == 1


def test_a_process_that_dies_in_the_middle_has_decided_nothing(store, changes, streams):
    held = hold(streams)
    inside = stream_acts(StreamService(store), SnapshotService(store), UpdateService(store))["stream", "drain"]

    class KilledError(BaseException):
        """The end of the process, as its transaction sees it."""

    def act_and_die(change):
        inside(change)
        raise KilledError

    dying = ChangeService(store, {("stream", "drain"): act_and_die})
    with pytest.raises(KilledError):
        dying.approve(held.id, principal=BOB)
    assert changes.get(held.id, principal=BOB) == held
    assert store.get_stream("backup").wanted is Wanted.RUNNING
    assert changes.approve(held.id, principal=EVE).state is JobState.SUCCEEDED
    line = store.list_stream_events("backup")[-1]
    assert (line.actor, line.why) == ("key:ann", f"{held.id}, approved by key:eve")
    assert store.get_stream("backup").wanted is Wanted.DRAINED


def test_another_kind_of_thing_is_one_more_function(store):
    removed = []

    def remove(change):
        if change.request.version != 1:
            raise ManifestChangedError
        removed.append(f"{change.request.name}, decided by {change.decided_by}")
        return {"manifests": [change.request.name]}

    changes = ChangeService(store, {("manifest", "remove"): remove})
    applier = Principal("bucket", frozenset({SCHEDULES_APPLY}))
    asked = ChangeRequest("manifest", "nightly", "remove", {}, "Remove nightly.", 1, SCHEDULES_APPLY, applier)
    held = changes.ask(asked)
    with pytest.raises(ForbiddenError):
        changes.approve(held.id, principal=BOB)
    changes.approve(held.id, principal=Principal("key:bob", frozenset({SCHEDULES_APPLY})))
    assert removed == ["nightly, decided by bucket", "nightly, decided by key:bob"], "rehearsed, and then done"
    with pytest.raises(ManifestChangedError):
        changes.ask(replace(asked, version=2))
    with pytest.raises(JobStateError, match="can't apply a manifest"):
        changes.ask(replace(asked, verb="apply"))


def test_a_change_of_another_release_keeps_nobody_from_the_others(store, changes, streams):
    held = hold(streams)
    other = store.insert(new_job_id("ch"), "change", {**store.get(held.id).request, "later": 1}, actor="key:ann")
    assert [item.id for item in changes.list_inbox(principal=BOB)] == [held.id]
    with pytest.raises(JobUnreadableError):
        changes.approve(other.id, principal=BOB)
    assert hold(streams) == held
    changes.expire()
    later = held.created_at + timedelta(days=1, minutes=1)
    store._database.now = lambda _: later
    changes.expire()
    assert [store.get(each).state for each in (held.id, other.id)] == [JobState.FAILED, JobState.FAILED]
