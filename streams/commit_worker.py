"""From the tasks to the committer: one batch is committed while the tasks pull the next."""

import logging
import os
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
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
        # The batch under way, or the last one that was.
        self._batch: Batch | None = None
        self._last: Future[None] | None = None
        # Done when the stream ends without what is not committed.
        self._abandoned: Future[None] = Future()
        self._given_back = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the lease until the batch under way has ended; one that was abandoned ends with the process.

        Whatever Spark hands over after that is given back: this process may own the stream no longer.
        """
        if self._abandoned.done() and self._is_committing():
            end_process()
        self.abandon()
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
            if not self._settle_the_last(batch):
                return
            self._batch = batch
            self._last = self._pool.submit(self.committer.commit_batch, batch)
            if batch.keeps_the_next:
                self.finish()
        except RefeedError as exc:
            # Spark turns it into an exception of its own; the job wants this one.
            self.failure = exc
            _log.error("batch_failed", batch=batch_id, code=exc.code, error=exc.message)
            raise

    def finish(self) -> None:
        """Wait until the last batch is settled, or the stream is abandoned.

        Raises:
            RefeedError: it is not committed.
        """
        last = self._last
        if last is None:
            return
        wait((last, self._abandoned), return_when=FIRST_COMPLETED)
        if not last.done():
            return
        self._batch = self._last = None
        try:
            last.result()
        except RefeedError as exc:
            self.failure = exc
            raise

    def pause(self) -> bool:
        """Let no commit begin until :meth:`resume`; False while one is under way, to be tried again."""
        return self.committer.turn.acquire(blocking=False)

    def resume(self) -> None:
        """Let commits go on."""
        self.committer.turn.release()

    def abandon(self) -> None:
        """Begin no further commit: a batch that waits, and each that comes, is given back to Pub/Sub.

        A commit that is under way goes on until the process ends. Ended in the middle it is what a kill leaves:
        the journal has its ids, and the next start settles it.
        """
        if not self._abandoned.done():
            self._abandoned.set_result(None)

    def wait_for_commit(self, *, seconds: float) -> bool:
        """Wait for the commit under way; return whether none is left after ``seconds``."""
        if self._last is not None:
            wait((self._last,), timeout=seconds)
        return not self._is_committing()

    def count_left(self) -> int:
        """Return how many messages were given back or are held by a batch that is not committed."""
        batch, last = self._batch, self._last
        if batch is None or last is None or (last.done() and last.exception() is None):
            return self._given_back
        return self._given_back + len(batch.ids())

    def _is_committing(self) -> bool:
        return self._last is not None and not self._last.done()

    def _settle_the_last(self, batch: Batch) -> bool:
        """Wait for the last batch while ``batch`` is held; False when the stream is abandoned."""
        if self._last is not None:
            try:
                with self.committer.hold(batch):
                    self.finish()
            except BaseException:
                self.committer.give_up(batch)
                raise
        if self._abandoned.done():
            self._given_back += self.committer.give_back(batch)
            return False
        return True


def end_process() -> None:
    """End this process with exit code 0 and without waiting for its threads."""
    logging.shutdown()
    os._exit(0)
