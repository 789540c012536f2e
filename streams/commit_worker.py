"""From the tasks to the committer: one batch is committed while the tasks pull the next."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import structlog

from connectors.pubsub.source import collect_results
from model.errors import RefeedError
from streams.batch import Batch
from streams.committer import StreamCommitter

_log = structlog.get_logger(__name__)


class CommitWorker:
    """Takes batches from Spark and has them committed in a thread, one at a time and in order.

    Spark begins the next batch when :meth:`take_batch` returns, which is when the batch before is settled: the
    round trips of a commit cost no time in which messages could be pulled. A batch that keeps the next one is
    settled itself by then. An error comes one batch later than it happens; that batch is given up then, and its
    messages come again.
    """

    def __init__(self, committer: StreamCommitter) -> None:
        self.status = committer.status
        self.failure: RefeedError | None = None
        self.committer = committer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the lease until the batch under way has ended."""
        self._pool.shutdown()

    def take_batch(self, results: Any, batch_id: int) -> None:
        """Take one batch's results, as Spark's foreachBatch hands them over.

        The batch id is not used: a batch that Spark plans again holds other messages.

        Raises:
            RefeedError: this batch or the one before it is not committed.
        """
        self.failure = None
        try:
            batch = self.committer.open_batch(collect_results(results))
            self._settle_the_last(batch)
            self._last = self._pool.submit(self.committer.commit_batch, batch)
            if batch.keeps_the_next:
                self.finish()
        except RefeedError as exc:
            # Spark turns it into an exception of its own; the job wants this one.
            self.failure = exc
            _log.error("batch_failed", batch=batch_id, code=exc.code, error=exc.message)
            raise

    def finish(self) -> None:
        """Wait until the last batch is settled.

        Raises:
            RefeedError: it is not committed.
        """
        last, self._last = self._last, None
        try:
            if last is not None:
                last.result()
        except RefeedError as exc:
            self.failure = exc
            raise

    def _settle_the_last(self, batch: Batch) -> None:
        if self._last is None:
            return
        try:
            with self.committer.hold(batch):
                self.finish()
        except BaseException:
            self.committer.give_up(batch)
            raise
