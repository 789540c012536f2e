"""Templates: streams and jobs that were written down once, shown and launched by their names."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Response, status
from pydantic import BaseModel, ConfigDict, Field

from api.answers import LOCATION_HEADER, Caller, IdempotencyKey, problems, service_of
from api.schemas import ProblemItem
from rollout.launching import COLLECTIONS, TemplateService
from rollout.templates import BrokenTemplate, Template

router: Final = APIRouter(tags=["templates"])
_UNREADABLE: Final = "The template has faults. `errors` has all of them."
_NO_SUCH: Final = "There is no such template."
_NO_FOLDER: Final = "The folder of templates does not answer."

TemplateName = Annotated[str, Path(description="The template's name.", examples=["replay-orders"])]


class TemplateParameterOut(BaseModel):
    """A parameter: its GoogleSQL type, and its default; null is none."""

    name: str
    type: str
    default: Any
    help: str
    required: bool


class TemplateOut(BaseModel):
    """A template; one with faults has its name and `errors` alone, and can't be launched."""

    name: str
    kind: str | None
    release: str | None = Field(description="Of a stream; null is the installed one.")
    description: str | None
    parameters: list[TemplateParameterOut]
    request: dict[str, Any] | None = Field(description="With `${name}` where parameters go.")
    errors: list[ProblemItem]


class TemplatesOut(BaseModel):
    """Every template, by its name."""

    templates: list[TemplateOut]


class TemplateLaunch(BaseModel):
    """The values of a template's parameters, by their names."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"parameters": {"from": "2026-01-01T00:00:00Z", "topic": "orders"}}]},
    )

    parameters: dict[str, Any] = Field(default_factory=dict)


class TemplateLaunchOut(BaseModel):
    """What was made, of the template's kind: the `id` of a job, or the name of a stream."""

    template: str
    kind: str
    id: str


OpenTemplates = Annotated[TemplateService, Depends(service_of(lambda services: services.templates))]


@router.get(
    "/templates",
    operation_id="listTemplates",
    response_model=TemplatesOut,
    responses=problems(s503=_NO_FOLDER),
)
def list_templates(templates: OpenTemplates, caller: Caller) -> Any:
    """List all templates with their parameters."""
    return {"templates": [_to_json(found) for found in templates.list_templates(principal=caller)]}


@router.get(
    "/templates/{name}",
    operation_id="getTemplate",
    response_model=TemplateOut,
    responses=problems(s404=_NO_SUCH, s502=_UNREADABLE, s503=_NO_FOLDER),
)
def get_template(name: TemplateName, templates: OpenTemplates, caller: Caller) -> Any:
    """Show one template."""
    return _to_json(templates.get_template(name, principal=caller))


@router.post(
    "/templates/{name}:launch",
    operation_id="launchTemplate",
    status_code=status.HTTP_202_ACCEPTED,
    response_model=TemplateLaunchOut,
    responses={
        202: {"headers": LOCATION_HEADER},
        **problems(
            s404=_NO_SUCH,
            s409="The same as for a launch without a template.",
            s422="The parameters are wrong, or the resulting request is. `errors` has every violation.",
            s502=_UNREADABLE,
            s503=_NO_FOLDER,
            s507="The disk is full.",
        ),
    },
)
def launch_template(
    name: TemplateName,
    body: TemplateLaunch,
    response: Response,
    templates: OpenTemplates,
    caller: Caller,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Launch the job or stream that the template describes."""
    made = templates.launch(name, body.parameters, principal=caller, idempotency_key=idempotency_key)
    response.headers["Location"] = f"/{COLLECTIONS[made.kind]}/{made.id}"
    return {"template": made.template, "kind": made.kind, "id": made.id}


def _to_json(found: Template | BrokenTemplate) -> dict[str, Any]:
    if isinstance(found, Template):
        return {**found.to_json(), "errors": []}
    nothing: dict[str, Any] = {
        "kind": None,
        "release": None,
        "description": None,
        "parameters": [],
        "request": None,
    }
    return {"name": found.name, **nothing, "errors": found.error.details["errors"]}
