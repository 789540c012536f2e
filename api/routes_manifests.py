"""Manifests as a resource, planned, applied and removed by their names, and the schedules that they make."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Path, Query, Request

from api.answers import Caller, problems
from api.routes_rollouts import render_rollout
from api.schemas_manifests import AppliedOut, ManifestOut, ManifestPlanOut, ManifestsOut, ScheduleOut, SchedulesOut
from api.state import services_of
from model.manifest_record import ManifestRecord, ScheduleRun
from model.manifest_upload import ManifestUpload
from model.moment import render_moment
from rollout.manifests.service import ManifestPlan, ManifestService, Schedule

router: Final = APIRouter(tags=["manifests"])
_NO_SUCH: Final = "There is no such manifest."
_NO_PLACE: Final = "There is no such manifest, or no stream or release that a rollout names."
_NO_SCHEDULE: Final = "There is no such schedule."
_FAULTS: Final = "The manifest has faults; `errors` has all of them, with line and column."
_TAKEN: Final = (
    "The name belongs to another source, it has changed since it was planned, a rollout of it has not ended, or "
    "something else runs than the rollout begins with."
)
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/yaml": {
                "schema": {
                    "type": "string",
                    "description": "The manifest; `refeed manifest schema` has its fields.",
                }
            }
        },
    }
}

ManifestName = Annotated[str, Path(description="A manifest's name.", examples=["replay-orders"], max_length=300)]
PlanHash = Annotated[
    str | None, Query(description="The hash of a plan: what it stands for is done, or nothing.", max_length=64)
]


def manifest_service(request: Request) -> ManifestService:
    """Return the app's service of manifests; a FastAPI dependency."""
    return services_of(request).manifests


async def manifest_body(request: Request) -> bytes:
    """Return the request's body as it came; a FastAPI dependency."""
    return await request.body()


OpenManifests = Annotated[ManifestService, Depends(manifest_service)]
Body = Annotated[bytes, Depends(manifest_body)]


@router.get("/manifests", operation_id="listManifests", response_model=ManifestsOut)
def list_manifests(request: Request, manifests: OpenManifests, caller: Caller) -> Any:
    """List all manifests as they were applied, and the files of those that come by upload."""
    uploads = services_of(request).uploads
    source = uploads.find_source(principal=caller)
    return {
        "manifests": [_render_manifest(each) for each in manifests.list_manifests(principal=caller)],
        "uploads": [_render_upload(each) for each in uploads.list_uploads(principal=caller)],
        "upload_source": None if source is None else {"source": source.source, "problem": source.problem},
    }


@router.get(
    "/manifests/{name}",
    operation_id="getManifest",
    response_model=ManifestOut,
    responses=problems(s404=_NO_SUCH, s422="The name is not valid."),
)
def get_manifest(name: ManifestName, manifests: OpenManifests, caller: Caller) -> Any:
    """Show a manifest as it was applied."""
    return _render_manifest(manifests.get(name, principal=caller))


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
        Query(description="Whether it is applied or removed; for remove without a body."),
    ] = "apply",
) -> Any:
    """Return what applying or removing a manifest would change; nothing is changed."""
    return _render_plan(manifests.plan(name, body if action == "apply" else None, principal=caller))


@router.put(
    "/manifests/{name}",
    operation_id="applyManifest",
    response_model=AppliedOut,
    responses=problems(s404=_NO_PLACE, s409=_TAKEN, s422=_FAULTS),
    openapi_extra=_BODY,
)
def apply_manifest(
    name: ManifestName, body: Body, manifests: OpenManifests, caller: Caller, *, plan: PlanHash = None
) -> Any:
    """Create or change what the manifest describes, or begin its rollout; the same content changes nothing."""
    record, planned = manifests.apply(name, body, principal=caller, plan_hash=plan)
    rollout = manifests.find_rollout(record, principal=caller)
    return {
        "manifest": _render_manifest(record),
        "plan": _render_plan(planned),
        "rollout": None if rollout is None else render_rollout(rollout),
    }


