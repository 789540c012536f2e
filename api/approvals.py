"""Actions that wait for a second person, in the API's shape, and the answer to a call that has to wait."""

from typing import Any, Final

from fastapi import status
from fastapi.responses import JSONResponse

from api.schemas_approvals import ApprovalOut
from model.approval import Approval
from model.moment import render_moment

# How OpenAPI shows the answer of a call whose action this deployment has approved by a second person.
WAITS: Final[dict[str, Any]] = {
    "model": ApprovalOut,
    "description": "A second person has to approve it first (REFEED_APPROVE_STREAMS).",
    "headers": {"Location": {"description": "Where to ask how it is.", "schema": {"type": "string"}}},
}


def wait_for_approval(approval: Approval) -> JSONResponse:
    """Return the answer to a call whose action waits for a second person: nothing has happened yet."""
    headers = {"Location": f"/approvals/{approval.id}"}
    return JSONResponse(render_approval(approval), status.HTTP_202_ACCEPTED, headers=headers)


def render_approval(approval: Approval) -> dict[str, Any]:
    """Return the approval in the API's shape."""
    asked, error = approval.asked, approval.error
    return {
        "id": approval.id,
        "state": approval.state.value,
        "kind": asked.kind,
        "name": asked.name,
        "action": asked.action,
        "what": asked.what,
        "request": dict(asked.request),
        "version": asked.version,
        "scope": asked.scope,
        "requested_by": asked.requester.name,
        "requested_at": render_moment(approval.requested_at),
        "expires_at": render_moment(approval.expires_at),
        "decided_by": approval.decided_by,
        "decided_at": render_moment(approval.decided_at),
        "reason": approval.reason,
        "outcome": None if approval.outcome is None else dict(approval.outcome),
        "error": None if error is None else {"code": error.code, "message": error.message},
    }
