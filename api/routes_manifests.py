"""Manifests as a resource, planned, applied and removed by their names, and the schedules that they make."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from api.answers import (
    CHANGED,
    Caller,
    ExpectedManifestVersions,
    IdempotencyKey,
    problems,
    service_of,
    versioned,
)
from api.schemas_manifests import (
    AppliedOut,
    ManifestOut,
    ManifestPlanOut,
    ManifestsOut,
    PruneOut,
    PruneRequest,
    ScheduleOut,
    ScheduleRunOut,
    SchedulesOut,
)
from api.state import services_of
from rollout.manifests.service import ManifestService, Schedule

router: Final = APIRouter(tags=["manifests"])
_NO_SUCH: Final = "There is no such manifest."
_NO_PLACE: Final = "There is no such manifest, or the rollout's stream or release does not exist."
_NO_SCHEDULE: Final = "There is no such schedule."
_FAULTS: Final = "The manifest has faults. `errors` lists all faults, with line and column."
_TAKEN: Final = (
    "The name belongs to another owner. The status is also 409 if a rollout of the manifest has not ended, or if "
    "the stream's release or options differ from the rollout's `from`."
)
_PLAN_CHANGED: Final = "The manifest has changed since the plan, or since you read the ETag in If-Match."
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/yaml": {
                "schema": {
                    "type": "string",
                    "description": "The manifest. `refeed manifest schema` prints its JSON Schema.",
                }
            }
        },
    }
}

ManifestName = Annotated[str, Path(description="A manifest's name.", examples=["replay-orders"], max_length=300)]
PlanHash = Annotated[
    str | None,
    Query(
        description="The `hash` of a plan. If the change would differ from the plan, the call changes nothing.",
        max_length=64,
    ),
]


async def manifest_body(request: Request) -> bytes:
    """Return the request's body as it came; a FastAPI dependency."""
    return await request.body()


OpenManifests = Annotated[ManifestService, Depends(service_of(lambda services: services.manifests))]
Body = Annotated[bytes, Depends(manifest_body)]


@router.get("/manifests", operation_id="listManifests", response_model=ManifestsOut)
def list_manifests(request: Request, manifests: OpenManifests, caller: Caller) -> Any:
    """List all applied manifests and all uploaded files."""
    uploads = services_of(request).uploads
    problem = uploads.find_problem(principal=caller)
    itself = {"source": uploads.source, "problem": None if problem is None else problem.fault}
    return {
        "manifests": manifests.list_manifests(principal=caller),
        "uploads": uploads.list_uploads(principal=caller),
        "upload_source": None if uploads.source is None else itself,
    }


@router.get(
    "/manifests/{name}",
    operation_id="getManifest",
    response_model=ManifestOut,
    responses=versioned(s404=_NO_SUCH, s422="The name is not valid."),
)
def get_manifest(name: ManifestName, response: Response, manifests: OpenManifests, caller: Caller) -> Any:
    """Show an applied manifest."""
    found = manifests.get(name, principal=caller)
    response.headers["ETag"] = found.etag
    return found


@router.post(
    "/manifests/{name}:plan",
    operation_id="planManifest",
    response_model=ManifestPlanOut,
    responses=problems(s404=_NO_PLACE, s409=_TAKEN, s422=_FAULTS),
    openapi_extra=_BODY,
)
def plan_manifest(
    name: ManifestName,
    body: Body,
    manifests: OpenManifests,
    caller: Caller,
    *,
    action: Annotated[
        Literal["apply", "remove"],
        Query(
            description="`apply`: plan to apply the manifest in the body. `remove`: plan to remove the applied "
            "manifest. In this case, send no body."
        ),
    ] = "apply",
) -> Any:
    """Show what would change if a manifest were applied or removed. The call itself changes nothing."""
    return manifests.plan(name, body if action == "apply" else None, principal=caller)


@router.put(
    "/manifests/{name}",
    operation_id="applyManifest",
    response_model=AppliedOut,
    responses=problems(s404=_NO_PLACE, s409=_TAKEN, s412=_PLAN_CHANGED, s422=_FAULTS),
    openapi_extra=_BODY,
)
def apply_manifest(
    name: ManifestName,
    body: Body,
    manifests: OpenManifests,
    caller: Caller,
    versions: ExpectedManifestVersions,
    *,
    plan: PlanHash = None,
) -> Any:
    """Apply a manifest: create or change its schedule, or begin its rollout."""
    record, planned = manifests.apply(name, body, principal=caller, plan_hash=plan, versions=versions)
    return {
        "manifest": record,
        "plan": planned,
        "update": manifests.find_update(record, principal=caller),
    }


