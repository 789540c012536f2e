"""A streaming query that is kept running until a signal or an order ends the stream."""

import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from model.errors import (
    PubSubUnavailableError,
    QuotaExceededError,
    RefeedError,
    StorageFullError,
    WarehouseUnavailableError,
)
from model.failure import safe_message
from streams.control import LONGEST_PAUSE_SECONDS, BatchPace, ControlFile, StreamControl
from streams.status import StatusFile

_log = structlog.get_logger(__name__)

_WATCH_SECONDS: Final = 0.25
_TELL_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 5.0
# What a stream that ends without waiting gives its tasks to hand over what they hold.
_ABANDON_SECONDS: Final = 5.0
# Spark gives a Python worker ten seconds to start, on however busy a machine, and no setting changes that.
_WORKER_IS_LATE: Final = "Python worker failed to connect back"
# What passes by itself: the stream waits, with nothing acknowledged, and tries again.
PASSING: Final = (StorageFullError, PubSubUnavailableError, WarehouseUnavailableError, QuotaExceededError)


class Sink(Protocol):
    """Who takes the batches: it keeps the error that ended one, and says how many messages an end left behind."""

    status: StatusFile
    failure: RefeedError | None

    def finish(self) -> None:
        """Wait until the last batch is settled, or abandoned.

        Raises:
            RefeedError: it is not committed.
        """

    def pause(self) -> bool:
        """Let no commit begin; False while one is under way."""
        ...

    def resume(self) -> None:
        """Let commits go on."""

    def abandon(self) -> None:
        """Begin no further commit, and give back what comes."""

    def wait_for_commit(self, *, seconds: float) -> bool:
        """Wait for the commit under way; return whether none is left."""
        ...

    def count_left(self) -> int:
        """Return how many messages it held that are not committed."""
        ...


