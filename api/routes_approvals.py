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
_DECIDED: Final = "The action was already approved or rejected, or the approval has expired"
_INVALID: Final = "The id is not valid."

ApprovalId = Annotated[str, Path(description="The approval's id.", max_length=64)]


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
    state: Annotated[ApprovalState | None, Query(description="List only approvals in this state.")] = None,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: IdToken = None,
) -> Any:
    """List requests for the approval of a second person, newest first."""
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
        s409=f"{_DECIDED}. The status is also 409 if the action can't be carried out now. The approval then "
        f"stays pending.",
        s412="The approval has expired, because the stream or manifest has changed since the request.",
        s422=_INVALID,
    ),
)
def approve_approval(approval_id: ApprovalId, approvals: Approvals, caller: Caller) -> Any:
    """Approve an action, and carry it out. The person who requested an action can't approve it."""
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
    """Reject an action. The person who requested an action can withdraw it with this call."""
    reason = None if body is None else body.reason
    return approvals.reject(approval_id, principal=caller, reason=reason)


@router.get(
    "/approvals/{approval_id}",
    operation_id="getApproval",
    response_model=ApprovalOut,
    responses=problems(s404=_UNKNOWN, s422=_INVALID),
)
def get_approval(approval_id: ApprovalId, approvals: Approvals, caller: Caller) -> Any:
    """Show one request for the approval of a second person: the action and the decision."""
    return approvals.get(approval_id, principal=caller)
