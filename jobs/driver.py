"""The frame of every driver: writes heartbeats, obeys stop orders and writes the outcome."""

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from jobs.folder import JobFolder, Outcome
from model.errors import CheckpointCorruptError, QueryStoppedError, RefeedError
from model.failure import safe_message
from model.job import JobState

_LOG: Final = structlog.get_logger()
_STOP_CHECK_SECONDS: Final = 0.2
_STOP_GRACE_SECONDS: Final = 1.5


def run_driver(argument: str, run: Callable[[JobFolder, int], Outcome]) -> int:
    """Run the attempt that ``argument`` ({"folder", "epoch"} as JSON) names; return 1 if it FAILED, else 0.

    The outcome of ``run`` is written to the job's folder, whatever it raised. After a stop order ``run`` has 1.5 s
    to end by itself; then the process exits.
    """
    _keep_values_out_of_logs()
    job = json.loads(argument)
    folder, epoch = JobFolder(job["folder"]), int(job["epoch"])
    structlog.contextvars.bind_contextvars(job_id=folder.name, epoch=epoch)
    ended = threading.Event()
    threading.Thread(target=_leave_when_told, args=(folder, epoch, ended), daemon=True).start()
    try:
        # Tasks of an earlier attempt may not have read yet that their attempt is over.
        time.sleep(folder.sight_seconds)
        outcome = run(folder, epoch)
    except QueryStoppedError:
        outcome = Outcome(epoch, JobState.CANCELLED)
    except RefeedError as exc:
        _LOG.exception("failed")
        error = {"code": exc.code, "message": safe_message(exc.code, exc.message)}
        outcome = Outcome(epoch, JobState.FAILED, error)
    except Exception as exc:  # noqa: BLE001 - whatever it was, people must learn of it
        _LOG.exception("failed")
        # The exception's text may quote messages, so only the log has it.
        message = f"The driver failed with {type(exc).__name__}. Its log has the details."
        outcome = Outcome(epoch, JobState.FAILED, {"code": "driver_failed", "message": message})
    ended.set()
    folder.write_outcome(outcome)
    _LOG.info("ended", state=outcome.state.value)
    return 1 if outcome.state is JobState.FAILED else 0


def _keep_values_out_of_logs() -> None:
    """Log tracebacks without the values of variables, which may be messages or secrets."""
    *processors, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, renderer])


def _leave_when_told(folder: JobFolder, epoch: int, ended: threading.Event) -> None:
    """Write heartbeats, and end the driver soon after the control says STOP, even while Spark starts.

    Tasks read the same control and stop by themselves; the grace period lets them write their checkpoints.
    """
    check_seconds = max(_STOP_CHECK_SECONDS, folder.sight_seconds)
    is_wanted = True
    while is_wanted:
        # A storage error is no order to stop, and must not end the heartbeats.
        with suppress(CheckpointCorruptError, OSError):
            is_wanted = folder.may_go_on(epoch)
            folder.beat(epoch)
        if is_wanted and ended.wait(check_seconds):
            return
    if not ended.wait(_STOP_GRACE_SECONDS):
        folder.write_outcome(Outcome(epoch, JobState.CANCELLED))
        os._exit(0)
