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
# Dataproc needs a main file; the code that it runs is in the image.
_MAIN: Final = b"""\
import sys
from importlib import import_module

sys.exit(import_module(sys.argv[1]).main(sys.argv[2]))
"""
# A batch's state changes within minutes. The supervisor asks twice a second, and each read counts against a quota.
_LOOK_SECONDS: Final = 2.0
_CANCEL_AGAIN_SECONDS: Final = 30.0
_ENDED: Final = {BatchState.CANCELLED, BatchState.SUCCEEDED, BatchState.FAILED}


class DataprocLauncher:
    """Starts drivers as batches; driver and executors share only the jobs' bucket with the service.

    A batch is named after the job and its attempt, so repeating a create whose answer was lost starts no second
    batch. A batch takes about a minute to start. ``environment`` holds the service's variables that drivers and
    executors get; everybody who may read batches can see it, so it must hold no secret.
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
        """Write the main file of the batches beside the jobs' folders.

        Raises:
            LaunchError: the bucket refuses the write.
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
        """Close the connection; batches continue."""
        self._batches.close()

    def launch(self, launch: Launch) -> DataprocBatch:
        """Start a batch, or find the existing batch of this attempt; return before it runs."""
        self.prepare()
        # Lower-case letters, digits and hyphens, 63 at most: "CreateBatchRequest.batch_id".
        batch_id = f"refeed-{re.sub(r'[^a-z0-9-]', '-', launch.name.lower())}-{launch.attempt}"[-63:].lstrip("-")
        name = self._batches.create(
            batch_id, f"{self._folder}/{_MAIN_FILE}", [launch.module, launch.argument], self._properties
        )
        return DataprocBatch(name)

    def exit_reason(self, driver: Driver) -> str | None:
        """Return None while the batch may be alive, else a sentence with Dataproc's reason for its end.

        An unknown state does not count as an end: a driver that ends by itself writes its outcome to its folder.
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
        """Cancel the batch, which ends within seconds; ignore further calls for 30 seconds."""
        if isinstance(driver, Process):
            return
        asked_at = self._cancelled.get(driver.name)
        if asked_at is not None and time.monotonic() - asked_at < _CANCEL_AGAIN_SECONDS:
            return
        self._batches.cancel(driver.name)
        self._cancelled[driver.name] = time.monotonic()
        # The cached state is out of date.
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
