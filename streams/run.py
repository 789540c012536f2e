"""A streaming query that is kept running until the process is told to drain."""

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
from streams.status import StatusFile

_log = structlog.get_logger(__name__)

_WATCH_SECONDS: Final = 0.25
_TELL_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 5.0
# Spark gives a Python worker ten seconds to start, on however busy a machine, and no setting changes that.
_WORKER_IS_LATE: Final = "Python worker failed to connect back"
# What passes by itself: the stream waits, with nothing acknowledged, and tries again.
PASSING: Final = (StorageFullError, PubSubUnavailableError, WarehouseUnavailableError, QuotaExceededError)


class Sink(Protocol):
    """Who takes the batches: it keeps the error that ended one."""

    status: StatusFile
    failure: RefeedError | None


def run_until_stopped(
    spark: Any,
    start_query: Callable[[Path, Path], Any],
    *,
    name: str,
    sink: Sink,
    scratch: Path,
    watch: Callable[[], None] = lambda: None,
    finish: Callable[[], None] = lambda: None,
) -> None:
    """Keep a query running until SIGTERM or SIGINT, then let it finish the batch under way and stop ``spark``.

    ``start_query`` takes a checkpoint and a stop file and returns Spark's query. The offsets say nothing that
    journal and tables do not say better, so each query has a checkpoint of its own: one that is damaged or left
    over can't hurt. ``watch`` is called a few times a second meanwhile, ``finish`` when the query has drained, to
    wait for what the sink still has in hand. A query that a passing fault ended, or a busy
    machine, is started again; un-acked messages come again. ``name`` is the stream's in the log.

    Raises:
        RefeedError: a batch failed for another reason, the query ended by itself, or the last batch before the
            end failed for any reason: a stream has drained only when what it had in hand is done.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    failure: RefeedError | None = None
    while not stopping.is_set():
        failure = None
        checkpoint = scratch / f"checkpoint-{time.time_ns()}"
        stop_file = checkpoint.with_suffix(".stop")
        try:
            query = start_query(checkpoint, stop_file)
            sink.status.write(state="running")
            _watch_query(query, sink, stop_file, stopping=stopping, watch=watch)
            finish()
        except PASSING as exc:
            failure = exc
            sink.status.write(state="waiting", error={"code": exc.code, "message": exc.message})
            _log.error(f"{name}_waits", code=exc.code, error=exc.message, retry_seconds=_RETRY_SECONDS)
            stopping.wait(_RETRY_SECONDS)
        except RefeedError as exc:
            sink.status.write(state="failed", error={"code": exc.code, "message": _shown(exc)})
            raise
    spark.stop()
    shutil.rmtree(scratch, ignore_errors=True)
    if failure is not None:
        sink.status.write(state="stopped", error={"code": failure.code, "message": failure.message})
        raise failure
    sink.status.write(state="stopped")
    _log.info(f"{name}_drained")


def _shown(exc: RefeedError) -> str:
    """Return why the stream failed, without the words of Spark, which quote the values that it failed on."""
    if exc.code == RefeedError.code:
        return "The stream ended by a fault that is not known. Its log has Spark's words."
    return safe_message(exc.code, exc.message)


def _watch_query(
    query: Any,
    sink: Sink,
    stop_file: Path,
    *,
    stopping: threading.Event,
    watch: Callable[[], None],
) -> None:
    told_at = time.monotonic()
    while query.isActive:
        if time.monotonic() - told_at >= _TELL_SECONDS:
            # A stream with nothing to do has no batch that would say that it lives.
            sink.status.write()
            told_at = time.monotonic()
        if stopping.wait(_WATCH_SECONDS):
            sink.status.write(state="draining")
            stop_file.touch()
            try:
                query.processAllAvailable()
            except Exception:  # Spark's own, which says less than the sink does
                if sink.failure is None:
                    raise
                break
            query.stop()
            return
        watch()
    if sink.failure is not None:
        raise sink.failure
    reason = str(query.exception())
    if "No space left on device" in reason:
        raise StorageFullError(f"The disk is full under {stop_file.parent}.")
    if _WORKER_IS_LATE in reason and not stopping.is_set():
        _log.warning("spark_worker_late", retry_seconds=_RETRY_SECONDS)
        stopping.wait(_RETRY_SECONDS)
        return
    raise RefeedError(f"The Spark query ended by itself: {reason}")
