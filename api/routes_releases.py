"""The releases that streams can be of, side by side in the home."""

from datetime import datetime
from importlib.metadata import version
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from api.answers import Caller
from api.state import services_of
from model.principal import READ, STREAMS_READ
from rollout.releases import Releases

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


class ReleasesOut(BaseModel):
    """The releases of the API's home, by their names; an agent with another home has its own."""

    installed_version: str = Field(description="The version that answers; streams without a release are of it.")
    releases: list[ReleaseOut]


def releases_of(request: Request) -> Releases:
    """Return the app's releases; a FastAPI dependency."""
    return services_of(request).releases


@router.get("/releases", operation_id="listReleases", response_model=ReleasesOut)
def list_releases(caller: Caller, releases: Annotated[Releases, Depends(releases_of)]) -> Any:
    """List the releases that are installed side by side; `refeed release add` installs one."""
    caller.require_any(READ, STREAMS_READ)
    return {
        "installed_version": version("refeed"),
        "releases": [release.to_json() for release in releases.list_releases()],
    }
