"""Passes batches from the tasks to the committer: one batch is committed while the tasks pull the next."""

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
    """Takes batches from Spark and commits them in a thread, one at a time and in order.

    :meth:`take_batch` returns as soon as the previous batch is settled, and Spark then begins the next one. So the
    tasks pull while a batch is committed. A batch that keeps the next one from being planned is settled before the
    call returns. An error is raised by the call for the next batch, which is given up: its messages come again.
    """

    def __init__(self, committer: StreamCommitter) -> None:
        self.status = committer.status
        self.failure: RefeedError | None = None
        self.committer = committer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="commit")
        # The batch that is being committed, or the last one.
        self._batch: Batch | None = None
        self._last: Future[None] | None = None
        # Done when the stream ends without its uncommitted batches.
        self._abandoned: Future[None] = Future()
        self._given_back = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the batch under way, so that the lease is kept; an abandoned batch ends with the process.

        Later batches of Spark are returned to Pub/Sub, because this process may not own the stream any more.
        """
        if self._abandoned.done() and self._is_committing():
            end_process()
        self.abandon()
        self._pool.shutdown()

    def take_batch(self, results: Any, batch_id: int) -> None:
        """Take one batch's results, as Spark's foreachBatch passes them.

        The batch id is not used: a batch that Spark plans again has other messages.

        Raises:
            RefeedError: this batch or the previous one is not committed.
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
            # Keep the original error for the job: Spark replaces it by its own exception.
            self.failure = exc
            _log.error("batch_failed", batch=batch_id, code=exc.code, error=exc.message)
            raise

    def finish(self) -> None:
        """Wait until the last batch is settled, or the stream is abandoned.

        Raises:
            RefeedError: the last batch is not committed.
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
        """Keep commits from beginning until :meth:`resume`; return False, to be tried again, during a commit."""
        return self.committer.turn.acquire(blocking=False)

    def resume(self) -> None:
        """Allow commits again."""
        self.committer.turn.release()

    def abandon(self) -> None:
        """Begin no further commit: a waiting batch, and each later one, is returned to Pub/Sub.

        A commit under way continues until the process ends. If the process ends before the commit, the journal has
        the ids, as after a kill, and the next start settles the attempt.
        """
        if not self._abandoned.done():
            self._abandoned.set_result(None)

    def wait_for_commit(self, *, seconds: float) -> bool:
        """Wait for the commit under way; return whether none is left after ``seconds``."""
        if self._last is not None:
            wait((self._last,), timeout=seconds)
        return not self._is_committing()

    def count_left(self) -> int:
        """Return the number of messages that were returned, or are in a batch that is not committed."""
        batch, last = self._batch, self._last
        if batch is None or last is None or (last.done() and last.exception() is None):
            return self._given_back
        return self._given_back + len(batch.ids())

    def _is_committing(self) -> bool:
        return self._last is not None and not self._last.done()

    def _settle_the_last(self, batch: Batch) -> bool:
        """Wait for the last batch while the leases of ``batch`` are extended; return False after an abandon."""
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
