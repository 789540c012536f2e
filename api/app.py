"""The HTTP service of one deployment."""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Final

import structlog
from fastapi import Depends, FastAPI
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.audit import AuditMiddleware
from api.auth import Admission
from api.body import BodyLimit, HeadLimit
from api.deadline import AnswerLimit
from api.errors import install_problem_handlers
from api.metrics import AnswerCounter, Metrics
from api.openapi import install_openapi
from api.operations import name_operation
from api.readiness import Readiness
from api.routes import router
from api.routes_audit import router as audit
from api.server import MAX_HEAD_BYTES
from api.state import AppState, OpenApp, Services, put_state
from api.swagger import router as swagger
from api.unknown_parameters import refuse_unknown_parameters
from inventory.streams import StreamOut
from model.errors import RefeedError
from model.settings import Settings

_LOG: Final = structlog.get_logger()
_DESCRIPTION: Final = """\
Replays messages of the archive with SQL. Errors are RFC 9457 problems with a stable `code`. If a request is not
valid, the problem lists every violation. The API refuses requests with unknown fields."""

# What every answer has, so that a browser takes it for what it is and shows it nowhere else.
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    # Answers are one caller's own; a shared cache must not give them to the next one.
    "Cache-Control": "no-store",
}

# Opens what an app answers from, running; leaving the block closes it.
OpenServices = Callable[[], AbstractContextManager[Services]]


def make_app(settings: Settings, open_services: OpenServices) -> FastAPI:
    """Return the HTTP service; ``open_services`` is entered before its first request and left after its last one.

    Of ``settings`` it takes how large and how slow a request may be.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with open_services() as services:
            state.opened = OpenApp(
                services, Readiness(services.backfills.check_readiness), {"spark": "Spark is starting."}
            )
            threading.Thread(target=_prepare, args=(state.opened,), name="prepare", daemon=True).start()
            yield

    def measure_streams() -> Sequence[StreamOut]:
        return state.open.services.inventory.measure_streams()

    app = FastAPI(
        title="Refeed",
        version=version("refeed"),
        summary="Back up raw Pub/Sub messages, replay them with SQL, and merge their rows.",
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url="/openapi.json",
        # The framework's pages load their scripts from other hosts; api.swagger has its own.
        docs_url=None,
        redoc_url=None,
        # A redirect would be a second way to a route, and an answer that no client expects.
        redirect_slashes=False,
        generate_unique_id_function=name_operation,
    )
    state = put_state(app, AppState(Metrics(lambda: state.open.services.store, measure_streams)))
    # Middleware runs in reverse order of registration.
    app.add_middleware(AnswerLimit, seconds=settings.answer_timeout_seconds)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes, seconds=settings.body_timeout_seconds)
    app.add_middleware(Admission, gatekeeper=lambda: state.open.services.gatekeeper)
    app.add_middleware(AuditMiddleware, trail=lambda: state.open.services.audit)
    app.add_middleware(HeadLimit, max_bytes=MAX_HEAD_BYTES)
    app.add_middleware(SafeHeaders)
    app.add_middleware(AnswerCounter, metrics=state.metrics)
    install_problem_handlers(app)
    app.include_router(router)
    app.include_router(audit, dependencies=[Depends(refuse_unknown_parameters)])
    app.include_router(swagger)
    install_openapi(app)
    return app


def _prepare(opened: OpenApp) -> None:
    """Get Spark ready while the first requests are answered already; /readyz shows when it is."""
    try:
        opened.services.prepare()
    except RefeedError as exc:
        _LOG.exception("Spark is not ready")
        opened.starting = {"spark": exc.message}
    else:
        opened.starting = {}


class SafeHeaders:
    """ASGI middleware: adds them unless the answer has its own; bodies pass as they come."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and the answer back with its headers."""

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_safe if scope["type"] == "http" else send)