@router.delete(
    "/manifests/{name}",
    operation_id="removeManifest",
    response_model=ManifestOut,
    responses=problems(s404=_NO_SUCH, s409=_TAKEN, s422="The name is not valid."),
)
def remove_manifest(name: ManifestName, manifests: OpenManifests, caller: Caller, *, plan: PlanHash = None) -> Any:
    """Remove a manifest; what runs ends by itself, and of a rollout nothing that runs changes."""
    return _render_manifest(manifests.remove(name, principal=caller, plan_hash=plan))


@router.get("/schedules", operation_id="listSchedules", response_model=SchedulesOut)
def list_schedules(manifests: OpenManifests, caller: Caller) -> Any:
    """List all schedules, with their next slots and their last runs."""
    return {"schedules": [_render_schedule(each) for each in manifests.list_schedules(principal=caller)]}


@router.get(
    "/schedules/{name}",
    operation_id="getSchedule",
    response_model=ScheduleOut,
    responses=problems(s404=_NO_SCHEDULE, s422="The name is not valid."),
)
def get_schedule(name: ManifestName, manifests: OpenManifests, caller: Caller) -> Any:
    """Show a schedule, with its next slots and its last runs."""
    return _render_schedule(manifests.get_schedule(name, principal=caller))


@router.post(
    "/schedules/{name}:pause",
    operation_id="pauseSchedule",
    response_model=ScheduleOut,
    responses=problems(s404=_NO_SCHEDULE, s422="The name is not valid."),
)
def pause_schedule(name: ManifestName, manifests: OpenManifests, caller: Caller) -> Any:
    """Let no slot be due until it is resumed; what runs goes on."""
    return _render_schedule(manifests.pause(name, principal=caller))


@router.post(
    "/schedules/{name}:resume",
    operation_id="resumeSchedule",
    response_model=ScheduleOut,
    responses=problems(s404=_NO_SCHEDULE, s422="The name is not valid."),
)
def resume_schedule(name: ManifestName, manifests: OpenManifests, caller: Caller) -> Any:
    """Let slots be due from now on; those of the pause are not made up for."""
    return _render_schedule(manifests.resume(name, principal=caller))


def _render_manifest(record: ManifestRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "kind": record.kind,
        "document": record.document,
        "source": record.source,
        "version": record.version,
        "applied_by": record.applied_by,
        "created_at": render_moment(record.created_at),
        "changed_at": render_moment(record.changed_at),
    }


def _render_upload(upload: ManifestUpload) -> dict[str, Any]:
    return {
        "file": upload.file,
        "source": upload.source,
        "generation": upload.generation,
        "noted_at": render_moment(upload.noted_at),
        "fault": upload.fault,
        "applied_generation": upload.applied_generation,
        "gone_at": render_moment(upload.gone_at),
        "waits": upload.waits,
        "approval_id": upload.approval_id,
    }


def _render_plan(plan: ManifestPlan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "kind": plan.kind,
        "action": plan.action,
        "differences": [
            {"pointer": each.pointer, "before": each.before, "after": each.after} for each in plan.differences
        ],
        "hash": plan.hash,
        "note": plan.note,
    }


def _render_schedule(schedule: Schedule) -> dict[str, Any]:
    record, spec = schedule.record, schedule.spec
    return {
        "name": record.name,
        "description": spec.description,
        "job": spec.job.kind,
        "cron": spec.cron,
        "time_zone": spec.time_zone,
        "source": record.source,
        "paused": record.paused,
        "applied_by": record.applied_by,
        "changed_at": render_moment(record.changed_at),
        "next_slots": [render_moment(slot) for slot in schedule.next_slots],
        "runs": [_render_run(run) for run in schedule.runs],
    }


def _render_run(run: ScheduleRun) -> dict[str, Any]:
    return {
        "slot": render_moment(run.slot),
        "slot_start": render_moment(run.slot_start),
        "state": run.state.value,
        "job_kind": run.job_kind,
        "job_id": run.job_id,
        "why": run.why,
        "created_at": render_moment(run.created_at),
        "finished_at": render_moment(run.finished_at),
    }
