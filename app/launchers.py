"""Opens the launcher of drivers that the settings choose."""

from dataclasses import dataclass

from connectors.dataproc.batches import Batches, BatchPlace
from connectors.spark.connect import ConnectServer
from connectors.spark.environment import network_conf, spark_environment
from connectors.spark.home import find_spark_submit
from jobs.dataproc import DataprocLauncher
from jobs.files import open_files
from jobs.launcher import ConnectLauncher, Launcher, SparkSubmitLauncher
from model.settings import Settings


def open_launcher(settings: Settings) -> Launcher:
    """Return the launcher that the settings choose; REFEED_CONNECT_URL names a server that others look after.

    Raises:
        JavaNotFoundError: there is no Java for Spark.
    """
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
