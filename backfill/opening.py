"""Opens the service of a deployment from its settings: store, Pub/Sub, launcher, supervisor."""

from collections.abc import Callable
from dataclasses import dataclass

from backfill.deployment import Deployment
from backfill.planner import Planner
from backfill.redrive import LetterCounter, SourcePlace
from backfill.service import BackfillService
from backfill.supervisor import Supervisor, backfill_folders
from backfill.verification import Verifier
from connectors.dataproc.batches import Batches, BatchPlace
from connectors.pubsub.client import PubSub
from connectors.spark.connect import ConnectServer, find_spark_submit
from connectors.spark.session import network_conf, spark_environment
from jobs.dataproc import DataprocLauncher
from jobs.files import open_files
from jobs.launcher import ConnectLauncher, Launcher, SparkSubmitLauncher
from jobs.store import JobStore
from model.settings import Settings
from warehouse.staging import Staging

StagingOf = Callable[[str], Staging | None]


def _no_staging(_topic: str) -> None:
    """Say that no staging table of a topic is known."""


def _no_place(_source: str) -> None:
    """Say that no source is known."""


def open_backfills(
    settings: Settings,
    *,
    staging_of: StagingOf = _no_staging,
    places: Callable[[str], SourcePlace | None] = _no_place,
) -> BackfillService:
    """Return the service of a deployment; nothing runs before its ``start``.

    ``staging_of`` knows the staging table that a topic's pipeline writes: then what landed is counted. ``places``
    knows where each of the pipeline's sources reads and writes.

    Raises:
        JavaNotFoundError: there is no Java for Spark.
        PubSubError: there are no credentials for Pub/Sub.
    """
    # The store last: what is missing is found before anything is open that would have to be closed.
    launcher = open_launcher(settings)
    pubsub = PubSub(settings.project, settings.pubsub_address)
    return assemble_backfills(
        Deployment.from_settings(settings),
        store=JobStore(settings.job_store),
        pubsub=pubsub,
        launcher=launcher,
        max_running=settings.max_running,
        keep_job_days=settings.keep_job_days,
        staging_of=staging_of,
        places=places,
    )


def assemble_backfills(
    deployment: Deployment,
    *,
    store: JobStore,
    pubsub: PubSub,
    launcher: Launcher,
    max_running: int,
    keep_job_days: int = 30,
    staging_of: StagingOf = _no_staging,
    places: Callable[[str], SourcePlace | None] = _no_place,
) -> BackfillService:
    """Return the service of its parts; ``staging_of`` knows the staging table that a topic's pipeline writes."""
    folders = backfill_folders(deployment.home, deployment.jobs_folder)
    verifier = Verifier(folders.of, staging_of)
    planner = Planner(deployment, store, pubsub)
    return BackfillService(
        deployment,
        store=store,
        pubsub=pubsub,
        launcher=launcher,
        supervisor=Supervisor(
            store,
            launcher,
            deployment.home,
            max_running=max_running,
            verify=verifier.verify,
            keep_job_days=keep_job_days,
            folders=folders,
        ),
        planner=planner,
        verifier=verifier,
        letters=LetterCounter(deployment.dead_letter_table, planner.answer, deployment.query_tables, places),
    )


def open_launcher(settings: Settings) -> Launcher:
    """Return the launcher that the settings choose; REFEED_CONNECT_URL names a server that others look after."""
    if settings.launcher == "dataproc":
        return _open_dataproc(settings)
    run = settings.home / "run"
    environment = spark_environment(run / "spark", settings.spark_master)
    if settings.launcher == "spark-submit":
        return SparkSubmitLauncher(
            find_spark_submit(),
            environment,
            master=settings.spark_master,
            driver_memory=settings.spark_driver_memory,
            conf={**network_conf(settings.spark_master), **settings.spark_conf},
        )
    if settings.connect_url is not None:
        return ConnectLauncher(_ForeignServer(settings.connect_url), environment)
    server = ConnectServer(
        run,
        environment,
        master=settings.spark_master,
        driver_memory=settings.spark_driver_memory,
        conf=settings.spark_conf,
    )
    return ConnectLauncher(server, environment)


def _open_dataproc(settings: Settings) -> DataprocLauncher:
    found = settings.dataproc
    place = BatchPlace(
        project=settings.project,
        region=found.region or "",
        image=found.image or "",
        runtime_version=found.runtime_version,
        ttl_seconds=found.ttl_seconds,
        service_account=found.service_account,
        subnetwork=found.subnetwork,
        history_server=found.history_server,
        labels=found.labels,
        host=found.host,
    )
    # Where the archive and the topics are stands in a job's specification.
    environment = {
        "REFEED_PROJECT": settings.project,
        "REFEED_PAUSE_IDLE_SECONDS": f"{settings.pause_idle_seconds:g}",
    }
    folder = open_files(settings.jobs_folder or settings.home)
    return DataprocLauncher(Batches(place), folder, environment, settings.spark_conf)


@dataclass(frozen=True, slots=True)
class _ForeignServer:
    """A Spark Connect server that others start and stop."""

    url: str

    def start(self) -> str:
        return self.url

    def stop(self) -> None:
        return None
