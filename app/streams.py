"""The processes of streams: one function each, over one deployment."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from app.deployment import Deployment
from model.settings import Settings
from model.stream import BACKUP_STREAM
from streams.folder import StreamFolder
from streams.run import failing_in_status


def run_backup(settings: Settings, *, name: str | None = None, instance_id: str | None = None) -> int:
    """Run the backup stream until a signal or an order ends it; return the exit code.

    ``name`` is the stream's where it is not the usual one, and ``instance_id`` names this start for an agent.

    It reports to the job store where that is not the home's own file.

    Raises:
        LeaseHeldError, LeaseLostError, CheckpointCorruptError: as :func:`backup.job.run_backup`.
    """
    from backup.job import run_backup as run

    with _failing_in_status(settings, name, instance_id), Deployment(settings) as deployment:
        return run(
            settings,
            deployment.warehouse,
            open_pubsub=lambda: deployment.pubsub,
            reporter=deployment.reporter,
            name=name or BACKUP_STREAM,
            instance_id=instance_id,
        )


def run_kinesis(settings: Settings, *, name: str | None = None, instance_id: str | None = None) -> int:
    """Run the stream of one Kinesis stream until a signal or an order ends it; return the exit code.

    ``name`` is the stream's where it is not the usual one, and ``instance_id`` names this start for an agent.

    It reports to the job store where that is not the home's own file.

    Raises:
        LeaseHeldError, LeaseLostError, CheckpointCorruptError: as :func:`collector.kinesis.run_kinesis`.
    """
    from collector.kinesis import run_kinesis as run

    with _failing_in_status(settings, name, instance_id), Deployment(settings) as deployment:
        return run(
            settings,
            deployment.warehouse,
            open_pubsub=lambda: deployment.pubsub,
            reporter=deployment.reporter,
            name=name,
            instance_id=instance_id,
        )


def run_pipeline(
    settings: Settings,
    group: str,
    *,
    mapping: Mapping[str, str] | None = None,
    name: str | None = None,
    instance_id: str | None = None,
) -> int:
    """Run the stream of one group of sources until a signal or an order ends it; return the exit code.

    ``mapping`` leads from the old names of sources to those that the registry has now. ``name`` is the stream's
    where it is not the usual one, and ``instance_id`` names this start for an agent.

    It reports to the job store where that is not the home's own file.

    Raises:
        LeaseHeldError, LeaseLostError, CheckpointCorruptError: as :func:`pipeline.job.run_pipeline`.
    """
    from pipeline.job import run_pipeline as run

    with _failing_in_status(settings, name, instance_id), Deployment(settings) as deployment:
        return run(
            settings,
            group,
            mapping=mapping or {},
            warehouse=deployment.warehouse,
            open_pubsub=lambda: deployment.pubsub,
            reporter=deployment.reporter,
            name=name,
            instance_id=instance_id,
        )


def run_shadow(
    settings: Settings,
    stream: str,
    shadow_id: str,
    *,
    mapping: Mapping[str, str],
    may_differ: Sequence[str],
    hours: float,
) -> int:
    """Run the shadow of a pipeline's stream until nobody looks at it any more; return the exit code.

    It reads the warehouse, the registry and the stream's plan, and writes its report alone.
    """
    from pipeline.shadow import ShadowOptions
    from pipeline.shadow import run_shadow as run
    from pipeline.shadow_report import ShadowFolder
    from streams.folder import StreamFolder
    from streams.snapshot import PLAN_FILE

    with Deployment(settings) as deployment:
        warehouse = deployment.warehouse
        return run(
            settings,
            warehouse,
            ShadowFolder.of(settings.home, stream, shadow_id),
            plan_file=StreamFolder.of(settings.home, stream).state / PLAN_FILE,
            mapping=mapping,
            options=ShadowOptions.of(warehouse, hours=hours, may_differ=may_differ),
        )


def _failing_in_status(
    settings: Settings, name: str | None, instance_id: str | None
) -> AbstractContextManager[None]:
    """A stream that no agent started has a terminal to say why it failed."""
    if name is None or instance_id is None:
        return nullcontext()
    return failing_in_status(StreamFolder.of(settings.home, name, instance_id))
