"""The processes of streams: one function each, over one deployment."""

from app.deployment import Deployment
from model.settings import Settings


def run_backup(settings: Settings) -> int:
    """Run the backup stream until SIGTERM or SIGINT drains it; return the exit code.

    It reports to the job store where that is not the home's own file.

    Raises:
        LeaseHeldError, LeaseLostError, CheckpointCorruptError: as :func:`backup.job.run_backup`.
    """
    from backup.job import run_backup as run

    with Deployment(settings) as deployment:
        return run(settings, deployment.warehouse, deployment.reporter)


def run_pipeline(settings: Settings, group: str) -> int:
    """Run the stream of one group of sources until SIGTERM or SIGINT drains it; return the exit code.

    It reports to the job store where that is not the home's own file.

    Raises:
        LeaseHeldError, LeaseLostError, CheckpointCorruptError: as :func:`pipeline.job.run_pipeline`.
    """
    from pipeline.job import run_pipeline as run

    with Deployment(settings) as deployment:
        return run(
            settings,
            group,
            warehouse=deployment.warehouse,
            open_pubsub=lambda: deployment.pubsub,
            reporter=deployment.reporter,
        )
