"""What changed lately: jobs, streams, manifests and keys in one list."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from api.answers import INVALID, Caller, problems
from api.listing import PageSize, page_of
from api.schemas import Since
from api.state import services_of
from jobs.listing import DEFAULT_PAGE_SIZE
from jobs.page_tokens import parse_change_token, render_change_token
from jobs.store.changes import ChangeCursor
from model.principal import ADMIN, READ

router: Final = APIRouter(tags=["status"])
_LONGEST: Final = timedelta(days=31)


class ChangeOut(BaseModel):
    """One change of a job, a stream, a manifest or a key."""

    at: datetime
    resource: Literal["backfill", "merge", "compaction", "stream", "manifest", "key"] = Field(
        description="The kind of the changed resource."
    )
    id: str = Field(description="The id of a job, or the name of another resource.")
    type: str = Field(description="The type of the change, such as created, moved, launched, applied or revoked.")
    actor: str | None = Field(description="Who made the change. Null if the history has no author.")
    what: str = Field(description="What changed.")
    why: str | None = Field(description="Why it changed. Null without a reason.")


class ChangesOut(BaseModel):
    """Changes, newest first."""

    changes: list[ChangeOut]
    next_page_token: str | None


@router.get("/changes", operation_id="listChanges", response_model=ChangesOut, responses=problems(s422=INVALID))
def list_changes(
    request: Request,
    caller: Caller,
    *,
    since: Annotated[
        Since | None,
        Query(
            description="List only changes since this time (RFC 3339), at most 31 days ago. The default is one "
            "day ago."
        ),
    ] = None,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: Annotated[
        str | None, Query(max_length=2000, description="The `next_page_token` of the previous page.")
    ] = None,
) -> Any:
    """List changes of jobs, streams and manifests, newest first.

    With `backfills.admin`, the list includes changes of keys.
    """
    caller.require(READ)
    now = datetime.now(UTC)
    first = now - timedelta(days=1) if since is None else max(since, now - _LONGEST)
    found = services_of(request).store.list_changes(
        first,
        limit=page_size + 1,
        after=parse_change_token(page_token),
        with_keys=caller.may(ADMIN),
    )
    page, token = page_of(found, page_size, lambda last: render_change_token(ChangeCursor(last.at, last.place)))
    return {"changes": page, "next_page_token": token}
