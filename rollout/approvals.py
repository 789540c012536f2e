"""Actions that wait until a second person approves them: requested, read, approved and rejected."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from jobs.inbox_items import InboxItem
from jobs.store import JobStore
from model.approval import Approval, ApprovalRequest, ApprovalState
from model.errors import (
    ApprovalStateError,
    ForbiddenError,
    ManifestChangedError,
    ManifestNotFoundError,
    StreamChangedError,
)
from model.fault import FaultRecord
from model.job import new_job_id
from model.principal import READ, SCHEDULES_APPLY, STREAMS_OPERATE, STREAMS_READ, Principal

_LOG: Final = structlog.get_logger()
# What an action raises when the thing is no longer the one that the requester saw: it never can be carried out.
_CHANGED: Final = (StreamChangedError, ManifestChangedError, ManifestNotFoundError)

# Carries an action out and returns what it made. It runs twice, as its requester: when it is asked for, with
# nothing kept, and when it is approved. It writes to the job store alone, checks the version that was asked about,
# and waits for nothing else, because the store's transaction is open meanwhile.
Act = Callable[[Approval], Mapping[str, Any]]


class ApprovalService:
    """Keeps actions that a second person has to approve, and carries each out once, when it is approved.

    ``actions`` leads from the kind of a thing and the name of an action to the function that carries it out. The
    decision and the action are one transaction: of several who approve at once one does, and a process that dies
    before the end of it has decided nothing.

    Raises:
        ForbiddenError: any call whose ``principal`` lacks the scope.
        ApprovalNotFoundError: any call that names an approval that is not there.
    """

    def __init__(self, store: JobStore, actions: Mapping[tuple[str, str], Act]) -> None:
        self._store = store
        self._actions = actions

    def ask(self, asked: ApprovalRequest) -> Approval:
        """Have an action wait for a second person; the same request again gives back the one that waits.

        An action that could not be carried out now is refused with its own error.

        Raises:
            RefeedError: as the action raises it.
        """
        asked.requester.require(asked.scope)
        now = self._store.now()
        draft = Approval(new_job_id("ap"), asked, ApprovalState.WAITING, requested_at=now, expires_at=now)
        with structlog.contextvars.bound_contextvars(is_rehearsal=True):
            self._store.rehearse(lambda: self._act(draft))
        made = self._store.create_approval(asked)
        _LOG.info("approval_asked", approval=made.id, what=asked.what, by=asked.requester.name)
        return made

    def get(self, approval_id: str, *, principal: Principal) -> Approval:
        """Return the approval."""
        _require_sight(principal)
        return self._store.get_approval(approval_id)

    def list_page(
        self, *, principal: Principal, state: ApprovalState | None = None, before: str | None = None, limit: int
    ) -> list[Approval]:
        """Return at most ``limit`` approvals, newest first, of those older than ``before``."""
        _require_sight(principal)
        return self._store.list_approvals(state=state, before=before, limit=limit)

    def list_inbox(self, *, principal: Principal) -> list[InboxItem]:
        """Return what waits for a second person, newest first."""
        _require_sight(principal)
        return [_item_of(each) for each in self._store.list_approvals(state=ApprovalState.WAITING)]

    def approve(self, approval_id: str, *, principal: Principal) -> Approval:
        """Carry the action out, as its requester.

        An action that can't be carried out at this moment raises its own error, and its approval goes on waiting.

        Raises:
            ForbiddenError: the requester approves, or ``principal`` lacks the action's own scope.
            ApprovalStateError: it is decided already, or has expired.
            StreamChangedError, ManifestChangedError, ManifestNotFoundError: what it is about has changed since it
                was asked for; the approval has EXPIRED with this.
            RefeedError: as the action raises it.
        """
        found = self._decidable(approval_id, principal)
        if found.asked.requester.name == principal.name:
            raise ForbiddenError(
                f"You requested {found.id} yourself. Another person must approve it.", id=found.id
            )
        try:
            with self._store.together(), structlog.contextvars.bound_contextvars(approval=found.id):
                decided = self._store.decide_approval(found.id, ApprovalState.APPROVED, actor=principal.name)
                done = self._store.note_outcome(found.id, dict(self._act(decided)))
        except _CHANGED as exc:
            self._store.expire_approval(found.id, FaultRecord.of(exc))
            raise
        _LOG.info("approval_approved", approval=done.id, what=done.asked.what, by=principal.name)
        return done

    def reject(self, approval_id: str, *, principal: Principal, reason: str | None = None) -> Approval:
        """Decide that the action is not carried out; the requester takes it back with this.

        Raises:
            ForbiddenError: ``principal`` lacks the action's own scope.
            ApprovalStateError: it is decided already, or has expired.
        """
        found = self._decidable(approval_id, principal)
        decided = self._store.decide_approval(
            found.id, ApprovalState.REJECTED, actor=principal.name, reason=reason
        )
        _LOG.info("approval_rejected", approval=found.id, what=found.asked.what, by=principal.name)
        return decided

    def _decidable(self, approval_id: str, principal: Principal) -> Approval:
        _require_sight(principal)
        found = self._store.get_approval(approval_id)
        principal.require(found.asked.scope)
        return found

    def _act(self, approval: Approval) -> Mapping[str, Any]:
        asked = approval.asked
        act = self._actions.get((asked.kind, asked.action))
        if act is None:
            # A newer release asked for it, and this one runs beside it or after it.
            raise ApprovalStateError(f"This release can't {asked.action} a {asked.kind}.", id=approval.id)
        return act(approval)


def _require_sight(principal: Principal) -> None:
    principal.require_any(STREAMS_OPERATE, SCHEDULES_APPLY, STREAMS_READ, READ)


def _item_of(approval: Approval) -> InboxItem:
    asked = approval.asked
    said = f"{asked.what} A person other than {asked.requester.name} must approve it."
    return InboxItem(
        "approval",
        "approval",
        approval.id,
        approval.state,
        None,
        asked.requester.name,
        approval.requested_at,
        said,
    )
