"""What each component does in a project, Spark and its processes aside."""

import asyncio
import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.backfills import assemble_backfills, open_queries
from backfill.job import select
from backfill.plan.options import RunOptions
from backfill.plan.request import BackfillRequest
from backfill.plan.settings import BackfillSettings
from backfill.run.folder import BackfillFolder
from backup.archiving import ArchiveTarget, Archiving
from backup.source import BackupSource
from cli.main import main
from collector.delivery import DirectDelivery, TopicDirectory
from collector.door import Door
from collector.http import Collector
from collector.settings import CollectorSettings
from connectors.pubsub import channel as pubsub_channel
from connectors.pubsub.backlog import MonitoredBacklog, MonitoredBacklogs
from connectors.pubsub.client import PubSub
from connectors.pubsub.source import PullOptions, TaskResult, _process_puller
from inventory.service import Inventory
from jobs.folder import Control, Order
from jobs.store import JobStore
from model.job import new_job_id
from model.message import BACKUP_SUBSCRIPTION_PREFIX
from model.principal import LOCAL
from pipeline.group import Group
from pipeline.plan import PlanFile
from pipeline.registry import Registry
from pipeline.source import StagingSource
from pipeline.staged_ids import open_journal
from pipeline.staging import StagingWork
from streams.ack_leases import AckLeases
from streams.commit_worker import CommitWorker
from streams.committer import StreamCommitter
from streams.ids import ONLY_TABLE
from streams.journal import Journal
from streams.lease import hold_lease, refuse_held
from streams.status import StatusFile
from tests.deploy.recorded_calls import Recorder, World
from tests.pipeline.conftest import frame
from tests.reporting.shops import RULES, SCHEMA, START, order
from warehouse.bigquery.merger import BigQueryMerger
from warehouse.merges import MergeSource
from warehouse.open import open_warehouse
from warehouse.queries import QuerySpace

QUERY = "SELECT data, attributes, message_id FROM backup.messages WHERE _PARTITIONTIME >= '2024-01-01'"


