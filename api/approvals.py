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
    """The rejection of an action."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str | None = Field(
        default=None, description="The reason. The person who requested the action sees it.", max_length=1000
    )


class ApprovalFaultOut(CodedMessage):
    """Why an approval has expired."""


class ApprovalOut(BaseModel):
    """A request for the approval of a second person: the action and the decision."""

    id: str = Field(examples=["ap_01M7Z1H20HKNZ6PGKRYCX6J210"], description="The approval's id.")
    state: Literal["WAITING", "APPROVED", "REJECTED", "EXPIRED"] = Field(
        description="`APPROVED`: Refeed carried out the action. `EXPIRED`: nobody decided in time, or the "
        "resource changed."
    )
    kind: str = Field(
        validation_alias=AliasPath("asked", "kind"),
        description="The kind of the resource that the action changes.",
        examples=["stream"],
    )
    name: str = Field(
        validation_alias=AliasPath("asked", "name"),
        examples=["backup"],
        description="The name of the resource that the action changes.",
    )
    action: str = Field(
        validation_alias=AliasPath("asked", "action"), examples=["drain"], description="The action, such as drain."
    )
    what: str = Field(
        validation_alias=AliasPath("asked", "what"), description="The effect of the action, in a sentence."
    )
    request: dict[str, Any] = Field(
        validation_alias=AliasPath("asked", "request"),
        description="The body of the call that requested the action.",
    )
    version: int = Field(
        validation_alias=AliasPath("asked", "version"),
        description="The version of the resource when the action was requested.",
    )
    scope: str = Field(
        validation_alias=AliasPath("asked", "scope"),
        description="The scope that the action needs. The approver needs this scope too.",
    )
    requested_by: str = Field(
        validation_alias=AliasPath("asked", "requester", "name"), description="Who requested the action."
    )
    requested_at: datetime = Field(description="When the action was requested.")
    expires_at: datetime = Field(description="When the approval expires.")
    decided_by: str | None = Field(description="Who decided. Null if nobody has decided.")
    decided_at: datetime | None = Field(description="When the person decided. Null if nobody has decided.")
    reason: str | None = Field(description="Why the action was rejected. Null without a rejection.")
    outcome: dict[str, Any] | None = Field(
        description="The result of an APPROVED action.", examples=[{"stream": "backup"}]
    )
    error: ApprovalFaultOut | None = Field(description="Why the approval is EXPIRED.")


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
