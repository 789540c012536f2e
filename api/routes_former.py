"""The paths that jobs had before they were one collection; they point to those of today, for one release."""

from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse
from starlette.convertors import StringConvertor, register_url_convertor

from api.answers import Caller

router: Final = APIRouter(include_in_schema=False)
_KINDS: Final = {"merges": "merge", "compactions": "compaction"}


class _FormerPlace(StringConvertor):
    # Of backfills what stays is the job itself, and its parts beside log and history.
    regex = "(?:merges|compactions)/.+|backfills/[^/:]+(?::[a-z]+|/logs|/events)"


register_url_convertor("former_place", _FormerPlace())


@router.get("/merges", operation_id="findFormerPlace")
@router.get("/compactions", operation_id="findFormerPlace")
@router.patch("/backfills/{backfill_id}", operation_id="findFormerPlace")
@router.api_route("/{place:former_place}", methods=["GET", "POST"], operation_id="findFormerPlace")
def find_former_place(request: Request, caller: Caller) -> RedirectResponse:  # noqa: ARG001 - nobody else may ask
    """Point to where a job is now, for the same method and parameters."""
    collection, _, rest = request.scope["path"][1:].partition("/")
    query = request.url.query
    if not rest:
        path, query = "/jobs", "&".join(filter(None, (f"kind={_KINDS[collection]}", query)))
    elif rest.endswith("/events"):
        path, query = "/events", "&".join(filter(None, (f"object={quote(rest.removesuffix('/events'))}", query)))
    else:
        path = f"/jobs/{quote(rest, safe='/:')}"
    return RedirectResponse(f"{path}?{query}".removesuffix("?"), 308)
