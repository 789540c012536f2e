"""The route of volumes: every topic by hour or day in one answer, small on the wire and cheap to ask for again."""

import gzip
import hashlib
import re
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Request, Response

from api.answers import Caller, OpenInventory, SlowCalls, problems
from api.schemas import End, Rfc3339Time
from inventory.volumes import VolumesOut, VolumeStep

router: Final = APIRouter(tags=["topics"])
_HEADERS: Final = {
    "ETag": {"description": "A digest of the answer, for If-None-Match.", "schema": {"type": "string"}},
}
# 300 topics of 336 hours are a megabyte of numbers; a higher level takes three times as long for a tenth less.
_LEVEL: Final = 1
_MAX_TOPICS: Final = 100


@router.get(
    "/volumes",
    response_model=VolumesOut,
    responses={
        200: {"headers": _HEADERS},
        304: {"description": "Nothing has changed since the ETag in If-None-Match.", "headers": _HEADERS},
        **problems(
            s422="A parameter is not valid. `errors` lists every violation.",
            s502="The warehouse returned an error.",
        ),
    },
)
def list_volumes(
    request: Request,
    inventory: OpenInventory,
    caller: Caller,
    slow: SlowCalls,
    *,
    start: Annotated[
        Rfc3339Time | None,
        Query(
            alias="from",
            description="Count only messages that were archived at this time (RFC 3339) or later. The default "
            "is 14 days before `to`.",
        ),
    ] = None,
    end: End = None,
    step: Annotated[VolumeStep, Query(description="The length of a step.")] = "hour",
    topic: Annotated[
        list[str] | None,
        Query(
            description="Count only this topic. Repeat the parameter for several topics. The default is all "
            "topics.",
            max_length=_MAX_TOPICS,
        ),
    ] = None,
    if_none_match: Annotated[
        str | None,
        Header(
            description="The ETag of an earlier answer. If nothing has changed since that answer, the API "
            "answers with status 304 and no body."
        ),
    ] = None,
) -> Response:
    """Count each topic's archived messages and payload bytes by hour or day, and mark gaps."""
    with slow:
        found = inventory.read_volumes(principal=caller, step=step, start=start, end=end, topics=topic or ())
    body = found.model_dump_json(by_alias=True).encode()
    # Weak: it stands for the answer compressed and not.
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Vary": "Accept-Encoding"}
    if if_none_match is not None and etag in (given.strip() for given in if_none_match.split(",")):
        return Response(status_code=304, headers=headers)
    if _takes_gzip(request.headers.get("accept-encoding", "")):
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, _LEVEL)
    return Response(body, media_type="application/json", headers=headers)


def _takes_gzip(accept_encoding: str) -> bool:
    """Whether the header names gzip with a weight that is not 0, which refuses it (RFC 9110, 12.5.3)."""
    return re.search(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", accept_encoding, re.IGNORECASE) is not None
