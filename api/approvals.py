"""Actions that wait for a second person, in the API's shape, and the answer to a call that has to wait."""

from datetime import datetime
from typing import Any, Final, Literal

from fastapi import status
from fastapi.responses import JSONResponse
from pydantic import AliasPath, BaseModel, ConfigDict, Field

from api.answers import LOCATION_HEADER
from api.schemas import CodedMessage
from model.approval import Approval


class ApprovalReject(BaseModel):
    """Why an action is not approved."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str | None = Field(default=None, description="Why, for the requester.", max_length=1000)


class ApprovalFaultOut(CodedMessage):
    """Why an approval has expired."""


class ApprovalOut(BaseModel):
    """An action that waits for a second person, or what became of it."""

    id: str = Field(examples=["ap_01M7Z1H20HKNZ6PGKRYCX6J210"])
    state: Literal["WAITING", "APPROVED", "REJECTED", "EXPIRED"] = Field(
        description="APPROVED is carried out. EXPIRED: nobody decided in time, or what it is about has changed."
    )
    kind: str = Field(
        validation_alias=AliasPath("asked", "kind"),
        description="What kind of thing it is about.",
        examples=["stream"],
    )
    name: str = Field(validation_alias=AliasPath("asked", "name"), examples=["backup"])
    action: str = Field(validation_alias=AliasPath("asked", "action"), examples=["drain"])
    what: str = Field(
        validation_alias=AliasPath("asked", "what"), description="What the action does, in a sentence."
    )
    request: dict[str, Any] = Field(
        validation_alias=AliasPath("asked", "request"), description="The body of the call that asked for it."
    )
    version: int = Field(
        validation_alias=AliasPath("asked", "version"),
        description="The version of the thing that the requester saw.",
    )
    scope: str = Field(
        validation_alias=AliasPath("asked", "scope"),
        description="The scope of the action, which the one who approves it needs too.",
    )
    requested_by: str = Field(validation_alias=AliasPath("asked", "requester", "name"))
    requested_at: datetime
    expires_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    reason: str | None = Field(description="Why it was rejected.")
    outcome: dict[str, Any] | None = Field(
        description="What the action made, once it is APPROVED.", examples=[{"stream": "backup"}]
    )
    error: ApprovalFaultOut | None = Field(description="Why it is EXPIRED.")


class ApprovalsOut(BaseModel):
    """A page of approvals, newest first."""

    approvals: list[ApprovalOut]
    next_page_token: str | None


# How OpenAPI shows the answer of a call whose action this deployment has approved by a second person.
WAITS: Final[dict[str, Any]] = {
    "model": ApprovalOut,
    "description": "A second person must approve the action first (REFEED_APPROVE_STREAMS).",
    "headers": LOCATION_HEADER,
}


def wait_for_approval(approval: Approval) -> JSONResponse:
    """Return the answer to a call whose action waits for a second person: nothing has happened yet."""
    body = ApprovalOut.model_validate(approval, from_attributes=True).model_dump(mode="json")
    return JSONResponse(body, status.HTTP_202_ACCEPTED, headers={"Location": f"/approvals/{approval.id}"})
