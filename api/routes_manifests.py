"""Manifests as a resource, planned and applied together, and the schedules that they make."""

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from api.answers import (
    CHANGED,
    Caller,
    ExpectedManifestVersions,
    IdempotencyKey,
    ValidateOnly,
    problems,
    service_of,
    versioned,
)
from api.schemas_manifests import (
    ManifestDetails,
    ManifestOut,
    ManifestsAppliedOut,
    ManifestsOut,
    ScheduleOut,
    ScheduleRunOut,
    SchedulesOut,
)
from api.state import services_of
from rollout.manifests.schedules import Schedule, ScheduleService
from rollout.manifests.service import ManifestService

router: Final = APIRouter(tags=["manifests"])
_NO_SUCH: Final = "There is no such manifest."
_NO_PLACE: Final = "There is no such manifest, or the rollout's stream or release does not exist."
_NO_SCHEDULE: Final = "There is no such schedule."
_FAULTS: Final = (
    "A manifest has faults, or several are refused. `errors` lists all faults, with line and column in the body."
)
_TAKEN: Final = (
    "The name belongs to another owner. The status is also 409 if a rollout of the manifest has not ended, or if "
    "the stream's release or options differ from the rollout's `from`."
)
_PLAN_CHANGED: Final = "A manifest has changed since the plan, or since you read the ETag in If-Match."
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/yaml": {
                "schema": {
                    "type": "string",
                    "description": "One manifest or several: documents between `---`, or a list. "
                    "JSON is YAML too. `refeed check --manifest-schema` prints their JSON Schema.",
                }
            }
        },
    }
}

ManifestName = Annotated[str, Path(description="A manifest's name.", examples=["replay-orders"], max_length=300)]


async def manifest_body(request: Request) -> bytes:
    """Return the request's body as it came; a FastAPI dependency."""
    return await request.body()


OpenManifests = Annotated[ManifestService, Depends(service_of(lambda services: services.manifests))]
OpenSchedules = Annotated[ScheduleService, Depends(service_of(lambda services: services.schedules))]
Body = Annotated[bytes, Depends(manifest_body)]


@router.get("/manifests", response_model=ManifestsOut)
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
    response_model=ManifestDetails,
    responses=versioned(s404=_NO_SUCH, s422="The name is not valid."),
)
def get_manifest(name: ManifestName, response: Response, manifests: OpenManifests, caller: Caller) -> Any:
    """Show an applied manifest."""
    found = manifests.get(name, principal=caller)
    applied, changed = manifests.find_changes(found)
    response.headers["ETag"] = found.etag
    shown = {field: getattr(found, field) for field in ManifestOut.model_fields}
    return {**shown, "applied_at": None if applied is None else applied.at, "last_change": changed}


@router.post(
    "/manifests:apply",
    response_model=ManifestsAppliedOut,
    responses=problems(s404=_NO_PLACE, s409=_TAKEN, s412=_PLAN_CHANGED, s422=_FAULTS),
    openapi_extra=_BODY,
)
def apply_manifests(
    request: Request,
    body: Body,
    manifests: OpenManifests,
    caller: Caller,
    versions: ExpectedManifestVersions,
    *,
    validate_only: ValidateOnly = False,
    prune: Annotated[
        bool,
        Query(
            description="Whether to remove all other manifests that callers of the API have applied. Without "
            "`validate_only`, the call also needs `plan`."
        ),
    ] = False,
    plan: Annotated[
        str | None,
        Query(
            description="The `hash` of a plan. If the changes would differ from the plan, nothing changes.",
            max_length=64,
        ),
    ] = None,
) -> Any:
    """Apply one manifest or several: create or change schedules and templates, and begin rollouts.

    The call applies all manifests of the body or none. If one of them is refused, nothing changes. With
    `validate_only`, the answer lists the refused manifests and the plans of the others. `If-Match` is for a
    body with one manifest.
    """
    found = manifests.apply_all(
        body, principal=caller, validate_only=validate_only, prune=prune, plan_hash=plan, versions=versions
    )
    # For the audit log: the path names no manifest.
    changed = ", ".join(f"{each.action} {each.name}" for each in found.plans)
    request.state.why = f"validate_only: {changed}" if validate_only else changed
    return {"is_applied": not validate_only, "hash": found.hash, "plans": found.plans, "refused": found.refused}


@router.delete(
    "/manifests/{name}",
    response_model=ManifestOut,
    responses=problems(s404=_NO_SUCH, s409=_TAKEN, s412=CHANGED, s422="The name is not valid."),
)
def remove_manifest(
    name: ManifestName, manifests: OpenManifests, caller: Caller, versions: ExpectedManifestVersions
) -> Any:
    """Remove a manifest. Running jobs continue, and streams do not change.

    An uploaded manifest can be removed after its file was deleted, or while no replica watches its folder or
    bucket.
    """
    return manifests.remove(name, principal=caller, versions=versions)


@router.get("/schedules", response_model=SchedulesOut)
def list_schedules(schedules: OpenSchedules, caller: Caller) -> Any:
    """List all schedules, with the times of their next runs and with their last runs."""
    return {"schedules": schedules.list_schedules(principal=caller)}


@router.get(
    "/schedules/{name}",
    response_model=ScheduleOut,
    responses=versioned(s404=_NO_SCHEDULE, s422="The name is not valid."),
)
def get_schedule(name: ManifestName, response: Response, schedules: OpenSchedules, caller: Caller) -> Any:
    """Show a schedule, with the times of its next runs and with its last runs."""
    return _shown(schedules.get(name, principal=caller), response)


@router.post(
    "/schedules/{name}:run",
    response_model=ScheduleRunOut,
    responses=problems(s404=_NO_SCHEDULE, s412=CHANGED, s422="The name is not valid."),
)
def run_schedule(
    name: ManifestName,
    schedules: OpenSchedules,
    caller: Caller,
    versions: ExpectedManifestVersions,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Run a schedule's job now, for the newest slot that has ended. The caller is the creator of the job.

    If the previous run has not ended, the schedule's `overlap` decides whether the run waits or is skipped. The
    call also runs a paused schedule.
    """
    return schedules.run(name, principal=caller, idempotency_key=idempotency_key, versions=versions)


def _add_schedule_action(verb: str, about: str, act: Callable[..., Schedule]) -> None:
    @router.post(
        f"/schedules/{{name}}:{verb}",
        name=f"{verb}_schedule",
        response_model=ScheduleOut,
        responses=versioned(s404=_NO_SCHEDULE, s412=CHANGED, s422="The name is not valid."),
        description=about,
    )
    def act_on_schedule(
        name: ManifestName,
        response: Response,
        schedules: OpenSchedules,
        caller: Caller,
        versions: ExpectedManifestVersions,
    ) -> Any:
        return _shown(act(schedules, name, principal=caller, versions=versions), response)


_add_schedule_action(
    "pause", "Pause a schedule. A paused schedule starts no jobs. Running jobs continue.", ScheduleService.pause
)
_add_schedule_action(
    "resume", "Resume a schedule. Runs that were due during the pause are skipped.", ScheduleService.resume
)


def _shown(found: Schedule, response: Response) -> Schedule:
    """Return the schedule as the answer's body, its version as the answer's ETag."""
    response.headers["ETag"] = found.record.etag
    return found
