"""The demo's last part: a system with two weeks of data and some backfills, which runs until Ctrl-C."""

import signal
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final
from uuid import uuid4

from rich.progress import Progress

from cli.attach import attach_topics
from cli.demo.history import DAYS, FULL_HOURS, STRAYED, TOPICS, find_hole, write_history
from cli.demo.shop import MEMBERS, ORDERS, PRODUCTS, make_message
from cli.publish import publish_all
from cli.stack import Stack
from cli.terminal import err
from client.api import RefeedApi
from console.new_backfill import render_query
from model.errors import ProcessEndedError
from model.job import JobState
from rollout.child import Child, Children

# Spark starts twice, one JVM after the other.
_UP_SECONDS: Final = 240.0
_JOB_SECONDS: Final = 180.0
# 'refeed up' drains its streams, then its children, each within 30 seconds.
_DRAIN_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.25
# One live order after each of these, so that the last hour is like those before it.
_PUBLISH_SECONDS: Final = 12.0
_HOUR: Final = timedelta(hours=1)
# Orders are staged as well, so that a replay has a verdict: what was published has landed.
_SOURCES: Final = f"sources:\n  orders: {{topic: {ORDERS}, schema: inferred, key: order_id}}\n".encode()


class DemoConsole:
    """A stack's home as 'refeed up' runs it, with more to see than the demo leaves there."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self._stack = stack
        self._seed = seed
        self._end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        command = [sys.executable, "-m", "cli.main", "up", "--port", stack.api_url.rpartition(":")[2]]
        command += ["--pubsub-port", stack.emulator_host.rpartition(":")[2]]
        self._up = Child("up", command, environment=stack.environment, log=stack.home / "logs" / "up.log")

    def run(self, say: Callable[[str], None]) -> None:
        """Archive two weeks, run everything until Ctrl-C, and end it; ``say`` gets the console's address.

        Raises:
            ProcessEndedError: it ended by itself, or was not ready in time.
        """
        self._write_history()
        with Children() as children:
            try:
                children.start(self._up)
                err.print("starting everything with a console ...")
                with RefeedApi(self._stack.api_url) as api:
                    self._up.wait_until(lambda: self._is_ready(api), seconds=_UP_SECONDS, what="become ready")
                    for _ in attach_topics(self._stack.settings, TOPICS):
                        pass
                    self._replay(api)
                hole = f"{find_hole(self._end):%Y-%m-%d %H:%M}"
                say(
                    f"{ORDERS} has no messages in the hour {hole} UTC. Find this gap in the console, and "
                    f"replay the missing messages from {STRAYED}."
                )
                say("Ctrl-C here drains the streams and stops everything.")
                say(f"console  {self._stack.api_url}/console")
                self._publish_until_stopped()
            except KeyboardInterrupt:
                # One Ctrl-C is enough; another one must not cut the draining short.
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                err.print("draining ...")
            finally:
                # What 'refeed up' started would outlive a kill of it.
                children.stop(seconds=_DRAIN_SECONDS)
        if self._up.exit_code:
            raise self._up.ended_error()
        err.print("all stopped")

    def _write_history(self) -> None:
        """Archive two weeks of hours."""
        from app.deployment import Deployment
        from pipeline.registry import Registry

        settings = self._stack.settings
        archive = Deployment(settings).warehouse.open_archive()
        with Progress(console=err) as progress:
            task = progress.add_task("archive two weeks of a shop", total=DAYS * 24)
            for _ in write_history(archive, self._end, self._seed):
                progress.advance(task)
        Registry(settings.registry).publish({"sources.yaml": _SOURCES})

    def _is_ready(self, api: RefeedApi) -> bool:
        if not api.is_ready():
            return False
        states = {each["name"]: each["state"] for each in api.list_streams()["streams"]}
        return [states.get(name) for name in ("backup", "pipeline-default")] == ["RUNNING"] * 2

    def _replay(self, api: RefeedApi) -> None:
        """Make the backfills: one that landed, one with dead letters, and one whose canary waits."""
        yesterday, full = self._end - 26 * _HOUR, self._end - FULL_HOURS * _HOUR
        landed = self._create(
            api, ORDERS, yesterday, description="orders that the warehouse lost", labels={"ticket": "shop-17"}
        )
        letters = self._create(api, MEMBERS, full, description="members for the new mailing", max_failed=100)
        canary = self._create(
            api,
            PRODUCTS,
            yesterday,
            description="prices after the repair",
            canary_messages=20,
            labels={"ticket": "shop-21"},
        )
        self._wait(api, letters, lambda job: JobState(job["state"]).is_final)
        self._wait(api, canary, lambda job: job["state"] == JobState.PAUSED)
        self._wait(api, landed, lambda job: job["verification"]["state"] == "complete")

    def _create(self, api: RefeedApi, topic: str, hour: datetime, **more: Any) -> str:
        moments = {"from": hour, "to": hour + _HOUR}
        given = {name: {"type": "TIMESTAMP", "value": f"{at:%Y-%m-%dT%H:%M:%SZ}"} for name, at in moments.items()}
        request = {"query": render_query(topic), "parameters": given, "topic": topic, **more}
        return str(api.backfills.create(request, idempotency_key=str(uuid4()))["id"])

    def _wait(self, api: RefeedApi, job: str, is_there: Callable[[Mapping[str, Any]], bool]) -> None:
        deadline = time.monotonic() + _JOB_SECONDS
        while not is_there(found := api.jobs.read(job)):
            if not self._up.is_running:
                raise self._up.ended_error()
            if time.monotonic() > deadline:
                said = f"{found['state']}, {found['verification']['state']}: {found['error']}"
                raise ProcessEndedError(
                    f"The backfill {job} has not ended after {_JOB_SECONDS:.0f} s: {said}", name=job
                )
            time.sleep(_POLL_SECONDS)

    def _publish_until_stopped(self) -> None:
        random = Random(self._seed)  # noqa: S311  an example's data, no secret
        number, next_at = 0, time.monotonic()
        while self._up.is_running:
            if time.monotonic() >= next_at:
                number, next_at = number + 1, next_at + _PUBLISH_SECONDS
                message = make_message(ORDERS, random, number, datetime.now(UTC))
                for _ in publish_all(self._stack.settings, [(ORDERS, message)]):
                    pass
            time.sleep(_POLL_SECONDS)
        raise self._up.ended_error()