def refeed(world: World, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    with monkeypatch.context() as patched:
        for name, value in world.environment.items():
            patched.setenv(name, value)
        patched.setattr("sys.argv", ["refeed", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code


def pull(reader: Any) -> list[Any]:
    """Return the result rows of one batch, as Spark would have the tasks make them."""
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    assert end != start
    return [TaskResult(*row) for part in reader.partitions(start, end) for row in reader.read(part)]


def settle(world: World) -> None:
    """Give back now what Pulls in flight brought, not two seconds later, when another component is looked at."""
    _process_puller(world.server.emulator_host).give_back()


def pull_options(world: World, prefix: str, plan_file: Path | None = None) -> PullOptions:
    return PullOptions(
        project=world.project,
        emulator_host=world.server.emulator_host,
        prefix=prefix,
        slots=1,
        idle_seconds=5.0,
        linger_seconds=0.2,
        backlog_seconds=0.2,
        max_bytes=1 << 20,
        stop_file=str(world.folder / "stop"),
        plan_file=None if plan_file is None else str(plan_file),
    )


def run_backup(world: World) -> None:
    """Do what the backup stream does, Spark aside: one batch from the subscription to the acknowledgement."""
    warehouse = open_warehouse(world.settings)
    with closing(warehouse.open_archive()) as archive:
        archive.check()
        leases = archive.leases()
        refuse_held(leases, "backup", "s")
        with hold_lease(leases, "backup", "s") as held:
            committer = StreamCommitter(
                work=Archiving(archive.parse_part),
                targets=ArchiveTarget(archive, stream="s", lease="backup", epoch=held.epoch),
                names=[ONLY_TABLE],
                journal=Journal(world.folder / "journal", keep_seconds=600),
                ack_leases=AckLeases(pubsub_channel.open_channel(world.server.emulator_host), world.project),
                status=StatusFile(world.folder / "status.json"),
            )
            committer.recover()
            task = {"warehouse": warehouse.to_json(), "writer": archive.writer().as_json()}
            options = pull_options(world, BACKUP_SUBSCRIPTION_PREFIX)
            source = BackupSource({"pull": options.as_json(), "task": json.dumps(task), "secret": "s3cret"})
            reader = source.streamReader(None)
            batch = committer.open_batch(pull(reader))
            with committer.hold(batch):
                committer.commit_batch(batch)
            assert batch.ids().num_rows
            reader.stop()
            settle(world)
    MonitoredBacklogs(Monitoring(world.recorder), world.project).read_prefixed(BACKUP_SUBSCRIPTION_PREFIX)


def run_pipeline(world: World) -> None:
    """Do what a group's stream does, Spark aside: its subscription, a batch that makes its table, one of rows."""
    plan_file = world.folder / "plan.json"
    warehouse = open_warehouse(world.settings)
    tables = warehouse.open_row_tables(stream="s", lease="l")
    status = StatusFile(world.folder / "status.json")
    with closing(tables), PubSub(world.project, world.server.emulator_host) as pubsub:
        group = Group(
            "default",
            registry=Registry(str(world.folder / "registry")),
            plan_file=PlanFile(plan_file, warehouse),
            tables=tables,
            pubsub=pubsub,
            is_embedded=False,
            ack_deadline_seconds=10,
            dead_letter_table="backup.dead_letters",
            max_bytes=100_000,
            status=status,
            secret="secret",
        )
        names = group.start()
        with hold_lease(tables.leases(), "l", "s"):
            committer = StreamCommitter(
                work=StagingWork(tables.parse_part, group.learn),
                targets=tables,
                names=names,
                journal=open_journal(
                    world.folder / "journal", keep_seconds=600, dead_letter_table="backup.dead_letters"
                ),
                ack_leases=AckLeases(pubsub.channel, world.project),
                status=status,
            )
            committer.recover()
            group.follow(committer)
            world.publish(b'{"id": 1}', b"nope")
            options = pull_options(world, "", plan_file)
            for _ in range(2):  # the first one makes the table, the second one fills it
                source = StagingSource({"pull": options.as_json(), "secret": "s3cret"})
                reader = source.streamReader(None)
                rows = pull(reader)
                with CommitWorker(committer) as worker:
                    worker.take_batch(frame([row.result for row in rows], errors=[row.error for row in rows]), 1)
                    worker.finish()
                reader.stop()
            settle(world)
    subscriptions = status.fields()["subscriptions"]
    assert subscriptions
    MonitoredBacklogs(Monitoring(world.recorder), world.project).read_named(subscriptions)


def run_collector(world: World, pubsub: PubSub) -> None:
    """Do what a collector does at Google: look for the topics that a pattern lets in, and publish."""
    settings = CollectorSettings(allowed=("orders", "ord*"))

    async def work() -> None:
        directory, door = TopicDirectory(pubsub), Door(settings, is_open=True)
        app = Collector(
            settings, delivery=DirectDelivery(pubsub, give_up_seconds=10), directory=directory, door=door
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.post("/orders", content=b"{}")).status_code == 200

    asyncio.run(work())


def settings_of(world: World) -> BackfillSettings:
    return BackfillSettings(
        home=world.folder,
        project=world.project,
        emulator_host=world.server.emulator_host,
        replay_secret="s3cret",
        warehouse=open_warehouse(world.settings),
        max_window_days=36_600,
        query_memory="500MB",
    )


def create_backfill(world: World) -> BackfillFolder:
    """Plan a backfill dry and exactly and create it; return its folder."""
    settings = settings_of(world)
    with (
        closing(JobStore(world.folder / "jobs.db")) as store,
        PubSub(world.project, world.server.emulator_host) as pubsub,
        closing(open_queries(settings)) as queries,
    ):
        service = assemble_backfills(
            settings, store=store, pubsub=pubsub, queries=queries, launcher=NoLauncher(), max_running=1
        )
        request = BackfillRequest(QUERY, topic="orders")
        service.plan(request, principal=LOCAL)
        assert service.plan(request, principal=LOCAL, exact=True)["rows"]
        backfill = service.create(request, principal=LOCAL)
    folder = BackfillFolder(world.folder / "backfills" / backfill.id)
    folder.write_control(Control(1, Order.RUN))
    return folder


def run_driver(world: World, folder: BackfillFolder) -> None:
    """Select a backfill's rows and publish, yielding to a subscription."""
    specification = folder.read_specification()
    assert select(folder, 1, specification, RunOptions.from_specification(specification)).rows
    world.publish(b"a replay")
    MonitoredBacklog(Monitoring(world.recorder), "projects/p/subscriptions/s").read_oldest_unacked_seconds()


def look_around(world: World) -> None:
    """Ask for what the API shows of topics."""
    queries = open_warehouse(world.settings).open_queries(QuerySpace("500MB", world.folder / "spill"))
    with PubSub(world.project, world.server.emulator_host) as pubsub, closing(queries):
        inventory = Inventory(
            pubsub, queries, home=world.folder, replay_secret="s3cret", reports=list, groups=lambda: None
        )
        assert inventory.list_topics(principal=LOCAL)
        inventory.histogram("orders", principal=LOCAL, step="day")


class NoLauncher:
    """Starts nothing: the test does what drivers would."""

    def prepare(self) -> None: ...

    def close(self) -> None: ...


class Monitoring:
    """Cloud Monitoring's client, of which only the call is of interest here."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def list_time_series(self, **_: Any) -> list[Any]:
        self._recorder.methods.append("MetricService/ListTimeSeries")
        return []


def run_merge(world: World, source: MergeSource) -> None:
    with closing(BigQueryMerger(world.project, "backup.merge_audits", world.settings.bigquery)) as merger:
        assert merger.merge(source, now=datetime.now(UTC), since=None, is_dry_run=False).changed


def revert(world: World, source: MergeSource) -> None:
    """Count what a backfill brought to staging, and take it out again."""
    staging = open_warehouse(world.settings).open_staging([source.staging], source.reporting)
    backfill = new_job_id("bf")
    assert list(staging.landed_rows(backfill)) is not None
    assert staging.merged_rows(backfill) == 0
    assert staging.delete_rows(backfill) == 0


def stage(world: World) -> MergeSource:
    source = MergeSource("orders", "staging.orders", "reporting.orders", RULES)
    with closing(open_warehouse(world.settings).open_row_tables(stream="s", lease="l")) as tables:
        staging = tables.open(source.staging)
        staging.evolve(SCHEMA)
    row = {"ingest_time": START, **order(1)}
    ready = {
        key: value if isinstance(value, str | int | list) else value.isoformat() for key, value in row.items()
    }
    assert world.standin.client(world.project).insert_rows_json(f"{world.project}.staging.orders", [ready]) == []
    return source
