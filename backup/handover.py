"""From the tasks to the archiver: one batch is committed while the tasks pull the next."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import structlog

from backup.archiver import Archiver, PulledParts
from connectors.pubsub.source import TaskResult, collect_results
from model.errors import RefeedError

_log = structlog.get_logger(__name__)


class Handover:
    """Takes batches from Spark and has them archived in a thread, one at a time and in order.

    Spark begins the next batch when :meth:`take_batch` returns, which is when the batch before is archived: the
    round trips of a commit cost no time in which messages could be pulled. An error comes one batch later than
    it happens; that batch is given up then, and its messages come again.
    """

    def __init__(self, archiver: Archiver) -> None:
        self.status = archiver.status
        self.failure: RefeedError | None = None
        self.archiver = archiver
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="archive")
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let nobody give up the lease while a batch is under way."""
        self._pool.shutdown()

    def take_batch(self, results: Any, batch_id: int) -> None:
        """Take one batch's results, as Spark's foreachBatch hands them over.

        The batch id is not used: a batch that Spark plans again holds other messages.

        Raises:
            RefeedError: this batch or the one before it is not archived.
        """
        rows = collect_results(results)
        try:
            self._hand_over(rows)
        except RefeedError as exc:
            # Spark turns it into an exception of its own; the job wants this one.
            self.failure = exc
            _log.error("batch_failed", batch=batch_id, code=exc.code, error=exc.message)
            raise

    def finish(self) -> None:
        """Wait until the last batch is archived.

        Raises:
            RefeedError: it is not.
        """
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _hand_over(self, rows: Sequence[TaskResult]) -> None:
        self.failure = None
        batch = self.archiver.open_batch(rows)
        self._wait_for_the_last(batch)
        self._last = self._pool.submit(self.archiver.archive_batch, batch)

    def _wait_for_the_last(self, batch: PulledParts) -> None:
        if self._last is None:
            return
        try:
            with self.archiver.hold(batch):
                self.finish()
        except BaseException:
            self.archiver.give_up(batch)
            raise
