"""One stream from its start to its drain: a Spark query that is kept running, a commit worker, and its reports."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import structlog

from connectors.pubsub.source import PullOptions, PullSource
from connectors.spark.session import open_session
from model.settings import Settings
from streams.commit_worker import CommitWorker
from streams.committer import StreamCommitter
from streams.control import BatchPace, ControlFile
from streams.folder import StreamFolder
from streams.lag import ReadSample, measuring
from streams.report import StreamReporter, reporting
from streams.run import run_until_stopped

_log = structlog.get_logger(__name__)

# A batch has fixed costs of a quarter of a second: with a backlog it grows.
_BACKLOG_FACTOR: Final = 3.0


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
    # The warehouse's quotas may want longer batches than a person does.
    bound_seconds: Callable[[float], float] = lambda wanted_seconds: wanted_seconds

    def at_pace(self, pace: BatchPace) -> Self:
        """Return the query with batches of another length and size, as far as ``pace`` has them."""
        return replace(
            self,
            batch_seconds=self.batch_seconds if pace.batch_seconds is None else pace.batch_seconds,
            batch_bytes=self.batch_bytes if pace.batch_bytes is None else pace.batch_bytes,
        )

    def pull_options(self, settings: Settings) -> PullOptions:
        """Return how tasks pull; the stop file is another one in each query."""
        batch_seconds = self.bound_seconds(self.batch_seconds)
        return PullOptions(
            project=settings.project,
            emulator_host=settings.pubsub_address,
            prefix=self.prefix,
            slots=self.slots,
            idle_seconds=self.idle_seconds,
            linger_seconds=batch_seconds,
            backlog_seconds=batch_seconds * _BACKLOG_FACTOR,
            max_bytes=self.batch_bytes // self.slots,
            stop_file="",
            plan_file=None if self.plan_file is None else str(self.plan_file),
        )


def start_spark(settings: Settings, folder: StreamFolder) -> Any:
    """Return the Spark session of the stream whose folder is ``folder``.

    Call it before anything opens a gRPC channel: PySpark forks to start its JVM, and a fork beside gRPC's young
    threads may end in SIGABRT before it becomes one (2 of 25 tries).
    """
    shutil.rmtree(folder.scratch, ignore_errors=True)
    folder.run.mkdir(parents=True, exist_ok=True)
    return open_session(
        f"refeed-{folder.name}",
        master=settings.spark_master,
        driver_memory=settings.spark_driver_memory,
        scratch=folder.scratch,
        conf=settings.spark_conf,
    )


def run_stream(
    spark: Any,
    committer: StreamCommitter,
    query: StreamQuery,
    settings: Settings,
    *,
    folder: StreamFolder,
    instance: str,
    reporter: StreamReporter | None,
    read_backlog: ReadSample,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Run ``query`` and commit its batches until a signal or an order ends the stream.

    ``instance`` names this start of the stream in its reports. ``reporter`` keeps them where an API without this
    home finds them. ``watch`` is called a few times a second.

    Raises:
        RefeedError: as :func:`streams.run.run_until_stopped` says.
    """
    spark.dataSource.register(query.source)
    status = committer.status
    control = None if folder.control is None else ControlFile(folder.control)
    with (
        CommitWorker(committer) as worker,
        measuring(status, settings.project, settings.pubsub_address, read_backlog),
        reporting(status, reporter, name=folder.name, instance=instance),
    ):

        def start_query(checkpoint: Path, stop_file: Path, pace: BatchPace) -> Any:
            committer.stop_file = stop_file
            pull = replace(query.at_pace(pace).pull_options(settings), stop_file=str(stop_file))
            started = (
                spark.readStream.format(query.source.name())
                .option("pull", pull.as_json())
                .options(**query.options)
                .load()
                .writeStream.queryName(f"refeed-{folder.name}")
                .foreachBatch(worker.take_batch)
                .option("checkpointLocation", str(checkpoint))
                .start()
            )
            _log.info(f"{committer.name}_started", project=settings.project, batch_seconds=pull.linger_seconds)
            return started

        run_until_stopped(
            spark,
            start_query,
            name=committer.name,
            sink=worker,
            scratch=folder.scratch,
            control=control,
            watch=watch,
        )
