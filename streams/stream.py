"""One stream from its start to its drain: a Spark query that is kept running, a commit worker, and its reports."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import structlog

from connectors.pubsub.source import PullOptions, PullSource
from connectors.spark.session import open_session
from model.settings import Settings
from streams.commit_worker import CommitWorker
from streams.committer import StreamCommitter
from streams.lag import ReadSample, measuring
from streams.report import StreamReporter, reporting
from streams.run import run_until_stopped

_log = structlog.get_logger(__name__)

# A batch has fixed costs of a quarter of a second: with a backlog it grows.
_BACKLOG_FACTOR: Final = 3.0
_SCRATCH: Final = "spark"


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """The source that Spark reads, and the size of its batches; ``options`` are the source's own.

    ``prefix`` or ``plan_file`` says which subscriptions, as :class:`~connectors.pubsub.source.PullOptions` has it.
    """

    source: type[PullSource]
    slots: int
    idle_seconds: float
    batch_seconds: float
    batch_bytes: int
    options: Mapping[str, str]
    prefix: str = ""
    plan_file: Path | None = None

    def pull_options(self, settings: Settings) -> PullOptions:
        """Return how tasks pull; the stop file is another one in each query."""
        return PullOptions(
            project=settings.project,
            emulator_host=settings.pubsub_address,
            prefix=self.prefix,
            slots=self.slots,
            idle_seconds=self.idle_seconds,
            linger_seconds=self.batch_seconds,
            backlog_seconds=self.batch_seconds * _BACKLOG_FACTOR,
            max_bytes=self.batch_bytes // self.slots,
            stop_file="",
            plan_file=None if self.plan_file is None else str(self.plan_file),
        )


def start_spark(settings: Settings, home: Path) -> Any:
    """Return the Spark session of the stream whose folder is ``home``.

    Call it before anything opens a gRPC channel: PySpark forks to start its JVM, and a fork beside gRPC's young
    threads may end in SIGABRT before it becomes one (2 of 25 tries).
    """
    shutil.rmtree(home / _SCRATCH, ignore_errors=True)
    return open_session(
        f"refeed-{home.name}",
        master=settings.spark_master,
        driver_memory=settings.spark_driver_memory,
        scratch=home / _SCRATCH,
        conf=settings.spark_conf,
    )


def run_stream(
    spark: Any,
    committer: StreamCommitter,
    query: StreamQuery,
    settings: Settings,
    *,
    home: Path,
    instance: str,
    reporter: StreamReporter | None,
    read_backlog: ReadSample,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Run ``query`` and commit its batches until SIGTERM or SIGINT drains the stream.

    ``instance`` is the stream's id in its ``home``. ``reporter`` keeps its reports where an API without this home
    finds them. ``watch`` is called a few times a second.

    Raises:
        RefeedError: as :func:`streams.run.run_until_stopped` says.
    """
    spark.dataSource.register(query.source)
    pull = query.pull_options(settings)
    status = committer.status
    with (
        CommitWorker(committer) as worker,
        measuring(status, settings.project, settings.pubsub_address, read_backlog),
        reporting(status, reporter, name=home.name, instance=instance),
    ):

        def start_query(checkpoint: Path, stop_file: Path) -> Any:
            committer.stop_file = stop_file
            started = (
                spark.readStream.format(query.source.name())
                .option("pull", replace(pull, stop_file=str(stop_file)).as_json())
                .options(**query.options)
                .load()
                .writeStream.queryName(f"refeed-{home.name}")
                .foreachBatch(worker.take_batch)
                .option("checkpointLocation", str(checkpoint))
                .start()
            )
            _log.info(f"{committer.name}_started", project=settings.project)
            return started

        run_until_stopped(
            spark,
            start_query,
            name=committer.name,
            sink=worker,
            finish=worker.finish,
            scratch=home / _SCRATCH,
            watch=watch,
        )
