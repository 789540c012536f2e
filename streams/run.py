"""Keeps a streaming query running until a signal or an order ends the stream."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from model.errors import (
    KinesisUnavailableError,
    PubSubUnavailableError,
    QuotaExceededError,
    RefeedError,
    StorageFullError,
    TopicUnreadError,
    WarehouseUnavailableError,
)
from model.failure import safe_message
from streams.control import BatchPace
from streams.folder import StreamFolder
from streams.orders import WATCH_SECONDS, Orders, Sink
from streams.status import StatusFile

_log = structlog.get_logger(__name__)

_TELL_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 5.0
# Time that the tasks of an abandoned stream have to deliver their messages, which are returned to Pub/Sub.
_ABANDON_SECONDS: Final = 5.0
# Spark gives a Python worker ten seconds to start, also on a busy machine, and no setting changes that.
_WORKER_IS_LATE: Final = "Python worker failed to connect back"
# The states of a status that has the stream's end.
_ENDED: Final = frozenset({"failed", "stopped", "cancelled"})
# Transient errors: the stream waits, acknowledges nothing, and tries again.
PASSING: Final = (
    StorageFullError,
    PubSubUnavailableError,
    TopicUnreadError,
    KinesisUnavailableError,
    WarehouseUnavailableError,
    QuotaExceededError,
)


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """A query that runs at this ``pace``; while the file ``stop_file`` exists it begins no other batch.

    The query is Spark's, or an object with the same methods.
    """

    query: Any
    stop_file: Path
    pace: BatchPace


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a stream: the fields of its last status, and the failure of its last batch.

    ``is_over`` is whether the query has ended; otherwise it ends with the process.
    """

    status: Mapping[str, Any]
    is_over: bool
    failure: RefeedError | None = None


def run_until_stopped(
    start_query: Callable[[BatchPace], RunningQuery],
    *,
    name: str,
    sink: Sink,
    orders: Orders,
    watch: Callable[[], None] = lambda: None,
) -> StreamEnd:
    """Keep a query running until a signal or an order ends the stream; return the end of the stream.

    SIGTERM and SIGINT drain the stream without a timeout; the control file has the other orders. After a drain's
    timeout, or a cancel, uncommitted messages stay unacknowledged, and the end has their number. The caller must
    let another process take the stream over first, and then stop Spark.

    Spark's offsets are not needed, because journal and tables have the state. So ``start_query`` gives each query
    its own checkpoint, and a damaged or old checkpoint does no harm. ``watch`` is called a few times a second
    unless the stream is paused. A query is started again after a transient error, after a timeout on a busy
    machine, and after a change of its pace; unacknowledged messages are redelivered. ``name`` is the stream's name
    in the log.

    Raises:
        RefeedError: a batch failed for another reason, or the query ended by itself.
    """
    orders.follow_signals()
    failure: RefeedError | None = None
    is_over = True
    while not orders.is_ending:
        failure = None
        try:
            running = start_query(orders.newest.pace)
            sink.status.write(state="running", control_number=orders.newest.number)
            is_over = _watch_query(running, sink, orders=orders, watch=watch)
        except PASSING as exc:
            failure = exc
            sink.status.write(state="waiting", error={"code": exc.code, "message": exc.message})
            _log.error(f"{name}_waits", code=exc.code, error=exc.message, retry_seconds=_RETRY_SECONDS)
            orders.wait(_RETRY_SECONDS)
        except RefeedError as exc:
            sink.status.write(state="failed", error={"code": exc.code, "message": _shown(exc)})
            raise
    if failure is not None and not orders.is_cancelled:
        error = {"code": failure.code, "message": failure.message}
        return StreamEnd({"state": "stopped", "error": error}, is_over, failure)
    left = sink.count_left() if is_over else None
    ended = {"not_committed": left, "control_number": orders.newest.number}
    if orders.is_cancelled:
        _log.info(f"{name}_cancelled", not_committed=left)
        return StreamEnd({"state": "cancelled", **ended}, is_over)
    _log.info(f"{name}_drained", not_committed=left)
    return StreamEnd({"state": "stopped", "error": _describe_left(left, orders), **ended}, is_over)


