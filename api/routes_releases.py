"""The releases that streams can be of, and the agents that have them."""

from datetime import datetime
from importlib.metadata import version
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from api.answers import Caller, service_of
from api.schemas import read_at
from model.principal import READ, STREAMS_READ
from rollout.known_releases import KnownReleases

router: Final = APIRouter(tags=["streams"])


class FormatOut(BaseModel):
    """The format numbers that a release writes and reads."""

    writes: int = Field(description="The format number that the release writes.")
    reads: list[int] = Field(description="The format numbers that the release can read.")


class FormatsOut(BaseModel):
    """The formats that a release uses for a stream's state and in each warehouse."""

    version: str = Field(description="The version of Refeed.")
    state: dict[str, FormatOut] = Field(description="The format of a stream's state.")
    warehouses: dict[str, dict[str, FormatOut]] = Field(description="The formats by warehouse.")


class ReleaseOut(BaseModel):
    """A version of Refeed that was installed from a wheel, in addition to the version that the API runs."""

    name: str = Field(description="The release's name.")
    version: str = Field(description="The version of Refeed in the release.")
    wheel: str = Field(description="The name of the wheel.")
    sha256: str = Field(description="The hash of the wheel.")
    environment: str = Field(
        description="The id of the release's Python environment. Releases with the same requirements.lock "
        "share an environment."
    )
    added_at: datetime = Field(description="When the release was installed.")
    formats: FormatsOut = Field(description="The formats that the release writes and reads.")
    hosts: list[str] = Field(
        description="The machines whose agents have the release. Empty if only the API's home has the release."
    )


class AgentOut(BaseModel):
    """A running agent. An agent without streams is a standby."""

    host: str = read_at("report.host")
    home: str = read_at("report.home", "The agent's home.")
    installed_version: str = read_at(
        "report.version", "The version of Refeed that is installed on the agent's machine."
    )
    reported_at: datetime = Field(description="When the agent last reported.")


class ReleasesOut(BaseModel):
    """All releases that are installed in the home of an agent or of the API, sorted by name."""

    installed_version: str = Field(description="The API's own version.")
    agents: list[AgentOut] = Field(description="The running agents.")
    releases: list[ReleaseOut] = Field(description="The installed releases.")


Releases = Annotated[KnownReleases, Depends(service_of(lambda services: services.releases))]


@router.get("/releases", response_model=ReleasesOut)
def list_releases(caller: Caller, releases: Releases) -> Any:
    """List the running agents and the releases in their homes. `refeed release add` installs a release."""
    caller.require_any(READ, STREAMS_READ)
    return {
        "installed_version": version("refeed"),
        "agents": releases.list_agents(),
        "releases": releases.list_releases(),
    }
