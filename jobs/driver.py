"""What every driver does around its work: shows that it lives, ends when told to, says how it ended."""

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
    """Run the attempt that ``argument`` ({"folder", "epoch"} as JSON) names; 0 when it ended as it should.

    How ``run`` ended is written to the job's folder, whatever it raised. Told to stop, it has a moment to end by
    itself; then the process leaves.
    """
    _keep_values_out_of_logs()
    job = json.loads(argument)
    folder, epoch = JobFolder(job["folder"]), int(job["epoch"])
    structlog.contextvars.bind_contextvars(job_id=folder.name, epoch=epoch)
    ended = threading.Event()
    threading.Thread(target=_leave_when_told, args=(folder, epoch, ended), daemon=True).start()
    try:
        # Tasks of an attempt before this one may not have seen yet that theirs is over.
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
        # Its text may quote messages, so that only the log has it.
        message = f"The driver failed with {type(exc).__name__}. Its log has the details."
        outcome = Outcome(epoch, JobState.FAILED, {"code": "driver_failed", "message": message})
    ended.set()
    folder.write_outcome(outcome)
    _LOG.info("ended", state=outcome.state.value)
    return 1 if outcome.state is JobState.FAILED else 0


def _keep_values_out_of_logs() -> None:
    """Write where an error came from without its variables' values: messages and secrets are among them."""
    *processors, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, renderer])


def _leave_when_told(folder: JobFolder, epoch: int, ended: threading.Event) -> None:
    """Show that the driver lives, and end it soon after the job's control says stop, also while Spark starts up.

    Tasks see the same control and stop by themselves; the grace is theirs, to write how far they got.
    """
    check_seconds = max(_STOP_CHECK_SECONDS, folder.sight_seconds)
    is_wanted = True
    while is_wanted:
        # Storage that fails for once is no order, and no reason to fall silent.
        with suppress(CheckpointCorruptError, OSError):
            is_wanted = folder.may_go_on(epoch)
            folder.beat(epoch)
        if is_wanted and ended.wait(check_seconds):
            return
    if not ended.wait(_STOP_GRACE_SECONDS):
        folder.write_outcome(Outcome(epoch, JobState.CANCELLED))
        os._exit(0)
