"""The pipeline's stream: pull and decode in the tasks, commit table by table in the driver, then acknowledge."""

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from connectors.pubsub.backlog import BacklogSample, MonitoredBacklogs
from connectors.pubsub.client import PubSub
from connectors.pubsub.source import PullOptions
from connectors.spark.session import open_session
from model.settings import Settings
from pipeline.group import Group
from pipeline.plan import PlanFile
from pipeline.registry import Registry
from pipeline.source import StagingSource
from pipeline.stager import Stager
from streams.ack_leases import AckLeases
from streams.journal import TABLE_IDS_SCHEMA, Journal
from streams.lag import measuring
from streams.lease import hold_lease, lock_home
from streams.report import StreamReporter, reporting
from streams.run import run_until_stopped
from streams.status import StatusFile
from warehouse.open import open_warehouse

_log = structlog.get_logger(__name__)

# While nothing comes, a batch is begun every few seconds only: so long may a plan be out of date.
_IDLE_SECONDS: Final = 2.0
_BACKLOG_FACTOR: Final = 3.0
_SCRATCH: Final = "spark"
_PLAN: Final = "plan.json"


def run_pipeline(settings: Settings, group: str, reporter: StreamReporter | None = None) -> int:
    """Run the stream of one group of sources until SIGTERM or SIGINT drains it; return the exit code.

    ``reporter`` keeps its reports where an API without this home finds them.

    Every message of its sources is a row of its staging table once, or a dead letter once, and is acknowledged
    only then. The registry is followed while it runs: a new source, or a new schema, needs no restart.

    Raises:
        LeaseHeldError: another stream runs this group on this home, or on this warehouse.
        LeaseLostError: another stream took over; nothing this one had in hand was committed.
        CheckpointCorruptError: a file of the journal, or the plan, can't be read; the message says what to do.
    """
    home = group_home(settings, group)
    lease = f"pipeline-{settings.project}-{group}"
    with lock_home(home) as stream:
        journal = Journal(home / "journal", keep_seconds=settings.known_ids_seconds, schema=TABLE_IDS_SCHEMA)
        # Before any channel: PySpark forks to start its JVM, and a fork beside gRPC's threads may end in SIGABRT.
        spark = _start_spark(settings, home, group)
        status = StatusFile(home / "status.json", instance=stream)
        warehouse = open_warehouse(settings)
        tables = warehouse.open_row_tables(stream=stream, lease=lease)
        with closing(tables), PubSub(settings.project, settings.pubsub_address) as pubsub:
            sources = Group(
                group,
                registry=Registry(settings.registry),
                plan_file=PlanFile(home / _PLAN, warehouse),
                tables=tables,
                pubsub=pubsub,
                is_embedded=settings.is_embedded,
                ack_deadline_seconds=settings.ack_deadline_seconds,
                dead_letter_table=settings.dead_letter_table,
                max_bytes=settings.pipeline_message_bytes,
                status=status,
            )
            names = sources.start()
            with hold_lease(tables.leases(), lease, stream):
                stager = Stager(
                    tables=tables,
                    names=names,
                    journal=journal,
                    ack_leases=AckLeases(pubsub.channel, settings.project),
                    status=status,
                    learn=sources.learn,
                )
                stager.recover()
                sources.follow(stager)
                spark.dataSource.register(StagingSource)
                with (
                    measuring(status, settings.project, settings.pubsub_address, partial(_read_backlog, status)),
                    reporting(status, reporter, name=home.name, instance=stream),
                ):
                    run_until_stopped(
                        spark,
                        partial(_start_query, spark, settings, stager, plan_file=home / _PLAN),
                        name="pipeline",
                        sink=stager,
                        scratch=home / _SCRATCH,
                        watch=_every(settings.registry_poll_seconds, partial(sources.follow, stager)),
                    )
    return 0


def group_home(settings: Settings, group: str) -> Path:
    """Return the folder of a group's state."""
    return settings.home / "streams" / f"pipeline-{group}"


def _read_backlog(status: StatusFile, backlogs: MonitoredBacklogs) -> BacklogSample | None:
    """Return the backlog of the sources that the group has now."""
    return backlogs.read_named(status.fields().get("subscriptions") or ())


def _start_spark(settings: Settings, home: Path, group: str) -> Any:
    shutil.rmtree(home / _SCRATCH, ignore_errors=True)
    return open_session(
        f"refeed-pipeline-{group}",
        master=settings.spark_master,
        driver_memory=settings.spark_driver_memory,
        scratch=home / _SCRATCH,
        conf=settings.spark_conf,
    )


def _start_query(
    spark: Any, settings: Settings, stager: Stager, checkpoint: Path, stop_file: Path, *, plan_file: Path
) -> Any:
    stager.stop_file = stop_file
    options = PullOptions(
        project=settings.project,
        emulator_host=settings.pubsub_address,
        prefix="",
        slots=settings.pipeline_slots,
        idle_seconds=_IDLE_SECONDS,
        linger_seconds=settings.pipeline_batch_seconds,
        backlog_seconds=settings.pipeline_batch_seconds * _BACKLOG_FACTOR,
        max_bytes=settings.pipeline_batch_bytes // settings.pipeline_slots,
        stop_file=str(stop_file),
        plan_file=str(plan_file),
    )
    query = (
        spark.readStream.format(StagingSource.name())
        .option("pull", options.as_json())
        .option("secret", settings.replay_secret())
        .load()
        .writeStream.queryName("refeed-pipeline")
        .foreachBatch(stager.stage_batch)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    _log.info("pipeline_started", plan=str(plan_file))
    return query


def _every(seconds: float, act: Callable[[], None]) -> Callable[[], None]:
    """Return what calls ``act`` when ``seconds`` have gone by since it did last."""
    last = time.monotonic()

    def watch() -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            act()
            last = time.monotonic()

    return watch
