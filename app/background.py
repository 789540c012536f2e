"""What a service does beside answering requests: jobs, webhooks, figures, schedules and uploads."""

from typing import TYPE_CHECKING, Final

from app.closing import ClosingStep
from app.uploads import open_uploads
from inventory.recorder import FigureRecorder, seconds_to_next_point
from jobs.files import open_files
from jobs.loop import BackgroundLoop
from jobs.notify import Notifier
from rollout.manifests.former_templates import take_over_templates

if TYPE_CHECKING:
    from app.deployment import Deployment

# How often schedules are looked at.
_LOOK_SECONDS: Final = 1.0
# How often inferred schemas are looked at: on BigQuery this is a query.
_TYPES_SECONDS: Final = 300.0
# How often changes that nobody has approved in time are ended; a late one can't be approved meanwhile.
_EXPIRE_SECONDS: Final = 10.0


def start_background(deployment: "Deployment") -> list[BackgroundLoop]:
    """Start everything; the deployment's closers stop it. The loops that were started are returned.

    Raises:
        StoreUnavailableError: the store does not answer.
    """
    loops = _start_webhooks(deployment)
    for service in deployment.job_services:
        service.start()
        loops.append(service.loop)
    inventory = deployment.inventory
    recorder = FigureRecorder(deployment.store, inventory.measure_streams, inventory.read_instance_totals)
    figures = BackgroundLoop("figures", recorder.record, every_seconds=seconds_to_next_point)
    loops.append(_start(deployment, figures, ClosingStep.FIGURES))
    types = BackgroundLoop("type changes", deployment.sources.note_type_changes, every_seconds=_TYPES_SECONDS)
    loops.append(_start(deployment, types, ClosingStep.FIGURES))
    deployment.manifests.keep_nightly_merge(deployment.settings.merge_at)
    take_over_templates(open_files(deployment.settings.templates), deployment.store, deployment.manifests)
    schedules = BackgroundLoop("schedules", deployment.scheduler.tick, every_seconds=_LOOK_SECONDS)
    loops.append(_start(deployment, schedules, ClosingStep.SCHEDULES))
    changes = BackgroundLoop("changes", deployment.changes.expire, every_seconds=_EXPIRE_SECONDS)
    loops.append(_start(deployment, changes, ClosingStep.SCHEDULES))
    loops += _start_uploads(deployment)
    return loops


def _start(deployment: "Deployment", loop: BackgroundLoop, step: ClosingStep) -> BackgroundLoop:
    deployment.closers.add(step, loop.stop)
    loop.start()
    return loop


def _start_webhooks(deployment: "Deployment") -> list[BackgroundLoop]:
    url, secret = deployment.settings.notify_url, deployment.settings.notify_secret
    if url is None or secret is None:
        return []
    loops = []
    for service in deployment.job_services:
        notifier = Notifier(deployment.store, service.kind, url, secret)
        notifier.start()
        deployment.closers.add(ClosingStep.WEBHOOKS, notifier.stop)
        loops.append(notifier.loop)
    return loops


def _start_uploads(deployment: "Deployment") -> list[BackgroundLoop]:
    watcher = open_uploads(deployment.settings, deployment.store, deployment.manifests, deployment.pubsub)
    if watcher is None:
        return []
    deployment.closers.add(ClosingStep.UPLOADS, watcher.stop)
    watcher.start()
    return [watcher.loop]
