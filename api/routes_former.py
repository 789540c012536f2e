"""The paths that jobs, templates and dead letters had before; they point to those of today, for one release."""

import re
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse
from starlette.convertors import StringConvertor, register_url_convertor

from api.answers import Caller

router: Final = APIRouter(include_in_schema=False)
_LISTS: Final = {
    "merges": "kind=merge",
    "compactions": "kind=compaction",
    "rollouts": "kind=update",
    "updates": "kind=update&stream=",
    "rollbacks": "kind=restore&stream=",
    "events": "object=stream/",
    "approvals": "kind=change",
}
# The dead letters of a backfill, and of the pipeline.
_LETTERS: Final = "(?:backfills/([^/]+)/dead-letters|dead-letters/messages)(/reasons|/[^/]+/data)?"
# What an approval was, and what the job is.
_STATES: Final = {"WAITING": "PENDING", "APPROVED": "SUCCEEDED", "REJECTED": "CANCELLED", "EXPIRED": "FAILED"}


class _FormerPlace(StringConvertor):
    # Of backfills what stays is the job itself.
    regex = (
        "(?:merges|compactions|updates|rollouts|approvals)/.+|backfills/[^/:]+(?::[a-z]+|/(?:logs|events|missing|slices|rates))"
        f"|streams/[^/]+/(?:updates|rollbacks|events)|templates/.+|backfills:plan|streams/[^/]+:check"
        f"|{_LETTERS}"
    )


register_url_convertor("former_place", _FormerPlace())


@router.get("/merges", operation_id="findFormerPlace")
@router.get("/compactions", operation_id="findFormerPlace")
@router.get("/templates", operation_id="findFormerPlace")
@router.get("/rollouts", operation_id="findFormerPlace")
@router.get("/approvals", operation_id="findFormerPlace")
@router.patch("/backfills/{backfill_id}", operation_id="findFormerPlace")
@router.api_route("/{place:former_place}", methods=["GET", "POST"], operation_id="findFormerPlace")
def find_former_place(request: Request, caller: Caller) -> RedirectResponse:  # noqa: ARG001 - nobody else may ask
    """Point to where something is now, for the same method and parameters."""
    collection, _, rest = request.scope["path"][1:].partition("/")
    path, query = "/jobs", request.url.query
    if letters := re.fullmatch(_LETTERS, f"{collection}/{rest}"):
        job, part = letters.groups("")
        given = (job and f"job={quote(job, safe='')}", "group_by=reason" if part == "/reasons" else "", query)
        path, query = f"/dead-letters{quote(part.removesuffix('/reasons'))}", "&".join(filter(None, given))
    elif collection == "templates":
        path = f"/manifests/{quote(rest, safe='/:')}".rstrip("/")
    elif collection == "backfills:plan" or (collection == "streams" and rest.endswith(":check")):
        path = f"/streams/{quote(rest.removesuffix(':check'), safe='')}:update" if rest else "/backfills"
        query = f"validate_only=true&{query}"
    elif not rest:
        query = f"{_LISTS[collection]}&{query}"
        query = re.sub(rf"(?<=\bstate=)({'|'.join(_STATES)})\b", lambda found: _STATES[found[0]], query)
    elif collection == "streams":
        name, _, listed = rest.partition("/")
        path = "/events" if listed == "events" else path
        query = f"{_LISTS[listed]}{quote(name, safe='')}&{query}"
    elif rest.endswith("/events"):
        path, query = "/events", f"object={quote(rest.removesuffix('/events'), safe='')}&{query}"
    else:
        rest = re.sub("/(slices|rates)$", "/figures", re.sub(":(roll_back|reverse)$", ":revert", rest))
        path += f"/{quote(rest, safe='/:')}"
    return RedirectResponse(f"{path}?{query}".rstrip("?&"), 308)
