"""The HTTP service of one deployment."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Final

import structlog
from fastapi import FastAPI

from api.body import BodyLimit
from api.errors import install_problem_handlers
from api.routes import router
from api.schemas import problem_schemas
from backfill.service import BackfillService, open_backfills
from model.errors import RefeedError
from model.settings import Settings

_LOG: Final = structlog.get_logger()
_DESCRIPTION: Final = """\
Replays messages of the archive with SQL. Errors are RFC 9457 problems with a stable `code`; every violation of
a request is named at once. Requests with unknown fields are refused."""


def create_app(
    settings: Settings, *, service: BackfillService | None = None, interrupt_at_exit: bool = False
) -> FastAPI:
    """Return the service; serve it on loopback only, because it has no keys yet.

    Running backfills go on when it ends and are found again when it starts, unless ``interrupt_at_exit``:
    then they are FAILED as interrupted, and a retry goes on from there. ``service`` is for callers that
    opened one already; it is closed with the app.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        backfills = service or open_backfills(settings)
        app.state.service = backfills
        app.state.starting = {"spark": "Spark is starting."}
        backfills.start()
        threading.Thread(target=_prepare, args=(app, backfills), name="prepare", daemon=True).start()
        try:
            yield
        finally:
            backfills.close(interrupt=interrupt_at_exit)

    app = FastAPI(
        title="Refeed",
        version=version("refeed"),
        summary="Backfills of raw Pub/Sub messages, by SQL.",
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url="/openapi.json",
        docs_url="/docs",
        redoc_url=None,
    )
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    install_problem_handlers(app)
    app.include_router(router)
    render = app.openapi

    def openapi() -> dict[str, Any]:
        document = render()
        # No route answers with it as a model of its own: the framework would call it application/json.
        document["components"]["schemas"] |= problem_schemas()
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _prepare(app: FastAPI, service: BackfillService) -> None:
    """Get Spark ready while the first requests are answered already; /readyz tells."""
    try:
        service.prepare()
    except RefeedError as exc:
        _LOG.exception("Spark is not ready")
        app.state.starting = {"spark": exc.message}
    else:
        app.state.starting = {}