def run_until_stopped(
    spark: Any,
    start_query: Callable[[Path, Path, BatchPace], Any],
    *,
    name: str,
    sink: Sink,
    scratch: Path,
    control: ControlFile | None = None,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Keep a query running until a signal or an order ends the stream, then stop ``spark``.

    SIGTERM and SIGINT drain it, however long that takes; ``control`` has the other orders. A drain that takes
    longer than its bound, and a cancel, leave what is not committed un-acknowledged, and the status says how many
    messages that are.

    ``start_query`` takes a checkpoint, a stop file and a pace, and returns Spark's query. The offsets say nothing
    that journal and tables do not say better, so each query has a checkpoint of its own: one that is damaged or
    left over can't hurt. ``watch`` is called a few times a second meanwhile, unless the stream is paused. A query
    that a passing fault ended, or a busy machine, is started again, and so is one whose pace has changed; un-acked
    messages come again. ``name`` is the stream's in the log.

    Raises:
        RefeedError: a batch failed for another reason, the query ended by itself, or the last batch before the
            end failed for any reason: a stream has drained only when what it had in hand is done.
    """
    orders = _Orders(control, sink)
    failure: RefeedError | None = None
    is_over = True
    while not orders.is_ending:
        failure = None
        checkpoint = scratch / f"checkpoint-{time.time_ns()}"
        stop_file = checkpoint.with_suffix(".stop")
        try:
            pace = orders.newest.pace
            query = start_query(checkpoint, stop_file, pace)
            sink.status.write(state="running", control_number=orders.newest.number)
            is_over = _watch_query(query, sink, stop_file, pace, orders=orders, watch=watch)
        except PASSING as exc:
            failure = exc
            sink.status.write(state="waiting", error={"code": exc.code, "message": exc.message})
            _log.error(f"{name}_waits", code=exc.code, error=exc.message, retry_seconds=_RETRY_SECONDS)
            orders.wait(_RETRY_SECONDS)
        except RefeedError as exc:
            sink.status.write(state="failed", error={"code": exc.code, "message": _shown(exc)})
            raise
    if is_over:
        # What does not end in time ends with the process, and Spark with it.
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    if orders.is_cancelled:
        left = sink.count_left() if is_over else None
        sink.status.write_last(state="cancelled", not_committed=left, control_number=orders.newest.number)
        _log.info(f"{name}_cancelled", not_committed=left)
    elif failure is not None:
        sink.status.write_last(state="stopped", error={"code": failure.code, "message": failure.message})
        raise failure
    else:
        _write_drained(sink, orders, name, is_over=is_over)


def _write_drained(sink: Sink, orders: "_Orders", name: str, *, is_over: bool) -> None:
    """Write the end of a drain: how many messages its bound left, None where tasks still hold some."""
    left = sink.count_left() if is_over else None
    error = None
    if left != 0:
        many = "Messages" if left is None else f"{left:,} messages"
        bound = orders.newest.timeout_seconds
        message = f"{many} were not committed within the {bound} s of the drain. They come again."
        error = {"code": "drain_timed_out", "message": message}
    sink.status.write_last(state="stopped", error=error, not_committed=left, control_number=orders.newest.number)
    _log.info(f"{name}_drained", not_committed=left)


class _Orders:
    """What signals and the control file want of the stream, looked at a few times a second."""

    def __init__(self, control: ControlFile | None, sink: Sink) -> None:
        self.newest = StreamControl()
        self._control = control
        self._sink = sink
        self._came_at = time.monotonic()
        self._stopping = threading.Event()
        self._is_paused = False
        self._told = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())

    @property
    def is_ending(self) -> bool:
        """Whether the stream is to drain, or to end at once."""
        self._look()
        return self._stopping.is_set()

    @property
    def is_cancelled(self) -> bool:
        """Whether it ends at once and leaves what is not committed."""
        return self.newest.order == "cancel"

    @property
    def is_out_of_time(self) -> bool:
        """Whether nothing is waited for any more: it is cancelled, or its drain has taken too long."""
        self._look()
        bound = self.newest.timeout_seconds if self.newest.order == "drain" else None
        return self.is_cancelled or (bound is not None and time.monotonic() - self._came_at >= bound)

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until the stream is to end."""
        ends_at = time.monotonic() + seconds
        while (left := ends_at - time.monotonic()) > 0 and not self.is_ending:
            self._stopping.wait(min(left, _WATCH_SECONDS))

    def follow_pause(self) -> bool:
        """Pause or go on, as the newest order says; return whether the stream is paused now."""
        bound = self.newest.timeout_seconds
        longest = LONGEST_PAUSE_SECONDS if bound is None else bound
        is_wanted = self.newest.order == "pause" and time.monotonic() - self._came_at < longest
        if is_wanted and not self._is_paused and self._sink.pause():
            self._is_paused = True
            self._sink.status.write(state="paused", control_number=self.newest.number)
        elif self._is_paused and not is_wanted:
            self.end_pause()
            self._sink.status.write(state="running")
        if self.newest.order == "run" and self.newest.number != self._told:
            self._told = self.newest.number
            self._sink.status.write(control_number=self._told)
        return self._is_paused

    def end_pause(self) -> None:
        """Let commits go on where they are paused."""
        if self._is_paused:
            self._is_paused = False
            self._sink.resume()

    def _look(self) -> None:
        if self._control is None:
            return
        found = self._control.read()
        # Once it ends it never runs again; only a drain may become shorter, or a cancel.
        if found.number == self.newest.number or (self._stopping.is_set() and found.order in {"run", "pause"}):
            return
        if self.is_cancelled:
            return
        self.newest, self._came_at = found, time.monotonic()
        if found.order in {"drain", "cancel"}:
            self._stopping.set()


def _shown(exc: RefeedError) -> str:
    """Return why the stream failed, without the words of Spark, which quote the values that it failed on."""
    if exc.code == RefeedError.code:
        return "The stream ended by a fault that is not known. Its log has Spark's words."
    return safe_message(exc.code, exc.message)


def _watch_query(
    query: Any,
    sink: Sink,
    stop_file: Path,
    pace: BatchPace,
    *,
    orders: _Orders,
    watch: Callable[[], None],
) -> bool:
    """Watch the query until it is to end, for good or for another pace; return whether nothing is left of it."""
    told_at = time.monotonic()
    try:
        while query.isActive:
            if time.monotonic() - told_at >= _TELL_SECONDS:
                # A stream with nothing to do has no batch that would say that it lives.
                sink.status.write()
                told_at = time.monotonic()
            if orders.is_ending:
                sink.status.write(state="draining")
                orders.end_pause()
                return _end_query(query, sink, stop_file, orders)
            if orders.newest.order == "run" and orders.newest.pace != pace:
                orders.end_pause()
                return _end_query(query, sink, stop_file, orders)
            if not orders.follow_pause():
                watch()
            orders.wait(_WATCH_SECONDS)
    finally:
        orders.end_pause()
    if sink.failure is not None:
        raise sink.failure
    reason = str(query.exception())
    if "No space left on device" in reason:
        raise StorageFullError(f"The disk is full under {stop_file.parent}.")
    if _WORKER_IS_LATE in reason and not orders.is_ending:
        _log.warning("spark_worker_late", retry_seconds=_RETRY_SECONDS)
        orders.wait(_RETRY_SECONDS)
        sink.finish()
        return True
    raise RefeedError(f"The Spark query ended by itself: {reason}")


def _end_query(query: Any, sink: Sink, stop_file: Path, orders: _Orders) -> bool:
    """Have the query and the sink finish what they hold, and stop the query; False when it is not waited for.

    Raises:
        RefeedError: what they held is not committed.
    """
    stop_file.touch()
    ending = _Ending(query, sink)
    ending.start()
    told_at = time.monotonic()
    while not orders.is_out_of_time:
        if ending.is_over.wait(_WATCH_SECONDS):
            ending.raise_failure()
            return True
        if time.monotonic() - told_at >= _TELL_SECONDS:
            sink.status.write()
            told_at = time.monotonic()
    sink.abandon()
    gives_up_at = time.monotonic() + _ABANDON_SECONDS
    # Tasks hand over what they hold when they see the stop file, and it is given back.
    is_over = ending.is_over.wait(_ABANDON_SECONDS)
    is_settled = sink.wait_for_commit(seconds=max(0.0, gives_up_at - time.monotonic()))
    return is_over and is_settled


class _Ending:
    """Waits in another thread until a query has finished, so that the caller can stop waiting."""

    def __init__(self, query: Any, sink: Sink) -> None:
        self.is_over = threading.Event()
        self._query = query
        self._sink = sink
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="end-query", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def raise_failure(self) -> None:
        """Raise the error of the batch that failed meanwhile, if one did."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._end()
        except BaseException as exc:  # noqa: BLE001 - the thread that waits for it raises it
            self._failure = exc
        finally:
            self.is_over.set()

    def _end(self) -> None:
        try:
            self._query.processAllAvailable()
        except Exception:  # Spark's own, which says less than the sink does
            if self._sink.failure is None:
                raise
            raise self._sink.failure from None
        self._query.stop()
        self._sink.finish()
