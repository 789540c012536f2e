"""The queries that Spark runs for a stream, one after the other, each with its own length of batches."""

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import structlog

from connectors.pubsub.source import PullOptions, PullSource
from model.settings import Settings
from streams.commit_worker import CommitWorker
from streams.control import BatchPace
from streams.folder import StreamFolder
from streams.run import RunningQuery

_log = structlog.get_logger(__name__)

# Batches are longer by this factor during a backlog, because each has fixed costs of a quarter of a second.
_BACKLOG_FACTOR: Final = 3.0


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """The source that Spark reads, and the size of its batches; ``options`` are options of the source.

    ``prefix`` or ``plan_file`` selects the subscriptions, as in :class:`~connectors.pubsub.source.PullOptions`.
    """

    source: type[PullSource]
    slots: int
    idle_seconds: float
    batch_seconds: float
    batch_bytes: int
    options: Mapping[str, str]
    prefix: str = ""
    plan_file: Path | None = None
    # The warehouse's quotas may require longer batches than the settings.
    bound_seconds: Callable[[float], float] = lambda wanted_seconds: wanted_seconds

    def at_pace(self, pace: BatchPace) -> Self:
        """Return the query with the length and size of batches in ``pace``, if these are set."""
        return replace(self, **{name: value for name, value in asdict(pace).items() if value is not None})

    def pull_options(self, settings: Settings) -> PullOptions:
        """Return the options of the tasks' pulls; each query has its own stop file."""
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


class StreamQueries:
    """The queries of one instance of a stream, one after the other, in its Spark session.

    The query of a standby is held: its batches pull nothing and are dropped until :meth:`start`. Set ``worker``,
    which takes the batches, before that.
    """

    def __init__(self, spark: Any, query: StreamQuery, settings: Settings, folder: StreamFolder) -> None:
        self.worker: CommitWorker | None = None
        # Set after the held query has finished a batch, so that all code of a batch has run once.
        self.is_warm = threading.Event()
        self._spark = spark
        self._query = query
        self._settings = settings
        self._folder = folder
        self._held: RunningQuery | None = None
        self._hold_file = folder.scratch / "hold"
        spark.dataSource.register(query.source)

    def hold(self, pace: BatchPace) -> None:
        """Run a query at this pace that pulls nothing; start it again if it has ended."""
        if self._held is None or not self._held.query.isActive:
            self._hold_file.touch()
            self._held = self._start(pace)

    def start(self, pace: BatchPace) -> RunningQuery:
        """Start a query at this pace, or let the held query pull."""
        assert self.worker is not None, "the stream is owned"
        committer = self.worker.committer
        held, self._held = self._held, None
        self._hold_file.unlink(missing_ok=True)
        if held is not None and (held.pace != pace or not held.query.isActive):
            held.query.stop()
            held = None
        running = held or self._start(pace)
        committer.stop_file = running.stop_file
        seconds = self._query.at_pace(pace).batch_seconds
        _log.info(f"{committer.name}_started", project=self._settings.project, batch_seconds=seconds)
        return running

    def stop_spark(self) -> None:
        """Stop Spark and remove its files."""
        self._spark.stop()
        shutil.rmtree(self._folder.scratch, ignore_errors=True)

    def _start(self, pace: BatchPace) -> RunningQuery:
        checkpoint = self._folder.scratch / f"checkpoint-{time.time_ns()}"
        stop_file = checkpoint.with_suffix(".stop")
        pull = self._query.at_pace(pace).pull_options(self._settings)
        pull = replace(pull, stop_file=str(stop_file), hold_file=str(self._hold_file))
        started = (
            self._spark.readStream.format(self._query.source.name())
            .option("pull", pull.as_json())
            .options(**self._query.options)
            .load()
            .writeStream.queryName(f"refeed-{self._folder.name}")
            .foreachBatch(self._take_batch)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        return RunningQuery(started, stop_file, pace)

    def _take_batch(self, results: Any, batch_id: int) -> None:
        if self.worker is not None:
            self.worker.take_batch(results, batch_id)
        else:
            # A batch of the held query has no messages.
            results.toArrow()
            self.is_warm.set()
