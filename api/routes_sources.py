"""The routes of sources: from the topic to reporting, and how their schemas grew."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query

from api.answers import Caller, SlowCalls, problems, service_of
from api.schemas_sources import SourceOut, SourcesOut, SourceVersionsOut
from inventory.sources import SourceCatalog

router: Final = APIRouter(tags=["sources"])
_FAILED: Final = "The registry or the warehouse can't be read."
_UNKNOWN: Final = "The registry has no such source."


Sources = Annotated[SourceCatalog, Depends(service_of(lambda services: services.sources))]
SourceName = Annotated[str, Path(description="The source's name.", max_length=300, examples=["orders"])]
_Version = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@router.get("/sources", response_model=SourcesOut, responses=problems(s502=_FAILED))
def list_sources(sources: Sources, caller: Caller, slow: SlowCalls) -> Any:
    """List sources with their topics, their tables, and counts of their messages and rows."""
    with slow:
        return {"sources": sources.list_sources(principal=caller)}


@router.get(
    "/sources/{name}",
    response_model=SourceOut,
    responses=problems(s404=_UNKNOWN, s422="The name is too long.", s502=_FAILED),
)
def get_source(name: SourceName, sources: Sources, caller: Caller, slow: SlowCalls) -> Any:
    """Show one source, with counts of all unknown fields, missing fields and refused messages."""
    with slow:
        return sources.show_source(name, principal=caller)


@router.get(
    "/sources/{name}/versions",
    response_model=SourceVersionsOut,
    responses=problems(
        s404=_UNKNOWN, s422="There is no such event type or version. `errors` lists every violation.", s502=_FAILED
    ),
)
def list_source_versions(
    name: SourceName,
    sources: Sources,
    caller: Caller,
    slow: SlowCalls,
    *,
    event_type: Annotated[
        str | None,
        Query(
            max_length=300,
            description="List only versions of this event type. Use an empty value if the source has only one "
            "type.",
        ),
    ] = None,
    before: Annotated[
        _Version,
        Query(
            alias="from",
            description="The older version to compare. The default is the version before `to`.",
        ),
    ] = None,
    after: Annotated[
        _Version, Query(alias="to", description="The newer version to compare. The default is the newest version.")
    ] = None,
) -> Any:
    """List the table versions of a source without a schema, and the differences between two versions."""
    with slow:
        return sources.list_versions(name, principal=caller, event_type=event_type, before=before, after=after)
