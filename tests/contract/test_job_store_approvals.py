"""Approvals as records in every job store, and transactions over several calls."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from jobs.store import JobStore
from jobs.store.tables import APPROVALS
from model.approval import EXPIRES_AFTER, Approval, ApprovalRequest, ApprovalState
from model.errors import ApprovalNotFoundError, ApprovalStateError
from model.fault import FaultRecord
from model.principal import STREAMS_OPERATE, Principal
from model.stream_options import StreamKind

ANN = Principal("key:ann", frozenset({STREAMS_OPERATE}), ("orders", "test-*"))


def request(**changes: Any) -> ApprovalRequest:
    given: dict[str, Any] = {
        "kind": "stream",
        "name": "backup",
        "action": "drain",
        "request": {"timeout_seconds": 5.0},
        "what": "Drain backup.",
        "version": 3,
        "scope": STREAMS_OPERATE,
        "requester": ANN,
    }
    return ApprovalRequest(**given | changes)


def age(store: JobStore, approval: Approval) -> None:
    """Let the approval's time be over."""
    with store._database.write() as connection:
        over = store._database.now(connection) - timedelta(seconds=1)
        connection.execute(APPROVALS.update().where(APPROVALS.c.id == approval.id).values(expires_at=over))


def test_an_approval_is_kept_as_it_was_asked_for(store: JobStore) -> None:
    made = store.create_approval(request())
    assert store.get_approval(made.id) == made
    assert made.asked == request()
    assert made.state is ApprovalState.WAITING
    assert made.expires_at - made.requested_at == EXPIRES_AFTER
    assert {made.decided_by, made.decided_at, made.reason, made.outcome, made.error} == {None}
    with pytest.raises(ApprovalNotFoundError):
        store.get_approval("ap_none")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"action": "cancel"},
        {"kind": "manifest"},
        {"version": 4},
        {"request": {"timeout_seconds": 6.0}},
        {"requester": Principal("key:bob", frozenset({STREAMS_OPERATE}))},
    ],
)
def test_the_same_request_waits_once_and_another_one_for_itself(store: JobStore, changes: dict[str, Any]) -> None:
    made = store.create_approval(request())
    assert store.create_approval(request()) == made
    assert store.create_approval(request(**changes)).id != made.id


def test_a_request_that_is_decided_or_late_can_be_made_again(store: JobStore) -> None:
    first = store.create_approval(request())
    store.decide_approval(first.id, ApprovalState.REJECTED, actor="key:bob")
    second = store.create_approval(request())
    age(store, second)
    third = store.create_approval(request())
    assert len({first.id, second.id, third.id}) == 3


def test_a_decision_is_made_once(store: JobStore) -> None:
    made = store.create_approval(request())
    decided = store.decide_approval(made.id, ApprovalState.REJECTED, actor="key:bob", reason="not today")
    assert (decided.state, decided.decided_by, decided.reason) == (ApprovalState.REJECTED, "key:bob", "not today")
    assert decided.decided_at is not None
    for state in (ApprovalState.APPROVED, ApprovalState.REJECTED):
        with pytest.raises(ApprovalStateError, match=r"REJECTED, decided by key:bob"):
            store.decide_approval(made.id, state, actor="key:eve")
    store.expire_approval(made.id, FaultRecord("stream_changed", "It has changed."))
    assert store.get_approval(made.id) == decided


def test_an_approval_that_nobody_decides_in_time_is_expired(store: JobStore) -> None:
    late, waits, overtaken = (store.create_approval(request(name=name)) for name in ("a", "b", "c"))
    age(store, late)
    fault = FaultRecord("stream_changed", "c is at version 4, not 3.")
    store.expire_approval(overtaken.id, fault)
    shown = store.get_approval(late.id)
    assert shown.state is ApprovalState.EXPIRED
    assert shown.error is not None
    assert shown.error.code == "approval_late"
    assert store.get_approval(overtaken.id).error == fault
    with pytest.raises(ApprovalStateError, match="EXPIRED"):
        store.decide_approval(late.id, ApprovalState.APPROVED, actor="key:bob")
    assert [each.id for each in store.list_approvals(state=ApprovalState.WAITING)] == [waits.id]
    assert {each.id for each in store.list_approvals(state=ApprovalState.EXPIRED)} == {late.id, overtaken.id}


def test_approvals_are_listed_in_pages_newest_first(store: JobStore) -> None:
    made = sorted((store.create_approval(request(name=name)).id for name in "abc"), reverse=True)
    assert [each.id for each in store.list_approvals()] == made
    assert [each.id for each in store.list_approvals(limit=2)] == made[:2]
    assert [each.id for each in store.list_approvals(before=made[1])] == made[2:]


# -- calls that are kept together


def launch(store: JobStore, name: str) -> None:
    store.launch_stream(name, StreamKind.BACKUP, actor="ann")


def test_of_two_who_decide_at_once_one_does(store: JobStore) -> None:
    made = store.create_approval(request())
    begin, refused = threading.Barrier(2), []

    def decide(actor: str) -> None:
        begin.wait(20)
        try:
            store.decide_approval(made.id, ApprovalState.APPROVED, actor=actor)
        except ApprovalStateError:
            refused.append(actor)

    run_both(decide, ("key:bob", "key:eve"))
    assert len(refused) == 1
    assert {store.get_approval(made.id).decided_by, *refused} == {"key:bob", "key:eve"}


def run_both(call: Callable[[str], None], given: tuple[str, str]) -> None:
    threads = [threading.Thread(target=call, args=(each,), daemon=True) for each in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
