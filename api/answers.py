"""What every route of a resource shares: the service, ids and etags of requests, documented answers."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Protocol

from fastapi import Depends, Header, Path, Request, Response

from api.auth import StandingCaller, current_principal
from api.bulkhead import Bulkhead
from api.errors import PROBLEM_TYPE
from api.schemas_backfills import EXAMPLE_ID
from api.state import services_of, state_of
from backfill.steer.service import BackfillService
from backup.compaction.service import CompactionService
from inventory.service import Inventory
from model.errors import JobChangedError, JobNotFoundError, RefeedError, StreamChangedError
from model.job import is_job_id
from model.principal import Principal
from reporting.service import MergeService
from rollout.approvals import ApprovalService
from rollout.checking import CheckService
from rollout.service import StreamService
from rollout.snapshots import SnapshotService
from rollout.stream_approvals import StreamApprovals
from rollout.updates import UpdateService

# One of ours in a list, with its quotes or, as careless clients send it, without; never a weak one (W/).
_VERSION_TAG: Final = re.compile(r"""(?:^|,)\s*("?)(\d{1,18})\1\s*(?=,|$)""", re.ASCII)
NO_SUCH_BACKFILL: Final = "There is no such backfill."
CHANGED: Final = "It has changed since If-Match was read."
_ETAG_HEADER: Final = {"ETag": {"description": "Its version, for If-Match.", "schema": {"type": "string"}}}
CREATED_HEADERS: Final = {
    "Location": {"description": "Where to ask how it is.", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds until asking is worth it.", "schema": {"type": "integer"}},
    **_ETAG_HEADER,
}
_RETRY_AFTER_SECONDS: Final = "1"
INVALID: Final = "The request or its query is not valid; `errors` has every violation."


def backfill_service(request: Request) -> BackfillService:
    """Return the app's service of backfills; a FastAPI dependency."""
    return services_of(request).backfills


def merge_service(request: Request) -> MergeService:
    """Return the app's service of merges; a FastAPI dependency."""
    return services_of(request).merges


def compaction_service(request: Request) -> CompactionService:
    """Return the app's service of compactions; a FastAPI dependency."""
    return services_of(request).compactions


def inventory_service(request: Request) -> Inventory:
    """Return the app's service for topics, messages and streams; a FastAPI dependency."""
    return services_of(request).inventory


def stream_service(request: Request) -> StreamService:
    """Return the app's service that steers streams; a FastAPI dependency."""
    return services_of(request).streams


def check_service(request: Request) -> CheckService:
    """Return the app's service that checks updates of streams; a FastAPI dependency."""
    return services_of(request).checks


def snapshot_service(request: Request) -> SnapshotService:
    """Return the app's service that makes snapshots of streams; a FastAPI dependency."""
    return services_of(request).snapshots


def update_service(request: Request) -> UpdateService:
    """Return the app's service that updates streams; a FastAPI dependency."""
    return services_of(request).updates


def approval_service(request: Request) -> ApprovalService:
    """Return the app's service of actions that wait for a second person; a FastAPI dependency."""
    return services_of(request).approvals


def stream_approvals(request: Request) -> StreamApprovals:
    """Return what has actions on streams wait for a second person; a FastAPI dependency."""
    return services_of(request).stream_approvals


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


def checked_id(
    backfill_id: Annotated[str, Path(description='"bf_" and a ULID.', examples=[EXAMPLE_ID])],
) -> str:
    """Return the id in a request's path; a FastAPI dependency.

    Raises:
        JobNotFoundError: it is no id, so there is no such job.
    """
    return parse_id(backfill_id)


def parse_id(text: str) -> str:
    """Return the id of a job.

    Raises:
        JobNotFoundError: it is no id, so there is no such job.
    """
    if not is_job_id(text):
        raise JobNotFoundError(f"There is no job {text[:80]!r}.", id=text[:80])
    return text


IfMatch = Annotated[
    str | None,
    Header(description="An etag, or several with commas: the call is refused when none of them is its version."),
]


def expected_versions(request: Request, if_match: IfMatch = None) -> frozenset[int] | None:
    """Return the versions of a job that If-Match names, None when it is absent or ``*``; a FastAPI dependency.

    Raises:
        JobChangedError: it holds nothing that could be the etag of a version.
    """
    return _parse_versions(request, if_match, JobChangedError)


def expected_stream_versions(request: Request, if_match: IfMatch = None) -> frozenset[int] | None:
    """Return the versions of a stream that If-Match names, None when it is absent or ``*``; a FastAPI dependency.

    Raises:
        StreamChangedError: it holds nothing that could be the etag of a version.
    """
    return _parse_versions(request, if_match, StreamChangedError)


def _parse_versions(request: Request, if_match: str | None, changed: type[RefeedError]) -> frozenset[int] | None:
    """Return the versions in the header: one of several is enough, a weak etag (W/) matches nothing (RFC 9110)."""
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


Service = Annotated[BackfillService, Depends(backfill_service)]
Merges = Annotated[MergeService, Depends(merge_service)]
OpenInventory = Annotated[Inventory, Depends(inventory_service)]
Streams = Annotated[StreamService, Depends(stream_service)]
Snapshots = Annotated[SnapshotService, Depends(snapshot_service)]
Checks = Annotated[CheckService, Depends(check_service)]
Updates = Annotated[UpdateService, Depends(update_service)]
Approvals = Annotated[ApprovalService, Depends(approval_service)]
HeldStreams = Annotated[StreamApprovals, Depends(stream_approvals)]
SlowCalls = Annotated[Bulkhead, Depends(slow_calls)]
QuickCalls = Annotated[Bulkhead, Depends(quick_calls)]
Caller = Annotated[Principal, Depends(current_principal)]
# For answers that go on until a job ends.
Standing = Annotated[StandingCaller, Depends(standing_caller)]
BackfillId = Annotated[str, Depends(checked_id)]
Stopping = Annotated[Callable[[], bool], Depends(stopping_of)]
ExpectedVersions = Annotated[frozenset[int] | None, Depends(expected_versions)]
ExpectedStreamVersions = Annotated[frozenset[int] | None, Depends(expected_stream_versions)]
IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=255, description="The same key and body make one job.")
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


class Resource(Protocol):
    """A job as people see it."""

    @property
    def etag(self) -> str:
        """Its version, for If-Match."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return it in the API's shape."""
        ...


def shown(found: Resource, response: Response) -> dict[str, Any]:
    """Return the resource as the answer's body, its version as the answer's ETag."""
    response.headers["ETag"] = found.etag
    return found.to_json()


def created(found: Resource, location: str, response: Response) -> dict[str, Any]:
    """Return a new resource as the answer's body, with where to ask how it is."""
    response.headers["Location"] = location
    response.headers["Retry-After"] = _RETRY_AFTER_SECONDS
    return shown(found, response)
