"""The JSON shapes of actions that wait for a second person, as OpenAPI shows them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class ApprovalReject(BaseModel):
    """Why an action is not approved."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str | None = Field(default=None, description="Why, for the requester.", max_length=1000)


class ApprovalFaultOut(BaseModel):
    """Why an approval has expired."""

    code: str
    message: str


class ApprovalOut(BaseModel):
    """An action that waits for a second person, or what became of it."""

    id: str = Field(examples=["ap_01M7Z1H20HKNZ6PGKRYCX6J210"])
    state: Literal["WAITING", "APPROVED", "REJECTED", "EXPIRED"] = Field(
        description="APPROVED is carried out. EXPIRED: nobody decided in time, or what it is about has changed."
    )
    kind: str = Field(description="What kind of thing it is about.", examples=["stream"])
    name: str = Field(examples=["backup"])
    action: str = Field(examples=["drain"])
    what: str = Field(description="What the action does, in a sentence.")
    request: dict[str, Any] = Field(description="The body of the call that asked for it.")
    version: int = Field(description="The version of the thing that the requester saw.")
    scope: str = Field(description="The scope of the action, which the one who approves it needs too.")
    requested_by: str
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
