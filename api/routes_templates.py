"""Templates: streams and jobs that were written down once, shown and launched by their names."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Response, status
from pydantic import BaseModel, ConfigDict, Field

from api.answers import LOCATION_HEADER, Caller, IdempotencyKey, problems, service_of
from api.schemas import ProblemItem
from model.stream_options import StreamKind
from rollout.launching import TemplateService
from rollout.templates import BrokenTemplate, Template

router: Final = APIRouter(tags=["templates"])
_UNREADABLE: Final = "The template has faults. `errors` lists all faults."
_NO_SUCH: Final = "There is no such template."
_NO_FOLDER: Final = "The folder of templates does not answer."

TemplateName = Annotated[str, Path(description="The template's name.", examples=["replay-orders"])]


class TemplateParameterOut(BaseModel):
    """A parameter with its GoogleSQL type and its default. Null means no default."""

    name: str = Field(description="The parameter's name.")
    type: str = Field(description="The parameter's GoogleSQL type.")
    default: Any = Field(description="The parameter's default. Null if the parameter has no default.")
    help: str = Field(description="What the parameter means.")
    required: bool = Field(description="Whether a launch must give a value.")


class TemplateOut(BaseModel):
    """A template. A template with faults has only a name and `errors`, and can't be launched."""

    name: str = Field(description="The template's name.")
    kind: str | None = Field(description="What the template launches.")
    release: str | None = Field(
        description="The version of Refeed that runs the stream. Null means the installed version."
    )
    description: str | None = Field(description="The template's description.")
    parameters: list[TemplateParameterOut] = Field(description="The template's parameters.")
    request: dict[str, Any] | None = Field(description="The request, with ${name} in place of each parameter.")
    errors: list[ProblemItem] = Field(description="The faults in the template's file.")


class TemplatesOut(BaseModel):
    """Every template, sorted by name."""

    templates: list[TemplateOut]


class TemplateLaunch(BaseModel):
    """The values of a template's parameters."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"parameters": {"from": "2026-01-01T00:00:00Z", "topic": "orders"}}]},
    )

    parameters: dict[str, Any] = Field(default_factory=dict, description="The parameters' values, by name.")


class TemplateLaunchOut(BaseModel):
    """The launched job or stream."""

    template: str = Field(description="The template's name.")
    kind: str = Field(description="The template's kind.")
    id: str = Field(description="The job's id, or the stream's name.")


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
            s409="The job or stream can't be launched now, for example because a stream with this name already "
            "runs.",
            s422="The parameters or the resulting request are not valid. `errors` lists every violation.",
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
    response.headers["Location"] = f"/{'streams' if made.kind in {*StreamKind} else 'jobs'}/{made.id}"
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
