"""The audit log, for those who may see it."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from api.answers import Caller
from api.listing import PageSize, page_of
from api.state import services_of
from jobs.listing import DEFAULT_PAGE_SIZE
from jobs.page_tokens import parse_row_token, render_row_token
from model.principal import ADMIN

router: Final = APIRouter(tags=["service"])


class AuditEntryOut(BaseModel):
    """An entry of the audit log: one call."""

    number: int = Field(description="The number of the entry. Newer entries have higher numbers.")
    at: datetime
    actor: str = Field(
        description="Who called: `key:NAME`, `user:NAME`, `local`, `terminal:NAME`, or `unknown at ADDRESS`."
    )
    action: str = Field(description="The id of the operation. If the caller is unknown, this is the HTTP method.")
    target: str = Field(description="The path of the call, or of the resource that the call created.")
    outcome: Literal["done", "refused", "failed"] = Field(
        description="Whether the call was done, refused or failed."
    )
    why: str | None


class AuditPage(BaseModel):
    """A page of the audit log, newest first."""

    entries: list[AuditEntryOut]
    next_page_token: str | None


@router.get("/audit", response_model=AuditPage)
def list_audit(
    request: Request,
    caller: Caller,
    *,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: Annotated[str | None, Query(max_length=200)] = None,
) -> Any:
    """List the audit log, newest first.

    The log contains refused calls, calls that changed something or cost money, and calls that showed payloads.
    """
    caller.require(ADMIN)
    before = parse_row_token(page_token) if page_token else None
    found = services_of(request).store.list_audit(page_size + 1, before=before)
    page, token = page_of(found, page_size, lambda last: render_row_token(last.number))
    return {"entries": page, "next_page_token": token}
