"""The HTTP service of one deployment."""

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Final

import structlog
from anyio import CapacityLimiter
from fastapi import FastAPI

from api.audit import AuditLog, AuditTrail
from api.auth import Admission, Gatekeeper
from api.body import BodyLimit, HeadLimit
from api.bulkhead import Bulkhead
from api.deadline import AnswerLimit
from api.errors import install_problem_handlers
from api.headers import SafeHeaders
from api.metrics import AnswerCounter, Metrics
from api.openapi import install_openapi
from api.readiness import Readiness
from api.routes import router
from api.routes_audit import router as audit
from api.server import MAX_HEAD_BYTES
from api.swagger import router as swagger
from backfill.approval import exceeds_approval
from backfill.chores import KIND as BACKFILL
from backfill.opening import open_backfills
from backfill.service import BackfillService
from inventory.catalog import StreamInfo
from inventory.service import Inventory
from jobs.keys import Keyring
from jobs.notify import Notifier
from jobs.store import Job, open_store
from model.errors import RefeedError
from model.settings import Settings
from pipeline.registry import Registry, Source, read_snapshot
from pipeline.staged import StagedTopics
from reporting.service import MergeService
from reporting.supervisor import KIND as MERGE

_LOG: Final = structlog.get_logger()
_DESCRIPTION: Final = """\
Replays messages of the archive with SQL. Errors are RFC 9457 problems with a stable `code`; every violation of
a request is named at once. Requests with unknown fields are refused."""


def create_app(
    settings: Settings, *, service: BackfillService | None = None, interrupt_at_exit: bool = False
) -> FastAPI:
    """Return the service; api.server serves it, on loopback alone while it has neither a key nor an issuer.

    Running backfills go on when it ends and are found again when it starts, unless ``interrupt_at_exit``:
    then they are FAILED as interrupted, and a retry goes on from there. ``service`` is for callers that
    opened one already; it is closed with the app.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with ExitStack() as stack:
            staged = StagedTopics(settings)
            backfills = service or open_backfills(settings, staging_of=staged, places=staged.place)
            merges = MergeService(
                settings,
                store=open_store(settings.job_store),
                launcher=backfills.launcher,
                sources=partial(_read_sources, settings.registry),
            )
            # They run in the other order: the launcher ends behind all following, before launches are waited for.
            stack.callback(merges.close)
            stack.callback(backfills.close, interrupt=interrupt_at_exit)
            stack.callback(merges.stop, interrupt=interrupt_at_exit)
            app.state.service = backfills
            app.state.merges = merges
            _open_doors(app, settings, stack)
            app.state.inventory = _open_inventory(app, backfills, staged)
            app.state.readiness = Readiness(backfills.check_readiness)
            # Of its own: the probe is answered while every other thread waits for a query.
            app.state.readiness_threads = CapacityLimiter(1)
            app.state.starting = {"spark": "Spark is starting."}
            backfills.start()
            merges.start()
            threading.Thread(target=_prepare, args=(app, backfills), name="prepare", daemon=True).start()
            yield

    app = FastAPI(
        title="Refeed",
        version=version("refeed"),
        summary="Backfills of raw Pub/Sub messages, by SQL, and merges of what comes of them.",
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url="/openapi.json",
        # The framework's pages load their scripts from other hosts; api.swagger has its own.
        docs_url=None,
        redoc_url=None,
        # A redirect would be a second way to a route, and an answer that no client expects.
        redirect_slashes=False,
    )
    app.state.metrics = Metrics(lambda: app.state.store, partial(_measure_streams, app))
    app.state.slow_calls = Bulkhead()
    # The last one added is the first that a request meets.
    app.add_middleware(AnswerLimit, seconds=settings.answer_timeout_seconds)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes, seconds=settings.body_timeout_seconds)
    app.add_middleware(Admission, gatekeeper=lambda: app.state.gatekeeper)
    app.add_middleware(AuditLog, trail=lambda: app.state.audit)
    app.add_middleware(HeadLimit, max_bytes=MAX_HEAD_BYTES)
    app.add_middleware(SafeHeaders)
    app.add_middleware(AnswerCounter, metrics=app.state.metrics)
    install_problem_handlers(app)
    app.include_router(router)
    app.include_router(audit)
    app.include_router(swagger)
    install_openapi(app)
    return app


def _read_sources(registry: str) -> Sequence[Source]:
    """Return the sources of the registry as it is now that have no fault; of one that nobody has filled, none.

    Raises:
        RegistryError: it, or its ``sources.yaml``, can't be read.
    """
    files = Registry(registry).read_files()
    return read_snapshot(files, registry, is_partial=True).valid_sources() if files else ()


def _open_inventory(app: FastAPI, backfills: BackfillService, staged: StagedTopics) -> Inventory:
    """Return the inventory over the connections that the backfills' service and the app have open already."""
    return Inventory(
        backfills.deployment,
        backfills.pubsub,
        backfills.queries,
        reports=app.state.store.list_stream_reports,
        groups=staged.groups,
    )


def _measure_streams(app: FastAPI) -> Sequence[StreamInfo]:
    """Return the streams as the inventory of the app's life finds them."""
    inventory: Inventory = app.state.inventory
    return inventory.measure_streams()


def _open_doors(app: FastAPI, settings: Settings, stack: ExitStack) -> None:
    """Give the app what tells callers apart and what tells others of ends; the stack closes both."""
    store = open_store(settings.job_store)
    stack.callback(store.close)
    app.state.store = store
    app.state.gatekeeper = Gatekeeper.from_settings(settings, Keyring(store))
    app.state.audit = AuditTrail(store)
    stack.callback(app.state.audit.close)
    if app.state.gatekeeper.is_open():
        _LOG.warning("there is no key and no issuer: whoever is on this machine may call, nobody else")
    if settings.notify_url is not None and settings.notify_secret is not None:
        for kind in (BACKFILL, MERGE):
            notifier = Notifier(store, kind, settings.notify_url, settings.notify_secret, waits_for=_waits_for)
            notifier.start()
            stack.callback(notifier.stop)


def _waits_for(job: Job) -> str:
    return "approval" if exceeds_approval(job) else "resume"


def _prepare(app: FastAPI, service: BackfillService) -> None:
    """Get Spark ready while the first requests are answered already; /readyz tells."""
    try:
        service.prepare()
    except RefeedError as exc:
        _LOG.exception("Spark is not ready")
        app.state.starting = {"spark": exc.message}
    else:
        app.state.starting = {}
