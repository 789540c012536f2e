"""The Spark job of a backfill: select once, publish every slice, write the outcome."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any, Final

import structlog

from backfill.plan.options import RunOptions
from backfill.run.backlog import open_throttle
from backfill.run.folder import BackfillFolder
from backfill.run.pace import Pacer
from backfill.run.progress import CheckpointFolder, SliceCheckpoint
from backfill.run.publish import CHECKPOINT_DDL, publish_chains
from backfill.run.selection import Selection, read_selection, write_selection
from backfill.run.tagging import Target
from backfill.run.work import Chain, link_pieces, plan_work
from connectors.spark.session import starting_spark
from jobs.driver import run_driver
from jobs.folder import JobFolder, Outcome
from model.errors import (
    MessagesFailedError,
    NothingSelectedError,
    RowsLeftError,
    SelectionTooLargeError,
)
from model.job import JobState
from model.settings import read_settings
from warehouse.open import warehouse_of_specification
from warehouse.queries import QuerySpace, SelectionRun

_LOG: Final = structlog.get_logger()
_ORDER_CHECK_SECONDS: Final = 0.1


def run_backfill(folder: BackfillFolder, epoch: int, *, pause_idle_seconds: float = 600.0) -> Outcome:
    """Run attempt ``epoch`` of the backfill in ``folder`` and return how it ended.

    Every step goes on where an attempt before it stopped: the selection is made once, finished slices are
    skipped, others begin after their last checkpoint. While it is paused nothing of it is in Spark; after
    ``pause_idle_seconds`` it ends as PAUSED.
    """
    specification = folder.read_specification()
    options = RunOptions.from_specification(specification)
    target = Target(**specification["target"], attributes=tuple(options.attributes.items()), by_key=options.by_key)
    with (
        starting_spark(folder.name) as spark,
        open_throttle(
            options.yield_to,
            target.topic_path,
            target.emulator_host,
            folder.progress,
            on_gone=lambda exc: folder.write_fault(epoch, exc.code, exc.message),
        ) as throttle,
        Pacer(folder, epoch, max_failed=options.max_failed, throttle=throttle) as pacer,
    ):
        selection = read_selection(folder.selection) or select(folder, epoch, specification, options)
        _LOG.info("selected", rows=selection.rows, slices=len(selection.slices))
        if options.fail_if_empty and not selection.rows:
            raise NothingSelectedError
        work = plan_work(folder, selection, options, read_reached(folder), epoch)
        while True:
            if (ending := wait_for_order(folder, epoch, selection.rows, pause_idle_seconds)) is not None:
                return Outcome(epoch, ending)
            reached = read_reached(folder)
            if (fault := folder.read_fault(epoch)) is not None:
                return Outcome(epoch, JobState.FAILED, fault)
            check_budget(epoch, selection, reached, options)
            left = [piece for piece in work if piece.number not in reached or not reached[piece.number].done]
            if not left:
                break
            pacer.begin({piece.number: piece.rows for piece in left})
            chains = tuple(link_pieces(left, selection, by_key=options.by_key))
            publish(spark, folder, epoch, target, chains=chains, options=options)
    check_end(selection, reached)
    return Outcome(epoch, JobState.SUCCEEDED)


def select(folder: BackfillFolder, epoch: int, specification: dict[str, Any], options: RunOptions) -> Selection:
    """Run the query over the archive as it is now and keep its rows.

    Raises:
        QueryStoppedError: the attempt is to stop.
        SelectionTooLargeError: there are more rows than ``max_rows``, or more than the deployment allows.
        QueryError, WarehouseError: the query failed.
    """
    query, bounds = specification["query"], options.bounds

    def check_size(rows: int, size_bytes: int) -> None:
        if options.max_rows is not None and rows > options.max_rows:
            raise SelectionTooLargeError(
                f"The query selects {rows} rows, but max_rows allows only {options.max_rows}.",
                max_rows=options.max_rows,
            )
        bounds.check(rows, size_bytes)

    run = SelectionRun(
        folder.name,
        by_key=options.by_key,
        should_stop=lambda: not folder.may_go_on(epoch),
        is_superseded=lambda: folder.read_control().epoch != epoch,
        check_size=check_size,
    )
    with folder.scratch() as spill:
        space = QuerySpace(query["memory"], spill, min_free_bytes=bounds.min_free_bytes)
        with (
            closing(warehouse_of_specification(specification).open_queries(space)) as queries,
            queries.select(query, run) as batches,
        ):
            return write_selection(
                batches, folder.selection, by_key=options.by_key, max_rows=options.max_rows, bounds=bounds
            )


def wait_for_order(folder: BackfillFolder, epoch: int, rows: int, pause_idle_seconds: float) -> JobState | None:
    """Return None once the attempt is to publish its rows; CANCELLED or PAUSED when it is to end instead."""
    until = time.monotonic() + pause_idle_seconds
    while folder.may_go_on(epoch):
        if folder.may_publish(epoch) and folder.read_pause(epoch) is None and not hold(folder, epoch, rows):
            return None
        if time.monotonic() > until:
            return JobState.PAUSED
        time.sleep(max(_ORDER_CHECK_SECONDS, folder.sight_seconds / 2))
    return JobState.CANCELLED


def hold(folder: BackfillFolder, epoch: int, rows: int) -> bool:
    """Pause the attempt, and return whether it is paused, when somebody has to approve its rows first.

    What is approved is read from the specification alone: an order to run takes the pause back, and a change of
    the rate while the rows are counted gives one.
    """
    allowed = RunOptions.from_specification(folder.read_specification()).approval_rows
    if allowed is None or rows <= allowed:
        return False
    folder.write_pause(
        epoch, f"{rows} rows are selected. A backfill with more than {allowed} rows needs an approval."
    )
    return True


def publish(
    spark: Callable[[], Any],
    folder: BackfillFolder,
    epoch: int,
    target: Target,
    *,
    chains: tuple[Chain, ...],
    options: RunOptions,
) -> None:
    """Publish the chains as tasks of one Spark job; tasks that are to stop leave the rest of theirs."""
    work = partial(
        publish_chains,
        folder=folder.location,
        epoch=epoch,
        target=target,
        chains=chains,
        max_failed=options.max_failed,
    )
    ends = spark().range(0, len(chains), 1, len(chains)).mapInArrow(work, CHECKPOINT_DDL).collect()
    _LOG.info("published", pieces=sum(end.done for end in ends), messages=sum(end.published for end in ends))


def read_reached(folder: BackfillFolder) -> dict[int, SliceCheckpoint]:
    """Return the latest checkpoint of every piece that ever started."""
    checkpoints = CheckpointFolder(folder.progress)
    checkpoints.create()
    return {checkpoint.slice: checkpoint for checkpoint in checkpoints.read_all()}


def check_budget(
    epoch: int, selection: Selection, reached: Mapping[int, SliceCheckpoint], options: RunOptions
) -> None:
    """Raise when more messages failed for the first time in this attempt than may.

    The message includes what became of the other rows: messages on their way when it stopped may have arrived.
    """
    newly_failed = sum(checkpoint.newly_failed for checkpoint in reached.values() if checkpoint.epoch == epoch)
    if newly_failed > options.max_failed:
        answered = sum(checkpoint.published + checkpoint.failed for checkpoint in reached.values())
        left = selection.rows - answered
        unknown = min(left, sum(checkpoint.repeated_at_most for checkpoint in reached.values()))
        rest = (
            (
                f"of the other {left}, at most {unknown} may have been published without a "
                "confirmation; a retry publishes them again"
            )
            if unknown
            else f"the other {left} were not sent"
        )
        raise MessagesFailedError(
            f"{newly_failed} messages could not be published, but max_failed allows only "
            f"{options.max_failed}; {rest}. See the dead letters."
        )


def check_end(selection: Selection, reached: Mapping[int, SliceCheckpoint]) -> None:
    """Raise unless every selected row is published."""
    failed = sum(checkpoint.failed for checkpoint in reached.values())
    if failed:
        raise MessagesFailedError(
            f"{failed} of {selection.rows} messages could not be published. See the dead letters."
        )
    left = selection.rows - sum(checkpoint.published for checkpoint in reached.values())
    if left:
        raise RowsLeftError(
            f"{left} of {selection.rows} rows have not been sent yet. A retry continues with these rows."
        )


def main(argument: str) -> int:
    """Run the attempt that ``argument`` ({"folder", "epoch"} as JSON) names; 0 when it ended as it should."""

    def run(folder: JobFolder, epoch: int) -> Outcome:
        return run_backfill(
            BackfillFolder.of(folder), epoch, pause_idle_seconds=read_settings(os.environ).pause_idle_seconds
        )

    return run_driver(argument, run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
