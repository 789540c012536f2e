"""A stream that does not run, with subscriptions of its own, its snapshots, and what makes and restores them."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from connectors.pubsub.client import PubSub
from jobs.disk_files import DiskFiles
from jobs.steps import StepRunner
from jobs.store import DELETION, SNAPSHOT, Job, JobStore
from jobs.stream_threads import StreamThreads
from local.server import PubSubServer
from model.job import JobState
from model.message import backup_subscription_id
from model.settings import read_settings
from model.stream_options import StreamKind
from model.stream_snapshot import RestoreRecord, SnapshotRecord
from rollout.fence import StreamFence
from rollout.restorer import StreamRestorer, StreamSite
from rollout.snapshot_taker import SnapshotTaker
from rollout.snapshot_work import deletion_kind, snapshot_kind
from streams.journal import Journal
from tests.memory.warehouse import MemoryWarehouse

BROKEN = "Pub/Sub does not answer."


class KilledError(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A Pub/Sub server in which each test has a project of its own."""
    with PubSubServer(tmp_path_factory.mktemp("pubsub")) as running:
        yield running


class Bench:
    """A backup stream on this machine, with a subscription to each of its topics."""

    def __init__(self, folder: Path, server: PubSubServer, *topics: str) -> None:
        self.home = folder
        self.project = f"p-{folder.name.replace('_', '-')}"
        self.server = server
        self.state = folder / "streams" / "backup"
        Journal(self.state / "journal", keep_seconds=600)
        (self.state / "stream-id").write_text("a" * 32)
        self.store = JobStore(folder / "jobs.sqlite")
        self.store.launch_stream("backup", StreamKind.BACKUP, actor="ann")
        with self.open_pubsub() as pubsub:
            for topic in topics or ("orders",):
                pubsub.create_topic(topic)
                pubsub.create_subscription(backup_subscription_id(topic), topic)
        self.taker = SnapshotTaker(
            self.store, open_pubsub=self.open_pubsub, files=DiskFiles(folder / "snapshots"), host="here"
        )
        self.warehouse = MemoryWarehouse.new(read_settings({"REFEED_HOME": str(folder)}))
        self.restorer = StreamRestorer(
            self.store,
            fence=StreamFence(self.warehouse, project=self.project),
            open_pubsub=self.open_pubsub,
            host="here",
            min_free_bytes=0,
        )

    def open_pubsub(self) -> PubSub:
        return PubSub(self.project, self.server.emulator_host)

    def ask(self, *, with_source: bool = True) -> SnapshotRecord:
        return self.store.create_snapshot("backup", with_source=with_source, actor="ann")

    def take(
        self,
        asked: SnapshotRecord | None = None,
        pause: AbstractContextManager[None] | None = None,
        *,
        with_source: bool = True,
    ) -> SnapshotRecord:
        """Make a snapshot, the one that was asked for or another one, in the stream's ``pause``."""
        asked = asked or self.ask(with_source=with_source)
        (job,) = [
            each for each in self.store.list_step_jobs([SNAPSHOT]) if each.request["snapshot_id"] == asked.id
        ]
        self.carry_out(job, pause)
        return self.store.get_snapshot(asked.id)

    def carry_out(self, job: Job, pause: AbstractContextManager[None] | None = None) -> None:
        """Carry out the step of a job that makes or deletes a snapshot, as the job is now."""
        kinds = (
            snapshot_kind(self.store, self.taker, lambda _: pause or self.pause()),
            deletion_kind(self.store, self.taker),
        )
        if job.state is JobState.PENDING:
            job = self.store.begin_step(job, job.step or "", owner=None)
        runner = StepRunner(self.store, kinds, StreamThreads("test"))
        runner.carry_out(job, StreamSite(self.home / "streams" / job.request["stream"], None))

    def pause(self) -> AbstractContextManager[None]:
        return nullcontext()

    def ask_back(self, snapshot: SnapshotRecord) -> RestoreRecord:
        return self.store.create_restore("backup", snapshot.id, actor="ann")

    def delete(self, snapshot_id: str) -> None:
        self.store.delete_snapshot(snapshot_id)
        self.carry_out_deletions()

    def carry_out_deletions(self) -> None:
        for job in self.store.list_step_jobs([DELETION]):
            self.carry_out(job)

    def sources(self) -> list[str]:
        with self.open_pubsub() as pubsub:
            return [found.id for found in pubsub.list_snapshots()]

    def folders(self) -> list[str]:
        return sorted(path.name for path in (self.home / "snapshots").glob("backup/*"))
