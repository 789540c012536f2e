"""Launches of the manifests that are templates."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field

from api.answers import LOCATION_HEADER, Caller, IdempotencyKey, created, service_of
from api.routes_manifests import ManifestName
from model.stream_options import StreamKind
from rollout.launching import TemplateLaunchOut, TemplateService

router: Final = APIRouter(tags=["manifests"])


class TemplateLaunch(BaseModel):
    """The values of a template's parameters."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"parameters": {"from": "2026-01-01T00:00:00Z", "topic": "orders"}}]},
    )

    parameters: dict[str, Any] = Field(default_factory=dict, description="The parameters' values, by name.")


@router.post(
    "/manifests/{name}:launch",
    response_model=TemplateLaunchOut,
    **created(
        202,
        LOCATION_HEADER,
        s404="There is no such template.",
        s409="The job or stream can't be launched now, for example because a stream with this name already runs.",
        s422="The parameters or the resulting request are not valid. `errors` lists every violation.",
        s507="The disk is full.",
    ),
)
def launch_template(
    name: ManifestName,
    body: TemplateLaunch,
    response: Response,
    templates: Annotated[TemplateService, Depends(service_of(lambda services: services.templates))],
    caller: Caller,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Launch the job or stream that a template describes. A template is a manifest of this kind."""
    made = templates.launch(name, body.parameters, principal=caller, idempotency_key=idempotency_key)
    response.headers["Location"] = f"/{'streams' if made.kind in {*StreamKind} else 'jobs'}/{made.id}"
    return made
