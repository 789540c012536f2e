"""Snapshots of streams as a resource, and streams that go back to one."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Response, status

from api.answers import (
    CHANGED,
    NO_SUCH_STREAM,
    PLACE_HEADERS,
    Caller,
    ExpectedStreamVersions,
    HeldStreams,
    IdempotencyKey,
    Jobs,
    Snapshots,
    StreamName,
    created,
    point_to,
    problems,
)
from api.listing import IdToken, PageSize, page_of
from api.schemas_changes import ChangeOut, wait_for_approval
from api.schemas_snapshots import (
    RollbackCreate,
    RollbackOut,
    SnapshotCreate,
    SnapshotOut,
    SnapshotsOut,
)
from jobs.listing import DEFAULT_PAGE_SIZE
from jobs.page_tokens import parse_id_token, render_id_token

router: Final = APIRouter(tags=["snapshots"])
_UNKNOWN: Final = "There is no such snapshot."

SnapshotId = Annotated[str, Path(description="The snapshot's id.", max_length=64)]


@router.post(
    "/streams/{name}:snapshot",
    response_model=SnapshotOut,
    **created(
        201, PLACE_HEADERS, s404=NO_SUCH_STREAM, s409="The stream has ended.", s422="The request is not valid."
    ),
)
def create_snapshot(
    name: StreamName,
    response: Response,
    snapshots: Snapshots,
    caller: Caller,
    *,
    body: SnapshotCreate | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Make a snapshot of a stream's state between two commits.

    `with_source` adds Pub/Sub snapshots of the stream's subscriptions.
    """
    with_source = body is not None and body.with_source
    made = snapshots.create(name, with_source=with_source, principal=caller, idempotency_key=idempotency_key)
    point_to(f"/snapshots/{made.id}", response)
    return made


@router.get("/snapshots", response_model=SnapshotsOut, responses=problems(s422="A parameter is not valid."))
def list_snapshots(
    snapshots: Snapshots,
    caller: Caller,
    *,
    stream: Annotated[str | None, Query(description="List only snapshots of this stream.", max_length=300)] = None,
    page_size: PageSize = DEFAULT_PAGE_SIZE,
    page_token: IdToken = None,
) -> Any:
    """List snapshots, newest first."""
    before = parse_id_token(page_token)
    found = snapshots.list_page(principal=caller, stream=stream, before=before, limit=page_size + 1)
    page, token = page_of(found, page_size, lambda last: render_id_token(last.id))
    return {"snapshots": page, "next_page_token": token}


@router.get(
    "/snapshots/{snapshot_id}",
    response_model=SnapshotOut,
    responses=problems(s404=_UNKNOWN, s422="The id is not valid."),
)
def get_snapshot(snapshot_id: SnapshotId, snapshots: Snapshots, caller: Caller) -> Any:
    """Show a snapshot."""
    return snapshots.get(snapshot_id, principal=caller)


@router.delete(
    "/snapshots/{snapshot_id}",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=SnapshotOut,
    responses=problems(
        s404=_UNKNOWN, s409="A stream is being rolled back to the snapshot.", s422="The id is not valid."
    ),
)
def delete_snapshot(snapshot_id: SnapshotId, snapshots: Snapshots, caller: Caller) -> Any:
    """Delete a snapshot. An agent then deletes the snapshot's files and its Pub/Sub snapshots."""
    return snapshots.delete(snapshot_id, principal=caller)


@router.post(
    "/streams/{name}:rollback",
    response_model=RollbackOut | ChangeOut,
    **created(
        202,
        PLACE_HEADERS,
        s404="The stream or the snapshot does not exist.",
        s409="The stream has ended or is already being rolled back, or the snapshot is not COMPLETED. The "
        "status is also 409 if the snapshot is of another kind of stream.",
        s412=CHANGED,
        s422="The request is not valid.",
    ),
)
def roll_back_stream(
    name: StreamName,
    body: RollbackCreate,
    response: Response,
    snapshots: Snapshots,
    held: HeldStreams,
    *,
    jobs: Jobs,
    caller: Caller,
    versions: ExpectedStreamVersions,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Drain a stream, restore a snapshot, and start the stream again. No message is staged twice.

    If a second person must approve rollbacks in this deployment, the answer is the job that
    waits for the approval.
    """
    if waits := held.hold("rollback", name, body.model_dump(), principal=caller, versions=versions):
        return wait_for_approval(waits)
    made = snapshots.rollback(
        name,
        body.snapshot,
        principal=caller,
        discard_staged=body.discard_staged,
        versions=versions,
        idempotency_key=idempotency_key,
    )
    point_to(f"/jobs/{made.id}", response)
    return jobs.show(made.id, principal=caller).to_json()
