"""The Spark job of a backfill: select once, publish every slice, say how it ended."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from backfill.publish import CHECKPOINT_DDL, Target, publish_slices
from backfill.selection import Selection, read_selection, write_selection
from connectors.lake.query import QueryLimits, open_query, read_snapshot
from jobs.folder import JobFolder, Outcome
from jobs.progress import CheckpointFolder
from model.errors import MessagesFailedError, QueryStoppedError, RefeedError
from model.job import JobState
from model.table import TableRead
from model.window import Window

_LOG: Final = structlog.get_logger()
_STOP_CHECK_SECONDS: Final = 0.2
_STOP_GRACE_SECONDS: Final = 1.5


def run_backfill(folder: JobFolder, epoch: int) -> Outcome:
    """Run attempt ``epoch`` of the backfill in ``folder`` and return how it ended.

    Every step goes on where an attempt before it stopped: the selection is made once, finished slices are
    skipped, others begin behind their last checkpoint.
    """
    specification = folder.read_specification()
    with starting_spark(folder.path.name) as spark:
        selection = read_selection(folder.selection) or select(folder, epoch, specification)
        _LOG.info("selected", rows=selection.rows, slices=len(selection.slices))
        publish(spark, folder, epoch, selection, Target(**specification["target"]))
    ends = CheckpointFolder(folder.progress).read_all()
    failed = sum(end.failed for end in ends)
    if sum(end.done for end in ends) < len(selection.slices):
        return Outcome(epoch, JobState.CANCELLED)
    if failed:
        raise MessagesFailedError(
            f"{failed} of {selection.rows} messages could not be published; see dead letters."
        )
    return Outcome(epoch, JobState.SUCCEEDED)


def select(folder: JobFolder, epoch: int, specification: dict[str, Any]) -> Selection:
    """Run the query over the archive as it is now and keep its rows."""
    query, source = specification["query"], specification["archive"]
    snapshot = read_snapshot(
        source["lake"],
        source["table"],
        source["partitioning"],
        window=_read_window(query["window"]),
        reads_archive=query.get("reads_archive", True),
        extra_reads=[
            TableRead(read["table"], read["view"], read["window"] and _read_window(read["window"]))
            for read in query.get("extra_reads", ())
        ],
    )
    limits = QueryLimits(query["memory"], folder.path / "spill")
    _LOG.info("selecting", files=len(snapshot.files), bytes=snapshot.size_bytes)

    def should_stop() -> bool:
        return not folder.may_go_on(epoch)

    with open_query(snapshot, query["sql"], query["parameters"], limits, should_stop=should_stop) as batches:
        return write_selection(batches, folder.selection)


def _read_window(bounds: Sequence[str]) -> Window:
    return Window(*map(datetime.fromisoformat, bounds))


def publish(spark: Callable[[], Any], folder: JobFolder, epoch: int, selection: Selection, target: Target) -> None:
    """Publish every slice that is not finished, as tasks of one Spark job."""
    checkpoints = CheckpointFolder(folder.progress)
    checkpoints.create()
    finished = {checkpoint.slice for checkpoint in checkpoints.read_all() if checkpoint.done}
    slices = tuple(part for part in selection.slices if part.number not in finished)
    if not slices:
        return
    work = partial(publish_slices, folder=str(folder.path), epoch=epoch, target=target, slices=slices)
    ends = spark().range(0, len(slices), 1, len(slices)).mapInArrow(work, CHECKPOINT_DDL).collect()
    _LOG.info("published", slices=len(ends), messages=sum(end.published for end in ends))


@contextmanager
def starting_spark(name: str) -> Iterator[Callable[[], Any]]:
    """Start Spark while the caller does something else; what is given waits for the session and returns it."""
    with ThreadPoolExecutor(1, thread_name_prefix="spark") as pool:
        opening = pool.submit(_open_spark, name)
        try:
            yield opening.result
        finally:
            if opening.exception() is None:
                opening.result().stop()


def _open_spark(name: str) -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName(name).getOrCreate()


def main(argument: str) -> int:
    """Run the attempt that ``argument`` ({"folder", "epoch"} as JSON) names; 0 when it ended as it should."""
    job = json.loads(argument)
    folder, epoch = JobFolder(Path(job["folder"])), int(job["epoch"])
    structlog.contextvars.bind_contextvars(backfill_id=folder.path.name, epoch=epoch)
    ended = threading.Event()
    threading.Thread(target=_leave_when_told, args=(folder, epoch, ended), daemon=True).start()
    try:
        outcome = run_backfill(folder, epoch)
    except QueryStoppedError:
        outcome = Outcome(epoch, JobState.CANCELLED)
    except RefeedError as exc:
        _LOG.exception("failed")
        outcome = Outcome(epoch, JobState.FAILED, {"code": exc.code, "message": exc.message})
    except Exception as exc:  # noqa: BLE001 - whatever it was, people must learn of it
        _LOG.exception("failed")
        message = f"{type(exc).__name__}: {str(exc).strip().splitlines()[0] if str(exc).strip() else 'no message'}"
        outcome = Outcome(epoch, JobState.FAILED, {"code": "driver_failed", "message": message[:500]})
    ended.set()
    folder.write_outcome(outcome)
    _LOG.info("ended", state=outcome.state.value)
    return 1 if outcome.state is JobState.FAILED else 0


def _leave_when_told(folder: JobFolder, epoch: int, ended: threading.Event) -> None:
    """Show that the driver lives, and end it soon after the job's control says stop, also while Spark starts up.

    Tasks see the same control and stop by themselves; the grace is theirs, to write how far they got.
    """
    while folder.may_go_on(epoch):
        folder.beat(epoch)
        if ended.wait(_STOP_CHECK_SECONDS):
            return
    if not ended.wait(_STOP_GRACE_SECONDS):
        folder.write_outcome(Outcome(epoch, JobState.CANCELLED))
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