@router.delete(
    "/manifests/{name}",
    operation_id="removeManifest",
    response_model=ManifestOut,
    responses=problems(s404=_NO_SUCH, s409=_TAKEN, s412=_PLAN_CHANGED, s422="The name is not valid."),
)
def remove_manifest(
    name: ManifestName,
    manifests: OpenManifests,
    caller: Caller,
    versions: ExpectedManifestVersions,
    *,
    plan: PlanHash = None,
) -> Any:
    """Remove a manifest. Running jobs continue, and streams do not change.

    An uploaded manifest can be removed after its file was deleted, or while no replica watches its folder or
    bucket.
    """
    return manifests.remove(name, principal=caller, plan_hash=plan, versions=versions)


@router.post(
    "/manifests:prune",
    operation_id="pruneManifests",
    response_model=PruneOut,
    responses=problems(s404=_NO_SUCH, s409=_TAKEN, s412=_PLAN_CHANGED, s422="The body is not valid."),
)
def prune_manifests(body: PruneRequest, manifests: OpenManifests, caller: Caller) -> Any:
    """Remove all manifests that callers of the API have applied and that `keep` does not name.

    Without `plan`, the call only shows what it would remove. It removes all of these manifests or none.
    """
    plans, found = manifests.prune(body.keep, principal=caller, plan_hash=body.plan)
    return {"plans": plans, "hash": found}


@router.get("/schedules", operation_id="listSchedules", response_model=SchedulesOut)
def list_schedules(manifests: OpenManifests, caller: Caller) -> Any:
    """List all schedules, with the times of their next runs and with their last runs."""
    return {"schedules": manifests.list_schedules(principal=caller)}


@router.get(
    "/schedules/{name}",
    operation_id="getSchedule",
    response_model=ScheduleOut,
    responses=versioned(s404=_NO_SCHEDULE, s422="The name is not valid."),
)
def get_schedule(name: ManifestName, response: Response, manifests: OpenManifests, caller: Caller) -> Any:
    """Show a schedule, with the times of its next runs and with its last runs."""
    return _shown(manifests.get_schedule(name, principal=caller), response)


@router.post(
    "/schedules/{name}:pause",
    operation_id="pauseSchedule",
    response_model=ScheduleOut,
    responses=versioned(s404=_NO_SCHEDULE, s412=CHANGED, s422="The name is not valid."),
)
def pause_schedule(
    name: ManifestName,
    response: Response,
    manifests: OpenManifests,
    caller: Caller,
    versions: ExpectedManifestVersions,
) -> Any:
    """Pause a schedule. A paused schedule starts no jobs. Running jobs continue."""
    return _shown(manifests.pause(name, principal=caller, versions=versions), response)


@router.post(
    "/schedules/{name}:run",
    operation_id="runSchedule",
    response_model=ScheduleRunOut,
    responses=problems(s404=_NO_SCHEDULE, s412=CHANGED, s422="The name is not valid."),
)
def run_schedule(
    name: ManifestName,
    manifests: OpenManifests,
    caller: Caller,
    versions: ExpectedManifestVersions,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Run a schedule's job now, for the newest slot that has ended. The caller is the creator of the job.

    If the previous run has not ended, the schedule's `overlap` decides whether the run waits or is skipped. The
    call also runs a paused schedule.
    """
    return manifests.run(name, principal=caller, idempotency_key=idempotency_key, versions=versions)


@router.post(
    "/schedules/{name}:resume",
    operation_id="resumeSchedule",
    response_model=ScheduleOut,
    responses=versioned(s404=_NO_SCHEDULE, s412=CHANGED, s422="The name is not valid."),
)
def resume_schedule(
    name: ManifestName,
    response: Response,
    manifests: OpenManifests,
    caller: Caller,
    versions: ExpectedManifestVersions,
) -> Any:
    """Resume a schedule. Runs that were due during the pause are skipped."""
    return _shown(manifests.resume(name, principal=caller, versions=versions), response)


def _shown(found: Schedule, response: Response) -> Schedule:
    """Return the schedule as the answer's body, its version as the answer's ETag."""
    response.headers["ETag"] = found.record.etag
    return found