@contextmanager
def failing_in_status(folder: StreamFolder) -> Iterator[None]:
    """Write the error of the block into the instance's status, also if the stream never ran.

    The agent reads the status, and shows it with the stream. An end that is in the status already stays.
    """
    try:
        yield
    except RefeedError as exc:
        written = StatusFile.read(folder.status) or {}
        if written.get("state") not in _ENDED:
            with suppress(OSError):
                folder.run.mkdir(parents=True, exist_ok=True)
            status = StatusFile(folder.status, instance=folder.instance_id)
            status.note(**written)
            status.write(state="failed", error={"code": exc.code, "message": _shown(exc)})
        raise


def _describe_left(left: int | None, orders: Orders) -> dict[str, str] | None:
    """Return the error of a drain that timed out with uncommitted messages, or None.

    ``left`` does not include messages that tasks still hold: their number is unknown.
    """
    if left == 0:
        return None
    many = "Messages" if left is None else f"{left:,} messages"
    bound = orders.newest.timeout_seconds
    message = (
        f"{many} were not committed within the timeout of the drain ({bound} s). Pub/Sub delivers them again."
    )
    return {"code": "drain_timed_out", "message": message}


def _shown(exc: RefeedError) -> str:
    """Return why the stream failed, without Spark's text, which quotes values of messages."""
    if exc.code == RefeedError.code:
        return "The stream ended with an unknown error. Its log has Spark's own error."
    return safe_message(exc.code, exc.message)


def _watch_query(
    running: RunningQuery,
    sink: Sink,
    *,
    orders: Orders,
    watch: Callable[[], None],
) -> bool:
    """Watch the query until it must end, for good or for another pace; return whether it has ended."""
    query = running.query
    told_at = time.monotonic()
    try:
        while query.isActive:
            if time.monotonic() - told_at >= _TELL_SECONDS:
                # An idle stream has no batches: write the status as a heartbeat.
                sink.status.write()
                told_at = time.monotonic()
            if orders.is_ending:
                sink.status.write(state="draining")
                orders.end_pause(sink)
                return _end_query(running, sink, orders)
            if orders.newest.order == "run" and orders.newest.pace != running.pace:
                orders.end_pause(sink)
                return _end_query(running, sink, orders)
            if not orders.follow_pause(sink):
                watch()
            orders.wait(WATCH_SECONDS)
    finally:
        orders.end_pause(sink)
    if sink.failure is not None:
        raise sink.failure
    reason = str(query.exception())
    if "No space left on device" in reason:
        raise StorageFullError(f"The disk of {running.stop_file.parent} is full.")
    if _WORKER_IS_LATE in reason and not orders.is_ending:
        _log.warning("spark_worker_late", retry_seconds=_RETRY_SECONDS)
        orders.wait(_RETRY_SECONDS)
        sink.finish()
        return True
    raise RefeedError(f"The query ended by itself: {reason}")


def _end_query(running: RunningQuery, sink: Sink, orders: Orders) -> bool:
    """Finish the batches of the query and the sink, and stop the query; return False after the timeout.

    Raises:
        RefeedError: a batch is not committed.
    """
    running.stop_file.touch()
    over = _begin_end(running.query, sink)
    told_at = time.monotonic()
    while not orders.is_out_of_time:
        wait((over,), timeout=WATCH_SECONDS)
        if over.done():
            over.result()
            return True
        if time.monotonic() - told_at >= _TELL_SECONDS:
            sink.status.write()
            told_at = time.monotonic()
    sink.abandon()
    gives_up_at = time.monotonic() + _ABANDON_SECONDS
    # Tasks deliver their messages when they see the stop file, and these are returned to Pub/Sub.
    wait((over,), timeout=_ABANDON_SECONDS)
    is_settled = sink.wait_for_commit(seconds=max(0.0, gives_up_at - time.monotonic()))
    return over.done() and is_settled


def _begin_end(query: Any, sink: Sink) -> Future[None]:
    """Finish the query and the sink in another thread; return a future, so that the caller can stop waiting."""
    over: Future[None] = Future()

    def end() -> None:
        try:
            _finish(query, sink)
        except BaseException as exc:  # noqa: BLE001 - the thread that waits for it raises it
            over.set_exception(exc)
        else:
            over.set_result(None)

    threading.Thread(target=end, name="end-query", daemon=True).start()
    return over


def _finish(query: Any, sink: Sink) -> None:
    try:
        query.processAllAvailable()
    except Exception:  # Spark's own error: the sink's error has more details
        if sink.failure is None:
            raise
        raise sink.failure from None
    query.stop()
    sink.finish()
