"""A deployment at night, for one operator: its API over HTTP, its jobs and a stream, all without Spark."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from app.deployment import Deployment
from backfill.job import run_backfill
from backfill.run.folder import BackfillFolder
from connectors.lake.archive import LakeArchive
from jobs.folder import JobFolder, Outcome
from jobs.launcher import Launch
from jobs.store import JobStore
from model.errors import RefeedError
from model.job import JobState
from model.principal import SCOPES
from model.process import Driver, Process
from model.settings import read_settings
from model.stream_options import StreamKind
from model.stream_record import StreamRecord, StreamState
from rollout.agent import Agent
from rollout.checking import UpdateChecker
from rollout.update_work import UpdateWork
from streams.journal import Journal
from streams.snapshot import PLAN_FILE
from tests.acceptance.receiving import receive_waiting
from tests.api.conftest import Api, serve_api
from tests.archive import messages, write_commits, write_letters
from tests.backfill.test_job import Threads
from tests.rollout.update_yard import STREAM, Checker
from tests.waiting import wait_until
from tests.worlds.launchers import IdleLauncher

STREAM_NAME = "pipeline-default"
SUBSCRIPTION = "refeed-pipeline.orders"
SCHEDULE = "nightly-merge"
# A value that the local Pub/Sub server takes, and one above what it takes while it refuses long ones.
LONG_VALUE = "x" * 900
SHORT_BYTES = 500
IN_THE_HOUR = 20
TOO_LONG = 2
SOURCES = "sources:\n  orders: {topic: orders, schema: inferred, key: id}\n"


class Drivers(IdleLauncher):
    """Runs backfills in threads of this process, with threads in Spark's place; merges end at once.

    ``merges`` is how the next merges end.
    """

    def __init__(self) -> None:
        self.merges: Callable[[int], Outcome] = lambda epoch: Outcome(epoch, JobState.SUCCEEDED)
        self._threads: list[threading.Thread] = []

    def launch(self, launch: Launch) -> Driver:
        job = json.loads(launch.argument)
        folder, epoch = JobFolder(job["folder"]), int(job["epoch"])
        thread = threading.Thread(target=self._run, args=(folder, epoch), daemon=True)
        self._threads.append(thread)
        thread.start()
        return Process(len(self._threads), 1, "this process")

    def exit_reason(self, driver: Driver) -> str | None:
        assert isinstance(driver, Process)
        return None if self._threads[driver.pid - 1].is_alive() else "It has ended."

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def _run(self, folder: JobFolder, epoch: int) -> None:
        if not folder.name.startswith("bf_"):
            folder.write_outcome(self.merges(epoch))
            return
        try:
            outcome = run_backfill(BackfillFolder.of(folder), epoch)
        except RefeedError as exc:
            outcome = Outcome(epoch, JobState.FAILED, {"code": exc.code, "message": exc.message})
        folder.write_outcome(outcome)


class Night:
    """What an operator finds at night, and what the tests look at afterwards."""

    def __init__(self, api: Api, drivers: Drivers) -> None:
        self.api = api
        self.drivers = drivers
        self.store: JobStore = api.store
        self.key = api.make_key(*SCOPES, name="ann")
        # The hour before the last one; as times of day they are the last such times.
        self.start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
        self.end = self.start + timedelta(hours=1)

    def fill(self) -> None:
        """Archive an hour of orders with a message at each side of it, and a minute of them with long values."""
        tick, count = timedelta(microseconds=1), IN_THE_HOUR
        times = [self.start + timedelta(hours=1) * n / count for n in range(count)]
        rows = messages(count + 2, publish_time=[*times, self.start - tick, self.end])
        archive = LakeArchive(str(self.api.home / "lake"), "backup.messages")
        long = [[{"key": "note", "value": LONG_VALUE}]] * TOO_LONG
        plain: list[list[dict[str, str]]] = [[]]
        others = messages(TOO_LONG + 1, publish_time=times[: TOO_LONG + 1], attributes=[*long, *plain])
        write_commits(archive, {"orders": rows, "other": others})
        # As a stream that has run; its script writes nothing of this.
        state = self.api.home / "streams" / STREAM_NAME
        Journal(state / "journal", keep_seconds=600)
        (state / "stream-id").write_text("a" * 32)
        (state / PLAN_FILE).write_text(json.dumps({"subscriptions": [SUBSCRIPTION], "sources": []}))
        self.api.pubsub.create_subscription(SUBSCRIPTION, "orders")
        registry = self.api.home / "registry"
        registry.mkdir()
        (registry / "sources.yaml").write_text(SOURCES)

    def listen(self, topic: str) -> Callable[[], list[Any]]:
        """Return what receives the messages that come to a topic from now on."""
        name = f"listener-{topic}-{len(self.api.pubsub.list_subscriptions())}"
        self.api.pubsub.create_subscription(name, topic)
        path = self.api.pubsub.subscription_path(name)
        return lambda: receive_waiting(self.api.pubsub.channel, path, idle_seconds=0.3)

    def lose_orders(self, *message_ids: str) -> None:
        """Let the pipeline have made dead letters of these messages of orders."""
        now = datetime.now(UTC)
        row = {
            "data": b"{}",
            "publish_time": self.start,
            "topic": "orders",
            "source": "orders",
            "ordering_key": "",
        }
        row |= {
            "error_code": "wrong_type",
            "error_message": "total: is text.",
            "ingest_time": now,
            "attributes": [],
        }
        rows = [{**row, "message_id": each} for each in message_ids]
        write_letters(self.api.home / "lake", rows)

    def actors(self, job_id: str) -> list[tuple[str, str]]:
        """Return who did what to a job, oldest first."""
        return [(str(each.actor), each.what) for each in self.store.list_events(job_id)]


@contextmanager
def taking_short_values() -> Iterator[None]:
    """Let the Pub/Sub server refuse messages with long attribute values."""
    with patch("local.intake.MAX_ATTRIBUTE_VALUE_BYTES", SHORT_BYTES):
        yield


@contextmanager
def agent_of(api: Api) -> Iterator[None]:
    """Run an agent with a pipeline stream that is a small script."""
    environment = {**api.environment, "PYTHONPATH": str(Path.cwd())}

    def command(record: StreamRecord, instance_id: str) -> list[str]:
        return [sys.executable, "-u", "-c", STREAM, str(api.home), record.name, "--instance", instance_id, ""]

    with Deployment(read_settings(environment)) as deployment:
        updates = UpdateWork(
            deployment.store, open_checker=lambda: cast("UpdateChecker", Checker()), read_lag=lambda *_: 0.0
        )
        agent = Agent(
            deployment.store,
            environment=environment,
            places=1,
            command=command,
            snapshots=deployment.snapshot_work,
            updates=updates,
        )
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.02):
                agent.look()

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(20)
            for process in agent:
                process.kill()
            updates.stop()
            assert not thread.is_alive()


@contextmanager
def night_in(home: Path) -> Iterator[Night]:
    """Serve a deployment in ``home``, with an archive and a pipeline stream that runs."""
    drivers = Drivers()
    with (
        patch("connectors.spark.session._open_launched", lambda _name: Threads()),
        serve_api(home, {"REFEED_MAX_RUNNING": "3"}, launcher=drivers) as api,
    ):
        night = Night(api, drivers)
        night.fill()
        night.store.launch_stream(STREAM_NAME, StreamKind.PIPELINE, actor="key:bob", options={"group": "default"})
        with agent_of(api):
            is_running = lambda: night.store.get_stream(STREAM_NAME).state is StreamState.RUNNING  # noqa: E731
            wait_until(is_running, "the stream runs")
            yield night
        drivers.join()
