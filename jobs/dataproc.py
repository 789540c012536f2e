"""Starts a job's driver as a batch at Dataproc Serverless."""

import re
import time
from collections.abc import Mapping
from typing import Final

import structlog

from connectors.dataproc.batches import Batches, BatchState, BatchView
from jobs.files import Files
from jobs.launcher import Launch
from model.errors import CredentialsMissingError, LaunchError
from model.process import DataprocBatch, Driver, Process

_LOG: Final = structlog.get_logger()
_MAIN_FILE: Final = "dataproc_main.py"
# Dataproc wants a file to run; what it runs is in the image.
_MAIN: Final = b"""\
import sys
from importlib import import_module

sys.exit(import_module(sys.argv[1]).main(sys.argv[2]))
"""
# A state that a supervisor asks for twice a second changes within minutes, and each look counts against a quota.
_LOOK_SECONDS: Final = 2.0
_CANCEL_AGAIN_SECONDS: Final = 30.0
_ENDED: Final = {BatchState.CANCELLED, BatchState.SUCCEEDED, BatchState.FAILED}


class DataprocLauncher:
    """Starts drivers as batches; driver and executors share nothing with the service but the jobs' bucket.

    A batch is named after the job and its attempt, so a create whose answer was lost is not made twice. A minute
    passes before its first line runs. ``environment`` is what drivers and executors see of the service's own;
    it is shown to everybody who may read batches, so it holds no secret.
    """

    def __init__(
        self, batches: Batches, folder: Files, environment: Mapping[str, str], conf: Mapping[str, str]
    ) -> None:
        self._batches = batches
        self._folder = folder
        self._properties = {
            **conf,
            **{f"spark.dataproc.driverEnv.{name}": value for name, value in environment.items()},
            **{f"spark.executorEnv.{name}": value for name, value in environment.items()},
        }
        self._is_prepared = False
        self._looked: dict[str, tuple[float, str | None]] = {}
        self._cancelled: dict[str, float] = {}

    def prepare(self) -> None:
        """Put the file that batches begin with beside the jobs' folders.

        Raises:
            LaunchError: the bucket refuses it.
        """
        if not self._is_prepared:
            try:
                self._folder.write(_MAIN_FILE, _MAIN)
            except CredentialsMissingError:
                raise
            except OSError as exc:
                raise LaunchError(f"{self._folder} can't be written to: {exc}") from exc
            self._is_prepared = True

    def close(self) -> None:
        """End the connection; batches go on."""
        self._batches.close()

    def launch(self, launch: Launch) -> DataprocBatch:
        """Start a batch, or find the one of this attempt, and return before it runs."""
        self.prepare()
        # Lower-case letters, digits and hyphens, 63 at most: "CreateBatchRequest.batch_id".
        batch_id = f"refeed-{re.sub(r'[^a-z0-9-]', '-', launch.name.lower())}-{launch.attempt}"[-63:].lstrip("-")
        name = self._batches.create(
            batch_id, f"{self._folder}/{_MAIN_FILE}", [launch.module, launch.argument], self._properties
        )
        return DataprocBatch(name)

    def exit_reason(self, driver: Driver) -> str | None:
        """Return None while the batch lives, as far as can be seen, else what Dataproc says of its end.

        What Dataproc does not tell now is no end: a driver that has ended by itself has said so in its folder.
        """
        if isinstance(driver, Process):
            return None if driver.is_alive else f"The driver ({driver}) is gone."
        looked = self._looked.get(driver.name)
        if looked is not None and (looked[1] is not None or time.monotonic() - looked[0] < _LOOK_SECONDS):
            return looked[1]
        try:
            reason = _reason(driver, self._batches.read(driver.name))
        except LaunchError as exc:
            _LOG.warning("the batch's state is unknown", batch=driver.name, problem=exc.message)
            reason = None
        self._looked[driver.name] = (time.monotonic(), reason)
        return reason

    def kill(self, driver: Driver) -> None:
        """Cancel the batch: driver and executors are ended within seconds; asked again, it waits a while."""
        if isinstance(driver, Process):
            return
        asked_at = self._cancelled.get(driver.name)
        if asked_at is not None and time.monotonic() - asked_at < _CANCEL_AGAIN_SECONDS:
            return
        self._batches.cancel(driver.name)
        self._cancelled[driver.name] = time.monotonic()
        # What was seen before says nothing any more.
        self._looked.pop(driver.name, None)


def _reason(driver: DataprocBatch, found: BatchView | None) -> str | None:
    if found is None:
        return f"The driver ({driver}) is gone: Dataproc has no batch with this id."
    if found.state not in _ENDED:
        return None
    if found.state is BatchState.SUCCEEDED:
        return f"The driver ({driver}) ended with code 0."
    how = "was cancelled" if found.state is BatchState.CANCELLED else "failed"
    said = f": {found.message.strip()}" if found.message else "."
    output = f", its output at {found.output_uri}" if found.output_uri else ""
    return f"The driver ({driver}) {how}{said} Its log is at {driver.log_url}{output}"
