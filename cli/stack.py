"""Everything embedded, as processes of one home: Pub/Sub server, API, and streams that an agent keeps."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from cli.inventory import START_TAKES
from cli.processes import is_listening
from connectors.gcp_kms.decrypt import decrypt
from model.errors import ProcessEndedError
from model.settings import Settings, read_settings
from model.stream import BACKUP_STREAM
from rollout.child import Child, Children

# A JVM on a busy two-core machine; a warm one takes five seconds.
_PUBSUB_SECONDS: Final = 30.0
_BACKUP_SECONDS: Final = 120.0
_API_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.2


class Stack:
    """The processes of one home, on 127.0.0.1; nothing is started before :meth:`start`.

    ``environment`` is theirs, but for the home and the Pub/Sub server's address, which are the same for all.
    """

    def __init__(
        self,
        home: Path,
        *,
        pubsub_port: int,
        api_port: int,
        environment: Mapping[str, str],
        collector_port: int | None = None,
    ) -> None:
        self.home = home.absolute()
        self.api_url = f"http://127.0.0.1:{api_port}"
        self.emulator_host = f"127.0.0.1:{pubsub_port}"
        self.environment = {
            **environment,
            "REFEED_HOME": str(self.home),
            "PUBSUB_EMULATOR_HOST": self.emulator_host,
            "PYTHONUNBUFFERED": "1",
            # A folder named cli or sql where the terminal stands must not hide ours, in Spark's workers neither.
            "PYTHONSAFEPATH": "1",
        }
        self.settings: Settings = read_settings(self.environment, decrypt=decrypt)
        self.pubsub = self._child("pubsub", "pubsub", "--port", str(pubsub_port))
        # For who wants a backup without an agent; the streams of 'refeed up' are an agent's.
        self.backup = self._child(BACKUP_STREAM, "backup")
        self.api = self._child("api", "api", "--port", str(api_port), "--interrupt-at-exit", "--open")
        self.collector: Child | None = None
        self.collector_address: str | None = None
        if collector_port is not None:
            self.collector = self._child("collector", "collector", "--port", str(collector_port))
            self.collector_address = f"127.0.0.1:{collector_port}"

    def start(
        self,
        children: Children,
        *,
        is_backing_up: Callable[[], bool],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start all but the streams, and return once each does its work; ``children`` stops them.

        ``is_backing_up`` keeps the streams in step, and is called until it returns that the backup does its work.
        ``say`` is told what is waited for.

        Raises:
            ProcessEndedError: one ended or was not ready in time; the message has its log's last lines.
        """
        children.start(self.pubsub)
        say(f"waiting for the Pub/Sub server to listen at {self.emulator_host} ...")
        self.wait_for_pubsub()
        if self.collector is not None:
            children.start(self.collector)
            self.wait_for_collector()
        children.start(self.api)
        say(f"waiting for the backup stream to start Spark, {START_TAKES} ...")
        deadline = time.monotonic() + _BACKUP_SECONDS
        while not is_backing_up():
            if time.monotonic() > deadline:
                message = (
                    f"The backup did not begin to pull within {_BACKUP_SECONDS:.0f} s. See {self.backup.log}."
                )
                raise ProcessEndedError(message, name=BACKUP_STREAM)
            time.sleep(_POLL_SECONDS)
        say(f"waiting for the API to be ready at {self.api_url} ...")
        self.wait_for_api()

    def close(self) -> None:
        """End what outlives its service: the Spark Connect server of an API that was killed."""
        from connectors.spark.connect import ConnectServer

        ConnectServer(self.settings.home / "run", {}).stop()

    def wait_for_pubsub(self) -> None:
        """Return once the Pub/Sub server takes calls."""
        self.pubsub.wait_until(
            lambda: is_listening(self.emulator_host), seconds=_PUBSUB_SECONDS, what="begun to listen"
        )

    def wait_for_collector(self) -> None:
        """Return once the collector takes events."""
        assert self.collector is not None
        address = self.collector_address or ""
        self.collector.wait_until(lambda: is_listening(address), seconds=_PUBSUB_SECONDS, what="begun to listen")

    def wait_for_backup(self) -> None:
        """Return once the backup stream pulls."""
        self.backup.wait_until(self._is_backing_up, seconds=_BACKUP_SECONDS, what="begun to pull")

    def wait_for_api(self) -> None:
        """Return once the API takes backfills."""
        # As in cli.api: help needs no HTTP client.
        from client.api import RefeedApi

        with RefeedApi(self.api_url) as api:
            self.api.wait_until(api.is_ready, seconds=_API_SECONDS, what="become ready")

    def _is_backing_up(self) -> bool:
        from streams.folder import read_newest_status

        status = read_newest_status(self.settings.home, BACKUP_STREAM)
        return status is not None and status["pid"] == self.backup.pid and status["state"] == "running"

    def _child(self, name: str, *arguments: str) -> Child:
        command = [sys.executable, "-m", "cli.main", *arguments]
        return Child(name, command, environment=self.environment, log=self.home / "logs" / f"{name}.log")
