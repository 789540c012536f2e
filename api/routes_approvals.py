"""Actions that wait for a second person as a resource: listed, shown, approved and rejected."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query

from api.answers import Approvals, Caller, problems
from api.approvals import ApprovalOut, ApprovalReject, ApprovalsOut
from api.listing import IdToken, PageSize, page_of
from jobs.listing import DEFAULT_PAGE_SIZE
from jobs.page_tokens import parse_id_token, render_id_token
from model.approval import ApprovalState

router: Final = APIRouter(tags=["approvals"])
_UNKNOWN: Final = "There is no such approval."
_DECIDED: Final = "It is decided already, or has expired"
_INVALID: Final = "The id is not valid."

ApprovalId = Annotated[str, Path(description="An approval's id.", max_length=64)]


@router.get(
    "/approvals",
    operation_id="listApprovals",
    response_model=ApprovalsOut,
    responses=problems(s422="A parameter is not valid."),
)
def list_approvals(
    approvals: Approvals,
    caller: Caller,
    *,
    state: Annotated[ApprovalState | None, Query(description="Only those in this state.")] = None,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: IdToken = None,
) -> Any:
    """List the actions that wait for a second person, and those that did, newest first."""
    before = parse_id_token(page_token)
    found = approvals.list_page(principal=caller, state=state, before=before, limit=page_size + 1)
    page, token = page_of(found, page_size, lambda last: render_id_token(last.id))
    return {"approvals": page, "next_page_token": token}


@router.post(
    "/approvals/{approval_id}:approve",
    operation_id="approveApproval",
    response_model=ApprovalOut,
    responses=problems(
        s404=_UNKNOWN,
        s409=f"{_DECIDED}; or the action can't be carried out now, and goes on waiting.",
        s412="What it is about has changed since it was asked for; the approval has expired with this.",
        s422=_INVALID,
    ),
)
def approve_approval(approval_id: ApprovalId, approvals: Approvals, caller: Caller) -> Any:
    """Carry the action out, as its requester; this needs the action's own scope and another caller."""
    return approvals.approve(approval_id, principal=caller)


@router.post(
    "/approvals/{approval_id}:reject",
    operation_id="rejectApproval",
    response_model=ApprovalOut,
    responses=problems(s404=_UNKNOWN, s409=f"{_DECIDED}.", s422=_INVALID),
)
def reject_approval(
    approval_id: ApprovalId, approvals: Approvals, caller: Caller, *, body: ApprovalReject | None = None
) -> Any:
    """Decide that the action is not carried out; its requester may take it back so."""
    reason = None if body is None else body.reason
    return approvals.reject(approval_id, principal=caller, reason=reason)


@router.get(
    "/approvals/{approval_id}",
    operation_id="getApproval",
    response_model=ApprovalOut,
    responses=problems(s404=_UNKNOWN, s422=_INVALID),
)
def get_approval(approval_id: ApprovalId, approvals: Approvals, caller: Caller) -> Any:
    """Show an action that waits for a second person, or what became of it."""
    return approvals.get(approval_id, principal=caller)
