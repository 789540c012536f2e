"""The processes of streams: one function each, over one deployment."""

from collections.abc import Mapping

from app.deployment import Deployment
from model.settings import Settings
from model.stream import BACKUP_STREAM


def run_backup(settings: Settings, *, name: str | None = None, instance_id: str | None = None) -> int:
    """Run the backup stream until a signal or an order ends it; return the exit code.

    ``name`` is the stream's where it is not the usual one, and ``instance_id`` names this start for an agent.

    It reports to the job store where that is not the home's own file.

    Raises:
        LeaseHeldError, LeaseLostError, CheckpointCorruptError: as :func:`backup.job.run_backup`.
    """
    from backup.job import run_backup as run

    with Deployment(settings) as deployment:
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

    with Deployment(settings) as deployment:
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

    with Deployment(settings) as deployment:
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
