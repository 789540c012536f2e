"""The routes of the service itself, and all others gathered."""

import re
from pathlib import Path
from typing import Final

from anyio import to_thread
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from api.metrics import TEXT_FORMAT
from api.routes_backfills import router as backfills
from api.routes_backups import router as backups
from api.routes_catalog import router as catalog
from api.routes_compactions import router as compactions
from api.routes_dead_letters import router as dead_letters
from api.routes_events import router as events
from api.routes_former import router as former
from api.routes_jobs import router as jobs
from api.routes_manifests import router as manifests
from api.routes_merges import router as merges
from api.routes_queries import router as queries
from api.routes_releases import router as releases
from api.routes_sessions import router as sessions
from api.routes_sign_ins import router as sign_ins
from api.routes_snapshots import router as snapshots
from api.routes_sources import router as sources
from api.routes_status import router as status
from api.routes_streams import router as streams
from api.routes_templates import router as templates
from api.routes_updates import router as updates
from api.routes_volumes import router as volumes
from api.schemas import Health, Root
from api.state import state_of
from api.unknown_parameters import refuse_unknown_parameters

router: Final = APIRouter()
_HERE: Final = Path(__file__).parent
# A wheel has them beside this module (see pyproject.toml), a clone under docs.
_FOLDERS: Final = (_HERE / "problems", _HERE.parent / "docs" / "problems")


@router.get("/", tags=["service"])
async def get_root(request: Request) -> Root:
    """Show the service's name, version and main paths."""
    return Root(version=request.app.version)


# Without a thread, so that a service whose threads are all busy is not taken for dead and restarted.
@router.get("/healthz", tags=["service"])
async def get_health() -> Health:
    """Return `ok` while the process runs."""
    return Health(status="ok")


@router.get(
    "/readyz",
    tags=["service"],
    responses={503: {"model": Health, "description": "The service is not ready. `problems` lists the reasons."}},
)
async def get_readiness(request: Request, response: Response) -> Health:
    """Return whether a backfill can start now. If not, the answer lists the problems."""
    app = state_of(request.app).open
    found = await to_thread.run_sync(app.readiness.problems, limiter=app.readiness_threads)
    problems = {**found, **app.starting}
    if problems:
        response.status_code = 503
        return Health(status="not_ready", problems=problems)
    return Health(status="ok")


@router.get(
    "/metrics",
    tags=["service"],
    response_class=PlainTextResponse,
    responses={
        200: {
            "description": "The metrics (docs/reference/metrics.md).",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
)
def get_metrics(request: Request) -> PlainTextResponse:
    """Return metrics in Prometheus' text format. Figures of jobs and streams are at most five seconds old."""
    return PlainTextResponse(state_of(request.app).metrics.render(), media_type=TEXT_FORMAT)


@router.get("/problems/{code}", include_in_schema=False)
def get_problem_page(code: str) -> PlainTextResponse:
    """Explain an error's code: what it means and what to do; ``type`` of every problem points here."""
    return PlainTextResponse(_read_problem_page(code), media_type="text/markdown; charset=utf-8")


def _read_problem_page(code: str) -> str:
    """Return the page of ``code``, in Markdown.

    Raises:
        HTTPException: no error has this code.
    """
    if re.fullmatch(r"[a-z_]{1,64}", code):
        for folder in _FOLDERS:
            page = folder / f"{code}.md"
            if page.is_file():
                return page.read_text()
    raise HTTPException(404, "No error has this code.")


# In this order: a path with a verb after the id is looked for before the one without.
for part in (
    former,
    backfills,
    merges,
    compactions,
    jobs,
    queries,
    backups,
    catalog,
    dead_letters,
    streams,
    snapshots,
    updates,
    volumes,
    status,
    events,
    releases,
    templates,
    manifests,
    sessions,
    sign_ins,
    sources,
):
    router.include_router(part, dependencies=[Depends(refuse_unknown_parameters)])
