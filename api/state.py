"""What the routes and the middleware of one app share: typed, and in one place."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from anyio import CapacityLimiter
from fastapi import FastAPI, Request

from api.bulkhead import MAX_QUICK_CALLS, Bulkhead

if TYPE_CHECKING:
    # Imported for types only: a test that serves a small app needs this module, and not all services.
    from api.audit import AuditTrail
    from api.auth import Gatekeeper
    from api.metrics import Metrics
    from api.readiness import Readiness
    from backfill.steer.service import BackfillService
    from backup.compaction.service import CompactionService
    from inventory.backups import TopicBackups
    from inventory.service import Inventory
    from inventory.sources import SourceCatalog
    from jobs.service import JobService
    from jobs.store import JobStore
    from reporting.service import MergeService
    from rollout.changes import ChangeService
    from rollout.checking import CheckService
    from rollout.known_releases import KnownReleases
    from rollout.launching import TemplateService
    from rollout.manifests.schedules import ScheduleService
    from rollout.manifests.service import ManifestService
    from rollout.manifests.upload_status import UploadStatus
    from rollout.service import StreamService
    from rollout.snapshots import SnapshotService
    from rollout.stream_changes import StreamChanges
    from rollout.updates import UpdateService

_NAME: Final = "refeed"


@dataclass(frozen=True, slots=True)
class Services:
    """What an app answers from, open from before its first request until after its last one.

    ``prepare`` gets ready what the first backfill would wait for, and takes seconds.
    ``background_problems`` returns which loops of the service fail or hang, with the reason.
    """

    backfills: "BackfillService"
    merges: "MergeService"
    compactions: "CompactionService"
    inventory: "Inventory"
    backups: "TopicBackups"
    sources: "SourceCatalog"
    streams: "StreamService"
    snapshots: "SnapshotService"
    updates: "UpdateService"
    releases: "KnownReleases"
    checks: "CheckService"
    templates: "TemplateService"
    manifests: "ManifestService"
    schedules: "ScheduleService"
    uploads: "UploadStatus"
    changes: "ChangeService"
    stream_changes: "StreamChanges"
    store: "JobStore"
    gatekeeper: "Gatekeeper"
    audit: "AuditTrail"
    prepare: Callable[[], None]
    background_problems: Callable[[], Mapping[str, str]]

    @property
    def jobs(self) -> "tuple[JobService[Any], ...]":
        """The services of jobs, whose work the status page and the inbox show."""
        return (self.backfills, self.merges, self.compactions)


@dataclass(slots=True)
class OpenApp:
    """An app while it is open; ``starting`` names what is not ready yet, with the reason."""

    services: Services
    readiness: "Readiness"
    starting: Mapping[str, str] = field(default_factory=dict)
    # Of its own: the probe is answered while every other thread waits for a query.
    readiness_threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))


@dataclass(slots=True)
class AppState:
    """The state of one app; ``is_stopping`` ends answers that have no end of their own."""

    metrics: "Metrics"
    slow_calls: Bulkhead = field(default_factory=Bulkhead)
    # Places of their own: a plan that takes a minute does not stop somebody who writes a query.
    quick_calls: Bulkhead = field(default_factory=lambda: Bulkhead(MAX_QUICK_CALLS, "checks of queries"))
    is_stopping: bool = False
    opened: OpenApp | None = None

    @property
    def open(self) -> OpenApp:
        """What is there while the app's lifespan lasts; no request is answered outside of it."""
        assert self.opened is not None, "the app is not open"
        return self.opened


def put_state(app: FastAPI, state: AppState) -> AppState:
    """Give a new app its state, and return it."""
    setattr(app.state, _NAME, state)
    return state


def state_of(app: FastAPI) -> AppState:
    """Return the state that :func:`put_state` gave the app."""
    state: AppState = getattr(app.state, _NAME)
    return state


def services_of(request: Request) -> Services:
    """Return what the request's app answers from."""
    return state_of(request.app).open.services
