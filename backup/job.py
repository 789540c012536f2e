"""The backup stream: pull in the tasks, commit in the driver, acknowledge what is durable."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from backup.archiver import Archiver
from backup.handover import Handover
from backup.labelled import LabelledTopics
from backup.source import BackupSource
from connectors.pubsub.backlog import BacklogSample, MonitoredBacklogs
from connectors.pubsub.channel import open_channel
from connectors.pubsub.source import PullOptions
from connectors.spark.session import open_session
from model.message import BACKUP_SUBSCRIPTION_PREFIX
from model.settings import Settings
from streams.journal import Journal
from streams.lag import measuring
from streams.lease import hold_lease, lock_home, refuse_held
from streams.report import StreamReporter, reporting
from streams.run import run_until_stopped
from streams.status import StatusFile
from warehouse.open import open_warehouse
from warehouse.port import Warehouse

_log = structlog.get_logger(__name__)

# While nothing comes, a batch is begun every few seconds only; with a backlog it grows, because a batch has
# fixed costs of a quarter of a second.
_IDLE_SECONDS: Final = 5.0
_BACKLOG_FACTOR: Final = 3.0
_SCRATCH: Final = "spark"


def run_backup(settings: Settings, reporter: StreamReporter | None = None) -> int:
    """Run the backup stream of ``settings`` until SIGTERM or SIGINT drains it; return the exit code.

    ``reporter`` keeps its reports where an API without this home finds them.

    Every message of every attached topic is in the archive once, bit for bit, and acknowledged only then. A
    full disk, a Pub/Sub or a warehouse that is away stops it with nothing acknowledged, and it goes on by itself.

    Raises:
        LeaseHeldError: another stream runs on this home, or on this project's subscriptions.
        LeaseLostError: another stream took over; nothing this one had in hand was committed.
        CheckpointCorruptError: a file of the journal can't be read; the message says what to do.
    """
    home = settings.home / "streams" / "backup"
    with lock_home(home) as stream:
        warehouse = open_warehouse(settings)
        archive = warehouse.open_archive()
        archive.check()
        journal = Journal(home / "journal", keep_seconds=settings.known_ids_seconds)
        lease = f"backup-{settings.project}"
        leases = archive.leases()
        refuse_held(leases, lease, stream)
        # Before anything with gRPC: PySpark forks to start its JVM, and a fork beside gRPC's young threads may
        # end in SIGABRT before it becomes one (2 of 25 tries).
        spark = _start_spark(settings, home)
        with hold_lease(leases, lease, stream) as epoch:
            channel = open_channel(settings.pubsub_address)
            status = StatusFile(home / "status.json", instance=stream)
            archiver = Archiver(
                archive=archive,
                journal=journal,
                channel=channel,
                project=settings.project,
                stream=stream,
                lease=lease,
                lease_epoch=epoch,
                status=status,
            )
            archiver.recover()
            with (
                LabelledTopics(settings),
                Handover(archiver) as handover,
                measuring(status, settings.project, settings.pubsub_address, _read_backlog),
                reporting(status, reporter, name=home.name, instance=stream),
            ):
                spark.dataSource.register(BackupSource)
                run_until_stopped(
                    spark,
                    partial(_start_query, spark, settings, warehouse, handover),
                    name="backup",
                    sink=handover,
                    finish=handover.finish,
                    scratch=home / _SCRATCH,
                )
            channel.close()
        archive.close()
    return 0


def _read_backlog(backlogs: MonitoredBacklogs) -> BacklogSample | None:
    return backlogs.read_prefixed(BACKUP_SUBSCRIPTION_PREFIX)


def _start_spark(settings: Settings, home: Path) -> Any:
    shutil.rmtree(home / _SCRATCH, ignore_errors=True)
    return open_session(
        "refeed-backup",
        master=settings.spark_master,
        driver_memory=settings.spark_driver_memory,
        scratch=home / _SCRATCH,
        conf=settings.spark_conf,
    )


def _start_query(  # noqa: PLR0917
    spark: Any, settings: Settings, warehouse: Warehouse, handover: Handover, checkpoint: Path, stop_file: Path
) -> Any:
    archive = handover.archiver.archive
    task = {"warehouse": warehouse.to_json(), "writer": archive.writer().as_json()}
    linger_seconds = archive.batch_seconds(settings.backup_batch_seconds, settings.backup_slots)
    options = PullOptions(
        project=settings.project,
        emulator_host=settings.pubsub_address,
        prefix=BACKUP_SUBSCRIPTION_PREFIX,
        slots=settings.backup_slots,
        idle_seconds=_IDLE_SECONDS,
        linger_seconds=linger_seconds,
        backlog_seconds=linger_seconds * _BACKLOG_FACTOR,
        max_bytes=settings.backup_batch_bytes // settings.backup_slots,
        stop_file=str(stop_file),
    )
    query = (
        spark.readStream.format(BackupSource.name())
        .option("pull", options.as_json())
        .option("task", json.dumps(task))
        .option("secret", settings.replay_secret())
        .load()
        .writeStream.queryName("refeed-backup")
        .foreachBatch(handover.take_batch)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    _log.info("backup_started", project=settings.project, archive=archive.uri)
    return query
