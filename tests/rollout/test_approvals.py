"""Actions that a second person has to approve: each is carried out once, as it was asked for, or not at all."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from jobs.store import JobStore
from model.approval import Approval, ApprovalRequest, ApprovalState
from model.errors import (
    ApprovalNotFoundError,
    ApprovalStateError,
    ForbiddenError,
    ManifestChangedError,
    StreamChangedError,
    UpdateInProgressError,
)
from model.principal import READ, SCHEDULES_APPLY, STREAMS_OPERATE, STREAMS_READ, Principal
from model.stream_options import StreamKind
from model.stream_record import Wanted
from model.stream_update import UpdateRequest
from rollout.approvals import ApprovalService
from rollout.service import StreamService
from rollout.snapshots import SnapshotService
from rollout.stream_approvals import StreamApprovals, stream_actions
from rollout.updates import UpdateService
from tests.contract.test_job_store_snapshots import complete
from tests.worlds.restores import end_restore

ANN = Principal("key:ann", frozenset({STREAMS_OPERATE}))
BOB = Principal("key:bob", frozenset({STREAMS_OPERATE}))
EVE = Principal("key:eve", frozenset({STREAMS_OPERATE}))
DRAIN = {"timeout_seconds": 7.0}
EVERY = ("drain", "cancel", "rollback", "update")


@pytest.fixture(autouse=True)
def stream(store: JobStore) -> None:
    store.launch_stream("backup", StreamKind.BACKUP, actor="key:ann")
    store.take_streams("agent", limit=1, lease_seconds=60)


@pytest.fixture
def approvals(store: JobStore) -> ApprovalService:
    return ApprovalService(
        store, stream_actions(StreamService(store), SnapshotService(store), UpdateService(store))
    )


@pytest.fixture
def streams(store: JobStore, approvals: ApprovalService) -> StreamApprovals:
    return StreamApprovals(approvals, StreamService(store), EVERY)


def hold(streams: StreamApprovals, action: str = "drain", request: Mapping[str, Any] = DRAIN) -> Approval:
    held = streams.hold(action, "backup", request, principal=ANN)
    assert held is not None
    return held


def update_request(**changes: Any) -> dict[str, Any]:
    given = {"release": "1.3", "options": {"slots": 8}, "mapping": {}, "validate_seconds": 1.0, "min_messages": 5}
    return {**given, "reason": "faster", **changes}


def test_only_the_actions_that_the_deployment_names_wait(store: JobStore, approvals: ApprovalService) -> None:
    streams = StreamApprovals(approvals, StreamService(store), ("cancel",))
    assert streams.hold("drain", "backup", DRAIN, principal=ANN) is None
    assert streams.hold("cancel", "backup", {}, principal=ANN) is not None


def test_the_requester_can_take_it_back_and_never_approve_it(store, approvals, streams):
    held = hold(streams)
    with pytest.raises(ForbiddenError, match="Another person"):
        approvals.approve(held.id, principal=ANN)
    assert approvals.get(held.id, principal=BOB).state is ApprovalState.WAITING
    rejected = approvals.reject(held.id, principal=ANN, reason="a mistake")
    assert (rejected.state, rejected.reason) == (ApprovalState.REJECTED, "a mistake")
    with pytest.raises(ApprovalStateError):
        approvals.approve(held.id, principal=BOB)
    assert store.get_stream("backup").wanted is Wanted.RUNNING


def test_who_lacks_the_action_s_own_scope_decides_nothing(approvals, streams):
    held = hold(streams)
    for scope in (READ, STREAMS_READ, SCHEDULES_APPLY):
        other = Principal("key:eve", frozenset({scope}))
        assert approvals.get(held.id, principal=other) == held
        assert approvals.list_page(principal=other, limit=5) == [held]
        with pytest.raises(ForbiddenError):
            approvals.approve(held.id, principal=other)
        with pytest.raises(ForbiddenError):
            approvals.reject(held.id, principal=other)
    stranger = Principal("key:eve", frozenset())
    with pytest.raises(ForbiddenError):
        approvals.get(held.id, principal=stranger)
    with pytest.raises(ForbiddenError):
        streams.hold("drain", "backup", DRAIN, principal=stranger)
    with pytest.raises(ApprovalNotFoundError):
        approvals.approve("ap_none", principal=BOB)


def test_an_action_that_can_t_be_carried_out_now_goes_on_waiting(store, approvals, streams):
    held = hold(streams, "update", update_request())
    other = store.create_update("backup", UpdateRequest(None, {"slots": 4}, {}), actor="key:eve")
    with pytest.raises(UpdateInProgressError):
        approvals.approve(held.id, principal=BOB)
    assert approvals.get(held.id, principal=BOB) == held
    UpdateService(store).revert(other.id, principal=EVE)
    done = approvals.approve(held.id, principal=BOB)
    made = store.get_update(done.outcome["update"])
    assert (made.request, made.created_by) == (UpdateRequest(**update_request()), "key:ann")


def test_of_two_rollbacks_that_wait_for_one_version_of_a_stream_one_is_carried_out(store, approvals, streams):
    first, second = (
        hold(streams, "rollback", {"snapshot": complete(store).id, "discard_staged": False}) for _ in range(2)
    )
    done = approvals.approve(first.id, principal=BOB)
    end_restore(store, done.outcome["rollback"])
    with pytest.raises(StreamChangedError):
        approvals.approve(second.id, principal=BOB)
    assert approvals.get(second.id, principal=BOB).state is ApprovalState.EXPIRED
    assert len(store.list_restores("backup")) == 1


def test_an_action_says_what_it_changes(streams: StreamApprovals) -> None:
    said = hold(streams).asked.what
    assert said == "Drain backup: the stream commits the messages that it has pulled, within 7 s, and then ends."
    request = update_request(options={"slots": 8, "batch_seconds": None})
    said = hold(streams, "update", request).asked.what
    assert said == "Update backup to 1.3, with slots 8, batch_seconds as in the settings. The reason: faster"
    plain = update_request(release=None, options={}, reason=None)
    assert hold(streams, "update", plain).asked.what == "Update backup to the installed release."


def test_of_two_who_approve_at_once_one_carries_it_out(store, approvals, streams):
    held = hold(streams)
    begin, refused = threading.Barrier(2), []

    def approve(principal: Principal) -> None:
        begin.wait(20)
        try:
            approvals.approve(held.id, principal=principal)
        except ApprovalStateError as exc:
            refused.append(exc)

    threads = [threading.Thread(target=approve, args=(who,), daemon=True) for who in (BOB, EVE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert len(refused) == 1
    assert [event.what for event in store.list_stream_events("backup")].count("wanted DRAINED") == 1


def test_a_process_that_dies_in_the_middle_has_decided_nothing(store, approvals, streams):
    held = hold(streams)
    inside = stream_actions(StreamService(store), SnapshotService(store), UpdateService(store))["stream", "drain"]

    class KilledError(BaseException):
        """The end of the process, as its transaction sees it."""

    def act_and_die(approval: Approval) -> Mapping[str, Any]:
        inside(approval)
        raise KilledError

    dying = ApprovalService(store, {("stream", "drain"): act_and_die})
    with pytest.raises(KilledError):
        dying.approve(held.id, principal=BOB)
    assert approvals.get(held.id, principal=BOB) == held
    assert store.get_stream("backup").wanted is Wanted.RUNNING
    assert approvals.approve(held.id, principal=EVE).state is ApprovalState.APPROVED
    line = store.list_stream_events("backup")[-1]
    assert (line.actor, line.why) == ("key:ann", f"{held.id}, approved by key:eve")
    assert store.get_stream("backup").wanted is Wanted.DRAINED


def test_the_inbox_has_what_waits(approvals: ApprovalService, streams: StreamApprovals) -> None:
    held, other = hold(streams), hold(streams, "cancel", {})
    approvals.reject(other.id, principal=BOB)
    (item,) = approvals.list_inbox(principal=Principal("key:eve", frozenset({READ})))
    assert (item.kind, item.resource, item.id, item.created_by) == ("approval", "approval", held.id, "key:ann")
    assert item.message.endswith("A person other than key:ann must approve it.")
    assert item.state == "WAITING"


def test_another_kind_of_thing_is_one_more_function(store: JobStore) -> None:
    removed: list[str] = []

    def remove(approval: Approval) -> Mapping[str, Any]:
        if approval.asked.version != 1:
            raise ManifestChangedError
        if approval.state is ApprovalState.APPROVED:
            removed.append(approval.asked.name)
        return {"manifests": [approval.asked.name]}

    approvals = ApprovalService(store, {("manifest", "remove"): remove})
    applier = Principal("bucket", frozenset({SCHEDULES_APPLY}))
    asked = ApprovalRequest("manifest", "nightly", "remove", {}, "Remove nightly.", 1, SCHEDULES_APPLY, applier)
    held = approvals.ask(asked)
    with pytest.raises(ForbiddenError):
        approvals.approve(held.id, principal=BOB)
    approvals.approve(held.id, principal=Principal("key:bob", frozenset({SCHEDULES_APPLY})))
    assert removed == ["nightly"]
    with pytest.raises(ManifestChangedError):
        approvals.ask(replace(asked, version=2))
    with pytest.raises(ApprovalStateError, match="can't apply a manifest"):
        approvals.ask(replace(asked, action="apply"))
