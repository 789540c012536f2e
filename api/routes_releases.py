"""The releases that streams can be of, and the agents that have them."""

from datetime import datetime
from importlib.metadata import version
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from pydantic import AliasPath, BaseModel, Field

from api.answers import Caller, service_of
from model.principal import READ, STREAMS_READ
from rollout.known_releases import KnownReleases

router: Final = APIRouter(tags=["streams"])


class FormatOut(BaseModel):
    """A format: the number of what the release writes, and the numbers that it can read."""

    writes: int
    reads: list[int]


class FormatsOut(BaseModel):
    """The formats of what a stream of the release keeps, and of its parts and attempts in each warehouse."""

    version: str
    state: dict[str, FormatOut]
    warehouses: dict[str, dict[str, FormatOut]]


class ReleaseOut(BaseModel):
    """A version of Refeed that was installed from a wheel, beside the one that answers."""

    name: str
    version: str
    wheel: str = Field(description="The file that it was installed from.")
    sha256: str = Field(description="The wheel's.")
    environment: str = Field(description="Its packages; releases with the same lock share them.")
    added_at: datetime
    formats: FormatsOut
    hosts: list[str] = Field(
        description="Machines whose agents have it in their home; none: only the API's home has it."
    )


class AgentOut(BaseModel):
    """An agent that lives; one without streams is a standby."""

    host: str = Field(validation_alias=AliasPath("report", "host"))
    home: str = Field(validation_alias=AliasPath("report", "home"))
    installed_version: str = Field(
        validation_alias=AliasPath("report", "version"), description="What its streams without a release are of."
    )
    reported_at: datetime


class ReleasesOut(BaseModel):
    """The releases of all agents and of the API's home, by their names."""

    installed_version: str = Field(description="The version that answers.")
    agents: list[AgentOut]
    releases: list[ReleaseOut]


Releases = Annotated[KnownReleases, Depends(service_of(lambda services: services.releases))]


@router.get("/releases", operation_id="listReleases", response_model=ReleasesOut)
def list_releases(caller: Caller, releases: Releases) -> Any:
    """List the running agents and the releases in their homes. `refeed release add` installs one."""
    caller.require_any(READ, STREAMS_READ)
    return {
        "installed_version": version("refeed"),
        "agents": releases.list_agents(),
        "releases": [release.to_json() for release in releases.list_releases()],
    }
