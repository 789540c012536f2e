"""What every route of a resource shares: the service, ids and etags of requests, documented answers."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Header, Path, Query, Request, Response

from api.auth import StandingCaller, current_principal
from api.bulkhead import Bulkhead
from api.errors import PROBLEM_TYPE
from api.state import Services, services_of, state_of
from api.stream_jobs import collect_jobs
from backfill.steer.service import BackfillService
from inventory.service import Inventory
from jobs.collection import JobCollection
from model.errors import JobChangedError, ManifestChangedError, RefeedError, StreamChangedError
from model.principal import Principal
from rollout.checking import CheckService
from rollout.service import StreamService
from rollout.snapshots import SnapshotService
from rollout.stream_changes import StreamChanges
from rollout.updates import UpdateService

# One of ours in a list, with its quotes or, as careless clients send it, without; never a weak one (W/).
_VERSION_TAG: Final = re.compile(r"""(?:^|,)\s*("?)(\d{1,18})\1\s*(?=,|$)""", re.ASCII)
UNREADABLE: Final = "Another release of Refeed wrote the job, and this release can't read it."
NO_SUCH_BACKFILL: Final = "There is no such backfill."
NO_SUCH_STREAM: Final = "No stream was launched under this name."
CHANGED: Final = "The resource has changed since you read the ETag in If-Match."
_ETAG_HEADER: Final = {
    "ETag": {"description": "The version of the resource, for If-Match.", "schema": {"type": "string"}}
}
LOCATION_HEADER: Final = {
    "Location": {"description": "The path of the new resource.", "schema": {"type": "string"}}
}
PLACE_HEADERS: Final = {
    **LOCATION_HEADER,
    "Retry-After": {"description": "Seconds to wait before you read the resource.", "schema": {"type": "integer"}},
}
CREATED_HEADERS: Final = {**PLACE_HEADERS, **_ETAG_HEADER}
_RETRY_AFTER_SECONDS: Final = "1"
INVALID: Final = "The request or its query is not valid. `errors` lists every violation."


Found = TypeVar("Found")


def service_of(find: Callable[[Services], Found]) -> Callable[[Request], Found]:
    """Return the FastAPI dependency that gives a route one of the app's services."""

    def find_service(request: Request) -> Found:
        return find(services_of(request))

    return find_service


def standing_caller(request: Request) -> StandingCaller:
    """Return the caller, to be checked again and again; a FastAPI dependency.

    Raises:
        UnauthenticatedError: as :func:`api.auth.current_principal`.
    """
    gatekeeper = services_of(request).gatekeeper
    return StandingCaller(current_principal(request), lambda: gatekeeper.recheck(request))


def slow_calls(request: Request) -> Bulkhead:
    """Return what bounds the calls that run queries; a FastAPI dependency."""
    return state_of(request.app).slow_calls


def quick_calls(request: Request) -> Bulkhead:
    """Return what bounds the checks of queries; a FastAPI dependency."""
    return state_of(request.app).quick_calls


def stopping_of(request: Request) -> Callable[[], bool]:
    """Return whether the service is about to end, as a call; a FastAPI dependency of answers without an end."""
    state = state_of(request.app)
    return lambda: state.is_stopping


IfMatch = Annotated[
    str | None,
    Header(
        description="One or more ETags, separated by commas. If the current ETag is not in this list, the "
        "call is refused."
    ),
]


def expected_versions(changed: type[RefeedError]) -> Callable[..., frozenset[int] | None]:
    """Return the FastAPI dependency for the versions that If-Match names, None when it is absent or ``*``.

    One of several is enough, and a weak etag (W/) matches nothing (RFC 9110). For a header that
    holds nothing that could be the etag of a version it raises ``changed``.
    """

    def parse_versions(request: Request, if_match: IfMatch = None) -> frozenset[int] | None:
        if if_match is None:
            return None
        # The header may come in several lines.
        given = ",".join(request.headers.getlist("if-match")).strip()
        if given == "*":
            return None
        versions = frozenset(int(digits) for _, digits in _VERSION_TAG.findall(given))
        if not versions:
            raise changed(f"{given[:40]!r} is not the etag of any version.")
        return versions

    return parse_versions


Jobs = Annotated[JobCollection, Depends(service_of(collect_jobs))]
Service = Annotated[BackfillService, Depends(service_of(lambda services: services.backfills))]
OpenInventory = Annotated[Inventory, Depends(service_of(lambda services: services.inventory))]
Streams = Annotated[StreamService, Depends(service_of(lambda services: services.streams))]
Snapshots = Annotated[SnapshotService, Depends(service_of(lambda services: services.snapshots))]
Checks = Annotated[CheckService, Depends(service_of(lambda services: services.checks))]
Updates = Annotated[UpdateService, Depends(service_of(lambda services: services.updates))]
HeldStreams = Annotated[StreamChanges, Depends(service_of(lambda services: services.stream_changes))]
SlowCalls = Annotated[Bulkhead, Depends(slow_calls)]
QuickCalls = Annotated[Bulkhead, Depends(quick_calls)]
Caller = Annotated[Principal, Depends(current_principal)]
# For answers that go on until a job ends.
Standing = Annotated[StandingCaller, Depends(standing_caller)]
BackfillId = Annotated[
    str,
    Path(description="The backfill's id, which begins with `bf_`.", examples=["bf_01K0ABCDEFGHJKMNPQRSTVWXYZ"]),
]
Stopping = Annotated[Callable[[], bool], Depends(stopping_of)]
ExpectedVersions = Annotated[frozenset[int] | None, Depends(expected_versions(JobChangedError))]
ExpectedStreamVersions = Annotated[frozenset[int] | None, Depends(expected_versions(StreamChangedError))]
ExpectedManifestVersions = Annotated[frozenset[int] | None, Depends(expected_versions(ManifestChangedError))]
StreamName = Annotated[str, Path(description="The stream's name.", examples=["backup"], max_length=300)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="A key that the caller chooses. A second call with the same key and body returns the "
        "result of the first call.",
    ),
]
ValidateOnly = Annotated[
    bool, Query(description="Whether to return only what the call would do, and change nothing.")
]


def problems(**meanings: str) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI's responses for problems, by status ("s404") and what each means.

    What the middleware answers on every route is documented with it.
    """
    return {
        int(status[1:]): {
            "description": text,
            "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status, text in meanings.items()
    }


def versioned(**meanings: str) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI's responses of a route that answers a resource with its version, or a problem."""
    return {200: {"headers": _ETAG_HEADER}, **problems(**meanings)}


def created(status: int, headers: Mapping[str, Any] = CREATED_HEADERS, **meanings: str) -> dict[str, Any]:
    """Return the status and OpenAPI's responses of a route that answers a new resource, or a problem."""
    return {"status_code": status, "responses": {status: {"headers": headers}, **problems(**meanings)}}


def point_to(location: str, response: Response) -> None:
    """Set the headers that name the place of a new resource, and when to ask for it."""
    response.headers["Location"] = location
    response.headers["Retry-After"] = _RETRY_AFTER_SECONDS
