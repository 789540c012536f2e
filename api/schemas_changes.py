"""Changes that wait for a second person, in the API's shape, and the answer to a call that has to wait."""

from datetime import datetime
from typing import Any, Final, Literal

from fastapi import status
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from api.answers import LOCATION_HEADER
from model.change import ChangeRecord
from model.fault import FaultRecord
from model.job import JobState


class ChangeReject(BaseModel):
    """The rejection of a change."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str | None = Field(
        default=None, description="The reason. The person who requested the change sees it.", max_length=1000
    )


class ChangeOut(BaseModel):
    """A change of a resource that needs the approval of a second person."""

    id: str = Field(description="The change's id, which begins with `ch_`. An older id begins with `ap_`.")
    kind: Literal["change"] = Field(description="The kind of the job.")
    state: JobState = Field(
        description="`PENDING`: nobody has decided. `SUCCEEDED`: a second person approved the change, and Refeed "
        "made it. `CANCELLED`: somebody rejected the change. `FAILED`: nobody decided in time, or the resource "
        "changed."
    )
    resource: str = Field(description="The kind of the resource.", examples=["stream"])
    name: str = Field(description="The resource's name.", examples=["backup"])
    verb: str = Field(description="What the call does to the resource.", examples=["drain"])
    what: str = Field(description="The effect of the change, in a sentence.")
    body: dict[str, Any] = Field(description="The body of the call that requested the change.")
    version: int = Field(description="The version of the resource when the change was requested.")
    scope: str = Field(description="The scope that the change needs. The approver needs this scope too.")
    created_by: str = Field(description="Who requested the change.")
    created_at: datetime
    expires_at: datetime = Field(description="After this time, nobody can approve the change.")
    decided_by: str | None = Field(description="Who decided. Null if nobody has decided.")
    decided_at: datetime | None = Field(description="When the person decided. Null if nobody has decided.")
    reason: str | None = Field(description="Why the change was rejected. Null without a rejection.")
    finished_at: datetime | None
    result: dict[str, Any] | None = Field(
        description="What a SUCCEEDED change made.", examples=[{"stream": "backup"}]
    )
    error: FaultRecord | None = Field(description="Why the change is FAILED.")
    etag: str


# How OpenAPI shows the answer of a call whose change needs a second person in this deployment.
WAITS: Final[dict[str, Any]] = {
    "model": ChangeOut,
    "description": "A second person must approve the change first (REFEED_APPROVE_STREAMS).",
    "headers": LOCATION_HEADER,
}


def wait_for_approval(change: ChangeRecord) -> JSONResponse:
    """Return the answer to a call whose change waits for a second person: nothing has happened yet."""
    headers = {"Location": f"/jobs/{change.id}", "ETag": change.etag}
    return JSONResponse(change.to_json(), status.HTTP_202_ACCEPTED, headers=headers)
